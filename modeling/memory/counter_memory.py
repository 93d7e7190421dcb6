"""A number of each row: tokens read, vectors held."""

import torch

from transformers_xl.modeling.memory.recurrent_memory import RecurrentMemory


class CounterMemory(RecurrentMemory):
    """An integer of each row, `(batch,)`, 0 in fresh ones."""

    dtype = torch.long

    def __init__(self):
        super().__init__(())


__all__ = ["CounterMemory"]
