"""How well a language model predicts a text, in bits per byte, with its memory and with it taken away.

    bits per byte = nats / ln 2 / bytes

`nats` is the sum of the negative log-likelihoods of the predicted tokens, `bytes` the number of bytes that they stand
for. Every token of a text is predicted once, but its first, which nothing precedes. What its tokenizer begins texts with
(`beginning`) precedes it: then all are predicted. It is read wherever nothing is remembered, is never predicted, and counts
no bytes.

    perplexity = exp(nats / tokens)    word perplexity = exp(nats / words)    bits per character = nats / ln 2 / characters
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.data.score_units import bits_per, perplexity
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.token_losses import losses_of_targets
from transformers_xl.modeling.evaluating import evaluating
from transformers_xl.modeling.layers.token_loss import token_cross_entropy


@dataclass(frozen=True)
class TextScore:
    """The prediction of a text.

    Raises:
        ValueError: it is not a number, or infinite.

    Attributes:
        losses_by_position: sum of nats at each position of a segment `(segment_length,)`, float64.
        tokens_by_position: tokens predicted at each position of a segment `(segment_length,)`.
        bytes: bytes that the predicted tokens stand for.
        seconds: how long [`score_text`] or [`score_moving_window`] took; None where it was not measured.
        characters: characters that the predicted tokens stand for; None where it is not known.
        words: words of the text, parted by white space; None where it is not known.
    """

    losses_by_position: np.ndarray
    tokens_by_position: np.ndarray
    bytes: int
    seconds: float | None = None
    characters: int | None = None
    words: int | None = None

    def __post_init__(self) -> None:
        if not np.isfinite(self.losses_by_position).all():
            raise ValueError("The model predicts the text with NaN or infinite nats: its weights are unusable.")

    @property
    def nats(self) -> float:
        return float(self.losses_by_position.sum())

    @property
    def tokens(self) -> int:
        return int(self.tokens_by_position.sum())

    @property
    def bits_per_byte(self) -> float:
        return bits_per(self.nats, self.bytes)

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Of a token; infinite where it is no float."""
        return perplexity(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """Of a word, whatever its tokens are; None where the words were not counted."""
        return perplexity(self.nats, self.words) if self.words else None

    @property
    def bits_per_character(self) -> float | None:
        """None where the characters were not counted."""
        return bits_per(self.nats, self.characters) if self.characters else None

    @property
    def bits_per_byte_by_position(self) -> np.ndarray:
        """Bits per byte at each position of a segment `(segment_length,)`, a token taken for its mean number of bytes;
        nan at positions where nothing was predicted."""
        bytes_by_position = self.tokens_by_position * (self.bytes / self.tokens)
        with np.errstate(invalid="ignore"):
            return self.losses_by_position / math.log(2) / bytes_by_position


class ScoreSums:
    """What a [`TextScore`] is made of, while a text is read in segments: on `device`, which is not waited for."""

    def __init__(self, segment_length: int, device: torch.device):
        self.nats = torch.zeros(segment_length, dtype=torch.float64, device=device)
        self.tokens = torch.zeros(segment_length, dtype=torch.long, device=device)

    def add(self, losses: torch.Tensor, targets: torch.Tensor) -> None:
        """What `targets` `(batch, <=segment_length)` cost, in nats; -100: none."""
        width = losses.shape[1]
        self.nats[:width] += losses.double().sum(0)
        self.tokens[:width] += (targets != -100).sum(0)

    def score(self, num_bytes: int | None = None) -> TextScore:
        """`num_bytes` of the text; one per token when not given."""
        num_bytes = int(self.tokens.sum()) if num_bytes is None else num_bytes
        return TextScore(self.nats.cpu().numpy(), self.tokens.cpu().numpy(), num_bytes)


def score_text(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    segment_length: int | None = None,
    lanes: int = 1,
    memory: bool = True,
    num_bytes: int | None = None,
    progress: bool = False,
    beginning: Sequence[int] = (),
) -> TextScore:
    """Predict a text in segments.

    A text is cut into `lanes` contiguous lanes that are read side by side; each begins without a memory, so that more
    lanes are faster and give away a little. The memory is that of `model(ids, use_cache=True)`.

    Args:
        model: a causal language model of this package, left in the mode (training or not) it comes in.
        ids: token ids of the text `(tokens,)`.
        segment_length: tokens per segment; `config.segment_length` when not given.
        lanes: batch rows that the text is read in.
        memory: `True`: a segment is read with the memory of those before. `False`: each segment alone.
        num_bytes: bytes that the predicted tokens stand for; one per token when not given.
        progress: show a bar on stderr.
        beginning: ids that a text begins with, as [`~transformers_xl.data.text_beginning.beginning_of`] gives them:
            each lane does, and without `memory` each segment, in which they take a place.

    Raises:
        ValueError: `ids` is too short or not one row of integers, or a number is below 1.
    """
    segment_length = model.config.segment_length if segment_length is None else segment_length
    # first: it refuses a text without a token to predict, which has no bytes either
    stream = TextStream(ids, segment_length, lanes, keep_tail=True, beginning=beginning)
    if num_bytes is not None and num_bytes < 1:
        raise ValueError(f"`num_bytes`={num_bytes} must be at least 1: the bytes of the predicted tokens.")
    return score_stream(model, stream, memory, num_bytes, progress)


@torch.inference_mode()
def stream_losses(
    model: PreTrainedModel, stream: TextStream | DocumentStream, memory: bool = True, progress: bool = False
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What each token of a stream costs, a segment of all lanes at a time, with arguments and errors of [`score_stream`].

    Yields:
        Losses in nats and targets, both `(lanes, <=segment_length)` on the model's device; -100: nothing is predicted, at
        no cost. Columns at the end of a segment in which no lane has a token are left out.
    """
    remembers = memory and bool(getattr(model.config, "mem_len", True))
    stream = stream if remembers else stream.without_memory()
    if remembers and len(stream.beginning) and not stream.memory:
        raise ValueError("`stream` was made with `memory`=False, which begins every segment as a text: leave it out.")
    cache = None
    with evaluating(model):
        batches = DataLoader(stream, batch_size=stream.lanes)
        for batch in tqdm(batches, desc="evaluating", disable=None if progress else True):
            # a segment may be far longer than what is left of a text
            length = int(batch["attention_mask"].sum(1).max())
            ids, targets, mask = (batch[name][:, :length] for name in ("input_ids", "shift_labels", "attention_mask"))
            ids, targets = ids.to(model.device), targets.to(model.device)
            # a mask of ones would cost a gather in every layer
            mask = None if mask.all() else mask.to(model.device)
            begins = batch["reset"].to(model.device) if cache is not None and batch["reset"].any() else None
            read = {"attention_mask": mask, "past_key_values": cache, "use_cache": memory, "reset": begins}
            losses, outputs = losses_of_targets(model, ids, targets, **read)
            cache = outputs.past_key_values if memory else None
            yield losses, targets


def score_stream(
    model: PreTrainedModel,
    stream: TextStream | DocumentStream,
    memory: bool = True,
    num_bytes: int | None = None,
    progress: bool = False,
) -> TextScore:
    """Predict a text, or documents, each of which begins without a memory. The stream was made with `keep_tail`; other
    arguments as in [`score_text`].

    Raises:
        ValueError: the stream is for a model without memory: it begins every segment as a text.
    """
    sums = ScoreSums(stream.segment_length, model.device)
    start = time.perf_counter()
    for losses, targets in stream_losses(model, stream, memory, progress):
        sums.add(losses, targets)
    score = sums.score(num_bytes)  # waits for a GPU
    return replace(score, seconds=time.perf_counter() - start)


def score_moving_window(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    window: int | None = None,
    batch_size: int = 32,
    num_bytes: int | None = None,
    progress: bool = False,
    beginning: Sequence[int] = (),
) -> TextScore:
    """Predict a text by a window that moves one token at a time, each read on its own: Al-Rfou et al., 2018,
    https://arxiv.org/abs/1808.04444, section 3, the evaluation that Dai et al., 2019 compare with.

    Every token is predicted from the `window` tokens before it, or from all where there are fewer. It costs `window` times
    as much as segments.

    Args:
        model: a causal language model, left in the mode (training or not) it comes in.
        ids: token ids of the text `(tokens,)`.
        window: tokens of context; `config.segment_length` when not given.
        batch_size: windows that are read side by side.
        num_bytes: bytes that the predicted tokens stand for; one per token when not given.
        progress: show a bar on stderr.
        beginning: ids that a text begins with, as [`~transformers_xl.data.text_beginning.beginning_of`] gives them:
            every window does, in which they take a place.

    Returns:
        A score with one position, that after the window.

    Raises:
        ValueError: `ids` is too short or not one row of integers, or a number is below 1.
    """
    window = model.config.segment_length if window is None else window
    for name, value in (("window", window), ("batch_size", batch_size), ("num_bytes", num_bytes)):
        if value is not None and value < 1:
            raise ValueError(f"`{name}`={value} must be at least 1.")
    text = TextStream(ids, window, keep_tail=True, beginning=beginning).ids
    begin = torch.tensor(list(beginning), dtype=torch.long)
    start_time = time.perf_counter()
    tokens = torch.cat([begin, torch.from_numpy(text.astype(np.int64))])
    first = max(0, len(begin) - 1)
    # the first windows are padded on the left, with any token
    contexts = F.pad(tokens[:-1], (window - 1, 0)).unfold(0, window, 1)[first:]
    attention_mask = F.pad(torch.ones(len(tokens) - 1, dtype=torch.long), (window - 1, 0)).unfold(0, window, 1)[first:]
    sums = ScoreSums(1, model.device)
    with evaluating(model), torch.inference_mode():
        starts = range(0, len(contexts), batch_size)
        for start in tqdm(starts, desc="evaluating, moving window", disable=None if progress else True):
            here = slice(start, start + batch_size)
            mask = None if attention_mask[here].all() else attention_mask[here].to(model.device)
            rows = contexts[here].clone()
            rows[attention_mask[here][:, 0].bool(), : len(begin)] = begin  # those that are full
            outputs = model(rows.to(model.device), attention_mask=mask, logits_to_keep=1)
            targets = tokens[first + 1 :][here].to(model.device)[:, None]
            sums.add(token_cross_entropy(outputs.logits, targets), targets)
    return replace(sums.score(num_bytes), seconds=time.perf_counter() - start_time)


def bits_per_byte(model: PreTrainedModel, ids: np.ndarray | torch.Tensor, **kwargs) -> float:
    """Bits per byte of a text; arguments as for [`score_text`]."""
    return score_text(model, ids, **kwargs).bits_per_byte


__all__ = [
    "ScoreSums",
    "TextScore",
    "bits_per_byte",
    "perplexity",
    "score_moving_window",
    "score_stream",
    "score_text",
    "stream_losses",
]
