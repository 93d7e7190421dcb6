"""The picture of a comparison: bits per byte against seconds of training."""

import numpy as np
from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure, line, styled
from transformers_xl.runs.comparison import ComparisonResults, ModelRuns


@styled
def draw_comparison(found: ComparisonResults) -> Figure:
    """A line for each model: means of its seeds, with a bar from the least to the most. A model whose learning rate falls
    has its end alone. Against steps where no seconds were measured."""
    picture, ((axes,),) = figure(width=6.4, height=4.2)
    timed = found.equal_seconds is not None
    for index, model in enumerate(found.models):
        steps = _steps(model)
        bits = np.array([model.per_byte(model.bits[step]) for step in steps])
        mean = bits.mean(1)
        along = np.array(steps) * ((model.seconds_per_step or 0) if timed else 1)
        spans = np.abs(np.stack([bits.min(1), bits.max(1)]) - mean)
        axes.errorbar(along, mean, spans, **line(index, len(found.models)), capsize=2, label=model.name)
    if found.equal_seconds is not None:
        axes.axvline(found.equal_seconds, color="0.6", linewidth=0.8)
    clock = found.speeds.get("clock", "the processor")
    axes.set(xlabel=f"training (seconds of {clock})" if timed else "training steps", ylabel="bits per byte")
    axes.legend(title=f"{len(found.reference.num_bytes)} documents, {found.seeds} seeds")
    return picture


def _steps(model: ModelRuns) -> list[int]:
    steps = sorted(model.bits)
    return steps if model.first["setting"]["schedule"] == "constant" else steps[-1:]


__all__ = ["draw_comparison"]
