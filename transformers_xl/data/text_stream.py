"""A text as a stream of segments that a model with memory reads in order.

Transformer-XL (Dai et al., 2019, https://arxiv.org/abs/1901.02860) trains on consecutive segments of one long text, a
batch row continuing where it stopped in the step before (`LMOrderedIterator` in the original code).
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch.utils.data import Dataset

from transformers_xl.data.identity import digest_of
from transformers_xl.data.segments import (
    NOTHING,
    beginning_identity,
    beginning_row,
    check_sizes,
    segment_item,
    token_row,
)
from transformers_xl.data.text_beginning import without_beginning
from transformers_xl.data.text_files import TextCounts


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
        beginning: ids that a text begins with, as [`~transformers_xl.data.text_beginning.beginning_of`] gives them.
            They are read at every reset, also where a lane begins in mid-text, take a place in the segment, and are
            no targets; `ids` that begin with them already get no second.
        memory: `False`, for a model that remembers nothing: every segment is read alone, and begins with `beginning`.

    Raises:
        ValueError: `ids` is not one row of integers, or too short for its lanes; a number is below 1; `overlap` leaves
            nothing new, or is combined with an option that needs consecutive segments; `beginning` leaves no
            room in a segment.
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
        beginning: Sequence[int] | np.ndarray = (),
        memory: bool = True,
    ):
        check_sizes(segment_length, lanes)
        _check_cut(segment_length, keep_tail, overlap, vary_lengths, roll)
        self.beginning = beginning_row(beginning, segment_length, overlap)
        self.memory = memory
        self.ids = without_beginning(token_row("ids", ids), self.beginning)
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
        self._check_length()
        if keep_tail:
            self.starts = np.linspace(0, len(self.ids), lanes + 1).astype(np.int64)
            lengths = self._lengths(int(np.diff(self.starts).max()), whole=False)
        else:
            lengths = self._lengths((len(self.ids) - 1) // lanes)
            self.starts = np.arange(lanes + 1) * lengths.sum()
        self.segments = len(lengths)
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])  # of the segments' new tokens in their lane

    def _check_length(self) -> None:
        # every lane needs a token and a target in evaluation, a full segment and the target after it in training
        first = self.segment_length - len(self.beginning)
        needed = self.lanes + (not len(self.beginning)) if self.keep_tail else self.lanes * first + 1
        if len(self.ids) < needed:
            raise ValueError(
                f"`ids` has {len(self.ids)} tokens, too short for `lanes`={self.lanes} of `segment_length`="
                f"{self.segment_length}: at least {needed} are needed. Use a longer text, fewer lanes or shorter segments."
            )

    def _lengths(self, tokens: int, whole: bool = True) -> np.ndarray:
        """New tokens of each segment: as many segments as `tokens` fill, or, not `whole`, as hold all of them."""
        first = self.segment_length - len(self.beginning)
        if not self.vary_lengths:
            step = (self.segment_length if self.memory else first) - self.overlap
            more = (tokens - first) // step if whole else -(-max(0, tokens - first) // step)
            return np.array([first] + [step] * more)
        random, longest = np.random.default_rng(self.seed), self.segment_length
        least = min(len(self.beginning) + 5, longest)
        means = np.where(random.random(tokens // (least - len(self.beginning))) < 0.95, longest, longest / 2)
        lengths = np.clip(random.normal(means, 5).astype(np.int64), least, longest)
        lengths[: 1 if self.memory else None] -= len(self.beginning)
        return lengths[: int(np.searchsorted(np.cumsum(lengths), tokens, side="right"))]

    def without_memory(self) -> "TextStream":
        """The same text for a model that remembers nothing: each segment begins with `beginning`."""
        if not self.memory or not len(self.beginning):
            return self
        return TextStream(
            self.ids,
            self.segment_length,
            self.lanes,
            keep_tail=self.keep_tail,
            pad_token_id=self.pad_token_id,
            counts=self.counts,
            overlap=self.overlap,
            vary_lengths=self.vary_lengths,
            roll=self.roll,
            seed=self.seed,
            beginning=self.beginning,
            memory=False,
        )

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
        begins = segment == 0 or not self.memory
        return segment_item(
            self.ids[columns],
            targets,
            int(stop - begin) + begins * len(self.beginning),
            segment == 0,
            self.pad_token_id,
            self.keep_tail,
            context,
            self.beginning if begins and len(columns) else NOTHING,
            begins_text=segment == 0 and int(columns[0]) == 0,
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
        cut |= beginning_identity(self.beginning, self.memory)
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
