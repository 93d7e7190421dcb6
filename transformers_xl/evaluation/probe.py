"""The memory probe: how often a model answers rightly, against how many tokens back the answer was told."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from transformers_xl.evaluation.context_curve import memory_length, remembers
from transformers_xl.evaluation.context_losses import longest_window
from transformers_xl.evaluation.probe_options import ProbeOptions
from transformers_xl.evaluation.probe_tasks import NO_ANSWER, ProbeTask, ProbeText, generate_text
from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.modeling.evaluating import evaluating

NORMAL_QUANTILE = 1.959964  # of 95 %
SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 1)  # of the largest distance: where bins end


@dataclass(frozen=True)
class ProbeScore:
    """Right answers by distance.

    Attributes:
        edges: the largest distance of each bin, in tokens; a bin begins after the one before.
        asked: questions in each bin.
        right: right answers in each.
        chance: accuracy of a guess.
    """

    edges: tuple[int, ...]
    asked: tuple[int, ...]
    right: tuple[int, ...]
    chance: float

    @property
    def bins(self) -> list[tuple[int, int]]:
        """The distances of each bin, first and last."""
        return list(zip((1, *(edge + 1 for edge in self.edges[:-1])), self.edges, strict=True))

    @property
    def accuracy(self) -> list[float | None]:
        """Of each bin; None where nothing was asked."""
        return [right / asked if asked else None for right, asked in zip(self.right, self.asked, strict=True)]

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """Wilson's interval of 95 % around the accuracy of each bin."""
        return [wilson_interval(right, asked) for right, asked in zip(self.right, self.asked, strict=True)]

    @property
    def half(self) -> int | None:
        """The largest distance up to which every bin, from the best one on, is above half of the way from chance to the
        best. None: no bin is certainly above chance, not even the best of as many (Bonferroni's 95 %)."""
        known = [index for index, asked in enumerate(self.asked) if asked]
        accuracy = self.accuracy
        best = max(known, key=lambda index: accuracy[index] or 0.0, default=None)
        if best is None:
            return None
        of_all = NormalDist().inv_cdf(1 - 0.025 / len(known))
        if wilson_interval(self.right[best], self.asked[best], of_all)[0] <= self.chance:
            return None
        middle = (self.chance + (accuracy[best] or 0.0)) / 2
        reached = self.edges[best]
        for index in known[known.index(best) + 1 :]:
            if (accuracy[index] or 0.0) < middle:
                break
            reached = self.edges[index]
        return reached


@dataclass(frozen=True)
class Reach:
    """How far back arithmetic lets a token see, in tokens; None: without bound, by a state.

    Attributes:
        direct: through one layer.
        layers: through all layers, each reading what the one below has read.
    """

    direct: int | None
    layers: int | None


def wilson_interval(right: int, asked: int, quantile: float = NORMAL_QUANTILE) -> tuple[float, float]:
    """The interval of a share (Wilson, 1927, https://doi.org/10.1080/01621459.1927.10502953); (0, 1) where nothing was
    asked."""
    if asked == 0:
        return 0.0, 1.0
    share, square = right / asked, quantile**2
    middle = (share + square / (2 * asked)) / (1 + square / asked)
    margin = quantile * math.sqrt(share * (1 - share) / asked + square / (4 * asked**2)) / (1 + square / asked)
    return max(0.0, middle - margin), min(1.0, middle + margin)


def distance_edges(max_distance: int) -> tuple[int, ...]:
    """Ends of the bins of 1 to `max_distance` tokens: 1/32, 1/16, 1/8, 1/4, 3/8, ... of it."""
    return tuple(sorted({max(1, round(share * max_distance)) for share in SHARES}))


def score_answers(
    predicted: np.ndarray, answers: np.ndarray, distances: np.ndarray, edges: tuple[int, ...], chance: float
) -> ProbeScore:
    """Compare predictions with the answers, by distance.

    Args:
        predicted: token that the model holds for the likeliest, of any shape.
        answers: the right tokens, [`NO_ANSWER`] where nothing is asked.
        distances: tokens from each question back to where its answer was told.
        edges: ends of the bins, growing; what was told before the last is not counted.
        chance: accuracy of a guess.

    Raises:
        ValueError: the shapes differ, or `edges` do not grow.
    """
    if not predicted.shape == answers.shape == distances.shape:
        raise ValueError(
            f"`predicted` {predicted.shape}, `answers` {answers.shape} and `distances` {distances.shape} must have one "
            "shape."
        )
    if not edges or list(edges) != sorted(set(edges)) or edges[0] < 1:
        raise ValueError(f"`edges`={list(edges)} must increase, from at least 1.")
    counted = (answers != NO_ANSWER) & (distances >= 1) & (distances <= edges[-1])
    bins = np.searchsorted(edges, distances[counted])
    asked = np.bincount(bins, minlength=len(edges))
    right = np.bincount(bins[(predicted == answers)[counted]], minlength=len(edges))
    return ProbeScore(edges, tuple(asked.tolist()), tuple(right.tolist()), chance)


def probe(
    model: PreTrainedModel, task: ProbeTask, options: ProbeOptions | None = None, progress: bool = False
) -> ProbeScore:
    """Ask a model, on new streams of a task, what it was told some tokens ago.

    A model of this package reads segments with the memory of those before. Any other reads each segment again after some
    tokens of its stream.

    Args:
        model: a causal language model whose vocabulary holds the task's, left in the mode (training or not) it comes in.
        task: what is asked.
        options: how; the defaults when not given.
        progress: show a bar on stderr.

    Raises:
        ValueError: the vocabulary is too small, or the model cannot read with `options.length`.
    """
    options = options or ProbeOptions()
    if model.config.vocab_size < task.vocab_size:
        raise ValueError(
            f"`model` has a vocabulary of {model.config.vocab_size} tokens, {task.name} one of {task.vocab_size}: train a "
            "model for it with `transformers-xl train-probe`."
        )
    context = context_of(model, options)
    length = options.max_distance + options.tokens
    text = generate_text(task, options.lanes, length, options.max_distance, options.seed)
    resized = remembers(model) and options.length is not None
    with memory_length(model, options.length or 0) if resized else nullcontext():
        predicted = _predict(model, text, options.segment_length, context, progress)
    counted = np.s_[:, options.max_distance :]
    edges = distance_edges(options.max_distance)
    return score_answers(predicted[counted], text.answers[counted], text.distances[counted], edges, task.chance)


def context_of(model: PreTrainedModel, options: ProbeOptions) -> int:
    """Tokens of a stream that are read again before each segment: none for a model that remembers.

    Raises:
        ValueError: the model cannot read as many as `options.length`.
    """
    if remembers(model):
        return 0
    limit = longest_window(model)
    most = None if limit is None else limit - options.segment_length
    if options.length is None:
        asked = 0 if model.config.model_type in VARIANTS else options.max_distance
        return asked if most is None else max(0, min(asked, most))
    if most is not None and options.length > most:
        raise ValueError(
            f"`length`={options.length} with `segment_length`={options.segment_length} is more than the {limit} tokens "
            f"that this model can read: give at most {max(0, most)}."
        )
    return options.length


def reach(model: PreTrainedModel, options: ProbeOptions) -> Reach:
    """How far back a token can see: by the memory of a model that has one, otherwise in what is read at a time.

    Raises:
        ValueError: the model cannot read with `options.length`.
    """
    config = model.config
    if remembers(model):
        variant = VARIANTS.get(config.model_type)  # the LSTM is no variant
        if variant is None or variant.recurrent or not config.layer_windows:  # memory tokens around a base
            return Reach(None, None)
        config = config if options.length is None else config.with_mem_len(options.length)
        windows = [window - 1 for window in config.layer_reaches]  # a window counts the token itself
        return Reach(max(windows), sum(windows))
    read = context_of(model, options) + options.segment_length - 1
    window = None if config.model_type in VARIANTS else getattr(config, "sliding_window", None)
    direct = read if window is None else min(read, window - 1)
    return Reach(direct, min(read, direct * config.num_hidden_layers))


def _predict(model: PreTrainedModel, text: ProbeText, segment_length: int, context: int, progress: bool) -> np.ndarray:
    """The likeliest answer at every position `(lanes, length)`. A model that remembers is given a `context` of 0."""
    tokens = torch.from_numpy(text.tokens)
    carried: dict[str, Any] = {"use_cache": remembers(model)}
    pieces = []
    with evaluating(model), torch.inference_mode():
        starts = range(0, tokens.shape[1], segment_length)
        for start in tqdm(starts, desc="asking", disable=None if progress else True):
            window = tokens[:, max(0, start - context) : start + segment_length].to(model.device)
            outputs = model(window, **carried)
            if getattr(outputs, "mems", None) is not None:
                carried["mems"] = outputs.mems
            pieces.append(outputs.logits[:, start - max(0, start - context) :].argmax(dim=-1).cpu())
    return torch.cat(pieces, dim=1).numpy()


__all__ = [
    "ProbeScore",
    "Reach",
    "context_of",
    "distance_edges",
    "probe",
    "reach",
    "score_answers",
    "wilson_interval",
]
