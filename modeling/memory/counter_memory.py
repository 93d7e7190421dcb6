"""A number of each row: tokens read, vectors held."""

import torch

from transformers_xl.modeling.memory.recurrent_memory import RecurrentMemory


class CounterMemory(RecurrentMemory):
    """An integer of each row, `(batch,)`, `initial` in new ones."""

    dtype = torch.long

    def __init__(self, initial: int = 0):
        super().__init__((), initial)


__all__ = ["CounterMemory"]
