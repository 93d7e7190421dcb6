"""The packages of the extra `serve`."""

from importlib.util import find_spec

from transformers_xl.hub.installing import pip_install

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def check_installed() -> None:
    """Raise a `ValueError` where a package that the server needs is missing."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ValueError(f"`serve` needs {' and '.join(missing)}: {pip_install('serve')}.")


__all__ = ["check_installed"]
