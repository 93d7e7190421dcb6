"""Vanilla character Transformer: Al-Rfou et al., 2018, https://arxiv.org/abs/1808.04444.

A causal Transformer on fixed segments, without memory: deep, with learned positions added before every layer, and with
auxiliary predictions in training - by every position, by intermediate layers, of two tokens.
"""

from typing import Any, cast

import torch
from torch import nn
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
    ModelInputs,
    whole_logits,
)
from transformers_xl.modeling.layers.absolute_positions import AbsolutePositionsLayer, places_without_memory
from transformers_xl.modeling.layers.adaptive_softmax import linear_cross_entropy, mean_loss, output_layer
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.outputs import MemoryHeadOutput, MemoryModelOutput


class VanillaTransformerLayer(AbsolutePositionsLayer):
    """Positions, attention, feed-forward."""


class AuxiliaryClassifiers(nn.Module):
    """What predicts in training only: the next token from layers before the last, the one after it from every layer."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        layers = config.num_hidden_layers
        # the last layer predicts with the head of the model
        self.next_token = self.classifiers(config, layers - 1 if config.intermediate_losses != "none" else 0)
        predicting = layers if config.intermediate_losses != "none" else 1
        self.second_token = self.classifiers(config, predicting if config.num_targets == 2 else 0)

    def learning_rate_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"auxiliary": [*self.parameters()]}

    def classifiers(self, config: VanillaTransformerConfig, count: int) -> nn.ModuleList:
        return nn.ModuleList([output_layer(config, bias=True) for _ in range(count)])


@auto_docstring(custom_intro="Base class for the vanilla Transformer: initialization and loading.")
class VanillaTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: VanillaTransformerConfig
    _no_split_modules = ["VanillaTransformerLayer"]
    _can_compile_fullgraph = False  # it remembers nothing: it has no static cache


@auto_docstring(custom_intro="The vanilla Transformer without a head.")
class VanillaTransformerModel(VanillaTransformerPreTrainedModel, MemoryModel):
    layer_class = VanillaTransformerLayer
    positions_class = None

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, Any, tuple[torch.Tensor, ...]]:
        return segment, places_without_memory(self.config, segment), ()


@auto_docstring(
    custom_intro="""
    The vanilla Transformer with a language modeling head. In training mode its loss is the sum of the losses of all layers
    that predict at this point of the training, of one target or two; in evaluation it is that of the next token alone.
    `generate()` reads the last `segment_length` tokens again for every token.
    """
)
class VanillaTransformerForCausalLM(VanillaTransformerPreTrainedModel, MemoryForCausalLM):
    """
    Attributes:
        training_progress (`float`): share of the training that is over, 0..1, for the schedule of the intermediate losses.
            [`~transformers_xl.training.trainer.TrainingProgress`] sets it; so does `MemoryTrainer`.
    """

    model_class = VanillaTransformerModel
    num_extra_targets = 1  # the second target of the last token

    def own_loss(self) -> str | None:
        config = self.config
        if not self.has_auxiliary(config) and config.every_position_loss:
            return super().own_loss()
        return (
            f"one of chosen layers, targets and positions (`intermediate_losses`={config.intermediate_losses!r}, "
            f"`num_targets`={config.num_targets}, `every_position_loss`={config.every_position_loss})"
        )

    def build_head(self, config: VanillaTransformerConfig) -> None:
        super().build_head(config)
        self.training_progress = 0.0
        self.auxiliary = AuxiliaryClassifiers(config) if self.has_auxiliary(config) else None

    @staticmethod
    def has_auxiliary(config: VanillaTransformerConfig) -> bool:
        return config.intermediate_losses != "none" or config.num_targets == 2

    def prepare_for_inference(self) -> None:
        """Drop the classifiers that exist in training only, and the fields that ask for them."""
        self.auxiliary = None
        self.config.intermediate_losses, self.config.num_targets = "none", 1

    def extra_classifiers(self) -> list[nn.ModuleList]:
        return [] if self.auxiliary is None else [self.auxiliary.next_token, self.auxiliary.second_token]

    def layer_weights(self) -> list[float]:
        """Weight of each layer's loss at this point of the training. Section 3, "Intermediate layer losses"."""
        layers, kind = self.config.num_hidden_layers, self.config.intermediate_losses
        ends = [(layer + 1) / (2 * layers) for layer in range(layers - 1)]
        if kind == "hard":
            weights = [float(self.training_progress < end) for end in ends]
        elif kind == "linear":
            weights = [max(0.0, 1.0 - self.training_progress / end) for end in ends]
        else:
            weights = [0.0] * len(ends)
        return [*weights, 1.0]

    def forward_with_loss(
        self,
        inputs: ModelInputs,
        targets: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs,
    ) -> MemoryHeadOutput:
        """`targets` may have one column more than the segment: the second target of its last token."""
        if not self.training or targets is None:
            tokens = inputs.inputs_embeds if inputs.input_ids is None else inputs.input_ids
            length = cast(torch.Tensor, tokens).shape[1]  # one of both is given
            targets = None if targets is None else targets[:, :length]
            return super().forward_with_loss(inputs, targets, logits_to_keep, **kwargs)
        wants_states = kwargs.pop("output_hidden_states", self.config.output_hidden_states)
        items = kwargs.pop("num_items_in_batch", None)
        outputs = self.model(**inputs._asdict(), **(kwargs | {"output_hidden_states": True, "return_dict": True}))
        logits = self.compute_logits(outputs, logits_to_keep) if self.returns_logits(targets) else None
        loss = self.training_loss(outputs, logits, targets, items, logits_to_keep)
        left_out = () if wants_states else ("hidden_states",)
        return self.head_output(outputs, loss, logits, ("last_hidden_state", *left_out))

    def training_loss(
        self,
        outputs: MemoryModelOutput,
        logits: torch.Tensor | None,
        targets: torch.Tensor,
        items: torch.Tensor | int | None,
        logits_to_keep: int | torch.Tensor = 0,
    ) -> torch.Tensor:
        """Sum over layers of weight x (loss of the next token + `second_target_weight` x loss of the one after it)."""
        length = outputs.last_hidden_state.shape[1]
        first, second = targets[:, :length], nn.functional.pad(targets[:, 1:], (0, 1), value=-100)[:, :length]
        second = second.masked_fill(first == -100, -100)  # of padding, or in the next document
        if not self.config.every_position_loss:
            known = first != -100
            is_last = known & (known.flip(1).cumsum(1).flip(1) == 1)
            if items is not None:  # they count all targets; of none the loss is 0
                items = items * (is_last.sum() / known.sum().clamp(min=1)).clamp(min=1e-6)
            first, second = first.where(is_last, -100), second.where(is_last, -100)

        def loss(classifier: nn.Module, states: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            # a last token has no second target
            count = (target != -100).sum().clamp(min=1) if items is None else items
            return mean_loss(linear_cross_entropy(classifier, states, target), target, count)

        known_logits = whole_logits(logits, first, logits_to_keep)
        total = mean_loss(self.token_losses(outputs, first, known_logits), first, items)
        weights, last = self.layer_weights(), self.config.num_hidden_layers - 1
        # there, wherever a weight or a second target asks for it
        auxiliary = cast(AuxiliaryClassifiers, self.auxiliary)
        for layer, (weight, states) in enumerate(zip(weights, outputs["hidden_states"][1:], strict=True)):
            if weight == 0.0:
                continue
            if layer < last:
                states = states if self.model.norm is None else self.model.norm(states)
                total = total + weight * loss(auxiliary.next_token[layer], states, first)
            if self.config.num_targets == 2:
                classifier = auxiliary.second_token[layer - last - 1]
                total = total + weight * self.config.second_target_weight * loss(classifier, states, second)
        return total

    def prepare_inputs_for_generation(self, input_ids: torch.LongTensor, **kwargs) -> dict:
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)  # type: ignore[arg-type]  # `functools.wraps`
        for name in ("input_ids", "attention_mask"):
            if inputs.get(name) is not None:
                inputs[name] = inputs[name][:, -self.config.segment_length :]
        return inputs


@auto_docstring(custom_intro="The vanilla Transformer with a classification head on the last real token.")
class VanillaTransformerForSequenceClassification(VanillaTransformerPreTrainedModel, MemoryForSequenceClassification):
    model_class = VanillaTransformerModel


@auto_docstring(custom_intro="The vanilla Transformer with a classification head on every token.")
class VanillaTransformerForTokenClassification(VanillaTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = VanillaTransformerModel


__all__ = [
    "VanillaTransformerForCausalLM",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerForTokenClassification",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
