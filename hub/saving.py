"""What this package adds to `save_pretrained` and `push_to_hub`: the code beside the weights, and what a failed push says.

`install` puts these classes in front of the library's. Exported files know nothing of it: the library itself copies the
files that a class was loaded from when it is saved again.
"""

import importlib
import os
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.hub.cards import card_for_push
from transformers_xl.hub.code_export import PACKAGE, write_code
from transformers_xl.hub.uploading import explained, files_below
from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.modeling.modeling_memory import MemoryPreTrainedModel

# Whether the save that runs includes code; None outside of a save. A model saves its config, which writes the code of both.
_including: ContextVar[bool | None] = ContextVar("including", default=None)


@contextmanager
def _include(include_code: bool | None) -> Iterator[None]:
    token = _including.set(_including.get() is not False if include_code is None else include_code)
    try:
        yield
    finally:
        _including.reset(token)


class SavedWithCode:
    """`save_pretrained` and `push_to_hub` of models, configs and tokenizers of this package."""

    def save_pretrained(
        self, save_directory: str | os.PathLike, *args: Any, include_code: bool | None = None, **kwargs: Any
    ) -> Any:
        """As in transformers. `include_code` (on unless it is set to False) also writes the code that the files need where
        this package is not installed, for `trust_remote_code=True`."""
        with _include(include_code):
            return super().save_pretrained(save_directory, *args, **kwargs)

    def push_to_hub(self, repo_id: str, *, include_code: bool = True, **kwargs: Any) -> str:
        """As in transformers, with the code as in `save_pretrained`.

        Raises:
            PushError: the server refused, failed or went away; says what is on the server and what is not.
        """
        with _include(include_code), explained(repo_id, {}, kwargs.get("revision"), kwargs.get("token")):
            return super().push_to_hub(repo_id, **kwargs)

    def _upload_modified_files(self, working_dir: str | os.PathLike, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        with explained(repo_id, files_below(Path(working_dir)), kwargs.get("revision"), kwargs.get("token")):
            return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)


class ModelWithCard(SavedWithCode):
    """A model also brings its card, where the library would push an empty form."""

    def _upload_modified_files(self, working_dir: str | os.PathLike, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        if self.config.model_type in VARIANTS:
            with explained(repo_id, {}, kwargs.get("revision"), kwargs.get("token")):
                card_for_push(Path(working_dir), repo_id, self.config._name_or_path, kwargs.get("token"))
        return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)


class ConfigWithCode(SavedWithCode):
    """A config writes the code of its models too: `auto_map` names them all."""

    def _auto_classes(self) -> dict[str, type]:
        """The classes that the Auto classes need to load what is saved."""
        row = VARIANTS.get(self.model_type)
        if row is None or type(self) is not row.config_class:  # a sub-class of yours: its code is not ours to export
            return {}
        classes = {
            "AutoConfig": row.config_class,
            "AutoModel": row.model_class,
            "AutoModelForCausalLM": row.causal_lm_class,
            "AutoModelForSequenceClassification": row.sequence_classification_class,
            "AutoModelForTokenClassification": row.token_classification_class,
        }
        return {auto: cls for auto, cls in classes.items() if cls is not None}

    def to_dict(self) -> dict[str, Any]:
        fields = super().to_dict()
        fields.pop("auto_map", None)  # of the file that it was loaded from
        references = {auto: _reference(cls) for auto, cls in self._auto_classes().items()} if _including.get() else {}
        return fields | ({"auto_map": references} if references else {})

    def to_json_file(self, json_file_path: str | os.PathLike, use_diff: bool = True) -> None:
        if _including.get():
            write_code(Path(json_file_path).parent, {cls.__module__ for cls in self._auto_classes().values()})
        super().to_json_file(json_file_path, use_diff)


class TokenizerWithCode(SavedWithCode):
    """A tokenizer writes its own code. The library asks for `_auto_map`, and calls `_save_pretrained`, as it saves."""

    def _exports(self) -> bool:
        return bool(_including.get()) and type(self).__module__.startswith(f"{PACKAGE}.")

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        self.init_kwargs.pop("auto_map", None)  # of the file that it was loaded from
        return super().save_pretrained(*args, **kwargs)

    @property
    def _auto_map(self) -> dict[str, list[str | None]] | None:
        return {"AutoTokenizer": [_reference(type(self)), None]} if self._exports() else None

    def _save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        code = write_code(Path(save_directory), [type(self).__module__]) if self._exports() else []
        return (*super()._save_pretrained(save_directory, *args, **kwargs), *map(str, code))


def _reference(cls: type) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def tokenizers() -> list[type[PreTrainedTokenizerBase]]:
    """The tokenizers of this package: those that the files tokenization_*.py define."""
    folder = importlib.import_module(f"{PACKAGE}.tokenization").__path__
    names = [module.name for module in pkgutil.iter_modules(folder) if module.name.startswith("tokenization_")]
    modules = [importlib.import_module(f"{PACKAGE}.tokenization.{name}") for name in names]
    public = [getattr(module, name) for module in modules for name in module.__all__]
    return [value for value in public if isinstance(value, type) and issubclass(value, PreTrainedTokenizerBase)]


def install() -> None:
    """Make models, configs and tokenizers save and push as above. `import transformers_xl` does it."""
    front = {MemoryPreTrainedModel: ModelWithCard, MemoryConfig: ConfigWithCode}
    for saved, mixin in {**front, **dict.fromkeys(tokenizers(), TokenizerWithCode)}.items():
        if mixin not in saved.__mro__:
            saved.__bases__ = (mixin, *saved.__bases__)


__all__ = ["ConfigWithCode", "ModelWithCard", "SavedWithCode", "TokenizerWithCode", "install", "tokenizers"]
