"""Configuration of the causal Longformer (Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, section 4)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig

# how much farther the top layer looks back than the bottom layer, where `attention_window` is not given
GROWTH = 16


@strict
class CausalLongformerConfig(RelativeAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the causal Longformer. Further fields are those of [`RelativeAttentionConfig`] and
    [`AdaptiveSoftmaxConfig`]. Windows say how far a token sees: `same_length` changes nothing, and `mem_len` shortens
    the windows that are longer, until it grows again.

    Args:
        attention_window (`int` or `list[int]`, *optional*):
            Earlier positions that a token sees, itself extra: for all layers or for each. When not given, the windows grow
            by equal factors from a sixteenth of `mem_len` in the bottom layer to all of it in the top layer, divided
            by the dilation.
        attention_dilation (`int` or `list[int | list[int]]`, *optional*, defaults to 1):
            Distance of neighbours in a window, in positions: for all layers, for each, or for each head of a layer. A layer
            remembers `attention_window` x its largest dilation, at most `mem_len` positions.
    """

    model_type = "causal_longformer"

    attention_window: int | list[int] | None = None
    attention_dilation: int | list[int | list[int]] = 1

    def validate_architecture(self) -> None:
        super().validate_architecture()
        layers, heads = self.num_hidden_layers, self.num_attention_heads
        for name in ("attention_window", "attention_dilation"):
            given = getattr(self, name)
            if isinstance(given, list) and len(given) != layers:
                raise ValueError(
                    f"`{name}`={given} has {len(given)} entries: give one for each of `num_hidden_layers`={layers}, "
                    "or one number for all."
                )
        for layer, dilations in enumerate(self.dilations):
            if len(dilations) != heads or min(dilations) < 1:
                raise ValueError(
                    f"`attention_dilation`[{layer}]={dilations} must be a number of positions from 1 on, or a list of "
                    f"them for the `num_attention_heads`={heads} heads."
                )
        for layer, (window, dilations) in enumerate(zip(self.given_windows, self.dilations, strict=True)):
            if window < 0:
                raise ValueError(f"`attention_window`={window} of layer {layer} must not be negative.")
            if window and max(dilations) > self.mem_len:
                raise ValueError(
                    f"`attention_dilation`={max(dilations)} of layer {layer} is longer than `mem_len`={self.mem_len}, "
                    f"which leaves no neighbour to see: make it smaller, or set `mem_len` to at least {max(dilations)}."
                )

    @property
    def dilations(self) -> list[list[int]]:
        """Dilation of each head of each layer."""
        given = self.attention_dilation
        by_layer = given if isinstance(given, list) else [given] * self.num_hidden_layers
        return [each if isinstance(each, list) else [each] * self.num_attention_heads for each in by_layer]

    @property
    def given_windows(self) -> list[int]:
        layers = self.num_hidden_layers
        if isinstance(self.attention_window, list):
            return self.attention_window
        if self.attention_window is not None:
            return [self.attention_window] * layers
        shares = [GROWTH ** (layer / (layers - 1) - 1) for layer in range(layers - 1)] + [1.0]
        least = min(1, self.mem_len)
        return [
            max(least, round(share * self.mem_len) // max(dilations))
            for share, dilations in zip(shares, self.dilations, strict=True)
        ]

    @property
    def windows(self) -> list[int]:
        """Earlier positions that a token of each layer sees: those given, as far as `mem_len` holds them."""
        return [
            min(window, self.mem_len // max(dilations))
            for window, dilations in zip(self.given_windows, self.dilations, strict=True)
        ]

    @property
    def layer_mem_lens(self) -> list[int]:
        return [window * max(dilations) for window, dilations in zip(self.windows, self.dilations, strict=True)]

    @property
    def layer_windows(self) -> list[int]:
        return [mem_len + 1 for mem_len in self.layer_mem_lens]

    @property
    def sliding_window(self) -> int:
        """Positions that a token of the layer that looks back farthest sees, itself included."""
        return max(self.layer_windows)


__all__ = ["CausalLongformerConfig"]
