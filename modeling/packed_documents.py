"""Documents that are packed into one row: `position_ids` that start again say where each begins.

`DataCollatorWithFlattening` of transformers and `SFTTrainer(packing=True)` of TRL hand them in so.
Shapes: B batch, T segment.
"""

import torch

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.ops.window import gather_columns, inverse, right_align


def document_starts(position_ids: torch.Tensor, segment_mask: torch.Tensor | None) -> torch.Tensor | None:
    """Tokens (B, T) bool whose position does not continue that of the real token before them; None where all do.

    Args:
        position_ids: (B, T) integers. Those of padding do not count.
        segment_mask: (B, T) bool, real tokens; None when all are.
    """
    order = None if segment_mask is None else right_align(segment_mask)
    position_ids = gather_columns(position_ids, order)
    starts = torch.zeros_like(position_ids, dtype=torch.bool)
    starts[:, 1:] = position_ids.diff(dim=1) != 1
    if segment_mask is not None and order is not None:
        mask = gather_columns(segment_mask, order)
        starts[:, 1:] &= mask[:, :-1]  # the first real token continues the memory, whatever the padding before it
        starts = gather_columns(starts & mask, inverse(order))
    if not torch.compiler.is_compiling() and not bool(starts.any()):
        return None
    return starts


def check_continued_rows(
    position_ids: torch.Tensor,
    segment_mask: torch.Tensor | None,
    reset: torch.Tensor | None,
    remembers: torch.Tensor | None,
) -> None:
    """Check that no row continues its memory with a token at position 0, which says that it begins there.

    Args:
        position_ids: (B, T) integers.
        segment_mask: (B, T) bool, real tokens; None when all are.
        reset: (B, T) bool, tokens that begin a document; None when none does.
        remembers: (B,) bool, rows with a memory that is not empty; None when there are none.

    Raises:
        ValueError: such a row is there.
    """
    if remembers is None or torch.compiler.is_compiling():
        return
    mask = torch.ones_like(position_ids, dtype=torch.bool) if segment_mask is None else segment_mask
    is_first = mask & (mask.long().cumsum(dim=1) == 1)
    begins = (is_first & (position_ids == 0)).any(dim=1) & remembers.to(position_ids.device)
    if reset is not None:
        begins &= ~(is_first & (reset.long().cumsum(dim=1) > 0)).any(dim=1)
    rows = begins.nonzero().flatten().tolist()
    if rows:
        raise ValueError(
            f"`position_ids` begins at 0 in rows {rows}, which have a memory: pass `reset`, (batch,) bool, for rows whose "
            "document begins with this call, or leave `position_ids` out where the text continues."
        )


def resets_of_documents(
    config: MemoryConfig,
    position_ids: torch.Tensor,
    segment_mask: torch.Tensor | None,
    reset: torch.Tensor | None,
    remembers: torch.Tensor | None,
) -> torch.Tensor | None:
    """`reset` (B, T) and the tokens at which `position_ids` say that a document begins; None when there are none.

    Raises:
        ValueError: a document begins where the model, or the memory that was handed in, does not allow it.
    """
    check_continued_rows(position_ids, segment_mask, reset, remembers)
    starts = document_starts(position_ids, segment_mask)
    if starts is None:
        return reset
    if config.initial_memory == "zeros":
        raise ValueError(
            "`position_ids` begin a document inside a segment, which cannot begin with the memory of zeros of "
            "`initial_memory`='zeros': give each document its own row."
        )
    return starts if reset is None else starts | reset


__all__ = ["document_starts", "resets_of_documents"]
