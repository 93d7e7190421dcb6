"""The memory contract under texts, cuts, paddings and documents that nobody thought of."""

from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import (
    AROUND_BASES,
    EXACT,
    MEM_LEN,
    assert_same_memory,
    memory_of,
    models,
    num_remembered,
    read,
    read_row_alone,
    result_of,
    tiny_model,
    tokens,
)

from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import cat_memories

CARRYING = st.sampled_from(models(memory=("exact", "own")))
WINDOWED = st.sampled_from(models(memory=("exact",)))
CUT_DEPENDENT = st.sampled_from([each for each in models(memory=("exact",)) if each not in AROUND_BASES])
several = settings(max_examples=25)  # one of every variant in each test, six in all, and no text twice
FORMS = st.sampled_from([None, True])  # of `use_cache`: value or cache


class Text(NamedTuple):
    """Rows of tokens, how they are cut, which are real, and where documents begin, be it at padding."""

    input_ids: torch.Tensor
    lengths: list[int]
    mask: torch.Tensor
    reset: torch.Tensor


def side_of_padding(side: str, columns: list[bool]) -> list[bool]:
    return columns if side == "interior" else sorted(columns, reverse=side == "right")


@st.composite
def texts(draw, documents: bool = False) -> Text:
    """Up to three rows in up to five segments, each row of each segment padded in its own way."""
    batch = draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(1, MEM_LEN + 3), min_size=1, max_size=5))
    rows = [[] for _ in range(batch)]
    for length in lengths:
        for row in rows:
            side = draw(st.sampled_from(["none", "left", "right", "interior"]))
            columns = (
                draw(st.lists(st.booleans(), min_size=length, max_size=length)) if side != "none" else [True] * length
            )
            row += side_of_padding(side, columns)
    mask = torch.tensor(rows)
    total = sum(lengths)
    begins = torch.zeros_like(mask)
    if documents:
        begins = torch.tensor([draw(st.lists(st.integers(0, 4), min_size=total, max_size=total)) for _ in rows]) == 0
    return Text(tokens(batch, total, seed=draw(st.integers(0, 99))), lengths, mask, begins)


def assert_rows_alone(model, text: Text, results: torch.Tensor, lengths: list[int]) -> None:
    for row in range(len(text.input_ids)):
        if text.mask[row].any():
            alone = read_row_alone(model, text.input_ids[row], lengths, text.mask[row], text.reset[row])
            torch.testing.assert_close(results[row, text.mask[row]], alone, **EXACT)


@settings(max_examples=40)
@given(model_type=WINDOWED, text=texts() | texts(documents=True), mem_len=st.integers(1, MEM_LEN), use_cache=FORMS)
def test_any_cut_padding_and_document_is_one_forward_of_the_real_tokens(model_type, use_cache, text, mem_len):
    model = tiny_model(model_type, mem_len=mem_len)
    reset = text.reset if text.reset.any() else None
    results, _ = read(model, *text[:2], use_cache=use_cache, attention_mask=text.mask, reset=reset)
    assert_rows_alone(model, text, results, [text.input_ids.shape[1]])


@several
@given(model_type=CUT_DEPENDENT, text=texts(documents=True), mem_len=st.integers(1, MEM_LEN), use_cache=FORMS)
def test_without_same_length_rows_are_independent_of_each_other(model_type, use_cache, text, mem_len):
    """What a token sees then depends on the cut, so the row alone is cut in the same way."""
    model = tiny_model(model_type, mem_len=mem_len, same_length=False)
    results, _ = read(model, *text[:2], use_cache=use_cache, attention_mask=text.mask, reset=text.reset)
    assert_rows_alone(model, text, results, text.lengths)


@several
@given(
    model_type=CARRYING,
    text=texts(),
    data=st.data(),
    use_cache=FORMS,
    same_length=st.booleans(),
    initial_memory=st.sampled_from(["empty", "zeros"]),
)
def test_rows_that_start_afresh_with_a_segment(model_type, initial_memory, same_length, use_cache, text, data):
    """`reset` of shape (batch,), drawn anew for every segment."""
    # around a base both are what they are
    fields = {} if model_type in AROUND_BASES else {"same_length": same_length, "initial_memory": initial_memory}
    model = tiny_model(model_type, **fields)
    batch, start, memory, results = len(text.mask), 0, {}, []
    begins = torch.zeros_like(text.mask)
    for length in text.lengths:
        reset = torch.tensor(data.draw(st.lists(st.booleans(), min_size=batch, max_size=batch)))
        here = slice(start, start + length)
        for row in reset.nonzero().flatten().tolist():
            following = text.mask[row, start:].nonzero().flatten()
            if len(following):  # the row's next real token begins afresh, in this segment or in a later one
                begins[row, start + following[0]] = True
        output = model(
            text.input_ids[:, here], attention_mask=text.mask[:, here], reset=reset, use_cache=use_cache, **memory
        )
        results.append(result_of(output))
        memory, start = memory_of(output), start + length
    assert_rows_alone(model, text._replace(reset=begins), torch.cat(results, dim=1), text.lengths)


@several
@given(
    model_type=CARRYING,
    text=texts(),
    forms=st.lists(st.sampled_from(["inputs", "keys and values", "cache"]), min_size=5, max_size=5),
    same_length=st.booleans(),
)
def test_a_memory_may_change_its_form_between_any_two_segments(model_type, same_length, text, forms):
    """Inputs become keys and values where `use_cache` says so, a cache is made of them, and its value is read on."""
    model = tiny_model(model_type, **({} if model_type in AROUND_BASES else {"same_length": same_length}))
    start, memory, results = 0, None, []
    for length, form in zip(text.lengths, forms, strict=False):
        here = slice(start, start + length)
        given = {"past_key_values": MemoryCache(memory)} if form == "cache" else {"mems": memory}
        given |= {"use_cache": True} if form == "keys and values" else {}
        output = model(text.input_ids[:, here], attention_mask=text.mask[:, here], **given)
        results.append(result_of(output))
        memory, start = output.mems, start + length
    assert_rows_alone(model, text, torch.cat(results, dim=1), text.lengths)


@several
@given(model_type=WINDOWED, text=texts(documents=True), use_cache=FORMS)
def test_memory_is_the_newest_real_tokens_of_the_document(model_type, text, use_cache):
    """Whatever the cut, the padding and the documents: what a row remembers is what it remembers alone."""
    model = tiny_model(model_type)
    memory = None
    start = 0
    for length in text.lengths:
        here = slice(start, start + length)
        given = {"attention_mask": text.mask[:, here], "reset": text.reset[:, here], "use_cache": use_cache}
        memory, start = model(text.input_ids[:, here], mems=memory, **given).mems, start + length
    for row in range(len(text.input_ids)):
        columns = text.mask[row].nonzero().flatten()
        begins = text.reset[row].nonzero().flatten()
        columns = columns[columns >= begins[-1]] if len(begins) else columns
        assert memory.lengths[row] == num_remembered(model, len(columns))
        assert memory.tokens_read[row] == len(columns)
        if len(columns):
            alone = model(text.input_ids[row : row + 1, columns], use_cache=use_cache).mems
            assert_same_memory(memory.rows([row]), alone)


@several
@given(model_type=CARRYING, texts=st.tuples(texts(), texts()), use_cache=FORMS)
def test_rows_side_by_side_go_on_as_alone(model_type, texts, use_cache):
    """Whatever each of two batches has read: one batch of their rows continues both."""
    model = tiny_model(model_type)
    memories = []
    for text in texts:
        memory, start = None, 0
        for length in text.lengths:
            here = slice(start, start + length)
            given = {"attention_mask": text.mask[:, here], "use_cache": use_cache}
            memory, start = model(text.input_ids[:, here], mems=memory, **given).mems, start + length
        memories.append(memory)
    together = cat_memories(memories)
    ids = tokens(together.batch_size, 12, seed=7)
    ours, _ = read(model, ids, [5, 7], memory={"mems": together})
    expected = [
        read(model, each, [5, 7], memory={"mems": memory})[0]
        for each, memory in zip(ids.split([memory.batch_size for memory in memories]), memories, strict=True)
    ]
    torch.testing.assert_close(ours, torch.cat(expected), **EXACT)
