"""An LSTM (Hochreiter and Schmidhuber, 1997) that reads segments of rows with padding, and with documents inside."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.ops.columns import computing_dtype, is_symbolic, reset_state


class LSTMChunk(NamedTuple):
    """Columns through which every row either reads on or is padding.

    `reads` (B,) bool: rows that read; `begins` (B,) bool: rows in which the first column begins a document. None: all rows
    read on.
    """

    columns: slice
    reads: torch.Tensor | None = None
    begins: torch.Tensor | None = None


def split_chunks(segment: Segment) -> list[LSTMChunk]:
    """Cut a segment where any row ends or begins a document.

    A graph holds for any padding, so that a traced segment is cut at every column.
    """
    mask, number, length = segment.mask, segment.document_ids, segment.length
    if number is None:
        if mask is None:
            return [LSTMChunk(slice(0, length))]
        number = torch.zeros_like(mask, dtype=torch.long)
    mask = torch.ones_like(number, dtype=torch.bool) if mask is None else mask
    begins = number != nn.functional.pad(number, (1, 0))[:, :-1]
    if is_symbolic(begins):
        return [LSTMChunk(slice(i, i + 1), mask[:, i], begins[:, i]) for i in range(length)]
    changes = begins.any(0)
    changes[1:] |= (mask[:, 1:] != mask[:, :-1]).any(0)
    starts = changes.nonzero().flatten().tolist()
    edges = sorted({0, length, *starts})
    return [LSTMChunk(slice(start, end), mask[:, start], begins[:, start]) for start, end in pairwise(edges)]


# B batch, T segment length, E hidden size
class SegmentLSTM(nn.LSTM):
    """An LSTM whose state skips padding and starts from zero with a document. Plain segments are one call of torch's.

    `cell_size` C: width of the cell, that of the model (E) when not given; where it is larger, h is a projection of what
    the cell puts out (Sak et al., 2014, https://arxiv.org/abs/1402.1128).
    """

    def __init__(self, config: MemoryConfig, cell_size: int | None = None):
        width = config.hidden_size
        cell_size = width if cell_size is None else cell_size
        super().__init__(width, cell_size, batch_first=True, proj_size=width if cell_size > width else 0)

    def new_state(self, batch: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """h `(B, E)` and c `(B, C)` of new rows."""
        return like.new_zeros(batch, self.proj_size or self.hidden_size), like.new_zeros(batch, self.hidden_size)

    @contextmanager
    def weights_of_call(self) -> Iterator[None]:
        """Torch's LSTM has a list of its own, which does not hear of weights that Accelerate brings from disk."""
        listed = getattr(self, "_flat_weights", None)
        if not listed or not listed[0].is_meta:
            yield
            return
        self._flat_weights = [getattr(self, name) for name in self._flat_weights_names]
        try:
            yield
        finally:
            self._flat_weights = listed

    def forward(
        self, inputs: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, chunks: list[LSTMChunk]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """
        Args:
            inputs: `(B, T, E)`, padding after the tokens.
            hidden: `(B, E)`, the state h before the segment.
            cell: `(B, C)`, the state c.
            chunks: what `split_chunks` makes of the segment.

        Returns:
            The states h of all positions, `(B, T, E)`, and h and c after the segment.
        """
        # under autocast torch's LSTM takes no others on processors without AVX-512
        inputs = inputs.to(computing_dtype(inputs))
        hidden, cell, outputs = hidden.to(inputs), cell.to(inputs), []
        for columns, reads, begins in chunks:
            if begins is not None:
                hidden, cell = reset_state(hidden, begins), reset_state(cell, begins)
            output, new_hidden, new_cell = self.read(inputs[:, columns], hidden, cell)
            outputs.append(output)
            if reads is None:
                hidden, cell = new_hidden, new_cell
            else:
                hidden = torch.where(reads[:, None], new_hidden, hidden)
                cell = torch.where(reads[:, None], new_cell, cell)
        return torch.cat(outputs, dim=1), hidden, cell

    def read(
        self, inputs: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What `forward` returns, of positions that every row reads."""
        if inputs.shape[1] == 1 and not self.proj_size:  # oneDNN lays out the weights anew in every call
            weights: Any = self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0
            hidden, cell = torch.lstm_cell(inputs[:, 0], (hidden, cell), *weights)
            return hidden[:, None], hidden, cell
        with self.weights_of_call():
            output, (hidden, cell) = super().forward(inputs, (hidden[None], cell[None]))
        return output, hidden[0], cell[0]
