"""The backbone that every variant shares: a decoder that carries memory from segment to segment."""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import auto_docstring, can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.saved_with_code import SavedWithCode
from transformers_xl.modeling.adapters import offer_lora_targets
from transformers_xl.modeling.checks import check_ids, check_inputs, check_keywords, check_memory, drop_packing
from transformers_xl.modeling.layers.adaptive_embedding import AdaptiveEmbedding, token_embedding
from transformers_xl.modeling.layers.adaptive_softmax import AdaptiveSoftmax
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.dropout import Dropout
from transformers_xl.modeling.layers.offloading import onloaded
from transformers_xl.modeling.layers.positions import RelativePositions
from transformers_xl.modeling.layers.segment_context import KeyView, PositionEmbeddings, SegmentContext
from transformers_xl.modeling.layers.shown_states import ShownStates
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory import MemoryCache
from transformers_xl.modeling.memory_layout import MemoryLayout
from transformers_xl.modeling.ops.token_order import TokenOrder, as_shown
from transformers_xl.modeling.ops.window import (
    PackedRows,
    last,
    none_if_all,
    pack_rows,
    remembered,
    reset_state,
    rows_ending_afresh,
    take,
    visible_positions,
)
from transformers_xl.modeling.outputs import MemoryModelOutput, RunOutput
from transformers_xl.modeling.packed_documents import resets_of_documents, rows_with_memory

# the inputs of all layers and the output of the last one
HIDDEN_STATES = OutputRecorder(
    ShownStates, capture_initial_hidden_state=False, num_hidden_layers_key="num_hidden_states"
)


@auto_docstring(custom_intro="Weights, loading and the promises of every model with segment memory.")
class MemoryPreTrainedModel(SavedWithCode, PreTrainedModel):
    config: MemoryConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": HIDDEN_STATES, "attentions": MemoryAttention}
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")  # what a `LoraConfig` without `target_modules` adapts

    def post_init(self) -> None:
        super().post_init()
        offer_lora_targets(self.config.model_type, self.lora_targets)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.LayerNorm) and self.config.norm_initializer_range > 0:
            init.normal_(module.weight, mean=1.0, std=self.config.norm_initializer_range)
        elif isinstance(module, nn.RNNBase):  # as torch does: the library knows the LSTM alone, and in another way
            for parameter in module.parameters():
                init.uniform_(parameter, -(module.hidden_size**-0.5), module.hidden_size**-0.5)
        if hasattr(module, "init_weights") and not isinstance(module, PreTrainedModel):
            module.init_weights(self.config)  # our layers that hold raw parameters

    @property
    def layout(self) -> MemoryLayout:
        """What the tensors of `mems` are, and their order."""
        return MemoryLayout(self.config)

    def resize_memory(self, mem_len: int) -> None:
        """Remember `mem_len` positions from the next call on, in training or after it; `config.mem_len` is saved.

        `mems` from before may be handed on: what is longer is cut, what is shorter grows. A `MemoryCache` keeps the lengths
        it was made with. A model whose windows are its own (adaptive span, Longformer with given windows, Tensorized
        Transformer) sees no farther than these, however long the memory.

        Raises:
            ValueError: the model cannot run with this length.
        """
        self.config.with_mem_len(mem_len)
        self.config.mem_len = mem_len

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """The library's, and for clusters of words: the last one grows or shrinks.

        Raises:
            ValueError: nothing would be left of the last cluster.
        """
        embedding = self.get_input_embeddings()
        if not isinstance(embedding, AdaptiveEmbedding):
            return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        size = embedding.num_embeddings if new_num_tokens is None else new_num_tokens
        size += -size % (pad_to_multiple_of or 1)
        start = embedding.starts[-1]
        if size <= start:
            raise ValueError(
                f"`new_num_tokens`={size} leaves nothing of the last cluster, which begins at {start}: keep more words, or "
                "build a model with other `cutoffs`."
            )
        last_table = embedding.tables[-1]
        embedding.tables[-1] = self._get_resized_embeddings(last_table, size - start, mean_resizing=mean_resizing)
        for module in self.modules():
            if isinstance(module, AdaptiveSoftmax):
                module.resize_last_cluster(self._get_resized_lm_head, size - start, mean_resizing)
        self.config.vocab_size = self.vocab_size = size
        self.tie_weights()
        return embedding


class MemoryModel(MemoryPreTrainedModel):
    """The decoder: embedding, layers over `[memory; segment]`, final norm. A variant lists its own `PreTrainedModel` first.

    A variant sets `layer_class` and `positions_class` (None for a model without positions), or overrides one method.
    """

    layer_class: type[nn.Module] = MemoryLayer
    positions_class: type[nn.Module] | None = RelativePositions
    output_class: type[MemoryModelOutput] = MemoryModelOutput
    extra_arguments: tuple[str, ...] = ()  # of `forward`, which `run_layers` gets
    token_outputs: tuple[str, ...] = ("last_hidden_state",)  # fields of the output that begin with (batch, length)
    auxiliary_loss_coef: str | None = None  # the field of the config that weighs `auxiliary_loss`, if there is one

    def __init__(self, config: MemoryConfig):
        super().__init__(config)
        self.embed_tokens = self.build_embedding(config)
        self.dropout = Dropout(config)
        self.shown_states = ShownStates()
        self.positions = None if self.positions_class is None else self.positions_class(config)
        self.layers = self.build_layers(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.use_final_norm else None
        self.gradient_checkpointing = False
        self.post_init()

    def build_embedding(self, config: MemoryConfig) -> nn.Module:
        """What turns ids into `inputs_embeds`."""
        return token_embedding(config)

    def build_layers(self, config: MemoryConfig) -> nn.ModuleList:
        """The layers in the order in which they run."""
        return nn.ModuleList([self.layer_class(config, layer_idx) for layer_idx in range(config.num_hidden_layers)])

    def auxiliary_loss(self, outputs: MemoryModelOutput) -> torch.Tensor:
        """What training minimises beside the loss of a head: of each token, `(batch, length)`, or one number for all."""
        raise NotImplementedError(f"{type(self).__name__} has no auxiliary loss: its `auxiliary_loss_coef` is None.")

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: MemoryCache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        mems: tuple[torch.Tensor, ...] | MemoryCache | None = None,
        mems_mask: torch.Tensor | None = None,
        reset: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> MemoryModelOutput:
        r"""
        attention_mask (`torch.Tensor` of shape `(batch, length)`, *optional*):
            1 for real tokens, 0 for padding, on any side. With a cache it may cover the whole history; the cache knows
            about what it holds, and only the last `length` columns are read.
        mems (`tuple[torch.Tensor]` or [`MemoryCache`], *optional*):
            The `mems` of the previous segment's output, or of a result of `generate()`. Nothing is changed in place: a
            cache is copied, and the output has a cache too (`past_key_values`).
        mems_mask (`torch.Tensor` of shape `(batch, <=mem_len)`, *optional*):
            The `mems_mask` of the previous segment's output.
        reset (`torch.Tensor` of shape `(batch,)` or `(batch, length)`, *optional*):
            Bool. Rows that start afresh with this segment, or tokens that begin an episode: what came before is not seen.
        position_ids (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            Says where packed documents begin: a position that does not continue that of the real token before it acts as
            `reset`. The numbers themselves change nothing: the model counts distances.
        use_cache (`bool`, *optional*):
            Whether to remember in a [`MemoryCache`] (`past_key_values`) instead of `mems`.
        """
        check_keywords(kwargs := drop_packing(kwargs, position_ids), self.extra_arguments)
        has_cache = past_key_values is not None
        check_inputs(self.config, input_ids, inputs_embeds, attention_mask, reset, position_ids, has_cache)
        batch = (input_ids if inputs_embeds is None else inputs_embeds).shape[0]
        if isinstance(mems, MemoryCache) and past_key_values is None:
            past_key_values, mems, mems_mask = mems.copy(mems_mask), None, None
        check_memory(self.config, batch, past_key_values, mems, mems_mask)
        if inputs_embeds is None:
            check_ids(input_ids, self.config.vocab_size)
            inputs_embeds = self.embed_tokens(input_ids)
        length = inputs_embeds.shape[1]
        if use_cache and past_key_values is None and self.config.mem_len > 0:
            past_key_values = self.make_cache(mems, mems_mask, like=inputs_embeds)
            mems = mems_mask = None
        if past_key_values is not None and self.training and self.gradient_checkpointing:
            raise ValueError(
                "`use_cache`=True and `past_key_values` do not go with activation checkpointing, whose backward pass would "
                "update the cache a second time: train with `mems`, or call `model.eval()` first."
            )

        segment_mask = None if attention_mask is None else none_if_all(attention_mask[:, -length:].bool())
        if past_key_values is not None and past_key_values.ended is not None:
            going_on = ~past_key_values.ended[:, None].expand(-1, length)
            segment_mask = going_on if segment_mask is None else segment_mask & going_on
        remembers = None if position_ids is None else rows_with_memory(batch, past_key_values, mems, mems_mask)
        if reset is not None and reset.dim() == 1:
            mems, mems_mask = self.reset_rows(reset, past_key_values, mems, mems_mask)
            remembers = None if remembers is None else remembers & ~reset.to(remembers.device)
            reset = None
        if position_ids is not None:
            reset = resets_of_documents(self.config, position_ids.expand(batch, -1), segment_mask, reset, remembers)
        # an episode that begins behind a row's last token is the one that the next call continues
        begun = None if reset is None or segment_mask is None else rows_ending_afresh(reset, segment_mask)

        # padding stands on the left inside, whatever the side it came from
        order = TokenOrder.of(segment_mask)
        outputs = self._run(
            take(inputs_embeds, order.pack),
            None if segment_mask is None else take(segment_mask, order.pack),
            None if reset is None else take(reset.long().cumsum(1), order.pack),
            past_key_values,
            mems,
            mems_mask,
            order,
            **(kwargs | {"return_dict": True}),
        )
        if begun is not None:
            outputs.mems, outputs.mems_mask = self.reset_rows(
                begun, outputs.past_key_values, outputs.mems, outputs.mems_mask
            )
        return outputs

    @capture_outputs
    def _run(
        self,
        hidden_states: torch.Tensor,
        segment_mask: torch.Tensor | None,
        episode: torch.Tensor | None,
        past_key_values: MemoryCache | None,
        mems: tuple[torch.Tensor, ...] | None,
        mems_mask: torch.Tensor | None,
        order: TokenOrder,
        **kwargs,
    ) -> MemoryModelOutput:
        """The layers, on a segment whose padding stands on the left; what is said of tokens goes out in their `order`."""
        batch, length = hidden_states.shape[:2]
        config = self.config
        hidden_states = self.dropout(hidden_states)
        windows = config.layer_windows
        memories, seen = [None] * len(windows), [0] * len(windows)
        if past_key_values is not None:
            if past_key_values.batch_size < 0 and config.initial_memory == "zeros":
                self.remember(past_key_values, self.initial_mems(hidden_states), None)
            seen = past_key_values.seen_lengths
            seen_mask = past_key_values.memory_mask(batch, hidden_states.device)
        else:
            if mems is None and config.mem_len > 0:
                mems = self.initial_mems(hidden_states)
            if mems:
                # their type follows the model: Accelerate hands back bfloat16 outputs as float32
                memories = [
                    last(memory, window - 1).to(hidden_states.dtype)
                    for memory, window in zip(mems, windows, strict=False)
                ]
                seen = [memory.shape[1] for memory in memories]
                memories = [memory if memory.shape[1] else None for memory in memories]
            seen_mask = mems_mask = none_if_all(mems_mask)

        states = self.states_of(past_key_values, mems, hidden_states)
        # layers that see equally far share what they need to know of it: all layers do, in most models
        rows = {count: pack_rows((batch, count, length), seen_mask, segment_mask, episode) for count in set(seen)}
        reach = list(zip(seen, windows, strict=True))
        views = {
            (count, window): self.view(rows[count], length, count + length, window, hidden_states.device)
            for count, window in set(reach)
        }
        num_keys = max(seen) + length
        positions = self.position_embeddings(hidden_states, num_keys, past_key_values)
        segment = SegmentContext(segment_mask, episode, positions, self.order_shown(order, **kwargs))
        hidden_states, new_memories, new_states, extra_outputs = self.run_layers(
            hidden_states,
            memories,
            states,
            [views[layer] for layer in reach],
            self.segment_context(hidden_states, segment),
            past_key_values=past_key_values,
            **kwargs,
        )
        if past_key_values is not None:
            past_key_values.update_mask(remembered(rows[max(seen)], num_keys))
            past_key_values.update_states(new_states)
            new_mems = new_mask = None
        else:
            new_mems, new_mask = self.update_memory(mems, mems_mask, new_memories, segment_mask, episode)
            if new_mems is not None:
                new_mems = self.layout.join(new_mems, [tuple(map(torch.Tensor.detach, each)) for each in new_states])
        if self.norm is not None:
            hidden_states = self.norm(hidden_states)
        return self.output_in_order(
            order,
            last_hidden_state=hidden_states,
            past_key_values=past_key_values,
            mems=new_mems,
            mems_mask=new_mask,
            **extra_outputs,
        )

    def output_in_order(self, order: TokenOrder, **fields) -> MemoryModelOutput:
        """The output, with what it says of tokens where the caller put them."""
        for name in self.token_outputs:
            if fields.get(name) is not None:
                fields[name] = take(fields[name], order.unpack)
        return self.output_class(**fields)

    def order_shown(self, order: TokenOrder, **kwargs) -> TokenOrder | None:
        """The order in which hidden states and attentions are shown; None where the caller asks for neither."""
        flags = ("output_hidden_states", "output_attentions")
        return order if any(kwargs.get(flag, getattr(self.config, flag)) for flag in flags) else None

    def show(self, hidden_states: torch.Tensor, shown: TokenOrder | None) -> torch.Tensor:
        """Record the input of a layer, or the output of the last one, where the caller asks for it, and go on with it."""
        if shown is None:
            return hidden_states
        unpacked, hidden_states = as_shown(hidden_states, shown)
        self.shown_states(unpacked)
        return hidden_states

    def view(self, rows: PackedRows, length: int, num_keys: int, window: int, device: torch.device) -> KeyView:
        """What the layers that see the last `window` positions see of `num_keys` packed columns."""
        nearest = window if self.config.same_length else None
        return KeyView(
            visible=visible_positions(rows, length, num_keys, nearest, device),
            by_distance=rows.valid is None and rows.episode is None,
            window=nearest,
            order=rows.order,
        )

    def run_layers(
        self,
        hidden_states: torch.Tensor,
        memories: list[torch.Tensor | None],
        states: list[tuple[torch.Tensor, ...]],
        views: list[KeyView],
        segment: SegmentContext,
        **kwargs,
    ) -> RunOutput:
        """Run the layers with their memories, states and views."""
        new_memories, new_states = [], []
        hidden_states = self.show(hidden_states, segment.shown)
        for layer_idx, layer in enumerate(self.layers):
            known = {"view": views[layer_idx], "segment": segment, **kwargs}
            output = layer(hidden_states, memories[layer_idx], *states[layer_idx], **known)
            output = LayerOutput(*output)  # reentrant checkpointing makes a plain tuple of it
            hidden_states = self.show(output.hidden_states, segment.shown)
            new_memories.append(output.new_memory)
            new_states.append(output.states)
        return RunOutput(hidden_states, new_memories, new_states)

    def states_of(
        self, past_key_values: MemoryCache | None, mems: tuple[torch.Tensor, ...] | None, like: torch.Tensor
    ) -> list[tuple[torch.Tensor, ...]]:
        """The states of each layer (`config.layer_states`) before the segment: those of the memory, or a fresh row's, in
        whose types they are."""
        fresh = self.initial_states(like)
        if past_key_values is not None and past_key_values.layers[0].states:
            states = [tuple(layer.states.values()) for layer in past_key_values.layers]
        elif mems:
            states = self.layout.states(mems)
        else:
            states = [fresh] * len(self.config.layer_windows)
        return [tuple(state.to(new.dtype) for state, new in zip(layer, fresh, strict=True)) for layer in states]

    def initial_states(self, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The states of one layer in fresh rows: zeros."""
        return tuple(like.new_zeros(like.shape[0], *shape) for shape in self.config.layer_states.values())

    def segment_context(self, hidden_states: torch.Tensor, segment: SegmentContext) -> SegmentContext:
        """What the layers are told of a segment; those of a variant may want to know more."""
        return segment

    def update_memory(
        self,
        mems: tuple[torch.Tensor, ...] | None,
        mems_mask: torch.Tensor | None,
        states: list[torch.Tensor],
        segment_mask: torch.Tensor | None,
        episode: torch.Tensor | None,
    ) -> tuple[tuple[torch.Tensor, ...] | None, torch.Tensor | None]:
        """The last `mem_len` real positions of what each layer remembers, and which of them are real."""
        if not mems:
            return None, None
        batch, length = states[0].shape[:2]
        packed = segment_mask is not None or mems_mask is not None or episode is not None
        new_mems, masks, packings = [], [], {}
        for memory, new, mem_len in zip(mems, states, self.config.layer_mem_lens, strict=False):
            # only what can still be remembered is copied; padding and episodes may leave room for more of the old memory
            kept = min(memory.shape[1], mem_len if packed else max(mem_len - length, 0))
            added = length if episode is not None else min(length, mem_len)
            if (kept, mem_len) not in packings:  # layers that remember equally much share it
                packings[kept, mem_len] = pack_rows((batch, kept, added), mems_mask, segment_mask, episode)
            rows = packings[kept, mem_len]
            order = None if rows.order is None else last(rows.order, mem_len)
            both = torch.cat([last(memory, kept).to(new), last(new, added)], dim=1)  # each layer's on its device
            new_mems.append(last(take(both, order), mem_len).detach())
            masks.append(remembered(rows, mem_len))
        lengths = [memory.shape[1] for memory in new_mems]
        return tuple(new_mems), none_if_all(masks[lengths.index(max(lengths))])

    def position_embeddings(
        self, hidden_states: torch.Tensor, num_keys: int, past_key_values: MemoryCache | None
    ) -> PositionEmbeddings | None:
        """What the layers need to know of positions: the table of relative distances (None where a cache holds its
        projections), and the shared biases."""
        if self.positions is None:
            return None
        bias = None if self.positions.bias is None else self.positions.bias()
        if past_key_values is None:
            return self.positions(num_keys, hidden_states), bias
        num_keys = max(num_keys, *self.config.layer_windows)  # at once for all steps to come
        if not torch.is_grad_enabled() and past_key_values.num_positions > num_keys:
            return None, bias
        return self.positions(num_keys, hidden_states), bias

    def initial_mems(self, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The memory of a fresh row: empty, or `mem_len` zero vectors, as `config.initial_memory` says."""
        lengths = self.config.layer_mem_lens
        if self.config.initial_memory == "empty":
            lengths = [0] * len(lengths)
        memories = tuple(like.new_zeros(like.shape[0], length, self.config.hidden_size) for length in lengths)
        return self.layout.join(memories, [self.initial_states(like)] * len(self.config.layer_windows))

    def make_cache(
        self,
        mems: tuple[torch.Tensor, ...] | None,
        mems_mask: torch.Tensor | None,
        like: torch.Tensor,
        static: bool = False,
    ) -> MemoryCache:
        """A new cache that remembers `mems`: the value turned into the engine."""
        cache = MemoryCache(self.config, static=static)
        if mems is not None:
            self.remember(cache, tuple(memory.to(like.dtype) for memory in mems), mems_mask)
        return cache

    def remember(self, cache: MemoryCache, mems: tuple[torch.Tensor, ...], mems_mask: torch.Tensor | None) -> None:
        """Project `mems` into an empty `cache`."""
        batch = mems[0].shape[0]
        seen_mask = cache.memory_mask(batch, mems[0].device)
        widest = None
        memories = self.layout.inputs(mems)
        for layer_idx, (layer, memory, seen) in enumerate(
            zip(self.layers, memories, cache.seen_lengths, strict=False)
        ):
            rows = pack_rows((batch, seen, memory.shape[1]), seen_mask, mems_mask, None)
            with onloaded(layer, memory) as here, onloaded(layer.self_attn, here) as here:
                cache.update(*layer.self_attn.project(layer.attention_input(here)), layer_idx, order=rows.order)
            cache.layers[layer_idx].count_anew()  # it counts the tokens that generate() has fed
            if rows.valid is not None and (widest is None or rows.valid.shape[1] > widest.shape[1]):
                widest = rows.valid
        cache.update_mask(widest)
        cache.update_states(self.states_of(None, mems, mems[0]))

    def reset_rows(
        self,
        reset: torch.Tensor,
        past_key_values: MemoryCache | None,
        mems: tuple[torch.Tensor, ...] | None,
        mems_mask: torch.Tensor | None,
    ) -> tuple[tuple[torch.Tensor, ...] | None, torch.Tensor | None]:
        """Let the rows in `reset` (batch,) forget; the memory's value is returned, the cache is changed."""
        if past_key_values is not None:
            fresh = None
            if self.config.initial_memory == "zeros":
                row = torch.empty(1, dtype=self.dtype, device=self.device)
                fresh = self.make_cache(self.initial_mems(row), None, like=row)
            past_key_values.reset_rows(reset, fresh)
        elif mems is not None and self.config.initial_memory == "zeros":
            mems = tuple(reset_state(memory, reset) for memory in mems)
            mems_mask = None if mems_mask is None else mems_mask | reset[:, None]
        elif mems is not None:
            inputs = self.layout.inputs(mems)
            if mems_mask is None and inputs:
                mems_mask = reset.new_ones(len(reset), max(memory.shape[1] for memory in inputs))
            mems_mask = None if mems_mask is None else mems_mask & ~reset[:, None]
            states = [tuple(reset_state(state, reset) for state in layer) for layer in self.layout.states(mems)]
            mems = self.layout.join(inputs, states)
        return mems, mems_mask


__all__ = ["MemoryModel", "MemoryPreTrainedModel"]
