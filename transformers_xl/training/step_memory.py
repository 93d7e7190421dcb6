"""What a step of training needs of memory, and how many rows fit: measured in bytes on one row, before the first step."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import nn
from transformers.training_args import OptimizerNames

from transformers_xl.modeling.layers.token_loss import LOGITS_AT_A_TIME
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.training.arguments import MemoryTrainingArguments

# of one slice of logits: they, their logarithms, and the gradients of both
COPIES_OF_LOGITS, BYTES_OF_LOGIT = 4, 4


@dataclass(frozen=True)
class StepMemory:
    """The bytes of a step.

    Attributes:
        weights: those that are there before it.
        trained: gradients, and what the optimizer keeps.
        per_row: what a row keeps for its gradients, and its memory.
        row_logits: the logits of a row, made all at once.
        most_logits: those of the largest slice.
    """

    weights: int
    trained: int
    per_row: int
    row_logits: int
    most_logits: int

    def needed(self, rows: int) -> int:
        """Bytes of a step of so many rows, beside the weights."""
        logits = COPIES_OF_LOGITS * min(rows * self.row_logits, self.most_logits)
        return self.trained + rows * self.per_row + logits

    def fitting(self, rows: int, free: int) -> int:
        """`rows`, halved until a step fits into `free` bytes; 1 where not even that does."""
        while rows > 1 and self.needed(rows) > free:
            rows //= 2
        return rows

    def sentence(self, rows: int, length: int, asked: int, free: int) -> str:
        """What a step of `rows` rows of `length` tokens needs, where `asked` were wanted and `free` bytes are there."""
        instead = f", since {asked} do not fit (`data.batch_size` sets it)" if rows < asked else ""
        said = (
            f"a step reads {rows} x {length:,} tokens{instead}; it needs about {self.needed(rows) / 2**30:.1f} GiB of "
            f"memory beside the {self.weights / 2**30:.1f} GiB of the weights, and {free / 2**30:.1f} GiB are free"
        )
        if self.needed(rows) <= free:
            return said
        fitting = self.fitting(rows, free)
        if self.needed(fitting) <= free:
            return f"{said}: it may fail or be slow, try --data.batch_size {fitting}"
        return f"{said}: not even one row fits, so try a shorter `segment_length`, `lora.r`, or a smaller model"


class SavedBytes:
    """Counts what a forward pass keeps for its gradients, but for logits, and for `known` tensors, there anyway."""

    def __init__(self, known: Iterable[torch.Tensor], vocab_size: int):
        self.known, self.vocab_size = {place_of(each) for each in known}, vocab_size
        self.sizes: dict[int, int] = {}  # by their place in memory: what is saved several times is there once
        self.kept: list[torch.Tensor] = []  # so that no other takes its place

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    def note(self, tensor: torch.Tensor) -> torch.Tensor:
        place = place_of(tensor)
        if place not in self.known and not (tensor.dim() and tensor.shape[-1] == self.vocab_size):
            self.sizes[place] = tensor.untyped_storage().nbytes()
            self.kept.append(tensor.detach())
        return tensor


def place_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def size_of(tensors: Iterable[torch.Tensor]) -> int:
    """Their bytes."""
    return sum(each.nbytes for each in tensors)


def free_memory(device: torch.device) -> int:
    """Bytes that a step on this device may take, beside what the process has."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def measure_step(model: Any, args: MemoryTrainingArguments, length: int) -> StepMemory:
    """What a step of `model`, a language model of this package or one with adapters, needs whose rows have `length` tokens:
    one row is read, with a memory, as in training. Buffers and random numbers stay what they were."""
    parameters, vocab_size = [*model.parameters()], model.config.vocab_size
    trained = [each for each in parameters if each.requires_grad]
    gradients = size_of(trained)
    head = model.get_output_embeddings()
    if length * vocab_size > LOGITS_AT_A_TIME and isinstance(head, nn.Module):
        # each slice has a gradient of the head, which is added to that of the others
        gradients += size_of([each for each in head.parameters() if each.requires_grad])
    saved = SavedBytes(parameters, vocab_size)
    with as_it_was(model), mixed_precision(parameters[0].device, args):
        mems = read_one_row(model, length, saved)
    held = 0 if mems is None else mems.num_bytes
    is_adam = args.optimizer is not None or "adam" in OptimizerNames(args.optim).value
    return StepMemory(
        weights=size_of(parameters),
        trained=gradients + (2 if is_adam else 0) * size_of(trained),
        per_row=saved.bytes + 2 * held,  # the old memory and the new one
        row_logits=length * vocab_size * BYTES_OF_LOGIT,
        most_logits=max(LOGITS_AT_A_TIME, vocab_size) * BYTES_OF_LOGIT,
    )


def read_one_row(model: Any, length: int, saved: SavedBytes) -> Memory | None:
    """Read a row as a step does, after enough text to remember; the memory that it is read with."""
    vocab_size, mem_len = model.config.vocab_size, model.config.mem_len or 0
    device = next(model.parameters()).device
    ids = torch.arange(length, device=device)[None] * max(1, vocab_size // length) % vocab_size
    mems: Memory | None = None
    model.eval()
    for _ in range(min(-(-mem_len // length), 4)):
        with torch.no_grad():
            mems = model(ids, logits_to_keep=1, mems=mems).mems
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(saved.note, lambda tensor: tensor):
        model(ids, shift_labels=ids, logits_to_keep=1, mems=mems)
    return mems


def mixed_precision(device: torch.device, args: MemoryTrainingArguments) -> torch.autocast:
    """What the trainer computes in."""
    return torch.autocast(device.type, torch.float16 if args.fp16 else torch.bfloat16, bool(args.fp16 or args.bf16))


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Give modes, buffers and random numbers back as they come in."""
    training = [module for module in model.modules() if module.training]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = [buffer.device for buffer, _ in buffers[:1] if buffer.device.type == "cuda"]
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        model.eval()
        for module in training:
            module.training = True
        for buffer, before in buffers:
            buffer.data.copy_(before)


__all__ = ["StepMemory", "free_memory", "measure_step"]
