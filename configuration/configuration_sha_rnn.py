"""Configuration of SHA-RNN (Merity, 2019, https://arxiv.org/abs/1911.11423)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.derived_fields import NOT_GIVEN, Derived


@strict
class ShaRNNConfig(AdaptiveSoftmaxConfig):
    r"""
    Configuration of SHA-RNN. Further fields are those of [`AdaptiveSoftmaxConfig`]. There are no positions, and the
    places of the norms are fixed: `norm_position` is always `"pre"`.

    Args:
        num_hidden_layers (`int`, *optional*, defaults to 6):
            Number of blocks.
        attention_layers (`list[int]`, *optional*):
            Indices of the blocks with attention, counted from 0. When not given, the last block but one.
        num_attention_heads (`int`, *optional*, defaults to 1):
            Heads of the attention. They share the width, so any divisor of `hidden_size` is allowed.
        project_keys (`bool`, *optional*, defaults to `False`):
            Whether keys are a linear map of the memory, before their gate (`k` in the authors' `Attention`).
        project_values (`bool`, *optional*, defaults to `False`):
            Whether values are a linear map of the memory, before their gate (`v`).
        mix_query (`bool`, *optional*, defaults to `False`):
            Whether a non-linear map of the attention output and the query is added to that output (`r`).
        boom_shortcut (`bool`, *optional*, defaults to `True`):
            `True`: the Boom layer ends with a sum of chunks of `hidden_size` features; `False`: with a second matrix.
        collapsed_gate (`bool`, *optional*, defaults to `False`):
            Whether the gate of the values is a vector, no longer over-parameterised. `prepare_for_inference()` sets it.
        intermediate_size (`int`, *optional*, defaults to 2048):
            Inner width of the Boom layer, in features. With `boom_shortcut` at least `hidden_size`; features after the
            last complete chunk are not used.
        hidden_act (`str`, *optional*, defaults to `"quick_gelu"`):
            Activation of the Boom layer, and of `mix_query`: `x * sigmoid(1.702 x)`.
        weight_dropout (`float`, *optional*, defaults to 0.0):
            Probability of dropout on the hidden-to-hidden matrices of the LSTMs, one mask for a segment
            (https://arxiv.org/abs/1708.02182).
        attention_bias (`bool`, *optional*, defaults to `True`):
            Whether the projections of the attention have biases.
        use_final_norm (`bool`, *optional*, defaults to `False`):
            Whether a layer norm follows the last block.
        layer_norm_eps (`float`, *optional*, defaults to 1e-12):
            Epsilon of the layer norms.
    """

    model_type = "sha_rnn"

    attention_layers: Derived[list[int]] = NOT_GIVEN
    num_attention_heads: int = 1
    project_keys: bool = False
    project_values: bool = False
    mix_query: bool = False
    boom_shortcut: bool = True
    collapsed_gate: bool = False
    hidden_act: str = "quick_gelu"
    weight_dropout: float | int = 0.0
    attention_bias: bool = True
    use_final_norm: Derived[bool] = False
    layer_norm_eps: float = 1e-12

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if not 0 <= self.weight_dropout < 1:
            raise ValueError(f"`weight_dropout`={self.weight_dropout} must be at least 0 and below 1.")
        if self.attention_layers is None:
            if self.num_hidden_layers < 2:
                raise ValueError(
                    f"`num_hidden_layers`={self.num_hidden_layers} must be at least 2, because the last block but one "
                    "has the attention; or name the blocks in `attention_layers`."
                )
            self.attention_layers = [self.num_hidden_layers - 2]
        if not self.attention_layers or not set(self.attention_layers) <= set(range(self.num_hidden_layers)):
            raise ValueError(
                f"`attention_layers`={self.attention_layers} must hold at least one of the blocks "
                f"0..{self.num_hidden_layers - 1} (`num_hidden_layers`)."
            )
        if self.head_dim != self.hidden_size / self.num_attention_heads:
            raise ValueError(
                f"`num_attention_heads`={self.num_attention_heads} of `head_dim`={self.head_dim} do not fill `hidden_size`="
                f"{self.hidden_size}: the heads share the memory's width, so their number must divide it; leave "
                "`head_dim` out."
            )
        if self.norm_position != "pre":
            raise ValueError(
                f"`norm_position`={self.norm_position!r} must be 'pre': the places of the norms in SHA-RNN are fixed."
            )
        if self.boom_shortcut and self.intermediate_size < self.hidden_size:
            raise ValueError(
                f"`intermediate_size`={self.intermediate_size} must be at least `hidden_size`={self.hidden_size}, or the "
                "Boom layer has no chunk to sum: make it a multiple, or set `boom_shortcut=False`."
            )

    def has_attention(self, layer_idx: int) -> bool:
        """Whether a block attends."""
        return layer_idx in (self.attention_layers or ())

    @property
    def layer_mem_lens(self) -> list[int]:
        return [self.mem_len if self.has_attention(layer) else 0 for layer in range(self.num_hidden_layers)]


__all__ = ["ShaRNNConfig"]
