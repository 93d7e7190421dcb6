"""What a card says that nobody can measure, and what of it comes from the card of the model that a training began with."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from huggingface_hub import ModelCard, ModelCardData, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from transformers import PreTrainedConfig

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.files.json_files import read_json
from transformers_xl.files.plain_files import read_text
from transformers_xl.files.yaml_files import load_yaml
from transformers_xl.modeling.auto import MODEL_TYPES

MAX_BYTES = 1 << 24  # of a README.md, which may hold pictures


@dataclass(frozen=True)
class Choices:
    """What the author says. None: as in the card that is there.

    Attributes:
        license: identifier of the licence of the weights, such as "apache-2.0"; no licence is stated without one.
        language: code of the text's language, such as "en".
        base_model: repository of the model that the training began with.
        datasets: further data sets on the Hub.
        tags: further tags.
        license_name, license_link: name and address of a licence that has no identifier (`license` "other").
    """

    license: str | None = None
    language: str | list[str] | None = None
    base_model: str | list[str] | None = None
    datasets: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    license_name: str | None = None
    license_link: str | None = None


def choices_of_base(base: str) -> Choices:
    """What follows for a model that is made of another one: licence and language, as its card states them, and its name.

    Args:
        base: folder, or repository on the Hub. The name of a folder says nothing; where it holds a model of this
            package, the model that stands behind it is named.
    """
    folder = Path(base)
    if not folder.is_dir():
        return _choices(_metadata_of_repo(base), base)
    described = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    known = metadata_of(folder)
    return _choices(known, known.base_model if described.get("model_type") in list(MODEL_TYPES) else None)


def choices_of_loaded(config: PreTrainedConfig) -> Choices:
    """What follows for a model of others with a memory around it, by what was loaded: the whole of it, from a folder or a
    repository whose card is kept, or the base alone. Nothing for other models, which were made here."""
    if not isinstance(config, SegmentMemoryConfig):
        return Choices()
    if origin := config._name_or_path:
        known = metadata_of(Path(origin)) if Path(origin).is_dir() else _metadata_of_repo(origin)
        return _choices(known, known.base_model)
    base = getattr(config.text_config, "_name_or_path", "")
    return choices_of_base(base) if base else Choices()


def _choices(known: ModelCardData, base_model: str | list[str] | None) -> Choices:
    return Choices(
        license=known.license,
        language=known.language,
        base_model=base_model,
        license_name=known.license_name,
        license_link=known.license_link,
    )


def metadata_of(folder: Path) -> ModelCardData:
    """The metadata of the card in a folder; empty where there is none.

    Raises:
        ValueError: the file is no card.
    """
    readme = folder / "README.md"
    return cast(ModelCardData, load_card(readme).data) if readme.is_file() else ModelCardData()


def load_card(readme: Path) -> ModelCard:
    """The card in a file.

    Raises:
        ValueError: it is no card.
    """
    try:
        if block := REGEX_YAML_BLOCK.search(read_text(readme, MAX_BYTES)):
            load_yaml(block[2])  # which the card would take at any size
        return ModelCard.load(readme, ignore_metadata_errors=True)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{str(readme)!r} is not a valid card ({error}): fix or remove it.") from error


def _metadata_of_repo(repo: str) -> ModelCardData:
    with suppress(HfHubHTTPError, OSError):  # it has no card, or the Hub cannot be asked
        return cast(ModelCardData, load_card(Path(hf_hub_download(repo, "README.md"))).data)
    return ModelCardData()


__all__ = ["Choices", "choices_of_base", "choices_of_loaded", "load_card", "metadata_of"]
