"""Configuration of the R-Transformer (Wang et al., 2019, https://arxiv.org/abs/1907.05572)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig

RNN_TYPES = ("gru", "lstm", "tanh")


@strict
class RTransformerConfig(AdaptiveSoftmaxConfig):
    r"""
    Configuration of the R-Transformer. Further fields are those of [`AdaptiveSoftmaxConfig`]; there are no positions.

    Args:
        rnn_type (`str`, *optional*, defaults to `"gru"`):
            The recurrent network: `"gru"`, `"lstm"`, or `"tanh"` for the plain one.
        local_window (`int`, *optional*, defaults to 7):
            Positions that the network reads for each position, itself included (M in the paper, `ksize` in its code).
        num_local_rnns (`int`, *optional*, defaults to 1):
            LocalRNNs in front of the attention of each layer (`n` in the code).
        weight_dropout (`float`, *optional*, defaults to 0.0):
            Probability of dropout on the hidden-to-hidden matrices of the recurrent networks, one mask for a segment
            (https://arxiv.org/abs/1708.02182).
        attention_bias (`bool`, *optional*, defaults to `True`):
            Whether the projections of the attention have biases.
    """

    model_type = "r_transformer"

    rnn_type: str = "gru"
    local_window: int = 7
    num_local_rnns: int = 1
    weight_dropout: float | int = 0.0
    attention_bias: bool = True

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if not 0 <= self.weight_dropout < 1:
            raise ValueError(f"`weight_dropout`={self.weight_dropout} must be at least 0 and below 1.")
        if self.rnn_type not in RNN_TYPES:
            raise ValueError(f"`rnn_type`={self.rnn_type!r} must be one of {RNN_TYPES}.")
        for name in ("local_window", "num_local_rnns"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 1.")

    @property
    def layer_reaches(self) -> list[int]:
        """What is attended to comes of recurrent networks, each of which reads inputs before the window."""
        return [window + self.num_local_rnns * (self.local_window - 1) for window in self.layer_windows]


@strict
class RTransformerEncoderConfig(WithoutMemoryConfig, RTransformerConfig):
    """The same without memory, for an encoder: a token sees all of its text."""

    model_type = "r_transformer_encoder"


__all__ = ["RTransformerConfig", "RTransformerEncoderConfig"]
