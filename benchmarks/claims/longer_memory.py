"""A Transformer-XL that was trained with a memory of 64 bytes reads with longer ones, without more training."""

from claim_runs import Claim, Records, Run, Verdict, main, ruled
from relative_positions import LENGTHS, draw, measure

RUNS = {"trained with 64": Run("transformer_xl")}


def verdict(records: Records) -> Verdict:
    (run,) = RUNS
    pairs = list(zip(records.of(run, "bits at 256"), records.of(run, "bits at 64"), strict=True))
    held, opposite = (
        all(longer < trained for longer, trained in pairs),
        all(longer > trained for longer, trained in pairs),
    )
    shown = [f"{length}: {records.shown(run, f'bits at {length}')}" for length in LENGTHS if length >= 64]
    return Verdict(ruled(held, opposite), "bits per byte with a memory of " + "; ".join(shown))


CLAIM = Claim(
    name="longer_memory",
    says="A memory that is longer in evaluation than in training helps",
    source="[Dai et al., 2019](https://arxiv.org/abs/1901.02860), sections 4.1 and 4.2",
    held_if="every seed is lower with 256 than with 64",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=draw,
    no_power="After 400 steps such a model gains less than 0.01 bits from the second half of its own memory (from "
    "32 bytes to 64), so that there is nothing to gain beyond it.",
    beyond="The paper trains with 512 and evaluates with 2,100 (enwik8): "
    "`transformers-xl train --recipe enwik8-12l`, on a GPU.",
)

if __name__ == "__main__":
    main(CLAIM)
