"""The text of a translator's card: what its parts are, how it is used, and what its translations were worth."""

import math
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from transformers_xl.files.json_files import read_json
from transformers_xl.hub.card_text import SIZES, licence_of, number, origin_of, source_of, table
from transformers_xl.hub.installing import pip_install
from transformers_xl.hub.measurements import weights_digest
from transformers_xl.hub.quoting import as_block, as_code, as_link, as_python, as_text
from transformers_xl.modeling.auto import ENCODER_DECODER, MODEL_TYPES

TRANSLATION_SCORES = "translation_metrics.json"  # what `train` writes
SCORES = {"bleu": "BLEU", "chrf": "chrF", "perplexity": "Perplexity per token"}
PARTS = ("encoder", "decoder")


def is_of_translator(config: dict[str, Any]) -> bool:
    """Whether a config.json is that of an encoder-decoder."""
    return config.get("model_type") == ENCODER_DECODER["AutoConfig"].model_type  # type: ignore[attr-defined]


def check_parts(config: dict[str, Any]) -> None:
    """
    Raises:
        ValueError: a part of the encoder-decoder is no model of this package.
    """
    for name in PARTS:
        part = config.get(name)
        model_type = part.get("model_type") if isinstance(part, dict) else None
        if model_type not in list(MODEL_TYPES):  # a hostile one may not be hashable
            raise ValueError(f"config.json: `{name}.model_type`={model_type!r} is not a model of this package.")


def read_scores(folder: Path) -> dict[str, float]:
    """BLEU, chrF and perplexity of held-out pairs, and their number; nothing where they were not measured, or of other
    weights.

    Raises:
        ValueError: the file holds something else.
    """
    path = folder / TRANSLATION_SCORES
    found = read_json(path) if path.is_file() else {}
    if not found or found.get("weights") != weights_digest(folder):
        return {}
    names = [*SCORES, "pairs"]
    if not all(type(found.get(name)) in (int, float) and math.isfinite(found[name]) for name in names):
        raise ValueError(f"{path} must hold the numbers {', '.join(names)}: train again, or take it away.")
    return {name: found[name] for name in names}


def translator_text(folder: Path, name: str, config: dict[str, Any], data: ModelCardData) -> str:
    """The text of the card, from config.json and the scores of the training."""
    encoder, decoder = (MODEL_TYPES[config[part]["model_type"]] for part in PARTS)
    papers = {row.paper: as_link(row.paper, row.url) for row in (encoder, decoder) if row.paper}
    what = (
        f"An encoder ({as_code(config['encoder']['model_type'])}) reads a text, and a decoder "
        f"({as_code(config['decoder']['model_type'])}) writes another, such as its translation. The decoder remembers "
        "what it has written, also for earlier sentences of a document."
    )
    sections = {
        "": f"# {as_text(name)}\n\n{what}\n\nPapers: {', '.join(papers.values()) or 'none'}.{origin_of(data)}",
        "Use": _use_translator(name, "auto_map" in config),
        "Memory": _memory(config),
        "Sizes": table(("", "Encoder", "Decoder"), [(f"`{key}`", *_of_parts(config, key)) for key in SIZES]),
        "Scores": _translation_scores(folder),
        "Licence": f"Weights: {licence_of(data)}."
        + (" The code beside them: Apache-2.0." if any(folder.glob("*.py")) else ""),
    }
    return "\n\n".join(f"## {title}\n\n{body}" if title else body for title, body in sections.items()) + "\n"


def _of_parts(config: dict[str, Any], key: str) -> list[str]:
    return [as_text(number(config[part].get(key))) for part in PARTS]


def _use_translator(name: str, has_code: bool) -> str:
    repo = as_python(name if "/" in name else f"you/{name}")
    lines = [
        f"import transformers_xl  # {pip_install()}",
        "import torch",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
        "",
        f"model = AutoModelForSeq2SeqLM.from_pretrained({repo})",
        f"tokenizer = AutoTokenizer.from_pretrained({repo})",
        'source = tokenizer("A sentence.", add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]',
        "written = model.generate(torch.tensor([source]), num_beams=4, max_new_tokens=100)",
        "print(tokenizer.decode(written[0], skip_special_tokens=True))",
    ]
    without = "Without the package, leave out the first line and add `trust_remote_code=True`: the code is here."
    return as_block("\n".join(lines), "python") + (f"\n\n{without}" if has_code else "")


def _memory(config: dict[str, Any]) -> str:
    source, target = config.get("source_mem_len", 0), config["decoder"].get("mem_len", 0)
    written = (
        f"`mems` of a result holds what was written, up to {as_text(number(target))} tokens a layer "
        f"({source_of('decoder.mem_len', 'config.json')})"
    )
    if not source:
        return f"{written}. Give it to the call for the next sentence of a document."
    return (
        f"{written}; `source_mems` the encoder's outputs for earlier sentences, up to {as_text(number(source))} "
        f"({source_of('source_mem_len', 'config.json')}). Give both to the call for the next sentence of a document."
    )


def _translation_scores(folder: Path) -> str:
    scores = read_scores(folder)
    if not scores:
        return "Not measured. `transformers-xl evaluate FOLDER --source FILE --target FILE` prints BLEU and chrF."
    rows = [(SCORES[name], number(scores[name]), source_of(name, TRANSLATION_SCORES)) for name in SCORES]
    rows.append(("Held-out pairs", number(scores["pairs"]), source_of("pairs", TRANSLATION_SCORES)))
    return table(("", "Value", "Source"), rows)


__all__ = ["SCORES", "TRANSLATION_SCORES", "check_parts", "is_of_translator", "read_scores", "translator_text"]
