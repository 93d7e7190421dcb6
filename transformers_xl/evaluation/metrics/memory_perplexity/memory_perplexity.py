"""Perplexity of texts by a model that remembers past its segments, as a module of the `evaluate` library.

`evaluate.load(folder of this file)`, or `MemoryPerplexity()` where transformers-xl is installed.
"""

import evaluate

from transformers_xl.data.score_units import perplexity
from transformers_xl.evaluation.metric_modules import TEXT_ARGUMENTS, text_info
from transformers_xl.evaluation.text_scores import score_texts

_DESCRIPTION = """
How well a model with segment memory predicts texts: perplexity per token and per whitespace word. Every token has the same
weight.
"""
_KWARGS_DESCRIPTION = f"""{TEXT_ARGUMENTS}
Returns:
    perplexity (`float`): exp(nats / tokens) over all texts.
    word_perplexity (`float`): exp(nats / words) over all texts; words are what white space parts.
    nats_per_token (`float`): over all texts.
    perplexities (`list[float]`): perplexity per token of each text.
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class MemoryPerplexity(evaluate.Measurement):
    """The measurement; texts may come in batches."""

    def _info(self) -> evaluate.EvaluationModuleInfo:
        return text_info(_DESCRIPTION, _KWARGS_DESCRIPTION)

    def _compute(self, predictions, model, tokenizer=None, segment_length=None, memory=True) -> dict:
        scores = score_texts(predictions, model, tokenizer, segment_length, memory)
        nats = sum(score.nats for score in scores)
        tokens = sum(score.tokens for score in scores)
        return {
            "perplexity": perplexity(nats, tokens),
            "word_perplexity": perplexity(nats, sum(score.words or 0 for score in scores)),
            "nats_per_token": nats / tokens,
            "perplexities": [score.perplexity for score in scores],
        }


__all__ = ["MemoryPerplexity"]
