"""Configuration of the Macaron Transformer (Lu et al., 2019, https://arxiv.org/abs/1906.02762)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig


@strict
class MacaronConfig(RelativeAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Macaron Transformer. All its fields are those of [`RelativeAttentionConfig`] and
    [`AdaptiveSoftmaxConfig`]; both feed-forwards of a layer have the inner width `intermediate_size`, so that half of
    it makes a layer of about the size of an ordinary one.
    """

    model_type = "macaron"


@strict
class MacaronEncoderConfig(WithoutMemoryConfig, MacaronConfig):
    """The same without memory, for an encoder: a token sees all of its text."""

    model_type = "macaron_encoder"


__all__ = ["MacaronConfig", "MacaronEncoderConfig"]
