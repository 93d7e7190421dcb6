"""What `train` and `evaluate` record of a text and its score.

Imported by the commands when they run: it costs the import of torch and transformers.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from transformers_xl.data.identity import digest_of
from transformers_xl.data.text_files import TextFile, name_of
from transformers_xl.evaluation.bits_per_byte import TextScore
from transformers_xl.files.written import extend_record
from transformers_xl.hub.cards import write_card, written_by_us
from transformers_xl.hub.measurements import (
    FILE,
    Evaluation,
    Text,
    device_name,
    known_measurements,
    lengths_of,
    measurements_of,
    write_measurements,
)


def check_claims(dataset: str | None, revision: str | None, task_id: str | None) -> tuple[str | None, ...]:
    """What the user says a text is on the Hub.

    Raises:
        ValueError: a revision or a task of no data set.
    """
    for name, value in (("dataset_revision", revision), ("task_id", task_id)):
        if value is not None and dataset is None:
            raise ValueError(f"`{name}`={value!r} needs a data set: add --dataset, its name on the Hub.")
    return dataset, revision, task_id


def text_of_files(files: Iterable[Path], tokens: int, claims: tuple[str | None, ...]) -> Text:
    """A text that is all of its files, one after the other; compressed ones as they are once they were opened."""
    files, digest, size = list(files), hashlib.sha256(), 0
    for file in files:
        with TextFile(file).open() as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
                size += len(chunk)
    names = ", ".join(name_of(str(file)) for file in files)
    return Text(names, digest.hexdigest(), "bytes", size, tokens, *claims)


def text_of_rows(
    names: str, part: str, rows: list[np.ndarray], tokenizer: Any, claims: tuple[str | None, ...]
) -> Text:
    """A text of which the `part` ("first", "last", "part" or "", all of it) was read as `rows` of token ids.

    It is known by its bytes where these are the tokens, else by the ids.
    """
    tokens = sum(map(len, rows))
    if hasattr(tokenizer, "encode_bytes") and len(rows) == 1:
        text = tokenizer.decode_bytes(rows[0].tolist())
        digest, of, size, unit = hashlib.sha256(text).hexdigest(), "bytes", len(text), "bytes"
    else:
        digest, of, size, unit = digest_of(rows), "token ids", None, "tokens"
    length = tokens if size is None else size
    which = {"": "", "part": f", {length:,} {unit} of it"}.get(part, f", its {part} {length:,} {unit}")
    return Text(names + which, digest, of, size, tokens, *claims)


def evaluation_of(
    model: PreTrainedModel,
    score: TextScore,
    data: Text,
    lanes: int,
    memory: bool,
    command: str,
    segment_length: int | None = None,
    overlap: int = 0,
) -> Evaluation:
    assert score.seconds is not None  # `score_text` has measured it
    return Evaluation(
        data=data,
        lengths=replace(lengths_of(model, lanes, segment_length, memory), overlap=overlap),
        memory=memory,
        bits_per_byte=score.bits_per_byte,
        nats=score.nats,
        tokens=score.tokens,
        bytes=score.bytes,
        seconds=score.seconds,
        tokens_per_second=score.tokens / score.seconds,
        dtype=str(model.dtype).removeprefix("torch."),
        device=device_name(model.device),
        command=command,
        characters=score.characters,
        words=score.words,
        perplexity=_finite(score.perplexity),
        word_perplexity=_finite(score.word_perplexity),
        bits_per_character=score.bits_per_character,
    )


def record_evaluations(model: PreTrainedModel, folder: Path, evaluations: Iterable[Evaluation]) -> None:
    """Write figures of the weights in `folder` beside those that are known; the card follows, unless somebody has written
    one."""
    known = known_measurements(folder) or measurements_of(model, folder)
    extend_record(folder, [folder / FILE])
    write_measurements(folder, known.with_evaluations(evaluations))
    readme = folder / "README.md"
    if not readme.exists() or written_by_us(readme):
        write_card(folder)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


__all__ = ["check_claims", "evaluation_of", "record_evaluations", "text_of_files", "text_of_rows"]
