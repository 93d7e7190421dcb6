"""GTrXL, TrXL-I (pre-norm, no gates) and the original Transformer-XL (post-norm) as agents on bsuite's `memory_len`, whose
episodes grow from 5 to 10 steps, by PPO at learning rates from usual to far too high (`benchmarks/bench_memory_tasks.py`,
which needs `pip install '.[rl]'`)."""

import numpy as np
from agent_records import LEVEL, fisher, learned, measure
from claim_runs import Claim, Records, Verdict, main, ruled
from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure, line

RATES = (1e-3, 1e-2, 3e-2)
MODELS = ("GTrXL", "TrXL-I", "TrXL")
RUNS = {
    f"{model}, {rate:g}": {"task": "memory_len 10", "model": model, "rate": rate} for rate in RATES for model in MODELS
}


def counts_of(records: Records) -> dict[str, list[int]]:
    """Of each model, in how many seeds it learned at each rate."""
    return {model: learned(records, [f"{model}, {rate:g}" for rate in RATES]) for model in MODELS}


def verdict(records: Records) -> Verdict:
    counts, seeds = counts_of(records), len(records[f"GTrXL, {RATES[0]:g}"])
    runs = seeds * len(RATES)
    gated, *others = (sum(counts[model]) for model in MODELS)
    more = [fisher(gated, other, runs) for other in others]
    less = [fisher(other, gated, runs) for other in others]
    told = "; ".join(f"{model} {', '.join(map(str, count))}" for model, count in counts.items())
    against = ", ".join(f"{model} p = {chance:.2f}" for model, chance in zip(MODELS[1:], more, strict=True))
    return Verdict(
        ruled(max(more) < LEVEL, min(less) < LEVEL),
        f"seeds of {seeds} that learned at rates of {', '.join(f'{rate:g}' for rate in RATES)}: {told}; GTrXL in more, by "
        f"Fisher's exact test: than {against}",
    )


def draw(records: Records) -> Figure:
    picture, ((axes,),) = figure(width=5.5, height=3)
    counts = counts_of(records)
    for index, (model, count) in enumerate(counts.items()):
        axes.plot(np.array(RATES) * 1.04 ** (index - 1), count, label=model, **line(index, len(counts)))
    axes.set(xscale="log", xlabel="learning rate", ylabel="seeds that learned", ylim=(-0.2, 5.2))
    axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
    axes.minorticks_off()
    axes.legend()
    return picture


CLAIM = Claim(
    name="steady_agents",
    says="GRU gates steady agents over learning rates and seeds",
    source="[Parisotto et al., 2019](https://arxiv.org/abs/1910.06764), section 4.3",
    held_if="over all rates GTrXL learns in more runs than TrXL-I and than TrXL by Fisher's exact test, p below 0.05 in "
    "both; not held if one of them learns in more than GTrXL by the same test",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=draw,
    beyond="A run has 25,000 environment steps at most, and agents have two layers of width 32. Fifteen runs of each see a "
    "difference of four at best (15 against 11).",
    seeds=5,
    given="0.05",
)

if __name__ == "__main__":
    main(CLAIM)
