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
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever code of another package raises
        if isinstance(error, ValueError) and str(error).startswith("`"):  # ours, which name what is wrong
            raise
        instead = in_place_of_a_window(base) if kind == "window" else "use another base"
        raise ValueError(
            f"`text_config` is a {base.model_type}, which cannot be read with `kind`={kind!r} "
            f"({type(error).__name__}: {error}): {instead}."
        ) from error


@torch.no_grad()
def check_reading(model: Any) -> None:
    """Read five tokens, with a cache and without.

    Raises:
        ValueError: the base fails, its keys cannot be moved, a token sees those after it, or is read otherwise where those
            before it are in a cache, be it alone or with others.
    """
    config, backbone = model.config, model.backbone
    if is_symbolic(next(model.parameters())):
        return  # there is nothing to compute with
    ids = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 4, 5, 3]], device=model.device) % config.vocab_size
    with refusing(config.base_config, config.kind), evaluating(model):
        if config.kind == "window":
            model.reader.measured(backbone)
        logits, later = model(ids).logits.float().split([2, 3], dim=1)
        cache = model(ids[:, :2], use_cache=True).past_key_values
        one = model(ids[:, 2:3], past_key_values=cache, use_cache=True)  # by another way than several, in hybrids
        read_on = torch.cat([one.logits, model(ids[:, 3:], past_key_values=one.past_key_values).logits], 1).float()
    name = config.base_config.model_type
    if differ(*logits):
        raise ValueError(
            f"`text_config` is a {name}, whose tokens see those after them: what can remember is a causal language model."
        )
    if differ(read_on, later):
        raise ValueError(
            f"`text_config` is a {name}, which reads a token otherwise where those before it are in a cache (it may count "
            "positions from there, or read several as a new text): use another base."
        )


def differ(logits: torch.Tensor, others: torch.Tensor) -> bool:
    """Whether what is said of some token, `(.., vocab_size)`, differs by more than noise. By the mean of squares: in
    bfloat16 one of many words is always off by much."""
    return bool(((logits - others).square().mean(-1).sqrt() > NOISE * others.std()).any())


__all__ = ["check_reading", "refusing"]
