"""Configuration of the Tensorized Transformer (Ma et al., 2019, https://arxiv.org/abs/1906.09777)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.configuration.derived_fields import NOT_GIVEN, Derived

DEFAULT_WINDOW = 32


@strict
class TensorizedTransformerConfig(RelativeAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Tensorized Transformer. Further fields are those of [`RelativeAttentionConfig`] and
    [`AdaptiveSoftmaxConfig`]. What a token sees is `attention_window`, however the text is cut: `same_length` changes
    nothing, and a layer remembers `attention_window - 1` positions, of the `mem_len` that it may.

    Args:
        attention_window (`int`, *optional*):
            W, the positions that a token sees, itself included; at most `mem_len + 1`. The output map has
            `num_attention_heads * attention_window ** 2` inputs. 32 when not given, or `mem_len + 1` where that is less.
        num_cores (`int`, *optional*, defaults to 2):
            Core tensors of each head, which are averaged (`core_nums` in the authors' code). A core is diagonal: a vector
            of `head_dim`, the rank of the decomposition.
        num_attention_heads (`int`, *optional*, defaults to 1):
            Parts of the width, each with its own cores. The cores of a head share its factors, as all do in the paper; more
            heads mean a larger output map.
        recompute_attention (`bool`, *optional*, defaults to `False`):
            Whether the backward pass makes the products of all pairs, and the map of them, once more instead of keeping
            them.
    """

    model_type = "tensorized_transformer"
    attribute_map = AdaptiveSoftmaxConfig.attribute_map | {"core_nums": "num_cores"}

    attention_window: Derived[int] = NOT_GIVEN
    num_cores: int = 2
    num_attention_heads: int = 1

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.attention_window is None:
            self.attention_window = min(DEFAULT_WINDOW, self.mem_len + 1)
        if not 1 <= self.attention_window <= self.mem_len + 1:
            raise ValueError(
                f"`attention_window`={self.attention_window} must be at least 1 and at most `mem_len` + 1 = "
                f"{self.mem_len + 1}: a token sees itself and what is remembered."
            )
        if self.num_cores < 1:
            raise ValueError(f"`num_cores`={self.num_cores} must be at least 1.")

    @property
    def sliding_window(self) -> int:
        return self.attention_window

    @property
    def layer_mem_lens(self) -> list[int]:
        return [self.sliding_window - 1] * self.num_hidden_layers


__all__ = ["TensorizedTransformerConfig"]
