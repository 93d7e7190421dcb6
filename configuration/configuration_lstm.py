"""Configuration of the LSTM that `compare` trains beside the variants."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig


@strict
class LSTMConfig(AdaptiveSoftmaxConfig):
    """Configuration of a stack of LSTMs. Fields are those of [`AdaptiveSoftmaxConfig`]; `intermediate_size` is the width of
    the cells, at least `hidden_size`. `mem_len` above 0 says that the state is carried over; it has no length."""

    model_type = "lstm"

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.intermediate_size < self.hidden_size:
            raise ValueError(
                f"`intermediate_size`={self.intermediate_size} must be at least `hidden_size`={self.hidden_size}: cells "
                "are projected to a smaller width, not to a larger one."
            )


__all__ = ["LSTMConfig"]
