"""What training_metrics.json says of an evaluation: all that its figure depends on."""

from pathlib import Path

import pytest
import torch
from tiny import tiny_model

from transformers_xl.evaluation.bits_per_byte import score_text
from transformers_xl.hub.cards import model_card
from transformers_xl.hub.measurements import Text, lengths_of, measurements_of, write_measurements
from transformers_xl.runs.recording import evaluation_of


@pytest.mark.parametrize("initial_memory", ["empty", "zeros"])
def test_lengths_without_memory_are_those_that_change_the_score(initial_memory: str):
    """A first memory of zeros is read too: of another length, it gives other figures."""
    ids = torch.randint(0, 29, (40,))
    models = [
        tiny_model("transformer_xl", "causal_lm", initial_memory=initial_memory, mem_len=mem_len, same_length=False)
        for mem_len in (4, 12)
    ]
    short, long = (score_text(model, ids, segment_length=5, memory=False).nats for model in models)
    assert (short == pytest.approx(long, rel=1e-9)) is (initial_memory == "empty")
    lengths = [lengths_of(model, 1, memory=False) for model in models]
    assert [each.mem_len for each in lengths] == ([0, 0] if initial_memory == "empty" else [4, 12])


@pytest.mark.parametrize(
    ("model_type", "memory", "on_the_hub"),
    [("transformer_xl", "taken away", "memory taken away"), ("vanilla_transformer", "none", "no memory")],
)
def test_a_memory_that_is_taken_away_is_not_one_that_never_was(
    tmp_path: Path, model_type: str, memory: str, on_the_hub: str
):
    model = tiny_model(model_type, "causal_lm", torch.float32)
    model.save_pretrained(tmp_path)
    score = score_text(model, torch.randint(0, 29, (40,)), segment_length=5, memory=False)
    text = Text("test.txt", "0" * 64, "bytes", 40, 40)
    found = [evaluation_of(model, score, text, 1, False, "evaluate", 5, overlap) for overlap in (0, 4)]
    write_measurements(tmp_path, measurements_of(model, tmp_path, evaluations=found))
    card = model_card(tmp_path, "owner/model")
    assert f"| memory | {memory} | {memory} |" in card.text
    assert ("trained without one" in card.text) == (memory == "taken away")
    names = [each.metric_name for each in card.data.eval_results if each.metric_type == "bits_per_byte"]
    assert names == [
        f"Bits per byte, {on_the_hub}, segments of 5{shared}, 1 lanes" for shared in ("", " that share 4")
    ]
