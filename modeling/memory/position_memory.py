"""The position of the next token of each row."""

from transformers_xl.modeling.memory.counter_memory import CounterMemory


class PositionMemory(CounterMemory):
    """The position `(batch,)` of the next token. Tokens that are taken back were real ones."""

    is_croppable = True

    def crop(self, removed: int) -> None:
        if self.state is not None:
            self.state = self.state - removed


__all__ = ["PositionMemory"]
