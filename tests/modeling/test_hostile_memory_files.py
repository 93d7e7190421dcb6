"""Files that are damaged, changed or hostile: one sentence, and nothing is loaded; what passes can be read."""

import json
import os
import struct
from pathlib import Path
from random import Random

import pytest
import torch
from memories import CARRYING, FORMS, in_both_forms, memory_of_rows, model_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import (
    result_of,
    tokens,
)
from torch import nn

from transformers_xl import Memory
from transformers_xl.modeling.memory.memory_file import hash_of

# --- files that are damaged, changed or hostile


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, bytes]:
    """A model, and the file of a memory of it."""
    folder = tmp_path_factory.mktemp("small")
    model = model_of("compressive_transformer")
    memory_of_rows(model).save(folder / "small", model, tokens(3, 1))
    return model, (folder / "small").read_bytes()


def test_a_file_that_is_cut_off_or_changed_anywhere_is_refused(small, tmp_path):
    model, data = small
    path = tmp_path / "memory"
    start = 8 + struct.unpack("<Q", data[:8])[0]
    for end in (0, 1, 7, 8, 9, start // 2, start - 1, start, start + 1, len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(ValueError, match="'.*memory' (cannot be read: it is damaged|is no memory)"):
            Memory.load(path, model)
    path.write_bytes(data + b"\0")
    with pytest.raises(ValueError, match="damaged"):
        Memory.load(path, model)
    for place in [*range(0, start, 29), *range(start, len(data), 1999)]:
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"'.*memory' (cannot|is|holds)"):
            Memory.load(path, model)
    path.write_bytes(data)
    Memory.load(path, model)


def test_what_is_no_memory_is_refused(small, tmp_path):
    model, _ = small
    path = tmp_path / "memory"
    os.mkfifo(tmp_path / "pipe")
    save_file({"lengths": torch.zeros(1)}, tmp_path / "tensors")
    path.write_text("{}")
    for name, said in (
        ("memory", "cannot be read"),
        ("tensors", "is no memory"),
        ("pipe", "is no file"),
        (".", "is no file"),
    ):
        with pytest.raises(ValueError, match=said):
            Memory.load(tmp_path / name, model)
    with pytest.raises(ValueError, match="is no file"):
        Memory.load(tmp_path / "nowhere", model)


def rewritten(data: bytes, path: Path, change) -> None:
    """The file with tensors and a header that `change(tensors, header)` makes, and the right hash of them."""
    path.write_bytes(data)
    with safe_open(path, "pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    header.pop("sha256")
    change(tensors, header)
    save_file(tensors, path, header | {"sha256": hash_of(tensors, header)})


COLUMNS = "layers.0.columns.0"
HOSTILE = {
    "lengths beyond the columns": lambda t, h: t.update(lengths=torch.tensor([1, 5, 90])),
    "lengths below zero": lambda t, h: t.update(lengths=torch.tensor([1, -5, 8])),
    "lengths of numbers that are none": lambda t, h: t.update(lengths=torch.tensor([1.0, float("nan"), 8.0])),
    "lengths in few bits": lambda t, h: t.update(lengths=torch.tensor([1, 5, 8], dtype=torch.int8)),
    "lengths without rows": lambda t, h: t.update(lengths=torch.tensor(3)),
    "lengths of other rows": lambda t, h: t.update(lengths=torch.tensor([1, 5])),
    "tokens read below zero": lambda t, h: t.update(tokens_read=torch.tensor([1, -1, 21])),
    "tokens read without end": lambda t, h: t.update(tokens_read=torch.tensor([1, 5, 2**62])),
    "tokens read in a table": lambda t, h: t.update(tokens_read=torch.ones(3, 3, dtype=torch.long)),
    "a count below zero": lambda t, h: t.update({"state.0": torch.tensor([0, -1, 3])}),
    "a count of numbers": lambda t, h: t.update({"state.0": torch.zeros(3)}),
    "columns of integers": lambda t, h: t.update({COLUMNS: t[COLUMNS].long()}),
    "columns in eight bits": lambda t, h: t.update({COLUMNS: t[COLUMNS].to(torch.float8_e4m3fn)}),
    "complex columns": lambda t, h: t.update({COLUMNS: t[COLUMNS].to(torch.complex64)}),
    "a column without a shape": lambda t, h: t.update({COLUMNS: torch.tensor(1.0)}),
    "a flat column": lambda t, h: t.update({COLUMNS: torch.ones(3)}),
    "columns of fewer rows": lambda t, h: t.update({COLUMNS: t[COLUMNS][:2].clone()}),
    "columns of fewer heads": lambda t, h: t.update({COLUMNS: t[COLUMNS][:, :3].clone()}),
    "narrow columns": lambda t, h: t.update({COLUMNS: t[COLUMNS][..., :7].clone()}),
    "fewer columns": lambda t, h: t.update({COLUMNS: t[COLUMNS][..., 1:, :].clone()}),
    "a layer with fewer columns": lambda t, h: t.update(
        {f"layers.0.columns.{i}": t[f"layers.0.columns.{i}"][..., 1:, :].clone() for i in range(3)}
    ),
    "a layer with fewer older ones": lambda t, h: t.update(
        {f"layers.0.older.{i}": t[f"layers.0.older.{i}"][..., 1:, :].clone() for i in range(2)}
    ),
    "older ones of other heads": lambda t, h: t.update({"layers.0.older.0": t["layers.0.older.0"][:, :2].clone()}),
    "no columns": lambda t, h: [t.pop(f"layers.0.columns.{i}") for i in range(3)],
    "one tensor less": lambda t, h: t.pop("layers.1.columns.2"),
    "one layer less": lambda t, h: [t.pop(name) for name in list(t) if name.startswith("layers.1.")],
    "one layer more": lambda t, h: t.update({"layers.2.columns.0": t[COLUMNS].clone()}),
    "a layer far away": lambda t, h: t.update({"layers.999999999.columns.0": t[COLUMNS].clone()}),
    "no lengths": lambda t, h: t.pop("lengths"),
    "a stray tensor": lambda t, h: t.update(stray=torch.zeros(3)),
    "tokens that are none": lambda t, h: t.update(unread_ids=torch.tensor([[1], [2], [-3]])),
    "tokens of other rows": lambda t, h: t.update(unread_ids=torch.tensor([[1], [2]])),
    "tokens of numbers": lambda t, h: t.update(unread_ids=torch.tensor([[1.0], [2.0], [3.0]])),
    "a later version": lambda t, h: h.update(memory_version="2"),
    "no model": lambda t, h: h.pop("model_type"),
    "no JSON": lambda t, h: h.update(config="{"),
    "a list of fields": lambda t, h: h.update(config="[1]"),
    "deep fields": lambda t, h: h.update(config="[" * 100_000),
    "a huge model type": lambda t, h: h.update(model_type="x\n" * 100_000),
    "other weights": lambda t, h: h.update(weights=""),
    "another head": lambda t, h: h.update(head="0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_one_sentence(small, name, tmp_path):
    """Its hash is right: who made it knew how."""
    model, data = small
    rewritten(data, tmp_path / "memory", HOSTILE[name])
    with pytest.raises(ValueError, match=r"'.*memory' (cannot|is|was|holds)") as refused:
        Memory.load(tmp_path / "memory", model)
    assert len(str(refused.value)) < 1000
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "header",
    [
        {"lengths": {"dtype": "I64", "shape": [2**60], "data_offsets": [0, 2**63]}},
        {"lengths": {"dtype": "I64", "shape": [2**62, 2**62], "data_offsets": [0, 8]}},
        {"lengths": {"dtype": "I64", "shape": [-1], "data_offsets": [0, 8]}},
        {"lengths": {"dtype": "X64", "shape": [1], "data_offsets": [0, 8]}},
        {"lengths": {"dtype": "I64", "shape": [2**60, 0], "data_offsets": [0, 0]}},
        {"__metadata__": {"memory_version": 1}},
        {"__metadata__": []},
        [],
    ],
    ids=str,
)
def test_sizes_that_are_declared_are_not_taken(small, header, tmp_path):
    text = json.dumps(header).encode()
    (tmp_path / "memory").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(ValueError, match="'.*memory'"):
        Memory.load(tmp_path / "memory", small[0])
    (tmp_path / "memory").write_bytes(struct.pack("<Q", 2**62) + text)
    with pytest.raises(ValueError, match="'.*memory' cannot be read"):
        Memory.load(tmp_path / "memory", small[0])


def disturbed(memory: Memory, random: Random) -> Memory:
    """Some of its numbers, types and counts changed, as only a hostile file has them."""
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    most, older = random.randint(0, memory.num_columns), random.randint(0, 3)
    tensors = {}
    for name, each in memory.named_tensors().items():
        if not each.is_floating_point():
            top = memory.num_columns if name == "lengths" else random.choice([3, 30, 2**31, 2**53])
            each = torch.tensor([random.randint(0, top) for _ in each]) if random.random() < 0.5 else each
        elif random.random() < 0.3:
            each = each.to(random.choice(kinds))
        if "columns" in name and each.shape[-2] > most:
            each = each[..., :most, :]
        elif "older" in name:
            each = each[..., :older, :]
        tensors[name] = each
    tensors["lengths"] = tensors["lengths"].clamp(max=most)
    return Memory.from_named_tensors(tensors)


@pytest.mark.parametrize("model_type", CARRYING)
@in_both_forms
@torch.no_grad()
def test_what_passes_can_be_read(model_type, use_cache):
    """By a call of each form, and by `generate()`."""
    model, random = model_of(model_type), Random(0)
    memory = memory_of_rows(model, use_cache)
    passed = 0
    for number in range(12):
        given = disturbed(memory, random)
        try:
            getattr(model, "model", model).check_saved_memory(given)
        except ValueError:
            continue
        passed += 1
        for form in FORMS.values():
            said = result_of(model(tokens(3, 1 + 6 * (number % 2)), mems=given, use_cache=form))
            assert said.shape[:2] == (3, 1 + 6 * (number % 2))
        if model.can_generate() and number % 4 == 0:
            model.generate(tokens(3, 2), mems=given, max_new_tokens=2, do_sample=False)
    assert passed > 3
