"""Transformers that remember past their window, as Hugging Face models.

`import transformers_xl` registers every variant with the Auto classes of transformers: at once, or when these are imported.
"""

import importlib as _importlib
import sys as _sys
from pathlib import Path as _Path
from typing import Any as _Any

__version__ = "0.2.0"

if not (
    _Path(__file__).parent / "modeling"
).is_dir():  # a checkout, not a wheel: the root folders are the sub-packages
    __path__.append(str(_Path(__file__).parent.parent))

_NAMES = {
    "AdaptiveSoftmaxConfig": "transformers_xl.configuration.configuration_adaptive_softmax",
    "ByteTokenizer": "transformers_xl.tokenization.tokenization_bytes",
    "GTrXLForActorCritic": "transformers_xl.modeling.modeling_gtrxl",
    "MemoryCache": "transformers_xl.modeling.memory_cache",
    "MemoryConfig": "transformers_xl.configuration.configuration_memory",
    "MemoryFeatureExtractionPipeline": "transformers_xl.modeling.feature_extraction",
    "MemoryTrainer": "transformers_xl.training.trainer",
    "RelativeAttentionConfig": "transformers_xl.configuration.configuration_relative_attention",
    "WordTokenizer": "transformers_xl.tokenization.tokenization_words",
    "add_memory": "transformers_xl.modeling.modeling_segment_memory",
    "compile_generation": "transformers_xl.experiments.compiled_generation",
}


def _public_names() -> dict[str, str]:
    """The module of each public name: those above, and the configs and models of the table of variants."""
    variants = _importlib.import_module(f"{__name__}.modeling.auto").VARIANTS.values()
    return _NAMES | {cls.__name__: cls.__module__ for row in variants for cls in row.auto_classes().values()}


def __getattr__(name: str):
    names = _public_names() if name == "__all__" or not name.startswith("__") else {}
    if name == "__all__":
        value = list(names)
    elif name in names:
        value = getattr(_importlib.import_module(names[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_public_names()})


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
