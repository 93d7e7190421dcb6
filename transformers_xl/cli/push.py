"""`transformers-xl push`: a saved model to the Hub, in one commit."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsJson
from transformers_xl.runs.loading import shapes_of


def push(
    model_dir: Annotated[Path, Argument(exists=True, file_okay=False, help="Folder of a saved model.")],
    repo: Annotated[str, Argument(help="Repository on the Hub: you/name, or name.")],
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str | None, Option(help="Branch; created if it does not exist.", show_default="main")] = None,
    create_pr: Annotated[bool, Option("--create-pr", help="Open a pull request instead of committing.")] = False,
    message: Annotated[str, Option("--message", "-m", help="Commit message.")] = "Upload model",
    description: Annotated[str | None, Option(help="Description of the commit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Push a model, its tokenizer, its card and its code. Pickles are not pushed.

    Run it again after a failure: what has arrived is not sent twice. The token is that of `hf auth login`, or HF_TOKEN.
    """
    if not message.strip():
        raise ValueError("`message`='' is empty: describe in a few words what is pushed.")
    from transformers_xl.hub.uploading import push_folder

    shapes_of(model_dir)  # a damaged file stays here
    pushed = push_folder(
        model_dir,
        repo,
        private=private or None,
        revision=revision,
        create_pr=create_pr,
        commit_message=message,
        commit_description=description,
    )
    if as_json:
        typer.echo(json.dumps({"url": pushed.url, "files": pushed.files, "left_out": pushed.left_out}, indent=1))
        return
    typer.echo(f"{len(pushed.files)} files are at {pushed.url}")
    if pushed.left_out:
        typer.echo(f"left out: {', '.join(_by_folder(pushed.left_out))}")


def _by_folder(names: list[str]) -> list[str]:
    """The names, several of one folder by their number: a checkpoint has dozens."""
    folders = [name.partition("/")[0] for name in names]
    counts = Counter(folders)
    shown = [
        name if counts[folder] == 1 else f"{folder}/ ({counts[folder]} files)"
        for name, folder in zip(names, folders, strict=True)
    ]
    return list(dict.fromkeys(shown))


__all__ = ["push"]
