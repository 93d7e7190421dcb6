"""Configuration of Transformer-XL (Dai et al., 2019, https://arxiv.org/abs/1901.02860)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_memory import MemoryConfig


@strict
class TransformerXLConfig(MemoryConfig):
    r"""
    Configuration of Transformer-XL. All its fields are those of [`MemoryConfig`].

    Differs from the original: `same_length` is `True` and `norm_position` is `"pre"` by default, where the original
    trains with `same_length=False` and post-norm.

    Example:

    ```python
    >>> from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM

    >>> model = TransformerXLForCausalLM(TransformerXLConfig(vocab_size=259, hidden_size=256, mem_len=256))
    ```
    """

    model_type = "transformer_xl"


__all__ = ["TransformerXLConfig"]
