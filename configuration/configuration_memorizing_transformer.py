"""Configuration of the Memorizing Transformer (Wu et al., 2022, https://arxiv.org/abs/2203.08913)."""

from typing import Any

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_local_attention import LocalAttentionConfig
from transformers_xl.configuration.derived_fields import NOT_GIVEN, Derived


@strict
class MemorizingTransformerConfig(LocalAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Memorizing Transformer. Further fields are those of [`LocalAttentionConfig`] and
    [`AdaptiveSoftmaxConfig`].

    Args:
        memory_layers (`list[int]`, *optional*):
            Indices of the layers that remember keys, counted from 0. When not given: one layer at three quarters of the
            depth (in the paper the ninth of twelve).
        num_memory_keys (`int`, *optional*, defaults to 8192):
            Number of tokens of a text whose keys and values each of these layers remembers, in addition to those of the
            open block. The oldest are forgotten first.
        num_retrieved (`int`, *optional*, defaults to 32):
            Number of nearest keys that a head looks up for each token (k in the paper).
        block_length (`int`, *optional*, defaults to 512):
            Tokens in a block, counted from the beginning of a text (a segment in the paper). The keys of a block can be
            looked up when it is complete. With a block longer than `mem_len`, its first tokens are out of sight until then.
        attend_to_empty (`bool`, *optional*, defaults to `False`):
            `True`, as in the original code: while fewer than `num_retrieved` keys are found, zeros take the place of the
            others, with score 0.
        segment_length (`int`, *optional*, defaults to 512):
            Tokens in a training segment.
    """

    model_type = "memorizing_transformer"

    memory_layers: Derived[list[int] | tuple[int, ...]] = NOT_GIVEN
    num_memory_keys: int = 8192
    num_retrieved: int = 32
    block_length: int = 512
    attend_to_empty: bool = False
    segment_length: int = 512

    def __post_init__(self, **kwargs: Any):
        num_layers = kwargs.get("n_layer", self.num_hidden_layers)
        if self.memory_layers is not None:
            self.memory_layers = list(self.memory_layers)
        elif isinstance(num_layers, int):  # else the base class names the field and its type
            self.memory_layers = [(3 * num_layers + 3) // 4 - 1]
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        super().validate_architecture()
        for name in ("num_memory_keys", "num_retrieved", "block_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 1.")
        if self.num_retrieved > self.num_memory_keys:
            raise ValueError(
                f"`num_retrieved`={self.num_retrieved} must be at most `num_memory_keys`={self.num_memory_keys}: a head "
                "cannot look up more keys than a layer remembers."
            )
        layers = list(self.memory_layers or ())
        if not layers or sorted(set(layers) & set(range(self.num_hidden_layers))) != sorted(layers):
            raise ValueError(
                f"`memory_layers`={layers} must list at least one layer of 0..{self.num_hidden_layers - 1}, each once."
            )

    @property
    def layer_reaches(self) -> list[int]:
        looked_up = self.num_memory_keys + self.block_length  # from the last token of an open block
        return [
            looked_up if self.has_retrieval(layer_idx) else window
            for layer_idx, window in enumerate(self.layer_windows)
        ]

    def has_retrieval(self, layer_idx: int) -> bool:
        """Whether a layer looks up keys that it remembers."""
        return layer_idx in (self.memory_layers or ())


__all__ = ["MemorizingTransformerConfig"]
