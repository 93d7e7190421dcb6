"""A conversation that a model remembers in its memory: a turn costs what it reads and writes, however long ago it began."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from transformers_xl.data.turns import end_ids, text_ids, turn_ids
from transformers_xl.modeling.memory.memory_value import Memory


class Interrupted(StoppingCriteria):
    """Ends the text that is being written when Ctrl-C is pressed; the memory then holds what was written so far."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs) -> torch.BoolTensor:
        return torch.full((len(input_ids),), self.asked, device=input_ids.device).bool()  # type: ignore[return-value]  # a legacy type

    @contextmanager
    def listening(self) -> Iterator[None]:
        def ask(*_: object) -> None:
            self.asked = True

        before = signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class Conversation:
    """Turns of a user and answers of a model, each read once.

    With a chat template only the new turn is rendered, between the end of the last answer and the beginning of the next, so
    that the model reads token for token what it would read of the whole conversation. Without one a turn is a line of the
    text, of which the first begins with what the tokenizer begins texts with; a template brings that itself.

    Args:
        model: a causal language model that remembers.
        tokenizer: its tokenizer.
        stop: texts that end an answer.
        settings: of `generate()`, for every answer.

    Raises:
        ValueError: the model remembers nothing.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stop: list[str] | None = None, **settings
    ):
        if not model.config.mem_len:
            raise ValueError(
                f"`model` is a {model.config.model_type!r} with `mem_len`=0, which has no memory from turn to turn: "
                "use `transformers-xl generate`."
            )
        if stop and not all(stop):
            raise ValueError(f"`stop`={stop} has an empty text, which would end every answer: leave it out.")
        if stop:
            settings |= {"stop_strings": stop, "tokenizer": tokenizer}
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.mems: Memory | None = None
        self.unread: list[int] = []  # the last token of an answer: the memory does not hold it yet

    @property
    def memory(self) -> Memory:
        """What the model remembers; of a conversation that has not begun, that of a new row."""
        like = torch.empty(0, dtype=self.model.dtype, device=self.model.device)
        return self.model.model.new_memory(1, like) if self.mems is None else self.mems  # type: ignore[operator]

    def save(self, path: str | os.PathLike) -> None:
        """Write the conversation to a file, whole or not at all: the memory, and the token that it does not hold yet. What
        was said is not in it.

        Raises:
            OSError: the disk refuses.
        """
        self.memory.save(path, self.model, torch.tensor([self.unread], dtype=torch.long))

    def load(self, path: str | os.PathLike) -> None:
        """Go on with the conversation that `save` wrote, by this model, in this process or another.

        Raises:
            ValueError: the file is none, is damaged, or is not of this model; this conversation stays as it is.
        """
        memory, unread_ids = Memory.load(path, self.model)
        if memory.batch_size != 1 or unread_ids is None:
            raise ValueError(
                f"{os.fspath(path)!r} is no conversation, but a memory of {memory.batch_size} rows: pass it to "
                "`generate()`."
            )
        self.unread = unread_ids[0].tolist()
        self.mems = memory if self.unread or int(memory.tokens_read) else None

    def turn(self, text: str) -> list[int]:
        """The ids that the model reads before its next answer: what is `unread` of the one before, and the turn."""
        if self.tokenizer.chat_template is None:
            return self.unread + text_ids(self.tokenizer, f"{text}\n", begins=self.mems is None)
        message = {"role": "user", "content": text}
        unread = None if self.mems is None else self.unread
        return turn_ids(self.tokenizer, [message], unread, ends=end_ids(self.model))

    def say(self, text: str, streamer: BaseStreamer | None = None) -> str:
        """Read a turn and answer it; `streamer` hears the answer while it is written. Ctrl-C ends the answer."""
        ids = torch.tensor([self.turn(text)], device=self.model.device)
        stopping = Interrupted()
        with stopping.listening():
            result = self.model.generate(  # type: ignore[operator]  # every model with memory can
                ids,
                attention_mask=torch.ones_like(ids),
                mems=self.mems,
                streamer=streamer,
                stopping_criteria=StoppingCriteriaList([stopping]),
                return_dict_in_generate=True,
                **self.settings,
            )
        answer = result.sequences[0, ids.shape[1] :].tolist()
        self.mems, self.unread = result.mems, answer[-1:]
        return str(self.tokenizer.decode(answer, skip_special_tokens=True))


__all__ = ["Conversation"]
