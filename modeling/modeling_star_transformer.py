"""Star-Transformer: Guo et al., 2019, https://arxiv.org/abs/1902.09113. Code: fastnlp/fastNLP.

An encoder whose cost is linear in the length: a ring of satellites, one for each token, around a relay that all of them
read and that reads all of them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import auto_docstring
from transformers.utils.output_capturing import capture_outputs

from transformers_xl.configuration.configuration_star_transformer import StarTransformerConfig
from transformers_xl.modeling.heads import MemoryForSequenceClassification, MemoryForTokenClassification
from transformers_xl.modeling.layers.absolute_positions import LearnedPositions
from transformers_xl.modeling.layers.activations import activation
from transformers_xl.modeling.layers.star_attention import RelayAttention, RingAttention, ends
from transformers_xl.modeling.layers.transformer_layer import Dropout, SublayerLayerNorm
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.memory.segment import Call, Segment
from transformers_xl.modeling.modeling_memory import HIDDEN_STATES, MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.outputs import MemoryHeadOutput, MemoryModelOutput


@dataclass
class StarTransformerModelOutput(MemoryModelOutput):
    """
    Args:
        relay (`torch.Tensor` of shape `(batch, hidden_size)`, *optional*):
            The relay after the last layer, with its gradient; `mems.state` holds the same, detached.
        attentions (`tuple[torch.Tensor]`, *optional*):
            Weights of each layer's ring, `(batch, heads, length, 5)`: the token on the left, the token itself, the one on
            the right, its embedding, the relay.
    """

    relay: torch.Tensor | None = None


@dataclass
class StarTransformerHeadOutput(MemoryHeadOutput):
    """`relay` and `attentions` as in [`StarTransformerModelOutput`]."""

    relay: torch.Tensor | None = None


class StarTransformerPositions(nn.Module):
    """Adds the learned position of each token in its segment, where the config has positions."""

    def __init__(self, config: StarTransformerConfig):
        super().__init__()
        length = config.max_position_embeddings
        self.table = None if length is None else LearnedPositions(length, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, segment: Segment) -> torch.Tensor:
        if self.table is None:
            return hidden_states
        if segment.length > self.table.num_embeddings:
            raise ValueError(
                f"`input_ids` holds {segment.length} tokens, but the model has `max_position_embeddings`="
                f"{self.table.num_embeddings}: read the text in segments, or train a model with more or None."
            )
        return hidden_states + self.table(segment.columns, hidden_states.dtype)


class StarTransformerLayerOutput(NamedTuple):
    """The satellites `(batch, length, hidden_size)` and the relay `(batch, hidden_size)` after a round."""

    satellites: torch.Tensor
    relay: torch.Tensor


class StarTransformerLayer(GradientCheckpointingLayer):
    """One round: all satellites read the relay and their neighbours, then the relay reads them. Section 3.2.

        h = norm(act(ring(h, e, s)))            s = norm(act(relay(s, h)))

    There is no residual sum. Pre-norm, as in the released code, is `h = act(ring(norm(h), e, s))`, `s = act(relay(s, h))`.

    Differs from the original: dropout falls on the outputs of the attentions too (the code drops embeddings alone).
    """

    def __init__(self, config: StarTransformerConfig, layer_idx: int):
        super().__init__()
        self.ring_attn = RingAttention(config, layer_idx)
        self.ring_layernorm = SublayerLayerNorm(config)
        self.relay_attn = RelayAttention(config, layer_idx)
        self.relay_layernorm = SublayerLayerNorm(config) if config.norm_position == "post" else None
        self.act_fn = activation(config.hidden_act)
        self.dropout = Dropout(config, config.residual_dropout)

    def forward(
        self,
        satellites: torch.Tensor,
        relay: torch.Tensor,
        embeddings: torch.Tensor,
        is_last: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> StarTransformerLayerOutput:
        normed = self.ring_layernorm.before(satellites)
        attn_output, _ = self.ring_attn(normed, relay, embeddings, is_last)
        satellites = self.ring_layernorm.after(self.act_fn(self.dropout(attn_output)))
        relay = self.act_fn(self.dropout(self.relay_attn(relay, satellites, mask)))
        relay = relay if self.relay_layernorm is None else self.relay_layernorm.after(relay)
        return StarTransformerLayerOutput(satellites, relay)


@auto_docstring(custom_intro="Base class for the Star-Transformer: initialization and loading.")
class StarTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: StarTransformerConfig
    _no_split_modules = ["StarTransformerLayer"]
    _can_record_outputs = {"hidden_states": HIDDEN_STATES, "attentions": RingAttention}
    _can_compile_fullgraph = False  # an encoder: it has no static cache


@auto_docstring(
    custom_intro="""
    The Star-Transformer without a head. Its memory is ours, the paper has none: the relay of a segment is added to the one
    that the next segment begins with, so `mems.state` is one tensor `(batch, hidden_size)`, and zeros are a new row.
    """
)
class StarTransformerModel(StarTransformerPreTrainedModel, MemoryModel):
    layer_class = StarTransformerLayer
    positions_class = StarTransformerPositions
    positions: StarTransformerPositions
    output_class = StarTransformerModelOutput

    def new_state(self, batch: int, like: torch.Tensor) -> tuple[torch.Tensor]:
        """The relay at the end of a segment, `(batch, hidden_size)`: one is passed on, not one of each layer."""
        return (like.new_zeros(batch, self.config.hidden_size),)

    @capture_outputs
    def read(self, hidden_states: torch.Tensor, memory: Memory, call: Call, *args, **kwargs) -> MemoryModelOutput:
        if call.document_ids is not None:
            raise ValueError(
                "`reset` of shape (batch, length), or `position_ids` that start again: all tokens of a segment share one "
                "relay, so no document can begin inside it. Cut the text there, and pass `reset` of shape (batch,)."
            )
        segment = Segment.of(0, memory.lengths, memory.tokens_read, hidden_states.shape[1], call)
        embeddings, mask = self.dropout(self.positions(hidden_states, segment)), segment.mask
        handed_on = memory.state[0].to(embeddings)
        is_last = ends(segment.length, segment.num_tokens, embeddings.device)
        satellites, relay = embeddings, mean_of_tokens(embeddings, mask) + handed_on
        satellites = self.captured_states(satellites)
        for layer in self.layers:
            satellites, relay = layer(satellites, relay, embeddings, is_last, mask)
            satellites = self.captured_states(satellites)
        if self.norm is not None:
            satellites, relay = self.norm(satellites), self.norm(relay)
        if segment.num_tokens is not None:  # a row without tokens hears nothing new
            relay = torch.where(segment.num_tokens[:, None] > 0, relay, handed_on)
        mems = memory._replace(tokens_read=segment.tokens_read_after(), state=(relay,))
        return StarTransformerModelOutput(last_hidden_state=satellites, relay=relay, mems=mems)


def mean_of_tokens(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mean `(batch, width)` of the real tokens of each row, zeros where there are none."""
    if mask is None:
        return states.mean(dim=1)
    return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


@auto_docstring(
    custom_intro="The Star-Transformer with a classification head on the relay and the largest satellites."
)
class StarTransformerForSequenceClassification(StarTransformerPreTrainedModel, MemoryForSequenceClassification):
    model_class = StarTransformerModel
    output_class = StarTransformerHeadOutput

    def pool(self, outputs: StarTransformerModelOutput, mask: torch.Tensor) -> torch.Tensor:
        """The mean of the relay and, for each feature, its maximum over the real tokens. Section 3.3."""
        mask = mask[..., None]
        largest = outputs.last_hidden_state.masked_fill(~mask, -torch.inf).amax(dim=1)
        return (outputs["relay"] + largest.masked_fill(~mask.any(dim=1), 0.0)) / 2


@auto_docstring(
    custom_intro="""
    The Star-Transformer with a classification head on every token and the relay. The paper classifies the satellite alone;
    then nothing would teach the last relay, which is what the next segment gets.
    """
)
class StarTransformerForTokenClassification(StarTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = StarTransformerModel
    output_class = StarTransformerHeadOutput

    def features(self, outputs: StarTransformerModelOutput) -> torch.Tensor:
        """The mean of each satellite and the relay."""
        return (outputs.last_hidden_state + outputs["relay"][:, None]) / 2


__all__ = [
    "StarTransformerForSequenceClassification",
    "StarTransformerForTokenClassification",
    "StarTransformerModel",
    "StarTransformerPreTrainedModel",
]
