"""The memory probe (`transformers-xl probe`) as a module of the `evaluate` library.

`evaluate.load(folder of this file)`, or `MemoryProbe()` where transformers-xl is installed.
"""

import datasets
import evaluate
import numpy as np

from transformers_xl.evaluation.metric_modules import module_info
from transformers_xl.evaluation.probe import score_answers

_DESCRIPTION = """
How often a model answers rightly, against how many tokens back the answer was told.
"""
_KWARGS_DESCRIPTION = """
Args:
    predictions: of each question, the token that the model holds for the likeliest.
    references: of each question, the token that answers it.
    distances: of each question, tokens back to where its answer was told.
    edges (`list[int]`): the largest distance of each bin, growing; what lies after the last is not counted.
    chance (`float`): accuracy of a guess.

Returns:
    bins (`list[tuple[int, int]]`): distances of each bin, first and last.
    asked (`list[int]`), accuracy (`list[float | None]`): of each bin; None where nothing was asked.
    intervals (`list[tuple[float, float]]`): Wilson's intervals of 95 %.
    half (`int | None`): the largest distance up to which every bin, from the best one on, is above half of the way from
        chance to the best; None where no bin is certainly above chance.
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class MemoryProbe(evaluate.Metric):
    """The metric; questions may come in batches."""

    def _info(self) -> evaluate.EvaluationModuleInfo:
        features = datasets.Features(
            dict.fromkeys(("predictions", "references", "distances"), datasets.Value("int64"))
        )
        return module_info(_DESCRIPTION, _KWARGS_DESCRIPTION, features)

    def _compute(self, predictions, references, distances, edges: list[int], chance: float) -> dict:
        predicted, answers, distances = map(np.asarray, (predictions, references, distances))
        score = score_answers(predicted, answers, distances, tuple(edges), chance)
        return {
            "bins": score.bins,
            "asked": list(score.asked),
            "accuracy": score.accuracy,
            "intervals": score.intervals,
            "half": score.half,
        }
