"""What tests run beside Python: our own command line, and a browser."""

import shutil

from click.testing import Result
from typer.testing import CliRunner

from transformers_xl.cli.main import app

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")


def run(*arguments: object) -> Result:
    """`transformers-xl` with `arguments`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
