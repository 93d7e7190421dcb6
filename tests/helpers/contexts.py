"""What a layer, or an attention alone, is told of a call: for tests that have no model around it."""

import torch

from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment


def context_of(
    length: int,
    num_before: int = 0,
    batch: int = 1,
    mask: torch.Tensor | None = None,
    window: int | None = None,
    **told,
) -> LayerContext:
    """That of `length` tokens after `num_before` columns, all of them real.

    Args:
        mask: `(batch or 1, 1, length, keys)` bool, what they see of the columns; None: all up to themselves.
        window: positions that a token sees, itself included; None: all.
        told: further fields of [`LayerContext`]; a layer remembers nothing, unless `keep` says so.
    """
    before = torch.full((batch,), num_before)
    segment = Segment.of(num_before, before, before, length, Call()).seen_by(num_before, num_before, window)
    return LayerContext(segment._replace(is_plain=mask is None), window, told.pop("keep", 0), mask, **told)


__all__ = ["context_of"]
