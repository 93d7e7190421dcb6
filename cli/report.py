"""`transformers-xl report`: one HTML page about a model and a text, with its pictures in it."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.experiments.loading import load_model


def report(
    model_dir: Annotated[Path, Argument(exists=True, file_okay=False, help="Folder of a model.")],
    text: Annotated[list[Path], Option(exists=True, dir_okay=False, help="Text file; may be given more than once.")],
    out: Annotated[Path, Option("--out", "-o", help="HTML file to write.")] = Path("report.html"),
    pictures: Annotated[
        Path | None, Option(help="Folder to write every picture to as well, as PNG and SVG.", show_default="none")
    ] = None,
    tokens: Annotated[int, Option(min=2, help="Tokens of the text to read, from its beginning.")] = 16384,
    segment_length: Annotated[
        int | None, Option(min=1, help="Tokens per segment.", show_default="as in training")
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the file, and pictures, if they exist.")] = False,
) -> None:
    """Look at a model: bits per byte with and without memory, what its heads look at, and what its variant has learned.

    The page holds its pictures and needs no network. A GPU is used where there is one.
    """
    if out.is_dir():
        raise ValueError(f"`out`={str(out)!r} is a folder: give the name of a file, for example report.html.")
    if out.exists() and not overwrite:
        raise ValueError(f"`out`={str(out)!r} exists: choose another name, or add --overwrite.")
    if pictures is not None and pictures.exists() and not pictures.is_dir():
        raise ValueError(f"`pictures`={str(pictures)!r} is a file: give the name of a folder.")
    if pictures is not None and pictures.is_dir() and any(pictures.iterdir()) and not overwrite:
        raise ValueError(f"`pictures`={str(pictures)!r} is not empty: choose another folder, or add --overwrite.")
    model, tokenizer = load_model(model_dir, encoders=True)
    from transformers_xl.evaluation.html_report import render_page, report_sections
    from transformers_xl.evaluation.plots import save
    from transformers_xl.files.atomic_write import write_text
    from transformers_xl.streams.files import read_ids

    ids, size = read_ids(text, tokenizer)
    if len(ids) < 2:
        raise ValueError(f"`text` has {len(ids)} token: give a text with at least one more, which it can predict.")
    share = min(tokens, len(ids)) / len(ids)
    ids = ids[:tokens]
    is_bytes = hasattr(tokenizer, "decode_bytes")
    num_bytes = len(tokenizer.decode_bytes(ids[1:].tolist())) if is_bytes else round(size * share)
    sections = list(report_sections(model, tokenizer, ids, num_bytes, segment_length, progress=True))
    page = render_page(f"{model.config.model_type}: {model_dir.resolve().name}", _facts(model, text, ids), sections)
    write_text(out, page)
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        for section in sections:
            if section.figure is not None:
                save(section.figure, pictures / section.name)
    typer.echo(f"wrote {out}" + (f" and {pictures}" if pictures else ""))


def _facts(model, text: list[Path], ids) -> dict[str, str]:
    from transformers_xl.modeling.auto import VARIANTS

    config = model.config
    row = VARIANTS[config.model_type]
    return {
        "model": f"{type(model).__name__}, {model.num_parameters():,} parameters",
        "paper": f"{row.authors} {row.year}: {row.paper}",
        "layers, heads, width": f"{config.num_hidden_layers}, {config.num_attention_heads}, {config.hidden_size}",
        "memory (tokens)": f"{config.mem_len:,}" if config.mem_len else "none",
        "segment (tokens)": f"{config.segment_length:,}",
        "text": f"{', '.join(path.name for path in text)}: {len(ids):,} tokens read",
    }


__all__ = ["report"]
