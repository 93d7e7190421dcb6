"""Another length of the memory after training: as if the model had been built with it, in every variant."""

import pytest
import torch
from tiny import (
    EXACT,
    FLOAT32,
    MEM_LEN,
    SEGMENT_BY_SEGMENT,
    in_turn,
    models,
    num_remembered,
    one_of_each_kind,
    read,
    tiny_model,
    tokens,
)

from transformers_xl.modeling.memory.memory_value import Memory, cat_memories, with_columns_of

# windows that are the variant's own do not follow the memory: they are given, as a config saves them
OWN = {
    "adaptive_span": {"max_span": 20, "initial_span": 0.5},
    "tensorized_transformer": {"attention_window": 5},
    "causal_longformer": {"attention_window": [3, 6], "attention_dilation": [1, 2]},
}
REMEMBERING = models(memory=("exact",))
LENGTHS = (5, 14)


def model_of(model_type: str, mem_len: int = MEM_LEN, head: str = "model", **fields):
    return tiny_model(model_type, head, mem_len=mem_len, **(OWN.get(model_type, {}) | fields))


@pytest.mark.parametrize(("model_type", "mem_len"), in_turn(REMEMBERING, LENGTHS))
def test_as_if_it_had_been_built_so(model_type: str, mem_len: int):
    model, fresh = model_of(model_type), model_of(model_type, mem_len)
    fresh.load_state_dict(model.state_dict())
    ids, cuts = tokens(2, 21), [8, 6, 1, 6]
    before = read(model, ids, cuts, use_cache=True)[0]  # whatever it keeps between calls, it has now
    model.resize_memory(mem_len)
    for use_cache in (None, True):
        expected = read(fresh, ids, cuts, use_cache)[0]
        torch.testing.assert_close(read(model, ids, cuts, use_cache)[0], expected, **EXACT)
    moved = not torch.allclose(before, expected)
    assert moved or model.config.layer_mem_lens == model_of(model_type).config.layer_mem_lens
    model.resize_memory(MEM_LEN)
    torch.testing.assert_close(read(model, ids, cuts, use_cache=True)[0], before, **EXACT)


def test_windows_of_their_own_are_no_longer_than_they_were():
    """What `docs` say: the other variants see as far as they remember."""
    same = {
        name for name in REMEMBERING for model in [model_of(name)] if seen_after(model, 40) == seen_after(model, 60)
    }
    assert same == {"adaptive_span", "tensorized_transformer", "causal_longformer"}


def seen_after(model, mem_len: int) -> list[int]:
    model.resize_memory(mem_len)
    return model.config.layer_windows


def test_windows_that_were_not_given_grow_with_the_memory():
    model = tiny_model("causal_longformer")
    assert seen_after(model, 32) == tiny_model("causal_longformer", mem_len=32).config.layer_windows


@pytest.mark.parametrize(("model_type", "mem_len"), in_turn(REMEMBERING, LENGTHS))
def test_a_memory_from_before_is_handed_on(model_type: str, mem_len: int):
    model, fresh = model_of(model_type), model_of(model_type, mem_len)
    fresh.load_state_dict(model.state_dict())
    memory = read(model, tokens(2, 18), [6, 6, 6])[1]
    model.resize_memory(mem_len)
    ids = tokens(2, 18, seed=1)
    results, after = read(model, ids, [6, 6, 6], memory=memory)
    torch.testing.assert_close(results, read(fresh, ids, [6, 6, 6], memory=memory)[0], **EXACT)
    assert after["mems"].tokens_read.tolist() == [36, 36]
    for layer, before, longest in zip(
        after["mems"].layers, memory["mems"].layers, model.config.layer_mem_lens, strict=True
    ):
        count = 18 if model_type in SEGMENT_BY_SEGMENT else before.num_columns  # not all are tokens
        assert layer.num_columns == (num_remembered(model, count + 18, longest) if layer.columns else 0)


# layers of these remember unequally much, so that a longer memory makes some grow that were full
UNEQUAL = {
    "causal_longformer": ({"mem_len": 16, "num_hidden_layers": 2}, 64),
    "block_recurrent": ({"mem_len": 3, "block_length": 4}, 8),
    "adaptive_span": ({"max_span": 12, "span_ramp": 2}, 12),
}


def grown(model_type: str) -> tuple[torch.nn.Module, Memory]:
    """A model whose memory has just become longer, and what two rows remembered before."""
    fields, mem_len = UNEQUAL[model_type]
    model = tiny_model(model_type, **fields)
    if model_type == "adaptive_span":
        masks = model._span_masks()
        set_spans(model, masks, 0.0)
        memory = model(tokens(2, 20)).mems
        set_spans(model, masks, 0.6)
    else:
        memory = model(tokens(2, 60)).mems
        model.resize_memory(mem_len)
    counts, lengths = [each.num_columns for each in memory.layers if each.columns], model.config.layer_mem_lens
    assert min(counts) < min(max(counts), *lengths)
    return model, memory


@torch.no_grad()
def set_spans(model, masks, first: float) -> None:
    masks[0].span.fill_(first)
    masks[1].span.fill_(0.6)
    model.trim_spans()


@pytest.mark.parametrize("model_type", list(UNEQUAL))
def test_a_row_of_few_tokens_sees_no_columns_that_its_layers_lack(model_type: str):
    """The row with the fewest tokens remembers what it does alone, and so do rows that are joined."""
    model, memory = grown(model_type)
    few, more = tokens(2, 8, seed=1), tokens(2, 5, seed=2)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 2:] = 0
    alone = model(few[1:, :2], mems=memory.rows([1])).mems
    beside = model(few, mems=memory, attention_mask=mask).mems
    expected = model(more[1:], mems=alone).last_hidden_state
    torch.testing.assert_close(model(more, mems=beside).last_hidden_state[1:], expected, **EXACT)
    new = model(tokens(1, 60, seed=3)).mems
    expected = model(more[:1], mems=memory.rows([0])).last_hidden_state
    for rows in ([memory.rows([0]), new], [memory.rows([0]), new, alone]):
        joined = cat_memories(rows)
        read = model(more[:1].expand(len(rows), -1), mems=joined).last_hidden_state
        torch.testing.assert_close(read[:1], expected, **EXACT)
        assert joined.lengths.max() <= joined.num_columns


def test_a_static_cache_of_a_grown_memory_has_no_columns_that_were_never_read():
    """The shortest window says how many are real."""
    _, memory = grown("causal_longformer")
    shortest = min(each.num_columns for each in memory.layers)
    longer = memory._replace(layers=tuple(each._replace(columns=longest_of(memory)) for each in memory.layers))
    assert with_columns_of(memory, longer).lengths.tolist() == [shortest, shortest]
    assert with_columns_of(longer, longer).lengths.tolist() == longer.lengths.tolist()


def longest_of(memory: Memory) -> tuple[torch.Tensor, ...]:
    return max(memory.layers, key=lambda layer: layer.num_columns).columns


def test_a_row_that_begins_again_has_the_zeros_of_a_memory_that_grew():
    model = tiny_model("transformer_xl", mem_len=3, initial_memory="zeros")
    memory = model(tokens(2, 9)).mems
    model.resize_memory(8)
    more = tokens(2, 6, seed=1)
    read = model(more, mems=memory, reset=torch.tensor([False, True])).last_hidden_state
    torch.testing.assert_close(read[1:], model(more[1:]).last_hidden_state, **EXACT)


@pytest.mark.parametrize("same_length", [True, False])
def test_a_cache_follows_the_memory(same_length: bool):
    """A shorter window forgets what the cache holds beyond it; a longer one finds no more than that, and grows."""
    model = tiny_model("transformer_xl", same_length=same_length)
    ids, more = tokens(2, 18), tokens(2, 3, seed=1)
    for mem_len in LENGTHS:
        model.resize_memory(MEM_LEN)
        memory = read(model, ids, [6, 6, 6], use_cache=True)[1]
        model.resize_memory(mem_len)
        value = {"mems": memory["past_key_values"].memory}
        results, memory = read(model, more, [3], use_cache=True, memory=memory)
        assert memory["past_key_values"].memory.num_columns == min(MEM_LEN + 3, mem_len)
        torch.testing.assert_close(results, read(model, more, [3], memory=value)[0], **EXACT)


@pytest.mark.parametrize(
    ("model_type", "mem_len"), in_turn(one_of_each_kind(models(memory=("exact",), causal_lm=True)), LENGTHS)
)
def test_saved_loaded_and_generating(tmp_path, model_type: str, mem_len: int):
    model = model_of(model_type, head="causal_lm").float()
    model.resize_memory(mem_len)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert loaded.config.mem_len == mem_len
    ids = tokens(1, 20)
    torch.testing.assert_close(loaded(ids, use_cache=True).logits, model(ids, use_cache=True).logits, **FLOAT32)
    options = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(loaded.generate(ids, **options), model.generate(ids, **options))
    longer = type(model).from_pretrained(tmp_path, mem_len=30)
    assert longer.config.mem_len == longer.model.config.mem_len == 30


def test_one_relay_has_no_length():
    model, ids = tiny_model("star_transformer"), tokens(2, 12)
    before = read(model, ids, [6, 6])[0]
    model.resize_memory(3)
    assert torch.equal(read(model, ids, [6, 6])[0], before)


@pytest.mark.parametrize(
    ("model_type", "mem_len", "message"),
    [
        ("transformer_xl", -1, "`mem_len`=-1"),
        ("transformer_xl", 0, "`mem_len`=0 with `same_length`=True"),
        ("vanilla_transformer", 4, "`mem_len`=4 must be 0"),
        ("tensorized_transformer", 3, "`attention_window`=5"),
        ("causal_longformer", 1, "`attention_dilation`=2"),
    ],
)
def test_what_cannot_run_is_refused_and_changes_nothing(model_type: str, mem_len: int, message: str):
    model = tiny_model(model_type, **OWN.get(model_type, {}))
    before = model.config.to_dict()
    with pytest.raises(ValueError, match=message):
        model.resize_memory(mem_len)
    assert model.config.to_dict() == before


def test_distances_may_be_clamped_after_training():
    """What the authors do with a memory longer than that of training."""
    model, fresh = tiny_model("transformer_xl"), tiny_model("transformer_xl", clamp_len=4, mem_len=14)
    ids = tokens(2, 24)
    far = read(model, ids, [6] * 4)[0]
    model.resize_memory(14)
    model.config.clamp_len = 4
    clamped = read(model, ids, [6] * 4)[0]
    torch.testing.assert_close(clamped, read(fresh, ids, [6] * 4)[0], **EXACT)
    assert not torch.allclose(clamped, far)
