"""Memories that are compressed when they leave the window: Rae et al., 2019, https://arxiv.org/abs/1911.05507, section 3.

    | compressed, a vector of every c positions | not compressed yet, the window at its end | segment |

Blocks of c positions are counted from the beginning of a text, and a token sees a block when all of it lies behind its
window: nothing depends on how the text is cut (with `same_length`).
"""

from typing import NamedTuple

import torch
from torch import nn

from transformers_xl.configuration.configuration_compressive_transformer import CompressiveTransformerConfig
from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.window_memory import WindowMemory
from transformers_xl.modeling.ops.key_mask import ALL_VISIBLE, KeyMask
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import (
    PackedRows,
    SegmentPacking,
    drop_full_mask,
    gather_columns,
    keep_last,
    right_align,
)


class UncompressedMemory(WindowMemory):
    """The window, and fewer than c inputs that have left it. `extend` takes the inputs beside keys and values."""

    def __init__(self, config: CompressiveTransformerConfig):
        length = config.mem_len + config.compression_rate - 1
        zeros = config.initial_memory == "zeros"
        super().__init__(length, config.hidden_size, length + 1, config.same_length, zeros)
        self.nearest = config.mem_len if config.same_length else None
        self.window = config.mem_len

    def load(self, tensors: Tensors, like: torch.Tensor) -> None:
        super().load(tensors, like)
        self.reach = max(self.length, tensors[0].shape[1])  # of a longer window nothing is dropped: it is compressed

    @property
    def num_started(self) -> int:
        return self.window if self.starts_with_zeros else 0


class CompressedMemory(ColumnMemory):
    """The compressed vectors, one column for every c positions; `blocks` says which the segment brings."""

    blocks: SegmentPacking

    def __init__(self, config: CompressiveTransformerConfig):
        zeros = config.initial_memory == "zeros"
        super().__init__(config.compressed_mem_len, config.hidden_size, starts_with_zeros=zeros)

    def value(self, packing: SegmentPacking | None) -> Tensors:
        return super().value(None if packing is None else self.blocks)

    def close(self, packing: SegmentPacking) -> None:
        super().close(self.blocks)

    @property
    def projected(self) -> Tensors:
        """What a cache has projected of its columns, each `(B, H, <= length, D)`; empty: not yet, or not all."""
        return () if self.buffer is None or self.inputs is not None else self.buffer.tensors


class CompressiveMemory(NamedTuple):
    """What a layer of the Compressive Transformer remembers."""

    inputs: UncompressedMemory
    compressed: CompressedMemory


class CompressedCount(NamedTuple):
    """How many compressed vectors each row has, the same in all layers."""

    num_compressed: CounterMemory


# B batch, T segment, K = uncompressed + T columns, N blocks of a call, c compression rate, S = compressed + N columns
class Blocks(NamedTuple):
    """What a call compresses, and what its tokens see of all that is compressed.

    Args:
        columns: `(B or 1, N c)`, those of `[uncompressed; segment]` that are compressed, block after block.
        is_block: `(B, N)` bool, whether a row has such a block; None: all have.
        packing: that of `[compressed; blocks]`.
        key_mask: what the queries see of its S columns, and how far they lie.
        nearest: how many of the newest compressed and of the newest other columns one token sees, whose distances then are
            those of the columns side by side; None where masks say it.
    """

    columns: torch.Tensor
    is_block: torch.Tensor | None
    packing: SegmentPacking
    key_mask: KeyMask
    nearest: tuple[int, int] | None = None


def plan_token(
    config: CompressiveTransformerConfig, tokens: SegmentPacking, before: int, held: int, counter: CounterMemory
) -> Blocks | None:
    """`plan_blocks` for one token of rows without padding, without masks: what it sees is the end of both parts. None
    where masks are needed."""
    num_columns, count = before + tokens.length, counter.read()
    most = max(num_columns - config.mem_len, 0) // config.compression_rate
    is_plain = tokens.length == 1 and tokens.is_plain and (config.same_length or most == 0)
    if not is_plain or bool((count < held).any()):
        return None
    if most > 0:
        tokens.limit = num_columns - most * config.compression_rate
        counter.write((count + most).clamp(max=config.compressed_mem_len))
    columns = torch.arange(most * config.compression_rate, device=tokens.device)[None]
    window = min(num_columns, config.mem_len) if config.same_length else num_columns
    nearest = min(held + most, config.compressed_mem_len), window
    return Blocks(columns, None, SegmentPacking(tokens.batch, most, tokens.device), ALL_VISIBLE, nearest)


def plan_blocks(
    config: CompressiveTransformerConfig, tokens: SegmentPacking, before: int, held: int, counter: CounterMemory
) -> Blocks:
    """Plan what a segment compresses, once for all layers; `counter`, and what `tokens` keeps, follow.

    Args:
        tokens: the packing of `[uncompressed; segment]`.
        before: columns that are not compressed yet.
        held: columns of the compressed memory; `counter` says how many of them are real.
    """
    rate, num_columns = config.compression_rate, before + tokens.length
    most = max(num_columns - config.mem_len, 0) // rate
    text, place, size = texts(tokens, before)
    ends, is_block = torch.arange(1, most + 1, device=tokens.device)[None] * rate - 1, None
    if text is not None:
        is_end = (place % rate == rate - 1) & (place < size - config.mem_len) & (text >= 0)
        ends = keep_last(right_align(is_end), most)
        is_block = gather_columns(is_end, ends)
    columns, count = torch.arange(held, device=tokens.device) - held, counter.read()
    known = drop_full_mask(-columns <= count[:, None])  # rows may have compressed unequally much
    of_text, current = (None, None) if text is None else (gather_columns(text, ends), text[:, -1])
    packing = SegmentPacking(tokens.batch, most, tokens.device, known, is_block, of_text, current)
    number = place.expand(len(ends), -1).gather(1, ends) // rate
    number = torch.cat([columns.expand(len(ends), -1), number], dim=1)
    key_mask = mask_of_blocks(config, packing.rows(held), number, place, text, tokens.length)

    new_count = count + most
    if text is None:
        tokens.limit = num_columns - most * rate
    else:
        packed, now = packing.rows(held), text[:, -1:]
        new_count = (packed.valid & ((packed.document_ids == now) | ((now < 0) & (packed.document_ids == 0)))).sum(1)
        left = (size[:, -1:] - rate * (is_block & (of_text == now)).sum(1, keepdim=True)).where(now >= 0, 0)
        tokens.wanted = torch.arange(num_columns, device=tokens.device) >= num_columns - left
    counter.write(new_count.clamp(max=config.compressed_mem_len))
    leaving = (ends[..., None] + torch.arange(1 - rate, 1, device=tokens.device)).flatten(1).clamp(min=0)
    return Blocks(leaving, is_block, packing, key_mask)


def texts(tokens: SegmentPacking, before: int) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """Of each packed column of `[uncompressed; segment]`: the number of its text (-1: padding; None: all rows are one text
    each), its place there, and how many columns the text has, `(B or 1, K)` each."""
    columns = torch.arange(before + tokens.length, device=tokens.device)[None]
    if tokens.is_plain:
        return None, columns, torch.full_like(columns, columns.shape[1])
    rows = tokens.rows(before)
    text = columns.new_zeros(tokens.batch, columns.shape[1]) if rows.document_ids is None else rows.document_ids
    text = text if rows.valid is None else text.masked_fill(~rows.valid, -1)
    changes = text[:, 1:] != text[:, :-1]
    begins, ends = nn.functional.pad(changes, (1, 0), value=True), nn.functional.pad(changes, (0, 1), value=True)
    place = columns - (columns * begins).cummax(dim=1).values
    end = columns.where(ends, columns.shape[1]).flip(1).cummin(dim=1).values.flip(1)
    return text, place, place + end - columns + 1


def mask_of_blocks(
    config: CompressiveTransformerConfig,
    packed: PackedRows,
    number: torch.Tensor,
    place: torch.Tensor,
    text: torch.Tensor | None,
    length: int,
) -> KeyMask:
    """What the last `length` columns see of blocks with these numbers `(B or 1, S)`, 0 being the first that the call
    compresses. A compressed vector stands for one step: the newest that a token sees follows its window."""
    number, mine = gather_columns(number, packed.order), keep_last(place, length)
    if config.same_length:
        window = (mine + 1).clamp(max=config.mem_len)
        passed = (mine + 1 - config.mem_len).clamp(min=0) // config.compression_rate
    else:  # all that is not compressed is seen
        window, passed = mine + 1, torch.zeros_like(mine)
    rank = passed[..., None] - 1 - number[:, None]
    visible = (rank >= 0) & (rank < config.compressed_mem_len)
    if packed.valid is not None:
        visible = visible & packed.valid[:, None]
    if text is not None and packed.document_ids is not None:
        visible = visible & (packed.document_ids[:, None] == keep_last(text, length)[..., None])
    rate = config.compression_rate
    behind = mine[..., None] - (number[:, None] + 1) * rate + 1
    return KeyMask(visible[:, None], order=packed.order, distance=window[..., None] + rank, span=rate, behind=behind)


__all__ = ["Blocks", "CompressedCount", "CompressedMemory", "CompressiveMemory", "UncompressedMemory", "plan_blocks"]
