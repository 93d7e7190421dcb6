"""A Depth-adaptive Transformer of four layers, aligned training: bits per byte and layers used when tokens leave with
the first layer whose largest probability reaches a threshold, beside the same model cut after a fixed layer."""

import statistics
from dataclasses import replace

from claim_runs import TERMS, Claim, Record, Records, Run, Session, Verdict, bits, main, ruled
from matplotlib.figure import Figure

from transformers_xl.evaluation.inspection import exit_layers
from transformers_xl.evaluation.plots import figure, line

LAYERS, NEVER, MORE = 4, 2.0, 1.01
THRESHOLDS = [0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
RUNS = {"depth-adaptive": Run("depth_adaptive_transformer", replace(TERMS, layers=LAYERS, steps=500))}
WAYS = {f"threshold {each}": each for each in THRESHOLDS} | {
    f"layer {each}": [NEVER] * (each - 1) + [0.0] * (LAYERS - each) for each in range(1, LAYERS)
}


def measure(session: Session, run: Run, seed: int) -> Record:
    model, training = session.trained(run, seed)
    held_out = session.held_out(16_384)
    record = {**training, "bits": bits(model, held_out)}
    for name, thresholds in WAYS.items():
        model.config.confidence_thresholds = thresholds
        record[f"{name}, layers"] = round(float(exit_layers(model, held_out).mean()), 3)
        record[f"{name}, bits"] = bits(model, held_out)
    return record


def kept(row: Record) -> float:
    """The fewest layers at which a threshold keeps the bits within 1 %."""
    found = [
        row[f"{name}, layers"] for name in WAYS if "threshold" in name and row[f"{name}, bits"] < MORE * row["bits"]
    ]
    return min(found, default=float(LAYERS))


def verdict(records: Records) -> Verdict:
    (run,) = RUNS
    rows = Records({run: [{"layers": kept(row)} for row in records[run]]})
    held = all(row["layers"] <= 0.75 * LAYERS for row in rows[run])
    opposite = all(row["layers"] > 0.75 * LAYERS for row in rows[run])
    return Verdict(
        ruled(held, opposite),
        f"all {LAYERS} layers: {records.shown(run, 'bits')} bits per byte; within 1 % of it with "
        f"{rows.shown(run, 'layers', 2)} layers a token; cut after layer 3: {records.shown(run, 'layer 3, bits')}",
    )


def draw(records: Records) -> Figure:
    (rows,) = records.values()
    picture, ((axes,),) = figure()
    for index, kind in enumerate(("threshold", "layer")):
        names = [name for name in WAYS if kind in name]
        seeds = [[(row[f"{name}, layers"], row[f"{name}, bits"]) for row in rows] for name in names]
        seeds.append([(LAYERS, row["bits"]) for row in rows])
        points = [[statistics.mean(values) for values in zip(*each, strict=True)] for each in seeds]
        style = line(index, 2)
        for each in seeds:
            axes.plot(*zip(*each, strict=True), marker=style["marker"], color=style["color"], ls="", alpha=0.3)
        label = {"threshold": "thresholds 0.4 to 0.95", "layer": "all leave after the same layer"}[kind]
        axes.plot(*zip(*sorted(points), strict=True), label=label, **style)
    axes.set(xlabel="layers used per token", ylabel="bits per byte (not from 0)", xlim=(0, None))
    axes.legend()
    return picture


CLAIM = Claim(
    name="early_exit",
    says="Tokens that leave early keep the loss",
    source="[Elbayad et al., 2020](https://arxiv.org/abs/1910.10073), section 4",
    held_if="in every seed a threshold saves a quarter of the layers and costs less than 1 % of the bits",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=draw,
    beyond="The paper's is translation with at most an eighth of the layers used: the claim `exits_translation`.",
)

if __name__ == "__main__":
    main(CLAIM)
