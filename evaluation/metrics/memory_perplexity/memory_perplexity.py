"""Perplexity of texts by a model that remembers past its segments, as a module of the `evaluate` library.

`evaluate.load(folder of this file)`, or `MemoryPerplexity()` where transformers-xl is installed.
"""

import datasets
import evaluate

from transformers_xl.evaluation.bits_per_byte import perplexity
from transformers_xl.evaluation.text_scores import score_texts

_DESCRIPTION = """
How well a model with segment memory predicts texts: perplexity per token and per word, every token weighed alike.
"""
_KWARGS_DESCRIPTION = """
Args:
    predictions (`list[str]`): texts, each of at least two tokens; each is read from an empty memory.
    model: a causal language model of transformers-xl, or its folder or repository on the Hub.
    tokenizer: its tokenizer; that of the folder or repository when not given.
    segment_length (`int`): tokens per segment; `config.segment_length` when not given.
    memory (`bool`): `True`, a segment is read with the memory of those before; `False`, each segment alone.

Returns:
    perplexity (`float`): exp(nats / tokens) over all texts.
    word_perplexity (`float`): exp(nats / words) over all texts; words are what white space parts.
    nats_per_token (`float`): over all texts.
    perplexities (`list[float]`): perplexity per token of each text.
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
class MemoryPerplexity(evaluate.Measurement):
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
        tokens = sum(score.tokens for score in scores)
        return {
            "perplexity": perplexity(nats, tokens),
            "word_perplexity": perplexity(nats, sum(score.words or 0 for score in scores)),
            "nats_per_token": nats / tokens,
            "perplexities": [score.perplexity for score in scores],
        }


__all__ = ["MemoryPerplexity"]
