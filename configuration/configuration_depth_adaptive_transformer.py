"""Configuration of the Depth-adaptive Transformer (Elbayad et al., 2020, https://arxiv.org/abs/1910.10073)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig

EXIT_TRAINING = ("aligned", "mixed")
EXIT_LOSS_WEIGHTS = ("uniform", "linear", "inverse")
HALTING = ("sequence", "multinomial", "geometric")
HALTING_ORACLES = ("likelihood", "correctness")


@strict
class DepthAdaptiveTransformerConfig(RelativeAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Depth-adaptive Transformer. Further fields are those of [`RelativeAttentionConfig`] and
    [`AdaptiveSoftmaxConfig`]. With neither `confidence_thresholds` nor `exit_by_halting`, every token passes all
    layers; both may be changed after training.

    Args:
        shared_classifier (`bool`, *optional*, defaults to `True`):
            Whether the language modeling head predicts after every layer, or each layer but the last has its own
            classifier.
        exit_training (`str`, *optional*, defaults to `"aligned"`):
            What training minimises: `"aligned"`, the losses of all layers, each over the outputs of the layer below;
            `"mixed"`, the loss of tokens that exit after random layers, so that tokens see copied states.
        exit_loss_weights (`str`, *optional*, defaults to `"uniform"`):
            Weight of the loss of layer n in aligned training: 1 (`"uniform"`), n (`"linear"`) or 1/n (`"inverse"`).
        num_exit_paths (`int`, *optional*, defaults to 1):
            How many times mixed training reads a segment, each time with other random layers.
        halting (`str`, *optional*):
            How the exit layer of a token is learned: `"sequence"`, one choice of the layer from the mean embedding, in the
            decoder of a translator from the mean of the encoder's output; `"multinomial"`, a choice per token from the
            output of the first layer; `"geometric"`, a choice per token and layer to exit or continue. None: not learned.
        halting_oracle (`str`, *optional*, defaults to `"likelihood"`):
            Target of halting: the layer with the best log-likelihood (`"likelihood"`) or the most correct predictions
            (`"correctness"`), minus a penalty for depth.
        halting_loss_weight (`float`, *optional*, defaults to 0.1):
            Weight of the loss of halting (alpha in the paper).
        oracle_penalty (`float`, *optional*, defaults to 0.05):
            Penalty of the oracle per layer (lambda): in nats, or in correct predictions.
        oracle_sigma (`float`, *optional*, defaults to 1.0):
            Width of the kernel exp(-distance^2 / sigma) by which the oracle of a token counts its neighbours, in squared
            positions.
        confidence_thresholds (`float` or `list[float]`, *optional*):
            In evaluation and `generate()`, a token exits after the first layer whose largest probability reaches its
            threshold: one number for all layers but the last, or one for each. Above 1: never.
        exit_by_halting (`bool`, *optional*, defaults to `False`):
            Whether tokens exit where `halting` says, in evaluation and `generate()`.
    """

    model_type = "depth_adaptive_transformer"
    keys_to_ignore_at_inference = [*AdaptiveSoftmaxConfig.keys_to_ignore_at_inference, "exit_layers"]

    shared_classifier: bool = True
    exit_training: str = "aligned"
    exit_loss_weights: str = "uniform"
    num_exit_paths: int = 1
    halting: str | None = None
    halting_oracle: str = "likelihood"
    halting_loss_weight: float | int = 0.1
    oracle_penalty: float | int = 0.05
    oracle_sigma: float | int = 1.0
    confidence_thresholds: float | int | list[float | int] | None = None
    exit_by_halting: bool = False

    def validate_architecture(self) -> None:
        super().validate_architecture()
        for name, choices in (
            ("exit_training", EXIT_TRAINING),
            ("exit_loss_weights", EXIT_LOSS_WEIGHTS),
            ("halting", (None, *HALTING)),
            ("halting_oracle", HALTING_ORACLES),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}`={getattr(self, name)!r} must be one of {choices}.")
        if self.num_exit_paths < 1:
            raise ValueError(f"`num_exit_paths`={self.num_exit_paths} must be at least 1.")
        for name in ("halting_loss_weight", "oracle_penalty"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}`={getattr(self, name)} must not be negative.")
        if self.oracle_sigma <= 0:
            raise ValueError(f"`oracle_sigma`={self.oracle_sigma} must be above 0; a small value ignores neighbours.")
        if self.halting is not None and self.num_hidden_layers == 1:
            raise ValueError(f"`halting`={self.halting!r} chooses a layer: give `num_hidden_layers` of at least 2.")
        if self.halting is not None and self.halting_oracle == "correctness" and self.is_adaptive:
            raise ValueError(
                "`halting_oracle`='correctness' needs the most likely word of every token, which an adaptive softmax "
                "(`cutoffs`, `div_val`, `embedding_size`) does not compute in training: use `halting_oracle='likelihood'`."
            )
        self.exits_early()

    def exits_early(self) -> bool:
        """Whether tokens leave before the last layer in evaluation. A `ValueError` where the fields do not say how."""
        thresholds = self.confidence_thresholds
        if self.exit_by_halting and (self.halting is None or thresholds is not None):
            raise ValueError(
                f"`exit_by_halting`=True with `halting`={self.halting!r} and `confidence_thresholds`={thresholds}: set "
                "`halting`, and leave `confidence_thresholds` out."
            )
        if isinstance(thresholds, list) and len(thresholds) != self.num_hidden_layers - 1:
            raise ValueError(
                f"`confidence_thresholds`={thresholds} must be one number, or one for each layer but the last: "
                f"{self.num_hidden_layers - 1}."
            )
        if thresholds is not None and min(thresholds if isinstance(thresholds, list) else [thresholds], default=0) < 0:
            raise ValueError(f"`confidence_thresholds`={thresholds} must not be negative: they are probabilities.")
        return self.exit_by_halting or thresholds is not None


@strict
class DepthAdaptiveTransformerEncoderConfig(WithoutMemoryConfig, DepthAdaptiveTransformerConfig):
    """The same without memory, for an encoder: a token sees all of its text."""

    model_type = "depth_adaptive_transformer_encoder"


__all__ = ["DepthAdaptiveTransformerConfig", "DepthAdaptiveTransformerEncoderConfig"]
