"""`transformers-xl chat`: a session at the terminal that a model remembers, of any length, at a constant cost per turn."""

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import (
    DEFAULT_TEMPERATURE,
    AsJson,
    Greedy,
    MinP,
    NoRepeatNgramSize,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    TypicalP,
    generation_options,
    greedy_temperature,
    streamer_of,
)
from transformers_xl.files.blaming import sentence
from transformers_xl.runs.loading import check_generation, load_model

if TYPE_CHECKING:
    from transformers_xl.data.chat_session import ChatSession

HELP = "/reset forgets, /save, /load or /fork FILE, /quit ends, Ctrl-C ends an answer."


def chat(
    model_dir: Annotated[Path, Argument(exists=True, file_okay=False, help="Folder of a model that remembers.")],
    max_new_tokens: Annotated[int, Option(min=1, help="Longest answer, in tokens.")] = 200,
    temperature: Temperature = DEFAULT_TEMPERATURE,
    top_k: TopK = 0,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    repetition_penalty: RepetitionPenalty = None,
    no_repeat_ngram_size: NoRepeatNgramSize = None,
    greedy: Greedy = False,
    stop: Annotated[list[str] | None, Option(help="Text that ends an answer; may be given several times.")] = None,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="Seed of sampling.")] = 0,
    session: Annotated[
        Path | None, Option(help="File of the session: it goes on where it stopped, and is saved after every turn.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Chat with a model that remembers the session: it reads each turn once into its memory.

    With a chat template, it renders the turns; without one, your line is text that the model continues.
    /reset forgets everything, /quit or Ctrl-D ends the session, Ctrl-C ends an answer. /save FILE writes a copy of the
    session, /load FILE goes on with another one, /fork FILE goes on in a new file and leaves the old one as it is. With
    --json every turn is one line: an object with its `text` and its `answer`.
    """
    temperature = greedy_temperature(temperature, greedy)
    model, tokenizer = load_model(model_dir)
    check_generation(model, model_dir)
    import transformers

    from transformers_xl.data.chat_session import ChatSession
    from transformers_xl.data.conversation import Conversation

    streamer = None if as_json else streamer_of(tokenizer)
    settings = generation_options(
        temperature,
        top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        max_new_tokens=max_new_tokens,
    )
    conversation = Conversation(model, tokenizer, stop, **settings)
    transformers.set_seed(seed)
    with suppress(ImportError):  # a line can be edited, and earlier ones come back
        import readline  # noqa: F401
    with ChatSession(conversation) as chat_session:
        typer.echo(HELP, err=as_json)
        if session is not None:
            typer.echo(chat_session.begin(session), err=as_json)
        while (line := next_line("" if as_json else "> ")) != "/quit":
            if (said := obeyed(line, chat_session)) is not None:
                typer.echo(said, err=as_json)
            elif line:
                answer = conversation.say(line, streamer)
                save_turn(chat_session)
                typer.echo(json.dumps({"text": line, "answer": answer}) if as_json else "")


def obeyed(line: str, session: "ChatSession") -> str | None:
    """What is said of a line that is a command; None: it is text."""
    word, _, name = line.partition(" ")
    try:
        if line == "/reset":
            session.conversation.reset()
            session.saved()
            return "Forgotten."
        if word in ("/save", "/load", "/fork"):
            return str(getattr(session, word[1:])(name.strip()))
    except (ValueError, OSError) as error:
        return f"{word}: {sentence(error)}"
    return None


def save_turn(session: "ChatSession") -> None:
    """Save the session after a turn; a disk that refuses does not end it."""
    try:
        session.saved()
    except OSError as error:
        typer.echo(f"This turn is not saved: {sentence(error)}", err=True)


def next_line(prompt: str = "> ") -> str:
    """What the user types behind `prompt`; `/quit` at the end of the input.

    Raises:
        ValueError: it is no UTF-8.
    """
    while True:
        try:
            line = input(prompt).strip()
            line.encode()  # Python may have kept what it could not decode
            return line
        except UnicodeError as error:
            raise ValueError(f"The line on standard input is not UTF-8 ({error}).") from error
        except EOFError:
            typer.echo(err=not prompt)
            return "/quit"
        except KeyboardInterrupt:
            typer.echo(err=not prompt)  # the line is dropped


__all__ = ["chat"]
