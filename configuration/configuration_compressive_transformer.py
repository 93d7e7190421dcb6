"""Configuration of the Compressive Transformer (Rae et al., 2019, https://arxiv.org/abs/1911.05507)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig

COMPRESSIONS = ("conv", "mean", "max")


@strict
class CompressiveTransformerConfig(RelativeAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Compressive Transformer. Further fields are those of [`RelativeAttentionConfig`] and
    [`AdaptiveSoftmaxConfig`].

    Args:
        compressed_mem_len (`int`, *optional*, defaults to 512):
            Length of the compressed memory in compressed vectors (n_cm in the paper); each represents `compression_rate`
            tokens.
        compression_rate (`int`, *optional*, defaults to 3):
            Number of positions per compressed vector (c in the paper).
        compression_function (`str`, *optional*, defaults to `"conv"`):
            `"conv"`, a convolution whose kernel and stride are `compression_rate`; `"mean"` or `"max"` of the positions.
        reconstruction_loss_coef (`float`, *optional*, defaults to 1.0):
            Weight of the attention-reconstruction loss in the training loss. Only the convolution learns from it, and it
            learns from nothing else.
    """

    model_type = "compressive_transformer"

    compressed_mem_len: int = 512
    compression_rate: int = 3
    compression_function: str = "conv"
    reconstruction_loss_coef: float | int = 1.0

    def validate_architecture(self) -> None:
        super().validate_architecture()
        for name in ("compressed_mem_len", "compression_rate"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}`={getattr(self, name)} must be at least 1; for a model without compressed memory use "
                    "TransformerXL."
                )
        if self.mem_len < 1:
            raise ValueError(f"`mem_len`={self.mem_len} must be at least 1: what leaves the memory is compressed.")
        if self.compression_function not in COMPRESSIONS:
            raise ValueError(f"`compression_function`={self.compression_function!r} must be one of {COMPRESSIONS}.")
        if self.reconstruction_loss_coef < 0:
            raise ValueError(
                f"`reconstruction_loss_coef`={self.reconstruction_loss_coef} must not be negative; 0 leaves the "
                "convolution as it is."
            )

    @property
    def sliding_window(self) -> int:
        """Positions that a token sees, itself included, or sees compressed, when it stands right after full memories."""
        return super().sliding_window + self.compression_rate * self.compressed_mem_len

    @property
    def layer_mem_lens(self) -> list[int]:
        """The window, and fewer than `compression_rate` positions that have left it and are not compressed yet."""
        return [self.mem_len + self.compression_rate - 1] * self.num_hidden_layers

    @property
    def layer_reaches(self) -> list[int]:
        """The window grows by these positions before they are compressed."""
        return [window + self.compression_rate - 1 for window in self.layer_windows]


__all__ = ["CompressiveTransformerConfig"]
