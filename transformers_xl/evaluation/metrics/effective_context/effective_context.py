"""RECL (Dai et al., 2019, https://arxiv.org/abs/1901.02860, appendix C) as a module of the `evaluate` library.

`evaluate.load(folder of this file)`, or `EffectiveContext()` where transformers-xl is installed.
"""

import datasets
import evaluate
import numpy as np

from transformers_xl.evaluation.metric_modules import module_info
from transformers_xl.evaluation.recl import recl

_DESCRIPTION = """
Relative effective context length: how far back language models make use of their context, relative to the best of their
group, in tokens.
"""
_KWARGS_DESCRIPTION = """
Args:
    predictions: of each token, its losses by model and context `(models, contexts)`, nats.
    references: of each token, the block of the text that it belongs to.
    models (`list[str]`): names of the models.
    contexts (`list[int]`): context lengths in tokens, at equal distances.
    r, c0, delta, threshold, resamples, confidence, seed: as in `transformers_xl.evaluation.recl.recl`.

Returns:
    recl (`dict`): by model, tokens.
    interval (`dict`): by model, bounds of the confidence interval over blocks; None where there is one block only.
    is_bound (`dict`): by model, whether the RECL is the longest context of all, and therefore a lower bound.
    gains (`dict`): by model and context, the share of perplexity gained by a longer context.
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class EffectiveContext(evaluate.Metric):
    """The metric; tokens may come in batches."""

    def _info(self) -> evaluate.EvaluationModuleInfo:
        losses = datasets.Sequence(datasets.Sequence(datasets.Value("float64")))
        features = datasets.Features({"predictions": losses, "references": datasets.Value("int64")})
        return module_info(_DESCRIPTION, _KWARGS_DESCRIPTION, features)

    def _compute(self, predictions, references, models: list[str], contexts: list[int], **options) -> dict:
        by_token = np.asarray(predictions, dtype=np.float64)
        if by_token.shape[1:] != (len(models), len(contexts)):
            raise ValueError(
                f"`predictions` has shape {by_token.shape}: with `models`={models} and `contexts`={contexts} it must be "
                f"(tokens, {len(models)}, {len(contexts)})."
            )
        losses = {
            model: {context: by_token[:, row, column] for column, context in enumerate(contexts)}
            for row, model in enumerate(models)
        }
        blocks = np.asarray(references)
        results = recl(losses, blocks=blocks if len(set(references)) > 1 else None, **options)
        return {
            "recl": {model: result.length for model, result in results.items()},
            "interval": {model: result.interval for model, result in results.items()},
            "is_bound": {model: result.is_bound for model, result in results.items()},
            "gains": {model: result.gains for model, result in results.items()},
        }
