"""Training that remembers: transformers' Trainer, with one memory that is carried from segment to segment."""

from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, PreTrainedModel, TrainingArguments, default_data_collator
from transformers.trainer_utils import EvalLoopOutput

from transformers_xl.modeling.adapters import check_prompt_learning, without_adapters
from transformers_xl.modeling.heads import MemoryForCausalLM
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.modeling_segment_memory import SegmentMemoryForCausalLM
from transformers_xl.training.arguments import MemoryTrainingArguments, check_arguments
from transformers_xl.training.averaging import averaging_of, check_averaging
from transformers_xl.training.callbacks import SavingAfterEpoch, SpanTrimming, TrainingProgress
from transformers_xl.training.label_smoothing import check_smoothing, smoothed_labels
from transformers_xl.training.memory_state import match_rows
from transformers_xl.training.memory_warmup import check_warmups, warmups_of
from transformers_xl.training.muon import MuonAndAdamW, matrices_of_layers
from transformers_xl.training.optimizers import check_optimizer, check_precision, optimizer_and_kwargs
from transformers_xl.training.parameter_groups import check_groups, decayed_names, move_groups
from transformers_xl.training.pushing import CheckpointPushes, HubPushes
from transformers_xl.training.resuming import ResumableTrainer
from transformers_xl.training.rows import check_best_metric, check_dataset, datasets_of
from transformers_xl.training.unfinished_warmups import UnfinishedWarmups
from transformers_xl.training.weighed_evaluation import TokenSums


class MemoryTrainer(HubPushes, ResumableTrainer):
    """A `Trainer` whose model reads each batch with the memory of the batch before.

    Row `b` of a batch continues row `b` of the batch before, as in a [`~transformers_xl.data.text_stream.TextStream`]
    with `lanes` = batch size per process x processes. A row whose `reset` is true begins without memory. So does every
    epoch, evaluation and prediction; evaluation and prediction keep a separate memory. If batches have `shift_labels`,
    `evaluate()` gives every token the same weight: `eval_loss` is in nats per token, with `eval_perplexity` and
    `eval_tokens`. If the stream has `counts`, there are also bits per byte and per character, and perplexity per whitespace
    word.

    `memory` holds the memories, under `"train"` and `"eval"`. Checkpoints hold it too: a killed and resumed training
    continues as if nothing had happened (docs/training.md).

    Raises:
        ValueError: an argument would break the order of rows or be ignored, the number of rows in a batch is not that of
            the memory, or weights in half precision would be trained.
    """

    def __init__(self, model: nn.Module | None = None, args: TrainingArguments | None = None, **kwargs: Any):
        args = MemoryTrainingArguments() if args is None else args
        check_arguments(args)
        if kwargs.get("data_collator") is None:
            # the default for a tokenizer pads, and would add a mask to segments that are all full
            kwargs["data_collator"] = default_data_collator
        check_dataset("train_dataset", kwargs.get("train_dataset"), args.train_batch_size, args, training=True)
        for dataset in datasets_of(kwargs.get("eval_dataset")):
            check_dataset("eval_dataset", dataset, args.eval_batch_size, args, training=False)
        check_best_metric(args.metric_for_best_model, kwargs.get("eval_dataset"))
        check_groups(model, args)
        check_optimizer(args)
        is_trained = kwargs.get("train_dataset") is not None
        check_precision(model if is_trained else None)
        check_averaging(args)
        check_warmups(model, args)
        check_smoothing(model, args.label_smoothing_factor)
        check_prompt_learning(model, with_memory=True)
        self.memory: dict[str, Memory] = {}
        self.token_sums = TokenSums(args.device)
        super().__init__(model, args, **kwargs)
        # that of `model_init`
        check_precision(self.model if is_trained else None)
        check_smoothing(self.model, args.label_smoothing_factor)
        check_prompt_learning(self.model, with_memory=True)
        self.label_smoother = None  # ours knows shifted labels
        self._labels_of_model = self.label_names
        self.add_callback(TrainingProgress)
        self.add_callback(SpanTrimming)
        for warmup in warmups_of(args):
            self.add_callback(warmup)
        self.add_callback(UnfinishedWarmups)
        averaging = averaging_of(args)
        self.weight_average = None if averaging is None else averaging.average
        if averaging is not None:  # after the callbacks that change weights after a step
            self.add_callback(averaging)
        patience = getattr(args, "early_stopping_patience", None)
        if patience is not None:
            self.add_callback(EarlyStoppingCallback(patience))
        self.add_callback(SavingAfterEpoch)
        self.add_callback(CheckpointPushes(self))

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: PreTrainedModel | None = None) -> tuple[Any, Any]:
        if getattr(args, "optimizer", None) is None:
            return ResumableTrainer.get_optimizer_cls_and_kwargs(args, model)
        return optimizer_and_kwargs(args)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is not None:
            return self.optimizer
        check_precision(self.model if model is None else model)  # again: `bf16_full_eval` casts what it evaluates
        optimizer = super().create_optimizer(model)
        model = self.model if model is None else model
        if isinstance(optimizer, MuonAndAdamW):
            optimizer.use_muon(matrices_of_layers(self.accelerator.unwrap_model(model, keep_torch_compile=False)))
        move_groups(optimizer, model, self.args)
        return optimizer

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return decayed_names(model, super().get_decay_parameter_names(model))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        if not return_outputs and self.compute_loss_func is None:
            inputs = self.without_logits(inputs)
        reader: Any = partial(self.read, model)
        return super().compute_loss(reader, dict(inputs), return_outputs, num_items_in_batch)

    def without_logits(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """`inputs` for a loss alone: a language model of this package then makes logits of a few tokens at a time."""
        language_model = without_adapters(self.accelerator.unwrap_model(self.model, keep_torch_compile=False))
        has_few = isinstance(language_model, (MemoryForCausalLM, SegmentMemoryForCausalLM))
        return inputs | {"logits_to_keep": 1} if has_few and "logits_to_keep" not in inputs else inputs

    def read(self, model: nn.Module, **inputs: Any) -> Any:
        """The output of `model` for a batch, read with the memory of the batch before, which it replaces."""
        mode = "train" if model.training else "eval"
        if model.training and "input_ids" in inputs:
            self.trained_tokens += inputs["input_ids"].numel()
        memory = self.memory.get(mode)
        reset = inputs.pop("reset", None)
        if reset is not None and reset.dim() == 1 and reset.all():
            # no memory, rather than one that is masked everywhere: an epoch begins without the cost of a full memory
            memory = None
        elif reset is not None and reset.any():
            inputs["reset"] = reset
        if memory is not None:
            inputs["mems"] = match_rows(memory, inputs, last_batch_may_be_smaller=self.args.world_size == 1)
        with smoothed_labels(
            self.accelerator.unwrap_model(model, keep_torch_compile=False), self.args.label_smoothing_factor
        ):
            outputs = model(**inputs)
        if not hasattr(outputs, "mems"):
            raise ValueError(
                f"`model` is a {type(self.model).__name__}, which returns no `mems`: use `transformers.Trainer`."
            )
        self.memory.pop(mode, None)
        if outputs.mems is not None:
            self.memory[mode] = outputs.mems
        return outputs

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        if self.args.label_names is None:
            # what the loss is taken of: metrics compare predictions with their own targets
            self.label_names = ["shift_labels"] if "shift_labels" in inputs else self._labels_of_model
        if not all(inputs.get(name) is not None for name in self.label_names):
            reader: Any = partial(self.read, model)
            model = reader  # transformers calls the model itself, where it takes no loss
        given = self.without_logits(inputs) if prediction_loss_only else inputs
        loss, logits, labels = super().prediction_step(model, given, prediction_loss_only, ignore_keys)
        if loss is not None and "shift_labels" in inputs:
            self.token_sums.add(loss, inputs["shift_labels"])
        return loss, logits, labels

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        self.memory.pop("eval", None)
        self.token_sums = TokenSums.of(self)
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        average, model = self.weight_average, cast(nn.Module, self.model)
        try:
            # the seed of a loader comes out of the generator that dropout uses: an evaluation leaves no trace in training
            with torch.random.fork_rng(devices), average.swapped_in(model) if average else nullcontext():
                output = super().evaluation_loop(
                    dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
                )
                counts = getattr(dataloader.dataset, "counts", None)
                weighed = self.token_sums.metrics(self.accelerator, counts).items()
                metrics = (output.metrics or {}) | {f"{metric_key_prefix}_{name}": value for name, value in weighed}
                return output._replace(metrics=metrics)
        finally:
            self.memory.pop("eval", None)


__all__ = ["MemoryTrainer", "MemoryTrainingArguments", "SpanTrimming", "TrainingProgress"]
