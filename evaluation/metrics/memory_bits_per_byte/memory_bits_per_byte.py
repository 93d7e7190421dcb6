"""Bits per byte of texts by a model that remembers past its segments, as a module of the `evaluate` library.

`evaluate.load(folder of this file)`, or `MemoryBitsPerByte()` where transformers-xl is installed.
"""

import math

import datasets
import evaluate

from transformers_xl.evaluation.text_scores import score_texts

_DESCRIPTION = """
How well a model with segment memory predicts texts: bits per byte and per character, every byte weighed alike.
"""
_KWARGS_DESCRIPTION = """
Args:
    predictions (`list[str]`): texts, each of at least two tokens; each is read from an empty memory.
    model: a causal language model of transformers-xl, or its folder or repository on the Hub.
    tokenizer: its tokenizer; that of the folder or repository when not given.
    segment_length (`int`): tokens per segment; `config.segment_length` when not given.
    memory (`bool`): `True`, a segment is read with the memory of those before; `False`, each segment alone.

Returns:
    bits_per_byte (`float`): nats / ln 2 / bytes over all texts, without the bytes of each text's first token.
    bits_per_character (`float`): the same by characters.
    by_text (`list[float]`): bits per byte of each text.
"""
_CITATION = """
@inproceedings{dai2019transformerxl,
  title = {Transformer-XL: Attentive Language Models beyond a Fixed-Length Context},
  author = {Dai, Zihang and Yang, Zhilin and Yang, Yiming and Carbonell, Jaime and Le, Quoc V. and Salakhutdinov, Ruslan},
  booktitle = {Proceedings of ACL},
  year = {2019}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class MemoryBitsPerByte(evaluate.Measurement):
    """The measurement; texts may come in batches."""

    def _info(self) -> evaluate.MeasurementInfo:
        return evaluate.MeasurementInfo(
            module_type="measurement",
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": datasets.Value("string")}),
            reference_urls=["https://arxiv.org/abs/1901.02860"],
        )

    def _compute(self, predictions, model, tokenizer=None, segment_length=None, memory=True) -> dict:
        scores = score_texts(predictions, model, tokenizer, segment_length, memory)
        nats = sum(score.nats for score in scores)
        bits = nats / math.log(2)
        return {
            "bits_per_byte": bits / sum(score.bytes for score in scores),
            "bits_per_character": bits / sum(score.characters or 0 for score in scores),
            "by_text": [score.bits_per_byte for score in scores],
        }


__all__ = ["MemoryBitsPerByte"]
