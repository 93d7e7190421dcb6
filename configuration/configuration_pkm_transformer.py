"""Configuration of the Transformer with product-key memory (Lample et al., 2019, https://arxiv.org/abs/1907.05242)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig
from transformers_xl.configuration.derived_fields import NOT_GIVEN, Derived


@strict
class PKMTransformerConfig(RelativeAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Transformer with product-key memory. Further fields are those of [`RelativeAttentionConfig`]
    and [`AdaptiveSoftmaxConfig`].

    Args:
        memory_layers (`list[int]`, *optional*):
            Layers whose feed-forward is a memory, counted from 0; the middle one when not given.
        num_memory_keys (`int`, *optional*, defaults to 128):
            Keys of each half (`n_keys` in the authors' code). The memory has the square of it as slots.
        memory_key_dim (`int`, *optional*, defaults to 128):
            Width of a query, and of the two halves of a key together (`k_dim`).
        memory_heads (`int`, *optional*, defaults to 4):
            Queries per token, each with its own keys; they share the values.
        memory_topk (`int`, *optional*, defaults to 32):
            Slots that each query reads (`knn`).
        query_batch_norm (`bool`, *optional*, defaults to `True`):
            Whether queries are normalised over the batch, which spreads them over the keys (section 4.5).
        sparse_values (`bool`, *optional*, defaults to `False`):
            Whether the values get sparse gradients, which `torch.optim.SparseAdam` needs and other optimizers refuse.
    """

    model_type = "pkm_transformer"

    memory_layers: Derived[list[int]] = NOT_GIVEN
    num_memory_keys: int = 128
    memory_key_dim: int = 128
    memory_heads: int = 4
    memory_topk: int = 32
    query_batch_norm: bool = True
    sparse_values: bool = False

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.memory_layers is None:
            self.memory_layers = [self.num_hidden_layers // 2]
        for layer in self.memory_layers:
            if not 0 <= layer < self.num_hidden_layers:
                raise ValueError(
                    f"`memory_layers`={self.memory_layers} must be layers of the model, 0..{self.num_hidden_layers - 1}."
                )
        for name in ("num_memory_keys", "memory_heads", "memory_topk"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 1.")
        if self.memory_topk > self.num_memory_keys:
            raise ValueError(
                f"`memory_topk`={self.memory_topk} must be at most `num_memory_keys`={self.num_memory_keys}: as many "
                "keys are selected in each half."
            )
        if self.memory_key_dim < 2 or self.memory_key_dim % 2:
            raise ValueError(f"`memory_key_dim`={self.memory_key_dim} must be even: a key has two halves.")


@strict
class PKMTransformerEncoderConfig(WithoutMemoryConfig, PKMTransformerConfig):
    """Configuration of the encoder, whose tokens see both ways: the fields of [`PKMTransformerConfig`], without memory."""

    model_type = "pkm_transformer_encoder"


__all__ = ["PKMTransformerConfig", "PKMTransformerEncoderConfig"]
