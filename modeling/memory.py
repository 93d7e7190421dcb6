"""The inference memory: projected keys and values of the window, owned by the caller and updated in place."""

import copy
from collections.abc import Callable

import torch
from transformers import Cache, PreTrainedConfig
from transformers.cache_utils import DynamicSlidingWindowLayer

from transformers_xl.modeling.ops.window import last, none_if_all, reset_state, take


def mark_static_address(tensor: torch.Tensor) -> None:
    """Tell the compiler that a tensor stays where it is. The call is private: without it, CUDA graphs are recorded anew."""
    mark = getattr(getattr(torch, "_dynamo", None), "mark_static_address", None)
    if mark is not None:
        mark(tensor)


class MemoryCacheLayer(DynamicSlidingWindowLayer):
    """Keys and values of one layer, `(batch, heads, <=sliding_window - 1, head_dim)`, newest last, and its other states.

    Differs from the library's sliding window: a window of 1 keeps nothing; rows can be packed while they are updated;
    `states` holds further tensors by name, batch first, for variants that remember more; `positions` holds what the
    attention projected of the relative positions, `(heads, distances, head_dim)`, which is the same for every row.
    """

    def __init__(self, sliding_window: int):
        super().__init__(sliding_window)
        self.kept = sliding_window - 1
        self.states: dict[str, torch.Tensor] = {}
        self.positions: torch.Tensor | None = None
        self.buffers: list[torch.Tensor] = []  # of keys and of values, where they grow in place
        self.window: torch.Tensor | None = None  # the keys, while they are what the buffers end with
        self.end = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, order: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the keys and values of a segment, and return those of `[memory; segment]`, packed by `order` (B, K)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.count(key_states.shape[-2])
        if order is None and self.grows_in_place(key_states):
            return self.append(key_states, value_states)
        keys, self.keys = self.extend(self.keys, key_states, order, dim=-2)
        values, self.values = self.extend(self.values, value_states, order, dim=-2)
        return keys, values

    def count(self, tokens: int) -> None:
        """Note that `generate()` has fed so many tokens more."""
        self.cumulative_length += tokens

    def count_anew(self) -> None:
        self.cumulative_length = 0

    def keep_positions(self, positions: torch.Tensor) -> None:
        self.positions = positions

    def grows_in_place(self, new: torch.Tensor) -> bool:
        """Whether the window can be written on at its end, instead of being copied: nothing else reads what is there."""
        return (
            new.shape[-2] <= self.kept
            and not self.record_past
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
        )

    def append(self, key_states: torch.Tensor, value_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What `extend` does, in buffers longer than the window: it is moved where they end, not in every call."""
        length = key_states.shape[-2]
        if not self.owns_buffers() or self.end + length > self.buffers[0].shape[-2]:
            self.make_room(length)
        start, memory = self.end, min(self.end, self.kept)
        self.end += length
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer.narrow(-2, start, length).copy_(new)
        keys, values = (buffer.narrow(-2, start - memory, memory + length) for buffer in self.buffers)
        self.keys, self.values = last(keys, self.kept, dim=-2), last(values, self.kept, dim=-2)
        self.window = self.keys
        return keys, values

    def owns_buffers(self) -> bool:
        """Whether the window is still the end of what stands in the buffers, and may be written on there."""
        return self.window is self.keys and (torch.is_inference_mode_enabled() or not self.buffers[0].is_inference())

    def make_room(self, length: int) -> None:
        """Let the buffers begin with the window, and have `length` free positions behind it."""
        kept = self.num_kept
        shift = self.end - kept
        fits = self.owns_buffers() and kept + length <= self.buffers[0].shape[-2] <= self.space(length)
        if fits and kept <= 8 * shift:
            # in at most eight steps, none longer than the shift, so that no step writes what it or a later one reads
            for first in range(0, kept, shift):
                size = min(shift, kept - first)
                for buffer in self.buffers:
                    buffer.narrow(-2, first, size).copy_(buffer.narrow(-2, shift + first, size))
        else:
            self.buffers = [self.buffer(last(old, self.kept, dim=-2), length) for old in (self.keys, self.values)]
        self.end = kept

    def space(self, length: int) -> int:
        """Positions of a buffer: the window, and some calls of `length`."""
        return self.kept + max(self.kept // 4, 4 * length)

    def buffer(self, kept: torch.Tensor, length: int) -> torch.Tensor:
        """Space that begins with `kept` and lies along the rows: one query reads it faster so."""
        empty = kept.new_empty(*kept.shape[:2], kept.shape[-1], self.space(length)).transpose(-1, -2)
        empty[:, :, : kept.shape[-2]] = kept
        return empty

    def extend(
        self, kept: torch.Tensor, new: torch.Tensor, order: torch.Tensor | None, dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What a segment sees of `kept` and `new` along `dim`, and what is kept of it afterwards."""
        memory = last(kept, self.kept, dim)
        seen = take(torch.cat([memory, new], dim=dim), order, dim)
        if not self.record_past:
            return seen, last(seen, self.kept, dim).detach()
        # assisted decoding may take tokens back: what they push out of the window stays until `crop`
        pushed_out = kept.narrow(dim, 0, kept.shape[dim] - memory.shape[dim])
        return seen, torch.cat([pushed_out, seen], dim=dim).detach()

    @property
    def num_kept(self) -> int:
        """Number of positions that the next segment sees."""
        return min(self.keys.shape[-2], self.kept) if self.is_initialized else 0

    def crop(self, tokens_to_remove: int) -> None:
        """Take the newest `-tokens_to_remove` positions back, and cut what is kept to the window again."""
        removed = -tokens_to_remove
        if removed < 0:
            raise ValueError(
                f"`tokens_to_remove`={tokens_to_remove} must be zero or negative: minus the tokens to remove."
            )
        if not self.is_initialized:
            return
        if removed and not self.record_past and self.keys.shape[-2] >= self.kept:
            raise RuntimeError(
                "The window is full and what left it was not recorded: call `activate_past_recording()` first."
            )
        self.keys = self.cropped(self.keys, removed, dim=-2)
        self.values = self.cropped(self.values, removed, dim=-2)
        self.cumulative_length -= removed

    def cropped(self, kept: torch.Tensor, removed: int, dim: int) -> torch.Tensor:
        return last(kept.narrow(dim, 0, kept.shape[dim] - removed), self.kept, dim)

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Apply `function` to every tensor that has a row per batch element."""
        if self.is_initialized:
            self.keys, self.values = function(self.keys), function(self.values)
        self.states = {name: function(state) for name, state in self.states.items()}

    def reset(self) -> None:
        super().reset()
        self.states = {}
        self.positions = self.window = None


class StaticMemoryCacheLayer(MemoryCacheLayer):
    """The same window in tensors of fixed shape and address, filled from the right: empty slots are masked."""

    is_compileable = True

    def __init__(self, sliding_window: int):
        super().__init__(sliding_window)
        self.count_anew()

    def count(self, tokens: int) -> None:
        self.cumulative_length.add_(tokens)

    def count_anew(self) -> None:
        # a tensor, as in the library's static layers: a graph would be made anew for every number
        device = self.device if self.is_initialized else None
        self.cumulative_length = torch.zeros((), dtype=torch.long, device=device)  # type: ignore[assignment]

    def keep_positions(self, positions: torch.Tensor) -> None:
        # those of one token to come: a graph would be made anew for every length of a prompt
        self.positions = last(positions, self.kept + 2).mT.contiguous().mT

    def grows_in_place(self, new: torch.Tensor) -> bool:
        return False  # its tensors have a fixed address

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (
            states.new_zeros(*states.shape[:2], self.kept, states.shape[-1]) for states in (key_states, value_states)
        )
        self.cumulative_length = self.cumulative_length.to(self.device)
        if not torch.compiler.is_compiling():
            mark_static_address(self.keys)
            mark_static_address(self.values)
            mark_static_address(self.cumulative_length)
        self.is_initialized = True

    def extend(
        self, kept: torch.Tensor, new: torch.Tensor, order: torch.Tensor | None, dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen = take(torch.cat([kept, new], dim=dim), order, dim)
        kept.copy_(last(seen, self.kept, dim).detach())
        return seen, kept

    def reset(self) -> None:
        if self.is_initialized:
            self.keys.zero_()
            self.values.zero_()
        self.cumulative_length.zero_()

    def activate_past_recording(self) -> None:
        raise ValueError(
            "A static memory cannot take tokens back: assisted decoding needs `cache_implementation=None`."
        )


class MemoryCache(Cache):
    """The memory of a model as its attention reads it: made by `model(ids, use_cache=True)` or by `generate()`.

    Passing it back as `past_key_values` continues the text, one token's projections per token. It belongs to the weights
    it was made with, and to one position of one text: `copy()` branches off. Keys and values of its layers are views of
    memory that the next calls write to.

    Attributes:
        mask (`torch.Tensor` of shape `(batch, columns)`, *optional*): bool, columns that hold real tokens; None: all.
        ended (`torch.Tensor` of shape `(batch,)`, *optional*): bool, rows that have ended inside `generate()` and
            remember nothing more.

    Args:
        config ([`MemoryConfig`]): gives the number of layers and the window.
        static (`bool`): whether the tensors have a fixed shape and address, for `torch.compile`.
    """

    layers: list[MemoryCacheLayer]  # type: ignore[assignment]  # the library's list may hold other kinds of layers

    def __init__(self, config: PreTrainedConfig, static: bool = False):
        if static and config.layer_states:
            raise ValueError(
                f"`cache_implementation`='static' holds attention memories only, and this model also remembers "
                f"{', '.join(config.layer_states)}: leave it out."
            )
        if config.mem_len == 0:
            raise ValueError("`mem_len`=0 keeps no memory: call the model without a cache.")
        layer_class = StaticMemoryCacheLayer if static else MemoryCacheLayer
        super().__init__(layers=[layer_class(window) for window in config.layer_windows])
        self.static = static
        self.state_names = tuple(config.layer_states)
        self.mask: torch.Tensor | None = None
        self.ended: torch.Tensor | None = None
        self.start = None  # what beam search started from, while it runs

    @property
    def num_kept(self) -> int:
        """Number of columns that the next segment sees, padding included."""
        return max(self.seen_lengths)

    @property
    def seen_lengths(self) -> list[int]:
        """Number of columns that each layer's next segment sees."""
        return [layer.kept if self.static else layer.num_kept for layer in self.layers]

    @property
    def longest(self) -> MemoryCacheLayer:
        """The layer that keeps most: `mask` has its columns."""
        kept = [layer.kept for layer in self.layers]
        return self.layers[kept.index(max(kept))]

    @property
    def num_positions(self) -> int:
        """Number of rows of relative positions that every layer has projected."""
        return min(0 if layer.positions is None else layer.positions.shape[1] for layer in self.layers)

    @property
    def batch_size(self) -> int:
        layer = self.longest
        held = [layer.keys] if layer.is_initialized else [*layer.states.values()]
        return held[0].shape[0] if held else -1

    def memory_mask(self, batch: int, device: torch.device) -> torch.Tensor | None:
        """Which of the `num_kept` columns hold real tokens, (batch, num_kept) bool; None when all do."""
        if self.static and self.mask is None:
            self.mask = torch.zeros(batch, self.num_kept, dtype=torch.bool, device=device)
            if not torch.compiler.is_compiling():
                mark_static_address(self.mask)
        return None if self.mask is None else last(self.mask, self.num_kept)

    def update_states(self, states: list[tuple[torch.Tensor, ...]]) -> None:
        """Keep the states of each layer after a segment, in the order of `config.layer_states`."""
        for layer, new in zip(self.layers, states, strict=True):
            layer.states = {name: state.detach() for name, state in zip(self.state_names, new, strict=True)}

    def update_mask(self, valid: torch.Tensor | None) -> None:
        """Note which of the columns (batch, K) that the last segment saw, its own included, are worth remembering."""
        layer = self.longest
        if self.static:
            self.mask.copy_(last(valid, layer.kept))
        elif not layer.record_past:
            self.mask = None if valid is None else none_if_all(last(valid, layer.kept))
        elif valid is not None:
            pushed_out = layer.keys.shape[-2] - valid.shape[1]
            before = valid.new_ones(valid.shape[0], pushed_out) if self.mask is None else self.mask[:, :pushed_out]
            self.mask = torch.cat([before, valid], dim=1)

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Apply `function` to every tensor that has a row per batch element."""
        for layer in self.layers:
            layer.map_rows(function)
        self.mask = None if self.mask is None else function(self.mask)
        self.ended = None if self.ended is None else function(self.ended)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.map_rows(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.map_rows(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.map_rows(lambda rows: rows[indices.to(rows.device)])

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        if self.mask is not None:
            self.mask = self.longest.cropped(self.mask, -tokens_to_remove, dim=1)

    def reset(self) -> None:
        super().reset()
        self.ended = None
        if self.static and self.mask is not None:
            self.mask.zero_()
        else:
            self.mask = None

    def reset_rows(self, reset: torch.Tensor, fresh: "MemoryCache | None") -> None:
        """Let the rows in `reset` (batch,) forget: they become the one row of `fresh`, or remember nothing without it."""
        for layer in self.layers:
            layer.states = {name: reset_state(state, reset.to(state.device)) for name, state in layer.states.items()}
        if not self.longest.is_initialized:
            return
        if fresh is not None:
            for layer, new in zip(self.layers, fresh.layers, strict=True):
                rows = reset[:, None, None, None].to(layer.keys.device)
                layer.keys = torch.where(rows, new.keys, layer.keys)
                layer.values = torch.where(rows, new.values, layer.values)
            self.mask = None if self.mask is None else self.mask | reset[:, None]
        else:
            keys = self.longest.keys
            mask = reset.new_ones(keys.shape[0], keys.shape[2]) if self.mask is None else self.mask
            self.mask = mask & ~reset[:, None]

    def finish(self) -> None:
        """Leave `generate()`: the rows may go on, and no token is taken back any more."""
        self.ended = None
        self.start = None
        if not self.static:
            self.crop(0)
            for layer in self.layers:
                layer.record_past = False

    def copy(self, mask: torch.Tensor | None = None) -> "MemoryCache":
        """A memory that continues from here without changing this one; `get_seq_length()` counts anew from zero.

        `mask` (batch, columns) bool replaces that of this one, where it is given.

        Raises:
            ValueError: `mask` has another shape.
        """
        if mask is not None and tuple(mask.shape) != (self.batch_size, self.num_kept):
            raise ValueError(
                f"`mems_mask` has shape {tuple(mask.shape)}: this cache holds (batch, positions) = "
                f"({self.batch_size}, {self.num_kept}), and knows which are real: leave `mems_mask` out."
            )
        other = copy.copy(self)
        other.layers = [copy.copy(layer) for layer in self.layers]
        for layer, theirs in zip(self.layers, other.layers, strict=True):
            layer.window = theirs.window = None  # what both see is not written over
            theirs.count_anew()
        # a dynamic window keeps what others see of it when it is updated, a static one writes into its tensors
        other.map_rows(torch.clone if self.static else lambda rows: rows)
        other.finish()
        other.mask = other.mask if mask is None else mask
        return other


__all__ = ["MemoryCache", "MemoryCacheLayer", "StaticMemoryCacheLayer"]
