"""An encoder-decoder with memory: translation, one sentence of a document after the other.

An encoder and a decoder of this package, and attention of each layer of the decoder to the encoder's output, as in Vaswani
et al., 2017, https://arxiv.org/abs/1706.03762, section 3.1. What the decoder has written stays in its memory when the next
sentence begins (`mems`), and so do the encoder's outputs for the last sentences (`source_mems`).
"""

import functools
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from transformers import Cache, GenerationMixin
from transformers import initialization as init
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput, auto_docstring, can_return_tuple

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_memory_encoder_decoder import MemoryEncoderDecoderConfig
from transformers_xl.modeling.checks import check_ids, check_row_reset, wrong_tensor
from transformers_xl.modeling.generation_memory import MemoryGenerationMixin, WithMemory
from transformers_xl.modeling.heads import mean_over_targets, targets_of_texts
from transformers_xl.modeling.layers.cross_attention import CrossAttention, Source, earlier_mask, remember_source
from transformers_xl.modeling.layers.transformer_layer import SublayerLayerNorm, SublayerNorm
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.columns import drop_full_mask

_PARTS: dict[str, Any] = {}  # classes by the `model_type` of their config


def register_part(model_class: type[MemoryPreTrainedModel]) -> None:
    """Let a model be an encoder, or a language model a decoder. The package registers all that can, an exported file those
    that it holds."""
    _PARTS[cast(Any, model_class.config_class).model_type] = model_class


@dataclass
class MemorySeq2SeqOutput(ModelOutput):
    """
    Args:
        loss (`torch.Tensor` of shape `(1,)`, *optional*):
            Nats per token, where labels were given.
        logits (`torch.Tensor` of shape `(batch, length, vocab_size)`):
            Of each token of the target.
        past_key_values ([`MemoryCache`], *optional*):
            The cache of the call, which holds `mems` too.
        mems ([`Memory`], *optional*):
            What the decoder remembers of the target, to be given to the next call: of this sentence or of the next one.
        source_mems ([`Memory`], *optional*):
            The encoder's outputs that stay visible, those of this call among them: for the next sentence. Another call for
            the same sentence takes what this call took. None where `source_mem_len` is 0.
        decoder_hidden_states, decoder_attentions:
            As in [`MemoryModelOutput`].
        cross_attentions (`tuple(torch.Tensor)`, with `output_attentions=True`):
            What each layer of the decoder reads of the source, `(batch, heads, length, source length)`, with the columns
            of the `source_mems` that were given in front. Empty but with "eager" attention, which alone has weights.
        encoder_last_hidden_state (`torch.Tensor` of shape `(batch, source length, hidden_size)`):
            The encoder's output.
        encoder_hidden_states, encoder_attentions:
            Those of the encoder, where it was asked for them.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    past_key_values: Cache | None = None
    mems: Memory | None = None
    source_mems: Memory | None = None
    decoder_hidden_states: tuple[torch.Tensor, ...] | None = None
    decoder_attentions: tuple[torch.Tensor, ...] | None = None
    cross_attentions: tuple[torch.Tensor, ...] | None = None
    encoder_last_hidden_state: torch.Tensor | None = None
    encoder_hidden_states: tuple[torch.Tensor, ...] | None = None
    encoder_attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class EncodedSource(BaseModelOutput):
    """The output of an encoder, with `attention_mask` `(batch, source length)`: 1 for real tokens; None: all are. In
    training `auxiliary_loss` `(batch, source length)`, that of each token, if the encoder has one."""

    attention_mask: torch.Tensor | None = None
    auxiliary_loss: torch.Tensor | None = None


class _WithSourceMemory(WithMemory):
    @property
    def mems(self) -> Memory | None:
        """The memory after all but the last token of each sentence, to give to the next sentence beside `source_mems`; None
        after beam search, or where the decoder remembers nothing."""
        return super().mems

    @property
    def source_mems(self) -> Memory | None:
        """What to give to the next sentence beside `mems`; None after beam search."""
        source = None if self.past_key_values is None else self.past_key_values.source
        return None if source is None else source.remembered


class MemoryGenerateSeq2SeqOutput(_WithSourceMemory, GenerateEncoderDecoderOutput):
    """Result of `generate(return_dict_in_generate=True)`, with `mems` and `source_mems`."""


class MemoryGenerateBeamSeq2SeqOutput(_WithSourceMemory, GenerateBeamEncoderDecoderOutput):
    """Result of beam search, whose `mems` and `source_mems` are None: a call that reads its sequences, each up to its end
    (`decoder_attention_mask`), gives both."""


@auto_docstring(
    custom_intro="""
    An encoder, and a decoder with memory that reads the encoder's output. `encoder` is a model without a head, `decoder` a
    language model.
    """
)
class MemoryForConditionalGeneration(MemoryGenerationMixin):
    config: MemoryEncoderDecoderConfig  # type: ignore[assignment]  # its fields describe no architecture
    base_model_prefix = "encoder_decoder"  # there is no model without a head
    _can_record_outputs = {}
    _can_compile_fullgraph = False  # a cache keeps what is projected of the source
    result_classes = (MemoryGenerateSeq2SeqOutput, MemoryGenerateBeamSeq2SeqOutput)

    def __init__(self, config: MemoryEncoderDecoderConfig):
        super().__init__(cast(Any, config))
        encoder, decoder = cast(Any, config.encoder), cast(Any, config.decoder)
        self.encoder, self.decoder = (_PARTS[part.model_type](part) for part in (encoder, decoder))
        for index, layer in enumerate(dict.fromkeys(self.model.layers)):  # one may run again and again
            layer.cross_attention = CrossAttention(
                decoder, encoder.hidden_size, norm_like(layer, decoder), index, config.source_mem_len > 0
            )
        self.decoder.build_source_reader(encoder.hidden_size)
        self.model.extra_arguments = (*self.model.extra_arguments, "source")
        # what tells outputs of the encoder for earlier sentences from those of this one
        self.earlier_source = nn.Parameter(torch.empty(encoder.hidden_size)) if config.source_mem_len else None
        names = [name for name, _ in self.model.embed_tokens.named_parameters()] if config.share_embeddings else []
        tied = {f"encoder.embed_tokens.{name}": f"decoder.model.embed_tokens.{name}" for name in names}
        self._tied_weights_keys = tied
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if module is self and self.earlier_source is not None:  # the parts start their own
            init.zeros_(self.earlier_source)

    @property
    def model(self) -> MemoryModel:  # type: ignore[override]  # a module of heads, here a part of the decoder
        """What remembers what is written: the decoder without its head."""
        return self.decoder.model

    @property
    def _is_stateful(self) -> bool:  # type: ignore[override]  # a class attribute of transformers
        return self.decoder._is_stateful

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Of the encoder, and, where both share one table, of the decoder."""
        for part in (self.encoder, self.decoder) if self.config.share_embeddings else (self.encoder,):
            part.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder.get_output_embeddings()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels)
        return dict(self._tied_weights_keys)  # the decoder ties its own

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Module:
        """As in transformers, of both tables of words."""
        for part in (self.encoder, self.decoder):
            part.resize_token_embeddings(*args, **kwargs)
        self.tie_weights()
        return self.get_input_embeddings()

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """What the decoder reads to predict `labels` `(batch, length)`: each token before it, and first of all
        `decoder_start_token_id`; `pad_token_id`, if there is one, where the labels are padding."""
        if not isinstance(labels, torch.Tensor) or labels.dim() != 2:
            given = f"{type(labels).__name__} of shape {tuple(getattr(labels, 'shape', ()))}"
            raise ValueError(f"`labels` is a {given}: it must be a tensor (batch, length).")
        start = cast(int, self.config.decoder_start_token_id)
        pad = start if self.config.pad_token_id is None else self.config.pad_token_id
        before = nn.functional.pad(labels[:, :-1], (1, 0), value=-100)
        return before.where(before != -100, torch.where(between_labels(labels), start, pad))

    def encode(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs,
    ) -> "EncodedSource":
        """The encoder's output for a source `(batch, length)`, padded on any side, with its mask: all but `pad_token_id`
        where none is given. `output_hidden_states` and `output_attentions` ask for more."""
        mask = self.source_mask(input_ids, attention_mask)
        outputs = self.encoder(input_ids=input_ids, attention_mask=mask, inputs_embeds=inputs_embeds, **kwargs)
        shown = outputs.get("hidden_states"), outputs.get("attentions")
        learns = self.training and self.encoder.auxiliary_loss_coef is not None
        auxiliary = self.encoder.auxiliary_loss(outputs) if learns else None
        return EncodedSource(outputs.last_hidden_state, *shown, attention_mask=mask, auxiliary_loss=auxiliary)

    def source_mask(self, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
        """Which tokens of the source are real: all but `pad_token_id`, where nobody says it."""
        pad = self.encoder.config.pad_token_id
        return attention_mask if attention_mask is not None or input_ids is None or pad is None else input_ids != pad

    def target_mask(self, input_ids: torch.Tensor | None, labels: torch.Tensor | None) -> torch.Tensor | None:
        """Which tokens that the decoder reads are real, where nobody says it: those that labels ask for, else all but what
        stands before the start of a text that begins here (`input_ids`)."""
        if labels is not None:
            return between_labels(labels)
        return None if input_ids is None or input_ids.shape[1] == 1 else from_the_start(input_ids, self.config)

    def add_encoder_loss(
        self, loss: torch.Tensor | None, encoded: ModelOutput, labels: torch.Tensor | None, items: Any
    ) -> torch.Tensor | None:
        """`loss`, and in training what the encoder has to say beside it: the mean over each text's tokens, weighed by its
        labels, as in [`~MemoryHead.add_auxiliary_loss`]."""
        auxiliary = encoded.get("auxiliary_loss")
        if loss is None or labels is None or auxiliary is None or not self.training:
            return loss
        mask = encoded.get("attention_mask")
        mask = torch.ones_like(auxiliary) if mask is None else mask.to(auxiliary)
        mean = mean_over_targets(auxiliary, targets_of_texts(mask, (labels != -100).sum(1)), items)
        return loss + getattr(self.encoder.config, self.encoder.auxiliary_loss_coef) * mean.to(loss.device)

    def read_source(
        self,
        encoded: ModelOutput,
        mask: torch.Tensor | None,
        source_mems: Memory | None,
        cache: MemoryCache | None,
        reset: torch.Tensor | None = None,
    ) -> Source:
        """What the layers of the decoder read of the encoder's output and of earlier sentences, without those before a
        `reset`. A cache keeps it for the tokens to come of this text, with keys and values where no gradient is wanted."""
        states = encoded["last_hidden_state"]  # (batch, length, size)
        mask = encoded.get("attention_mask") if mask is None else mask
        if mask is not None and mask.shape != states.shape[:2]:
            raise wrong_tensor("attention_mask", mask, f"that of the source, of shape {tuple(states.shape[:2])}")
        given = (states, mask, source_mems)
        kept, keeps = None if cache is None else cache.source, cache is not None and not torch.is_grad_enabled()
        is_same = kept is not None and all(old is new for old, new in zip(kept.made_of, given, strict=True))
        if kept is not None and is_same:
            if reset is None and (keeps or kept.kept is None):
                return kept
            source_mems = kept.earlier_mems  # what was forgotten stays so
        source_mems = forget_source(source_mems, reset)
        real = None if mask is None else drop_full_mask(mask.bool())
        read, mask = states, real
        if source_mems is not None:
            earlier = source_mems.layers[0].columns[0].to(states)
            read = torch.cat([earlier + cast(nn.Parameter, self.earlier_source), states], 1)
            mask = torch.ones_like(states[..., 0], dtype=torch.bool) if real is None else real
            mask = drop_full_mask(torch.cat([earlier_mask(source_mems), mask], 1))
        source = Source(read, mask, keeps, earlier=read.shape[1] - states.shape[1])
        source.made_of, source.earlier_mems, count = given, source_mems, self.config.source_mem_len
        source.remembered = remember_source(source_mems, states, real, count) if count else None
        if cache is not None:
            cache.source = source
        return source

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: MemoryCache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        decoder_inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        mems: Memory | None = None,
        source_mems: Memory | None = None,
        reset: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs,
    ) -> MemorySeq2SeqOutput:
        r"""
        attention_mask (`torch.Tensor` of shape `(batch, source length)`, *optional*):
            1 for real tokens of the source, 0 for padding, on any side; all but `pad_token_id` when not given.
        decoder_attention_mask (`torch.Tensor` of shape `(batch, length)`, *optional*):
            The same of the target. When not given it follows from `labels`; without them, and where nothing was read
            before, `pad_token_id` before `decoder_start_token_id` is padding.
        encoder_outputs (`BaseModelOutput`, *optional*):
            What [`encode`] gave for this source.
        labels (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            The target; -100 is ignored. `decoder_input_ids` follow from it when not given.
        mems ([`Memory`], *optional*):
            What the decoder remembers: `mems` of the call before, for the same sentence or for the one before it.
        source_mems ([`Memory`], *optional*):
            The `source_mems` of the sentence before.
        reset (`torch.Tensor` of shape `(batch,)`, *optional*):
            Bool, rows that begin a new document: neither memory is seen. Another call for the same sentence takes no
            `reset` (it would forget what the first one read), and the `source_mems` that [`forget_source`] makes; or the
            same ones, with a cache and `encoder_outputs`.
        """
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = cast(Any, self.prepare_decoder_input_ids_from_labels(labels))
        given = [input_ids, inputs_embeds, None if encoder_outputs is None else by_name(encoder_outputs)[0]]
        target = decoder_inputs_embeds if decoder_input_ids is None else decoder_input_ids
        self._check(given, {"decoder_input_ids": target, "labels": labels, "reset": reset}, source_mems, **kwargs)
        if encoder_outputs is None:
            encoder_outputs = self.encode(input_ids, attention_mask, inputs_embeds, **recorded(kwargs))
        if decoder_attention_mask is None:
            begins = mems is None and (past_key_values is None or past_key_values.get_seq_length() == 0)
            decoder_attention_mask = self.target_mask(decoder_input_ids if begins else None, labels)
        if use_cache and past_key_values is None and self.config.mem_len > 0:
            past_key_values, mems = MemoryCache(mems), None
        encoded: Any = by_name(encoder_outputs)
        mask = self.source_mask(input_ids, attention_mask)
        source = self.read_source(encoded, mask, source_mems, past_key_values, reset)
        source.weights = [] if kwargs.get("output_attentions", self.decoder.config.output_attentions) else None
        outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            mems=mems,
            reset=reset,
            logits_to_keep=logits_to_keep,
            source=source,
            **(kwargs | {"return_dict": True, "shift_labels": labels}),
        )
        weights, source.weights = source.weights, None  # checkpointing, which runs layers again, adds none
        return MemorySeq2SeqOutput(
            loss=self.add_encoder_loss(outputs.get("loss"), encoded, labels, kwargs.get("num_items_in_batch")),
            **{name: outputs.get(name) for name in ("logits", "past_key_values", "mems")},
            source_mems=source.remembered,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=None if weights is None else tuple(weights),
            encoder_last_hidden_state=encoded.last_hidden_state,
            **{f"encoder_{name}": encoded.get(name) for name in ("hidden_states", "attentions")},
        )

    def _check(
        self,
        sources: list[torch.Tensor | None],
        given: dict[str, torch.Tensor | None],
        source_mems: Memory | None,
        shift_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """Check the target, the labels and `reset` that were `given` beside a source."""
        target, labels, reset = given.values()
        if shift_labels is not None:
            raise ValueError("`shift_labels` was given: the target is `labels`, each token where it stands.")
        if target is None:
            raise ValueError(
                "`decoder_input_ids`=None: give what the decoder reads, or `labels`, from which it follows."
            )
        check_row_reset(reset)
        if self.model.is_reentrant:
            raise ValueError(
                "`use_reentrant`=True: gradients of the encoder would be lost. Checkpoint activations with "
                "`use_reentrant=False`."
            )
        if labels is not None and labels.shape != target.shape[:2]:
            raise ValueError(
                f"`labels` has shape {tuple(labels.shape)}, but the decoder reads {tuple(target.shape[:2])}."
            )
        check_ids("labels", labels, self.config.vocab_size, ignored=-100)
        batch = next((len(each) for each in sources if each is not None), len(target))
        for name, value in given.items():
            if value is not None and len(value) != batch:
                raise ValueError(f"`{name}` has {len(value)} rows, but the source {batch}: give one for each source.")
        if source_mems is not None:
            self.check_source_memory(source_mems, batch)

    def check_source_memory(self, source_mems: Memory, batch: int) -> None:
        """
        Raises:
            ValueError: `source_mems` is not of the source of this model, or of another number of rows.
        """
        if self.earlier_source is None:
            raise ValueError(
                "`source_mems` was given, but `source_mem_len`=0: earlier sentences are not seen, leave it out."
            )
        size = self.encoder.config.hidden_size
        columns = [each.columns for each in getattr(source_mems, "layers", ())]
        if len(columns) != 1 or len(columns[0]) != 1 or columns[0][0].shape[::2] != (batch, size):
            shapes = [tuple(each.shape) for layer in columns for each in layer] or type(source_mems).__name__
            raise ValueError(
                f"`source_mems` holds {shapes}: it must be what a call returned as `source_mems` for the sentence before, "
                f"one tensor ({batch}, columns, {size}); `mems` is another memory, and `rows` or `repeat` give other rows."
            )

    def generate(
        self, inputs: torch.Tensor | None = None, generation_config: GenerationConfig | None = None, **kwargs
    ) -> ModelOutput | torch.Tensor:
        r"""
        Everything of transformers' `generate()` for an encoder-decoder, and:

        Args:
            mems, source_mems ([`Memory`], *optional*):
                Those of the sentence before: of a result, or of a model's output.
            reset (`torch.Tensor` of shape `(batch,)`, *optional*):
                Bool, rows that begin a new document.

        Returns:
            Token ids `(batch, length)`, or with `return_dict_in_generate=True` a result that has `.mems` and `.source_mems`
            too: None after beam search.
        """
        if kwargs.get("encoder_outputs") is not None:  # a copy: transformers repeats its rows in place, for beams
            encoded = by_name(kwargs["encoder_outputs"])
            kwargs["encoder_outputs"] = type(encoded)(**encoded)
        if kwargs.get("source_mems") is not None:
            self.check_source_memory(kwargs["source_mems"], getattr(kwargs["source_mems"], "batch_size", 1))
            check_row_reset(kwargs.get("reset"), kwargs["source_mems"].batch_size)
            kwargs["source_mems"] = forget_source(kwargs["source_mems"], kwargs.get("reset"))
        return super().generate(inputs, generation_config, **kwargs)

    def _prepare_text_encoder_decoder_kwargs_for_generation(
        self,
        inputs_tensor: torch.Tensor,
        model_kwargs: dict,
        model_input_name: str | None,
        generation_config: GenerationConfig,
    ) -> dict:
        """The encoder's output, once: with its own arguments alone, while a decoder takes more."""
        ids = inputs_tensor if model_input_name == "input_ids" else None
        given = ids, model_kwargs.get("attention_mask"), None if ids is not None else inputs_tensor
        outputs = self.encode(*given, **recorded(vars(generation_config)))
        return model_kwargs | {"encoder_outputs": outputs, "attention_mask": outputs.attention_mask}

    @functools.wraps(GenerationMixin.prepare_inputs_for_generation)  # transformers looks at its arguments
    def prepare_inputs_for_generation(self, *args, **kwargs) -> dict:
        for name in ("tokenizer", "assistant_tokenizer", "assistant_model"):
            kwargs.pop(name, None)  # transformers hands what decodes stop strings to the model, too
        return GenerationMixin.prepare_inputs_for_generation(cast(Any, self), *args, **kwargs)


def norm_like(layer: Any, config: MemoryConfig) -> SublayerNorm:
    """A norm of the kind that a layer's other sub-layers have."""
    norm = layer.post_attention_layernorm
    if isinstance(norm, SublayerNorm):
        return type(norm)(config)
    new = SublayerLayerNorm(config)  # a plain one, which may have no bias
    if norm.bias is None:
        new.register_parameter("bias", None)
    return new


def by_name(output: Any) -> ModelOutput:
    """The output of an encoder; of a tuple the states alone, since what follows them depends on the encoder."""
    return output if isinstance(output, ModelOutput) else BaseModelOutput(output[0])


def recorded(given: dict[str, Any]) -> dict[str, Any]:
    """What else an encoder is asked for."""
    return {name: given[name] for name in ("output_attentions", "output_hidden_states") if given.get(name)}


def between_labels(labels: torch.Tensor) -> torch.Tensor:
    """Which tokens of a target are real, `(batch, length)` bool: those between the first and the last label that is not
    -100."""
    is_given = labels != -100
    return (is_given.cumsum(1) > 0) & (is_given.flip(1).cumsum(1) > 0).flip(1)


def from_the_start(ids: torch.Tensor, config: MemoryEncoderDecoderConfig) -> torch.Tensor | None:
    """Which tokens of a target `(batch, length)` are real, bool: all but padding before `decoder_start_token_id`, which a
    collator puts there where another (label smoothing) has taken the labels. None where nothing could be padding."""
    start, pad = config.decoder_start_token_id, config.pad_token_id
    if pad is None:
        return None
    count = (ids == pad).long().cumprod(1).sum(1, keepdim=True)  # of the row's beginning
    if pad == start:  # the last of them is the start
        count = (count - 1).clamp(min=0)
    after = ids.gather(1, count.clamp(max=ids.shape[1] - 1))
    return (torch.arange(ids.shape[1], device=ids.device) >= count) | (after != start)


def forget_source(source_mems: Memory | None, reset: torch.Tensor | None) -> Memory | None:
    """`source_mems` without the rows of `reset` `(batch,)` bool, which begin a new document."""
    if source_mems is None or reset is None:
        return source_mems
    return source_mems._replace(
        lengths=source_mems.lengths.masked_fill(reset, 0), tokens_read=source_mems.tokens_read.masked_fill(reset, 0)
    )


__all__ = ["MemoryForConditionalGeneration", "MemorySeq2SeqOutput", "forget_source", "register_part"]
