"""The one place where an error that a file or an argument causes becomes a sentence on stderr, and exit status 2."""

import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from io import UnsupportedOperation
from typing import Any

import typer
from typer.core import TyperGroup

from transformers_xl.cli.common import is_main_process
from transformers_xl.files.blaming import sentence

GRACE = 10.0  # seconds


class Commands(TyperGroup):
    """The commands, behind the boundary of errors. It reads the option `debug` of the group."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for argument in args:
            try:
                argument.encode()
            except UnicodeEncodeError as error:
                raise typer.BadParameter(f"{argument!r} is not UTF-8.", ctx=ctx) from error
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a closed pipe is noticed here, not while Python exits
            return result
        except BrokenPipeError as error:
            drop_output()
            raise typer.Exit(128 + signal.SIGPIPE) from error  # as a shell reports what SIGPIPE ended
        except typer.Exit:
            raise
        except Exception as error:
            leave_it_to_the_main_process()
            if not caused_by_input(error):
                raise
            if ctx.params["debug"]:
                traceback.print_exception(error)
            typer.echo(f"Error: {sentence(error)}", err=True)
            raise typer.Exit(2) from error


def leave_it_to_the_main_process() -> None:
    """Wait, in any other process of a launcher, which ends all of them when one fails: an error that every process has is
    said once. Who is still there after the wait has an error of its own."""
    if not is_main_process():
        time.sleep(GRACE)


def drop_output() -> None:
    """Let what is still written to standard output vanish: nobody reads it."""
    with suppress(UnsupportedOperation), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def caused_by_input(error: Exception) -> bool:
    """Whether a file or an argument is to blame. Any other error is a bug of ours, and shows its traceback."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    if isinstance(error, ValueError | OSError | MemoryError | StrictDataclassError | SafetensorError):
        return True
    if type(error) is Exception:  # of tokenizers, which has no class for a word that a vocabulary lacks
        return True
    # torch has no narrower class for memory that the CPU does not have, or that has no address
    too_large = ("can't allocate memory", "Storage size calculation overflowed")
    return type(error).__name__ == "OutOfMemoryError" or any(words in str(error) for words in too_large)


__all__ = ["Commands", "caused_by_input"]
