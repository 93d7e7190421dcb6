"""Packages that some tests want and the package itself does not."""

import os
from importlib import import_module
from types import ModuleType

import pytest


def needs(name: str) -> ModuleType:
    """The package `name`; without it the test, or the file of tests, that asks for it is skipped.

    Where the environment has `MAY_BE_MISSING`, names with spaces between them, only these may be: a skip for any other is
    an error. `.ci/run` sets it, so that no test is left out unseen.
    """
    may_be_missing = os.environ.get("MAY_BE_MISSING")
    if may_be_missing is not None and name not in may_be_missing.split():
        return import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed: `make setup` installs what tests want")
