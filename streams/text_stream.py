"""A text as a stream of segments that a model with memory reads in order.

Transformer-XL (Dai et al., 2019, https://arxiv.org/abs/1901.02860) trains on consecutive segments of one long text, a
batch row continuing where it stopped in the step before (`LMOrderedIterator` in the original code).
"""

from functools import cached_property

import numpy as np
import torch
from torch.utils.data import Dataset

from transformers_xl.streams.identity import digest_of
from transformers_xl.streams.segments import check_sizes, segment_item, token_row
from transformers_xl.streams.text_files import TextCounts


class TextStream(Dataset):
    """A text of token ids, cut into `lanes` contiguous parts, one for each batch row.

    A lane is the text that one batch row reads: row `b` of every batch holds the next segment of lane `b`, so it continues
    row `b` of the batch before. Item `i` is segment `i // lanes` of lane `i % lanes`. In order, `lanes` items make a batch.
    With `n` processes and batches of `lanes / n` items, Accelerate's default distribution of batches keeps the lanes intact
    in every process.

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
        lanes: batch rows of all processes: batch size per process x processes.
        keep_tail: what happens to the end of a text that does not fill its last segments. `False`, for training: all
            segments are full, and the up to `lanes * segment_length` tokens at the end of the text are left out.
            `True`, for evaluation: every token is read once, and the last segment of a lane is padded on the right.
        pad_token_id: what the padding of `keep_tail` is filled with; it is masked everywhere.
        counts: length of the text of all predicted tokens; `MemoryTrainer.evaluate` computes bits per byte from it.
        overlap: tokens that a segment shares with the one before, as context without targets. For models without
            memory (the "effective history" of the R-Transformer's code).
        vary_lengths: segments are a few tokens shorter than `segment_length`, and one in twenty half as long, so that they
            do not begin at the same places: `N(length, 5)`, as for AWD-LSTM and SHA-RNN (Merity et al., 2017,
            https://arxiv.org/abs/1708.02182, section 5). Lengths are the same in every epoch.
        roll: every lane begins at a random place in every epoch, and wraps around (`--roll` of NVIDIA's Transformer-XL).
        seed: seed of the lengths and of the places.

    Raises:
        ValueError: `ids` is not one row of integers, or too short for its lanes; a number is below 1; `overlap` leaves
            nothing new, or is combined with an option that needs consecutive segments.
    """

    def __init__(
        self,
        ids: np.ndarray | torch.Tensor,
        segment_length: int,
        lanes: int = 1,
        *,
        keep_tail: bool = False,
        pad_token_id: int = 0,
        counts: TextCounts | None = None,
        overlap: int = 0,
        vary_lengths: bool = False,
        roll: bool = False,
        seed: int = 0,
    ):
        ids = token_row("ids", ids)
        check_sizes(segment_length, lanes)
        _check_cut(segment_length, keep_tail, overlap, vary_lengths, roll)
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
        self.overlap = overlap
        self.vary_lengths = vary_lengths
        self.roll = roll
        self.seed = seed
        self.epoch = 0
        step = segment_length - overlap
        if keep_tail:
            self.starts = np.linspace(0, len(ids), lanes + 1).astype(np.int64)
            more = -(-max(0, int(np.diff(self.starts).max()) - segment_length) // step)
            lengths = np.array([segment_length] + [step] * more)
        else:
            lengths = self._lengths((len(ids) - 1) // lanes, step)
            self.starts = np.arange(lanes + 1) * lengths.sum()
        self.segments = len(lengths)
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])  # of the segments' new tokens in their lane

    def _lengths(self, tokens: int, step: int) -> np.ndarray:
        """New tokens of each segment, of which `tokens` hold as many as there are whole ones."""
        if not self.vary_lengths:
            return np.array([self.segment_length] + [step] * ((tokens - self.segment_length) // step))
        random, longest = np.random.default_rng(self.seed), self.segment_length
        least = min(5, longest)
        means = np.where(random.random(tokens // least) < 0.95, longest, longest / 2)
        lengths = np.clip(random.normal(means, 5).astype(np.int64), least, longest)
        return lengths[: int(np.searchsorted(np.cumsum(lengths), tokens, side="right"))]

    def set_epoch(self, epoch: int) -> None:
        """Begin every lane at the places of this epoch, with `roll`. Accelerate's loaders call it."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.segments * self.lanes

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of a stream of {len(self)}")
        segment, lane = divmod(index, self.lanes)
        context = self.overlap if segment else 0
        begin, stop = self.offsets[segment] - context, self.offsets[segment + 1]
        # with `keep_tail` a lane may be a segment shorter than the longest
        length = self.starts[lane + 1] - self.starts[lane]
        columns = np.arange(begin, min(stop, length))
        if self.roll:
            columns = (columns + self._place(lane, int(length))) % length
        columns += self.starts[lane]
        targets = self.ids[columns[columns + 1 < len(self.ids)] + 1]
        return segment_item(
            self.ids[columns], targets, stop - begin, segment == 0, self.pad_token_id, self.keep_tail, context
        )

    def _place(self, lane: int, length: int) -> int:
        """Where a lane begins in this epoch."""
        return int(np.random.default_rng((self.seed, self.epoch, lane)).integers(length))

    @cached_property
    def identity(self) -> dict[str, int | str]:
        """What must be the same for a run to resume: `text` (a SHA-256 of its ids, read once), `lanes`, `segment_length`,
        `documents` and `keep_tail`, and of how it is cut what is not the default."""
        cut: dict[str, int | str] = {"overlap": self.overlap, "vary_lengths": self.vary_lengths, "roll": self.roll}
        if self.vary_lengths or self.roll:
            cut["seed"] = self.seed
        return {name: value for name, value in cut.items() if value} | {
            "text": digest_of([self.ids]),
            "lanes": self.lanes,
            "segment_length": self.segment_length,
            "documents": "one endless text",
            "keep_tail": self.keep_tail,
        }


def _check_cut(segment_length: int, keep_tail: bool, overlap: int, vary_lengths: bool, roll: bool) -> None:
    if not 0 <= overlap < segment_length:
        raise ValueError(
            f"`overlap`={overlap} must be at least 0 and leave something new in `segment_length`={segment_length}."
        )
    for name, value in (("vary_lengths", vary_lengths), ("roll", roll)):
        if value and overlap:
            raise ValueError(f"`{name}`={value} does not go with `overlap`={overlap}: leave one of them out.")
        if value and keep_tail:
            raise ValueError(f"`{name}`={value} is for training, and `keep_tail`={keep_tail} for evaluation.")


__all__ = ["TextStream"]
