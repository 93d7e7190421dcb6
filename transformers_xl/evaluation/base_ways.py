"""A language model of transformers read in the ways that people ask about: alone, with its own cache, and with memory.

All ways predict the same tokens of a text, segment by segment, and all begin it with what its tokenizer begins texts with.
The first token is predicted where something stands before it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers import DynamicCache, PreTrainedModel

from transformers_xl.data.score_units import bits_per, perplexity
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.token_losses import losses_of_targets
from transformers_xl.modeling.evaluating import evaluating
from transformers_xl.modeling.modeling_segment_memory import SegmentMemoryForCausalLM, add_memory

DEFAULT_MEM_LEN, DEFAULT_SINKS = 1024, 4


@dataclass(frozen=True)
class WayScore:
    """How a text was predicted in one way.

    Attributes:
        nats, tokens: the sum over the predicted tokens, and their number.
        num_bytes: bytes that they stand for.
        late_nats, late_tokens: of the tokens after the first `mem_len`, where memories and windows are full.
        seconds: processor time on a CPU, else time, of reading.
        kept_bytes: what was kept from segment to segment, at the most.
    """

    nats: float
    tokens: int
    num_bytes: int
    late_nats: float
    late_tokens: int
    seconds: float
    kept_bytes: int

    @property
    def perplexity(self) -> float:
        return perplexity(self.nats, self.tokens)

    @property
    def late_perplexity(self) -> float | None:
        """None where the text is no longer than the memory."""
        return perplexity(self.late_nats, self.late_tokens) if self.late_tokens else None

    @property
    def bits_per_byte(self) -> float:
        return bits_per(self.nats, self.num_bytes)

    @property
    def milliseconds(self) -> float:
        """Of a token."""
        return 1000 * self.seconds / self.tokens


@dataclass(frozen=True)
class SegmentedText:
    """A text `(tokens,)` on a device, the tokens of a segment, and the `beginning` `(ids,)` of texts."""

    ids: torch.Tensor
    segment_length: int
    beginning: torch.Tensor

    def spans(self) -> list[tuple[int, int]]:
        """First token of each segment, and the token after its last; the last token of all is only predicted."""
        last = len(self.ids) - 1
        return [(start, min(start + self.segment_length, last)) for start in range(0, last, self.segment_length)]

    def read(self, start: int, stop: int, before: int = 0, begins: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens `(1, n)` of a call that reads a segment, with the `before` tokens before it, after the beginning of
        a text; and what of it is predicted."""
        first = max(0, start - before)
        beginning = self.beginning if begins else self.beginning[:0]
        ids = torch.cat([beginning, self.ids[first:stop]])
        num_targets = stop - start + (start == 0 and len(beginning) > 0)
        targets = F.pad(self.ids[stop + 1 - num_targets : stop + 1], (len(ids) - num_targets, 0), value=-100)
        return ids[None], targets[None]

    @property
    def num_predicted(self) -> int:
        return len(self.ids) - (len(self.beginning) == 0)


# losses of what a segment predicts, and the bytes that are kept after it
Reading = Iterator[tuple[torch.Tensor, int]]


def in_segments(base: PreTrainedModel, text: SegmentedText, context: int = 0) -> Reading:
    """Each segment alone, after the `context` tokens before it, which are read again."""
    for start, stop in text.spans():
        ids, targets = text.read(start, stop, context)
        losses, _ = losses_of_targets(base, ids, targets, use_cache=False)
        yield losses[targets != -100], 0


def with_own_cache(base: PreTrainedModel, text: SegmentedText) -> Reading:
    """With the base's own cache of all that came before. Where the next segment would stand after the last position that
    the base was trained for, a new text begins."""
    limit, cache, read = positions_of(base), DynamicCache(config=base.config), 0
    for start, stop in text.spans():
        if limit is not None and read and read + stop - start > limit:
            cache, read = DynamicCache(config=base.config), 0
        ids, targets = text.read(start, stop, begins=read == 0)
        losses, _ = losses_of_targets(base, ids, targets, past_key_values=cache, use_cache=True)
        read += ids.shape[1]
        yield losses[targets != -100], sum(each.nbytes for each in cache_tensors(cache))


def positions_of(base: PreTrainedModel) -> int | None:
    """For how many positions a base was trained, where its config says so."""
    return getattr(base.config, "max_position_embeddings", None)


def context_read_again(base: PreTrainedModel, text: SegmentedText, mem_len: int) -> int:
    """How many tokens before a segment a base reads again: as many as its window has, within the positions that it knows.

    Raises:
        ValueError: a segment alone has more.
    """
    context, limit = max(mem_len - text.segment_length, text.segment_length), positions_of(base)
    room = context if limit is None else limit - text.segment_length - len(text.beginning)
    if room < 0:
        raise ValueError(
            f"`segment_length`={text.segment_length}: the base was trained for {limit} positions "
            f"(`max_position_embeddings`), of which the beginning of a text takes {len(text.beginning)}. Use shorter "
            "segments."
        )
    return min(context, room)


def with_memory(model: SegmentMemoryForCausalLM, text: SegmentedText) -> Reading:
    """With a memory of the segments before."""
    cache = None
    for start, stop in text.spans():
        ids, targets = text.read(start, stop, begins=cache is None)
        losses, output = losses_of_targets(model, ids, targets, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        yield losses[targets != -100], cache.memory.num_bytes


def cache_tensors(cache: Any) -> list[torch.Tensor]:
    """What a cache of a base holds: keys and values, and the states of layers that have others."""
    held: list[torch.Tensor | None] = []
    for layer in cache.layers:
        held += [getattr(layer, "keys", None), getattr(layer, "values", None)]
        for name in ("conv_states", "recurrent_states"):
            held += getattr(layer, name, {}).values()
    return [each for each in held if each is not None]


def score_base_ways(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    beginning: list[int],
    segment_length: int | None = None,
    mem_len: int | None = None,
    num_bytes: int | None = None,
    progress: bool = False,
) -> dict[str, WayScore]:
    """How well a base predicts a text alone (each segment on its own; after as many tokens as its window has, read again;
    with its own cache), and with memory (a window without and with sinks, or its memory tokens).

    Args:
        model: a base with memory around it, or a language model of transformers.
        ids: token ids of the text `(tokens,)`, without its beginning.
        beginning: ids that a text begins with, as [`~transformers_xl.data.text_beginning.beginning_of`] gives them.
        segment_length: tokens per segment; `config.segment_length`, or 512, when not given.
        mem_len: positions of the window; that of the model, or 1,024, when not given.
        num_bytes: bytes that the predicted tokens stand for; one per token when not given.
        progress: show a bar on stderr.

    Returns:
        The scores, by the names of the ways.

    Raises:
        ValueError: `ids` is too short or not one row of integers, a number is below 1, a segment is longer than what the
            base was trained for, or the base cannot have a window.
    """
    remembers, given_model = isinstance(model, SegmentMemoryForCausalLM), cast(Any, model)
    base = given_model.backbone if remembers else given_model
    given = model.config.segment_length if remembers else 512
    segment_length = given if segment_length is None else segment_length
    has_window = not remembers or model.config.kind == "window"
    own = model.config.mem_len if remembers and has_window else DEFAULT_MEM_LEN
    mem_len = own if mem_len is None else mem_len
    stream = TextStream(ids, segment_length, keep_tail=True)  # refuses what is no text
    text = SegmentedText(
        torch.from_numpy(np.asarray(stream.ids).astype(np.int64)).to(base.device),
        segment_length,
        torch.tensor(beginning, dtype=torch.long, device=base.device),
    )
    context = context_read_again(base, text, mem_len)
    ways: dict[str, Callable[[], Reading]] = {
        f"base, segments of {segment_length:,}": partial(in_segments, base, text),
        f"base, windows of {context + segment_length:,} read again": partial(in_segments, base, text, context),
        "base, its own cache": partial(with_own_cache, base, text),
    }
    if has_window:
        for sinks in (0, (model.config.num_sinks if remembers else 0) or DEFAULT_SINKS):
            window = add_memory(base, kind="window", mem_len=mem_len, num_sinks=sinks, segment_length=segment_length)
            ways[f"window of {mem_len:,}, {sinks or 'no'} sinks"] = partial(with_memory, window, text)
    else:
        ways[f"{model.config.num_memory_tokens} memory tokens"] = partial(with_memory, given_model, text)
    with evaluating(model):
        return {
            name: score_way(name, read, mem_len, text.num_predicted if num_bytes is None else num_bytes, progress)
            for name, read in ways.items()
        }


def score_way(name: str, read: Callable[[], Reading], mem_len: int, num_bytes: int, progress: bool) -> WayScore:
    """The score of one way."""
    losses, kept = [], 0
    start = clock()
    with torch.inference_mode():
        for found, held in tqdm(read(), desc=name, disable=None if progress else True):
            losses.append(found.double().cpu())
            kept = max(kept, held)
    seconds = clock() - start
    nats = torch.cat(losses)
    if not nats.isfinite().all():
        raise ValueError("The model predicts the text with NaN or infinite nats: its weights are unusable.")
    late = nats[mem_len:]
    return WayScore(float(nats.sum()), len(nats), num_bytes, float(late.sum()), len(late), seconds, kept)


def clock() -> float:
    """Seconds: of the processor, which other programs do not lengthen; of the clock where a GPU computes."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


__all__ = ["WayScore", "score_base_ways"]
