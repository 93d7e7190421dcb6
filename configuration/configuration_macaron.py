"""Configuration of the Macaron Transformer (Lu et al., 2019, https://arxiv.org/abs/1906.02762)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_memory import MemoryConfig


@strict
class MacaronConfig(MemoryConfig):
    r"""
    Configuration of the Macaron Transformer. All its fields are those of [`MemoryConfig`]; both feed-forwards of a layer
    have the inner width `intermediate_size`, so that half of it makes a layer of about the size of an ordinary one.
    """

    model_type = "macaron"


__all__ = ["MacaronConfig"]
