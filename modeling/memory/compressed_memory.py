"""Memories that are compressed when they leave the window: Rae et al., 2019, https://arxiv.org/abs/1911.05507, section 3.

    | compressed, a vector of every c positions | not compressed yet, the window at its end | segment |

Blocks of c positions are counted from the beginning of a text, and a token sees a block when all of it lies behind its
window: nothing depends on how the text is cut (with `same_length`).
"""

from typing import NamedTuple, Self

import torch

from transformers_xl.configuration.configuration_compressive_transformer import CompressiveTransformerConfig
from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.window_memory import BlockWindowMemory
from transformers_xl.modeling.ops.blocks import Blocks, ended_blocks
from transformers_xl.modeling.ops.key_mask import FarColumns, KeyMask
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import (
    PackedRows,
    SegmentPacking,
    drop_full_mask,
    gather_columns,
    keep_last,
)


class CompressedMemory(ColumnMemory):
    """The compressed vectors, one column for every c positions; `packing` is that of `[compressed; blocks]`."""

    packing: SegmentPacking

    def __init__(self, config: CompressiveTransformerConfig):
        zeros = config.initial_memory == "zeros"
        super().__init__(config.compressed_mem_len, config.hidden_size, starts_with_zeros=zeros)

    def value(self, packing: SegmentPacking | None) -> Tensors:
        return super().value(None if packing is None else self.packing)

    def close(self, packing: SegmentPacking) -> None:
        super().close(self.packing)

    @property
    def projected(self) -> Tensors:
        """What a cache has projected of its columns, each `(B, H, <= length, D)`; empty: not yet, or not all."""
        return () if self.buffer is None or self.inputs is not None else self.buffer.tensors

    def far(self, key_mask: KeyMask, key: torch.Tensor, value: torch.Tensor) -> FarColumns:
        """What the segment reads, of keys and values `(B, H, S, D)` of `[compressed; blocks]`."""
        if key_mask.distance is None:  # those behind the window of one token
            key, value = (keep_last(each, self.length, dim=2) for each in (key, value))
        return FarColumns(key, value, key_mask)


class CompressiveMemory(NamedTuple):
    """What a layer of the Compressive Transformer remembers; with the inputs, `extend` takes keys and values."""

    inputs: BlockWindowMemory
    compressed: CompressedMemory

    @classmethod
    def of(cls, config: CompressiveTransformerConfig) -> Self:
        """That of a layer, as the configuration says."""
        return cls(BlockWindowMemory(config, config.mem_len, config.compression_rate), CompressedMemory(config))


class CompressedCount(NamedTuple):
    """How many compressed vectors each row has, the same in all layers."""

    num_compressed: CounterMemory


# B batch, T segment, N blocks of a call, S = compressed + N columns
class CompressionPlan(NamedTuple):
    """What a call compresses, and what its tokens see of all that is compressed.

    Args:
        blocks: what leaves the window.
        packing: that of `[compressed; blocks]`.
        key_mask: what the queries see of its S columns, and how far they lie.
    """

    blocks: Blocks
    packing: SegmentPacking
    key_mask: KeyMask


def plan_compression(
    config: CompressiveTransformerConfig,
    tokens: SegmentPacking,
    before: int,
    held: int,
    counter: CounterMemory,
    in_one_piece: bool,
) -> CompressionPlan:
    """Plan what a segment compresses, once for all layers; `counter`, and what `tokens` keeps, follow.

    Args:
        tokens: the packing of `[uncompressed; segment]`.
        before: columns that are not compressed yet.
        held: columns of the compressed memory; `counter` says how many of them are real.
        in_one_piece: whether one token of rows without padding reads its window and what lies behind it side by side.
    """
    blocks = ended_blocks(tokens, before, config.compression_rate, delay=config.mem_len)
    columns, count, text = torch.arange(held, device=tokens.device) - held, counter.read(), blocks.places.text
    known = drop_full_mask(-columns <= count[:, None])  # rows may have compressed unequally much
    current = None if text is None else text[:, -1]
    packing = SegmentPacking(tokens.batch, blocks.count, tokens.device, known, blocks.is_block, blocks.text, current)
    count = count + blocks.count
    if text is not None:
        packed, now = packing.rows(held), text[:, -1:]
        assert packed.valid is not None, "texts say which columns are blocks"
        count = (packed.valid & ((packed.document_ids == now) | ((now < 0) & (packed.document_ids == 0)))).sum(1)
    counter.write(count.clamp(max=config.compressed_mem_len))
    is_plain_token = tokens.length == 1 and text is None and known is None
    if in_one_piece and is_plain_token and (config.same_length or blocks.count == 0):
        return CompressionPlan(blocks, packing, KeyMask())
    number = torch.cat([columns.expand(len(blocks.number), -1), blocks.number], dim=1)
    return CompressionPlan(blocks, packing, mask_of_blocks(config, packing.rows(held), number, blocks, tokens.length))


def mask_of_blocks(
    config: CompressiveTransformerConfig, packed: PackedRows, number: torch.Tensor, blocks: Blocks, length: int
) -> KeyMask:
    """What the last `length` columns see of blocks with these numbers `(B or 1, S)`, 0 being the first that the call
    compresses. A compressed vector stands for one step: the newest that a token sees follows its window."""
    (text, place, _), rate = blocks.places, config.compression_rate
    number, mine = gather_columns(number, packed.order), keep_last(place, length)
    first = place.shape[1] - length + 1 if text is None else 1  # columns up to the first query's own
    if config.same_length:
        window, nearest = (mine + 1).clamp(max=config.mem_len), min(first, config.mem_len)
        passed = (mine + 1 - config.mem_len).clamp(min=0) // rate
    else:  # all that is not compressed is seen
        window, nearest, passed = mine + 1, first, torch.zeros_like(mine)
    rank = passed[..., None] - 1 - number[:, None]
    visible = (rank >= 0) & (rank < config.compressed_mem_len)
    if packed.valid is not None:
        visible = visible & packed.valid[:, None]
    if text is not None and packed.document_ids is not None:
        visible = visible & (packed.document_ids[:, None] == keep_last(text, length)[..., None])
    behind = mine[..., None] - (number[:, None] + 1) * rate + 1
    distance = window[..., None] + rank
    return KeyMask(
        visible[:, None], order=packed.order, distance=distance, min_distance=nearest, span=rate, behind=behind
    )


__all__ = [
    "CompressedCount",
    "CompressedMemory",
    "CompressionPlan",
    "CompressiveMemory",
    "plan_compression",
]
