"""Configuration of Transformer-XL (Dai et al., 2019, https://arxiv.org/abs/1901.02860)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig


@strict
class TransformerXLConfig(RelativeAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of Transformer-XL. All its fields are those of [`RelativeAttentionConfig`] and
    [`AdaptiveSoftmaxConfig`].

    Differs from the original: `same_length` is `True` and `norm_position` is `"pre"` by default, where the original
    trains with `same_length=False` and post-norm.

    Example:

    ```python
    >>> from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM

    >>> model = TransformerXLForCausalLM(TransformerXLConfig(vocab_size=259, hidden_size=256, mem_len=256))
    ```
    """

    model_type = "transformer_xl"


@strict
class TransformerXLEncoderConfig(WithoutMemoryConfig, TransformerXLConfig):
    """The same without memory, for an encoder: a token sees all of its text."""

    model_type = "transformer_xl_encoder"


__all__ = ["TransformerXLConfig", "TransformerXLEncoderConfig"]
