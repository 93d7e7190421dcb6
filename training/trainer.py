"""Training that remembers: transformers' Trainer, with one memory that is carried from segment to segment."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import TrainerCallback, TrainingArguments, default_data_collator
from transformers.trainer_utils import EvalLoopOutput

from transformers_xl.modeling.layers.product_key_memory import ProductKeyMemory
from transformers_xl.training.pushing import HubPushes


@dataclass
class MemoryTrainingArguments(TrainingArguments):
    """`TrainingArguments` with the defaults that a stream of consecutive segments needs: its order is kept, a batch that
    would not fill all rows is dropped, and every column of the stream reaches the model.

    `value_learning_rate` is the peak learning rate of the values of product-key memories, which few tokens reach each;
    `learning_rate` when not given. The schedule is that of all parameters.
    """

    train_sampling_strategy: str = "sequential"
    dataloader_drop_last: bool = True
    remove_unused_columns: bool = False
    value_learning_rate: float | None = None


class Memory(NamedTuple):
    """What a batch remembers: `mems`, batch first and detached, and the real positions of attention memories
    `(batch, <=mem_len)` bool, None when all are."""

    mems: tuple[torch.Tensor, ...]
    mems_mask: torch.Tensor | None


class TrainingProgress(TrainerCallback):
    """Tells a model which share of its training is over, where it has a `training_progress`: its losses have a schedule."""

    def on_step_begin(self, args, state, control, model: nn.Module | None = None, **kwargs) -> None:
        if model is not None and hasattr(model, "training_progress"):
            model.training_progress = state.global_step / max(1, state.max_steps)


class SpanTrimming(TrainerCallback):
    """Lets the layers of a model with adaptive span keep no more than their heads see, after every step."""

    def on_step_end(self, args, state, control, model: nn.Module | None = None, **kwargs) -> None:
        trim_spans = getattr(model, "trim_spans", None)
        if trim_spans is not None:
            trim_spans()


class MemoryTrainer(HubPushes):
    """A `Trainer` whose model reads each batch with the memory of the batch before.

    Row `b` of a batch continues row `b` of the batch before, as [`~transformers_xl.streams.text_stream.TextStream`] deals
    them with `lanes` = batch size per process x processes. A row whose `reset` is true starts afresh; so does every
    evaluation and prediction, whose memory is kept apart from that of training. The evaluation loss is the library's: the
    mean over batches of their mean loss per token, in nats, in which a padded last segment counts like a full one
    (`transformers_xl.evaluation` weighs every token alike).

    `memory` holds the memories, under `"train"` and `"eval"`.

    Raises:
        ValueError: an argument would tear rows out of their order, or the rows of a batch are not those of the memory.
    """

    def __init__(self, model: nn.Module | None = None, args: TrainingArguments | None = None, **kwargs: Any):
        args = MemoryTrainingArguments() if args is None else args
        _check_arguments(args)
        if kwargs.get("data_collator") is None:
            # the default for a tokenizer pads, and would add a mask to segments that are all full
            kwargs["data_collator"] = default_data_collator
        _check_lanes("train_dataset", kwargs.get("train_dataset"), args.train_batch_size, args.world_size)
        for dataset in _datasets(kwargs.get("eval_dataset")):
            _check_lanes("eval_dataset", dataset, args.eval_batch_size, args.world_size)
        _check_values(model, args)
        super().__init__(model, args, **kwargs)
        self.add_callback(TrainingProgress)
        self.add_callback(SpanTrimming)
        if args.label_names is None:
            self.label_names = ["shift_labels"]
        self.memory: dict[str, Memory] = {}

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is not None:
            return self.optimizer
        optimizer = super().create_optimizer(model)
        rate = getattr(self.args, "value_learning_rate", None)
        if rate is not None:
            values = {memory.values.weight for memory in _memories(self.model if model is None else model)}
            for group in list(optimizer.param_groups):
                moved = [parameter for parameter in group["params"] if parameter in values]
                if moved:
                    group["params"] = [parameter for parameter in group["params"] if parameter not in values]
                    optimizer.add_param_group({**group, "params": moved, "lr": rate})
        return optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        mode = "train" if model.training else "eval"
        memory = self.memory.get(mode)
        inputs = dict(inputs)
        reset = inputs.pop("reset", None)
        if reset is not None and reset.dim() == 1 and reset.all():
            # no memory, rather than one that is masked everywhere: an epoch begins without the cost of a full memory
            memory = None
        elif reset is not None and reset.any():
            inputs["reset"] = reset
        if memory is not None:
            _check_rows(memory, inputs)
            inputs |= memory._asdict()
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if not hasattr(outputs, "mems"):
            raise ValueError(
                f"`model` is a {type(self.model).__name__}, which returns no `mems`: use `transformers.Trainer`."
            )
        self.memory.pop(mode, None)
        if outputs.mems is not None:
            self.memory[mode] = Memory(outputs.mems, outputs.mems_mask)
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, dataloader: DataLoader, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        _check_lanes("eval_dataset", dataloader.dataset, self.args.eval_batch_size, self.args.world_size)
        self.memory.pop("eval", None)
        try:
            return super().evaluation_loop(dataloader, *args, **kwargs)
        finally:
            self.memory.pop("eval", None)


def _check_arguments(args: TrainingArguments) -> None:
    """Refuse what would tear the rows of consecutive batches apart, or drop a column that the model needs."""
    split_batches = getattr(args.accelerator_config, "split_batches", False)
    refused = [
        ("train_sampling_strategy", args.train_sampling_strategy, "sequential", "segments must come in their order"),
        ("dataloader_drop_last", args.dataloader_drop_last, True, "every batch must fill all rows of the memory"),
        (
            "remove_unused_columns",
            args.remove_unused_columns,
            False,
            "`reset` and `shift_labels` must reach the model",
        ),
        ("auto_find_batch_size", args.auto_find_batch_size, False, "rows of the memory cannot change in number"),
        ("label_smoothing_factor", args.label_smoothing_factor, 0.0, "the library's smoothing ignores `shift_labels`"),
        ("accelerator_config.split_batches", split_batches, False, "it deals a row to another process"),
    ]
    for name, value, required, reason in refused:
        if value != required:
            raise ValueError(
                f"`{name}`={value!r} does not work with a memory that is carried from batch to batch ({reason}): set "
                f"`{name}={required!r}`, as `MemoryTrainingArguments` does."
            )
    if args.n_gpu > 1:
        raise ValueError(
            f"`n_gpu`={args.n_gpu} in one process would spread the rows of a memory over devices (DataParallel): start one "
            f"process per device with `torchrun --nproc_per_node {args.n_gpu}`, or set `CUDA_VISIBLE_DEVICES=0`."
        )


def _memories(model: nn.Module | None) -> list[ProductKeyMemory]:
    return [] if model is None else [module for module in model.modules() if isinstance(module, ProductKeyMemory)]


def _check_values(model: nn.Module | None, args: TrainingArguments) -> None:
    rate, memories = getattr(args, "value_learning_rate", None), _memories(model)
    if rate is not None and rate <= 0:
        raise ValueError(f"`value_learning_rate`={rate} must be above 0; leave it out for `learning_rate`.")
    if rate is not None and model is not None and not memories:
        raise ValueError(
            f"`value_learning_rate`={rate} is that of product-key memories, and `model` has none: leave it out."
        )
    if any(memory.values.sparse for memory in memories):
        raise ValueError(
            "`sparse_values`=True makes sparse gradients, which the Trainer's optimizers and its gradient clipping refuse: "
            "set `sparse_values=False`, or train in a loop of your own with `torch.optim.SparseAdam`."
        )


def _datasets(datasets: Dataset | dict[str, Dataset] | None) -> Iterable[Dataset | None]:
    return datasets.values() if isinstance(datasets, dict) else [datasets]


def _check_lanes(name: str, dataset: Dataset | None, batch_size: int, processes: int) -> None:
    lanes = getattr(dataset, "lanes", None)
    if lanes is not None and lanes != batch_size * processes:
        raise ValueError(
            f"`{name}` has `lanes`={lanes}, but a batch holds {batch_size} rows in each of {processes} processes: build it "
            f"with `lanes={batch_size * processes}`, or change the batch size per device."
        )


def _check_rows(memory: Memory, inputs: dict[str, Any]) -> None:
    remembered, rows = (
        len(memory.mems[0]),
        len(inputs["input_ids"] if "input_ids" in inputs else inputs["inputs_embeds"]),
    )
    if remembered != rows:
        raise ValueError(
            f"`input_ids` has a batch of {rows} rows, but the memory has {remembered}: make the length of the dataset a "
            "multiple of the batch size, or set `reset` to true where the number of rows changes."
        )


__all__ = ["Memory", "MemoryTrainer", "MemoryTrainingArguments", "SpanTrimming", "TrainingProgress"]
