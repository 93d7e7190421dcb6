"""Training on pairs: transformers' Seq2SeqTrainer, with evaluation figures that no size of a batch changes."""

from typing import Any, cast

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from transformers_xl.modeling.adapters import without_adapters
from transformers_xl.training.label_smoothing import check_smoothing, smoothed_labels
from transformers_xl.training.weighed_evaluation import TokenSums


class TranslationTrainer(Seq2SeqTrainer):
    """A `Seq2SeqTrainer` of our encoder-decoders, whose `evaluate()` gives every token of a target the same weight:
    `eval_loss` is in nats per token, with `eval_perplexity` and `eval_tokens`.

    The loss in transformers is the mean over batches: a short target counts more in a batch of its own than beside long
    ones. Its label smoothing would leave out what the loss of a decoder has beside the cross-entropy: here the
    cross-entropy alone is smoothed, in training.

    Raises:
        ValueError: the decoder has an adaptive softmax, whose targets are not smoothed.
    """

    def __init__(self, model: nn.Module, args: Seq2SeqTrainingArguments, **kwargs: Any):
        check_smoothing(without_adapters(model).decoder, args.label_smoothing_factor)
        super().__init__(cast(Any, model), args, **kwargs)
        self.label_smoother = None

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        whole = without_adapters(self.accelerator.unwrap_model(model, keep_torch_compile=False))
        with smoothed_labels(whole.decoder, self.args.label_smoothing_factor):
            return super().compute_loss(model, inputs, *args, **kwargs)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, torch.Tensor | None, torch.Tensor | None]:
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys, **gen_kwargs)
        self.token_sums.add(cast(torch.Tensor, loss), inputs["labels"])
        return loss, logits, labels

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        self.token_sums = TokenSums.of(self)
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        weighed = self.token_sums.metrics(self.accelerator, None).items()
        metrics = (output.metrics or {}) | {f"{metric_key_prefix}_{name}": value for name, value in weighed}
        return output._replace(metrics=metrics)


__all__ = ["TranslationTrainer"]
