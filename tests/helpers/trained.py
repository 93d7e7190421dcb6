"""Small trainings that several tests share, and the loop by hand that they are compared with."""

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset
from transformers import set_seed

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.data.text_stream import TextStream
from transformers_xl.training.trainer import MemoryTrainingArguments

VOCAB, SEGMENT, LANES = 23, 6, 3
QUIET = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": False}


def small_model(model_class=TransformerXLForCausalLM, **fields):
    set_seed(0)
    defaults = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "mem_len": 8,
        "initializer_range": 0.02,  # gradients that are nearly 0 are what Adam amplifies
    }
    return model_class(TransformerXLConfig(vocab_size=VOCAB, dropout=0.0, **(defaults | fields)))


def text(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, length)


def arguments(tmp_path, **fields) -> MemoryTrainingArguments:
    defaults = {
        "per_device_train_batch_size": LANES,
        "per_device_eval_batch_size": LANES,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "logging_steps": 1,
    }
    return MemoryTrainingArguments(str(tmp_path), **(QUIET | defaults | fields))


def segments(
    ids: np.ndarray, segment_length: int = SEGMENT, lanes: int = LANES
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets of each step, cut by hand."""
    count = (len(ids) - 1) // (lanes * segment_length)
    tokens = torch.from_numpy(ids)
    rows = tokens[: lanes * count * segment_length].view(lanes, -1)
    targets = tokens[1 : lanes * count * segment_length + 1].view(lanes, -1)
    return list(zip(rows.split(segment_length, dim=1), targets.split(segment_length, dim=1), strict=True))


def by_hand(model, ids: np.ndarray, epochs: int, accumulation: int = 1, lr: float = 0.05) -> list[float]:
    """Train with memory, in a loop; the loss of every update."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for _ in range(epochs):
        mems, steps = None, segments(ids)
        for start in range(0, len(steps), accumulation):
            group = steps[start : start + accumulation]
            loss = 0.0
            for inputs, targets in group:
                outputs = model(inputs, mems=mems)
                mems = outputs.mems
                summed = F.cross_entropy(outputs.logits.transpose(1, 2), targets, reduction="sum")
                summed = summed / (len(group) * targets.numel())
                summed.backward()
                loss += summed.item()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
    return losses


class Pairs(Dataset):
    """Sequences that hold more of their class's token than of the other, or the tokens themselves as labels."""

    def __init__(self, classify: bool, size: int = 64):
        generator = torch.Generator().manual_seed(0)
        self.classes = torch.randint(0, 2, (size,), generator=generator)
        noise = torch.randint(2, VOCAB, (size, 10), generator=generator)
        own = torch.rand(size, 10, generator=generator) < 0.6
        self.ids = torch.where(own, self.classes[:, None], noise)
        self.classify = classify

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict:
        labels = self.classes[index] if self.classify else self.ids[index]
        return {"input_ids": self.ids[index], "labels": labels}


class Bare(Dataset):
    """The segments of a stream and their targets, without a word on where it begins, and only `count` of them."""

    def __init__(self, stream: TextStream, count: int | None = None, labels: bool = True):
        self.stream, self.count = stream, len(stream) if count is None else count
        self.columns = ("input_ids", "labels", "shift_labels") if labels else ("input_ids",)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict:
        return {name: self.stream[index][name] for name in self.columns}


class Flowing(IterableDataset):
    """A dataset without a length."""

    def __init__(self, dataset: Dataset):
        self.dataset = dataset

    def __iter__(self):
        return (self.dataset[index] for index in range(len(self.dataset)))


def losses(trainer) -> torch.Tensor:
    return torch.tensor([row["loss"] for row in trainer.state.log_history if "loss" in row])


def flat(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
