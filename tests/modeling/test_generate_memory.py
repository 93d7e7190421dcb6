"""`generate()` that goes on from a memory, and hands one on: rows, padding, ends of rows, and endless texts."""

import pytest
import torch
from test_generate import (
    PAD,
    carrying,
    greedy,
    greedy_by_hand,
    greedy_by_hand_with_mems,
    language_model,
    log_probability,
    new_tokens,
    windowed,
)
