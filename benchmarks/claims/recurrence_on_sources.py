"""As the claim before, on the sources of Python's library and for half as many steps."""

from claim_runs import Claim, main
from recurrence import draw, measure, runs_of, verdict

CLAIM = Claim(
    name="recurrence_on_sources",
    says="Recurrence lowers bits per byte: program text",
    source="[Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 4.2, tables 6 and 7",
    held_if="every seed with memory is below every seed of each model without",
    runs=runs_of(600),
    measure=measure,
    verdict=verdict,
    draw=draw,
    no_power="0.6 MB of text, at which a memory is not yet ahead: [memory_worth.md](memory_worth.md#the-first-steps).",
    beyond="After 10.9 MB a model 28 times as large is 0.31 bits ahead of the same without memory, 0.28 of "
    "segments as long as both, and 0.23 of their re-read windows ([one "
    "seed](memory_worth.md#on-11-mb-of-source-code)).",
    given="10.9",
    worked_out="0.31",
    also=("library_run", "library_without_memory"),
)

if __name__ == "__main__":
    main(CLAIM)
