"""Transformer-XL and the same model with Shaw's positions (a vector for each distance up to 16, one for all beyond),
both trained with a memory of 64 bytes and scored with memories of 0 to 512."""

from claim_runs import Claim, Records, Run, Verdict, main, ruled
from relative_positions import LENGTHS, draw, measure

RUNS = {"Transformer-XL": Run("transformer_xl"), "Shaw": Run("shaw_transformer")}


def verdict(records: Records) -> Verdict:
    best = {run: min(LENGTHS, key=lambda length, run=run: sum(records.of(run, f"bits at {length}"))) for run in RUNS}
    held = records.below("Transformer-XL", "Shaw", "bits at 64")
    opposite = records.below("Shaw", "Transformer-XL", "bits at 64")
    shown = [
        f"{run} {records.shown(run, 'bits at 64')}, at its best length, {best[run]}: "
        f"{records.shown(run, f'bits at {best[run]}')}"
        for run in RUNS
    ]
    return Verdict(ruled(held, opposite), "bits per byte with a memory of 64: " + "; ".join(shown))


CLAIM = Claim(
    name="shaw_positions",
    says="Positions of Transformer-XL beat those of Shaw et al.",
    source="[Dai et al., 2019](https://arxiv.org/abs/1901.02860), table 6",
    held_if="every seed of Transformer-XL is below every seed of Shaw's with a memory of 64",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=draw,
    beyond="One size, and a clipping distance of 16. The paper's: "
    "`transformers-xl train --recipe wikitext-103-standard`, on a GPU.",
)

if __name__ == "__main__":
    main(CLAIM)
