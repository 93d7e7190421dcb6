"""Whether a base can be read with a memory, tried with a few tokens: what no configuration says of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedConfig

from transformers_xl.modeling.evaluating import evaluating
from transformers_xl.modeling.ops.columns import is_symbolic
from transformers_xl.modeling.pretrained.supported_bases import in_place_of_a_window

NOISE = 0.1  # of the spread of the logits: what rounding and quantised weights make of a difference of nothing


@contextmanager
def refusing(base: PreTrainedConfig, kind: str) -> Iterator[None]:
    """Turn what a base raises into a `ValueError` that says which base it is."""
    try:
        yield
    except (ValueError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever code of another package raises
        instead = in_place_of_a_window(base) if kind == "window" else "use another base"
        raise ValueError(
            f"`text_config` is a {base.model_type}, which cannot be read with `kind`={kind!r} "
            f"({type(error).__name__}: {error}): {instead}."
        ) from error


@torch.no_grad()
def check_reading(model: Any) -> None:
    """Read two tokens, with a cache and without.

    Raises:
        ValueError: the base fails, its keys cannot be moved, a token sees the one after it, or is read otherwise where the
            one before it is in a cache.
    """
    config, backbone = model.config, model.backbone
    if is_symbolic(next(model.parameters())):
        return  # there is nothing to compute with
    ids = torch.tensor([[1, 2], [1, 3]], device=model.device) % config.vocab_size
    with refusing(config.base_config, config.kind), evaluating(model):
        if config.kind == "window":
            model.reader.measured(backbone)
        logits, later = model(ids).logits.float().unbind(1)
        model(ids, use_cache=True)
        cache = model(ids[:, :1], use_cache=True).past_key_values
        read_on = model(ids[:, 1:], past_key_values=cache).logits[:, 0].float()
    name = config.base_config.model_type
    if float((logits[0] - logits[1]).abs().max()) > NOISE * float(logits.std()):
        raise ValueError(
            f"`text_config` is a {name}, whose tokens see those after them: what can remember is a causal language model."
        )
    if float((read_on - later).abs().max()) > NOISE * float(later.std()):
        raise ValueError(
            f"`text_config` is a {name}, which reads a token otherwise where the one before it is in a cache (it may count "
            "positions from there): use another base."
        )


__all__ = ["check_reading", "refusing"]
