"""Checkpoints that are whole or not there, and that know which stream they stopped in.

A checkpoint is written under another name. `checkpoint.json`, its last file, lists the others with their sizes and hashes;
then one rename makes it `checkpoint-<step>`. A process that is killed on the way leaves a folder that nobody takes for a
checkpoint.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, sort_checkpoints

from transformers_xl.files.atomic_write import replace, write_text
from transformers_xl.files.digests import sha256

MANIFEST = "checkpoint.json"
UNFINISHED = "_saving-"  # transformers' pushes leave out what begins with an underscore
FIELDS = {"obstacle", "stream", "files"}


def unfinished(folder: Path) -> Path:
    """Where the checkpoint `folder` is written before it is whole."""
    return folder.with_name(UNFINISHED + folder.name)


def remove_unfinished(output_dir: Path) -> None:
    """Remove what a killed process left. A checkpoint that was whole, and had not got its name yet, gets it."""
    for folder in sorted(output_dir.glob(f"{UNFINISHED}{PREFIX_CHECKPOINT_DIR}-*")):
        place = folder.with_name(folder.name.removeprefix(UNFINISHED))
        if not place.exists() and not folder.name.endswith(".old") and incompleteness(folder) is None:
            replace(folder, place)
        else:
            shutil.rmtree(folder)


def write_manifest(folder: Path, stream: Mapping[str, int | str], obstacle: str | None = None) -> None:
    """Declare the checkpoint complete: its files with their sizes and SHA-256, the fields of its stream, and why no
    training can resume from it, if none can. To be called by one process, when all have written their files."""
    files = {
        str(file.relative_to(folder)): {"size": file.stat().st_size, "sha256": sha256(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    manifest = {"obstacle": obstacle, "stream": dict(stream), "files": files}
    write_text(folder / MANIFEST, json.dumps({**manifest, "sha256": _own_sha256(manifest)}, indent=2) + "\n")


def _own_sha256(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, with its files in the form of today.

    Raises:
        ValueError: it is not as it was written.
        OSError: it cannot be read.
    """
    manifest = json.loads((folder / MANIFEST).read_text())
    sha256 = manifest.pop("sha256", None)
    if manifest.keys() != FIELDS or sha256 not in (None, _own_sha256(manifest)):
        raise ValueError("it is not as it was written")
    if sha256 is None:  # of before hashes were kept
        manifest["files"] = {name: {"size": size, "sha256": None} for name, size in manifest["files"].items()}
    return manifest


def publish(folder: Path) -> None:
    """Give the checkpoint, written and complete, its name; one of the same step makes way for it."""
    replace(unfinished(folder), folder)


def incompleteness(folder: Path) -> str | None:
    """What is missing from or damaged in a checkpoint, or None if it is whole. Reads all of its files."""
    try:
        files = _read_manifest(folder)["files"]
    except FileNotFoundError:
        return f"it has no `{MANIFEST}`"
    except (ValueError, AttributeError, TypeError, OSError) as error:
        return f"its `{MANIFEST}` is damaged: {error}"
    for name, written in files.items():
        try:
            size = (folder / name).stat().st_size
            if size != written["size"]:
                return f"`{name}` has {size} bytes instead of {written['size']}"
            if written["sha256"] not in (None, sha256(folder / name)):
                return f"`{name}` is damaged: it has another SHA-256 than when it was written"
        except FileNotFoundError:
            return f"`{name}` is missing"
        except OSError as error:  # of a failing disk
            return f"`{name}` cannot be read: {error}"
    return None


def checkpoints_of(output_dir: str | Path) -> list[str]:
    """The checkpoints in a folder, the newest first."""
    return sort_checkpoints(str(output_dir))[::-1] if Path(output_dir).is_dir() else []


def check_whole(folder: Path) -> None:
    """Refuse a checkpoint that is not as it was written.

    Raises:
        ValueError: names the file that is missing or damaged.
    """
    wrong = incompleteness(folder)
    if wrong is not None:
        raise ValueError(f"{str(folder)!r} is not a complete checkpoint ({wrong})")


def check_resumable(folder: Path, stream: Mapping[str, int | str]) -> None:
    """Refuse a whole checkpoint that no training can resume from, or that stopped in another stream than `stream`.

    Raises:
        ValueError: names the obstacle, or the field of the stream with both values.
    """
    manifest = _read_manifest(folder)
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


__all__ = [
    "check_resumable",
    "check_whole",
    "checkpoints_of",
    "incompleteness",
    "publish",
    "remove_unfinished",
    "unfinished",
    "write_manifest",
]
