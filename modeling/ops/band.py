"""A window in pieces: attention to the last positions as dense attention of short texts, in time linear in the length.

Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, section 3.1 and appendix A, in a form of our own. With dilation d a
token sees every d-th position before it: the text falls apart into d texts, in which windows have no gaps. Each is cut into
pieces of C queries, which together see C + W keys: in the dense attention of a piece, no key is farther than that.
"""

from typing import NamedTuple

import torch
from torch.nn import functional as F

from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.ops.columns import keep_last

# least number of queries in a piece: of fewer, there would be too many pieces
PIECE_LENGTH = 64


class Band(NamedTuple):
    """How the last `length` of K columns are cut, when each of them sees `window` columns before it, `dilation` apart.

    `classes` of columns, a dilation apart, hold queries; each is cut into `pieces` of `size` queries.
    N is batch x classes x pieces.
    """

    length: int
    window: int
    dilation: int
    classes: int
    pieces: int
    size: int

    @classmethod
    def of(cls, length: int, num_keys: int, window: int, dilation: int) -> "Band":
        window = min(window, (num_keys - 1) // dilation)  # there are no more
        class_length = -(-length // dilation)
        # small pieces see few keys in vain, large ones copy few keys: half a window was fastest
        pieces = -(-class_length // max(window // 2, PIECE_LENGTH))
        return cls(length, window, dilation, min(length, dilation), pieces, -(-class_length // pieces))

    def cut(self, states: torch.Tensor, earlier: int) -> torch.Tensor:
        """`(B, H, columns, D)`, right-aligned, as `(N, H, earlier + size, D)`; zeros where there are no columns."""
        dilation = self.dilation
        if self.length == 1:  # one class alone, as it is: generation copies nothing
            states, dilation = states[:, :, (states.shape[2] - 1) % dilation :: dilation], 1
        columns = (earlier + self.pieces * self.size) * dilation
        states = keep_last(states, columns, dim=2)
        if states.shape[2] < columns:
            states = F.pad(states, (0, 0, columns - states.shape[2], 0))
        if self.classes == self.pieces == dilation == 1:
            return states
        states = states.unflatten(2, (-1, dilation))[:, :, :, dilation - self.classes :]
        states = states.unfold(2, earlier + self.size, self.size)  # [B, H, pieces, classes, D, earlier + size]
        return states.permute(0, 3, 2, 1, 5, 4).flatten(0, 2)

    def join(self, states: torch.Tensor) -> torch.Tensor:
        """What `cut` has made of `length` columns, as `(N, size, H, D)`, back in one piece: `(B, length, H, D)`."""
        if self.classes == self.pieces == 1:
            return states
        states = states.unflatten(0, (-1, self.classes, self.pieces)).flatten(2, 3)
        return keep_last(states.transpose(1, 2).flatten(1, 2), self.length)

    def cut_segment(self, segment: Segment) -> Segment:
        """Where the queries of each piece stand, and what they see of the `window + size` columns of the piece."""
        is_plain = segment.is_plain and segment.num_before >= self.window * self.dilation
        columns = torch.arange(self.window, self.window + self.size, device=segment.first.device)
        seen = ((segment.columns - segment.first) // self.dilation).clamp(max=self.window)  # of a query, beside itself
        seen = seen.expand(len(segment.lengths), -1)
        first = columns - self.cut(seen[:, None, :, None], 0)[:, 0, :, 0]
        return segment._replace(num_before=self.window, length=self.size, first=first, is_plain=is_plain)


__all__ = ["Band"]
