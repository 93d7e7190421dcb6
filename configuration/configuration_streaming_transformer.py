"""Configuration of the Streaming Transformer, which is no paper's: model_cards/streaming_transformer.md."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.derived_fields import NOT_GIVEN, Derived

BYTES = 384  # tokens of a vocabulary of bytes, at most (ByT5 has so many): a larger one has parts of words
MAX_NGRAM = 8  # longer ones hardly ever come back, and each is a row more to add up


@strict
class StreamingTransformerConfig(AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Streaming Transformer. Further fields are those of [`AdaptiveSoftmaxConfig`]; norms stand before
    the sub-layers: `norm_position` is always `"pre"`.

    Args:
        conv_kernel_size (`int`, *optional*, defaults to 4):
            Tokens that a convolution reads, the token itself included; 1 leaves a gain for each feature.
        ngram_orders (`list[int]`, *optional*):
            Lengths of the n-grams that have an embedding, in tokens; none with `[]`. When not given, `[2, 3]` for bytes (a
            vocabulary of at most 384 tokens), and `[]` for words and parts of words, where they cost bits.
        ngram_table_size (`int`, *optional*, defaults to 2048):
            Vectors of each length, which its n-grams share by a hash.
        rotary_base (`float`, *optional*, defaults to 1000.0):
            Pair m of the features of queries and keys turns by `rotary_base**(-2 m / head_dim)` radians per position.
        intermediate_size (`int`, *optional*, defaults to 1408):
            Inner width of the feed-forward, which has three matrices.
        hidden_act (`str`, *optional*, defaults to `"silu"`):
            Activation of the gate in the feed-forward.
        dropout (`float`, *optional*, defaults to 0.0):
            As in [`MemoryConfig`]; off, because a long text is read once.

    Example:

    ```python
    >>> from transformers_xl import StreamingTransformerConfig, StreamingTransformerForCausalLM

    >>> model = StreamingTransformerForCausalLM(StreamingTransformerConfig(vocab_size=259, hidden_size=256, mem_len=256))
    ```
    """

    model_type = "streaming_transformer"

    conv_kernel_size: int = 4
    ngram_orders: Derived[list[int] | tuple[int, ...]] = NOT_GIVEN
    ngram_table_size: int = 2048
    rotary_base: float | int = 1000.0
    intermediate_size: int = 1408
    hidden_act: str = "silu"
    dropout: float | int = 0.0

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.ngram_orders is None:
            self.ngram_orders = (2, 3) if self.vocab_size <= BYTES else ()
        orders = self.ngram_orders = list(self.ngram_orders)
        for name in ("conv_kernel_size", "ngram_table_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 1.")
        if orders != sorted(set(orders)) or any(not 2 <= order <= MAX_NGRAM for order in orders):
            raise ValueError(
                f"`ngram_orders`={orders} must rise from at least 2 to at most {MAX_NGRAM}: one token has the "
                "embedding of its word."
            )
        if not 1 < self.rotary_base < float("inf"):
            raise ValueError(f"`rotary_base`={self.rotary_base} must be a finite number above 1.")
        if self.head_dim % 2:
            raise ValueError(
                f"`head_dim`={self.head_dim} must be even: features turn in pairs. Give an even one, or another "
                "`num_attention_heads`."
            )
        if self.norm_position != "pre":
            raise ValueError(
                f"`norm_position`={self.norm_position!r} must be 'pre': a convolution reads what a norm has made."
            )

    @property
    def layer_mem_lens(self) -> list[int]:
        """With `same_length` one less than a token sees: itself needs no memory."""
        return [max(self.sliding_window - 1, 0)] * self.num_hidden_layers

    @property
    def layer_reaches(self) -> list[int]:
        """Each of two convolutions reads inputs before the window; those of the first layer hold n-grams."""
        reaches = [self.sliding_window + 2 * (self.conv_kernel_size - 1)] * self.num_hidden_layers
        return [reaches[0] + max([1, *self.ngram_orders]) - 1, *reaches[1:]]


__all__ = ["StreamingTransformerConfig"]
