"""Arguments of a training with memory: `TrainingArguments` with other defaults, and checks of what cannot work."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import EnumType
from typing import Any, cast

import torch
from transformers import TrainingArguments, get_scheduler
from transformers.trainer_utils import HubStrategy, IntervalStrategy, SaveStrategy, SchedulerType
from transformers.training_args import OptimizerNames
from transformers.utils.logging import log_levels

# field -> the one value that works, and why the others do not
REQUIRED = {
    "train_sampling_strategy": ("sequential", "segments must come in their order"),
    "remove_unused_columns": (False, "`reset` and `shift_labels` must reach the model"),
    "auto_find_batch_size": (False, "rows of the memory cannot change in number"),
    "dataloader_in_order": (True, "segments must come in their order"),
    "ignore_data_skip": (False, "a stored memory belongs to the segment that follows it"),
    "enable_jit_checkpoint": (
        False,
        "it may save after a batch is read and before its step, when the memory is ahead",
    ),
    "use_cache": (False, "training carries `mems`; a cache of keys and values is for generation"),
    "use_liger_kernel": (False, "Liger has no kernels for these models"),
    "parallelism_config": (None, "a row or a layer would be cut over devices: only DDP and FSDP2 keep rows whole"),
    "deepspeed": (None, "its engine casts, shards and saves by itself, and its checkpoints know no memory: use FSDP2"),
}
CHOICES: dict[str, EnumType] = {
    "lr_scheduler_type": SchedulerType,
    "optim": OptimizerNames,
    "eval_strategy": IntervalStrategy,
    "logging_strategy": IntervalStrategy,
    "save_strategy": SaveStrategy,
    "hub_strategy": HubStrategy,
}
# what a number must be, and the fields: transformers takes others, and fails in a step or does nothing
LIMITS: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    "at least 1": (
        lambda number: number >= 1,
        ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    ),
    "at least 0": (lambda number: number >= 0, ("dataloader_num_workers",)),
    "a finite number of at least 0": (
        lambda number: 0 <= number < math.inf,
        (
            "weight_decay", "adam_epsilon", "max_grad_norm", "neftune_noise_alpha", "eval_delay", "mem_len_warmup_steps",
            "bptt_warmup_steps",
        ),
    ),
    "at least 0 and below 1": (lambda number: 0 <= number < 1, ("adam_beta1", "adam_beta2")),
    "at least 0 and at most 1": (lambda number: 0 <= number <= 1, ("label_smoothing_factor",)),
    "above 0": (lambda number: number > 0, ("early_stopping_patience", "save_total_limit")),
}  # fmt: skip
# of what an evaluation gives, less is better; of losses transformers knows it
COSTS = ("perplexity", "bits_per_byte", "bits_per_character")
# schedules that pass over arguments without a message
WITHOUT_ARGUMENTS = (SchedulerType.CONSTANT, SchedulerType.CONSTANT_WITH_WARMUP)


@dataclass
class MemoryTrainingArguments(TrainingArguments):
    """`TrainingArguments` with the defaults that a stream of consecutive segments needs: its order is kept, a batch that
    would not fill all rows is dropped, every column of the stream reaches the model, and a resumed training restores the
    state of its callbacks.

    Args:
        optimizer: an optimizer that `optim` does not offer, instead of `optim`: `"lamb"`, or `"muon"` for the matrices of
            layers beside AdamW for the rest. They read `adam_beta1`, `adam_beta2` and `adam_epsilon`.
        group_learning_rates: peak learning rates of groups of parameters that the model names, such as `{"values": 1e-3}`;
            `learning_rate` for the rest. Product-key memories have `"keys"` and `"values"`, adaptive spans `"spans"`, the
            halting unit of the Universal Transformer `"ponder"`, the halting networks of the Depth-adaptive one
            `"halting"`, and the auxiliary classifiers of the vanilla one `"auxiliary"`. All share one schedule.
        average_weights: `"ema"` or `"swa"`: evaluate, and end with, an average of the weights after each step.
        average_decay: share of the exponential average (`"ema"`) that a step keeps.
        average_start: the first step whose weights count; a value below 1 is a share of the training.
        average_in_the_end: whether the trained model is the average; with `False` only evaluation uses it.
        initial_mem_len: length of the model's memory in the first step, in positions; it grows to `mem_len`.
        mem_len_warmup_steps: steps in which it grows; a value below 1 is a share of the training.
        initial_bptt_segments: `bptt_segments` of a model with memory tokens in the first step; it grows to the model's.
        bptt_warmup_steps: steps in which it grows; a value below 1 is a share of the training.
        early_stopping_patience: stop after this many evaluations without a new best; it needs
            `load_best_model_at_end` or `metric_for_best_model`, and an `eval_strategy`.

    Raises:
        ValueError: `deepspeed` is given, or a value is not one that its field can have. `MemoryTrainer` refuses everything
            else that cannot work, from any `TrainingArguments`.
    """

    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "group_learning_rates"]

    train_sampling_strategy: str = "sequential"
    dataloader_drop_last: bool = True
    remove_unused_columns: bool = False
    restore_callback_states_from_checkpoint: bool = True
    optimizer: str | None = None
    group_learning_rates: dict[str, float] | str | None = None
    average_weights: str | None = None
    average_decay: float = 0.999
    average_start: float = 0.0
    average_in_the_end: bool = True
    initial_mem_len: int | None = None
    mem_len_warmup_steps: float = 0.0
    initial_bptt_segments: int | None = None
    bptt_warmup_steps: float = 0.0
    early_stopping_patience: int | None = None

    def __post_init__(self) -> None:
        if self.deepspeed:  # before transformers looks for the package
            _refuse("deepspeed", self.deepspeed)
        _check_choices(self)
        _check_limits(self)
        if self.greater_is_better is None and is_cost(self.metric_for_best_model):
            self.greater_is_better = False
        if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not torch.accelerator.is_available():
            self.use_cpu = True  # else Accelerate makes of several processes so many trainings of one
        super().__post_init__()


def check_arguments(args: TrainingArguments) -> None:
    """Refuse what would break the order of rows in consecutive batches, lose a memory, or be ignored silently.

    Raises:
        ValueError: names the field, its value, the reason, and what to set.
    """
    for name, (required, _) in REQUIRED.items():
        if getattr(args, name) != required:
            _refuse(name, getattr(args, name))
    if getattr(args.accelerator_config, "split_batches", False):
        raise ValueError(
            "`accelerator_config.split_batches`=True does not work with a memory that is carried from batch to batch (it "
            "deals a row to another process): leave it out; the batch size is that of each process."
        )
    if getattr(args, "deepspeed_plugin", None) is not None:  # chosen by `accelerate launch`
        _refuse("deepspeed", "the launcher's configuration")
    if args.n_gpu > 1:
        raise ValueError(
            f"`n_gpu`={args.n_gpu} in one process would spread the rows of a memory over devices (DataParallel): start one "
            f"process per device with `torchrun --nproc_per_node {args.n_gpu} train.py` (a command with "
            f"`torchrun --nproc_per_node {args.n_gpu} -m transformers_xl.cli train ...`), or set `CUDA_VISIBLE_DEVICES=0`."
        )
    started = int(os.environ.get("WORLD_SIZE", 1))
    if started > 1 and args.world_size == 1:
        raise ValueError(
            f"`use_cpu`={args.use_cpu} makes each of the {started} processes (`WORLD_SIZE`={started}) a separate training: "
            "on a machine without GPUs set `use_cpu=True`; on others start them with `torchrun`."
        )
    if args.world_size > 1 and not args.dataloader_drop_last:
        raise ValueError(
            f"`dataloader_drop_last`=False in {args.world_size} processes would fill the last batches with the first "
            "segments, read with the memory of others: set `dataloader_drop_last=True`."
        )
    if args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
        raise ValueError(
            f"`hub_strategy`={HubStrategy(args.hub_strategy).value!r} would push the optimizer's files, which are pickles: "
            "use 'every_save' or 'end', and keep checkpoints where the training runs."
        )
    if args.greater_is_better and is_cost(args.metric_for_best_model):
        raise ValueError(
            f"`greater_is_better`=True would take the worst `metric_for_best_model`={args.metric_for_best_model!r} for the "
            "best: set `greater_is_better=False`, as `MemoryTrainingArguments` does where it is not given."
        )
    _check_numbers(args)
    _check_schedule(args)
    _check_device(args)


def _check_choices(args: TrainingArguments) -> None:
    """Refuse a text that names none of its field's choices: transformers names the value alone."""
    for name, choices in CHOICES.items():
        value, texts = getattr(args, name), [each.value for each in cast(Any, choices)]
        if isinstance(value, str) and value not in texts:
            raise ValueError(f"`{name}`={value!r} must be one of {', '.join(texts)}.")
    for name in ("log_level", "log_level_replica"):
        if (level := getattr(args, name)) not in (*log_levels, "passive"):
            raise ValueError(f"`{name}`={level!r} must be one of {', '.join(log_levels)}, passive.")


def _check_limits(args: TrainingArguments) -> None:
    for limit, (holds, names) in LIMITS.items():
        for name in names:
            number = getattr(args, name, None)  # a field of ours, or none
            if isinstance(number, (int, float)) and not holds(number):
                raise ValueError(f"`{name}`={number} must be {limit}.")
    if args.save_strategy == SaveStrategy.STEPS and isinstance(args.save_steps, (int, float)) and args.save_steps <= 0:
        raise ValueError(f"`save_steps`={args.save_steps} must be above 0: `save_strategy='no'` saves no checkpoint.")


def is_cost(metric: str | None) -> bool:
    """Whether less is better of a metric of an evaluation, which may be named with its dataset."""
    return metric is not None and metric.endswith(COSTS)


def check_length(args: TrainingArguments, section: str = "") -> None:
    """Raise a `ValueError` where a training would have no length; its fields are named with their `section`."""
    if args.num_train_epochs <= 0 and args.max_steps <= 0:
        raise ValueError(f"`{section}num_train_epochs`={args.num_train_epochs} must be above 0.")
    if args.max_steps == 0:
        raise ValueError(f"`{section}max_steps`=0 trains nothing: give at least 1, or -1 for `num_train_epochs`.")


def _check_numbers(args: TrainingArguments) -> None:
    check_length(args)
    _check_limits(args)
    patience = getattr(args, "early_stopping_patience", None)
    if patience is not None and (args.metric_for_best_model is None or args.eval_strategy == IntervalStrategy.NO):
        raise ValueError(
            f"`early_stopping_patience`={patience} needs evaluations that are compared: set `eval_strategy` and "
            "`load_best_model_at_end=True`, or `metric_for_best_model`."
        )


def _check_schedule(args: TrainingArguments) -> None:
    """Make the schedule of a training that is not there: transformers makes it when everything else is done."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate)
    name = SchedulerType(args.lr_scheduler_type)
    given = cast(dict | None, args.lr_scheduler_kwargs)  # a text is parsed by now
    objection: str | Exception | None = "it takes none" if given and name in WITHOUT_ARGUMENTS else None
    try:
        get_scheduler(name, optimizer, 0, max(args.max_steps, 1000), scheduler_specific_kwargs=given)
    except (TypeError, ValueError) as error:
        objection = error
    if objection is not None:
        raise ValueError(
            f"`lr_scheduler_kwargs`={given!r} does not fit `lr_scheduler_type`={name.value!r} ({objection}): set what that "
            "schedule takes."
        )


def _check_device(args: TrainingArguments) -> None:
    on_cpu = args.device.type == "cpu"
    if args.fp16 and on_cpu:
        raise ValueError("`fp16`=True has no effect on a CPU, where Accelerate ignores it: use `bf16=True`.")
    if args.fsdp and on_cpu:
        raise ValueError(
            f"`fsdp`={args.fsdp!r} has no effect on a CPU, where Accelerate ignores it: leave it out (DDP), or use "
            "`torch.distributed.fsdp.fully_shard` in your own loop (docs/training.md)."
        )
    config = args.fsdp_config if args.fsdp and isinstance(args.fsdp_config, dict) else {}
    if config.get("xla") or int(config.get("version", 2)) != 2:
        raise ValueError(
            f"`fsdp_config`={config} asks for the first FSDP or for XLA's, which are not built for these models: use "
            "`fsdp_config={'version': 2}`."
        )


def _refuse(name: str, value: object) -> None:
    required, reason = REQUIRED[name]
    raise ValueError(
        f"`{name}`={value!r} does not work with a memory that is carried from batch to batch ({reason}): set "
        f"`{name}={required!r}`, as `MemoryTrainingArguments` does."
    )


__all__ = ["MemoryTrainingArguments", "check_arguments", "check_length"]
