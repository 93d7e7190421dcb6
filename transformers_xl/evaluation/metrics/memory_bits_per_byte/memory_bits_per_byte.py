"""Bits per byte of texts by a model that remembers past its segments, as a module of the `evaluate` library.

`evaluate.load(folder of this file)`, or `MemoryBitsPerByte()` where transformers-xl is installed.
"""

import evaluate

from transformers_xl.data.score_units import bits_per
from transformers_xl.evaluation.metric_modules import TEXT_ARGUMENTS, text_info
from transformers_xl.evaluation.text_scores import score_texts

_DESCRIPTION = """
How well a model with segment memory predicts texts: bits per byte and per character, every byte weighed alike.
"""
_KWARGS_DESCRIPTION = f"""{TEXT_ARGUMENTS}
Returns:
    bits_per_byte (`float`): nats / ln 2 / bytes over all texts, without the bytes of each text's first token.
    bits_per_character (`float`): the same by characters.
    by_text (`list[float]`): bits per byte of each text.
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class MemoryBitsPerByte(evaluate.Measurement):
    """The measurement; texts may come in batches."""

    def _info(self) -> evaluate.EvaluationModuleInfo:
        return text_info(_DESCRIPTION, _KWARGS_DESCRIPTION)

    def _compute(self, predictions, model, tokenizer=None, segment_length=None, memory=True) -> dict:
        scores = score_texts(predictions, model, tokenizer, segment_length, memory)
        nats = sum(score.nats for score in scores)
        return {
            "bits_per_byte": bits_per(nats, sum(score.bytes for score in scores)),
            "bits_per_character": bits_per(nats, sum(score.characters or 0 for score in scores)),
            "by_text": [score.bits_per_byte for score in scores],
        }


__all__ = ["MemoryBitsPerByte"]
