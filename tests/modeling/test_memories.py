"""The kinds of memory, each on its own: buffers, columns, states, counters, and their order in `mems`."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import EXACT, tiny_model, tokens

from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.recurrent_memory import RecurrentMemory
from transformers_xl.modeling.ops.key_mask import KeyMask
from transformers_xl.modeling.ops.rolling_buffer import RollingBuffer, StaticRollingBuffer
from transformers_xl.modeling.ops.window import SegmentPacking

SIZE = 5


def column_values(buffer: RollingBuffer) -> list[float]:
    kept = buffer.tensors[0][0, 0, :, 0].tolist() if buffer.tensors else []
    return kept[-SIZE:]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_buffer_is_a_list_of_columns(data):
    """Any sequence of appends, drops and copies, written in place or not: every branch holds what a list would."""
    branches, number = [(RollingBuffer(SIZE), [])], 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        index = data.draw(st.integers(0, len(branches) - 1))
        buffer, columns = branches[index]
        action = data.draw(st.sampled_from(["append", "append", "append", "keep", "copy", "rows"]))
        if action == "append":
            length = data.draw(st.integers(1, SIZE + 2))
            new = torch.arange(length, dtype=torch.float64) + number
            number += length
            with torch.set_grad_enabled(data.draw(st.booleans())):
                keys = new[None, None, :, None].expand(2, 3, length, 4)
                seen = buffer.extend((keys, -keys[..., :2]))
            expected = columns[-SIZE:] + new.tolist()
            assert seen[0][1, 2, :, 3].tolist() == expected
            assert seen[1][0, 0, :, 1].tolist() == [-value for value in expected]
            branches[index] = (buffer, expected[-SIZE:])
        elif action == "keep":
            count = data.draw(st.integers(0, SIZE))
            buffer.keep(count)
            branches[index] = (buffer, columns[len(columns) - min(count, len(columns)) :])
        elif action == "copy" and len(branches) < 4:
            branches.append((buffer.copy(), columns))
        elif action == "rows":
            buffer.map_rows(lambda rows: rows.flip(0))
        for each, held in branches:
            assert column_values(each) == held


def test_a_static_buffer_keeps_its_address():
    buffer = StaticRollingBuffer(SIZE)
    buffer.extend((torch.ones(1, 1, 2, 1),))
    address = buffer.tensors[0].data_ptr()
    buffer.extend((torch.full((1, 1, 2, 1), 2.0),))
    assert buffer.tensors[0].data_ptr() == address
    assert column_values(buffer) == [0, 1, 1, 2, 2]
    other = buffer.copy()
    other.extend((torch.full((1, 1, 1, 1), 3.0),))
    assert column_values(buffer) == [0, 1, 1, 2, 2]
    assert column_values(other) == [1, 1, 2, 2, 3]


def test_a_recorded_buffer_takes_columns_back():
    buffer = RollingBuffer(SIZE)
    buffer.records_past = True
    for value in range(8):
        buffer.extend((torch.full((1, 1, 1, 1), float(value)),))
    buffer.crop(2)
    assert column_values(buffer) == [1, 2, 3, 4, 5]


# --- columns


def test_columns_project_once():
    """A cache asks for the projection of what it was given at the first segment, and never again."""
    memory = ColumnMemory(4, 3)
    memory.use_buffer()
    memory.load((torch.randn(2, 4, 3, dtype=torch.float64),), torch.empty(0, dtype=torch.float64))
    calls = []

    def project(states):
        calls.append(states.shape[1])
        return (states[:, None] * 2,)

    seen = []
    for length in (2, 1, 1):
        new, past = torch.randn(2, length, 3, dtype=torch.float64), memory.unprojected()
        memory.write(new)
        with torch.no_grad():
            seen.append(memory.extend(project(new), None if past is None else project(past))[0].shape[2])
        memory.close(SegmentPacking(2, length, new.device))
    assert calls == [2, 4, 1, 1]
    assert seen == [6, 5, 5]


def test_distances_that_are_columns_and_distances_that_are_told():
    """Relative attention takes distances from the key mask; told what the columns say, it gives the same, gradients too."""
    model = tiny_model("transformer_xl", same_length=False)
    results = []
    for told in (False, True):
        model.zero_grad()
        told_distances(model, told)
        output = model(tokens(2, 9), mems=model(tokens(2, 6, seed=1)).mems).last_hidden_state
        output.square().sum().backward()
        results.append([output, *(parameter.grad.clone() for parameter in model.parameters())])
    torch.testing.assert_close(*results, **EXACT)


def told_distances(model, told: bool) -> None:
    plain = type(model).key_mask

    def key_mask(window, packing):
        mask = plain(model, window, packing)
        keys = torch.arange(window.num_seen + packing.length)
        return KeyMask(mask.visible, distance=(keys[-packing.length :, None] - keys)[None], order=mask.order)

    model.key_mask = key_mask if told else plain.__get__(model)


# --- states


class OwnMemory(NamedTuple):
    state: RecurrentMemory
    count: CounterMemory


def read_segment(memory: ModelMemory, length: int, mask=None) -> None:
    memory.open(torch.zeros(3, length, 2, dtype=torch.float64), mask, None)


@pytest.mark.parametrize("is_cache", [False, True])
def test_a_learned_start_has_a_gradient_wherever_a_row_is_fresh(is_cache):
    start = torch.tensor([5.0, 7.0], dtype=torch.float64, requires_grad=True)
    memory = ModelMemory([], OwnMemory(RecurrentMemory((2,), has_learned_start=True), CounterMemory(initial=4)))
    if is_cache:
        memory.use_buffers()
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    read_segment(memory, 2, mask)
    state = memory.own.state.read(start)
    assert state.tolist() == [[5, 7]] * 3
    assert memory.own.count.read().tolist() == [4, 4, 4]
    memory.own.state.write(state + 1)
    memory.own.count.write(memory.own.count.read() + 1)
    if is_cache:
        memory.close()
    else:
        mems, mems_mask = memory.value()
        assert [tuple(each.shape) for each in mems] == [(3, 2), (3,), (3,)]
        assert mems[1].tolist() == [True, True, False]
        assert not mems[0].requires_grad
        memory = ModelMemory([], OwnMemory(RecurrentMemory((2,), has_learned_start=True), CounterMemory(initial=4)))
        memory.load(mems, mems_mask, torch.empty(0, dtype=torch.float64))
    memory.reset_rows(torch.tensor([False, True, False]))
    read_segment(memory, 1)
    state = memory.own.state.read(start)
    assert state.tolist() == [[6, 8], [5, 7], [5, 7]]  # goes on, was reset, had read nothing
    assert memory.own.count.read().tolist() == [5, 4, 5]
    state.sum().backward()
    assert start.grad.tolist() == [2, 2]


def test_a_layer_may_run_twice():
    """Activation checkpointing repeats a layer: what it reads the second time is what it read the first time."""
    memory = ModelMemory([], OwnMemory(RecurrentMemory((2,)), CounterMemory()))
    read_segment(memory, 1)
    before = memory.own.state.read()
    memory.own.state.write(before + 1)
    value, _ = memory.value()
    assert torch.equal(memory.own.state.read(), before)
    assert torch.equal(value[0], before + 1)
