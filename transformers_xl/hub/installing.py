"""How to install this package, for messages and cards."""

from collections.abc import Sequence
from importlib.util import find_spec

SOURCE = (
    "."  # "transformers-xl" from the day on which a package index has it: tests/hub/test_installing.py finds the rest
)


def pip_install(extra: str = "") -> str:
    """The command that installs the package, with an extra of pyproject.toml, and where to run it."""
    command = f"pip install '{SOURCE}[{extra}]'" if extra else f"pip install {SOURCE}"
    return f"{command} in a checkout of transformers-xl" if SOURCE == "." else command


def check_installed(extra: str, packages: Sequence[str]) -> None:
    """Raise a `ValueError` where one of the packages of an extra is missing."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ValueError(f"`{extra}` needs {' and '.join(missing)}: {pip_install(extra)}.")


__all__ = ["SOURCE", "check_installed", "pip_install"]
