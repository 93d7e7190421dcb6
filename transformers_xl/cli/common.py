"""What the commands share: how a text is generated, what is shown, and what refuses a folder."""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand

from transformers_xl.files.output_folder import check_replaceable

MIN_TEMPERATURE = 1e-4  # logits that are divided by less are infinite
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
# options of `generate()`, under their names in GenerationConfig
Temperature = Annotated[float, Option(min=0, help="Sampling temperature; 0: always the most likely token.")]
DEFAULT_TEMPERATURE = 0.8
Greedy = Annotated[
    bool, Option("--greedy", help="Always take the most likely token, as --temperature 0 does: nothing is sampled.")
]
TopK = Annotated[int, Option(min=0, help="Sample from this many of the most likely tokens; 0: from all.")]
TopP = Annotated[float | None, Option(min=0, max=1, help="Sample from the fewest tokens with this probability.")]
MinP = Annotated[
    float | None, Option(min=0, max=1, help="Leave out tokens below this share of the highest probability.")
]
TypicalP = Annotated[
    float | None, Option(min=0, max=1, help="Sample from the most typical tokens that add up to this probability.")
]
RepetitionPenalty = Annotated[
    float | None, Option(help="Above 1: tokens that were already written become less likely.")
]
NoRepeatNgramSize = Annotated[int | None, Option(min=0, help="Never repeat a sequence of this many tokens; 0: off.")]
TrustRemoteCode = Annotated[
    bool,
    Option(
        "--trust-remote-code",
        help="Run custom code of a base or its tokenizer. Read it first.",
    ),
]
AsMarkdown = Annotated[bool, Option("--markdown", help="Print the table as Markdown.")]


def check_texts(paths: list[Path] | None) -> list[Path] | None:
    """Refuse files that do not exist; a member of an archive is looked for where it is read."""
    from transformers_xl.data.text_files import parted

    for path in paths or ():
        if not Path(parted(path)[0]).exists():
            raise typer.BadParameter(f"File {str(path)!r} does not exist.")
    return paths


TEXT = Option(callback=check_texts, help="Text file, or archive.zip::member; may be given more than once.")
Texts = Annotated[list[Path], TEXT]


class OneForm(TyperCommand):
    """A command that prints its result in one form, takes finite numbers, and reads `~` as the home."""

    def invoke(self, ctx: Any) -> Any:
        for name, value in ctx.params.items():
            if isinstance(value, Path):
                ctx.params[name] = value.expanduser()  # a shell does not do it in --output=~/model
            for each in value if isinstance(value, list | tuple) else (value,):
                if isinstance(each, float) and not math.isfinite(each):
                    raise ValueError(f"`{name}`={each} must be a finite number.")
        if ctx.params.get("as_json") and ctx.params.get("as_markdown"):
            raise ValueError("`markdown`=True has no effect beside --json: give one of them.")
        return super().invoke(ctx)


def check_spelling(ctx: typer.Context, words: Iterable[str]) -> None:
    """Raise a `ValueError` where a word that the command does not know, and that is of no section, is nearly one of its
    options."""
    from transformers_xl.configuration.nearest_names import nearest_names

    known = [name for parameter in ctx.command.params for name in parameter.opts if name.startswith("--")]
    for word in words:
        name = word.partition("=")[0]
        close = nearest_names(name, known, cutoff=0.75)
        if name.startswith("--") and "." not in name and close:
            raise ValueError(f"no such option: {name!r}. Did you mean {close[0]}?")


def refuse_others(ctx: typer.Context, known: set[str], option: str) -> None:
    """Raise a `ValueError` where another option than the `known` ones was given beside `option`."""
    for name, value in ctx.params.items():
        given = ctx.get_parameter_source(name)
        if name not in known and given is not None and given.name == "COMMANDLINE":
            raise ValueError(f"`{name}`={value!r} has no effect with {option}: leave it out.")


def is_main_process() -> bool:
    """Whether this is the process that speaks for all that a launcher started; known before torch is imported."""
    return int(os.environ.get("RANK", 0)) == 0


def generation_options(temperature: float, top_k: int, **others: float | None) -> dict[str, Any]:
    """Arguments of `generate()`, without `others` that are None; at a temperature of 0 the likeliest token is taken.

    Raises:
        ValueError: an option of sampling is given, which would have no effect at a temperature of 0.
    """
    given = {name: value for name, value in others.items() if value is not None}
    if (penalty := given.get("repetition_penalty", 1.0)) <= 0:
        raise ValueError(f"`repetition_penalty`={penalty} must be above 0; 1 is none.")
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(
            f"`temperature`={temperature} must be 0 (the most likely token) or at least {MIN_TEMPERATURE}."
        )
    if temperature:
        return {"do_sample": True, "temperature": temperature, "top_k": top_k} | given
    given = ({"top_k": top_k} if top_k else {}) | given
    without_effect = [name for name in ("top_k", "top_p", "min_p", "typical_p") if name in given]
    if without_effect:
        name = without_effect[0]
        raise ValueError(
            f"`{name}`={given[name]} has no effect with `temperature`=0, which samples nothing: leave it out."
        )
    return {"do_sample": False} | given


def greedy_temperature(temperature: float, greedy: bool) -> float:
    """The temperature to generate with: 0 where the command is to be greedy.

    Raises:
        ValueError: another temperature is given too.
    """
    if greedy and temperature not in (0, DEFAULT_TEMPERATURE):
        raise ValueError(f"`temperature`={temperature} samples, and --greedy does not: give one of them.")
    return 0.0 if greedy else temperature


def streamer_of(tokenizer, continues: bool = False):
    """What shows new tokens on standard output while they are written: bytes as they come, or text that no longer changes,
    joined to the prompt where it `continues` it."""
    from transformers_xl.data.streamers import ByteStreamer, WrittenTextStreamer

    if hasattr(tokenizer, "decode_bytes"):
        return ByteStreamer(tokenizer, lambda data: typer.echo(data, nl=False))
    return WrittenTextStreamer(tokenizer, lambda text: typer.echo(text, nl=False), continues)


def show(renderable, file_width: int | None = None) -> None:
    """Print what rich renders, as every other output: a closed pipe is an error for the boundary, not for rich.

    Args:
        file_width: columns to fit it to where the output is no terminal; 80 when not given.
    """
    from rich.console import Console

    console = Console()
    if file_width and not console.is_terminal:
        console.width = file_width
    with console.capture() as text:
        console.print(renderable)
    typer.echo(text.get(), nl=False)


def show_table(title: str, header: list[str], rows: list[list[str]], as_markdown: bool = False) -> None:
    """Print a table whose columns but the first are numbers: aligned, or as Markdown without its title."""
    if as_markdown:
        rule = ["---", *["---:"] * (len(header) - 1)]
        typer.echo("\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows)))
        return
    from rich.table import Table

    table = Table(*header, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for column in table.columns:
        column.overflow = "fold"  # a narrow terminal shows all digits
    for row in rows:
        table.add_row(*row)
    show(table, file_width=1000)


def check_output(folder: Path, overwrite: bool, inputs: Iterable[Path] = ()) -> None:
    """Raise a `ValueError` where `folder` cannot be written, or holds one of the `inputs`, or what no command wrote."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`output`={str(folder)!r} is a file: give the name of a folder.")
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise ValueError(f"`output`={str(folder)!r} cannot be written: {str(there)!r} is no folder, or is read-only.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ValueError(f"`output`={str(folder)!r} is not empty: choose another folder, or add --overwrite.")
    check_inputs("output", folder, inputs)
    check_replaceable(folder)
    if (folder / "README.md").is_file():
        from transformers_xl.hub.cards import written_by_us

        if not written_by_us(folder / "README.md"):
            raise ValueError(
                f"`output`={str(folder)!r}: its README.md was written or changed by hand, and --overwrite would delete it: "
                "move it away, or choose another folder."
            )


def check_inputs(field: str, output: Path, inputs: Iterable[Path]) -> None:
    """Raise a `ValueError` where an input is `output`, or lies in it: it would be replaced."""
    for each in inputs:
        if each.exists() and each.resolve().is_relative_to(output.resolve()):
            raise ValueError(
                f"`{field}`={str(output)!r} holds the input {str(each)!r}, which would be replaced: choose another."
            )


__all__ = [
    "DEFAULT_TEMPERATURE",
    "AsJson",
    "AsMarkdown",
    "Greedy",
    "MinP",
    "NoRepeatNgramSize",
    "OneForm",
    "RepetitionPenalty",
    "Temperature",
    "TopK",
    "TopP",
    "TrustRemoteCode",
    "TypicalP",
    "check_inputs",
    "check_output",
    "check_spelling",
    "generation_options",
    "greedy_temperature",
    "is_main_process",
    "show",
    "show_table",
    "streamer_of",
]
