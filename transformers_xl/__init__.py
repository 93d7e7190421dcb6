"""Transformers that remember past their window, as Hugging Face models.

`import transformers_xl` registers every variant with the Auto classes of transformers: at once, or when these are imported.
"""

import importlib as _importlib
import sys as _sys
from pathlib import Path as _Path
from typing import Any as _Any

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


# the folders that registering imports
_REGISTERED = ("configuration", "hub", "modeling", "tokenization")


def _register() -> None:
    _importlib.import_module(f"{__name__}.modeling.auto").register()
    _importlib.import_module(f"{__name__}.hub.saving").register()  # code goes beside the weights that are saved


class _Registration:
    """A finder that registers as soon as transformers is imported, or one of the folders that registering imports.

    Nobody can ask the Auto classes for a model before. `transformers-xl --help` imports neither, and so answers without the
    seconds that torch and transformers take.
    """

    names = frozenset({"transformers", *(f"{__name__}.{room}" for room in _REGISTERED)})

    def find_spec(self, name, path=None, target=None):
        if name not in self.names:
            return None
        specs = (finder.find_spec(name, path, target) for finder in _sys.meta_path if finder is not self)
        spec: _Any = next((spec for spec in specs if spec is not None), None)
        if spec is not None:
            spec.loader = _ThenRegister(spec.loader, self)
        return spec


class _ThenRegister:
    """A loader that is `loader`, and registers when the module is there."""

    def __init__(self, loader, finder: _Registration):
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str):
        return getattr(self._loader, name)

    def exec_module(self, module) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._finder in _sys.meta_path:
            _sys.meta_path.remove(self._finder)
            _register()


if "transformers" in _sys.modules:
    _register()
else:
    _sys.meta_path.insert(0, _Registration())
