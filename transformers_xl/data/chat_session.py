"""The file of a conversation: it is saved there after every turn, and no other chat has it open meanwhile."""

import os
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from transformers_xl.data.conversation import Conversation
from transformers_xl.files.output_lock import output_lock
from transformers_xl.files.plain_files import check_regular


class ChatSession:
    """A conversation and its file, if it has one. What each method returns is a sentence for the user.

    All raise a `ValueError` where a file cannot be used, and an `OSError` where the disk refuses: the conversation and its
    file stay what they were.

    Attributes:
        path: of the file; None: the conversation is not saved.
    """

    def __init__(self, conversation: Conversation):
        self.conversation = conversation
        self.path: Path | None = None
        self.lock = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.lock.close()

    def saved(self) -> None:
        """After a turn."""
        if self.path is not None:
            self.conversation.save(self.path)

    def begin(self, name: str | os.PathLike) -> str:
        """Go on with the session of a file, or begin a new one there."""
        if self._place(name).exists():
            return self.load(name)
        return self.fork(name)

    def load(self, name: str | os.PathLike) -> str:
        """Go on with the session of a file, which is saved there from now on."""
        path = self._place(name)
        if not path.exists():
            raise ValueError(f"{str(path)!r} is not there: /fork begins a new file.")
        with ExitStack() as lock:
            if path != self.path:
                lock.enter_context(_locked(path))
            self.conversation.load(path)
            self._move(path, lock)
        memory = self.conversation.memory
        read, size = int(memory.tokens_read), memory.num_bytes / 2**10
        return f"Going on with {str(path)!r}: {read:,} tokens read, {size:,.1f} KiB of memory."

    def fork(self, name: str | os.PathLike) -> str:
        """Save the conversation in a new file from now on; the file that it had stays as it is."""
        path, before = self._place(name), self.path
        with ExitStack() as lock:
            if path != before:
                lock.enter_context(_locked(path))
            if path.exists():
                raise ValueError(f"{str(path)!r} is there already: name a new file.")
            self.conversation.save(path)
            self._move(path, lock)
        stays = "" if before is None else f"; {str(before)!r} stays as it is"
        return f"Saved in {str(path)!r} from here on, after every turn{stays}."

    def save(self, name: str | os.PathLike) -> str:
        """Write a copy of the conversation; one that is there already must be of this model."""
        path = self._place(name)
        with ExitStack() as lock:
            if path != self.path:
                lock.enter_context(_locked(path))
            if path.exists():
                Conversation(self.conversation.model, self.conversation.tokenizer).load(path)
            self.conversation.save(path)
        return f"Saved in {str(path)!r}, as it is now."

    def _place(self, name: str | os.PathLike) -> Path:
        """A file has one lock, by whatever link it is named."""
        if not os.fspath(name):
            raise ValueError("name a file.")
        path = Path(name).expanduser().resolve()
        check_regular(path)
        if path.is_dir():
            raise ValueError(f"{str(path)!r} is a folder: name a file in it.")
        return path

    def _move(self, path: Path, lock: ExitStack) -> None:
        if path != self.path:
            self.lock.close()
            self.path, self.lock = path, lock.pop_all()


def _locked(path: Path) -> AbstractContextManager[None]:
    taken = f"another chat has {str(path)!r} open, {{holder}}: end that one, or name another file"
    return output_lock(path.with_name(f".{path.name}.lock"), taken)


__all__ = ["ChatSession"]
