"""The text of a card: what the variant is, and every figure in a row that names the file and key that it is from."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from transformers_xl.hub.adapter_folders import Adapter
from transformers_xl.hub.installing import pip_install
from transformers_xl.hub.measurements import FILE, Lengths, Measurements, Text, Training
from transformers_xl.hub.memory_text import architecture_of, memory_idea, memory_text
from transformers_xl.hub.quoting import as_block, as_code, as_link, as_python, as_text
from transformers_xl.modeling.auto import Variant

TASKS = {
    "ForCausalLM": "text-generation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForActorCritic": "reinforcement-learning",
    "Model": "feature-extraction",
}
AUTO_CLASSES = {
    "text-generation": "AutoModelForCausalLM",
    "fill-mask": "AutoModelForMaskedLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "feature-extraction": "AutoModel",
}
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def card_text(
    folder: Path,
    name: str,
    config: dict[str, Any],
    variant: Variant,
    measured: Measurements | None,
    data: ModelCardData,
    adapter: Adapter | None = None,
) -> str:
    paper = f"[{variant.paper}]({variant.url}), {variant.authors}, {variant.year}"
    paper = paper if variant.paper else f"none, it is the own model of {variant.authors}"
    architecture = architecture_of(config) or variant.model_class.__name__
    what = f"A {as_code(architecture)}." if adapter is None else _adapter(adapter, architecture)
    use = _use(name, task_of(config), "auto_map" in config, variant) if adapter is None else _use_adapter(name)
    base, prefix = (config["text_config"], "text_config.") if "text_config" in config else (config, "")
    sections = {
        "": f"# {as_text(name)}\n\n{what} {memory_idea(variant.idea, config)}\n\nPaper: {paper}.{origin_of(data)}",
        "Use": use,
        "Memory": memory_text(config, data),
        "Sizes": table(
            ("", "Value", "Source"),
            [
                (f"`{key}`", as_text(number(base[key])), source_of(f"{prefix}{key}", "config.json"))
                for key in SIZES
                if key in base
            ]
            + [("Parameters", *_measured(measured.parameters if measured else None, "parameters"))],
        ),
        "Data": _data(measured),
        "Bits per byte": _scores(measured, remembers(config, variant)),
        "Training": _training(measured.training if measured else None),
        "Reproduce": _commands(folder, measured),
        "Licence": f"Weights: {licence_of(data)}."
        + (" The code beside them: Apache-2.0." if any(folder.glob("*.py")) else ""),
    }
    return "\n\n".join(f"## {title}\n\n{body}" if title else body for title, body in sections.items() if body) + "\n"


def licence_of(data: ModelCardData) -> str:
    if data.license_name is None:
        return as_text(data.license or "not stated")
    return as_link(data.license_name, data.license_link or "")


def origin_of(data: ModelCardData) -> str:
    return f" The training began with {', '.join(map(as_text, listed(data.base_model)))}." if data.base_model else ""


def _use(name: str, task: str, has_code: bool, variant: Variant) -> str:
    if task == "reinforcement-learning":
        return _use_agent(name, has_code)
    repo = name if "/" in name else f"you/{name}"
    auto = AUTO_CLASSES[task]
    lines = [
        f"import transformers_xl  # {pip_install()}",
        f"from transformers import {', '.join(sorted((auto, 'AutoTokenizer')))}",
        "",
        f"model = {auto}.from_pretrained({as_python(repo)})",
        f"tokenizer = AutoTokenizer.from_pretrained({as_python(repo)})",
    ]
    if task == "text-generation" and variant.memory != "none":
        lines += [
            'first = model(**tokenizer("What came before, ", return_tensors="pt"))',
            'inputs = tokenizer("and what follows", add_special_tokens=False, return_tensors="pt")',
            "text = model.generate(**inputs, mems=first.mems, max_new_tokens=100)",
        ]
    without = "Without the package, leave out the first line and add `trust_remote_code=True`: the code is here."
    return as_block("\n".join(lines), "python") + (f"\n\n{without}" if has_code else "")


def _use_agent(name: str, has_code: bool) -> str:
    """transformers has no Auto class of agents: the package's, or, where the code is beside the weights, `AutoModel`."""
    repo = as_python(name if "/" in name else f"you/{name}")
    lines = [
        f"from transformers_xl import AutoModelForActorCritic  # {pip_install()}",
        "",
        f"agent = AutoModelForActorCritic.from_pretrained({repo})  # with `encoder=..`, if it has one of your own",
    ]
    elsewhere = as_code(f"AutoModel.from_pretrained({repo}, trust_remote_code=True)")
    without = f"Without the package, {elsewhere} of transformers loads it with its heads: the code is here."
    return as_block("\n".join(lines), "python") + (f"\n\n{without}" if has_code else "")


def _adapter(adapter: Adapter, architecture: str) -> str:
    rank = "" if adapter.rank is None else f", rank {adapter.rank}"
    base = f"{as_code(adapter.base_repository)}, a" if adapter.base_repository else "a"
    return (
        f"Adapters ({as_text(adapter.kind)}{rank}) for {base} {as_code(architecture)}; figures are of both together."
    )


def _use_adapter(name: str) -> str:
    repo = name if "/" in name else f"you/{name}"
    lines = [
        f"import transformers_xl  # {pip_install()}",
        "from peft import AutoPeftModelForCausalLM",
        "from transformers import AutoTokenizer",
        "",
        f"model = AutoPeftModelForCausalLM.from_pretrained({as_python(repo)})",
        f"tokenizer = AutoTokenizer.from_pretrained({as_python(repo)})",
    ]
    return as_block("\n".join(lines), "python")


def _data(measured: Measurements | None) -> str:
    texts: dict[Text, tuple[str, str]] = {}
    if measured and measured.training and measured.training.data:
        texts[measured.training.data] = ("Training", "training.data")
    for index, each in enumerate(measured.evaluations if measured else ()):
        texts.setdefault(each.data, ("Evaluation", f"evaluations[{index}].data"))
    rows = []
    for text, (use, key) in texts.items():
        values = {
            "name": as_text(text.name),
            "bytes": number(text.bytes),
            "tokens": number(text.tokens),
            "sha256": f"{as_code(text.sha256)} (of its {as_text(text.sha256_of)})",
            "dataset": as_text(text.dataset or "none named"),
            "revision": as_text(text.revision or "not recorded") if text.dataset else None,
        }
        rows += [(f"{use}: {name}", value, source_of(f"{key}.{name}")) for name, value in values.items() if value]
    return table(("", "Value", "Source"), rows) if rows else "Not recorded."


def _lengths(lengths: Lengths) -> dict[str, str]:
    compressed = lengths.compressed_mem_len
    return {
        "lengths.segment_length": number(lengths.segment_length),
        "lengths.mem_len": number(lengths.mem_len),
        "lengths.layer_mem_lens": _by_layer(lengths.layer_mem_lens),
        **({} if compressed is None else {"lengths.compressed_mem_len": number(compressed)}),
        "lengths.same_length": str(lengths.same_length),
        "lengths.clamp_len": _clamp(lengths.clamp_len),
        "lengths.lanes": number(lengths.lanes),
        "lengths.overlap": number(lengths.overlap),
    }


def remembers(config: dict[str, Any], variant: Variant) -> bool:
    """Whether the model of a config.json has a memory that can be taken away."""
    return variant.memory != "none" and config.get("mem_len") != 0


def _scores(measured: Measurements | None, with_memory: bool) -> str:
    """A column for each evaluation: a row of all lengths would be too wide for a terminal."""
    if measured is None or not measured.evaluations:
        return "Not measured. `transformers-xl evaluate FOLDER --text FILE --record` does it."
    unread = "taken away" if with_memory else "none"
    columns = []
    for each in measured.evaluations:
        columns.append(
            {
                "data.name": as_text(each.data.name),
                "memory": "with" if each.memory else unread,
                "bits_per_byte": f"**{each.bits_per_byte:.4f}**",
                "bits_per_character": _figure(each.bits_per_character),
                "perplexity": _figure(each.perplexity),
                "word_perplexity": _figure(each.word_perplexity),
                "bytes": number(each.bytes),
                **_lengths(each.lengths),
                "tokens_per_second": number(round(each.tokens_per_second)),
                "dtype": as_text(each.dtype),
                "device": as_text(each.device),
            }
        )
    header = ["", *(f"i = {index}" for index in range(len(columns))), "Source"]
    names = {"data.name": "text"}
    rows = [
        (
            names.get(key, key.replace("lengths.", "")),
            *(column[key] for column in columns),
            source_of(f"evaluations[i].{key}"),
        )
        for key in columns[0]
    ]
    note = (
        "Lengths are in tokens. Every lane begins with an empty memory, and the first token of the text is not predicted. "
        "A word is what white space parts."
    )
    if with_memory:
        note += (
            " What is lost where the memory is taken away shows how much the model relies on it, not how much better it is "
            "than a model that was trained without one."
        )
    return f"{table(header, rows)}\n\n{note}"


def _training(training: Training | None) -> str:
    if training is None:
        return "Not recorded."
    values = {
        "steps": number(training.steps),
        "first_step": number(training.first_step),
        "seconds": f"{training.seconds:,.1f}",
        "tokens": number(training.tokens),
        "tokens_per_second": number(training.tokens_per_second and round(training.tokens_per_second)),
        "loss": "not measured" if training.loss is None else f"{training.loss:.4f} nats, mean over the steps",
        "learning_rate": f"{training.learning_rate:g}",
        "seed": str(training.seed),
        **_lengths(training.lengths),
        "gradient_accumulation_steps": str(training.gradient_accumulation_steps),
        "processes": str(training.processes),
        "dtype": as_text(training.dtype),
        "device": as_text(training.device),
    }
    rows = [(key.replace("lengths.", ""), value, source_of(f"training.{key}")) for key, value in values.items()]
    return table(("", "Value", "Source"), rows)


def _commands(folder: Path, measured: Measurements | None) -> str:
    if measured is None:
        return "Not recorded."
    commands = [measured.training.command] if measured.training and measured.training.command else []
    commands = unique([*commands, *(each.command for each in measured.evaluations)])
    parts = [as_block("\n".join(commands))] if commands else []
    if measured.training and not measured.training.command:
        told = " Its arguments are in `training_args.json`." if (folder / "training_args.json").is_file() else ""
        parts.append(f"The training was a separate script, whose command is not recorded.{told}")
    versions = ", ".join(f"{as_text(name)} {as_text(version)}" for name, version in measured.versions.items())
    return "\n\n".join([*parts, f"With {versions} ({source_of('versions')})."])


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def _measured(value: int | None, key: str) -> tuple[str, str]:
    return ("not measured", "") if value is None else (number(value), source_of(key))


def source_of(key: str, file: str = FILE) -> str:
    return f"`{file}`: `{key}`"


def number(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)


def _figure(value: float | None) -> str:
    return "not counted" if value is None else f"{value:,.4f}" if value < 1e6 else f"{value:.3g}"


def _by_layer(lengths: tuple[int, ...]) -> str:
    return f"{lengths[0]:,} each" if len(set(lengths)) == 1 else ", ".join(map(str, lengths))


def _clamp(value: int | None) -> str:
    return "off" if value is None else f"{value:,}"


def task_of(config: dict[str, Any]) -> str:
    architecture = architecture_of(config) or "Model"
    return next((task for end, task in TASKS.items() if architecture.endswith(end)), "feature-extraction")


def listed(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def unique(values: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(value for value in values if value))


__all__ = [
    "SIZES",
    "card_text",
    "licence_of",
    "listed",
    "number",
    "origin_of",
    "remembers",
    "source_of",
    "table",
    "task_of",
    "unique",
]
