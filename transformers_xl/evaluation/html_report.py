"""One page about a model and a text: how well it predicts, what its heads look at, and what its variant has learned."""

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from transformers_xl.data.text_files import TextCounts
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation import attention_plots as plots
from transformers_xl.evaluation import inspection
from transformers_xl.evaluation.attention_maps import AttentionAtlas, attention_atlas, attention_rows, token_maps
from transformers_xl.evaluation.attention_terms import TERMS, attention_terms
from transformers_xl.evaluation.plots import png_bytes
from transformers_xl.evaluation.score_ways import score_table, score_ways
from transformers_xl.modeling.auto import MODEL_TYPES, Variant

SHOWN_TOKENS = 32  # in maps of single tokens
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#111;background:#fff}"
    "img{max-width:100%;height:auto}figure{margin:1rem 0}table{border-collapse:collapse;margin:1rem 0}"
    "th,td{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ccc}"
    "th:first-child,td:first-child,.facts td{text-align:left}"
)


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        name: file name of its picture, without an ending.
        title, text: what it shows, in words.
        figure: its picture.
        table: its rows, the first one the head.
    """

    name: str
    title: str
    text: str
    figure: Figure | None = None
    table: list[list[str]] = field(default_factory=list)


def report_sections(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    ids: np.ndarray,
    counts: TextCounts | None = None,
    segment_length: int | None = None,
    progress: bool = False,
    beginning: Sequence[int] = (),
) -> Iterator[Section]:
    """Everything that can be shown of a model of this package on a text, part by part.

    Args:
        model: a language model of this package, or an encoder, which predicts nothing.
        tokenizer: what the tokens are spelled with.
        ids: token ids of the text `(tokens,)`.
        counts: how long the text is without a first token that nothing predicts; one byte per token when not given.
        segment_length: tokens per segment; `config.segment_length` when not given.
        progress: show bars on stderr.
        beginning: ids that a text begins with, as [`~transformers_xl.data.text_beginning.beginning_of`] gives them;
            attention is shown with them.

    Raises:
        ValueError: the text is too short, a number cannot be meant, or the model has nothing that is shown here.
    """
    model_type = model.config.model_type
    if _row_of(model_type).causal:
        yield _prediction(model, ids, counts, segment_length, progress, beginning)
    ids = _as_read(model, ids, segment_length or model.config.segment_length, beginning)
    try:
        attention_rows(model)
    except ValueError:
        pass  # what such a variant has instead stands below
    else:
        yield from _attention(model, tokenizer, ids, segment_length, progress)
    if model_type in _LEARNED:
        yield _LEARNED[model_type](model, tokenizer, ids, segment_length)


def _row_of(model_type: str) -> Variant:
    row = MODEL_TYPES.get(model_type)
    if row is None:
        raise ValueError(
            f"`model` is a {model_type!r}: give a model of this package, one of {', '.join(MODEL_TYPES)}."
        )
    if not row.causal and model_type not in _LEARNED:
        shown = ", ".join(name for name in _LEARNED if not MODEL_TYPES[name].causal)
        raise ValueError(
            f"`model` is a {model_type!r}: it predicts no next token, and its tokens look to both sides, so that a report "
            f"has nothing to show. Give a language model, or one of the encoders {shown}. A call with "
            "`output_attentions=True` and `attn_implementation='eager'` gives the weights of its layers."
        )
    return row


def _as_read(model, ids: np.ndarray, segment_length: int, beginning: Sequence[int]) -> np.ndarray:
    """The ids with `beginning` wherever nothing is remembered, so that segments of `segment_length` follow each other."""
    if not len(beginning):
        return ids
    stream = TextStream(ids, segment_length, keep_tail=True, beginning=beginning, memory=bool(model.config.mem_len))
    items = map(stream.__getitem__, range(len(stream)))
    return np.concatenate([item["input_ids"][item["attention_mask"].bool()].numpy() for item in items])


def _prediction(
    model,
    ids: np.ndarray,
    counts: TextCounts | None,
    segment_length: int | None,
    progress: bool,
    beginning: Sequence[int],
) -> Section:
    scores = score_ways(model, ids, segment_length, counts=counts, progress=progress, beginning=beginning)
    return Section(
        "bits_per_byte",
        "How well it predicts",
        "Read in segments. With memory, a segment is read with those before it; with the memory taken away, each is read "
        "alone, so that its first tokens are predicted from little.",
        plots.draw_bits({name: score.bits_per_byte_by_position for name, score in scores.items()}),
        score_table(scores),
    )


def _attention(model, tokenizer, ids: np.ndarray, segment_length: int | None, progress: bool) -> Iterator[Section]:
    length = segment_length or model.config.segment_length
    reach = model.config.sliding_window if model.config.mem_len else 0
    skip = min(reach, len(ids) // 2)
    atlas = attention_atlas(model, ids, length, skip, progress)
    left_out = f" (the first {skip:,}, whose memory is not full, are left out)" if skip else ""
    yield Section(
        "attention",
        "What attention looks at",
        f"Each line is a head, each column a distance: the mean over {len(ids) - skip:,} tokens{left_out}. "
        "Dai et al. 2019, figure 4.",
        plots.draw_atlas(atlas),
    )
    yield _heads(atlas)
    maps = token_maps(model, ids, atlas.furthest(3), SHOWN_TOKENS, length)
    yield Section(
        "tokens",
        "What single tokens look at",
        f"The three heads that look furthest, for the last {len(maps.queries)} tokens of the text. Dai et al. 2019, "
        "figure 5.",
        plots.draw_token_maps(maps, spelled(tokenizer, ids[maps.queries])),
    )
    try:
        terms = attention_terms(model, ids, length, skip, progress)
    except ValueError:
        return  # another attention, whose scores are no sum of these
    yield Section(
        "terms",
        "Where it comes from",
        "The four terms of Transformer-XL's score: the softmax of each alone, averaged as above. "
        "Dai et al. 2019, figure 6.",
        plots.draw_terms(terms, TERMS),
    )


def _heads(atlas: AttentionAtlas) -> Section:
    table = [["head", "mean distance (positions)", "entropy (nats)"]]
    for row, head in atlas.furthest(10):
        distance, entropy = atlas.mean_distance[row, head], atlas.entropy[row, head]
        table.append([f"{atlas.rows[row]}, head {head + 1}", f"{distance:.1f}", f"{entropy:.2f}"])
    reach = atlas.mean_weight.shape[-1]
    return Section(
        "heads",
        "Heads that look furthest",
        f"An even look at all {reach:,} positions would have a mean distance of {(reach - 1) / 2:.1f} and an entropy of "
        f"{np.log(reach):.2f} nats.",
        plots.draw_heads(atlas),
        table,
    )


def _spans(model, tokenizer, ids: np.ndarray, segment_length: int | None) -> Section:
    spans = inspection.learned_spans(model)
    text = f"How many positions before a token each head sees, of at most {model.config.max_span:,}."
    return Section("spans", "Learned spans", text, plots.draw_spans(spans))


def _halting(model, tokenizer, ids: np.ndarray, segment_length: int | None) -> Section:
    steps, cost = inspection.halting_steps(model, ids, segment_length)
    text = f"After how many steps of the one layer each token halted. The mean ponder cost is {cost.mean():.2f} steps."
    most = model.config.num_hidden_layers
    return Section(
        "halting", "Halting steps", text, plots.draw_depths(steps, most, "steps", spelled(tokenizer, ids[-64:]))
    )


def _exits(model, tokenizer, ids: np.ndarray, segment_length: int | None) -> Section:
    layers, config = inspection.exit_layers(model, ids, segment_length), model.config
    rule = f"`confidence_thresholds`={config.confidence_thresholds}, `exit_by_halting`={config.exit_by_halting}"
    text = f"After which layer each token left: {rule}." + (
        "" if config.exits_early() else " With neither set, all tokens pass all layers."
    )
    labels = spelled(tokenizer, ids[-64:])
    figure = plots.draw_depths(layers, config.num_hidden_layers, "exit layer", labels)
    return Section("exits", "Exit layers", text, figure)


def _usage(model, tokenizer, ids: np.ndarray, segment_length: int | None) -> Section:
    usage = inspection.key_usage(model, ids, segment_length)
    table = [["memory", "slots read", "KL from even use (nats)"]]
    table += [[f"layer {layer}", f"{slots.used:.1%}", f"{slots.kl:.3f}"] for layer, slots in usage.items()]
    text = f"How {len(ids):,} tokens used the slots of the product-key memory. Lample et al. 2019, section 4.4."
    return Section("key_usage", "Product-key usage", text, plots.draw_usage(usage), table)


def _gates(model, tokenizer, ids: np.ndarray, segment_length: int | None) -> Section:
    kind = model.config.gate_type
    if kind == "none":
        return Section("gates", "Gates", "`gate_type`='none': a plain residual sum, without gates.")
    text = f"Gates of the type {kind!r}, for each feature the mean over the text: 0 passes the residual stream alone."
    return Section(
        "gates", "Gate openness", text, plots.draw_gates(inspection.gate_openness(model, ids, segment_length))
    )


def _ring(model, tokenizer, ids: np.ndarray, segment_length: int | None) -> Section:
    text = "What the satellite of a token reads, the mean over the text."
    return Section("ring", "The ring", text, plots.draw_ring(inspection.ring_weights(model, ids, segment_length)))


def _pairs(model, tokenizer, ids: np.ndarray, segment_length: int | None) -> Section:
    text = (
        "Its attention has no weights that sum to one. This is the mean size of the products of each pair of positions, "
        "times the norm of what the output map makes of it."
    )
    figure = plots.draw_pairs(inspection.pair_weights(model, ids, segment_length))
    return Section("pairs", "Pairs of positions", text, figure)


_LEARNED: dict[str, Callable[..., Section]] = {
    "adaptive_span": _spans,
    "universal_transformer": _halting,
    "depth_adaptive_transformer": _exits,
    "pkm_transformer": _usage,
    "pkm_transformer_encoder": _usage,
    "gtrxl": _gates,
    "gtrxl_encoder": _gates,
    "star_transformer": _ring,
    "tensorized_transformer": _pairs,
}


def spelled(tokenizer: PreTrainedTokenizerBase, ids: np.ndarray) -> list[str]:
    """Each token as it can be read on paper: blanks as an open box, what cannot be printed as its code."""
    if hasattr(tokenizer, "decode_bytes"):
        # one by one: a byte of a longer character is shown as itself
        texts = [tokenizer.decode_bytes([token]).decode("latin-1") for token in ids]
    else:
        texts = [tokenizer.decode([token]) for token in ids]
    return ["".join(map(_visible, text)) or "?" for text in texts]


def _visible(character: str) -> str:
    if character == " ":
        return "\u2423"
    return character if character.isprintable() and character != "\ufffd" else repr(character)[1:-1]


def render_page(title: str, facts: dict[str, str], sections: list[Section]) -> str:
    """The page as HTML, with its pictures in it: it loads nothing, and its own policy forbids to."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        _html_table([[name, value] for name, value in facts.items()], kind="facts"),
    ]
    for section in sections:
        parts += [f'<section id="{section.name}"><h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>']
        parts += [_html_table(section.table)] if section.table else []
        if section.figure is not None:
            data = base64.b64encode(png_bytes(section.figure)).decode()
            source = f"data:image/png;base64,{data}"
            parts += [f'<figure><img alt="{escape(section.title)}" src="{source}"></figure>']
        parts += ["</section>"]
    return "\n".join([*parts, "</body></html>", ""])


def _html_table(rows: list[list[str]], kind: str = "numbers") -> str:
    """A table of `numbers` begins with its head, one of `facts` has none."""
    lines = []
    for index, row in enumerate(rows):
        cell = "th" if kind == "numbers" and index == 0 else "td"
        lines.append("<tr>" + "".join(f"<{cell}>{escape(value)}</{cell}>" for value in row) + "</tr>")
    return f'<table class="{kind}">{"".join(lines)}</table>'


__all__ = ["Section", "render_page", "report_sections", "spelled"]
