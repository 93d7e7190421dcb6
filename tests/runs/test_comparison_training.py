"""One training of a comparison: its step by hand, its average, its points, and what carries on and what does not."""

import copy

import numpy as np
import pytest
import torch

from transformers_xl.runs.comparison_models import ComparedModel
from transformers_xl.runs.comparison_plan import plan_of
from transformers_xl.runs.comparison_search import Setting
from transformers_xl.runs.comparison_training import DECAY, Diverged, Training

SEGMENT, LANES = 4, 3
PLAN = plan_of(
    {
        "texts": {"train": "-", "validation": "-", "test": "-"},
        "models": {"transformer_xl": {}},
        "reference": "transformer_xl",
        "hidden_size": 8,
        "layers": 1,
        "heads": 2,
        "mem_len": 8,
        "segment_length": SEGMENT,
        "batch_size": LANES,
        "warmup_steps": 2,
    }
)
IDS = np.random.default_rng(0).integers(0, 256, 400)
DOCUMENTS = [IDS[:20], IDS[200:230]]


def training(steps: int = 4, rate: float = 1e-2, schedule: str = "constant") -> Training:
    model = ComparedModel("transformer_xl", PLAN)
    return Training(model.build(0, 0.1), model.reading, IDS, PLAN, Setting(0.1, rate, schedule), steps)


def test_steps_by_hand():
    """AdamW after a warm-up of two steps, gradients clipped at 1, and the memory of the step before."""
    found = training()
    model = copy.deepcopy(found.model)
    optimizer, mems, average = torch.optim.AdamW(model.parameters(), weight_decay=0.0), None, None
    length = (len(IDS) - 1) // LANES
    for step in range(4):
        columns = np.arange(LANES)[:, None] * length + step * SEGMENT + np.arange(SEGMENT)
        ids, targets = torch.from_numpy(IDS[columns]), torch.from_numpy(IDS[columns + 1])
        outputs = model(ids, shift_labels=targets, mems=mems)
        assert found.step() == pytest.approx(outputs.loss.item(), rel=1e-5)
        mems = outputs.mems
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1, step / 2)
        optimizer.step()
        optimizer.zero_grad()
        weight, decay = model.model.embed_tokens.weight.detach(), min(DECAY, (step + 1) / (step + 10))
        average = weight.clone() if average is None else decay * average + (1 - decay) * weight
    assert torch.allclose(found.model.model.embed_tokens.weight, weight, atol=1e-5)
    assert torch.allclose(found.average.tensors["model.embed_tokens.weight"], average, atol=1e-5)


def test_a_point_is_the_end_of_a_shorter_training():
    """Where the rate is constant; scoring on the way changes nothing."""
    long, short = training(steps=4).run(DOCUMENTS, [3, 4]), training(steps=3).run(DOCUMENTS, [3])
    assert np.array_equal(long[3], short[3])
    assert not np.array_equal(long[3], long[4])
    assert np.array_equal(long[4], training(steps=4).run(DOCUMENTS, [4])[4])


def test_the_model_ends_with_its_average():
    found = training()
    found.run(DOCUMENTS, [4])
    assert found.model.model.embed_tokens.weight.equal(found.average.tensors["model.embed_tokens.weight"])


@pytest.mark.parametrize(("schedule", "last"), [("constant", 1.0), ("linear", 0.25), ("cosine", 0.1464)])
def test_schedules(schedule: str, last: float):
    found, rates = training(steps=6, schedule=schedule), []
    for _ in range(6):
        rates.append(found.optimizer.param_groups[0]["lr"])
        found.step()
    assert rates[:3] == [0, pytest.approx(5e-3), pytest.approx(1e-2)]
    assert rates[-1] == pytest.approx(1e-2 * last, rel=1e-3)


def test_what_diverges_is_told():
    found = training()
    with torch.no_grad():
        found.model.model.embed_tokens.weight.fill_(float("inf"))
    with pytest.raises(Diverged, match="after 1 steps"):
        found.run(DOCUMENTS, [4])
