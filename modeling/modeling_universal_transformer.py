"""Universal Transformer: Dehghani et al., 2018, https://arxiv.org/abs/1807.03819. Code: tensorflow/tensor2tensor.

One layer runs again and again over all positions, and each position decides for itself after how many steps it halts
(adaptive computation time: Graves, 2016, https://arxiv.org/abs/1603.08983).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, cast

import torch
from torch import nn
from transformers import initialization as init
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_universal_transformer import (
    UniversalTransformerConfig,
    UniversalTransformerEncoderConfig,
)
from transformers_xl.modeling.encoder import encoder_forms
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.absolute_positions import SinusoidPositions
from transformers_xl.modeling.layers.halting import HaltingLayer, skips_halted
from transformers_xl.modeling.layers.uniform_start import start_uniform
from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.outputs import MemoryHeadOutput, MemoryModelOutput


@dataclass
class UniversalTransformerModelOutput(MemoryModelOutput):
    """
    Args:
        ponder_cost (`torch.Tensor` of shape `(batch, length)`, *optional*):
            N + R of each token, 0 for padding; in training mode, and with `output_halting=True`.
        halting (`torch.Tensor` of shape `(batch, length)`, *optional*):
            With `output_halting=True`: N, the number of steps of each token, 0 for padding.
    """

    ponder_cost: torch.Tensor | None = None
    halting: torch.Tensor | None = None


@dataclass
class UniversalTransformerHeadOutput(MemoryHeadOutput):
    """`ponder_cost` and `halting` as in [`UniversalTransformerModelOutput`]."""

    ponder_cost: torch.Tensor | None = None
    halting: torch.Tensor | None = None


class HaltingUnit(nn.Module):
    """The probability with which each position halts: sigmoid(w . x + b), `(batch, length)`, in float32 at least."""

    def __init__(self, config: UniversalTransformerConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, config.hidden_size))
        self.bias = nn.Parameter(torch.empty(1))

    def init_weights(self, config: UniversalTransformerConfig) -> None:
        if config.linear_initializer == "uniform":
            start_uniform([self.weight], config.hidden_size)
        else:
            init.normal_(self.weight, mean=0.0, std=config.initializer_range)
        init.constant_(self.bias, float(config.halting_bias))

    def learning_rate_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"ponder": [*self.parameters()]}

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        logits = nn.functional.linear(hidden_states, self.weight, self.bias).squeeze(-1)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).sigmoid()


class StepOutput(NamedTuple):
    """The states `(batch, length, hidden_size)` after a step, what it remembers, and the halting probability p_n of each
    position, `(batch, length)`."""

    hidden_states: torch.Tensor
    memory: LayerMemory
    halting_probability: torch.Tensor


class UniversalTransformerLayer(HaltingLayer):
    """The layer of all steps. Section 2.1.

        x = s + signal(n)        s = layer(x) where the position runs, s where it has halted

    It remembers x, of which its keys and values are projected.

    Differs from the original: relative positions, as in Transformer-XL, take the place of the signals of absolute
    positions, which start again in every segment; the transition is the feed-forward, not a separable convolution.
    """

    def __init__(self, config: UniversalTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.step_signals = SinusoidPositions(config.hidden_size)
        self.halting = HaltingUnit(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        past: LayerMemory,
        context: LayerContext,
        signal: torch.Tensor,
        **kwargs,
    ) -> StepOutput:
        inputs = hidden_states + signal
        output = super().forward(inputs, past, context, halted_states=hidden_states, **kwargs)
        return StepOutput(output.hidden_states, output.memory, self.halting(inputs))


class RepeatedLayer(nn.Module):
    """One layer in all the places of a list of layers."""

    def __init__(self, shared: nn.Module, times: int):
        super().__init__()
        self.shared = shared
        self.times = times

    def __len__(self) -> int:
        return self.times

    def __iter__(self) -> Iterator[nn.Module]:
        return repeat(self.shared, self.times)


@auto_docstring(custom_intro="Base class for the Universal Transformer: initialization and loading.")
class UniversalTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: UniversalTransformerConfig
    _no_split_modules = ["UniversalTransformerLayer"]


@auto_docstring(custom_intro="The Universal Transformer without a head.")
class UniversalTransformerModel(UniversalTransformerPreTrainedModel, MemoryModel):
    layer_class = UniversalTransformerLayer
    output_class = UniversalTransformerModelOutput
    token_outputs = ("last_hidden_state", "ponder_cost", "halting")
    extra_arguments = ("output_halting",)
    auxiliary_loss_coef = "ponder_loss_coef"

    def auxiliary_loss(self, outputs: UniversalTransformerModelOutput) -> torch.Tensor:
        return outputs["ponder_cost"]

    def build_layers(self, config: UniversalTransformerConfig) -> RepeatedLayer:
        return RepeatedLayer(self.layer_class(config, 0), config.num_hidden_layers)

    def run_layers(
        self,
        hidden_states: torch.Tensor,
        memory: tuple[LayerMemory, ...],
        contexts: list[LayerContext],
        output_halting: bool = False,
        **kwargs,
    ) -> tuple[UniversalTransformerModelOutput, list[LayerMemory]]:
        """The steps n = 1 .. `max_steps`, and of each position the sum of its states s_n with weights that sum to one.

        N = the first n with p_1 + .. + p_n >= threshold, else `max_steps`        R = 1 - (p_1 + .. + p_(N-1))
        output = p_1 s_1 + .. + p_(N-1) s_(N-1) + R s_N        ponder cost = N + R
        """
        layer, num_steps = cast(UniversalTransformerLayer, self.layers.shared), len(self.layers)
        dtype, remembered = hidden_states.dtype, []
        numbers = torch.arange(1, num_steps + 1, device=hidden_states.device)
        skip_halted = skips_halted(self.config, hidden_states, **kwargs)
        running = contexts[0].segment.mask
        if running is None:
            running = torch.ones_like(hidden_states[..., 0], dtype=torch.bool)
        halting = torch.zeros_like(running, dtype=torch.long)
        spent = torch.zeros_like(running, dtype=torch.promote_types(dtype, torch.float32))  # p_1 + .. + p_(n-1)
        ponder_cost, output = spent, torch.zeros_like(hidden_states)
        hidden_states = self.captured_states(hidden_states)
        for step, signal in enumerate(layer.step_signals(numbers, dtype)):
            known = {"signal": signal, "running": running, "skip_halted": skip_halted}
            hidden_states, kept, probability = layer(hidden_states, memory[step], contexts[step], **known, **kwargs)
            # with a `device_map` the layer may lie elsewhere
            hidden_states, probability = (each.to(output.device) for each in (hidden_states, probability))
            hidden_states = self.captured_states(hidden_states)
            remembered.append(kept)
            reached = spent + probability >= self.config.halting_threshold
            halts = running & (reached | (step + 1 == num_steps))
            weight = torch.where(halts, 1 - spent, probability) * running
            output = output + weight.to(dtype)[..., None] * hidden_states
            ponder_cost = ponder_cost + running + halts * (1 - spent)
            halting = halting + running
            spent = spent + probability * running
            running = running & ~halts
        layer_caches = [context.layer_cache for context in contexts if context.layer_cache is not None]
        for layer_cache in layer_caches:  # one layer projects the positions
            layer_cache.positions = layer_caches[0].positions
        result = UniversalTransformerModelOutput(
            last_hidden_state=output,
            ponder_cost=ponder_cost if self.training or output_halting else None,
            halting=halting if output_halting else None,
        )
        return result, remembered


@auto_docstring(
    custom_intro="""
    The Universal Transformer with a language modeling head. In training mode its loss has the ponder cost of the tokens
    that predict; in evaluation it is nats per token alone.
    """
)
class UniversalTransformerForCausalLM(UniversalTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = UniversalTransformerModel
    output_class = UniversalTransformerHeadOutput


@auto_docstring(custom_intro="The Universal Transformer with a classification head on the last real token.")
class UniversalTransformerForSequenceClassification(
    UniversalTransformerPreTrainedModel, MemoryForSequenceClassification
):
    model_class = UniversalTransformerModel
    output_class = UniversalTransformerHeadOutput


@auto_docstring(custom_intro="The Universal Transformer with a classification head on every token.")
class UniversalTransformerForTokenClassification(UniversalTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = UniversalTransformerModel
    output_class = UniversalTransformerHeadOutput


(
    UniversalTransformerEncoderModel,
    UniversalTransformerEncoderForMaskedLM,
    UniversalTransformerEncoderForSequenceClassification,
    UniversalTransformerEncoderForTokenClassification,
) = encoder_forms(UniversalTransformerEncoderConfig, UniversalTransformerForCausalLM)


__all__ = [
    "UniversalTransformerEncoderForMaskedLM",
    "UniversalTransformerEncoderForSequenceClassification",
    "UniversalTransformerEncoderForTokenClassification",
    "UniversalTransformerEncoderModel",
    "UniversalTransformerForCausalLM",
    "UniversalTransformerForSequenceClassification",
    "UniversalTransformerForTokenClassification",
    "UniversalTransformerModel",
    "UniversalTransformerPreTrainedModel",
]
