"""Transformers that remember past their window, as Hugging Face models.

`import transformers_xl` registers every variant with the Auto classes of transformers.
"""

import importlib as _importlib
import sys as _sys
from pathlib import Path as _Path

__version__ = "0.1.0.dev0"

if not (
    _Path(__file__).parent / "modeling"
).is_dir():  # a checkout, not a wheel: the root folders are the sub-packages
    __path__.append(str(_Path(__file__).parent.parent))

_VARIANTS = {
    "TransformerXL": "transformer_xl",
    "VanillaTransformer": "vanilla_transformer",
    "ShawTransformer": "shaw_transformer",
    "RTransformer": "r_transformer",
    "GTrXL": "gtrxl",
    "Macaron": "macaron",
    "PKMTransformer": "pkm_transformer",
    "TensorizedTransformer": "tensorized_transformer",
    "AdaptiveSpan": "adaptive_span",
    "UniversalTransformer": "universal_transformer",
    "DepthAdaptiveTransformer": "depth_adaptive_transformer",
    "StarTransformer": "star_transformer",
    "ShaRNN": "sha_rnn",
    "CausalLongformer": "causal_longformer",
    "ComplexOrderTransformer": "complex_order_transformer",
}
_NAMES = {
    "ByteTokenizer": "tokenization.tokenization_bytes",
    "GTrXLForActorCritic": "modeling.modeling_gtrxl",
    "MemoryCache": "modeling.memory",
    "MemoryConfig": "configuration.configuration_memory",
    "MemoryFeatureExtractionPipeline": "modeling.feature_extraction",
    "MemoryTrainer": "training.trainer",
    "WordTokenizer": "tokenization.tokenization_words",
}
for _name, _file in _VARIANTS.items():
    _NAMES[f"{_name}Config"] = f"configuration.configuration_{_file}"
    for _end in ("Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification"):
        _NAMES[f"{_name}{_end}"] = f"modeling.modeling_{_file}"
del _NAMES["StarTransformerForCausalLM"]  # an encoder

__all__ = list(_NAMES)


def __getattr__(name: str):
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


# The command line answers `--help` at once, without the seconds that torch and transformers take to import: its commands
# register when they load a model.
if _Path(getattr(_sys, "argv", [""])[0]).stem != "transformers-xl":
    _importlib.import_module(f"{__name__}.modeling.auto").register()
    _importlib.import_module(f"{__name__}.hub.saving").register()  # code goes beside the weights that are saved
