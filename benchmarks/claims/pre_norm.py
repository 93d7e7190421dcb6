"""Six layers of width 64, pre- and post-norm, with a linear warm-up of the learning rate over 100 steps and without one. Xavier
initialisation, as in the paper. Gradients are clipped at norm 1, which the paper does not do."""

import math
from dataclasses import replace

from claim_runs import TERMS, Claim, Records, Run, Verdict, draw_seeds, main, train_and_score
from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure, line

DEEP = replace(TERMS, layers=6, steps=200, learning_rate=1e-3)
XAVIER = {"initializer_range": (2 / (64 + 64)) ** 0.5}
RUNS = {
    f"{norm}-norm, {'warm-up' if warmup else 'no warm-up'}": Run(
        "transformer_xl", replace(DEEP, warmup_steps=warmup), XAVIER | {"norm_position": norm}
    )
    for norm in ("pre", "post")
    for warmup in (0, 100)
}
NEED = 0.1  # bits


def verdict(records: Records) -> Verdict:
    pre, pre_warm, post, post_warm = RUNS
    pre_needs_none = max(records.of(pre, "bits")) < min(records.of(pre_warm, "bits")) + NEED
    post_needs_it = min(records.of(post, "bits")) > max(records.of(post_warm, "bits")) + NEED
    shown = [f"{run} {records.shown(run, 'bits')}" for run in RUNS]
    return Verdict(pre_needs_none and post_needs_it, "bits per byte: " + "; ".join(shown))


def draw(records: Records) -> Figure:
    picture, ((left, right),) = figure(columns=2, width=4.5, height=2.8)
    draw_seeds(left, records, "bits")
    left.set(xlabel="bits per byte of held-out text (not from 0)")
    for index, (run, rows) in enumerate(records.items()):
        style = line(index, len(RUNS)) | {"marker": None}
        for number, row in enumerate(rows):
            bits = [nats / math.log(2) for nats in row["losses"]]
            right.plot(range(20, 20 * len(bits) + 1, 20), bits, label=run if number == 0 else None, **style)
    right.set(xlabel="training step", ylabel="bits per byte, training (not from 0)")
    right.legend()
    return picture


CLAIM = Claim(
    name="pre_norm",
    says="Pre-norm needs no warm-up, post-norm does",
    source="Xiong et al., 2020, section 4",
    held_if=f"without warm-up, pre-norm is never {NEED} bits above pre-norm with it, post-norm always above post-norm with it",
    runs=RUNS,
    measure=train_and_score,
    verdict=verdict,
    draw=draw,
    beyond="One learning rate (1e-3). The paper's are translation and BERT.",
    seeds=2,
)

if __name__ == "__main__":
    main(CLAIM)
