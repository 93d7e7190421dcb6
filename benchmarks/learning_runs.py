"""Small byte models, trained by hand and scored on the way: what `bench_memory_pays.py` and `bench_memory_start.py` share.

A run is one model from one seed. It has a fixed number of steps; processor seconds of the training are counted, those of
scoring are not. The learning rate is constant behind its warm-up and an average of the weights is scored, so that every
point of a run is the end of a shorter one. Torch computes on one thread.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn import functional as F
from transformers import MistralForCausalLM, PreTrainedModel

from transformers_xl import ByteTokenizer, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.files.atomic_write import atomic_write
from transformers_xl.files.processor import processor
from transformers_xl.runs.baselines import mistral
from transformers_xl.runs.comparison_terms import ComparisonTerms
from transformers_xl.training.averaging import WeightAverage

HEADS, LAYERS, DECAY = 2, 2, 0.99


@dataclass(frozen=True)
class Run:
    """How a model is built, trained and read.

    Args:
        mem_len: positions that it remembers; 0: none, a Transformer-XL without memory.
        context: tokens that are read anew before every segment, and not predicted again.
        segment: tokens of a segment.
        lanes: rows of text that are read side by side.
        steps: training steps.
        mistral: Mistral with a window of `context` in the place of a Transformer-XL.
        hidden_size: width; the feed-forward is four times as wide (Mistral's, which is gated, 8/3).
        initializer_range: standard deviation of the weights at the start.
        learning_rate: of AdamW, behind `warmup_steps`.
        warmup_steps: steps in which the learning rate rises.
        first_mem_len: positions that are remembered at the first step, where the memory grows.
        growing_steps: steps in which it grows to `mem_len`, in a line; 0: it is `mem_len` from the first step on.
    """

    mem_len: int
    context: int = 0
    segment: int = 64
    lanes: int = 20
    steps: int = 2000
    mistral: bool = False
    hidden_size: int = 64
    initializer_range: float = 0.1
    learning_rate: float = 3e-3
    warmup_steps: int = 50
    first_mem_len: int = 0
    growing_steps: int = 0

    def mem_len_at(self, step: int) -> int:
        """The length of the memory at a step."""
        if step >= self.growing_steps:
            return self.mem_len
        return self.first_mem_len + (self.mem_len - self.first_mem_len) * step // self.growing_steps


@dataclass(frozen=True)
class Point:
    """A moment of a training: bytes and processor seconds so far, and the bits per byte of every way to read."""

    step: int
    train_bytes: int
    seconds: float
    bits: dict[str, float]


# scores of a model, by the way it is read
Scoring = Callable[[PreTrainedModel, Run], dict[str, float]]


def read_bytes(path: Path) -> np.ndarray:
    return np.frombuffer(path.read_bytes(), np.uint8).astype(np.int64)


def build(run: Run, seed: int) -> PreTrainedModel:
    """The model, with weights from the seed."""
    if run.mistral:
        terms = ComparisonTerms(
            run.hidden_size, LAYERS, HEADS, run.context, segment_length=run.segment, learning_rate=run.learning_rate
        )
        config = mistral(terms, seed, 2 * round(run.hidden_size * 4 / 3)).config
        config.initializer_range = run.initializer_range
        transformers.set_seed(seed)
        return MistralForCausalLM(config)
    transformers.set_seed(seed)
    return TransformerXLForCausalLM(
        TransformerXLConfig(
            vocab_size=len(ByteTokenizer()),
            hidden_size=run.hidden_size,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=4 * run.hidden_size,
            mem_len=run.mem_len,
            segment_length=run.segment,
            same_length=run.mem_len > 0,
            initializer_range=run.initializer_range,
            dropout=0.0,
        )
    )


def segments(ids: np.ndarray, run: Run) -> Iterator[tuple[torch.Tensor, torch.Tensor, bool]]:
    """The text without end: inputs with the context before them, targets, and whether the text begins here."""
    length = (len(ids) - 1) // run.lanes
    rows = torch.from_numpy(np.stack([ids[lane * length : (lane + 1) * length + 1] for lane in range(run.lanes)]))
    while True:
        for start in range(0, length - run.segment + 1, run.segment):
            stop = start + run.segment
            yield rows[:, max(0, start - run.context) : stop], rows[:, start + 1 : stop + 1], start == 0


def losses_of(model: PreTrainedModel, inputs: torch.Tensor, targets: torch.Tensor, **state) -> tuple:
    """Nats of every target `(batch, segment)`, and what the model returned."""
    outputs = model(inputs, **state)
    logits = outputs.logits[:, -targets.shape[1] :].float()
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none"), outputs


def train(
    run: Run, seed: int, ids: np.ndarray, points: list[int], scores: Scoring
) -> tuple[list[Point], PreTrainedModel]:
    """The scores at each step of `points` and at the last one, and the model with its averaged weights."""
    model = build(run, seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), run.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / run.warmup_steps))
    average, state, found, seconds = WeightAverage("ema", DECAY), {}, [], 0.0
    options = {"use_cache": False} if run.mistral else {}
    for step, (inputs, targets, begins) in enumerate(segments(ids, run)):
        start = time.process_time()
        if begins or not run.mem_len:
            state = {}
        if run.growing_steps and step <= run.growing_steps:
            model.resize_memory(run.mem_len_at(step))
        losses, outputs = losses_of(model, inputs, targets, **state, **options)
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()
        if run.mem_len:
            state = {"mems": outputs.mems}
        average.decay = min(DECAY, (step + 1) / (step + 10))  # what the weights were at the start is soon forgotten
        average.update(model)
        seconds += time.process_time() - start
        if step + 1 in points or step + 1 == run.steps:
            with average.swapped_in(model), torch.inference_mode():
                bits = scores(model.eval(), run)
            model.train()
            found.append(Point(step + 1, (step + 1) * targets.numel(), round(seconds, 1), bits))
            print(f"{run} seed {seed}: {found[-1]}", flush=True)
        if step + 1 == run.steps:
            average.copy_to(model)
            return found, model.eval()
    raise AssertionError("a text without end has ended")


def in_bits(nats: torch.Tensor) -> float:
    return round(nats.mean().item() / math.log(2), 4)


def kept(path: Path, run: Run, seed: int, make: Callable[[], dict]) -> dict:
    """What `path` holds, or, where there is none of this run, what `make` gives: it is written there."""
    settings = {"run": asdict(run), "seed": seed}
    if path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
        if {name: record[name] for name in settings} == settings:
            return record
    record = settings | make() | {"machine": machine()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as new:
        Path(new).write_text(json.dumps(record) + "\n", encoding="utf-8")
    return record


def machine() -> dict[str, str]:
    """The processor and the libraries."""
    return {
        "processor": str(processor()),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
