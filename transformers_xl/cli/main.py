"""The `transformers-xl` command.

Commands import torch and transformers when they run, not when they are listed: `--help` answers at once.
"""

import os
import sys
from typing import Annotated

import typer
from typer import Option

from transformers_xl.cli.add_memory import add_memory
from transformers_xl.cli.card import card
from transformers_xl.cli.chat import chat
from transformers_xl.cli.common import OneForm
from transformers_xl.cli.compare import compare
from transformers_xl.cli.config import config
from transformers_xl.cli.convert import convert
from transformers_xl.cli.errors import Commands
from transformers_xl.cli.evaluate import evaluate
from transformers_xl.cli.generate import generate
from transformers_xl.cli.measure_curve import context_curve
from transformers_xl.cli.measure_distant import distant_context
from transformers_xl.cli.measure_probe import probe, train_probe
from transformers_xl.cli.measure_recl import recl
from transformers_xl.cli.measure_speed import speed
from transformers_xl.cli.prepare import prepare
from transformers_xl.cli.push import push
from transformers_xl.cli.report import report
from transformers_xl.cli.serve import serve
from transformers_xl.cli.tokenizer import tokenizer
from transformers_xl.cli.train import SECTIONS, train
from transformers_xl.runs.allocator import keep_freed_memory
from transformers_xl.runs.threads import let_waiting_threads_sleep

app = typer.Typer(
    name="transformers-xl",
    cls=Commands,
    help="Language models that remember past their window: train, evaluate, generate, push.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


@app.callback()
def options(
    debug: Annotated[bool, Option("--debug", help="Show the traceback of every error.")] = False,
) -> None:
    """Options of all commands; [`Commands`] reads them."""
    keep_freed_memory()
    let_waiting_threads_sleep()
    if not sys.stderr.isatty():  # the bars of what is imported later
        os.environ |= dict.fromkeys(("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"), "1")


# options of sections are left to the command, which knows the fields of the chosen variant
SECTIONED = {"ignore_unknown_options": True}
app.command(cls=OneForm, no_args_is_help=True, context_settings=SECTIONED, epilog=SECTIONS)(train)
app.command(context_settings=SECTIONED)(config)
for command in (
    add_memory,
    prepare,
    evaluate,
    generate,
    compare,
    convert,
    recl,
    context_curve,
    distant_context,
    probe,
    train_probe,
    speed,
    card,
    push,
    report,
    chat,
    serve,
):
    app.command(cls=OneForm, no_args_is_help=True)(command)
app.add_typer(tokenizer, name="tokenizer")

if __name__ == "__main__":
    app()
