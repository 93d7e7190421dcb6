"""Bases of configs, models and tokenizers: `save_pretrained` and `push_to_hub`, with the code beside what is saved.

Which code that is, and what is told of a push, knows the [`Saver`] that the package registers. Where only exported files
are, none is registered: transformers itself copies the files that a class was loaded from.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerFast
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, PushToHubMixin

# Whether the save that runs includes code; None outside of a save. A model saves its config, which writes the code of both.
_including: ContextVar[bool | None] = ContextVar("including", default=None)
_of_agent: ContextVar[bool] = ContextVar("of_agent", default=False)  # whether the model of that save is an agent


class Saver:
    """What is added to a save and to a push. This one adds nothing."""

    def config_fields(self, config: Any, fields: dict[str, Any], include_code: bool) -> dict[str, Any]:
        """What config.json says of `config`."""
        return fields

    def tokenizer_reference(self, tokenizer: Any) -> dict[str, list[str | None]] | None:
        """The `auto_map` in the tokenizer_config.json of `tokenizer`."""
        return None

    def write_code(self, saved: Any, folder: Path) -> list[Path]:
        """Write the code of `saved` into `folder`."""
        return []

    def pushing(
        self, saved: Any, repo_id: str, folder: Path | None, revision: str | None, token: str | bool | None
    ) -> AbstractContextManager[None]:
        """Around a push of `saved`; with the `folder` of its files, around their upload."""
        return nullcontext()


_saver = Saver()


def saves_agent() -> bool:
    """Whether the save that runs is that of an agent: what its class is called says nothing."""
    return _of_agent.get()


def register_saver(saver: Saver) -> None:
    """Let `saver` add to every save and push from now on."""
    global _saver
    _saver = saver


@contextmanager
def _include(include_code: bool | None) -> Iterator[None]:
    token = _including.set(_including.get() is not False if include_code is None else include_code)
    try:
        yield
    finally:
        _including.reset(token)


@contextmanager
def _one_copy(folder: Path, variant: str | None) -> Iterator[None]:
    """Around a save: where it wrote weights in several files, one file that holds those of an earlier save goes.
    transformers leaves it there, and loads it."""
    part = "" if variant is None else f".{variant}"
    whole = folder / Path(SAFE_WEIGHTS_NAME).with_suffix(f"{part}.safetensors")
    index = folder / Path(SAFE_WEIGHTS_INDEX_NAME).with_suffix(f"{part}.json")
    before = _state(index)
    yield
    if _state(index) != before:
        whole.unlink(missing_ok=True)


def _state(path: Path) -> tuple[int, int, int] | None:
    """What another write of a file changes; None: there is no file."""
    if not path.is_file():
        return None
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


class SavedWithCode(PushToHubMixin):
    """`save_pretrained` and `push_to_hub` of models, configs and tokenizers of this package."""

    def save_pretrained(
        self, save_directory: str | os.PathLike, *args: Any, include_code: bool | None = None, **kwargs: Any
    ) -> Any:
        """As in transformers. `include_code` (on unless it is set to False) also writes the code that the files need where
        this package is not installed, for `trust_remote_code=True`."""
        token = _of_agent.set(getattr(self, "is_agent", _of_agent.get()))  # a config is saved within its model
        try:
            with _include(include_code), _one_copy(Path(save_directory), kwargs.get("variant")):
                return super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            _of_agent.reset(token)

    def push_to_hub(self, repo_id: str, *, include_code: bool = True, **kwargs: Any) -> str:
        """As in transformers, with the code as in `save_pretrained`.

        Raises:
            PushError: the server refused, failed or went away; says what is on the server and what is not.
        """
        pushing = _saver.pushing(self, repo_id, None, kwargs.get("revision"), kwargs.get("token"))
        with _include(include_code), pushing:
            return super().push_to_hub(repo_id, **kwargs)

    def _upload_modified_files(self, working_dir: str | os.PathLike, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        with _saver.pushing(self, repo_id, Path(working_dir), kwargs.get("revision"), kwargs.get("token")):
            return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)


class ConfigWithCode(SavedWithCode, PreTrainedConfig):
    """A config writes the code of its models too: `auto_map` names them all."""

    def to_dict(self) -> dict[str, Any]:
        return _saver.config_fields(self, super().to_dict(), bool(_including.get()))

    def to_json_file(self, json_file_path: str | os.PathLike, use_diff: bool = True) -> None:
        if _including.get():
            _saver.write_code(self, Path(json_file_path).parent)
        super().to_json_file(json_file_path, use_diff)


def field_of_part(part: str, name: str) -> Any:
    """A property that is the field `name` of the configuration in the field `part`; None where that has none."""

    def get(self):
        return getattr(getattr(self, part), name, None)

    def put(self, value):
        setattr(getattr(self, part), name, value)

    return property(get, put, doc=f"`{name}` of `{part}`.")


class TokenizerWithCode(SavedWithCode, PreTrainedTokenizerFast):
    """A tokenizer writes its own code. transformers asks for `_auto_map`, and calls `_save_pretrained`, as it saves."""

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        self.init_kwargs.pop("auto_map", None)  # of the file that it was loaded from
        return super().save_pretrained(*args, **kwargs)

    @property
    def _auto_map(self) -> dict[str, list[str | None]] | None:
        return _saver.tokenizer_reference(self) if _including.get() else None

    def _save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        code = _saver.write_code(self, Path(save_directory)) if _including.get() else []
        return (*super()._save_pretrained(save_directory, *args, **kwargs), *map(str, code))


__all__ = [
    "ConfigWithCode",
    "SavedWithCode",
    "Saver",
    "TokenizerWithCode",
    "field_of_part",
    "register_saver",
    "saves_agent",
]
