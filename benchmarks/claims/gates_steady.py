"""The original Transformer-XL (post-norm), TrXL-I (pre-norm, no gates) and GTrXL with GRU gates as small deep language
models, without warm-up, at learning rates from usual to far too high, five seeds each. The paper's are agents of
reinforcement learning."""

import statistics
from dataclasses import replace

from claim_runs import TERMS, Claim, Records, Run, Verdict, main, ruled, train_and_score
from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure, line

RATES = (3e-3, 1e-2, 3e-2, 1e-1)
SMALL = replace(
    TERMS, hidden_size=32, layers=6, segment_length=32, mem_len=32, batch_size=8, steps=100, warmup_steps=0
)
START = {"initializer_range": 0.11}  # sqrt(2 / (5 x 32))
MODELS = {
    "GRU gates": ("gtrxl", {"gate_type": "gru"}),
    "no gates": ("gtrxl", {"gate_type": "none"}),
    "post-norm": ("transformer_xl", {"norm_position": "post"}),
}
RUNS = {
    f"{name}, {rate:g}": Run(model, replace(SMALL, learning_rate=rate), START | fields, intermediate_size=64)
    for rate in RATES
    for name, (model, fields) in MODELS.items()
}


def verdict(records: Records) -> Verdict:
    worst = {name: [max(records.of(f"{name}, {rate:g}", "bits")) for rate in RATES[-2:]] for name in MODELS}
    held = all(
        gated < other
        for name in list(MODELS)[1:]
        for gated, other in zip(worst["GRU gates"], worst[name], strict=True)
    )
    shown = [f"{name} {', '.join(records.shown(f'{name}, {rate:g}', 'bits', 2) for rate in RATES)}" for name in MODELS]
    rates = ", ".join(f"{rate:g}" for rate in RATES)
    opposite = any(worst[name][-1] < min(records.of(f"GRU gates, {RATES[-1]:g}", "bits")) for name in list(MODELS)[1:])
    return Verdict(ruled(held, opposite), f"bits per byte at rates of {rates}: " + "; ".join(shown))


def draw(records: Records) -> Figure:
    picture, ((axes,),) = figure(width=6)
    for index, name in enumerate(MODELS):
        style = line(index, len(MODELS))
        seeds = [records.of(f"{name}, {rate:g}", "bits") for rate in RATES]
        places = [rate * 1.06 ** (index - 1) for rate in RATES]
        axes.plot(places, [statistics.mean(values) for values in seeds], label=name, **style)
        for place, values in zip(places, seeds, strict=True):
            axes.plot([place] * len(values), values, marker=style["marker"], color=style["color"], ls="", alpha=0.4)
    axes.set(xscale="log", xlabel="learning rate", ylabel="bits per byte, held-out (not from 0)")
    axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
    axes.minorticks_off()
    axes.legend()
    return picture


CLAIM = Claim(
    name="gates_steady",
    says="GRU gates steady training",
    source="[Parisotto et al., 2019](https://arxiv.org/abs/1910.06764), section 4.3",
    held_if="at the two highest rates the worst seed with GRU gates is below the worst of both others",
    runs=RUNS,
    measure=train_and_score,
    verdict=verdict,
    draw=draw,
    beyond="Each run reads 25,600 bytes: this is how a training begins. Language models in place of the paper's "
    "agents, which need DMLab-30 and weeks of accelerators. GRU gates more than double the parameters "
    "(139,427 against 65,315), and gain nothing at the two lower rates.",
    seeds=5,
)

if __name__ == "__main__":
    main(CLAIM)
