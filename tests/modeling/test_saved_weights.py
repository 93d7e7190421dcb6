"""A folder that is saved again holds the new weights alone, in one file or in several."""

from pathlib import Path

import pytest
import torch
from tiny import EXACT, tiny_model

SIZES = {"one file": "1GB", "several": "40KB"}


@pytest.mark.parametrize("variant", [None, "fp16"])
@pytest.mark.parametrize("second", SIZES)
@pytest.mark.parametrize("first", SIZES)
def test_what_was_saved_last_is_loaded(first: str, second: str, variant: str | None, tmp_path: Path) -> None:
    for size, shift in ((first, 0.0), (second, 1.0)):
        model = tiny_model("transformer_xl", "causal_lm")
        model.lm_head.bias.data += shift
        model.save_pretrained(tmp_path, max_shard_size=SIZES[size], variant=variant)
        model.config.save_pretrained(tmp_path)  # has no weights, and takes none away
    loaded = type(model).from_pretrained(tmp_path, variant=variant, dtype=model.dtype)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), **EXACT)


def test_a_save_that_fails_leaves_the_weights(tmp_path: Path, monkeypatch) -> None:
    model = tiny_model("transformer_xl", "causal_lm")
    model.save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors").read_bytes() == before
