"""The Longformer encoder: Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, section 3. Code: allenai/longformer.

RoBERTa's encoder with a window on both sides of a token, and global tokens that see all and that all see: time and memory
grow linearly with the length of the text. It reads a text at once and remembers nothing from call to call.
"""

import torch
from torch import nn
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_longformer_encoder import LongformerEncoderConfig
from transformers_xl.modeling.encoder import MemoryForMaskedLM
from transformers_xl.modeling.heads import MemoryForSequenceClassification, MemoryForTokenClassification
from transformers_xl.modeling.layers.absolute_positions import LearnedPositions, places_without_memory
from transformers_xl.modeling.layers.activations import activation
from transformers_xl.modeling.layers.global_attention import GlobalAttention, GlobalTokens, SeenTokens
from transformers_xl.modeling.layers.transformer_layer import Dropout, LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.columns import gather_columns
from transformers_xl.modeling.outputs import MemoryHeadOutput, MemoryModelOutput


class LongformerEncoderLayer(MemoryLayer):
    """Window and global tokens, and a feed-forward. It remembers nothing."""

    attention_class = GlobalAttention

    def new_memory(self, batch: int, num_columns: int, like: torch.Tensor) -> LayerMemory:
        return LayerMemory()

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        attn_output, _ = self.self_attn(self.attention_input(hidden_states), context.plan)
        return LayerOutput(self.after_attention(hidden_states, self.dropout(attn_output), context, **kwargs), past)


class LongformerEmbeddings(nn.Module):
    """Adds the learned position of each token, and normalises."""

    def __init__(self, config: LongformerEncoderConfig):
        super().__init__()
        self.positions = LearnedPositions(config.segment_length, config.hidden_size)
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.layernorm(hidden_states + self.positions(places, hidden_states.dtype))


@auto_docstring(custom_intro="Base class for the Longformer encoder: initialization and loading.")
class LongformerEncoderPreTrainedModel(MemoryPreTrainedModel):
    config: LongformerEncoderConfig
    _no_split_modules = ["LongformerEncoderLayer"]
    _can_compile_fullgraph = False  # how many tokens are global is known only with a batch


@auto_docstring(
    custom_intro="""
    The Longformer encoder without a head. A call takes `global_attention_mask` `(batch, length)` too, 1 for tokens that see
    all tokens of their text and that all see. `mems` is None: nothing is remembered.
    """
)
class LongformerEncoderModel(LongformerEncoderPreTrainedModel, MemoryModel):
    """
    Attributes:
        first_is_global (`bool`): whether the first token of each text is global where a call does not say which are; with
            False no token is.
    """

    layer_class = LongformerEncoderLayer
    positions_class = None
    extra_arguments = ("global_attention_mask",)

    def build(self, config: LongformerEncoderConfig) -> None:
        super().build(config)
        self.embeddings = LongformerEmbeddings(config)
        self.first_is_global = False

    def read(
        self, hidden_states: torch.Tensor, memory: Memory, call: Call, *args, global_attention_mask=None, **kwargs
    ) -> MemoryModelOutput:
        batch, length = hidden_states.shape[:2]
        places = places_without_memory(self.config, Segment.of(0, memory.lengths, memory.tokens_read, length, call))
        is_global = global_attention_mask
        if is_global is not None:
            if tuple(is_global.shape) != (batch, length):
                raise ValueError(
                    f"`global_attention_mask` has shape {tuple(is_global.shape)}: it must be (batch, length) = ({batch}, "
                    f"{length}), 1 for global tokens."
                )
            is_global = gather_columns(is_global.bool(), call.pack)
        elif self.first_is_global:
            is_global = (places == 0).expand(batch, length)
        embeddings = self.embeddings(hidden_states, places)
        return super().read(embeddings, memory, call, *args, global_attention_mask=is_global, **kwargs)

    def key_mask(self, segment: Segment) -> None:
        """None: it would have T x T entries."""

    def run_layers(
        self,
        hidden_states: torch.Tensor,
        memory: tuple[LayerMemory, ...],
        contexts: list[LayerContext],
        global_attention_mask: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[MemoryModelOutput, list[LayerMemory]]:
        """Tell the layers which tokens are of one document, and which are global."""
        segment = contexts[0].segment
        documents = hidden_states.new_ones(hidden_states.shape[:2], dtype=torch.long)
        if segment.document_ids is not None:
            documents = documents + segment.document_ids
        if segment.mask is not None:
            documents = documents.masked_fill(~segment.mask, -1)
        tokens = None
        if global_attention_mask is not None:
            tokens = GlobalTokens.of(global_attention_mask & (documents > 0), documents)
        contexts = [context._replace(plan=SeenTokens(documents, tokens)) for context in contexts]
        return super().run_layers(hidden_states, memory, contexts, **kwargs)


class MaskedLMTransform(nn.Module):
    """What RoBERTa's language modeling head does before it classifies: `norm(act(dense(h)))`."""

    def __init__(self, config: LongformerEncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.act_fn = activation(config.hidden_act)
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.layernorm(self.act_fn(self.dense(hidden_states)))


@auto_docstring(custom_intro="The Longformer encoder with a head for masked language modeling.")
class LongformerEncoderForMaskedLM(LongformerEncoderPreTrainedModel, MemoryForMaskedLM):
    model_class = LongformerEncoderModel

    def build_head(self, config: LongformerEncoderConfig) -> None:
        super().build_head(config)
        self.transform = MaskedLMTransform(config)

    def classifier_input(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.transform(hidden_states)

    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        global_attention_mask: torch.Tensor | None = None,
        **kwargs,
    ) -> MemoryHeadOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            The words that stood where words are masked; -100 is ignored.
        global_attention_mask (`torch.Tensor` of shape `(batch, length)`, *optional*):
            1 for global tokens.
        """
        given = (input_ids, attention_mask, inputs_embeds, labels)
        return super().forward(*given, global_attention_mask=global_attention_mask, **kwargs)


@auto_docstring(
    custom_intro="""
    The Longformer encoder with a classification head on the first token, which is global where a call has no
    `global_attention_mask`.
    """
)
class LongformerEncoderForSequenceClassification(LongformerEncoderPreTrainedModel, MemoryForSequenceClassification):
    model_class = LongformerEncoderModel

    def build_head(self, config: LongformerEncoderConfig) -> None:
        self.model.first_is_global = True
        self.num_labels = config.num_labels
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)  # type: ignore[arg-type]  # never None

    def pool(self, outputs: MemoryModelOutput, mask: torch.Tensor) -> torch.Tensor:
        """The first real token, through a layer of its own."""
        first = gather_columns(outputs.last_hidden_state, mask.long().argmax(dim=1, keepdim=True)).squeeze(1)
        return self.dropout(torch.tanh(self.dense(self.dropout(first))))


@auto_docstring(custom_intro="The Longformer encoder with a classification head on every token.")
class LongformerEncoderForTokenClassification(LongformerEncoderPreTrainedModel, MemoryForTokenClassification):
    model_class = LongformerEncoderModel


__all__ = [
    "LongformerEncoderForMaskedLM",
    "LongformerEncoderForSequenceClassification",
    "LongformerEncoderForTokenClassification",
    "LongformerEncoderModel",
    "LongformerEncoderPreTrainedModel",
]
