"""What the heads of a model look at: Dai et al., 2019, https://arxiv.org/abs/1901.02860, appendix D.

    mean[l, h, d] = mean over the tokens i of a text of weight[l, h, i, i-d]

The weights of a layer are computed while the layer runs, folded into sums and dropped, so that neither the length of the
text nor the number of layers costs memory: what is held at a time are the weights of one layer for one segment.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from transformers_xl.evaluation.reading import read_in_segments
from transformers_xl.modeling.encoder import MemoryEncoder
from transformers_xl.modeling.layers.compression import CompressionPlan
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.ops.relative_attention import FarColumns


class Places(NamedTuple):
    """Where some keys lie that are not columns of a text.

    Args:
        distance: `(1, T, S)` integers, how many positions before each query.
        span: how many positions each key stands for: that of `distance` and those before it.
    """

    distance: torch.Tensor
    span: int = 1


# takes the row (a layer, or a step of a layer that repeats), the weights (H, T, K) of a segment's tokens, which tokens
# asked, (T,) bool, None when all did, and where the first of its keys lie, part by part (`by_distance`)
Fold = Callable[[int, torch.Tensor, torch.Tensor | None, Sequence[Places]], None]


@dataclass(frozen=True)
class AttentionAtlas:
    """How the heads of a model spread their attention, over a text.

    Attributes:
        rows: what each row is, `"layer 1"` or, where one layer repeats, `"step 1"`.
        mean_weight: mean weight of each distance, `(rows, heads, distances)`; distance 0 is the token itself.
        entropy: mean entropy of the weights of a token, `(rows, heads)`, in nats; nan where no token had a query.
        tokens: how many tokens had a query in each row, `(rows,)`: fewer where tokens halt or exit.
    """

    rows: list[str]
    mean_weight: np.ndarray
    entropy: np.ndarray
    tokens: np.ndarray

    @property
    def mean_distance(self) -> np.ndarray:
        """How far back a head looks on average, `(rows, heads)`, in positions; nan where it looked at nothing."""
        weight = self.mean_weight.sum(-1)
        distances = self.mean_weight @ np.arange(self.mean_weight.shape[-1])
        return np.divide(distances, weight, out=np.full_like(weight, np.nan), where=weight > 0)

    def furthest(self, count: int = 3) -> list[tuple[int, int]]:
        """The row and head, each counted from 0, of the heads with the largest mean distance, the furthest first; those
        that looked at nothing are left out."""
        far = self.mean_distance
        looked = [(int(row), int(head)) for row, head in np.argwhere(~np.isnan(far))]
        return sorted(looked, key=lambda place: -far[place])[:count]


@dataclass(frozen=True)
class TokenMaps:
    """What chosen heads look at from some tokens of a text.

    Attributes:
        names: what each head is, `"layer 1, head 1"`.
        queries: positions of the tokens in the text, `(tokens,)`.
        keys: positions that they look at, `(keys,)`; negative ones are a memory from before the text.
        weights: `(heads, tokens, keys)`; zeros where a token had no query.
    """

    names: list[str]
    queries: np.ndarray
    keys: np.ndarray
    weights: np.ndarray


def attention_rows(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The attention module of each row of an atlas, by its name; a layer that repeats has a row for each step.

    Raises:
        ValueError: the model has no attention weights over the positions before a token.
    """
    base, model_type = model.base_model, model.config.model_type
    if model_type == "segment_memory":
        raise ValueError(
            f"`model` is a {model_type!r}: the distances of what a base attends to are not known here. A call with "
            "`output_attentions=True` gives the weights of its layers."
        )
    if model_type == "recurrent_memory_transformer":
        raise ValueError(
            f"`model` is a {model_type!r}: it reads segment by segment between memory tokens, so a call has no single row "
            "of keys whose distances could be shown."
        )
    # what the model itself records as `attentions`: a class, or a class and a part of its name
    recorder = (getattr(base, "_can_record_outputs", None) or {}).get("attentions")
    target, part = getattr(recorder, "target_class", recorder), getattr(recorder, "layer_name", None) or ""
    if target is None:
        raise ValueError(
            f"`model` is a {model_type!r}, whose attention has no weights that sum to one: there is nothing to average. "
            "Of a Tensorized Transformer, `inspection.pair_weights` shows which pairs of distances it reads."
        )
    if model_type == "star_transformer":
        raise ValueError(
            f"`model` is a {model_type!r}: its tokens read two neighbours and a relay, not a memory. "
            "`inspection.ring_weights` shows how much of each."
        )
    if isinstance(base, MemoryEncoder) or model_type == "longformer_encoder":
        raise ValueError(
            f"`model` is a {model_type!r}: its tokens look to both sides, a picture shows distances of earlier positions. "
            "A call with `output_attentions=True` and `attn_implementation='eager'` gives the weights of its layers."
        )
    modules = {name: module for name, module in base.named_modules() if isinstance(module, target) and part in name}
    numbers = [next((int(word) + 1 for word in name.split(".") if word.isdigit()), None) for name in modules]
    if numbers == [None]:
        (shared,) = modules.values()
        return {f"step {step + 1}": shared for step in range(model.config.num_hidden_layers)}
    return {f"layer {number}": module for number, module in zip(numbers, modules.values(), strict=True)}


@contextmanager
def tapped_weights(model: PreTrainedModel, fold: Fold) -> Iterator[None]:
    """Let `fold` see the weights of every layer that runs, in a call for one row of a batch without padding.

    Inside, the attention is eager, whatever implementation the model otherwise uses; nothing keeps the weights.
    """
    places: dict[nn.Module, list[int]] = {}
    for row, module in enumerate(attention_rows(model).values()):
        places.setdefault(module, []).append(row)
    calls: dict[nn.Module, int] = {}

    def begin(module: nn.Module, args: tuple) -> None:
        calls.clear()

    def look(module: nn.Module, args: tuple, kwargs: dict, output: tuple) -> None:
        weights, running = output[1], kwargs.get("running")
        if running is not None:  # only some positions asked, packed: here all of them do, and the others are left out
            kwargs = {name: value for name, value in kwargs.items() if name != "running"}
            weights, running = type(module).forward(module, *args, **kwargs)[1], running[0]
        if weights is None:
            raise ValueError(
                f"`model`: {type(module).__name__} returned no attention weights with `attn_implementation`='eager'."
            )
        number = calls.get(module, 0)
        calls[module] = number + 1
        fold(places[module][number], weights[0], running, places_of((*args, *kwargs.values())))

    before = model.config._attn_implementation
    handles = [model.register_forward_pre_hook(begin)]
    handles += [module.register_forward_hook(look, with_kwargs=True) for module in places]
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        for handle in handles:
            handle.remove()


def places_of(arguments: Sequence) -> list[Places]:
    """Where the keys of an attention lie, in the order of their weights, as its arguments say. Nothing where they are the
    last columns."""
    places: list[Places] = []
    context = next((each for each in arguments if isinstance(each, LayerContext)), None)
    far = next((each for each in arguments if isinstance(each, FarColumns)), None)
    plan = None if context is None else context.plan
    if far is not None and isinstance(plan, CompressionPlan):
        places.append(Places(plan.positions_ago(far.key.shape[2]), plan.blocks.rate))
    elif far is not None and far.distance is not None:
        places.append(Places(far.distance))
    if context is not None and context.distance is not None:
        places.append(Places(context.distance))
    return places


def by_distance(weights: torch.Tensor, places: Sequence[Places] = ()) -> torch.Tensor:
    """Weights `(..., T, K)` by key as `(..., T, D)` by distance: column d of row t is the weight of what lies d positions
    before query t, and zero where there is nothing.

    `places` say how far the first keys lie, part by part; the others are the last positions, the queries the last T of
    them. The weight of a key that stands for several positions is spread evenly over them.
    """
    places = [each for each in places if each.distance.numel()]
    lengths = [each.distance.shape[-1] for each in places]
    *parts, rest = weights.split([*lengths, weights.shape[-1] - sum(lengths)], dim=-1)
    nearest = by_column(rest)
    if not places:
        return nearest
    reach = max(nearest.shape[-1], *(int(each.distance.max()) + each.span for each in places))
    distant = F.pad(nearest, (0, reach - nearest.shape[-1]))
    for part, (distance, span) in zip(parts, places, strict=True):
        for position in range(span):
            index = (distance[0] + position).clamp(0, reach - 1).expand_as(part)
            distant.scatter_add_(-1, index, part / span)
    return distant


def by_column(weights: torch.Tensor) -> torch.Tensor:
    """`by_distance` of the last K positions: distances are columns, counted from the last one."""
    length, num_keys = weights.shape[-2:]
    # row t, column c of the flipped keys is the distance c - (T-1-t): in the flat buffer of rows that are T longer, row t
    # begins T-1-t further on, which a view with rows of one column less does
    flat = F.pad(weights.flip(-1), (0, length)).flatten(-2)
    width = num_keys + length - 1
    return flat.narrow(-1, length - 1, length * width).unflatten(-1, (length, width))[..., :num_keys]


class DistanceSums:
    """The sums that an atlas is made of: a `Fold`. `start` is the position of the first token of the segment that runs."""

    def __init__(self, rows: list[str], skip: int = 0):
        self.rows, self.skip, self.start = rows, skip, 0
        nothing = torch.zeros(0, 0, dtype=torch.float64)
        self.weight, self.entropy = [nothing] * len(rows), [nothing[:, :1].sum(-1)] * len(rows)
        self.tokens = [0] * len(rows)

    def __call__(
        self,
        row: int,
        weights: torch.Tensor,
        asked: torch.Tensor | None = None,
        places: Sequence[Places] = (),
    ) -> None:
        heads, length, _ = weights.shape
        counted = torch.arange(self.start, self.start + length, device=weights.device) >= self.skip
        counted = counted if asked is None else counted & asked
        tokens = int(counted.sum())
        if tokens == 0:
            return
        if self.tokens[row] == 0:
            self.entropy[row] = torch.zeros(heads, dtype=torch.float64)
        for head, each in enumerate(weights):  # one by one, or their copies would be the largest tensors of all
            distant = by_distance(each, places)
            distant = distant if tokens == length else distant[counted]
            known = self.weight[row]
            if known.shape[-1] < distant.shape[-1]:
                wider = torch.zeros(heads, distant.shape[-1], dtype=torch.float64)
                wider[: len(known), : known.shape[-1]] = known
                self.weight[row] = known = wider
            known[head, : distant.shape[-1]] += distant.sum(0, dtype=torch.float64).cpu()
            self.entropy[row][head] += torch.special.entr(distant).sum(dtype=torch.float64).cpu()
        self.tokens[row] += tokens

    def atlas(self) -> AttentionAtlas:
        heads = max(weight.shape[0] for weight in self.weight)
        width = max(weight.shape[1] for weight in self.weight)
        mean_weight, entropy = np.zeros((len(self.rows), heads, width)), np.full((len(self.rows), heads), np.nan)
        for row, tokens in enumerate(self.tokens):
            if tokens:
                weight = self.weight[row].numpy()
                mean_weight[row, :, : weight.shape[1]] = weight / tokens
                entropy[row] = self.entropy[row].numpy() / tokens
        reach = 1 + int(np.flatnonzero(mean_weight.sum((0, 1))).max(initial=0))
        return AttentionAtlas(self.rows, mean_weight[..., :reach], entropy, np.array(self.tokens))


def attention_atlas(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    segment_length: int | None = None,
    skip: int = 0,
    progress: bool = False,
) -> AttentionAtlas:
    """Mean attention of every head by distance, its entropy, and how far it looks, over a text of any length.

    The model is not changed, except that its attention is eager meanwhile. Works for every variant whose attention has
    weights over earlier positions, and for models of transformers that record their `attentions`; those read each segment
    alone.

    Args:
        model: the model; afterwards it has the training mode and `attn_implementation` that it had before.
        ids: token ids of the text `(tokens,)`.
        segment_length: tokens per segment; `config.segment_length` when not given.
        skip: tokens at the beginning that are read but not counted. The first `mem_len` tokens of a text see a memory that
            is not full yet, and so look less far.
        progress: show a bar on stderr.

    Raises:
        ValueError: the model has no such weights, or `ids`, `segment_length` or `skip` is out of range.
    """
    _check_count("skip", skip, 0, len(ids) - 1)
    sums = DistanceSums(list(attention_rows(model)), skip)
    with tapped_weights(model, sums):
        for start, _ in read_in_segments(model, ids, segment_length, progress):
            # the next segment begins where this one ends
            sums.start = start + (segment_length or model.config.segment_length)
    return sums.atlas()


def token_maps(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    heads: list[tuple[int, int]],
    tokens: int = 32,
    segment_length: int | None = None,
) -> TokenMaps:
    """The weights of chosen heads for the last tokens of a text, read with all that precedes them.

    Args:
        model: as in [`attention_atlas`].
        ids: token ids of the text `(tokens,)`.
        heads: rows and heads, each counted from 0, as [`AttentionAtlas.furthest`] gives them.
        tokens: how many of the last tokens to look at; all where there are fewer.
        segment_length: tokens per segment; `config.segment_length` when not given.

    Raises:
        ValueError: as in [`attention_atlas`], or a row or head does not exist.
    """
    _check_count("tokens", tokens, 1, None)
    rows, first = list(attention_rows(model)), max(0, len(ids) - tokens)
    for row, head in heads:
        if not (0 <= row < len(rows) and 0 <= head < model.config.num_attention_heads):
            raise ValueError(
                f"`heads` has {(row, head)}: there are {len(rows)} rows of {model.config.num_attention_heads} heads, "
                "counted from 0."
            )
    seen: list[list[tuple[int, np.ndarray]]] = [[] for _ in heads]
    position = 0

    def keep(row: int, weights: torch.Tensor, asked: torch.Tensor | None, places: Sequence[Places]) -> None:
        for kept, (wanted, head) in zip(seen, heads, strict=True):
            if row == wanted and position + weights.shape[1] > first:
                distant = by_distance(weights[head], places)
                distant = distant if asked is None else distant * asked[:, None]
                kept += [(position + t, distant[t].double().cpu().numpy()) for t in range(len(distant))]

    with tapped_weights(model, keep):
        for start, _ in read_in_segments(model, ids, segment_length):
            position = start + (segment_length or model.config.segment_length)

    reach = max((len(weights) for kept in seen for _, weights in kept), default=1)
    weights = np.zeros((len(heads), len(ids) - first, reach + len(ids) - first))
    offset = first - reach  # the position of the first column
    for index, kept in enumerate(seen):
        for query, distant in kept:
            if query >= first:
                nearest = query - offset + 1
                weights[index, query - first, nearest - len(distant) : nearest] = distant[::-1]
    begin = int(np.flatnonzero(weights.sum((0, 1))).min(initial=reach))
    names = [f"{rows[row]}, head {head + 1}" for row, head in heads]
    return TokenMaps(names, np.arange(first, len(ids)), np.arange(offset + begin, len(ids)), weights[..., begin:])


def _check_count(name: str, value: int, least: int, most: int | None) -> None:
    if value < least or (most is not None and value > most):
        upper = "" if most is None else f" and at most {most}, or no token of `ids` is left"
        raise ValueError(f"`{name}`={value} must be at least {least}{upper}.")


__all__ = ["AttentionAtlas", "Places", "TokenMaps", "attention_atlas", "attention_rows", "by_distance", "token_maps"]
