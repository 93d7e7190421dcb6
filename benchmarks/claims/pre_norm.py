"""Six layers of width 64, pre- and post-norm, with a linear warm-up of the learning rate over 100 steps and without one.
Xavier initialisation and no clipping of gradients, as in the paper; beside it the same with gradients clipped at norm 1,
as the Trainer does by default."""

import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from claim_runs import TERMS, Claim, Records, Run, Verdict, draw_seeds, main, ruled, train_and_score
from matplotlib.figure import Figure
from transformers import PreTrainedModel, Trainer

from transformers_xl.evaluation.plots import figure, line
from transformers_xl.runs.comparison_terms import ComparisonTerms
from transformers_xl.runs.fitting import fit


@dataclass(frozen=True)
class UnclippedRun(Run):
    """Its gradients are clipped at `max_grad_norm`, which at 0 is not at all."""

    max_grad_norm: float = 0.0

    def fit(self, model: PreTrainedModel, text: Path, terms: ComparisonTerms, seed: int) -> Trainer:
        with tempfile.TemporaryDirectory() as folder:
            return fit(model, self.stream(text), terms, seed, Path(folder), max_grad_norm=self.max_grad_norm)


DEEP = replace(TERMS, layers=6, steps=200, learning_rate=1e-3)
XAVIER = {"initializer_range": (2 / (64 + 64)) ** 0.5}
RUNS = {
    f"{norm}-norm, {'' if warmup else 'no '}warm-up{', clipped' if kind is Run else ''}": kind(
        "transformer_xl", replace(DEEP, warmup_steps=warmup), XAVIER | {"norm_position": norm}
    )
    for kind in (UnclippedRun, Run)
    for norm in ("pre", "post")
    for warmup in (0, 100)
}
NEED = 0.1  # bits


def verdict(records: Records) -> Verdict:
    pre, pre_warm, post, post_warm = list(RUNS)[:4]
    pre_needs_none = max(records.of(pre, "bits")) < min(records.of(pre_warm, "bits")) + NEED
    post_needs_it = min(records.of(post, "bits")) > max(records.of(post_warm, "bits")) + NEED
    pre_needs_it = min(records.of(pre, "bits")) > max(records.of(pre_warm, "bits")) + NEED
    post_needs_none = max(records.of(post, "bits")) < min(records.of(post_warm, "bits")) + NEED
    shown = [f"{run} {records.shown(run, 'bits')}" for run in RUNS]
    return Verdict(
        ruled(pre_needs_none and post_needs_it, pre_needs_it or post_needs_none),
        "bits per byte: " + "; ".join(shown),
    )


def draw(records: Records) -> Figure:
    picture, ((left, right),) = figure(columns=2, width=4.5, height=3.2)
    draw_seeds(left, records, "bits")
    left.set(xlabel="bits per byte of held-out text (not from 0)")
    for index, run in enumerate(list(RUNS)[:4]):
        style = line(index, 4) | {"marker": None}
        for number, row in enumerate(records[run]):
            bits = [nats / math.log(2) for nats in row["losses"]]
            right.plot(range(20, 20 * len(bits) + 1, 20), bits, label=run if number == 0 else None, **style)
    right.set(xlabel="training step", ylabel="bits per byte, training (not from 0)", title="Not clipped")
    right.legend()
    return picture


CLAIM = Claim(
    name="pre_norm",
    says="Pre-norm needs no warm-up, post-norm does",
    source="[Xiong et al., 2020](https://arxiv.org/abs/2002.04745), section 4",
    held_if=f"not clipped, warm-up is never worth {NEED} bits to pre-norm, and always to post-norm",
    runs=RUNS,
    measure=train_and_score,
    verdict=verdict,
    draw=draw,
    beyond="One learning rate (1e-3). At 8 layers of width 96: "
    "[training_papers.md](training_papers.md#pre-norm-or-post-norm).",
    seeds=2,
)

if __name__ == "__main__":
    main(CLAIM)
