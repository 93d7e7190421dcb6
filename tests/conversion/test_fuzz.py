"""Good checkpoints with random changes: the reader refuses them with an error of its own, or reads what was there.

A zip file of torch has check sums, so that what is read from a changed one is what was written. The other formats have
none: a bit that flips in a number cannot be seen there, but what is read is a whole model of finite numbers, or a whole
vocabulary. `FUZZ_FILES` sets the number of changed files, 500 without it.
"""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from golden import folder_of
from safetensors.torch import save_file

from transformers_xl.configuration.configuration_transfo_xl import TransfoXLConfig
from transformers_xl.modeling.conversion.mem_transformer import translate_weights
from transformers_xl.modeling.conversion.original import NOT_IN_WEIGHTS, load_original
from transformers_xl.modeling.conversion.transfo_xl import read_weights
from transformers_xl.modeling.conversion.vocabulary import read_vocabulary

HF_FOLDER, ORIGINAL = folder_of("legacy_hf_checkpoint"), folder_of("legacy_txl_checkpoint")
HYPER = json.loads((ORIGINAL / "expected.json").read_text(encoding="utf-8"))["hyper"]
GIVEN = {name: HYPER[name] for name in (*NOT_IN_WEIGHTS, "cutoffs")}


def original(path: Path) -> dict[str, torch.Tensor]:
    return load_original(path, GIVEN).state_dict()


def folder(path: Path) -> dict[str, torch.Tensor]:
    config = TransfoXLConfig.from_pretrained(HF_FOLDER)
    return translate_weights(read_weights(str(path)), config, str(path))


# file, what reads it, and whether its format has check sums
FILES: list[tuple[Path, Callable, bool]] = [
    (ORIGINAL / "model.pt", original, True),
    (ORIGINAL / "model_state_dict.pt", original, True),
    (HF_FOLDER / "pytorch_model.bin", folder, True),
    (ORIGINAL / "model_oldformat.pt", original, False),
    (HF_FOLDER / "vocab.pkl", read_vocabulary, False),
    (HF_FOLDER / "vocab.bin", read_vocabulary, False),
    (ORIGINAL / "vocab_attributes.pt", read_vocabulary, False),
]


def changed(data: bytes, generator: random.Random) -> bytes:
    """A copy with a few bytes flipped, replaced, left out, put in, doubled or cut off."""
    result = bytearray(data)
    # half of the changes fall into the first part, where the structure is
    reach = len(result) if generator.random() < 0.5 else min(len(result), 24_000)
    for _ in range(generator.choice((1, 1, 1, 2, 5, 20))):
        at = generator.randrange(max(1, min(reach, len(result))))
        kind = generator.randrange(7)
        if kind == 0:
            result[at] ^= 1 << generator.randrange(8)
        elif kind == 1:
            result[at] = generator.choice(b"\x00\x01\x7f\x80\xff.()}]tRb\x93\x81Qcq\x94hKJ")
        elif kind == 2:
            del result[at : at + generator.randrange(1, 9)]
        elif kind == 3:
            result[at:at] = generator.randbytes(generator.randrange(1, 9))
        elif kind == 4:
            result[at:at] = result[at : at + generator.randrange(1, 200)]
        elif kind == 5:
            result[at : at + 8] = generator.randbytes(8)
        elif generator.random() < 0.1:
            del result[at:]
        if not result:
            break
    return bytes(result)


def check(read: Callable, path: Path, expected, has_sums: bool) -> bool:
    """Whether the changed file was refused; an assertion or another error fails the test."""
    reason = None
    try:
        result = read(path)
    except (ValueError, OSError) as error:
        reason = str(error)
    if reason is not None:
        assert str(path) in reason or "`" in reason, f"{reason} names neither the file nor a field"
        return True
    if read is read_vocabulary:
        assert len(result["idx2sym"]) == len(result["sym2idx"])
        assert all(result["sym2idx"][symbol] == index for index, symbol in enumerate(result["idx2sym"]))
    elif has_sums:
        assert result.keys() == expected.keys()
        assert all(torch.equal(result[name], expected[name]) for name in expected)
    else:
        assert all(weight.isfinite().all() for weight in result.values())
    return False


def test_changed_files(tmp_path: Path, capfd: pytest.CaptureFixture):
    torch.save(torch.load(HF_FOLDER / "pytorch_model.bin", weights_only=True), tmp_path / "old.bin",
               _use_new_zipfile_serialization=False)  # fmt: skip
    weights = torch.load(HF_FOLDER / "pytorch_model.bin", weights_only=True)
    save_file({name: weight.clone() for name, weight in weights.items()}, tmp_path / "model.safetensors")
    files = [*FILES, (tmp_path / "old.bin", folder, False), (tmp_path / "model.safetensors", folder, False)]
    originals = [(path.read_bytes(), read(path)) for path, read, _ in files]
    seed = int(os.environ.get("FUZZ_SEED", "0"))
    generator = random.Random(seed)
    count, refused = int(os.environ.get("FUZZ_FILES", "500")), 0
    for tried in range(count):
        (path, read, has_sums), (data, expected) = generator.choice(list(zip(files, originals, strict=True)))
        target = tmp_path / f"changed{path.suffix}"
        target.write_bytes(changed(data, generator))
        try:
            refused += check(read, target, expected, has_sums)
        except BaseException as error:
            keep = Path(os.environ.get("FUZZ_KEEP", tmp_path), f"failed-{path.name}")
            keep.write_bytes(target.read_bytes())
            raise AssertionError(f"seed {seed}, file {tried}: {path.name} changed into {keep}") from error
    with capfd.disabled():
        print(f" [{count} changed files, {refused} refused]", end="")
    assert refused > count / 2
