"""The run of `transformers-xl report`: a model looks at a text, and a page shows it."""

from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from transformers_xl.data.files import read_ids
from transformers_xl.data.text_beginning import beginning_of, without_beginning
from transformers_xl.data.text_files import TextCounts
from transformers_xl.evaluation.html_report import render_page, report_sections
from transformers_xl.evaluation.plots import save
from transformers_xl.files.atomic_write import write_text
from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.runs.loading import load_model


def write_report(
    model_dir: Path,
    text: list[Path],
    out: Path,
    pictures: Path | None = None,
    tokens: int = 16384,
    segment_length: int | None = None,
) -> list[dict[str, Any]]:
    """Write the HTML page `out` about the first `tokens` of a text, and each picture to a folder.

    The arguments are those of the command.

    Returns:
        What the page shows without its pictures: name, title, text and table of each section.

    Raises:
        ValueError: the folder holds no model of this package, or the text is too short.
    """
    model, tokenizer = load_model(model_dir, encoders=True)
    beginning = beginning_of(tokenizer)
    ids, size = read_ids(text, tokenizer)
    ids = without_beginning(ids, beginning)
    if len(ids) < 2:
        raise ValueError(f"`text` has {len(ids)} token: give a text with at least one more, which it can predict.")
    share = min(tokens, len(ids)) / len(ids)
    ids = ids[:tokens]
    is_bytes = hasattr(tokenizer, "decode_bytes")
    predicted = ids if beginning else ids[1:]
    num_bytes = len(tokenizer.decode_bytes(predicted.tolist())) if is_bytes else round(size * share)
    sections = list(
        report_sections(
            model, tokenizer, ids, TextCounts(num_bytes), segment_length, progress=True, beginning=beginning
        )
    )
    page = render_page(f"{model.config.model_type}: {model_dir.resolve().name}", _facts(model, text, ids), sections)
    write_text(out, page)
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        for section in sections:
            if section.figure is not None:
                save(section.figure, pictures / section.name)
    return [{name: getattr(each, name) for name in ("name", "title", "text", "table")} for each in sections]


def _facts(model: PreTrainedModel, text: list[Path], ids: np.ndarray) -> dict[str, str]:
    config = model.config
    row = VARIANTS[config.model_type]
    return {
        "model": f"{type(model).__name__}, {model.num_parameters():,} parameters",
        "paper": f"{row.authors} {row.year}: {row.paper or 'its own model, of no paper'}",
        "layers, heads, width": f"{config.num_hidden_layers}, {config.num_attention_heads}, {config.hidden_size}",
        "memory (tokens)": f"{config.mem_len:,}" if config.mem_len else "none",
        "segment (tokens)": f"{config.segment_length:,}",
        "text": f"{', '.join(path.name for path in text)}: {len(ids):,} tokens read",
    }


__all__ = ["write_report"]
