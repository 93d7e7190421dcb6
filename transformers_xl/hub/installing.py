"""How to install this package, for messages and cards."""

SOURCE = (
    "."  # "transformers-xl" from the day on which a package index has it: tests/hub/test_installing.py finds the rest
)


def pip_install(extra: str = "") -> str:
    """The command that installs the package, with an extra of pyproject.toml, and where to run it."""
    command = f"pip install '{SOURCE}[{extra}]'" if extra else f"pip install {SOURCE}"
    return f"{command} in a checkout of transformers-xl" if SOURCE == "." else command


__all__ = ["SOURCE", "pip_install"]
