"""The card of a saved model: what its variant is, from the table, and what was measured, each figure with its source.

Metadata as https://huggingface.co/docs/hub/model-cards describes it, with `model-index`; results on benchmarks of the Hub
also as https://huggingface.co/docs/hub/eval-results has them.
"""

import hashlib
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import (
    EvalResult,
    EvalResultEntry,
    ModelCard,
    ModelCardData,
    eval_result_entries_to_yaml,
    hf_hub_download,
)
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.utils import yaml_dump
from transformers import AutoConfig

from transformers_xl.files.atomic_write import write_text
from transformers_xl.files.json_files import read_json
from transformers_xl.files.written import extend_record
from transformers_xl.hub.adapter_folders import Adapter, read_adapter
from transformers_xl.hub.card_choices import Choices, load_card, metadata_of
from transformers_xl.hub.card_text import card_text, listed, remembers, task_of, unique
from transformers_xl.hub.measurements import (
    FILE,
    Evaluation,
    Measurements,
    known_measurements,
    read_measurements,
)
from transformers_xl.hub.translator_card import (
    SCORES,
    TRANSLATION_SCORES,
    check_parts,
    is_of_translator,
    read_scores,
    translator_text,
)
from transformers_xl.modeling.auto import MODEL_TYPES, Variant

# the Hub shows the code of this library, and counts its downloads: it is what loads the model, with or without our package
LIBRARY = "transformers"
OWN = {
    "license", "license_name", "license_link", "language", "base_model", "datasets", "library_name", "pipeline_tag", "tags",
    "metrics", "model_name", "model-index",
}  # fmt: skip
RESULTS = ".eval_results"
METRIC = "bits_per_byte"
# fields of an evaluation that are metrics, and their names on the Hub; the first is the one that leads
METRICS = {
    METRIC: "Bits per byte",
    "bits_per_character": "Bits per character",
    "perplexity": "Perplexity per token",
    "word_perplexity": "Perplexity per whitespace word",
}
EMPTY = "[More Information Needed]"  # in the template of huggingface_hub
# of files that a card's results are written to, by `_way`
OF_A_CARD = re.compile(
    rf"{METRIC}_(with_a_memory_of_\d+|memory_taken_away|no_memory)\w*_segments_of_\d+\w*_lanes\.yaml"
)
MARK = re.compile(r"\n<!-- Written by transformers-xl, sha256 of the above: ([0-9a-f]{64}) -->\n\Z")


def model_card(folder: Path, name: str | None = None, choices: Choices | None = None) -> ModelCard:
    """The card of the model in `folder`, from its config.json and training_metrics.json.

    Args:
        folder: what `save_pretrained` or `transformers-xl train` wrote.
        name: of the model, or its repository; that of the folder when not given.
        choices: of the author.

    Raises:
        ValueError: there is no model of this package, or a measurement is none.
    """
    name = name or folder.resolve().name
    if (translator := _translator_of(folder)) is not None:
        data = _translator_metadata(folder, name, translator, choices or Choices())
        return _marked(data, translator_text(folder, name, translator, data))
    adapter = read_adapter(folder)
    config, variant = _config_of(folder, adapter)
    measured = read_measurements(folder)
    if measured is not None and measured.variant != config["model_type"]:
        raise ValueError(
            f"{folder / FILE}: `variant`={measured.variant!r}, but config.json has {config['model_type']!r}: measure again."
        )
    data = _metadata(folder, name, config, variant, measured, choices or Choices())
    if adapter is not None:
        data.base_model, data.library_name = adapter.base_repository, "peft"
        data.tags = unique([*listed(data.tags), adapter.kind.lower()])
        if data.base_model:
            data["base_model_relation"] = "adapter"
    return _marked(data, card_text(folder, name, config, variant, measured, data, adapter))


def _marked(data: ModelCardData, text: str) -> ModelCard:
    mark = f"<!-- Written by transformers-xl, sha256 of the above: {_digest(text)} -->"
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}\n{mark}\n")


def write_card(
    folder: Path, name: str | None = None, choices: Choices | None = None, overwrite: bool = False
) -> list[Path]:
    """Write README.md, and `.eval_results/*.yaml` where a text is a benchmark on the Hub; arguments as [`model_card`].

    Raises:
        ValueError: as [`model_card`]; or README.md was written or changed by hand, and `overwrite` is not set.
    """
    card = model_card(folder, name, choices)
    readme = folder / "README.md"
    if readme.exists() and not overwrite and not written_by_us(readme):
        raise ValueError(f"{readme} was written or changed by hand: keep it, or add --overwrite (`overwrite=True`).")
    results = {folder / RESULTS / f"{METRIC}_{_words(entry.notes)}.yaml": entry for entry in result_entries(folder)}
    extend_record(folder, [readme, *results])
    for path, entry in results.items():
        write_text(path, yaml_dump(eval_result_entries_to_yaml([entry]), sort_keys=False))
    write_text(readme, str(card))
    for old in (folder / RESULTS).glob("*.yaml"):
        if old not in results and OF_A_CARD.fullmatch(old.name):
            old.unlink()  # of figures that are no longer there
    return [readme, *results]


def written_by_us(readme: Path) -> bool:
    """Whether nobody has changed the text since; metadata may have been added, which a new card keeps."""
    text = load_card(readme).text
    mark = MARK.search(text)
    return mark is not None and mark[1] == _digest(text[: mark.start()])


def card_for_push(
    folder: Path, repo_id: str, origin: str, token: str | bool | None = None, choices: Choices | None = None
) -> None:
    """Put a card into `folder`, the saved model that a push is about to send, in the place of transformers empty one, or
    of one of ours, which may be of other weights.

    The figures are those of the folder `origin`, that the model was loaded from, or of the repository, if they are of the
    same weights.
    """
    readme = folder / "README.md"
    if readme.exists() and not written_by_us(readme) and EMPTY not in readme.read_text(encoding="utf-8"):
        return
    sources = [Path(origin) / FILE] if origin else []
    with suppress(EntryNotFoundError):  # a first push
        sources.append(Path(hf_hub_download(repo_id, FILE, token=token)))
    for source in sources:
        if source.is_file() and not (folder / FILE).exists():
            shutil.copyfile(source, folder / FILE)
            if known_measurements(folder) is None:
                (folder / FILE).unlink()
    scores = Path(origin) / TRANSLATION_SCORES
    if origin and scores.is_file() and not (folder / TRANSLATION_SCORES).exists():
        shutil.copyfile(scores, folder / TRANSLATION_SCORES)
        if _translator_of(folder) is None or not read_scores(folder):
            (folder / TRANSLATION_SCORES).unlink()  # of other weights
    write_card(folder, repo_id, choices, overwrite=True)


def result_entries(folder: Path) -> list[EvalResultEntry]:
    """A result for each text that is a benchmark on the Hub, with its `task_id`, as the format of the Hub requires."""
    if _translator_of(folder) is not None:
        return []
    measured = read_measurements(folder)
    config, variant = _config_of(folder, read_adapter(folder))
    return [
        EvalResultEntry(
            dataset_id=each.data.dataset,
            task_id=each.data.task_id,
            dataset_revision=each.data.revision,
            value=each.bits_per_byte,
            notes=_way(each, remembers(config, variant)),
        )
        for each in (measured.evaluations if measured else ())
        if each.data.dataset and each.data.task_id
    ]


def _translator_of(folder: Path) -> dict[str, Any] | None:
    """The config.json of a folder that holds an encoder-decoder."""
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {}
    if not is_of_translator(config):
        return None
    check_parts(config)
    return config


def _config_of(folder: Path, adapter: Adapter | None) -> tuple[dict[str, Any], Variant]:
    path = folder / "config.json"
    if adapter is not None:
        config = AutoConfig.from_pretrained(adapter.base, trust_remote_code=False).to_dict()
        config.pop("auto_map", None)  # the code is with the base
    elif path.is_file():
        config = read_json(path)
    else:
        raise ValueError(f"`folder`={str(folder)!r} has no config.json: give a folder that `save_pretrained` wrote.")
    if config.get("model_type") == "transfo-xl":
        raise ValueError(
            f"{path}: `model_type`='transfo-xl' is of transformers 4: convert it with `transformers-xl convert`."
        )
    if config.get("model_type") not in list(MODEL_TYPES):  # a hostile one may not be hashable
        known = ", ".join(MODEL_TYPES)
        raise ValueError(
            f"{path}: `model_type`={config.get('model_type')!r} is not a model of this package: known are {known}."
        )
    return config, MODEL_TYPES[config["model_type"]]


def _metadata(
    folder: Path,
    name: str,
    config: dict[str, Any],
    variant: Variant,
    measured: Measurements | None,
    choices: Choices,
) -> ModelCardData:
    kept = metadata_of(folder)
    evaluations = measured.evaluations if measured else ()
    texts = [each.data for each in evaluations]
    if measured and measured.training and measured.training.data:
        texts.insert(0, measured.training.data)
    datasets = unique([*(text.dataset for text in texts), *choices.datasets, *listed(kept.datasets)])
    tags = ["transformers-xl", config["model_type"]]
    tags += ["segment-memory"] if variant.memory != "none" else []
    tags += ["custom_code"] if "auto_map" in config else []
    task = task_of(config)
    return ModelCardData(
        datasets=datasets or None,
        pipeline_tag=task,
        tags=unique([*tags, *choices.tags, *listed(kept.tags)]),
        model_name=name,
        metrics=[metric for metric in METRICS if any(_counted(each, metric) for each in evaluations)] or None,
        eval_results=[
            _result(each, metric, task, remembers(config, variant))
            for each in evaluations
            for metric in METRICS
            if _counted(each, metric)
        ]
        or None,
        **_stated(kept, choices),
    )


def _stated(kept: ModelCardData, choices: Choices) -> dict[str, Any]:
    """What an author says, now or in the card that is there."""
    licence = choices if choices.license else kept
    return {key: value for key, value in kept.to_dict().items() if key not in OWN} | {
        "license": licence.license,
        "license_name": licence.license_name,
        "license_link": licence.license_link,
        "language": choices.language or kept.language,
        "base_model": choices.base_model or kept.base_model,
        "library_name": LIBRARY,
    }


def _translator_metadata(folder: Path, name: str, config: dict[str, Any], choices: Choices) -> ModelCardData:
    kept, scores = metadata_of(folder), read_scores(folder)
    parts = [config[part]["model_type"] for part in ("encoder", "decoder")]
    tags = ["transformers-xl", config["model_type"], *parts, *(["custom_code"] if "auto_map" in config else [])]
    return ModelCardData(
        datasets=unique([*choices.datasets, *listed(kept.datasets)]) or None,
        pipeline_tag="translation",
        tags=unique([*tags, *choices.tags, *listed(kept.tags)]),
        model_name=name,
        metrics=[each for each in SCORES if each in scores] or None,
        **_stated(kept, choices),
    )


def _counted(each: Evaluation, metric: str) -> bool:
    return getattr(each, metric) is not None


def _result(each: Evaluation, metric: str, task: str, with_memory: bool) -> EvalResult:
    lengths = each.lengths
    compressed = {} if lengths.compressed_mem_len is None else {"compressed_mem_len": lengths.compressed_mem_len}
    text: dict[str, Any] = {"file": each.data.name, "sha256": each.data.sha256, "bytes": each.data.bytes}
    return EvalResult(
        task_type=task,
        dataset_type=each.data.dataset or "text",  # the loader of `datasets` for text files
        dataset_name=each.data.dataset or each.data.name,
        dataset_split=each.data.name if each.data.dataset else None,
        # of a text that is nowhere on the Hub, its hash says which it is
        dataset_revision=each.data.revision if each.data.dataset else f"sha256:{each.data.sha256}",
        dataset_args=text,
        metric_type=metric,
        metric_name=f"{METRICS[metric]}, {_way(each, with_memory)}",
        metric_value=getattr(each, metric),
        metric_args={
            "segment_length": lengths.segment_length,
            "mem_len": lengths.mem_len,
            "layer_mem_lens": list(lengths.layer_mem_lens),
            **compressed,
            "same_length": lengths.same_length,
            "clamp_len": lengths.clamp_len if lengths.clamp_len is not None else -1,
            "lanes": lengths.lanes,
            "overlap": lengths.overlap,
        },
    )


def _way(each: Evaluation, with_memory: bool) -> str:
    """How a text was read by a model, which may be one `with_memory`."""
    lengths = each.lengths
    compressed = f" and {lengths.compressed_mem_len} compressed" if lengths.compressed_mem_len else ""
    unread = "memory taken away" if with_memory else "no memory"
    memory = f"with a memory of {lengths.mem_len}{compressed}" if each.memory else unread
    shared = f" that share {lengths.overlap}" if lengths.overlap else ""
    return f"{memory}, segments of {lengths.segment_length}{shared}, {lengths.lanes} lanes"


def _words(text: str | None) -> str:
    return re.sub(r"\W+", "_", text or "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode("utf-8")).hexdigest()


__all__ = ["Choices", "card_for_push", "model_card", "result_entries", "write_card", "written_by_us"]
