"""What a resumed training is told otherwise than the one that wrote the checkpoint, and which of the two values applies.

The optimizer's state holds its settings, so that those of the checkpoint apply. The state of a schedule holds how far it
has come, and its shape is made of the arguments of the run that resumes; only schedules that follow the loss are all state.
Warm-ups of the memory and the patience stand in the state of callbacks, as transformers keeps it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from transformers_xl.files.atomic_write import write_text
from transformers_xl.files.json_files import read_json

ARGUMENTS = "training_args.json"
FOLDERS = ("output_dir", "logging_dir", "resume_from_checkpoint")
OF_OPTIMIZER = (
    "learning_rate",
    "group_learning_rates",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
)
OF_CALLBACKS = (
    "initial_mem_len",
    "mem_len_warmup_steps",
    "initial_bptt_segments",
    "bptt_warmup_steps",
    "early_stopping_patience",
)
OF_SCHEDULE = ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "max_steps", "num_train_epochs")
OF_ADAPTERS = (
    "peft_type",
    "r",
    "lora_alpha",
    "target_modules",
    "modules_to_save",
    "layers_to_transform",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "use_dora",
    "bias",
)
FOLLOW_THE_LOSS = ("reduce_lr_on_plateau", "greedy")
SAME_STATE = ("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused")  # one optimizer


def write_arguments(folder: Path, args: TrainingArguments) -> None:
    """Write the arguments, but for those that say where files lie: the file is pushed."""
    values = json.loads(args.to_json_string())
    write_text(folder / ARGUMENTS, json.dumps({k: v for k, v in values.items() if k not in FOLDERS}, indent=2) + "\n")


def changed_arguments(folder: Path, args: TrainingArguments) -> Iterator[str]:
    """A sentence for every argument of the optimizer or the schedule that differs from the checkpoint.

    Raises:
        ValueError: the optimizer or schedule of `args` cannot continue from the state in the checkpoint.
    """
    if not (folder / ARGUMENTS).is_file():
        return
    stored, ours = json.loads((folder / ARGUMENTS).read_text()), json.loads(args.to_json_string())
    follows = any(values.get("lr_scheduler_type") in FOLLOW_THE_LOSS for values in (stored, ours))
    same_state = {stored.get("optim"), ours.get("optim")} <= {*SAME_STATE}
    for name, goes_on in (("optim", same_state), ("optimizer", False), ("lr_scheduler_type", not follows)):
        if stored.get(name) != ours.get(name) and not goes_on:
            raise ValueError(
                f"`{name}`={ours.get(name)!r} cannot resume where the {stored.get(name)!r} of the checkpoint "
                f"{str(folder)!r} stopped: resume with that, or load its weights with `from_pretrained` and train without "
                "resuming."
            )
    from_checkpoint = {*OF_OPTIMIZER, *OF_CALLBACKS} | ({"lr_scheduler_kwargs"} if follows else set())
    # a callback that was not there has no state
    callbacks = [name for name in OF_CALLBACKS if stored.get(name)]
    for name in ("optim", *OF_OPTIMIZER, *OF_SCHEDULE, *callbacks):
        if name == "num_train_epochs" and ours["max_steps"] > 0:
            continue  # it has no effect
        before, now = stored.get(name), ours.get(name)
        if before == now:
            continue
        which = (
            f"{before!r} applies. To train with {now!r}, load the weights with `from_pretrained` and train without resuming"
            if name in from_checkpoint
            else f"{now!r} applies from here on"
        )
        yield f"`{name}`={now!r} differs from {before!r} in the checkpoint {str(folder)!r}: {which}."


def changed_adapters(folder: Path, model: Any) -> Iterator[tuple[str, Any, Any]]:
    """The fields of PEFT's config in which the adapters of `model` differ from those in the checkpoint `folder`, whose
    optimizer has a state for each weight, in their order: name, value of the checkpoint, value of the model."""
    file, ours = folder / "adapter_config.json", getattr(model, "peft_config", {}).get("default")
    if ours is None or not file.is_file():
        return
    saved = read_json(file)
    for name in OF_ADAPTERS:
        before, now = saved.get(name), getattr(ours, name, None)
        before, now = (sorted(value) if isinstance(value, (list, set, tuple)) else value for value in (before, now))
        if before != now and (before or now):
            yield name, before, now


__all__ = ["changed_adapters", "changed_arguments", "write_arguments"]
