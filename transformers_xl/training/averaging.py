"""Averages of the weights along the training: exponential (EMA), and stochastic weight averaging (SWA).

    EMA    average = decay average + (1 - decay) weights
    SWA    average = mean of the weights after every step: Izmailov et al., 2018, https://arxiv.org/abs/1803.05407

`torch.optim.swa_utils.AveragedModel` computes the same; it keeps a second model, of the types of the first: in bfloat16 an
EMA stands still, since a thousandth of a weight is less than its last digit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import TrainerControl, TrainerState, TrainingArguments

from transformers_xl.training.arguments import MemoryTrainingArguments
from transformers_xl.training.callbacks import CheckpointCallback, follow_spans

FILE = "weight_average.safetensors"
KINDS = ("ema", "swa")


class WeightAverage:
    """The average of what a model learns: its trainable parameters, each once however many names it has, and the statistics
    that it keeps in buffers. Kept in float32 at least.

    Attributes:
        tensors: the averages by name; empty before the first update.
        count: number of updates.
    """

    def __init__(self, kind: str, decay: float = 0.999):
        self.kind, self.decay = kind, decay
        self.tensors: dict[str, torch.Tensor] = {}
        self.count = 0

    @staticmethod
    def averaged_of(model: nn.Module) -> dict[str, torch.Tensor]:
        """The model's own tensors that are averaged."""
        learned = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        return learned | {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        weight = 1 - self.decay if self.kind == "ema" else 1 / (self.count + 1)
        for name, tensor in self.averaged_of(model).items():
            new = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
            if self.count == 0:
                self.tensors[name] = new.clone()
            else:
                self.tensors[name].lerp_(new, weight)
        self.count += 1

    def clear(self) -> None:
        self.tensors, self.count = {}, 0

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Give `model` the averages; nothing before the first update."""
        own = self.averaged_of(model)
        for name, average in self.tensors.items():
            own[name].copy_(average)
        if self.tensors:
            follow_spans(model)

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """`model` with the averages. Its own weights come back bit for bit, also when the body raises."""
        kept = {name: tensor.detach().clone() for name, tensor in self.averaged_of(model).items() if self.count}
        self.copy_to(model)
        try:
            yield
        finally:
            with torch.no_grad():
                own = self.averaged_of(model)
                for name, tensor in kept.items():
                    own[name].copy_(tensor)
            if kept:
                follow_spans(model)

    def save(self, folder: str | Path, write: bool = True) -> None:
        """Write the averages into `folder`. Every process of a sharded model calls it, one of them with `write`."""
        whole = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in self.tensors.items()}
        if write:
            tensors = {name: tensor.cpu().contiguous() for name, tensor in whole.items()}
            save_file(tensors, Path(folder, FILE), metadata={"kind": self.kind, "count": str(self.count)})

    def load(self, folder: str | Path, model: nn.Module) -> None:
        """Take up the averages in `folder`, placed and sharded as the weights of `model` are.

        Raises:
            ValueError: the folder has none, or those of another kind or model.
        """
        kind, count, tensors = _read(folder)
        if kind != self.kind:
            raise ValueError(
                f"`average_weights`={self.kind!r}, but {str(folder)!r} holds averages of the kind {kind!r}: resume with "
                f"`average_weights={kind!r}`, or start a new training."
            )
        own = _matching(tensors, model, folder)
        self.tensors = {name: _like(tensor, own[name]) for name, tensor in tensors.items()}
        self.count = count


def load_averaged_weights(model: nn.Module, folder: str | Path) -> None:
    """Give `model`, loaded from a checkpoint or built alike, the averages that the checkpoint `folder` holds beside the
    weights.

    Raises:
        ValueError: the folder has no averages, or those of another model.
    """
    average = WeightAverage(_read(folder)[0])
    average.load(folder, model)
    average.copy_to(model)


def _read(folder: str | Path) -> tuple[str, int, dict[str, torch.Tensor]]:
    path = Path(folder, FILE)
    if not path.is_file():
        raise ValueError(
            f"`average_weights` was asked for, but {str(folder)!r} holds no {FILE}: it is a checkpoint of a training "
            "without averages, or of `save_only_model=True`. Resume without `average_weights`, or start a new training."
        )
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        return metadata["kind"], int(metadata["count"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _matching(tensors: dict[str, torch.Tensor], model: nn.Module, folder: str | Path) -> dict[str, torch.Tensor]:
    own = WeightAverage.averaged_of(model)
    for name in tensors.keys() | own.keys() if tensors else ():
        shapes = [tuple(held[name].shape) if name in held else None for held in (tensors, own)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{FILE} in {str(folder)!r} has {name!r} of shape {shapes[0]}, `model` has {shapes[1]}: it belongs to "
                "another model."
            )
    return own


def _like(tensor: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    if isinstance(own, DTensor):
        return distribute_tensor(tensor.to(own.device), own.device_mesh, own.placements)
    return tensor.to(own.device)


class WeightAveraging(CheckpointCallback):
    """Averages the weights after every step from `start` on, in steps, or as a share of the training below 1.

    With `average_in_the_end` the trained model is the average; with `load_best_model_at_end`, that of the best checkpoint.
    Checkpoints that a training can resume from hold the averages.
    """

    def __init__(self, average: WeightAverage, start: float = 0.0, average_in_the_end: bool = True):
        self.average, self.start, self.average_in_the_end = average, start, average_in_the_end

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 0:  # else `on_resume` reads those of the checkpoint
            self.average.clear()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        start = self.start if self.start >= 1 else self.start * state.max_steps
        if model is not None and state.global_step >= start:
            self.average.update(model)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        if model is None:
            return
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self.average.load(state.best_model_checkpoint, model)
        if self.average_in_the_end:
            self.average.copy_to(model)

    def on_checkpoint(self, args: TrainingArguments, state: TrainerState, folder: Path, model: nn.Module) -> None:
        if not args.save_only_model:
            self.average.save(folder, write=args.should_save)

    def on_resume(self, args: TrainingArguments, state: TrainerState, folder: Path, model: nn.Module) -> None:
        self.average.load(folder, model)


def averaging_of(args: TrainingArguments) -> WeightAveraging | None:
    """The callback that averages, where `average_weights` asks for it."""
    if not isinstance(args, MemoryTrainingArguments) or args.average_weights is None:
        return None
    return WeightAveraging(
        WeightAverage(args.average_weights, args.average_decay), args.average_start, args.average_in_the_end
    )


def check_averaging(args: TrainingArguments) -> None:
    """Raise a `ValueError` where the arguments of averaging do not fit together."""
    if not isinstance(args, MemoryTrainingArguments) or args.average_weights is None:
        return
    if args.average_weights not in KINDS:
        raise ValueError(f"`average_weights`={args.average_weights!r} must be one of {KINDS}, or None.")
    if not 0 < args.average_decay < 1:
        raise ValueError(f"`average_decay`={args.average_decay} must be above 0 and below 1.")
    if args.average_start < 0:
        raise ValueError(f"`average_start`={args.average_start} must not be negative: steps, or a share below 1.")
    if args.save_only_model and args.load_best_model_at_end:
        raise ValueError(
            "`save_only_model`=True keeps no averages, and `load_best_model_at_end` needs those of the best checkpoint: "
            "leave one of them out, or `average_weights`."
        )


__all__ = ["WeightAverage", "WeightAveraging", "averaging_of", "check_averaging", "load_averaged_weights"]
