"""The position of the next token of each row."""

from typing import NamedTuple

from transformers_xl.modeling.memory.counter_memory import CounterMemory


class PositionMemory(CounterMemory):
    """The position `(batch,)` of the next token. Tokens that are taken back were real ones."""

    is_croppable = True

    def crop(self, removed: int) -> None:
        if self.state is not None:
            self.state = self.state - removed


class TextPositionMemory(NamedTuple):
    """How many tokens of its text each row has read: what a model with absolute positions remembers beside its windows."""

    tokens_read: PositionMemory


__all__ = ["PositionMemory", "TextPositionMemory"]
