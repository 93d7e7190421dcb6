"""What tests run beside Python: our own command line, and a browser."""

import functools
import shutil

import typer.testing
from click.testing import Result
from typer.testing import CliRunner

from transformers_xl.cli.main import app

# the tree of all commands is built once, not for every call
typer.testing._get_command = functools.cache(typer.testing._get_command)

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")


def run(*arguments: object, typed: str | None = None) -> Result:
    """`transformers-xl` with `arguments`, and what is `typed` on its standard input."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)
