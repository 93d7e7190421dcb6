"""Checkpoints that are whole or not there, and that know which stream they stopped in.

A checkpoint is written under another name. `checkpoint.json`, its last file, lists the others with their sizes; then one
rename makes it `checkpoint-<step>`. A process that is killed on the way leaves a folder that nobody takes for a checkpoint.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from transformers.trainer_utils import sort_checkpoints

MANIFEST = "checkpoint.json"
UNFINISHED = "_saving-"  # the library's pushes leave out what begins with an underscore


def unfinished(folder: Path) -> Path:
    """Where the checkpoint `folder` is written before it is whole."""
    return folder.with_name(UNFINISHED + folder.name)


def remove_unfinished(output_dir: Path) -> None:
    """Remove what a killed process left."""
    for folder in output_dir.glob(f"{UNFINISHED}*"):
        shutil.rmtree(folder)


def write_manifest(folder: Path, stream: Mapping[str, int | str], obstacle: str | None = None) -> None:
    """Declare the checkpoint complete: its files with their sizes, the fields of its stream, and why no training can go on
    from it, if none can."""
    files = {
        str(file.relative_to(folder)): file.stat().st_size for file in sorted(folder.rglob("*")) if file.is_file()
    }
    manifest = {"obstacle": obstacle, "stream": dict(stream), "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def publish(folder: Path) -> None:
    """Give the checkpoint, written and complete, its name; one of the same step makes way for it."""
    written, old = unfinished(folder), folder.with_name(f"{UNFINISHED}old-{folder.name}")
    if folder.exists():
        folder.rename(old)
    written.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def incompleteness(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None if it is whole."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
    except FileNotFoundError:
        return f"it has no `{MANIFEST}`"
    except (json.JSONDecodeError, KeyError, TypeError):
        return f"its `{MANIFEST}` is damaged"
    for name, size in files.items():
        file = folder / name
        if not file.is_file():
            return f"`{name}` is missing"
        if file.stat().st_size != size:
            return f"`{name}` has {file.stat().st_size} bytes instead of {size}"
    return None


def last_checkpoint(output_dir: str | Path) -> str | None:
    """The newest complete checkpoint in a folder of checkpoints, None where there is none."""
    folders = sort_checkpoints(str(output_dir)) if Path(output_dir).is_dir() else []
    return next((folder for folder in reversed(folders) if incompleteness(Path(folder)) is None), None)


def check_resumable(folder: Path, stream: Mapping[str, int | str]) -> None:
    """Refuse a checkpoint that is not whole, or that stopped in another stream than `stream`.

    Raises:
        ValueError: names the file, or the field of the stream with both values.
    """
    wrong = incompleteness(folder)
    if wrong is not None:
        raise ValueError(
            f"`resume_from_checkpoint`={str(folder)!r} is no complete checkpoint ({wrong}): give another, or True for the "
            "last complete one of `output_dir`."
        )
    manifest = json.loads((folder / MANIFEST).read_text())
    if manifest["obstacle"]:
        raise ValueError(
            f"`resume_from_checkpoint`={str(folder)!r}: {manifest['obstacle']}. Load its weights with `from_pretrained`, "
            "and train without resuming."
        )
    stored = manifest["stream"]
    for name in [*stored, *(name for name in stream if name not in stored)]:
        if stored.get(name) != stream.get(name):
            raise ValueError(
                f"`{name}`={stream.get(name)!r} is not the {stored.get(name)!r} of the checkpoint {str(folder)!r}, whose "
                f"memory and position belong to that: resume with `{name}`={stored.get(name)!r}, or load its weights with "
                "`from_pretrained` and train without resuming."
            )


__all__ = ["check_resumable", "last_checkpoint", "publish", "remove_unfinished", "unfinished", "write_manifest"]
