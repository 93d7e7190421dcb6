"""Registers every variant with the Auto classes of transformers, as soon as somebody could ask these for a model.

`import transformers_xl` imports neither torch nor transformers: `transformers-xl --help` answers in 0.2 seconds, not 4.
"""

import importlib
import sys
from typing import Any

PACKAGE = __name__.rpartition(".")[0]
# what asks for models, or is imported by what registers them
NAMES = frozenset(
    {"transformers", *(f"{PACKAGE}.{room}" for room in ("configuration", "hub", "modeling", "tokenization"))}
)


def register() -> None:
    """Register the variants, and what saves their code beside their weights."""
    importlib.import_module(f"{PACKAGE}.modeling.auto").register()
    importlib.import_module(f"{PACKAGE}.hub.saving").register()


def register_in_time() -> None:
    """Register now where transformers is imported, else when it is, or one of the folders that registering imports."""
    if "transformers" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds what the other finders find, and lets it register."""

    def find_spec(self, name, path=None, target=None):
        if name not in NAMES:
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec: Any = next((spec for spec in specs if spec is not None), None)
        if spec is not None:
            spec.loader = _ThenRegister(spec.loader, self)
        return spec


class _ThenRegister:
    """A loader that is `loader`, and registers when the module is there."""

    def __init__(self, loader, finder: _Finder):
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str):
        return getattr(self._loader, name)

    def exec_module(self, module) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
            register()
