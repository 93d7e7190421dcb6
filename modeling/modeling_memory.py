"""The backbone that every variant shares: a decoder that carries memory from segment to segment."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import auto_docstring, can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.saved_with_code import SavedWithCode
from transformers_xl.modeling.adapters import offer_lora_targets
from transformers_xl.modeling.checks import (
    check_checkpointing,
    check_ids,
    check_inputs,
    check_keywords,
    check_memory,
    drop_packing,
)
from transformers_xl.modeling.layers.adaptive_embedding import AdaptiveEmbedding, token_embedding
from transformers_xl.modeling.layers.adaptive_softmax import AdaptiveSoftmax
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.captured_states import CapturedStates
from transformers_xl.modeling.layers.dropout import Dropout
from transformers_xl.modeling.layers.positions import RelativePositions
from transformers_xl.modeling.layers.segment_context import PositionEmbeddings, SegmentContext
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.layer_memory import LayerMemory
from transformers_xl.modeling.memory.memory_layout import MemoryLayout
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.window_memory import WindowMemory
from transformers_xl.modeling.memory_cache import MemoryCache
from transformers_xl.modeling.ops.call_parts import CallParts
from transformers_xl.modeling.ops.key_mask import Columns, KeyMask
from transformers_xl.modeling.ops.token_order import TokenOrder, unpack_tokens
from transformers_xl.modeling.ops.window import (
    SegmentPacking,
    drop_full_mask,
    gather_columns,
    rows_reset_at_end,
    visible_positions,
)
from transformers_xl.modeling.outputs import MemoryModelOutput
from transformers_xl.modeling.packed_documents import resets_of_documents

# the inputs of all layers and the output of the last one
HIDDEN_STATES = OutputRecorder(
    CapturedStates, capture_initial_hidden_state=False, num_hidden_layers_key="num_hidden_states"
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
    push_to_hub = SavedWithCode.push_to_hub  # type: ignore[assignment]  # that of transformers: what `wraps` returns

    def post_init(self) -> None:
        super().post_init()
        offer_lora_targets(self.config.model_type, self.lora_targets)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        embedding_range = self.config.embedding_initializer_range
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and self.config.norm_initializer_range > 0:
            init.normal_(module.weight, mean=1.0, std=self.config.norm_initializer_range)
        elif isinstance(module, nn.Linear) and self.config.linear_initializer == "uniform":
            for parameter in module.parameters(recurse=False):
                init.uniform_(parameter, -(module.in_features**-0.5), module.in_features**-0.5)
        elif isinstance(module, nn.Embedding) and embedding_range is not None:
            init.normal_(module.weight, mean=0.0, std=embedding_range)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])  # as transformers does
        elif isinstance(module, nn.RNNBase):  # as torch does: transformers only initializes LSTMs, and differently
            for parameter in module.parameters():
                init.uniform_(parameter, -(module.hidden_size**-0.5), module.hidden_size**-0.5)
        if hasattr(module, "init_weights") and not isinstance(module, PreTrainedModel):
            cast(Any, module).init_weights(self.config)  # our layers that hold raw parameters

    @property
    def layout(self) -> MemoryLayout:
        """What the tensors of `mems` are, and their order."""
        return cast(MemoryModel, self.base_model).build_memory().layout

    def resize_memory(self, mem_len: int) -> None:
        """Remember `mem_len` positions from the next call on, in training or after it; `config.mem_len` is saved.

        `mems` from before may be passed on: what is longer is cut, what is shorter grows. A `MemoryCache` keeps the lengths
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
        """As in transformers. Of clusters of words, the last one grows or shrinks.

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
        embedding.resize_last_cluster(self._get_resized_embeddings, size - start, mean_resizing)
        for module in self.modules():
            if isinstance(module, AdaptiveSoftmax):
                module.resize_last_cluster(self._get_resized_lm_head, size - start, mean_resizing)
        self.config.vocab_size = self.vocab_size = size
        self.tie_weights()
        return embedding


class MemoryModel(MemoryPreTrainedModel):
    """The decoder: embedding, layers over `[memory; segment]`, final norm. A variant lists its own `PreTrainedModel` first.

    A variant sets `layer_class`, `positions_class` (None for a model without positions) and `norm_class`, or overrides one
    method.
    """

    layer_class: type[nn.Module] = MemoryLayer
    positions_class: type[nn.Module] | None = RelativePositions
    norm_class: type[nn.Module] = nn.LayerNorm  # the one behind the last layer
    output_class: type[MemoryModelOutput] = MemoryModelOutput
    extra_arguments: tuple[str, ...] = ()  # of `forward`, which `run_layers` gets
    token_outputs: tuple[str, ...] = ("last_hidden_state",)  # fields of the output that begin with (batch, length)
    auxiliary_loss_coef: str | None = None  # the field of the config that weighs `auxiliary_loss`, if there is one

    def __init__(self, config: MemoryConfig):
        super().__init__(config)
        self.build(config)
        self.gradient_checkpointing = False
        self.post_init()

    def build(self, config: MemoryConfig) -> None:
        """Make the modules."""
        self.embed_tokens = self.build_embedding(config)
        self.dropout = Dropout(config, config.embedding_dropout)
        self.captured_states = CapturedStates()
        self.positions = None if self.positions_class is None else self.positions_class(config)
        self.layers = self.build_layers(config)
        self.norm = self.norm_class(config.hidden_size, eps=config.layer_norm_eps) if config.use_final_norm else None

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
            Bool. Rows that start a new text, or tokens that begin a document: what came before is not seen.
        position_ids (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            Says where packed documents begin: a position that does not continue that of the real token before it acts as
            `reset`. The numbers themselves change nothing: the model counts distances.
        use_cache (`bool`, *optional*):
            Whether to remember in a [`MemoryCache`] (`past_key_values`) instead of `mems`.
        """
        check_keywords(kwargs := drop_packing(kwargs, position_ids), self.extra_arguments)
        given = (input_ids, inputs_embeds, attention_mask, reset, position_ids)
        batch, length = check_inputs(self.config, *given, has_cache=past_key_values is not None)
        check_memory(self, batch, past_key_values, mems, mems_mask)
        if isinstance(mems, MemoryCache):
            past_key_values, mems, mems_mask = mems.copy(mems_mask), None, None
        if inputs_embeds is None:
            check_ids(input_ids, self.config.vocab_size)
            inputs_embeds = self.embed_tokens(input_ids)

        use_cache = use_cache and self.config.mem_len > 0
        makes_cache = use_cache and past_key_values is None
        cache = self.make_cache(mems, mems_mask, inputs_embeds) if makes_cache else past_key_values
        if cache is not None:
            check_checkpointing(self)
        memory = self.build_memory(mems, mems_mask, inputs_embeds) if cache is None else cache.memory
        segment_mask = segment_mask_of(attention_mask, cache, batch, length)
        reset = self.forget(reset, position_ids, segment_mask, memory)
        # a document that begins behind a row's last token is the one that the next call continues
        begun = None if reset is None or segment_mask is None else rows_reset_at_end(reset, segment_mask)

        # padding stands on the left inside, whatever the side it came from
        order = TokenOrder.of(segment_mask)
        outputs = self._run(
            gather_columns(inputs_embeds, order.pack),
            None if segment_mask is None else gather_columns(segment_mask, order.pack),
            None if reset is None else gather_columns(reset.long().cumsum(1), order.pack),
            memory,
            order,
            **(kwargs | {"return_dict": True}),
        )
        if cache is not None:
            outputs.past_key_values = cache
            cache.close(length)
            if begun is not None:
                memory.reset_rows(begun)
        elif self.config.mem_len > 0:
            outputs.mems, outputs.mems_mask = self.value_of(memory, begun, inputs_embeds)
        return outputs

    def value_of(
        self, memory: ModelMemory, begun: torch.Tensor | None, like: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
        """`mems` and `mems_mask` after a segment, of which the rows in `begun` (B,) remember nothing."""
        mems, mems_mask = memory.value()
        if begun is None:
            return mems, mems_mask
        memory = self.build_memory(mems, mems_mask, like)
        memory.reset_rows(begun)
        return memory.value()

    def forget(
        self,
        reset: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        segment_mask: torch.Tensor | None,
        memory: ModelMemory,
    ) -> torch.Tensor | None:
        """Let rows that start a new text forget; return which tokens (B, T) begin a document inside the segment."""
        if reset is not None and reset.dim() == 1:
            memory.reset_rows(reset)
        inside = reset if reset is not None and reset.dim() == 2 else None
        if position_ids is None:
            return inside
        batch = len(position_ids) if segment_mask is None else len(segment_mask)
        remembers = memory.rows_with_memory(batch)
        if remembers is not None and reset is not None and reset.dim() == 1:
            remembers &= ~reset.to(remembers.device)
        return resets_of_documents(self.config, position_ids, segment_mask, inside, remembers)

    @capture_outputs
    def _run(
        self,
        hidden_states: torch.Tensor,
        segment_mask: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        memory: ModelMemory,
        order: TokenOrder,
        **kwargs,
    ) -> MemoryModelOutput:
        """The layers, on a segment whose padding stands on the left; what is said of tokens goes out in their `order`."""
        hidden_states = self.dropout(hidden_states)
        packing = memory.open(hidden_states, segment_mask, document_ids)
        key_masks: dict[tuple, KeyMask] = {}  # layers that see equally far share it: all do, in most models
        for window in memory.windows:
            reach = (window.num_seen, window.sliding_window)
            if reach not in key_masks:
                key_masks[reach] = self.key_mask(window, packing)
            window.key_mask = key_masks[reach]
        positions = self.position_embeddings(hidden_states, memory.num_before + packing.length, memory)
        segment = SegmentContext(segment_mask, document_ids, positions, self.token_order_to_capture(order, **kwargs))
        segment = self.segment_context(hidden_states, segment, memory)
        output = self.run_layers(hidden_states, memory, segment, **kwargs)
        if self.norm is not None:
            output.last_hidden_state = self.norm(output.last_hidden_state)
        return self.in_order(output, order)

    def in_order(self, output: MemoryModelOutput, order: TokenOrder) -> MemoryModelOutput:
        """The output, with what it says of tokens where the caller put them."""
        for name in self.token_outputs:
            if (value := output.get(name)) is not None:
                setattr(output, name, gather_columns(value, order.unpack))
        return output

    def joined(self, outputs: Sequence[MemoryModelOutput], parts: CallParts, order: TokenOrder) -> MemoryModelOutput:
        """The outputs of all parts as that of the call."""
        hidden_states: Any = None
        if outputs[0].hidden_states is not None:
            layers = zip(*(output.hidden_states or () for output in outputs), strict=True)
            hidden_states = tuple(
                None if each[0] is None else gather_columns(parts.join(each), order.unpack) for each in layers
            )
        last = parts.join([output.last_hidden_state for output in outputs])
        return self.in_order(self.output_class(last_hidden_state=last, hidden_states=hidden_states), order)

    def token_order_to_capture(self, order: TokenOrder, **kwargs) -> TokenOrder | None:
        """The order in which hidden states and attentions are shown; None where the caller asks for neither."""
        flags = ("output_hidden_states", "output_attentions")
        return order if any(kwargs.get(flag, getattr(self.config, flag)) for flag in flags) else None

    def capture(self, hidden_states: torch.Tensor, token_order: TokenOrder | None) -> torch.Tensor:
        """Record `(B, T, E)`, the input of a layer or the output of the last one, where the caller asks; return it."""
        if token_order is None:
            return hidden_states
        unpacked, hidden_states = unpack_tokens(hidden_states, token_order)
        self.captured_states(unpacked)
        return hidden_states

    def key_mask(self, window: WindowMemory, packing: SegmentPacking) -> KeyMask:
        """What the queries of a segment see of `[window; segment]`."""
        rows, num_keys = packing.rows(window.num_seen), window.num_seen + packing.length
        if rows.valid is None and rows.document_ids is None:
            columns = Columns(packing.length, num_keys, packing.device)
            return KeyMask(by_distance=True, window=window.attention_window, columns=columns)
        visible = visible_positions(rows, packing.length, num_keys, window.attention_window, packing.device)
        return KeyMask(visible, window=window.attention_window, order=rows.order)

    def run_layers(
        self, hidden_states: torch.Tensor, memory: ModelMemory, segment: SegmentContext, **kwargs
    ) -> MemoryModelOutput:
        """Run the layers on the segment `(B, T, E)`, each with its memory: the output before the final norm, with what the
        variant says of its tokens, packed as they are."""
        auxiliary_loss: torch.Tensor | None = None
        hidden_states = self.capture(hidden_states, segment.token_order)
        for layer, layer_memory in zip(self.layers, memory.layers, strict=True):
            # reentrant checkpointing makes a plain tuple of it
            output = LayerOutput(*layer(hidden_states, layer_memory, segment, **kwargs))
            hidden_states = self.capture(output.hidden_states, segment.token_order)
            if output.auxiliary_loss is not None:
                others = 0 if auxiliary_loss is None else auxiliary_loss
                auxiliary_loss = output.auxiliary_loss + others
        return self.output_of_layers(hidden_states, auxiliary_loss)

    def output_of_layers(self, hidden_states: torch.Tensor, auxiliary_loss: torch.Tensor | None) -> MemoryModelOutput:
        """The output of [`run_layers`]; `auxiliary_loss`, the sum of those of the layers."""
        return self.output_class(last_hidden_state=hidden_states)

    def segment_context(
        self, hidden_states: torch.Tensor, segment: SegmentContext, memory: ModelMemory
    ) -> SegmentContext:
        """What the layers know about a segment `(B, T, E)`; those of a variant may want to know more."""
        return segment

    def position_embeddings(
        self, hidden_states: torch.Tensor, num_keys: int, memory: ModelMemory
    ) -> PositionEmbeddings | None:
        """What the layers need to know of positions: the table `(distances, E)` of relative distances (None where a cache
        holds its projections), and the shared biases."""
        if self.positions is None:
            return None
        shared = cast(RelativePositions, self.positions).bias
        bias = None if shared is None else shared()
        if memory.is_cache:  # at once for all steps to come
            num_keys = max(num_keys, *(window.sliding_window for window in memory.windows))
        num_distances = self.num_distances(num_keys)
        if memory.is_cache and not torch.is_grad_enabled() and memory.num_positions > num_distances:
            return None, bias
        return self.positions(num_distances, hidden_states), bias

    def num_distances(self, num_keys: int) -> int:
        """Number of relative distances that a token meets, from 0, of `num_keys` columns of `[memory; segment]`: more where
        a variant has columns that lie farther, fewer where no token sees so far."""
        return num_keys

    def layer_memories(self) -> list[LayerMemory]:
        """What each layer remembers."""
        return [cast(MemoryLayer, layer).memories() for layer in self.layers]

    def own_memories(self) -> LayerMemory:
        """What the model itself remembers, a NamedTuple of new memories: nothing, unless the variant says otherwise."""
        return ()

    def build_memory(
        self,
        mems: tuple[torch.Tensor, ...] | None = None,
        mems_mask: torch.Tensor | None = None,
        like: torch.Tensor | None = None,
    ) -> ModelMemory:
        """What the model remembers: `mems`, their mask `(B, <=mem_len)`, in the type of `like`; or what new rows do."""
        memory = ModelMemory(self.layer_memories(), self.own_memories())
        if mems is not None and like is not None:
            memory.load(mems, mems_mask, like)
        return memory

    def make_cache(
        self,
        mems: tuple[torch.Tensor, ...] | None,
        mems_mask: torch.Tensor | None,
        like: torch.Tensor,
        static: bool = False,
    ) -> MemoryCache:
        """A new cache that remembers `mems`: the value turned into what layers read. They project it when they run."""
        if self.config.mem_len == 0:
            raise ValueError("`mem_len`=0 keeps no memory: call the model without a cache.")
        return MemoryCache(self.build_memory(mems, mems_mask, like), static)


def segment_mask_of(
    attention_mask: torch.Tensor | None, cache: MemoryCache | None, batch: int, length: int
) -> torch.Tensor | None:
    """Which tokens of a segment are read, (B, T) bool, None where all are: no padding, and no row that has ended."""
    mask = None if attention_mask is None else drop_full_mask(attention_mask[:, -length:].bool())
    if cache is None or cache.ended is None:
        return mask
    going_on = ~cache.ended[:, None].expand(batch, length)
    return going_on if mask is None else mask & going_on


__all__ = ["MemoryModel", "MemoryPreTrainedModel"]
