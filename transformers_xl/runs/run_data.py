"""The texts of a run: read from what its `data` section names, tokenised once, and parted into streams."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.constants import HF_HOME
from torch.utils.data import Dataset
from transformers.utils import logging

from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.data.documents import dataset_documents, held_out_places, tokenize_dataset
from transformers_xl.data.files import (
    read_counted_documents,
    read_held_out,
    read_ids,
    read_predicted,
    unpredicted_bytes,
)
from transformers_xl.data.streaming_text import StreamingText
from transformers_xl.data.text_beginning import beginning_of
from transformers_xl.data.text_files import TABLES, TextCounts, TextFile, kind_of, name_of, parted, suffix_of
from transformers_xl.data.text_stream import TextStream
from transformers_xl.files.blaming import blamed, renamed
from transformers_xl.files.json_files import check_stream
from transformers_xl.files.parquet_files import checked_metadata
from transformers_xl.hub.installing import pip_install
from transformers_xl.runs.run_config import DataSection, RunConfig

IN_FOLDERS = {".txt", *TABLES} - {".json"}  # of models and tokenizers, which lie beside texts
logger = logging.get_logger(__name__)
# what the library calls these fields
FIELDS = {"column": "data.text_field", "fraction": "data.eval_fraction", "lanes": "data.batch_size"}
VOCABULARIES = ("vocab.txt", "merges.txt")
HELD_OUT_NAMES = ("valid", "validation", "val", "dev")


@dataclass(frozen=True)
class HeldOut:
    """The text that is held out: one row of token ids `(tokens,)`, or a row for each document; how long it is without the
    tokens that nothing predicts; and the ids that a text begins with."""

    rows: list[np.ndarray]
    counts: TextCounts
    documents: bool
    beginning: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.rows))

    @property
    def predicted(self) -> int:
        """How many of them are predicted: not the first of a text, where nothing begins texts."""
        return self.tokens - (0 if self.beginning else len(self.rows))

    def stream(
        self, segment_length: int, rows: int, processes: int = 1, overlap: int = 0, memory: bool = True
    ) -> TextStream | DocumentStream:
        """All of it, read by `processes` with up to `rows` lanes each: fewer where it is short. `memory`: whether the model
        remembers."""
        most = len(self.rows) if self.documents else self.tokens // segment_length
        if self.documents and most < processes:
            raise ValueError(
                f"`data.eval_fraction`: {most} documents are held out, and {processes} processes read them: hold out more, "
                "or start fewer processes."
            )
        lanes = max(1, min(rows, most // processes)) * processes
        options: dict[str, Any] = {"counts": self.counts, "beginning": self.beginning, "memory": memory}
        if self.documents:
            return DocumentStream(self.rows, segment_length, lanes, keep_tail=True, **options)
        return TextStream(self.rows[0], segment_length, lanes, keep_tail=True, overlap=overlap, **options)


@dataclass(frozen=True)
class RunData:
    """The tokens to learn from, or rows of them that are read while training, and the held-out text.

    `names` and `eval_names` are the files or the dataset, without folders; `shared` says that both are parts of one text.
    """

    rows: list[np.ndarray] | Any
    held_out: HeldOut
    section: DataSection
    names: str
    eval_names: str
    shared: bool

    @property
    def tokens(self) -> int | None:
        """How many there are to learn from; None where that is not known before they are read."""
        return None if self.section.streaming else sum(map(len, self.rows))

    @renamed(FIELDS)
    def stream(self, segment_length: int, lanes: int, memory: bool = True) -> Dataset:
        """The segments to train on. `memory`: whether the model remembers.

        Raises:
            ValueError: the text is too short for its lanes.
        """
        documents = self.section.documents
        begins: dict[str, Any] = {"beginning": self.held_out.beginning, "memory": memory}
        if self.section.streaming:
            return StreamingText(self.rows, segment_length, lanes, documents, **begins)
        if documents:
            return DocumentStream(self.rows, segment_length, lanes, **begins)
        section = self.section
        return TextStream(
            self.rows[0],
            segment_length,
            lanes,
            overlap=section.overlap,
            vary_lengths=section.vary_lengths,
            roll=section.roll,
            **begins,
        )


@renamed(FIELDS)
def read_data(section: DataSection, tokenizer: Any, progress: bool = True) -> RunData:
    """The texts that a `data` section names.

    Raises:
        ValueError: nothing is named, a file is not there, is empty or cannot be read, or nothing could be held out.
    """
    if not section.path and section.dataset is None:
        raise ValueError("`data.path` is empty: give text files, or `data.dataset`, the name of a dataset on the Hub.")
    paths, eval_paths = files_to_read(section)
    section = replace(section, path=paths, eval_path=eval_paths)
    is_text = {kind_of(path) not in TABLES for path in (*section.path, *section.eval_path)}
    if len(is_text) > 1:
        raise ValueError(
            "`data.path` and `data.eval_path` mix text with JSON lines or Parquet: give files of one kind."
        )
    _check_effects(section, is_text == {True})
    check_paths(section)
    check_fraction(section)
    reader = _Reader(section, tokenizer, progress)
    if not section.path:
        data = reader.of_hub()
    elif is_text == {False}:
        data = reader.of_tables()
    else:
        data = reader.of_documents() if section.documents else reader.of_text()
    if data.held_out.predicted < 1:
        raise ValueError(
            f"`data.{_names_held_out(section)}`: of {data.eval_names} no token is predicted, each text has one: hold out "
            "longer texts."
        )
    if data.held_out.counts.bytes < 1:
        raise ValueError(
            f"`data.{_names_held_out(section)}`: what is predicted of {data.eval_names} stands for no bytes, so that there "
            "are no bits per byte: hold out longer texts."
        )
    return data


def check_paths(section: DataSection) -> None:
    """Raise a `ValueError` where a file or folder that the section names is not there."""
    for name, paths in (("path", section.path), ("eval_path", section.eval_path)):
        missing = [path for path in paths if not path or not Path(parted(path)[0]).exists()]
        if missing:
            raise ValueError(
                f"`data.{name}`: there is no {missing[0]!r} here: give text files, or a folder of them (`transformers-xl "
                "prepare` writes those of the recipes)."
            )


def check_fraction(section: DataSection) -> None:
    """Raise a `ValueError` where nothing, or nothing else, would be held out of the files of a section, which are there."""
    is_held_out = section.eval_split or files_to_read(section)[1]
    if not is_held_out and not 0 < section.eval_fraction < 1:
        raise ValueError(
            f"`data.eval_fraction`={section.eval_fraction} must lie between 0 and 1, for example 0.1: what is trained is "
            "scored on text that it has not seen. To train on all of a text, name another one with `data.eval_path`."
        )


def _names_held_out(section: DataSection) -> str:
    """The field that says what is held out."""
    return next((name for name in ("eval_path", "eval_split") if getattr(section, name)), "eval_fraction")


def text_folder(section: DataSection) -> Path | None:
    """The folder that is all of `data.path`, None where it is something else."""
    folders = [Path(path) for path in section.path]
    return folders[0] if len(folders) == 1 and folders[0].is_dir() else None


class _Reader:
    """Reads what a section names, whose paths are files."""

    def __init__(self, section: DataSection, tokenizer: Any, progress: bool):
        self.section, self.tokenizer, self.progress = section, tokenizer, progress
        default = None if hasattr(tokenizer, "encode_bytes") else str(Path(HF_HOME) / "transformers_xl")
        # a byte is its own token: to keep them would cost more than to read them
        self.cache = default if section.cache_dir is None else section.cache_dir or None
        self.beginning = beginning_of(tokenizer)
        self.names, self.eval_names = (_names(paths) for paths in (section.path, section.eval_path))

    def of_text(self) -> RunData:
        section = self.section
        options: dict[str, Any] = {"progress": self.progress, "cache_dir": self.cache}
        if section.eval_path:
            ids, _ = read_ids(section.path, self.tokenizer, **options)
            held_out, counts = read_predicted(section.eval_path, self.tokenizer, **options)
        else:
            ids, held_out, counts = read_held_out(section.path, self.tokenizer, section.eval_fraction, **options)
        return self._data([ids], HeldOut([held_out], counts, False, self.beginning))

    def of_documents(self) -> RunData:
        section = self.section
        read = [
            read_counted_documents(
                paths, self.tokenizer, section.separator, section.append_eos, self.progress, self.cache
            )
            for paths in (section.path, section.eval_path)
            if paths
        ]
        return self._parted(read)

    def of_hub(self) -> RunData:
        name, section = str(self.section.dataset), self.section
        self.names = self.eval_names = name
        options = {"revision": section.revision, "name": section.dataset_config}
        splits = [section.split, *([section.eval_split] if section.eval_split else [])]
        return self._of_datasets([_load(name, split, section.streaming, **options) for split in splits])

    def of_tables(self) -> RunData:
        groups = [paths for paths in (self.section.path, self.section.eval_path) if paths]
        return self._of_datasets([_load_files(paths, self.section.streaming) for paths in groups])

    def _of_datasets(self, loaded: list[Any]) -> RunData:
        section = self.section
        tokenized = [tokenize_dataset(each, self.tokenizer, section.text_field, section.append_eos) for each in loaded]
        if not section.streaming:
            return self._parted([self._documents(each) for each in tokenized])
        if len(tokenized) < 2:
            raise ValueError(
                "`data.streaming`=True needs a separate held-out text: give `data.eval_path` or `data.eval_split`."
            )
        return self._data(tokenized[0], self._held_out(*self._documents(_in_memory(tokenized[1]))))

    @staticmethod
    def _documents(table: Any) -> tuple[list[np.ndarray], np.ndarray]:
        columns = (f"num_{name}" for name in ("bytes", "characters", "words"))
        counts = np.stack([np.asarray(table[column], dtype=np.int64) for column in columns], axis=1)
        rows = dataset_documents(table)
        kept = [place for place, row in enumerate(rows) if len(row) and counts[place, 2]]  # more than white space
        return [rows[place] for place in kept], counts[kept]

    def _parted(self, read: list[tuple[list[np.ndarray], np.ndarray]]) -> RunData:
        """The documents to learn from, and those held out, where there are no others."""
        rows, counts = read[0]
        if len(read) == 2:
            held_out = self._held_out(*read[1])
        else:
            out = self._places([len(row) for row in rows])
            held_out, chosen = self._held_out([rows[place] for place in out], counts[out]), set(out)
            rows = [row for place, row in enumerate(rows) if place not in chosen]
        return self._data(rows if self.section.documents else [np.concatenate(rows)], held_out)

    def _places(self, lengths: list[int]) -> list[int]:
        """The documents to hold out: some of all, or, of one stream, the last."""
        fraction = self.section.eval_fraction
        if self.section.documents:
            return sorted(held_out_places(lengths, fraction))
        if len(lengths) < 2:
            raise ValueError(
                f"`data.eval_fraction`={fraction} holds out whole rows, and {self.names} has {len(lengths)} with a text: "
                "use more, or name another text with `data.eval_path`."
            )
        sums = np.cumsum(lengths[::-1])
        count = min(len(lengths) - 1, int(np.searchsorted(sums, fraction * sums[-1])) + 1)
        return list(range(len(lengths) - count, len(lengths)))

    def _held_out(self, rows: list[np.ndarray], counts: np.ndarray) -> HeldOut:
        rows = rows if self.section.documents else [np.concatenate(rows)]
        first = unpredicted_bytes(rows, self.tokenizer)
        size, characters, words = counts.sum(0).tolist()
        found = TextCounts(size - first, characters - first, words)
        return HeldOut(rows, found, self.section.documents, self.beginning)

    def _data(self, rows: Any, held_out: HeldOut) -> RunData:
        shared = not self.section.eval_path and self.section.eval_split is None
        return RunData(rows, held_out, self.section, self.names, self.eval_names or self.names, shared)


def _check_effects(section: DataSection, is_text: bool) -> None:
    """Refuse what would be ignored silently."""
    one_stream = (
        section.documents or section.streaming,
        "is for a text that is one stream: leave out `data.documents` and `data.streaming`",
    )
    of_dataset = (bool(section.path), "is of a dataset that is read, but `data.path` is: leave one of them out")
    without_effect = {
        "overlap": one_stream,
        "vary_lengths": one_stream,
        "roll": one_stream,
        "streaming": (is_text, "reads datasets, JSON lines and Parquet: a text file is read at once, leave it out"),
        "text_field": (is_text, "is a field of JSON lines or Parquet, but text files are read: leave it out"),
        "append_eos": (is_text and not section.documents, "ends documents: add `data.documents`, or leave it out"),
        "separator": (not section.documents or not is_text, "parts text files into `data.documents`: leave it out"),
        "dataset_config": of_dataset,
        "split": of_dataset,
        "eval_split": of_dataset,
        "eval_path": (not section.path, "is read beside `data.path`: of a dataset, give `data.eval_split`"),
        "eval_source": (True, "is of pairs (`data.source`): hold out texts with `data.eval_path`"),
        "eval_target": (True, "is of pairs (`data.target`): hold out texts with `data.eval_path`"),
    }
    defaults = DataSection()
    for name, (has_none, why) in without_effect.items():
        if has_none and getattr(section, name) != getattr(defaults, name):
            raise ValueError(f"`data.{name}`={getattr(section, name)!r} {why}.")


def _load(path: str, split: str, streaming: bool, **options: Any) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"`data.dataset`, JSON lines and Parquet need the package datasets: {pip_install('datasets')}."
        ) from error
    with blamed(Path(options.get("data_files", [path])[0])):
        return datasets.load_dataset(path, split=split, streaming=streaming, **options)


def _load_files(paths: list[str] | str, streaming: bool) -> Any:
    kinds = {TABLES[kind_of(path)] for path in paths}
    if len(kinds) > 1:
        raise ValueError(f"`data.path` mixes files of {' and '.join(sorted(kinds))}: give files of one kind.")
    for path in paths:
        if suffix_of(parted(path)[0]) == ".zip":
            raise ValueError(f"`data.path`: {path!r} is in an archive, where tables are not read: unpack it.")
        if suffix_of(path) == ".zst":  # datasets reads what is there of one that was cut off
            TextFile(path).check()
        _check_table(TextFile(path), kinds == {"parquet"})
    filled = [path for path in paths if not _is_empty(path)]  # some of many may be
    if not filled:
        raise ValueError(f"`data.path`: {', '.join(paths)} are empty: give rows with text in them.")
    return _load(kinds.pop(), "train", streaming, data_files=filled)


def _is_empty(path: str) -> bool:
    if kind_of(path) == ".parquet":
        return not TextFile(path).is_compressed and checked_metadata(Path(path)).num_rows == 0
    with TextFile(path).open() as stream:
        return all(not chunk.strip() for chunk in iter(lambda: stream.read(1 << 20), b""))


def _check_table(file: TextFile, is_parquet: bool) -> None:
    """Refuse what would end this process, or fill its memory, while it is read."""
    if not is_parquet:
        with blamed(file.path), file.open() as stream:
            check_stream(stream, str(file))
    elif not file.is_compressed:
        checked_metadata(file.path)


def _in_memory(stream: Any) -> Any:
    import datasets

    return datasets.Dataset.from_list(list(stream))


def _names(paths: Iterable[str]) -> str:
    return ", ".join(map(name_of, paths))


def files_to_read(section: DataSection) -> tuple[list[str], list[str]]:
    """The files of `data.path`; and those of `data.eval_path`, or, of a folder, that are held out by their name."""
    read, held_out = [], []
    for path in section.path:
        files = _files_of(path)
        parts = {split: [file for file in files if _split(file) == split] for split in map(_split, files)}
        if not Path(path).is_dir() or "train" not in parts:
            read += files
            continue
        read += parts["train"]
        held_out += [file for name in HELD_OUT_NAMES for file in parts.get(name, [])]
        others = [file for name in parts.keys() - {"train", "test", *HELD_OUT_NAMES} for file in parts[name]]
        if others:
            logger.warning_once(
                f"`data.path`: of {path!r}, {_names(sorted(others))} is not read: there is a split `train`."
            )
    given = [file for path in section.eval_path for file in _files_of(path, "eval_path")]
    return read, given or sorted(held_out)


def input_files(run: RunConfig) -> list[Path]:
    """The files and folders on this machine that a run reads: texts, tokenizer and base."""
    sides = (run.data.source, run.data.target, run.data.eval_source, run.data.eval_target)
    of_pairs = [] if run.data.path or run.data.dataset else [each for each in sides if each is not None]
    texts = [file for path in (*run.data.path, *run.data.eval_path, *of_pairs) for file in _files_of(path)]
    named = [name for name in (run.tokenizer.path, run.model.base) if name is not None]
    return [Path(parted(text)[0]) for text in texts] + [Path(name) for name in named]


def _files_of(path: str, field: str = "path") -> list[str]:
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    found = (file for file in folder.rglob("*") if file.is_file() and kind_of(file.name) in IN_FOLDERS)
    files = sorted(str(file) for file in found if not _is_of_tokenizer(file, folder))
    if not files:
        endings = ", ".join(sorted(IN_FOLDERS))
        raise ValueError(f"`data.{field}`: the folder {path!r} has no file that ends in {endings}.")
    return files


def _is_of_tokenizer(file: Path, folder: Path) -> bool:
    """Whether a file lies in the folder of a tokenizer inside a folder of texts, or is a vocabulary beside one."""
    is_beside = (file.parent / "tokenizer_config.json").is_file()
    return is_beside and (file.parent != folder or file.name in VOCABULARIES)


def _split(file: str) -> str:
    """`train-00000-of-00002.parquet` is of the split `train`."""
    return re.split(r"[-_.]", Path(file).name)[0]


__all__ = [
    "HeldOut",
    "RunData",
    "check_fraction",
    "check_paths",
    "files_to_read",
    "input_files",
    "read_data",
    "text_folder",
]
