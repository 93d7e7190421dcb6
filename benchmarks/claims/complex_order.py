"""Words as waves over positions against sinusoids, in texts of one segment, and in one text without end, where
positions run on. To find out why the latter is hardly learned: the same with frequencies that do not learn, and with
frequencies of 0 (words do not turn; the causal mask alone shows order). Complex maps of equal width have half the
parameters: the feed-forwards are twice as wide."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from claim_runs import Claim, Record, Records, Run, Session, Verdict, bits, draw_seeds, main, ruled
from matplotlib.figure import Figure
from transformers import PreTrainedModel

from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.plots import figure


class SegmentTexts(TextStream):
    """A stream in which every segment is a text of its own."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return super().__getitem__(index) | {"reset": torch.tensor(True)}


@dataclass(frozen=True)
class OrderRun(Run):
    """`frequencies`: those of words learn (`"learned"`), stay as they start (`"fixed"`), or are 0 (`"none"`).
    `is_cut`: every segment is a text of its own."""

    intermediate_size: int = 512
    frequencies: str = "learned"
    is_cut: bool = False

    def build(self, seed: int) -> PreTrainedModel:
        model = super().build(seed)
        if self.frequencies != "learned":
            frequency: Any = model.get_input_embeddings().frequency
            frequency.weight.requires_grad_(False)
            if self.frequencies == "none":
                frequency.weight.zero_()
        return model

    def stream(self, text: Path) -> TextStream:
        whole = super().stream(text)
        return SegmentTexts(whole.ids, whole.segment_length, whole.lanes) if self.is_cut else whole


SINUSOIDS, COMPLEX = "absolute_transformer_xl", "complex_order_transformer"
RUNS = {
    "sinusoids, segments": OrderRun(SINUSOIDS, intermediate_size=256, is_cut=True),
    "complex, segments": OrderRun(COMPLEX, is_cut=True),
    "complex, segments, no turning": OrderRun(COMPLEX, is_cut=True, frequencies="none"),
    "sinusoids, one text": OrderRun(SINUSOIDS, intermediate_size=256),
    "complex, one text": OrderRun(COMPLEX),
    "complex, one text, fixed turning": OrderRun(COMPLEX, frequencies="fixed"),
    "complex, one text, no turning": OrderRun(COMPLEX, frequencies="none"),
}


def measure(session: Session, run: OrderRun, seed: int) -> Record:
    model, training = session.trained(run, seed)
    return {**training, "bits": bits(model, session.held_out(), memory=not run.is_cut)}


def verdict(records: Records) -> Verdict:
    held = records.below("complex, segments", "sinusoids, segments", "bits")
    opposite = records.below("sinusoids, segments", "complex, segments", "bits")
    shown = [f"{run} {records.shown(run, 'bits')}" for run in RUNS]
    return Verdict(ruled(held, opposite), "bits per byte: " + "; ".join(shown))


def draw(records: Records) -> Figure:
    picture, ((axes,),) = figure(width=7, height=3)
    draw_seeds(axes, records, "bits")
    axes.set(xlabel="bits per byte of held-out text (not from 0)")
    return picture


CLAIM = Claim(
    name="complex_order",
    says="Complex order beats sinusoidal positions",
    source="[Wang et al., 2020](https://arxiv.org/abs/1912.12333), section 4",
    held_if="in texts of one segment, every seed is below every seed with sinusoids",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=draw,
    beyond="One learning rate, 400 steps. The paper's are classification, translation and text8.",
    seeds=2,
)

if __name__ == "__main__":
    main(CLAIM)
