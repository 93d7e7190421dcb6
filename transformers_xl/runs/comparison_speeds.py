"""The speeds of `transformers-xl compare`: all models in one process, in turns, so that what disturbs the machine disturbs
all."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, default_data_collator
from transformers.generation import BaseStreamer

from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.context_curve import remembers
from transformers_xl.evaluation.speed import take_turns
from transformers_xl.runs.comparison_runs import builders, stream_for, versions, visible
from transformers_xl.runs.comparison_terms import ComparisonSettings, ComparisonTerms
from transformers_xl.runs.fitting import read_texts
from transformers_xl.runs.loading import load_model


class TokenTimes(BaseStreamer):
    """Seconds from each generated token to the next."""

    def __init__(self):
        self.seconds: list[float] = []
        self.last: float | None = None

    def put(self, value: torch.Tensor) -> None:
        # the prompt comes first, as a batch; the first token waits for the whole of it
        now = time.perf_counter()
        if value.dim() == 1 and self.last is not None:
            self.seconds.append(now - self.last)
        self.last = now if value.dim() == 1 else None

    def end(self) -> None:
        self.last = None


def speeds(
    widths: dict[str, int], models: Path, texts: list[Path], settings: ComparisonSettings, turns: int
) -> dict[str, Any]:
    """Training steps as at the start of training, with a full memory, and tokens that trained models generate.

    Args:
        widths: inner width by model.
        models: folder of trained models, by name.
        texts: the texts that they were trained on.
        settings: those of the comparison.
        turns: turns that count; medians of them are taken.

    Raises:
        ValueError: a trained model is missing.
    """
    for name in widths:
        if not (models / name / "config.json").is_file():
            raise ValueError(
                f"`output`: {str(models / name)!r} is missing, the trained model to time: remove runs/{name}-0.json to "
                "train it again, or give --no-speeds."
            )
    terms = settings.terms
    stream, held_out, _ = read_texts(texts, terms)
    build, device = builders(), "cuda" if torch.cuda.is_available() else "cpu"
    steps, times = {}, {}
    for name, width in widths.items():
        model = build[name](terms, 0, width)
        model.to(device=device)  # type: ignore[call-arg]  # transformers wraps torch's method
        steps[name] = training_step(model, stream, terms)
        times[name] = TokenTimes()
    seconds = take_turns(steps, turns)
    del steps
    writers = {}
    for name in widths:
        model, _ = load_model(models / name, any_kind=True)
        writers[name] = writer(model, held_out, terms, times[name])
    take_turns(writers, turns)
    tokens = stream.lanes * stream.segment_length
    return {
        "settings": settings.to_dict(),
        "turns": turns,
        "versions": versions(),
        "models": {
            name: {
                "training_tokens_per_second": tokens / statistics.median(seconds[name]),
                "seconds_per_generated_token": statistics.median(times[name].seconds),
            }
            for name in widths
        },
    }


def training_step(model: PreTrainedModel, stream: TextStream, terms: ComparisonTerms) -> Callable[[], None]:
    """A whole optimizer step on one batch, behind a full memory or context. At a learning rate of 0 all turns are alike."""
    data = stream_for(model, stream, terms)
    segments = min(stream.segments, 1 + -(-terms.mem_len // stream.segment_length))
    inputs: dict[str, Any] = {}
    model.train()
    for segment in range(segments):
        first = segment * data.lanes
        batch = default_data_collator([data[index] for index in range(first, first + data.lanes)])
        remembered = {"mems": inputs["mems"]} if "mems" in inputs else {}
        inputs = {name: value.to(model.device) for name, value in batch.items() if name != "reset"} | remembered
        if remembers(model) and segment < segments - 1:
            with torch.no_grad():
                inputs["mems"] = model(**inputs).mems
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

    def step() -> None:
        with torch.inference_mode(False):
            model(**inputs).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return step


def writer(model: Any, held_out: np.ndarray, terms: ComparisonTerms, times: TokenTimes) -> Callable:
    """Half a segment of tokens, behind all that the model can see."""
    count = max(2, terms.segment_length // 2)
    prompt = torch.from_numpy(held_out[None, : visible(model, terms)].astype(np.int64)).to(model.device)
    return lambda: model.generate(prompt, min_new_tokens=count, max_new_tokens=count, do_sample=False, streamer=times)


__all__ = ["TokenTimes", "speeds", "training_step", "writer"]
