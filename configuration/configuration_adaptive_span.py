"""Configuration of the Transformer with adaptive attention span (Sukhbaatar et al., 2019, https://arxiv.org/abs/1905.07799)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.derived_fields import NOT_GIVEN, Derived


@strict
class AdaptiveSpanConfig(AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Transformer with adaptive attention span. Further fields are those of
    [`AdaptiveSoftmaxConfig`]. A token sees positions before it and never itself, whatever `same_length` is; positions
    are learned.

    Args:
        max_span (`int`, *optional*):
            Upper bound of the learned spans, in positions before a token (S in the paper, `attn_span` in its code).
            `mem_len` when not given, or `segment_length` for a model without memory. If `mem_len` is smaller, a token sees
            no more than `mem_len`.
        span_ramp (`int`, *optional*, defaults to 32):
            Positions over which the mask of a head falls from one to zero (R, `adapt_span_ramp`).
        span_loss_coef (`float`, *optional*, defaults to 2e-6):
            Weight of the spans in the training loss, in nats per position (`adapt_span_loss`).
        initial_span (`float`, *optional*, defaults to 0.0):
            Initial span of every head, as a share of `max_span`, 0..1 (`adapt_span_init`).
        layer_spans (`list[int]`, *optional*):
            Positions before a token that each layer reads and keeps, `max_span` when not given. `model.trim_spans()` sets
            it from what the heads have learned.
    """

    model_type = "adaptive_span"
    attribute_map = AdaptiveSoftmaxConfig.attribute_map | {
        "attn_span": "max_span",
        "adapt_span_ramp": "span_ramp",
        "adapt_span_loss": "span_loss_coef",
        "adapt_span_init": "initial_span",
    }

    max_span: Derived[int] = NOT_GIVEN
    span_ramp: int = 32
    span_loss_coef: float | int = 2e-6
    initial_span: float | int = 0.0
    layer_spans: list[int] | None = None

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.max_span is None:
            self.max_span = self.mem_len or self.segment_length
        for name in ("max_span", "span_ramp"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 1.")
        if self.span_loss_coef < 0:
            raise ValueError(
                f"`span_loss_coef`={self.span_loss_coef} must not be negative; 0 turns the span loss off."
            )
        if not 0 <= self.initial_span <= 1:
            raise ValueError(f"`initial_span`={self.initial_span} must be a share of `max_span`, 0..1.")
        spans = self.layer_spans
        if spans is not None and not (
            len(spans) == self.num_hidden_layers and all(1 <= span <= self.max_span for span in spans)
        ):
            raise ValueError(
                f"`layer_spans`={spans} must hold, for each of `num_hidden_layers`={self.num_hidden_layers}, a span of "
                f"1..{self.max_span} (`max_span`): leave it to `model.trim_spans()`."
            )

    @property
    def layer_windows(self) -> list[int]:
        """What each layer reads, and the token itself, which it does not see."""
        return [min(span, self.mem_len or span) + 1 for span in self._spans()]

    @property
    def layer_mem_lens(self) -> list[int]:
        return [min(span, self.mem_len) for span in self._spans()]

    @property
    def sliding_window(self) -> int:
        return max(self.layer_windows)

    def _spans(self) -> list[int]:
        return self.layer_spans or [self.max_span or self.mem_len] * self.num_hidden_layers


__all__ = ["AdaptiveSpanConfig"]
