"""Segment memory around any language model of transformers, the base.

`kind="window"`: Dai et al., 2019, https://arxiv.org/abs/1901.02860, with keys and values in place of the inputs of a layer,
and the attention sinks of Xiao et al., 2023, https://arxiv.org/abs/2309.17453. `kind="tokens"`: Bulatov et al., 2022,
https://arxiv.org/abs/2207.06881.
"""

import copy
import os
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, Cache, PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import ModelOutput, auto_docstring, can_return_tuple

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.modeling.adapters import lora_targets_of
from transformers_xl.modeling.base_trial import check_reading, refusing
from transformers_xl.modeling.checks import check_targets
from transformers_xl.modeling.evaluating import evaluating
from transformers_xl.modeling.generation_memory import MemoryGenerationMixin
from transformers_xl.modeling.heads import ModelInputs, has_other_loss, items_predicted, next_tokens
from transformers_xl.modeling.layers.adaptive_softmax import mean_loss
from transformers_xl.modeling.layers.token_loss import cross_entropy_in_slices, token_cross_entropy
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.memory.segment import Call
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.outputs import MemoryHeadOutput, MemoryModelOutput
from transformers_xl.modeling.pretrained.base_head import HeadOfBase, decoder_of, head_of_base
from transformers_xl.modeling.pretrained.supported_bases import PositionAngles, check_base, check_config
from transformers_xl.modeling.pretrained.token_bases import measured_start
from transformers_xl.modeling.pretrained.token_reader import TokenReader
from transformers_xl.modeling.pretrained.window_reader import WindowReader

READERS = {"window": WindowReader, "tokens": TokenReader}
BACKBONE_ARGUMENT = """
    backbone ([`PreTrainedModel`], *optional*):
        The base, where it is loaded; made of `config.text_config` when not given.
"""


@auto_docstring(custom_intro="Base class for a base with segment memory around it: initialization and loading.")
class SegmentMemoryPreTrainedModel(MemoryPreTrainedModel):
    config: SegmentMemoryConfig  # type: ignore[assignment]  # its fields describe no architecture
    base_model_prefix = "backbone"
    _can_record_outputs = {}
    _keep_in_fp32_modules_strict = ["memory_tokens"]  # when loaded; see `ScaledMemoryTokens`
    _can_compile_fullgraph = False

    @torch.no_grad()
    # trf-ignore: TRF018
    def _init_weights(self, module: nn.Module) -> None:
        if hasattr(module, "init_weights") and not isinstance(module, PreTrainedModel):
            cast(Any, module).init_weights(self.config)  # of the reader: the base starts its own

    def initialize_weights(self) -> None:
        """As in transformers, the base by its own rule: as a part of custom code, what writes buffers of other modules
        (Falcon-H1) would be left out."""
        if isinstance(base := getattr(self, "backbone", None), PreTrainedModel):
            base.initialize_weights()
        super().initialize_weights()


# trf-ignore: TRF013
class SegmentMemoryBackbone(SegmentMemoryPreTrainedModel, MemoryModel):
    """A base that reads with memory: what the model without a head and the language model share."""

    extra_arguments: tuple[str, ...] = ("logits_to_keep",)
    token_outputs = ("last_hidden_state", "logits")

    def __init__(self, config: SegmentMemoryConfig, backbone: PreTrainedModel | None = None):
        self.given_backbone = (backbone,)  # no sub-module yet: `nn.Module` is not set up
        super().__init__(config)  # type: ignore[arg-type]  # it has what `MemoryModel` reads of a config

    def build(self, config: SegmentMemoryConfig) -> None:
        (backbone,) = self.given_backbone
        del self.given_backbone
        check_config(config)
        if backbone is None:
            backbone = AutoModelForCausalLM.from_config(config.text_config)
        check_base(backbone, config)
        self.backbone = backbone
        self.reader = READERS[config.kind](config)
        self.position_angles = PositionAngles(backbone)
        self.positions = None

    @property
    def model(self) -> "SegmentMemoryBackbone":
        """What remembers: the model itself, whose weights have the names of the base."""
        return self

    @property
    def layers(self) -> list[nn.Module]:
        """What reads, once for each layer that remembers."""
        return [self.reader] * len(self.config.layer_mem_lens)

    @property
    def _is_stateful(self) -> bool:
        """Whether tokens cannot be taken back: a segment that was written is gone."""
        return self.config.kind == "tokens"

    @property
    def base_model(self) -> "SegmentMemoryBackbone":
        """The model without a head."""
        return self

    @property
    def lora_targets(self) -> Sequence[str] | str:  # type: ignore[override]  # of the other models a constant
        """What PEFT adapts in the base; where it does not know it, the projections that have the usual names."""
        usual = super().lora_targets
        has_usual = set(usual) <= {path.rpartition(".")[2] for path, _ in self.backbone.named_modules()}
        return lora_targets_of(self.backbone.config.model_type) or (usual if has_usual else ())

    @property
    def embed_tokens(self) -> nn.Module:
        """The embedding of the base."""
        return self.backbone.get_input_embeddings()

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module | None:
        return self.backbone.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.backbone.set_output_embeddings(new_embeddings)

    def get_decoder(self) -> nn.Module:
        return decoder_of(self.backbone)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """The base's."""
        embedding = self.backbone.resize_token_embeddings(*args, **kwargs)
        self.config.vocab_size = self.backbone.config.vocab_size
        return embedding

    def activation_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """As in transformers. Layers keep their memory when they run again: what reads it may be called twice."""
        super().activation_checkpointing_enable(*args, **kwargs)
        for module in self.backbone.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module._can_checkpoint_with_cache = True

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As in transformers, which notes the type of the weights in only one of the two configurations."""
        self.config.base_config.dtype = self.dtype
        super().save_pretrained(*args, **kwargs)

    def resize_memory(self, mem_len: int) -> None:
        super().resize_memory(mem_len)
        check_config(self.config)

    def new_memory(self, batch: int, like: torch.Tensor, static: bool = False) -> Memory:
        counts = self.config.layer_mem_lens if static else [0] * len(self.config.layer_mem_lens)
        return self.reader.new_memory(self.backbone, batch, counts, like)

    def run_backbone(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: Any,
        position_ids: torch.Tensor | None,
        past_key_values: Cache | None,
        **kwargs: Any,
    ) -> ModelOutput:
        """Run the base."""
        has_cache = past_key_values is not None
        return self.part_of_base()(
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            # else a base warns that it takes no cache for layers that run twice; it reads the one that it is given
            use_cache=has_cache and not (self.training and self.backbone.is_activation_checkpointing),
            **kwargs,
        )

    def part_of_base(self) -> nn.Module:
        """What of the base gives this model's output."""
        raise NotImplementedError

    def read(
        self, hidden_states: torch.Tensor, memory: Memory, call: Call, cache: MemoryCache | None = None, **kwargs: Any
    ) -> MemoryModelOutput:
        self.position_angles.warn_of_cast()
        kwargs.pop("num_items_in_batch", None)
        for name in ("output_hidden_states", "output_attentions"):
            if kwargs.get(name) is None and getattr(self.config, name):
                kwargs[name] = True
        output, memory = self.reader.read(self, hidden_states, memory, call, cache, **kwargs)
        names = (*self.token_outputs, "hidden_states", "attentions")
        return self.output_class(**{name: output[name] for name in names if output.get(name) is not None}, mems=memory)


@auto_docstring(custom_intro="A base with segment memory around it, without its head.", custom_args=BACKBONE_ARGUMENT)
class SegmentMemoryModel(SegmentMemoryBackbone):
    output_class = MemoryModelOutput
    extra_arguments: tuple[str, ...] = ()

    def part_of_base(self) -> nn.Module:
        return decoder_of(self.backbone)


@auto_docstring(
    custom_intro="A language model of transformers with segment memory around it.", custom_args=BACKBONE_ARGUMENT
)
class SegmentMemoryForCausalLM(SegmentMemoryBackbone, MemoryGenerationMixin):  # type: ignore[misc]  # it is its own model
    output_class = MemoryHeadOutput  # type: ignore[assignment]  # with a head of its own
    label_smoothing = 0.0  # of the training loss

    @property
    def base_model(self) -> SegmentMemoryModel:
        """The model without its head, made of the same modules: trainers that compute the loss themselves call it (TRL)."""
        model = SegmentMemoryModel.__new__(SegmentMemoryModel)
        nn.Module.__init__(model)
        # neither hooks, which run around the call of the whole model, nor the `forward` that a trainer put over its own
        shared = vars(self).keys() - vars(model).keys() - {"forward"} | {"_modules", "training"}
        vars(model).update({name: vars(self)[name] for name in shared})
        return model

    @property
    def lm_head(self) -> nn.Module | None:
        """The head of the base."""
        return self.backbone.get_output_embeddings()

    def part_of_base(self) -> nn.Module:
        return self.backbone

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: MemoryCache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        mems: Memory | None = None,
        reset: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> MemoryHeadOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            The tokens themselves; the loss shifts them inside the segment. -100 is ignored, and what padding predicts.
        shift_labels (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            The token that follows each token, used instead of `labels`.
        mems ([`Memory`], *optional*):
            The `mems` of the previous segment's output, or of a result of `generate()`.
        reset (`torch.Tensor` of shape `(batch,)` or `(batch, length)`, *optional*):
            Bool: rows that start a new text, or tokens that begin a document.
        position_ids (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            Positions that start again say where packed documents begin: they act as `reset`.
        logits_to_keep (`int` or `torch.Tensor`, *optional*, defaults to 0):
            As in transformers; the loss is that of all tokens. With 1, a loss needs no logits of all tokens at a time,
            which are the most of a call with a large vocabulary.
        output_token_losses (`bool`, *optional*):
            Whether to return what each target costs, `token_losses`. A keyword without a place in the signature.
        """
        targets, wants_losses = kwargs.pop("shift_labels", None), kwargs.pop("output_token_losses", False)
        check_targets(input_ids, inputs_embeds, labels, targets, 0, self.config.vocab_size)
        if targets is None and labels is not None:
            targets = next_tokens(labels, attention_mask)
            kwargs |= items_predicted(kwargs.get("num_items_in_batch"), labels, targets)
        inputs = ModelInputs(
            input_ids, attention_mask, past_key_values, inputs_embeds, mems, reset, position_ids, use_cache
        )
        kwargs |= {"return_dict": True}
        if targets is None and not may_have_padding(inputs):
            return super().forward(**inputs._asdict(), logits_to_keep=logits_to_keep, **kwargs)
        is_some = not isinstance(logits_to_keep, int) or logits_to_keep > 0
        has_own_loss = targets is None or not has_other_loss(self)
        head, states = head_of_base(self.backbone) if is_some and has_own_loss else None, None
        if head is None:
            outputs = super().forward(**inputs._asdict(), **kwargs)
        else:
            carried = dict(self.base_model(**inputs._asdict(), **kwargs))
            states = carried.pop("last_hidden_state")
            outputs = MemoryHeadOutput(logits=head(slice_logits_to_keep(states, logits_to_keep)), **carried)
        if targets is not None:
            losses = self.add_loss(
                outputs, targets.long().contiguous(), head, states, kwargs.get("num_items_in_batch")
            )
            outputs.token_losses = losses if wants_losses else None
        if head is None:
            outputs.logits = slice_logits_to_keep(outputs.logits, logits_to_keep)
        return type(outputs)(**outputs)  # in the order of its fields: the loss comes first in a tuple

    def add_loss(
        self,
        outputs: MemoryHeadOutput,
        targets: torch.Tensor,
        head: HeadOfBase | None,
        states: torch.Tensor | None,
        num_items_in_batch: torch.Tensor | int | None,
    ) -> torch.Tensor:
        """Put the loss of `targets` `(batch, length)` into `outputs`, and return what each costs: by the logits of all
        tokens, or by their `states`, of which the `head` makes logits a slice at a time."""
        size, smoothing = self.config.vocab_size, self.label_smoothing if self.training else 0.0
        if head is None or states is None:
            losses = token_cross_entropy(cast(torch.Tensor, outputs.logits), targets, smoothing)
        else:
            losses = cross_entropy_in_slices(head, states, targets, size, smoothing)
        if has_other_loss(self):
            given: Any = {"logits": outputs.logits, "labels": None, "shift_labels": targets, "vocab_size": size}
            outputs.loss = self.loss_function(**given, num_items_in_batch=num_items_in_batch)
        else:
            outputs.loss = mean_loss(losses, targets, num_items_in_batch)
        return losses


def may_have_padding(inputs: ModelInputs) -> bool:
    """Whether a call may have padding, which layers read in another place: what is kept of the logits is chosen after."""
    tokens = inputs.input_ids if inputs.inputs_embeds is None else inputs.inputs_embeds
    cache = inputs.past_key_values
    some_have_ended = isinstance(cache, MemoryCache) and cache.ended is not None
    return tokens is not None and tokens.shape[1] > 1 and (inputs.attention_mask is not None or some_have_ended)


def check_code(name: str | os.PathLike, trust_remote_code: bool) -> None:
    """Check that a base has no custom code, or that the caller trusts it.

    Raises:
        ValueError: it does, and is not trusted.
    """
    if not trust_remote_code and "auto_map" in PreTrainedConfig.get_config_dict(name)[0]:
        raise ValueError(
            f"`base`={os.fspath(name)!r} has custom code (`auto_map` in its config.json): read it, and pass "
            "`trust_remote_code=True` to run it."
        )


def add_memory(
    base: str | os.PathLike | PreTrainedModel, kind: str = "window", *, trust_remote_code: bool = False, **memory: Any
) -> SegmentMemoryForCausalLM:
    """Put a memory around a language model of transformers. The tokenizer does not change: load it from the base, and save
    it with the model.

    ```python
    model = add_memory("HuggingFaceTB/SmolLM2-135M", kind="window", mem_len=1024)
    output = model(ids)
    output = model(more_ids, mems=output.mems)
    model.save_pretrained("mine")  # `model.backbone.save_pretrained` writes the base as it was
    ```

    Args:
        base: folder or repository of a language model, or a loaded one, which then shares its weights. Its configuration
            does not change.
        kind: `"window"` or `"tokens"`, see [`SegmentMemoryConfig`].
        trust_remote_code: whether to run custom code of the repository.
        memory: the other fields of [`SegmentMemoryConfig`].

    Raises:
        ValueError: the base does not work with such a memory, or has custom code and is not trusted.
    """
    if isinstance(base, (str, os.PathLike)):
        check_code(base, trust_remote_code)
        options = {"trust_remote_code": trust_remote_code}
        base = AutoModelForCausalLM.from_pretrained(base, **options)
    if isinstance(base, MemoryPreTrainedModel):
        raise ValueError(
            f"`base` is a {type(base).__name__}, which has a memory already: give a plain language model."
        )
    if not isinstance(base, PreTrainedModel):
        raise ValueError(
            f"`base` is a {type(base).__name__}: it must be a `PreTrainedModel`, or a name of one. Add the memory "
            "before adapters: give the model that they adapt."
        )
    for module in base.modules():
        module._is_hf_initialized = True  # type: ignore[assignment]  # else the weights would be drawn again
    config = SegmentMemoryConfig(text_config=copy.deepcopy(base.config), kind=kind, **memory)
    if kind == "tokens":
        check_base(base, config)
        with refusing(base.config, kind), evaluating(base):
            start = measured_start(base)
        for name in start.keys() - memory.keys():
            setattr(config, name, start[name])
    model = SegmentMemoryForCausalLM(config, backbone=base)
    model.reader.to(device=base.device, dtype=base.dtype)
    model.generation_config = copy.deepcopy(base.generation_config)
    model.generation_config.cache_implementation = None  # a cache of the base's
    check_reading(model)
    return model.train(base.training)


__all__ = [
    "SegmentMemoryForCausalLM",
    "SegmentMemoryModel",
    "SegmentMemoryPreTrainedModel",
    "add_memory",
]
