"""The part of a card that says what was put around a model of others."""

from typing import Any

from huggingface_hub import ModelCardData

from transformers_xl.hub.quoting import as_code, as_link, as_text

KINDS = {
    "window": (
        "Every layer remembers the keys and values of the last positions. A token sees exactly `mem_len`={mem_len:,} "
        "positions, itself included, however a text is cut{sinks}. What lies further back is not seen. (The memory of "
        "Transformer-XL, with keys and values in place of inputs; sinks: "
        "[Xiao et al., 2023](https://arxiv.org/abs/2309.17453).)"
    ),
    "tokens": (
        "{num_memory_tokens:,} vectors stand before each segment of {segment_length:,} tokens, which reads them, and "
        "after it, where they are written again: all that a segment knows of those before it. "
        "([Recurrent Memory Transformer](https://arxiv.org/abs/2207.06881), Bulatov et al., 2022.)"
    ),
}
FIELDS = ("kind", "mem_len", "num_sinks", "num_memory_tokens", "segment_length", "bptt_segments")
PLAIN = (
    "Weights of the base stand under `backbone.`: `model.backbone.save_pretrained(folder)` writes them without memory."
)


def architecture_of(config: dict[str, Any]) -> str | None:
    """The class that a config.json names first.

    Raises:
        ValueError: it names something else.
    """
    names = config.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(each, str) for each in names)):
        raise ValueError(f"config.json: `architectures`={names!r} must be a list of names.")
    return names[0] if names else None


def memory_idea(idea: str, config: dict[str, Any]) -> str:
    """The idea of a variant, said of the base that a `config` is around, if it is."""
    base = config.get("text_config")
    name = (architecture_of(base) or base.get("model_type")) if isinstance(base, dict) else None
    named = "A language model of transformers" if name is None else f"A {as_code(name)}"
    return idea.replace("A language model of transformers", named)


def memory_text(config: dict[str, Any], data: ModelCardData) -> str:
    """What was added to which base, from the `config` of a saved model; nothing for a model with a memory of its own.

    Raises:
        ValueError: a field is none that such a config has.
    """
    if "text_config" not in config:
        return ""
    base, kind = config["text_config"], config.get("kind")
    if kind not in list(KINDS) or not isinstance(base, dict):
        raise ValueError(f"config.json: `kind`={kind!r} must be one of {', '.join(KINDS)}: save the model again.")
    architecture = architecture_of(base) or base.get("model_type")
    bases = [data.base_model] if isinstance(data.base_model, str) else data.base_model or []
    names = ", ".join(as_link(name, f"https://huggingface.co/{name}") for name in bases)
    origin = f"The base is a {as_code(architecture)}" + (f": {names}." if names else ".")
    licence = (
        f"Its licence: {as_text(data.license)}." if data.license else "Its licence is unknown: no card states one."
    )
    sinks = f", and the first {config['num_sinks']:,} of the text" if config.get("num_sinks") else ""
    shown = [name for name in FIELDS if config.get(name) is not None]
    rows = [f"| `{name}` | {as_text(config[name])} | `config.json`: `{name}` |" for name in shown]
    table = "\n".join(["| | Value | Source |", "|---|---|---|", *rows])
    return "\n\n".join([f"{origin} {licence} {PLAIN}", KINDS[kind].format(**config, sinks=sinks), table])


__all__ = ["architecture_of", "memory_idea", "memory_text"]
