"""Pushes of the Trainer to the stand-in server: at the end, and during training."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from patience import PATIENCE
from tiny import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from transformers_xl import ByteTokenizer, MemoryTrainer
from transformers_xl.data.text_stream import TextStream
from transformers_xl.hub.uploading import PushError
from transformers_xl.training.trainer import MemoryTrainingArguments

stand_in = sys.modules["stand_in_server"]
Fault, READER = stand_in.Fault, stand_in.READER
REPO = "owner/trained"


def trainer(tmp_path: Path, **arguments) -> MemoryTrainer:
    ids = np.random.default_rng(0).integers(0, 256, 2 * 6 * 4 + 1)
    defaults = {
        "per_device_train_batch_size": 2,
        "max_steps": 4,
        "save_steps": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "push_to_hub": True,
        "hub_model_id": REPO,
        "hub_always_push": True,  # wait for no push: each is seen
        "dataloader_pin_memory": False,
    }
    return MemoryTrainer(
        tiny_model("transformer_xl", "causal_lm", dtype=torch.float32, vocab_size=259),
        MemoryTrainingArguments(str(tmp_path / "run"), **(defaults | arguments)),
        train_dataset=TextStream(ids, 6, 2),
        processing_class=ByteTokenizer(),
    )


def test_every_save_is_pushed_and_the_end(hub, tmp_path: Path):
    """The code goes along, from the first push on, and no pickle."""
    training = trainer(tmp_path, hub_strategy="every_save", hub_private_repo=True)
    training.train()
    pushed = ["initial commit", "Training in progress, step 2", "Training in progress, step 4"]
    assert hub.messages(REPO) == pushed
    assert hub.repos[REPO].private
    assert not list((tmp_path / "run").glob("_push-*"))
    states = list(hub.repos[REPO].commits.values())
    for files in states[1:]:
        assert {"model.safetensors", "config.json", "modeling_transformer_xl.py", "tokenization_bytes.py"} <= set(
            files
        )
    assert states[1]["model.safetensors"] != states[2]["model.safetensors"]

    commit = training.push_to_hub(commit_message="Done", tags="memory")
    assert commit.oid == hub.repos[REPO].sha("main")
    assert hub.messages(REPO) == [*pushed, "Done"]
    names = set(hub.files(REPO))
    assert "training_args.json" in names & set(states[1])
    for state in states[1:]:  # where files lie is nobody's business
        assert not [name for name, content in state.items() if str(tmp_path).encode() in content]
    assert not [path.name for path in (tmp_path / "run").iterdir() if path.suffix == ".bin"]
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl")) or "checkpoint" in name]
    assert b"memory" in hub.files(REPO)["README.md"]
    loaded = AutoModelForCausalLM.from_pretrained(REPO)
    torch.testing.assert_close(loaded.state_dict(), training.model.state_dict(), atol=0, rtol=0)
    assert type(AutoTokenizer.from_pretrained(REPO)) is ByteTokenizer


def test_with_the_strategy_end_nothing_is_pushed_before(hub, tmp_path: Path):
    training = trainer(tmp_path, hub_strategy="end", hub_revision="runs")
    training.train()
    assert hub.messages(REPO) == ["initial commit"]
    job = training.push_to_hub(blocking=False)
    job.result(timeout=PATIENCE)
    assert hub.messages(REPO) == ["initial commit", "End of training"]
    assert "model.safetensors" in hub.files(REPO, "runs")
    assert "model.safetensors" not in hub.files(REPO)


def test_a_push_that_fails_in_the_background_is_told_and_training_goes_on(hub, tmp_path: Path, monkeypatch):
    told: list[str] = []
    logger = logging.get_logger("transformers_xl.training.pushing")
    monkeypatch.setattr(logger, "error", told.append)
    hub.faults.append(Fault("POST", "/commit/", 403))
    training = trainer(tmp_path, hub_strategy="every_save")
    training.train()
    assert training.state.global_step == 4
    assert len(told) == 1
    assert "your token may not write there" in told[0]
    assert "Not on the server:" in told[0]
    assert hub.messages(REPO) == ["initial commit", "Training in progress, step 4"]


def test_a_push_at_the_end_that_fails_says_how_things_stand(hub, tmp_path: Path, monkeypatch):
    training = trainer(tmp_path, hub_strategy="end")
    training.train()
    hub.faults.append(Fault("POST", "/commit/", 500))
    with pytest.raises(PushError, match="the server has a fault.*On the server: nothing.*config.json"):
        training.push_to_hub()
    training.push_to_hub()
    assert "model.safetensors" in hub.files(REPO)


def test_a_token_that_may_not_is_told_before_training(hub, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", READER)
    with pytest.raises(PushError, match="your token may not write there.*Nothing was sent"):
        trainer(tmp_path)
