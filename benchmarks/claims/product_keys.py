"""One feed-forward of four becomes a product-key memory of 4,096 slots; against the model without, and one whose
feed-forwards are so much wider that it has as many parameters. Seconds are those of the whole training."""

from dataclasses import replace

from claim_runs import TERMS, Claim, Records, Run, Verdict, draw_seeds, main, ruled, train_and_score
from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure

FOUR = replace(TERMS, layers=4)
KEYS = {"num_memory_keys": 64, "memory_key_dim": 64, "memory_heads": 2, "memory_topk": 16, "memory_layers": [2]}
RUNS = {
    "product keys": Run("pkm_transformer", FOUR, KEYS),
    "without": Run("transformer_xl", FOUR),
    "as many parameters": Run("transformer_xl", FOUR, intermediate_size=732),
}


def verdict(records: Records) -> Verdict:
    better = records.below("product keys", "without", "bits")
    cheaper = records.below("product keys", "as many parameters", "seconds")
    no_worse = not records.below("as many parameters", "product keys", "bits")
    opposite = any(records.below(other, "product keys", "bits") for other in ("without", "as many parameters"))
    shown = [
        f"{run} {records.shown(run, 'bits')}, {records[run][0]['parameters']:,} parameters, "
        f"{records.shown(run, 'seconds', 0)} s"
        for run in RUNS
    ]
    return Verdict(ruled(better and cheaper and no_worse, opposite), "bits per byte: " + "; ".join(shown))


def draw(records: Records) -> Figure:
    picture, ((left, right),) = figure(columns=2, width=4.5, height=2.2)
    draw_seeds(left, records, "bits")
    draw_seeds(right, records, "seconds")
    left.set(xlabel="bits per byte of held-out text (not from 0)")
    right.set(xlabel="processor seconds of the training", xlim=(0, None))
    return picture


CLAIM = Claim(
    name="product_keys",
    says="Product keys add capacity at little cost",
    source="[Lample et al., 2019](https://arxiv.org/abs/1907.05242), section 4",
    held_if="every seed is below every seed without; as many parameters cost more, and are not below every seed",
    runs=RUNS,
    measure=train_and_score,
    verdict=verdict,
    draw=draw,
    beyond="Cost against 2^10 to 2^18 slots: `python benchmarks/bench_product_keys.py`. The paper's slots are 2^18.",
)

if __name__ == "__main__":
    main(CLAIM)
