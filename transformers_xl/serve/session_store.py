"""Sessions on disk: what a model remembers at the end of each answer, under an id that the server has made.

    resp_<id>.safetensors   the memory, and the token that it does not hold yet
    resp_<id>.json          the answer; what has one is finished
    conv_<id>.json          a conversation, and the id of its last answer
    conv_<id>.lock          held while a turn of it is written

Several servers may share a folder. Every file is written whole or not at all, and the memory before its answer: a process
that ends at any time loses no answer that a client was told of.
"""

import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout

from transformers_xl.files.atomic_write import WORKSPACE, atomic_write
from transformers_xl.files.json_files import read_json
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.serve.bounds import RequestError
from transformers_xl.serve.protocol import shown

ID = re.compile(r"(resp|conv)_[0-9a-f]{32}")
UNFINISHED = 3600.0  # seconds after which a file that nothing names was left by a process that has ended
SLACK = 64  # the whole folder is looked at whenever it may have grown by this part of `most`


def is_kept(file: str) -> bool:
    """Whether a file of this name is an answer or a conversation: the folder may hold files of others."""
    stem, _, suffix = file.partition(".")
    return suffix == "json" and ID.fullmatch(stem) is not None


def new_id(kind: str) -> str:
    """A name that nobody can guess: `kind` and 128 random bits."""
    return f"{kind}_{secrets.token_hex(16)}"


class Past(NamedTuple):
    """What a session has read, and written last."""

    memory: Memory
    unread_ids: list[int]


class SessionStore:
    """
    Args:
        folder: where sessions lie; made, for this user alone, where there is none.
        model: whose memories they are.
        most: answers and conversations that are kept, at least a conversation and its answer; those that were not used for
            longest are removed.
        days: for which what nobody uses is kept.

    Raises:
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: Path, model: Any, most: int = 10_000, days: float = 30.0):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder, self.model, self.most, self.seconds = folder, model, most, days * 86_400
        self.saved = 0
        self.prune()

    def response(self, response_id: str) -> dict[str, Any]:
        """The answer `response_id`, as it was given.

        Raises:
            RequestError: it is unknown.
        """
        return self._read("resp", response_id, "id")["response"]

    def past(self, response_id: str, field: str = "previous_response_id") -> Past:
        """What to continue from.

        Raises:
            RequestError: it is unknown, or another model's.
        """
        self._read("resp", response_id, field)
        file = self.folder / f"{response_id}.safetensors"
        if not file.is_file():
            raise self._unknown(response_id, field)
        try:
            saved = Memory.load(file, self.model)
        except ValueError as error:
            raise RequestError(f"`{field}`={shown(response_id)} cannot be continued: {error}", field) from error
        if saved.unread_ids is None:
            raise RequestError(f"`{field}`={shown(response_id)}: its memory was not written by a server.", field)
        for each in (file, file.with_suffix(".json")):
            with suppress(OSError):
                os.utime(each)
        return Past(saved.memory, saved.unread_ids[0].tolist())

    def past_of_conversation(self, name: str) -> Past | None:
        """What the next turn of a conversation continues from; None: it has none yet.

        Raises:
            RequestError: it is unknown, its last answer was removed, or another model wrote it.
        """
        last = self.conversation(name, "conversation")["last"]
        if last is not None and not (self.folder / f"{last}.json").is_file():
            said = f"`conversation`={shown(name)}: its last answer was removed, and what it remembered: begin another one."
            raise RequestError(said, "conversation", 400, "not_found")
        return None if last is None else self.past(last, "conversation")

    def save(self, response: dict[str, Any], memory: Memory, unread_ids: Sequence[int]) -> None:
        """Keep an answer, and what the model remembers at its end; in the conversation that it names, as the last one."""
        memory.save(self.folder / f"{response['id']}.safetensors", self.model, torch.tensor([list(unread_ids)]))
        self._write(response["id"], {"response": response})
        if response.get("conversation") is not None:
            name = response["conversation"]["id"]
            self._write(name, self._read("conv", name, "conversation") | {"last": response["id"]})
        self.saved += 1
        if self.saved % max(1, self.most // SLACK) == 0:
            self.prune()

    def delete(self, kind: str, name: str) -> None:
        """Remove an answer with its memory, or a conversation; not the answers in it.

        Raises:
            RequestError: it is unknown, or a turn of it is being written.
        """
        self._read(kind, name, "id")
        if kind == "resp":
            self._remove(name)
            return
        lock = self.lock(name)
        try:
            self._remove(name)
            Path(lock.lock_file).unlink(missing_ok=True)
        finally:
            lock.release()

    def create_conversation(self, metadata: dict[str, str]) -> dict[str, Any]:
        """A conversation without a turn."""
        name = new_id("conv")
        described = {"id": name, "object": "conversation", "created_at": int(time.time()), "metadata": metadata}
        self._write(name, {"conversation": described, "last": None})
        return described

    def conversation(self, name: str, field: str = "id") -> dict[str, Any]:
        """Its `conversation`, as it was made, and its `last` answer, None where there is none.

        Raises:
            RequestError: it is unknown.
        """
        return self._read("conv", name, field)

    def lock(self, name: str) -> FileLock:
        """Hold a conversation, over all processes; the caller releases it.

        Raises:
            RequestError: somebody else holds it.
        """
        lock = FileLock(self.folder / f"{name}.lock", timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            said = f"`conversation`={shown(name)} is being answered: wait for the end of its last turn."
            raise RequestError(said, "conversation", 409, "conversation_locked") from None
        return lock

    def count(self) -> int:
        """How many answers and conversations are kept."""
        return sum(is_kept(entry.name) for entry in os.scandir(self.folder))

    def prune(self) -> None:
        """Remove what is too old, what is too much, and what processes that were killed have left."""
        now = time.time()
        kept: list[tuple[float, str]] = []
        others: list[tuple[float, str]] = []
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):  # another server prunes too
                used = entry.stat(follow_symlinks=False).st_mtime
                (kept if is_kept(entry.name) else others).append((used, entry.name))
        kept.sort(reverse=True)
        stale = [name for place, (used, name) in enumerate(kept) if place >= self.most or now - used > self.seconds]
        for name in stale:
            self._remove(name.removesuffix(".json"))
        named = {name.removesuffix(".json") for _, name in kept} - {name.removesuffix(".json") for name in stale}
        for used, name in others:
            if now - used > UNFINISHED and name.partition(".")[0] not in named:
                self._remove_leftover(name)

    def _remove_leftover(self, name: str) -> None:
        stem, _, suffix = name.partition(".")
        if ID.fullmatch(stem) and suffix in ("safetensors", "lock"):
            (self.folder / name).unlink(missing_ok=True)
        elif name.startswith((".resp_", ".conv_")) and name.endswith(WORKSPACE):
            for file in (self.folder / name).iterdir():
                file.unlink(missing_ok=True)
            with suppress(OSError):
                (self.folder / name).rmdir()

    def _remove(self, name: str) -> None:
        for suffix in (".json", ".safetensors"):  # what has no answer is no longer known
            (self.folder / f"{name}{suffix}").unlink(missing_ok=True)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        with atomic_write(self.folder / f"{name}.json") as new:
            new.touch(mode=0o600)  # in a folder that others may read
            new.write_text(json.dumps(value), encoding="utf-8")

    def _read(self, kind: str, name: str, field: str) -> dict[str, Any]:
        """What is known of an id; it is compared with the form of ids before it becomes a part of a path."""
        matched = ID.fullmatch(name)
        if matched is None or matched[1] != kind:
            raise self._unknown(name, field)
        file = self.folder / f"{name}.json"
        try:
            if time.time() - file.stat().st_mtime > self.seconds:
                raise self._unknown(name, field)
            return read_json(file)
        except FileNotFoundError:
            raise self._unknown(name, field) from None

    def _unknown(self, name: str, field: str) -> RequestError:
        code = {"previous_response_id": "previous_response_not_found"}.get(field, "not_found")
        said = f"`{field}`={shown(name)} is unknown: it was never made here, was removed, or is too old."
        return RequestError(said, field, 404 if field == "id" else 400, code)


__all__ = ["Past", "SessionStore", "new_id"]
