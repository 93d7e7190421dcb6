"""One segment of a stream as the item that a model reads."""

from collections.abc import Sequence

import numpy as np
import torch

NOTHING = np.empty(0, dtype=np.int64)


def segment_item(
    tokens: np.ndarray,
    targets: np.ndarray,
    segment_length: int,
    reset: bool,
    pad_token_id: int = 0,
    with_mask: bool = True,
    context: int = 0,
    beginning: np.ndarray = NOTHING,
    begins_text: bool = False,
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
        beginning: ids that are read before the tokens; they are context, and no targets.
        begins_text: the tokens are the first of a text, whose first one `beginning` predicts. In mid-text it predicts
            nothing: the first token is a target of the one before it.

    Returns:
        `input_ids`; `labels` and `shift_labels`, -100 where nothing is to be predicted; `attention_mask`, 1 for tokens and
        0 for padding, all `(segment_length,)`; and `reset` `()` bool.
    """

    if len(beginning):
        targets = np.concatenate([beginning[1:], tokens[:1], targets])
        tokens = np.concatenate([beginning, tokens])
        context += len(beginning) - begins_text

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
    if context or len(beginning):
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


def beginning_row(beginning: Sequence[int] | np.ndarray, segment_length: int, overlap: int = 0) -> np.ndarray:
    """The ids that texts begin with `(ids,)`.

    Raises:
        ValueError: it is not one row of integers, or leaves no room for a token of the text in a segment.
    """
    row = token_row("beginning", beginning).astype(np.int64)
    if len(row) and len(row) + overlap >= segment_length:
        raise ValueError(
            f"`segment_length`={segment_length} leaves no token beside the {len(row) + overlap} of `beginning` and "
            "`overlap`: use longer segments."
        )
    return row


def beginning_identity(beginning: np.ndarray, memory: bool) -> dict[str, int | str]:
    """What of its beginnings belongs to the identity of a stream: nothing where it has none."""
    where = "reset" if memory else "segment"
    return {"beginning": f"{', '.join(map(str, beginning))} at every {where}"} if len(beginning) else {}


def token_row(name: str, ids) -> np.ndarray:
    """`ids` as one row of integers `(tokens,)`; an empty one may have any type.

    Raises:
        ValueError: it is not one row of integers.
    """
    row = np.asarray(ids)
    if row.ndim != 1 or (len(row) and not np.issubdtype(row.dtype, np.integer)):
        raise ValueError(f"`{name}` has shape {row.shape} and dtype {row.dtype}: give one row of integers.")
    return row


__all__ = ["NOTHING", "beginning_identity", "beginning_row", "check_sizes", "segment_item", "token_row"]
