"""Which warm-ups a training does not finish; that it is said when one begins stands in test_memory_warmup.py."""

import pytest
from trained import arguments

from transformers_xl.training.unfinished_warmups import unfinished_warmups

GROWING = {"lr_scheduler_type": "constant", "initial_bptt_segments": 1}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"warmup_steps": 9}, []),
        ({"warmup_steps": 0.9}, []),
        ({"warmup_steps": 10}, ["warmup_steps"]),
        ({"warmup_steps": 10, "lr_scheduler_type": "constant"}, []),  # it has no warm-up
        ({**GROWING, "bptt_warmup_steps": 0.5}, []),
        ({**GROWING, "bptt_warmup_steps": 11}, ["bptt_warmup_steps"]),
        (
            {"warmup_steps": 30, "initial_mem_len": 4, "mem_len_warmup_steps": 20},
            ["mem_len_warmup_steps", "warmup_steps"],
        ),
    ],
)
def test_warm_ups_that_are_longer_than_the_training(tmp_path, fields: dict, names: list[str]):
    args = arguments(tmp_path, **({"lr_scheduler_type": "cosine"} | fields))
    said = list(unfinished_warmups(args, max_steps=10))
    assert [each.split("`")[1] for each in said] == names
    assert all("ends after 10 steps" in each for each in said)
