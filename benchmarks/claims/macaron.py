"""Two feed-forwards of half the inner width, each counted by half, around the attention, against one of whole width
behind it: the same parameters but for a norm."""

from dataclasses import replace

from claim_runs import TERMS, Claim, Records, Run, Verdict, draw_seeds, main, ruled, train_and_score
from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure

FOUR = replace(TERMS, layers=4)
RUNS = {"Macaron": Run("macaron", FOUR, intermediate_size=128), "Transformer-XL": Run("transformer_xl", FOUR)}


def verdict(records: Records) -> Verdict:
    held = records.below("Macaron", "Transformer-XL", "bits")
    opposite = records.below("Transformer-XL", "Macaron", "bits")
    shown = [
        f"{run} {records.shown(run, 'bits')} with {records[run][0]['parameters']:,} parameters, "
        f"{records.shown(run, 'seconds', 0)} s"
        for run in RUNS
    ]
    return Verdict(ruled(held, opposite), "bits per byte: " + "; ".join(shown))


def draw(records: Records) -> Figure:
    picture, ((axes,),) = figure(width=6, height=2)
    draw_seeds(axes, records, "bits")
    axes.set(xlabel="bits per byte of held-out text (not from 0)")
    return picture


CLAIM = Claim(
    name="macaron",
    says="A Macaron layer beats an ordinary one of equal parameters",
    source="[Lu et al., 2019](https://arxiv.org/abs/1906.02762), section 4",
    held_if="every seed of Macaron is below every seed of Transformer-XL",
    runs=RUNS,
    measure=train_and_score,
    verdict=verdict,
    draw=draw,
    beyond="The paper's are translation (the claim `macaron_translation`) and BERT, which is not tried here.",
)

if __name__ == "__main__":
    main(CLAIM)
