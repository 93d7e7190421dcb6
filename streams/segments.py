"""One segment of a stream as the item that a model reads."""

import numpy as np
import torch


def segment_item(
    tokens: np.ndarray,
    targets: np.ndarray,
    segment_length: int,
    reset: bool,
    pad_token_id: int = 0,
    with_mask: bool = True,
    context: int = 0,
) -> dict[str, torch.Tensor]:
    """A segment, filled up on the right to `segment_length`.

    Args:
        tokens: the tokens of the segment `(<=segment_length,)`.
        targets: the next token of each, as far as there is one `(<=segment_length,)`.
        segment_length: tokens per segment.
        reset: whether a lane or a document begins here.
        pad_token_id: what the padding is filled with; it is masked everywhere.
        with_mask: give an `attention_mask`.
        context: the first so many tokens are read for context: nothing is to be predicted of them.

    Returns:
        `input_ids`; `labels` and `shift_labels`, -100 where nothing is to be predicted; `attention_mask`, 1 for tokens and
        0 for padding, all `(segment_length,)`; and `reset` `()` bool.
    """

    def filled(ids: np.ndarray, fill: int) -> torch.Tensor:
        row = torch.full((segment_length,), fill, dtype=torch.long)
        row[: len(ids)] = torch.from_numpy(ids.astype(np.int64))
        return row

    item = {
        "input_ids": filled(tokens, pad_token_id),
        "labels": filled(tokens, -100),
        "shift_labels": filled(targets, -100),
        "reset": torch.tensor(reset),
    }
    if context:
        item["labels"][: context + 1] = -100  # those who shift them predict token i + 1 from token i
        item["shift_labels"][:context] = -100
    if with_mask:
        item["attention_mask"] = (torch.arange(segment_length) < len(tokens)).long()
    return item


def check_sizes(segment_length: int, lanes: int) -> None:
    """Raise a `ValueError` where a length or a number of lanes is below 1."""
    for name, value in (("segment_length", segment_length), ("lanes", lanes)):
        if value < 1:
            raise ValueError(f"`{name}`={value} must be at least 1.")


def token_row(name: str, ids) -> np.ndarray:
    """`ids` as one row of integers `(tokens,)`; an empty one may have any type.

    Raises:
        ValueError: it is not one row of integers.
    """
    row = np.asarray(ids)
    if row.ndim != 1 or (len(row) and not np.issubdtype(row.dtype, np.integer)):
        raise ValueError(f"`{name}` has shape {row.shape} and dtype {row.dtype}: give one row of integers.")
    return row


__all__ = ["check_sizes", "segment_item", "token_row"]
