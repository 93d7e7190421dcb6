"""R-Transformer has no positions: its local RNN reads the last 7 bytes at each place. With a window of 1 it is the
same model, blind to order but for what the causal mask shows. A Transformer-XL of the same width stands beside."""

from claim_runs import Claim, Records, Run, Verdict, draw_seeds, main, ruled, train_and_score
from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure

RUNS = {
    "R-Transformer, window 7": Run("r_transformer"),
    "R-Transformer, window 1": Run("r_transformer", fields={"local_window": 1}),
    "Transformer-XL": Run("transformer_xl"),
}


def verdict(records: Records) -> Verdict:
    with_order, blind, relative = RUNS
    held = records.below(with_order, blind, "bits") and not records.below(relative, with_order, "bits")
    opposite = records.below(blind, with_order, "bits")
    shown = [
        f"{run} {records.shown(run, 'bits')}, {records[run][0]['parameters']:,} parameters, "
        f"{records.shown(run, 'seconds', 0)} s"
        for run in RUNS
    ]
    return Verdict(ruled(held, opposite), "bits per byte: " + "; ".join(shown))


def draw(records: Records) -> Figure:
    picture, ((axes,),) = figure(width=6, height=2.2)
    draw_seeds(axes, records, "bits")
    axes.set(xlabel="bits per byte of held-out text (not from 0)")
    return picture


CLAIM = Claim(
    name="local_rnn",
    says="With a local RNN, a Transformer needs no positions",
    source="[Wang et al., 2019 (R-Transformer)](https://arxiv.org/abs/1907.05572), sections 2 and 3",
    held_if="every seed is below every seed with a window of 1, and not all seeds above those of Transformer-XL",
    runs=RUNS,
    measure=train_and_score,
    verdict=verdict,
    draw=draw,
    beyond="R-Transformer has a third more parameters here than Transformer-XL, and takes twice the time. The paper's "
    "sizes: `transformers-xl train --recipe r-transformer-ptb-char`.",
)

if __name__ == "__main__":
    main(CLAIM)
