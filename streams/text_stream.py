"""A text as a stream of segments that a model with memory reads in order.

Transformer-XL (Dai et al., 2019, https://arxiv.org/abs/1901.02860) trains on consecutive segments of one long text, a
batch row continuing where it stopped at the step before (`LMOrderedIterator` in the original code).
"""

from functools import cached_property

import numpy as np
import torch
from torch.utils.data import Dataset

from transformers_xl.streams.identity import digest_of
from transformers_xl.streams.segments import check_sizes, segment_item, token_row
from transformers_xl.streams.text_files import TextCounts


class TextStream(Dataset):
    """A text of token ids, cut into `lanes` contiguous lanes that are read side by side.

    Items are step-major: item `i` is segment `i // lanes` of lane `i % lanes`. Read in order, in batches of `lanes`
    items, row `b` of a batch therefore continues row `b` of the batch before; in `n` processes with batches of
    `lanes / n` items the same holds for every process under Accelerate's default dealing of batches.

    Each item is a dictionary of

    - `input_ids` `(segment_length,)`: the tokens.
    - `labels` `(segment_length,)`: the same tokens, for code that shifts them itself.
    - `shift_labels` `(segment_length,)`: the next token of every token. That of a segment's last token is the first
      token of the next segment, that of a lane's last token the first token of the next lane. -100: no target.
    - `reset` `()` bool: the lane begins here, nothing has been read before.
    - `attention_mask` `(segment_length,)`, with `keep_tail` only: 1 for tokens, 0 for padding.

    Args:
        ids: token ids of the whole text `(tokens,)`, an array or tensor of integers (a memory map will do).
        segment_length: tokens per segment.
        lanes: number of lanes: batch size per process x processes.
        keep_tail: what happens to the end of a text that does not fill its last segments. `False`, for training: all
            segments are full, and the up to `lanes * segment_length` tokens at the end of the text are left out.
            `True`, for evaluation: every token is read once, and the last segment of a lane is padded on the right.
        pad_token_id: what the padding of `keep_tail` is filled with; it is masked everywhere.
        counts: how long the text of all predicted tokens is; `MemoryTrainer.evaluate` makes bits per byte of it.

    Raises:
        ValueError: `ids` is not one row of integers, or too short for its lanes, or a number is below 1.
    """

    def __init__(
        self,
        ids: np.ndarray | torch.Tensor,
        segment_length: int,
        lanes: int = 1,
        keep_tail: bool = False,
        pad_token_id: int = 0,
        counts: TextCounts | None = None,
    ):
        ids = token_row("ids", ids)
        check_sizes(segment_length, lanes)
        # every lane needs a token and a target in evaluation, a full segment and the target behind it in training
        needed = lanes + 1 if keep_tail else lanes * segment_length + 1
        if len(ids) < needed:
            raise ValueError(
                f"`ids` has {len(ids)} tokens, too short for `lanes`={lanes} of `segment_length`={segment_length}: "
                f"at least {needed} are needed. Use a longer text, fewer lanes or shorter segments."
            )
        self.ids = ids
        self.segment_length = segment_length
        self.lanes = lanes
        self.keep_tail = keep_tail
        self.pad_token_id = pad_token_id
        self.counts = counts
        if keep_tail:
            self.starts = np.linspace(0, len(ids), lanes + 1).astype(np.int64)
            self.segments = -(-int(np.diff(self.starts).max()) // segment_length)
        else:
            self.segments = (len(ids) - 1) // (lanes * segment_length)
            self.starts = np.arange(lanes + 1) * self.segments * segment_length

    def __len__(self) -> int:
        return self.segments * self.lanes

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of a stream of {len(self)}")
        segment, lane = divmod(index, self.lanes)
        start = self.starts[lane] + segment * self.segment_length
        # with `keep_tail` a lane may be a segment shorter than the longest
        stop = max(start, min(start + self.segment_length, self.starts[lane + 1]))
        tokens, targets = self.ids[start:stop], self.ids[start + 1 : stop + 1]
        return segment_item(
            tokens, targets, self.segment_length, segment == 0, self.pad_token_id, with_mask=self.keep_tail
        )

    @cached_property
    def identity(self) -> dict[str, int | str]:
        """What must be the same for a run to go on: `text` (a SHA-256 of its ids, read once), `lanes`, `segment_length`,
        `documents` and `keep_tail`."""
        return {
            "text": digest_of([self.ids]),
            "lanes": self.lanes,
            "segment_length": self.segment_length,
            "documents": "one endless text",
            "keep_tail": self.keep_tail,
        }


__all__ = ["TextStream"]
