"""What the modules for the `evaluate` library (`metrics/`) share: the paper that they cite, and how they are described.

They import functions alone: `evaluate.load` takes the first class that it finds in a module.
"""

import datasets
import evaluate

_CITATION = """
@inproceedings{dai2019transformerxl,
  title = {Transformer-XL: Attentive Language Models beyond a Fixed-Length Context},
  author = {Dai, Zihang and Yang, Zhilin and Yang, Yiming and Carbonell, Jaime and Le, Quoc V. and Salakhutdinov, Ruslan},
  booktitle = {Proceedings of ACL},
  year = {2019}
}
"""
TEXT_ARGUMENTS = """
Args:
    predictions (`list[str]`): texts, each of at least two tokens; each is read from an empty memory.
    model: a causal language model of transformers-xl, or its folder or repository on the Hub.
    tokenizer: its tokenizer; that of the folder or repository when not given.
    segment_length (`int`): tokens per segment; `config.segment_length` when not given.
    memory (`bool`): `True`, a segment is read with the memory of those before; `False`, each segment alone.
"""


def module_info(
    description: str, arguments: str, features: datasets.Features, module_type: str = "metric"
) -> evaluate.EvaluationModuleInfo:
    """How `evaluate` describes a metric, or a measurement."""
    info_class = evaluate.MeasurementInfo if module_type == "measurement" else evaluate.MetricInfo
    return info_class(
        module_type=module_type,
        description=description,
        citation=_CITATION,
        inputs_description=arguments,
        features=features,
        reference_urls=["https://arxiv.org/abs/1901.02860"],
    )


def text_info(description: str, arguments: str) -> evaluate.EvaluationModuleInfo:
    """That of a measurement of texts."""
    return module_info(
        description, arguments, datasets.Features({"predictions": datasets.Value("string")}), "measurement"
    )


__all__ = ["TEXT_ARGUMENTS", "module_info", "text_info"]
