"""The backbone that every variant shares: a decoder that carries memory from segment to segment."""

import os
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
    check_continued_rows,
    check_ids,
    check_inputs,
    check_keywords,
    check_memory,
    check_starts,
)
from transformers_xl.modeling.layers.adaptive_embedding import AdaptiveEmbedding, token_embedding
from transformers_xl.modeling.layers.adaptive_softmax import AdaptiveSoftmax
from transformers_xl.modeling.layers.attention import MemoryAttention, RelativePositions, is_long
from transformers_xl.modeling.layers.transformer_layer import Dropout, LayerOutput, MemoryLayer
from transformers_xl.modeling.layers.uniform_start import start_uniform
from transformers_xl.modeling.memory.memory_cache import MemoryCache, Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory, with_columns_of, with_count
from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment, noted
from transformers_xl.modeling.ops.columns import gather_columns
from transformers_xl.modeling.outputs import MemoryModelOutput
from transformers_xl.modeling.saved_memory_checks import check_saved_memory


class CapturedStates(nn.Module):
    """The place where `capture_outputs` records hidden states, `(batch, length, hidden_size)`, as the layers read them."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states


# inputs of all layers; transformers adds `last_hidden_state`, which is after the final norm
HIDDEN_STATES = OutputRecorder(
    CapturedStates, capture_initial_hidden_state=False, num_hidden_layers_key="num_hidden_states"
)


@auto_docstring(custom_intro="Base class for every model with segment memory: initialization and loading.")
class MemoryPreTrainedModel(SavedWithCode, PreTrainedModel):
    config: MemoryConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": HIDDEN_STATES, "attentions": MemoryAttention}
    is_agent = False
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
            start_uniform(module.parameters(recurse=False), module.in_features)
        elif isinstance(module, nn.Embedding) and embedding_range is not None:
            init.normal_(module.weight, mean=0.0, std=embedding_range)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])  # as transformers does
        elif isinstance(module, nn.RNNBase):  # as torch does: transformers only initializes LSTMs, and differently
            start_uniform(module.parameters(), module.hidden_size)
        if hasattr(module, "init_weights") and not isinstance(module, PreTrainedModel):
            cast(Any, module).init_weights(self.config)  # our layers that hold raw parameters

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike | None, *model_args, **kwargs):
        """As in transformers. An agent is loaded by the classes of agents alone. `use_cache`, which scripts for fine-tuning
        give, changes nothing: `generate()` has a cache, and other calls make one where they say so.

        Raises:
            ValueError: another class would drop its policy.
        """
        name, wants_info = pretrained_model_name_or_path, kwargs.pop("output_loading_info", False)
        kwargs.pop("use_cache", None)
        architectures = getattr(kwargs.get("config"), "architectures", None) or []  # given by the Auto classes
        cls._refuse_agent(any("ForActorCritic" in each for each in architectures), name)
        loaded: Any = super().from_pretrained(name, *model_args, **kwargs, output_loading_info=True)
        cls._refuse_agent(any(each.startswith("policy_head.") for each in loaded[1]["unexpected_keys"]), name)
        return loaded if wants_info else loaded[0]

    @classmethod
    def _refuse_agent(cls, is_agents: bool, folder: str | os.PathLike | None) -> None:
        if is_agents and not cls.is_agent:
            raise ValueError(
                f"{str(folder)!r} holds an agent, and {cls.__name__} would drop its policy: use "
                "`AutoModelForActorCritic`, whose `.model` is the model without heads."
            )

    def resize_memory(self, mem_len: int) -> None:
        """Remember `mem_len` positions from the next call on, in training or after it; `config.mem_len` is saved.

        `mems` from before may be passed on: what is longer is cut, what is shorter grows. Where layers remember different
        numbers of columns, a window that grows gains in each call as many as the row with the fewest tokens has read, and a
        row that is reset has zeros (`initial_memory`) only where there are columns. A model whose windows are its own
        (adaptive span, Longformer with given windows, Tensorized Transformer) sees no farther than these, however long the
        memory.

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
        embedding.resize_last_cluster(self._get_resized_embeddings, size, mean_resizing)
        for module in self.modules():
            if isinstance(module, AdaptiveSoftmax):
                module.resize_last_cluster(self._get_resized_lm_head, size, mean_resizing)
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
    norm_class: type[nn.Module] = nn.LayerNorm  # the one after the last layer
    output_class: type[MemoryModelOutput] = MemoryModelOutput
    extra_arguments: tuple[str, ...] = ()  # of `forward`, which `run_layers` gets
    token_outputs: tuple[str, ...] = ("last_hidden_state",)  # fields of the output that begin with (batch, length)
    auxiliary_loss_coef: str | None = None  # the field of the config that weighs `auxiliary_loss`, if there is one

    def __init__(self, config: MemoryConfig):
        super().__init__(config)
        self.build(config)
        self.gradient_checkpointing = False
        self.post_init()

    @property
    def is_reentrant(self) -> bool:
        """Whether activations of this call are checkpointed with `use_reentrant=True`, which leaves out gradients of what a
        layer reads beside its states."""
        keywords = getattr(getattr(next(iter(self.layers)), "_gradient_checkpointing_func", None), "keywords", {})
        is_training = self.is_activation_checkpointing and self.training and torch.is_grad_enabled()
        return is_training and keywords.get("use_reentrant", False)

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
        mems: Memory | None = None,
        reset: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> MemoryModelOutput:
        r"""
        attention_mask (`torch.Tensor` of shape `(batch, length)`, *optional*):
            1 for real tokens, 0 for padding, on any side. With a cache it may cover the whole history; the cache knows
            about what it holds, and only the last `length` columns are read.
        mems ([`Memory`], *optional*):
            The `mems` of the previous segment's output, or of a result of `generate()`. Nothing in it is changed.
        reset (`torch.Tensor` of shape `(batch,)` or `(batch, length)`, *optional*):
            Bool. Rows that start a new text, or tokens that begin a document: what came before is not seen.
        position_ids (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            Says where packed documents begin: a position that does not continue that of the real token before it acts as
            `reset`. The numbers themselves change nothing: the model counts distances.
        use_cache (`bool`, *optional*):
            Whether to remember keys and values, which carry no gradient, and to return a [`MemoryCache`] too
            (`past_key_values`); False when not given.
        """
        kwargs = check_keywords(kwargs, self.extra_arguments, position_ids)
        given = (input_ids, inputs_embeds, attention_mask, reset, position_ids)
        batch, length = check_inputs(self.config, *given, has_cache=past_key_values is not None)
        check_memory(self, batch, past_key_values, mems)
        if inputs_embeds is None:
            check_ids("input_ids", input_ids, self.config.vocab_size)
            inputs_embeds = self.embed_tokens(input_ids)

        cache = past_key_values
        if cache is None and use_cache and self.config.mem_len > 0:
            cache = MemoryCache(mems)
        if cache is not None and not torch.compiler.is_compiling():
            cache.follow_type(inputs_embeds)
        memory = self.memory_before(cache, mems, reset, inputs_embeds)
        mask = None if attention_mask is None else attention_mask[:, -length:].bool()
        if cache is not None and cache.ended is not None:  # inside `generate()`
            going_on = ~cache.ended[:, None].expand(batch, length)
            mask = going_on if mask is None else mask & going_on
        tokens = reset if reset is not None and reset.dim() == 2 else None
        if position_ids is not None:
            position_ids = cast(torch.LongTensor, position_ids.expand(batch, length))
            check_continued_rows(position_ids, mask, tokens, memory.tokens_read)
        call = Call.of(mask, tokens, position_ids)
        if input_ids is not None:
            call = call._replace(input_ids=gather_columns(input_ids, call.pack))
        if self.config.initial_memory == "zeros":
            check_starts(reset, call.document_ids)
        inputs = gather_columns(inputs_embeds, call.pack)
        output = self.read(inputs, memory, call, cache, **(kwargs | {"return_dict": True}))
        return self.in_order(self.remember(output, call, cache, length), call)

    def memory_before(
        self, cache: MemoryCache | None, mems: Memory | None, reset: torch.Tensor | None, like: torch.Tensor
    ) -> Memory:
        """The memory that a call reads, of the cache or `mems`, with new rows where `reset` `(B,)` is True; without either,
        new rows in the dtype of `like`."""
        memory = mems if cache is None else cache.memory
        if memory is None:
            return self.new_memory(len(like), like)
        if cache is None or not cache.records_past:
            memory = self.recent(memory)
        return self.forget(memory, reset) if reset is not None and reset.dim() == 1 else memory

    def recent(self, memory: Memory) -> Memory:
        """What a call reads of a memory: the newest columns, as many as a layer may have now."""
        return memory.newest(self.config.layer_mem_lens)

    def remember(
        self, output: MemoryModelOutput, call: Call, cache: MemoryCache | None, length: int
    ) -> MemoryModelOutput:
        """The output with what is remembered after the call: gradients end there."""
        memory = cast(Memory, output.mems)
        memory = memory if call.closed is None else self.forget(memory, call.closed)
        memory = memory.detach() if torch.is_grad_enabled() else memory
        if cache is not None:
            cache.update_memory(memory, length)
            cache.is_stateful = self._is_stateful
            if cache.static:
                cache.keep_distances(self.num_distances(self.most_keys()) + 1)
            output["past_key_values"] = cache
        output["mems"] = memory  # an attribute would be looked up among the fields, which takes longer
        if self.config.mem_len > 0:
            return output
        return type(output)(**{**output, "mems": None})  # a field that is set to None would stay

    def in_order(self, output: MemoryModelOutput, call: Call) -> MemoryModelOutput:
        """The output, with what it says of tokens where the caller put them."""
        if call.unpack is None:
            return output
        for name in self.token_outputs:
            if (value := output.get(name)) is not None:
                output[name] = gather_columns(value, call.unpack)
        for name, dim in (("hidden_states", 1), ("attentions", 2)):
            if (values := output.get(name)) is not None:
                output[name] = tuple(
                    None if each is None else gather_columns(each, call.unpack, dim) for each in values
                )
        return output

    @capture_outputs
    def read(
        self,
        hidden_states: torch.Tensor,
        memory: Memory,
        call: Call,
        cache: MemoryCache | None = None,
        source: Any = None,
        **kwargs,
    ) -> MemoryModelOutput:
        """The output of a call `(B, T, E)` whose padding stands after its tokens, with the memory after it in `mems`.
        `source` is the other text that the decoder of an encoder-decoder reads."""
        hidden_states = self.dropout(hidden_states)
        segment = Segment.of(memory.num_columns, memory.lengths, memory.tokens_read, hidden_states.shape[1], call)
        segment, plan, state = self.plan(segment, memory)
        contexts = self.contexts(segment, memory, plan, cache, hidden_states)
        if source is not None:
            contexts = [context._replace(source=source) for context in contexts]
        output, layers = self.run_layers(hidden_states, memory.layers, contexts, **kwargs)
        if self.norm is not None:
            output["last_hidden_state"] = self.norm(output.last_hidden_state)
        lengths = self.lengths_after(segment, max([0, *(context.keep for context in contexts)]))
        output["mems"] = Memory(tuple(layers), lengths, segment.tokens_read_after(), state)
        return output

    def contexts(
        self, segment: Segment, memory: Memory, plan: Any, cache: MemoryCache | None, like: torch.Tensor
    ) -> list[LayerContext]:
        """What each layer is told: the same for all that remember and see equally much."""
        positions, bias = self.position_embeddings(segment, cache, like)
        reaches = zip(memory.layers, self.config.layer_mem_lens, self.attention_windows(), strict=True)
        records = cache is not None and cache.records_past
        shared: dict[tuple, LayerContext] = {}
        contexts = []
        least: int | None = None
        for index, (past, keep, window) in enumerate(reaches):
            if past.columns and past.num_columns < min(keep, segment.num_before):
                # it grew: every row has so many real columns
                least = segment.least_tokens if least is None else least
                keep = min(keep, past.num_columns + least)
            key = past.num_columns, keep, window
            if key not in shared:
                here = segment.seen_by(key[0], keep if records else key[0], window)
                mask = None if is_long(here.num_keys, window) else self.key_mask(here)
                kept = here.num_keys if records else keep
                shared[key] = LayerContext(here, window, kept, mask, cache is not None, positions, bias, plan=plan)
            contexts.append(
                shared[key] if cache is None else shared[key]._replace(layer_cache=cache.layer_cache(index))
            )
        return contexts

    def key_mask(self, segment: Segment) -> torch.Tensor | None:
        """What `segment.visible()` says, once for all layers that see equally much; None: each layer may ask for itself."""
        return None if segment.is_plain else segment.visible()

    def run_layers(
        self, hidden_states: torch.Tensor, memory: tuple[LayerMemory, ...], contexts: list[LayerContext], **kwargs
    ) -> tuple[MemoryModelOutput, list[LayerMemory]]:
        """Run the layers on the segment `(B, T, E)`: the output before the final norm, and what each layer remembers."""
        auxiliary_loss, remembered = None, []
        hidden_states = self.captured_states(hidden_states)
        for layer, past, context in zip(self.layers, memory, contexts, strict=True):
            # reentrant checkpointing makes a plain tuple of it
            output = LayerOutput(*layer(hidden_states, past, context, **kwargs))
            hidden_states = self.captured_states(output.hidden_states)
            remembered.append(output.memory)
            if output.auxiliary_loss is not None:
                auxiliary_loss = output.auxiliary_loss + (0 if auxiliary_loss is None else auxiliary_loss)
        return self.output_of_layers(hidden_states, auxiliary_loss), remembered

    def output_of_layers(self, hidden_states: torch.Tensor, auxiliary_loss: torch.Tensor | None) -> MemoryModelOutput:
        """The output of [`run_layers`]; `auxiliary_loss`, the sum of those of the layers."""
        return self.output_class(last_hidden_state=hidden_states)

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, Any, tuple[torch.Tensor, ...]]:
        """What a variant says of a call: the segment as its layers read it, their `plan`, and the model's own state after
        the call."""
        return segment, None, ()

    def attention_windows(self) -> Sequence[int | None]:
        """Positions that a token of each layer sees, itself included; None: all that are remembered, and its call's."""
        windows = self.config.layer_windows
        return windows if self.config.same_length else [None] * len(windows)

    def lengths_after(self, segment: Segment, count: int) -> torch.Tensor:
        """How many of the newest `count` columns are real after a call, `(B,)`."""
        return segment.remembered(count)

    def position_embeddings(
        self, segment: Segment, cache: MemoryCache | None, like: torch.Tensor
    ) -> tuple[torch.Tensor | None, Any]:
        """What the layers need to know of positions: the table `(distances, E)` of relative distances (None where a cache
        holds its projections), and the shared biases."""
        if self.positions is None:
            return None, None
        shared = cast(RelativePositions, self.positions).bias
        bias, num_keys = None if shared is None else shared(), segment.num_keys
        if cache is None:
            return self.positions(self.num_distances(num_keys), like, segment.nearest_distance), bias
        # at once for all tokens to come
        num_distances = self.num_distances(max(num_keys, self.most_keys()))
        held = [cache.layer_cache(index).positions for index in range(len(self.layers))]
        if not torch.is_grad_enabled() and all(each is not None and each.shape[1] > num_distances for each in held):
            return None, bias
        return self.positions(num_distances, like), bias

    def most_keys(self) -> int:
        """Columns of a full memory and one token."""
        return max([0, *self.config.layer_mem_lens]) + 1

    def num_distances(self, num_keys: int) -> int:
        """Number of relative distances that a token meets, from 0, of `num_keys` columns of `[memory; segment]`: more where
        a variant has columns that lie farther, fewer where no token sees so far."""
        return num_keys

    def new_memory(self, batch: int, like: torch.Tensor, static: bool = False) -> Memory:
        """What is remembered of `batch` new rows, in the type and on the device of `like`; `static`: with all columns from
        the beginning, the unused ones too."""
        has_zeros, lengths = self.config.initial_memory == "zeros", self.config.layer_mem_lens
        count = max([0, *lengths]) if has_zeros else 0
        layers = tuple(
            cast(MemoryLayer, layer).new_memory(batch, length if has_zeros or static else 0, like)
            for layer, length in zip(self.layers, lengths, strict=False)  # there may be none that remembers
        )
        none = torch.zeros(batch, dtype=torch.long, device=like.device)
        return Memory(layers, noted(none + count, count), none, self.new_state(batch, like))

    def new_state(self, batch: int, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the model itself remembers of new rows, beside its layers."""
        return ()

    def check_saved_memory(self, memory: Memory) -> None:
        """Check all of a memory, its numbers too: what a file holds must be one that each call of this model can read.

        Raises:
            ValueError: it is not.
        """
        check_saved_memory(self, memory)

    def forget(self, memory: Memory, rows: torch.Tensor) -> Memory:
        """The memory with new rows in the place of `rows` `(B,)` bool. No column moves: `lengths` says that a new row has
        none, or the zeros of `initial_memory="zeros"`."""
        rows = rows.to(memory.lengths.device)
        tokens_read, has_state = memory.tokens_read.masked_fill(rows, 0), any(each.state for each in memory.layers)
        if self.config.initial_memory == "empty" and not has_state and not memory.state:
            # an agent forgets at every step
            return Memory(memory.layers, memory.lengths.masked_fill(rows, 0), tokens_read)
        fresh = self.new_memory(len(rows), memory_like(memory))
        # zeros, of a longer memory than it was; where layers remember unequally much, older columns would be lost
        is_even = len({each.num_columns for each in memory.layers if each.columns}) == 1
        if memory.num_columns < fresh.num_columns and is_even:
            memory = with_columns_of(memory, fresh)
        layers = zip(self.layers, fresh.layers, memory.layers, strict=False)
        lengths = fresh.lengths.clamp(max=memory.num_columns).where(rows, memory.lengths)
        state = mixed(rows, fresh.state, memory.state)
        return Memory(tuple(forget_rows(*each, rows) for each in layers), lengths, tokens_read, state)


def mixed(rows: torch.Tensor, new: Tensors, old: Tensors) -> Tensors:
    """The `new` tensors in these `rows` (B,) bool, and the `old` ones in the others."""
    return tuple(
        torch.where(rows.view(-1, *[1] * (each.dim() - 1)).to(each.device), fresh.to(each), each)
        for fresh, each in zip(new, old, strict=True)
    )


def forget_rows(layer: nn.Module, new: LayerMemory, old: LayerMemory, rows: torch.Tensor) -> LayerMemory:
    """What a layer remembers, with that of new rows in the place of `rows` (B,) bool."""

    def forgotten(zeros: Tensors, columns: Tensors) -> Tensors:
        # zeros are inputs, and stand at the right of a memory of any length
        if not zeros or zeros[0].shape[-2] == 0 or columns[0].shape[-2] == 0:
            return columns
        if len(columns) > len(zeros):  # keys and values of these inputs
            zeros = cast(MemoryLayer, layer).project(zeros[0])[: len(columns)]
        return mixed(rows, tuple(with_count(each, columns[0].shape[-2]) for each in zeros), columns)

    state = mixed(rows, new.state, old.state)
    return LayerMemory(forgotten(new.columns, old.columns), state, forgotten(new.older, old.older))


def memory_like(memory: Memory) -> torch.Tensor:
    """A tensor of the type and on the device of what is remembered."""
    columns = [each for layer in memory.layers for each in (*layer.columns, *layer.state)]
    return columns[0] if columns else memory.lengths.new_empty(0, dtype=torch.get_default_dtype())


__all__ = ["MemoryModel", "MemoryPreTrainedModel"]
