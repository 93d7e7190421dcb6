"""What this package adds to `save_pretrained` and `push_to_hub`: code beside weights, a card, what a failed push says."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel

from transformers_xl.configuration.saved_with_code import (
    ConfigWithCode,
    Saver,
    TokenizerWithCode,
    register_saver,
    saves_agent,
)
from transformers_xl.hub.card_choices import choices_of_loaded
from transformers_xl.hub.cards import card_for_push
from transformers_xl.hub.code_export import Calls, write_code
from transformers_xl.hub.module_source import PACKAGE
from transformers_xl.hub.uploading import check_nothing_older_is_loaded, explained, files_below
from transformers_xl.modeling.auto import ENCODER_DECODER, MODEL_TYPES


class PackageSaver(Saver):
    """Adds the code of classes of this package, and of theirs alone: that of a sub-class of yours is not ours to export."""

    def config_fields(self, config: ConfigWithCode, fields: dict[str, Any], include_code: bool) -> dict[str, Any]:
        fields.pop("auto_map", None)  # of the file that it was loaded from
        base = fields.get("text_config")
        if isinstance(base, dict) and Path(base.get("_name_or_path") or ".").is_dir():
            base.pop("_name_or_path", None)  # where files lie is nobody's business
        classes = _auto_classes(config) if include_code else {}
        if "AutoModelForActorCritic" in classes and saves_agent():
            classes["AutoModel"] = classes["AutoModelForActorCritic"]  # transformers has no other class that loads it
        references = {auto: _reference(cls) for auto, cls in classes.items()}
        return fields | ({"auto_map": references} if references else {})

    def tokenizer_reference(self, tokenizer: TokenizerWithCode) -> dict[str, list[str | None]] | None:
        return {"AutoTokenizer": [_reference(type(tokenizer)), None]} if _is_ours(tokenizer) else None

    def write_code(self, saved: ConfigWithCode | TokenizerWithCode, folder: Path) -> list[Path]:
        if isinstance(saved, ConfigWithCode):
            return write_code(folder, {cls.__module__ for cls in _auto_classes(saved).values()}, _calls(saved))
        return write_code(folder, [type(saved).__module__]) if _is_ours(saved) else []

    @contextmanager
    def pushing(
        self, saved: Any, repo_id: str, folder: Path | None, revision: str | None, token: str | bool | None
    ) -> Iterator[None]:
        if folder is not None and isinstance(saved, PreTrainedModel) and _has_card(saved.config):
            with explained(repo_id, {}, revision, token):  # where transformers would push an empty form
                choices = choices_of_loaded(saved.config)
                card_for_push(folder, repo_id, saved.config._name_or_path, token, choices)
        files = {} if folder is None else files_below(folder)
        with explained(repo_id, files, revision, token):
            check_nothing_older_is_loaded(repo_id, files, revision, token)
            yield


def _has_card(config: Any) -> bool:
    return config.model_type in MODEL_TYPES or type(config) is ENCODER_DECODER["AutoConfig"]


def _auto_classes(config: ConfigWithCode) -> dict[str, type]:
    """The classes that the Auto classes need to load what is saved."""
    if type(config) is ENCODER_DECODER["AutoConfig"]:
        return ENCODER_DECODER
    row = MODEL_TYPES.get(config.model_type)
    return {} if row is None or type(config) is not row.config_class else row.auto_classes()


def _calls(config: Any) -> Calls:
    """What the code of an encoder-decoder says of its parts, which the package registers by its table of variants."""
    classes = _auto_classes(config)
    if classes is not ENCODER_DECODER:
        return {}
    encoder, decoder = (MODEL_TYPES[part.model_type] for part in (config.encoder, config.decoder))
    return {
        classes["AutoConfig"].__module__: [
            ("register_encoder_config", encoder.config_class),
            ("register_decoder_config", decoder.config_class),
        ],
        classes["AutoModelForSeq2SeqLM"].__module__: [
            ("register_part", encoder.model_class),
            ("register_part", cast(type, decoder.causal_lm_class)),
        ],
    }


def _is_ours(tokenizer: TokenizerWithCode) -> bool:
    return type(tokenizer).__module__.startswith(f"{PACKAGE}.")


def _reference(cls: type) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def register() -> None:
    """Make models, configs and tokenizers save and push so. `import transformers_xl` does it."""
    register_saver(PackageSaver())


__all__ = ["PackageSaver", "register"]
