"""Transformer-XL, and the same model with sinusoidal positions that begin again with every segment, so that a byte of the
memory and a byte of the segment have the same: each with a memory of 64 bytes and without. What a memory adds with
absolute positions, less what it adds with relative ones, is confusion; the rest of the distance between the two is
positions. Each of the four is trained at the best of five rates (seed 0, modules for validation), and scored on the 40
modules of the test, whole. Intervals (95 %) are of a bootstrap over seeds and modules."""

from dataclasses import replace

from claim_runs import TERMS, Claim, Records, Verdict, draw_seeds, main
from matplotlib.figure import Figure
from split_runs import SplitRun, difference, split_folder, train_and_score_modules

from transformers_xl.evaluation.plots import figure

RATES = (1.5e-3, 3e-3, 6e-3, 12e-3, 24e-3)
RUNS = {
    kind + shown: SplitRun(model, replace(TERMS, mem_len=mem_len), rates=RATES)
    for kind, model in (("absolute", "absolute_transformer_xl"), ("relative", "transformer_xl"))
    for shown, mem_len in ((", memory", 64), ("", 0))
}
ABSOLUTE, RELATIVE = ({f"{kind}, memory": 1.0, kind: -1.0} for kind in ("absolute", "relative"))


def verdict(records: Records) -> Verdict:
    """Held where a memory costs more with absolute positions; None where the interval includes zero, or there is none."""
    if min(map(len, records.values())) < 2:
        return Verdict(None, "one seed")
    found = {
        "absolute": difference(records, ABSOLUTE),
        "relative": difference(records, RELATIVE),
        "confusion": difference(records, ABSOLUTE | {run: -factor for run, factor in RELATIVE.items()}),
        "positions": difference(records, {"absolute": 1.0, "relative": -1.0}),
    }
    shown = "; ".join(f"{run} {records.shown(run, 'bits')}" for run in records)
    return Verdict(
        {1: True, -1: False, 0: None}[found["confusion"].sign],
        f"bits per byte: {shown}. A memory adds {found['absolute']} bits with absolute positions and {found['relative']} "
        f"with relative ones: {found['confusion']} of confusion. Without a memory, absolute positions cost "
        f"{found['positions']}",
        {name: tuple(round(value, 5) for value in (each.mean, each.low, each.high)) for name, each in found.items()},
    )


def draw(records: Records) -> Figure:
    picture, ((axes,),) = figure(width=7, height=2.5)
    draw_seeds(axes, records, "bits")
    axes.set(xlabel="bits per byte of the test's modules (not from 0)")
    return picture


CLAIM = Claim(
    name="temporal_confusion",
    says="A memory confuses absolute positions, and not relative ones",
    source="[Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.3 and table 6",
    held_if="the interval of what a memory adds with absolute positions, less what it adds with relative ones, lies above "
    "zero; below zero, it is not held, and where it includes zero, out of reach here",
    runs=RUNS,
    measure=train_and_score_modules,
    verdict=verdict,
    draw=draw,
    beyond="One size, and 0.4 MB of training text. The paper's: `transformers-xl train --recipe wikitext-103-standard`, "
    "on a GPU.",
    seeds=5,
    text=split_folder,
)

if __name__ == "__main__":
    main(CLAIM)
