"""What a dataset must be for rows to continue from batch to batch."""

from collections.abc import Iterable
from typing import Any

from torch.utils.data import Dataset, IterableDataset
from transformers import TrainingArguments
from transformers.trainer_utils import has_length


def datasets_of(datasets: Dataset | dict[str, Dataset] | None) -> Iterable[Dataset | None]:
    return datasets.values() if isinstance(datasets, dict) else [datasets]


def check_dataset(name: str, dataset: Any, batch_size: int, args: TrainingArguments, training: bool) -> None:
    """Refuse a dataset whose rows would not stay in their place; `batch_size` is that of one process.

    Raises:
        ValueError: its lanes are not the rows of all processes, an iterable one is read by several workers, or an
            evaluation in several processes would read segments twice to fill the last batches.
    """
    processes = args.world_size
    lanes = getattr(dataset, "lanes", None)
    if lanes is not None and lanes != batch_size * processes:
        raise ValueError(
            f"`{name}` has `lanes`={lanes}, but a batch holds {batch_size} rows in each of {processes} processes: build it "
            f"with `lanes={batch_size * processes}`, or change the batch size per device."
        )
    if isinstance(dataset, IterableDataset) and args.dataloader_num_workers > 0:
        raise ValueError(
            f"`dataloader_num_workers`={args.dataloader_num_workers} would read the iterable `{name}` that many times, "
            "with its segments out of order: set `dataloader_num_workers=0`."
        )
    if args.dataloader_persistent_workers and args.dataloader_num_workers > 0 and getattr(dataset, "roll", False):
        raise ValueError(
            f"`dataloader_persistent_workers`=True keeps copies of `{name}`, which learn of no new epoch for `roll=True`: "
            "set `dataloader_persistent_workers=False`."
        )
    if not training and processes > 1 and has_length(dataset) and len(dataset) % (batch_size * processes):
        raise ValueError(
            f"`{name}` has {len(dataset)} segments, not a multiple of {batch_size} rows in each of {processes} processes: "
            "the last batches would repeat the first segments. Pad it, as `TextStream(keep_tail=True)` does."
        )


def check_best_metric(metric: str | None, datasets: Any) -> None:
    """Raise a `ValueError` where `metric_for_best_model` does not say which of several evaluation sets it is of."""
    if metric is None or not isinstance(datasets, dict):
        return
    if not metric.removeprefix("eval_").startswith(tuple(f"{name}_" for name in datasets)):
        names = ", ".join(repr(f"{name}_{metric.removeprefix('eval_')}") for name in datasets)
        raise ValueError(
            f"`metric_for_best_model`={metric!r} is of no dataset in `eval_dataset`: set one of {names}. With "
            "`load_best_model_at_end` it is 'loss' where it is not given."
        )


def check_beginnings(name: str, dataset: Any, mem_len: int | None) -> None:
    """Raise a `ValueError` where texts of a stream would begin where a model remembers, or not begin where it does not."""
    beginning = getattr(dataset, "beginning", ())
    if len(beginning) and mem_len is not None and dataset.memory != bool(mem_len):
        raise ValueError(
            f"`{name}` was made with `memory`={dataset.memory}, but the model has `mem_len`={mem_len}: give "
            f"`memory={bool(mem_len)}`, so that `beginning` stands where nothing is remembered, and only there."
        )


def stream_of(dataset: Any, args: TrainingArguments) -> dict[str, int | str]:
    """What a memory and a position in `dataset` depend on: a checkpoint resumes with these values only."""
    fields: dict[str, int | str] = dict(getattr(dataset, "identity", None) or {})
    if has_length(dataset):
        fields["segments"] = len(dataset)
    names = ("world_size", "per_device_train_batch_size", "gradient_accumulation_steps")
    return fields | {name: getattr(args, name) for name in names}


__all__ = ["check_beginnings", "check_best_metric", "check_dataset", "datasets_of", "stream_of"]
