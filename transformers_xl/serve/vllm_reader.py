"""What vLLM asks of a model, answered by the models of this package: tokens of many requests, one after the other in one
row, whose memories stand in a pool. Nothing here knows vLLM.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from transformers import PreTrainedModel

from transformers_xl.modeling.generation_memory import PREFILL_CHUNK
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.modeling_depth_adaptive_transformer import DepthAdaptiveTransformerForCausalLM
from transformers_xl.modeling.modeling_segment_memory import SegmentMemoryForCausalLM
from transformers_xl.modeling.outputs import MemoryModelOutput
from transformers_xl.modeling.pretrained.base_head import head_of_base
from transformers_xl.serve.vllm_state import StateLayout, StatePool


class Piece(NamedTuple):
    """The tokens of one request in a call.

    Args:
        slot: where its memory stands.
        start, stop: its tokens among those of the call.
        num_read: how many of its tokens were read before.
    """

    slot: int
    start: int
    stop: int
    num_read: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class StatesOfTokens:
    """A language model in two parts, as vLLM calls it: states of tokens, and logits of some of them.

    Raises:
        ValueError: the head cannot be told from the rest.
    """

    def __init__(self, model: PreTrainedModel):
        self.model: Any = model
        self.inner: Any = model.model
        self.head: Any = None
        self.arguments: dict[str, Any] = {}
        self.has_exits = False
        if isinstance(model, SegmentMemoryForCausalLM):
            self.inner, self.head = model.base_model, head_of_base(model.backbone)
            if self.head is None:
                raise ValueError(
                    f"A base of type {model.backbone.config.model_type} cannot run in vLLM with memory: its head cannot be "
                    "told from its decoder. Use the scheduler or the server of this package."
                )
        if isinstance(model, DepthAdaptiveTransformerForCausalLM) and model.config.exits_early():
            self.arguments, self.has_exits = {"exit_rule": model.exit_layer}, True

    @property
    def width(self) -> int:
        """Of the states."""
        return self.model.config.hidden_size + self.has_exits

    def read(self, input_ids: torch.Tensor, cache: MemoryCache) -> torch.Tensor:
        """States `(B, T, width)` of ids `(B, T)`, which the cache remembers from then on."""
        outputs = self.inner(input_ids=input_ids, past_key_values=cache, **self.arguments)
        states = outputs.last_hidden_state
        if not self.has_exits:
            return states
        return torch.cat([states, outputs.exit_layers[..., None].to(states)], dim=-1)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits `(tokens, vocab_size)` of states `(tokens, width)`."""
        states = states[None]
        if self.head is not None:
            return self.head(states)[0]
        outputs = MemoryModelOutput(last_hidden_state=states)
        if self.has_exits:
            outputs = MemoryModelOutput(last_hidden_state=states[..., :-1])
            outputs["exit_layers"] = states[..., -1].long()
        return self.model.compute_logits(outputs)[0]


class PoolReader:
    """Reads tokens of many requests, each after its own memory.

    Requests that read one token are one batch. As long as it has the same requests, the cache that it reads with holds
    their memory, and a token costs what it costs in `generate()`. The pool gets it back when a request enters or leaves.

    Args:
        model: a causal language model of this package, in evaluation mode.

    Raises:
        ValueError: it cannot run in vLLM (`StateLayout`, `StatesOfTokens`).
    """

    def __init__(self, model: PreTrainedModel):
        self.tokens = StatesOfTokens(model)
        self.layout = StateLayout.of(self.tokens.inner)
        self.pool: StatePool | None = None
        self.batch: MemoryCache | None = None  # of the requests that read a token in the last call
        self.expected: list[tuple[int, int]] = []  # their slots, and how many tokens they have read
        self.positions: list[Any] = []  # projections of relative positions, the same for all caches

    def use(self, pool: torch.Tensor) -> None:
        """Keep memories in this pool, `(slots, num_bytes)` uint8; those of another one are forgotten."""
        self.pool = StatePool(self.layout, pool)
        self.batch, self.expected = None, []

    @torch.no_grad()
    def read(self, input_ids: torch.Tensor, pieces: Sequence[Piece]) -> torch.Tensor:
        """States `(tokens, width)` of the ids `(tokens,)`; zeros where no piece is."""
        states = torch.zeros(len(input_ids), self.tokens.width, dtype=self.tokens.model.dtype, device=input_ids.device)
        together = [piece for piece in pieces if piece.length == 1 and piece.num_read > 0]
        for piece in pieces:
            if piece.length > 1 or (piece.length == 1 and piece.num_read == 0):
                states[piece.start : piece.stop] = self._read_prompt(input_ids[piece.start : piece.stop], piece)
        if together:
            places = torch.tensor([piece.start for piece in together], device=input_ids.device)
            states[places] = self._read_together(input_ids[places], together)
        return states

    def _read_prompt(self, input_ids: torch.Tensor, piece: Piece) -> torch.Tensor:
        """States `(T, width)` of one request's tokens, in parts of the length of those of `generate()`."""
        if any(slot == piece.slot for slot, _ in self.expected):
            self._end_batch()
        pool = cast(StatePool, self.pool)
        cache = self._cache(pool.read([piece.slot]) if piece.num_read > 0 else None)
        states = [self.tokens.read(part[None], cache)[0] for part in input_ids.split(PREFILL_CHUNK)]
        self._keep_positions(cache)
        pool.write([piece.slot], cast(Memory, cache.memory))
        return torch.cat(states)

    def _read_together(self, input_ids: torch.Tensor, pieces: Sequence[Piece]) -> torch.Tensor:
        """States `(B, width)` of one token of each request."""
        if self.batch is None or self.expected != [(piece.slot, piece.num_read) for piece in pieces]:
            self._end_batch()
            self.batch = self._cache(cast(StatePool, self.pool).read([piece.slot for piece in pieces]))
        states = self.tokens.read(input_ids[:, None], self.batch)[:, 0]
        self._keep_positions(self.batch)
        self.expected = [(piece.slot, piece.num_read + 1) for piece in pieces]
        return states

    def _end_batch(self) -> None:
        """Put the memories of the batch back into the pool."""
        if self.batch is not None:
            cast(StatePool, self.pool).write([slot for slot, _ in self.expected], cast(Memory, self.batch.memory))
        self.batch, self.expected = None, []

    def _cache(self, memory: Memory | None) -> MemoryCache:
        cache = MemoryCache(memory)
        for layer, positions in enumerate(self.positions):
            cache.layer_cache(layer).positions = positions
        return cache

    def _keep_positions(self, cache: MemoryCache) -> None:
        self.positions = [layer_cache.positions for layer_cache in cache.layer_caches]


__all__ = ["Piece", "PoolReader", "StatesOfTokens"]
