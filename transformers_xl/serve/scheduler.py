"""Many texts in one batch, each with its own settings: they enter and leave between tokens."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from transformers_xl.data.turns import end_ids
from transformers_xl.data.written_text import WrittenText
from transformers_xl.modeling.checks import check_memory
from transformers_xl.modeling.generation_memory import MemoryGenerationMixin
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.memory.segment import check_columns
from transformers_xl.serve.grammars import Matcher, allowed, matcher_of
from transformers_xl.serve.sampling import RowSampling, logprobs_of
from transformers_xl.serve.slots import Slots, own_copy
from transformers_xl.serve.text_request import FinishReason, Progress, TextRequest, TokenLogprob, Written


@dataclass(eq=False)
class _Text:
    """A request on its way: it waits, its prompt is read into `cache`, or it is a row of the batch (`cache` is None)."""

    request_id: int
    request: TextRequest
    random: Random
    stop_ids: frozenset[int]
    text: WrittenText | None
    matcher: Matcher | None = None  # of the request's grammar
    cache: MemoryCache | None = None
    num_read: int = 0  # tokens of the prompt
    num_written: int = 0
    last: int = -1  # the newest token
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])

    @property
    def num_to_read(self) -> int:
        """Tokens of the prompt that are read: without the last one where nothing is to follow."""
        return len(self.request.input_ids) - (self.request.max_new_tokens == 0)

    @property
    def unread_ids(self) -> tuple[int, ...]:
        return tuple(self.request.input_ids[self.num_read :]) if self.num_written == 0 else (self.last,)

    def write(self, token_id: int, logprob: TokenLogprob | None) -> Progress:
        """Take a new token."""
        self.num_written, self.last, text = self.num_written + 1, token_id, ""
        has_ended = token_id in self.stop_ids
        if self.text is not None and not has_ended:
            text = self.text.add(token_id)
            has_ended = self.text.has_ended
        reason: FinishReason | None = "stop" if has_ended else None
        if self.matcher is not None and reason is None:
            self.matcher.consume_token(token_id)
            has_ended = self.matcher.is_stopped()  # also where it has used up its bounds
            reason = ("length" if self.matcher.is_error() else "stop") if has_ended else None
        if reason is None and self.num_written >= self.request.max_new_tokens:
            reason = "length"
        if reason is not None and self.text is not None:
            text += self.text.finish()
        logprobs = () if logprob is None else (logprob,)
        prompt = tuple(self.prompt_logprobs) if self.num_written == 1 and self.request.prompt_logprobs else ()
        return Progress(self.request_id, (token_id,), text, logprobs, prompt, reason)


class Scheduler:
    """Continues many texts at a time, in one batch that they enter and leave between tokens.

    ```python
    scheduler = Scheduler(model, tokenizer)
    scheduler.add(TextRequest(tokenizer("Once upon a time")["input_ids"], seed=1, max_new_tokens=50))
    while scheduler.num_waiting + scheduler.num_running > 0:
        for progress in scheduler.step():  # meanwhile, `add` more
            print(progress.text, end="")
    ```

    A step reads one token of every row, and pieces of the prompts of others, in turn, until `piece` tokens are read. What a
    row writes does not depend on the other rows, but for rounding: a sum over a batch may differ in its last bits, which in
    float32 can decide between two tokens that are equally likely to some seven digits.

    One thread may use it. The model's weights must not change as long as it lives.

    Args:
        model: a causal language model of this package that remembers, in evaluation mode.
        tokenizer: makes texts of tokens. Without it only token ids are given, and no stop texts are taken.
        capacity: rows of the batch at most; who comes later waits.
        piece: how many tokens of a prompt are read at once. With `same_length=False` a call is a segment, so that results
            depend on it.

    Raises:
        ValueError: it is another model, one without memory or in training mode, or a number is below 1.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        capacity: int = 16,
        piece: int = 64,
    ):
        check_model(model)
        for name, number in (("capacity", capacity), ("piece", piece)):
            if not isinstance(number, int) or number < 1:
                raise ValueError(f"`{name}`={number!r} must be an integer, at least 1.")
        self.model, self.tokenizer, self.capacity, self.piece = model, tokenizer, capacity, piece
        with torch.inference_mode():
            self._slots = Slots(model, capacity, piece)
        self._waiting: deque[_Text] = deque()
        self._reading: deque[_Text] = deque()
        self._rows: list[_Text] = []
        self._sampling: RowSampling | None = None  # of these rows
        self._texts: dict[int, _Text] = {}
        self._cancelled: set[int] = set()
        self._num_added = 0
        self._eos = end_ids(model)

    @property
    def num_waiting(self) -> int:
        """Requests of which nothing is read yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests whose prompt is read or that are generated."""
        return len(self._reading) + len(self._rows)

    def add(self, request: TextRequest) -> int:
        """Take a request; its number.

        Raises:
            ValueError: it cannot be honoured: an id is not in the vocabulary, the memory is not one row of this model,
                the grammar is none, or there is no tokenizer for its stop texts.
        """
        self._check(request)
        text = None
        if self.tokenizer is not None:
            text = WrittenText(self.tokenizer, request.input_ids, request.stop)
        stop_ids = self._eos if request.stop_token_ids is None else frozenset(request.stop_token_ids)
        one = _Text(self._num_added, request, Random(request.seed), stop_ids, text, self._matcher(request))
        self._num_added += 1
        self._waiting.append(one)
        self._texts[one.request_id] = one
        return one.request_id

    def cancel(self, request_id: int) -> bool:
        """End a request in the next step, which gives its last [`Progress`]; whether it is there still."""
        if request_id in self._texts:
            self._cancelled.add(request_id)
        return request_id in self._texts

    @torch.inference_mode()
    def step(self) -> list[Progress]:
        """Read one token of every row and a piece of the prompts; what that made, at most one of each request."""
        return [*self._drop_cancelled(), *self._write(), *self._read_prompts()]

    def _check(self, request: TextRequest) -> None:
        size = self.model.config.vocab_size
        for name in ("input_ids", "stop_token_ids"):
            ids = getattr(request, name) or ()
            if unknown := [each for each in ids if not 0 <= each < size]:
                raise ValueError(f"`{name}` holds {unknown[0]}: ids must lie in 0..{size - 1} (`vocab_size`-1).")
        if request.top_logprobs is not None and request.top_logprobs > size:
            raise ValueError(f"`top_logprobs`={request.top_logprobs} must be at most `vocab_size`={size}.")
        if request.stop and self.tokenizer is None:
            raise ValueError(
                f"`stop`={request.stop!r} needs a tokenizer: give the scheduler one, or `stop_token_ids`."
            )
        if request.memory is None:
            return
        try:
            check_memory(self.model.model, 1, None, request.memory)
            for layer, row in zip(request.memory.layers, self._slots.row.layers, strict=True):
                for columns, others in ((layer.columns, row.columns), (layer.older, row.older)):
                    if columns and others and columns[0].dim() == others[0].dim():
                        check_columns(columns, others)
        except ValueError as error:
            raise ValueError(f"`memory` does not fit the model. {error}") from error

    def _matcher(self, request: TextRequest) -> Matcher | None:
        if request.grammar is None:
            return None
        try:
            if self.tokenizer is None:
                raise ValueError("it needs a tokenizer: give the scheduler one")
            return matcher_of(request.grammar, self.tokenizer, self.model.config.vocab_size, self._eos)
        except ValueError as error:
            raise ValueError(f"`grammar` cannot be honoured: {error}.") from error

    def _drop_cancelled(self) -> list[Progress]:
        progress = []
        for one in [self._texts[number] for number in sorted(self._cancelled)]:
            text = "" if one.text is None else one.text.finish()
            progress.append(self._ended(one, Progress(one.request_id, text=text, finish_reason="cancelled")))
            for texts in (self._waiting, self._reading):
                if one in texts:
                    texts.remove(one)
        self._cancelled.clear()
        return progress

    def _write(self) -> list[Progress]:
        """A token of every row."""
        if not self._rows:
            return []
        logits = self._slots.read([one.last for one in self._rows])
        if self._sampling is None:
            self._sampling = RowSampling(
                [one.request for one in self._rows], [one.random for one in self._rows], logits
            )
        progress = self._choose(self._rows, self._sampling, logits)
        for index in range(len(progress) - 1, -1, -1):  # the last row takes the place of one that leaves
            if progress[index].finish_reason is not None:
                progress[index] = self._ended(self._rows[index], progress[index])
        return progress

    def _choose(self, texts: list[_Text], sampling: RowSampling, logits: torch.Tensor) -> list[Progress]:
        chosen = sampling.choose(allowed(logits, [one.matcher for one in texts]))
        asking = [row for row, one in enumerate(texts) if one.request.top_logprobs is not None]
        logprobs: dict[int, TokenLogprob] = {}
        if asking:
            counts = [texts[row].request.top_logprobs or 0 for row in asking]
            logprobs = dict(zip(asking, logprobs_of(logits[asking], chosen[asking], counts), strict=True))
        return [
            one.write(token, logprobs.get(row))
            for row, (one, token) in enumerate(zip(texts, chosen.tolist(), strict=True))
        ]

    def _read_prompts(self) -> list[Progress]:
        """Pieces of prompts, in turn, until so many tokens are read as one piece has."""
        while self._waiting and self.num_running < self.capacity:
            self._reading.append(self._waiting.popleft())
        progress, budget = [], self.piece
        while self._reading and budget > 0:
            one = self._reading.popleft()
            num_before = one.num_read
            logits = self._read_piece(one) if one.num_read < one.num_to_read else None
            budget -= one.num_read - num_before
            if one.num_read < one.num_to_read:
                self._reading.append(one)
            else:
                progress.append(self._begin(one, logits))
        return progress

    def _read_piece(self, one: _Text) -> torch.Tensor:
        """Read the next tokens of a prompt; logits `(1, vocab_size)` after them."""
        request, start = one.request, one.num_read
        if one.cache is None:
            one.cache = self._slots.new_cache(request.memory)
        piece = list(request.input_ids[start : min(start + self.piece, one.num_to_read)])
        ids = torch.tensor([piece], device=self.model.device)
        keep = 0 if request.prompt_logprobs else 1
        logits = self.model(input_ids=ids, past_key_values=one.cache, logits_to_keep=keep).logits
        one.num_read += len(piece)
        if request.prompt_logprobs:
            following = torch.tensor(request.input_ids[start + 1 : one.num_read + 1], device=ids.device)
            counts = [request.top_logprobs or 0] * len(following)
            one.prompt_logprobs += logprobs_of(logits[0, : len(following)], following, counts) if counts else []
        return logits[:, -1]

    def _begin(self, one: _Text, logits: torch.Tensor | None) -> Progress:
        """The first token after a prompt, by `logits` `(1, vocab_size)`; the text is a row from now on."""
        if one.request.max_new_tokens == 0 or logits is None:
            prompt = tuple(one.prompt_logprobs) if one.request.prompt_logprobs else ()
            return self._ended(one, Progress(one.request_id, prompt_logprobs=prompt, finish_reason="length"))
        (progress,) = self._choose([one], RowSampling([one.request], [one.random], logits), logits)
        if progress.finish_reason is not None:
            return self._ended(one, progress)
        assert one.cache is not None, "logits came of it"
        self._slots.enter(one.cache)
        one.cache, self._sampling = None, None
        self._rows.append(one)
        return progress

    def _ended(self, one: _Text, progress: Progress) -> Progress:
        """The last progress of a text, with what it remembers."""
        del self._texts[one.request_id]
        memory: Memory | None = None
        if one in self._rows:
            row = self._rows.index(one)
            memory = self._slots.memory(row)
            self._slots.leave(row)
            last = self._rows.pop()
            if last is not one:
                self._rows[row] = last
            self._sampling = None
        else:
            memory = one.request.memory if one.cache is None else one.cache.memory
            memory = None if memory is None else own_copy(memory, self.model.config.initial_memory)
        return progress._replace(memory=memory, unread_ids=one.unread_ids)


def check_model(model: Any) -> None:
    """Check that a scheduler can run a model.

    Raises:
        ValueError: it is no causal language model of this package, remembers nothing, or is in training mode.
    """
    if not isinstance(model, MemoryGenerationMixin):
        raise ValueError(
            f"`model` is a {type(model).__name__}: it must be a causal language model of transformers_xl."
        )
    if not model.config.mem_len:
        raise ValueError(
            f"`model` is a {type(model).__name__} with `mem_len`=0, which remembers nothing: use `generate()`."
        )
    if model.training:
        raise ValueError("`model` is in training mode: call `model.eval()` first.")


def generate_many(
    model: PreTrainedModel,
    requests: Iterable[TextRequest],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    capacity: int = 16,
    piece: int = 64,
) -> Iterator[Written]:
    """Continue many texts, at most `capacity` at a time; each output as soon as it is whole.

    ```python
    requests = [TextRequest(ids, temperature=0.8, seed=seed) for seed, ids in enumerate(tokenizer(texts)["input_ids"])]
    for written in generate_many(model, requests, tokenizer):
        print(written.number, written.text)
    ```

    Args:
        requests: are taken when there is room for them.
        model, tokenizer, capacity, piece: as in [`Scheduler`].

    Raises:
        ValueError: the model or a request cannot be honoured.
    """
    scheduler = Scheduler(model, tokenizer, capacity=capacity, piece=piece)
    return _finished(scheduler, iter(requests))


def _finished(scheduler: Scheduler, requests: Iterator[TextRequest]) -> Iterator[Written]:
    parts: dict[int, list[Progress]] = {}
    while True:
        while scheduler.num_waiting + scheduler.num_running < scheduler.capacity:
            request = next(requests, None)
            if request is None:
                break
            parts[scheduler.add(request)] = []
        if not parts:
            return
        for progress in scheduler.step():
            parts[progress.request_id].append(progress)
            if progress.finish_reason is not None:
                yield _written(parts.pop(progress.request_id))


def _written(parts: list[Progress]) -> Written:
    last = parts[-1]
    assert last.finish_reason is not None, "a request ends with its reason"
    return Written(
        last.request_id,
        tuple(each for part in parts for each in part.token_ids),
        "".join(part.text for part in parts),
        last.finish_reason,
        last.memory,
        last.unread_ids,
        tuple(each for part in parts for each in part.logprobs),
        tuple(each for part in parts for each in part.prompt_logprobs),
    )


__all__ = ["Scheduler", "check_model", "generate_many"]
