"""Compression of old memories: Rae et al., 2019, https://arxiv.org/abs/1911.05507, section 3.

    | compressed, a vector of every c positions | not compressed yet, the window at its end | segment |

Blocks of c positions are counted from the beginning of a text, and a token sees a block when all of it has left its window:
nothing depends on how the text is cut (with `same_length`).
"""

from typing import NamedTuple, Self

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from transformers_xl.configuration.configuration_compressive_transformer import CompressiveTransformerConfig
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.memory.segment import Segment, is_true, noted
from transformers_xl.modeling.ops.columns import gather_columns, is_symbolic, keep_last
from transformers_xl.modeling.ops.relative_attention import FarColumns, attention_weights


# B batch, T segment, K columns of [memory; segment], N blocks of c positions, S compressed vectors, E hidden size
class Blocks(NamedTuple):
    """The blocks that are compressed in a call.

    Args:
        place: `(B or 1, T)`, the place of each token among the columns of its document; that of the last token for padding.
        earlier: `(B or 1, T)`, how many blocks of the call are of documents before that of the token.
        done: `(B or 1, T)`, how many are compressed when a token has been read.
        columns: `(B or 1, N c)`, their columns, block after block.
        documents: `(B, N)`, number of the document of each block, -1 where a row has fewer; None: all rows have them, of
            document 0.
        rate: c.
    """

    place: torch.Tensor
    earlier: torch.Tensor
    done: torch.Tensor
    columns: torch.Tensor
    documents: torch.Tensor | None
    rate: int

    @property
    def count(self) -> int:
        """N."""
        return self.columns.shape[1] // self.rate

    @classmethod
    def of(cls, segment: Segment, mem_len: int, rate: int) -> Self:
        """The blocks of `rate` columns that have left a window of `mem_len` positions when the call ends."""
        token = segment.columns if segment.num_tokens is None else segment.columns.minimum(segment.end[:, None] - 1)
        place = token - segment.start
        passed = (place + 1 - mem_len).clamp(min=0) // rate
        earlier, ids = torch.zeros_like(passed), segment.document_ids
        if ids is not None:
            ends = passed[:, :-1].where(ids[:, 1:] != ids[:, :-1], 0)
            earlier = F.pad(ends.cumsum(1), (1, 0))
        done = earlier + passed
        # also a bound for rows of several documents, each of which has a window
        number = torch.arange(max(segment.num_keys - mem_len, 0) // rate, device=done.device)
        if segment.is_plain:
            return cls(place, earlier, done, torch.arange(len(number) * rate, device=done.device)[None], None, rate)
        number = number.expand(len(done), -1).contiguous()
        token = torch.searchsorted(done.contiguous(), number, right=True).clamp(max=segment.length - 1)
        first = (segment.start - earlier * rate).gather(1, token) + number * rate
        columns = (first[..., None] + torch.arange(rate, device=done.device)).flatten(1)
        documents = torch.zeros_like(number) if ids is None else ids.gather(1, token)
        documents = documents.where(number < done[:, -1:], -1)
        return cls(place, earlier, done, columns.clamp(0, segment.num_keys - 1), documents, rate)


class CompressionPlan(NamedTuple):
    """What a call compresses, and what its tokens see of all that is compressed: the same in all layers.

    Args:
        blocks: those that are compressed.
        held: how many vectors are remembered before the call: the first of the S.
        end: `(B,)`, where the vectors of each row end; None: all at S.
        keep: columns that are not compressed after the call, of the row with most.
        keep_compressed: vectors that are remembered after it, of the row with most.
        visible, distance, min_distance: as in [`FarColumns`].
    """

    blocks: Blocks
    held: int
    end: torch.Tensor | None
    keep: int
    keep_compressed: int
    visible: torch.Tensor | None = None
    distance: torch.Tensor | None = None
    min_distance: int = 0

    @classmethod
    def of(
        cls, config: CompressiveTransformerConfig, segment: Segment, held: int, count: torch.Tensor
    ) -> tuple[Self, torch.Tensor]:
        """The plan of a call, and how many vectors each row remembers after it, `(B,)`.

        Args:
            segment: where the tokens stand after what is not compressed yet.
            held: how many vectors are remembered, the unused ones of a row included.
            count: `(B,)`, how many of them are real: the newest.
        """
        blocks, most = Blocks.of(segment, config.mem_len, config.compression_rate), config.compressed_mem_len
        earlier, done, ids = blocks.earlier, blocks.done, segment.document_ids
        is_full = is_true((count >= held).all(), when_compiling=False)  # rows may have compressed unequally much
        oldest = done.new_zeros(1, 1) if is_full else held - count[:, None]
        oldest = oldest if ids is None else torch.where(ids > 0, held + earlier, oldest)
        after = (held + done[:, -1] - oldest[:, -1]).expand_as(count).clamp(max=most)
        if segment.is_plain:
            columns, vectors = segment.num_keys - blocks.columns.shape[1], min(held + blocks.count, most)
        elif config.initial_memory == "zeros" or is_symbolic(after):
            columns, vectors = config.layer_mem_lens[0], most
        else:  # so that rows that are alike again are plain again
            columns, vectors = torch.stack([uncompressed(config, segment), after]).amax(1).tolist()
        plan = cls(blocks, held, None if segment.is_plain else held + done[:, -1], columns, vectors)
        is_token = segment.is_plain and segment.length == 1
        if is_token and is_full and (config.same_length or blocks.count == 0):
            return plan, after  # it sees all vectors, which follow its window
        return plan.seen_by(segment, config, oldest), after

    def seen_by(self, segment: Segment, config: CompressiveTransformerConfig, oldest: torch.Tensor) -> Self:
        """With what the tokens see, of which `oldest` `(B or 1, T)` is the first vector of their documents."""
        place, _, done = self.blocks[:3]
        window, nearest = place + 1, segment.num_before + 1 if segment.is_plain else 1
        newest = torch.full_like(done, self.held)  # without `same_length`, what the call compresses is not seen yet
        if config.same_length:
            window, nearest, newest = window.clamp(max=config.mem_len), min(nearest, config.mem_len), self.held + done
        vector = torch.arange(self.held + self.blocks.count, device=done.device)
        rank = newest[..., None] - 1 - vector  # 0 follows the window directly
        visible = (rank >= 0) & (rank < config.compressed_mem_len) & (vector >= oldest[..., None])
        return self._replace(visible=visible[:, None], distance=window[..., None] + rank, min_distance=nearest)

    def far(self, key: torch.Tensor, value: torch.Tensor) -> FarColumns | None:
        """What the segment reads, of keys and values `(B, H, S, D)`."""
        if self.distance is None:
            key, value = (keep_last(each, self.keep_compressed, dim=2) for each in (key, value))
        return None if key.shape[2] == 0 else FarColumns(key, value, self.visible, self.distance, self.min_distance)

    def newest(self, vectors: torch.Tensor) -> torch.Tensor:
        """What is remembered after the call, of `(B, .., S, D)`."""
        count = min(self.keep_compressed, vectors.shape[-2])
        if self.end is None:
            return keep_last(vectors, count, dim=-2)
        order = self.end[:, None] - count + torch.arange(count, device=vectors.device)
        return gather_columns(vectors, order.clamp(min=0), dim=-2)

    def positions_ago(self, count: int) -> torch.Tensor:
        """How many positions before each token the newest `count` of the S vectors stand, `(B or 1, T, count)`: the last of
        those that each is made of."""
        blocks, total = self.blocks, self.held + self.blocks.count
        number = torch.arange(total - count, total, device=blocks.place.device) - self.held
        number = number - blocks.earlier[..., None]  # among the blocks of the document
        return blocks.place[..., None] + 1 - (number + 1) * blocks.rate


def uncompressed(config: CompressiveTransformerConfig, segment: Segment) -> torch.Tensor:
    """How many columns of each row are not compressed after a call, `(B,)`."""
    columns, rate = segment.end - segment.start[:, -1], config.compression_rate
    columns = columns - (columns - config.mem_len).clamp(min=0) // rate * rate
    most = max(segment.num_keys - config.mem_len, 0) // rate * rate
    return noted(columns, segment.num_keys - most) if segment.is_plain else columns


class Compression(nn.Module):
    """f_c: `c` positions become one. Section 3.2.

    A convolution whose kernel is its stride is one linear map of `c` vectors side by side: `conv`.
    """

    def __init__(self, config: CompressiveTransformerConfig):
        super().__init__()
        self.rate, self.function = config.compression_rate, config.compression_function
        width = config.hidden_size
        self.conv = nn.Linear(self.rate * width, width) if self.function == "conv" else None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`(B, N c, E)` -> `(B, N, E)`."""
        blocks = states.unflatten(1, (states.shape[1] // self.rate, self.rate))
        if self.conv is not None:
            return self.conv(blocks.flatten(2))
        return blocks.mean(dim=2) if self.function == "mean" else blocks.amax(dim=2)


def without_learning(module: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """`module(states)`, whose gradient goes to `states` alone."""
    return functional_call(module, {name: weight.detach() for name, weight in module.named_parameters()}, (states,))


def reconstruction_loss(
    attention: RelativeAttention,
    inputs: torch.Tensor,
    old: torch.Tensor,
    compressed: torch.Tensor,
    visible: torch.Tensor | None,
) -> torch.Tensor:
    """Squared difference `(B, T)` of what each token attends to in old memories and in what these were compressed to, by
    content alone; the mean over heads and width. Algorithm 2: only what was compressed gets a gradient.

    Args:
        attention: gives the projections.
        inputs: those of the segment's tokens `(B, T, E)`.
        old, compressed: `(B, N c, E)` and `(B, N, E)`, normalised like the inputs.
        visible: the blocks of each token's own document, `(B, 1, T, N)` bool; None: all.

    Differs from the original: the mean square, where the paper writes a norm.
    """
    query = attention.split_heads(without_learning(attention.q_proj, inputs.detach()))

    def attend(memory: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        key, value = (attention.split_heads(without_learning(m, memory)) for m in (attention.k_proj, attention.v_proj))
        return attention_weights(query, key, visible, attention.scaling) @ value

    rate = attention.config.compression_rate
    with torch.no_grad():
        target = attend(old, None if visible is None else visible.repeat_interleave(rate, dim=-1))
    return (attend(compressed, visible) - target).square().mean(dim=(1, 3))


def visible_blocks(segment: Segment, blocks: Blocks) -> torch.Tensor | None:
    """The blocks of each real token's own document, `(B, 1, 1 or T, N)` bool; None: all."""
    if blocks.documents is None:
        return None
    ids, mask = segment.document_ids, segment.mask
    visible = blocks.documents[:, None] == (0 if ids is None else ids[..., None])
    if mask is not None:
        visible = visible & mask[..., None]
    return visible[:, None]


__all__ = [
    "Compression",
    "CompressionPlan",
    "reconstruction_loss",
    "uncompressed",
    "visible_blocks",
    "without_learning",
]
