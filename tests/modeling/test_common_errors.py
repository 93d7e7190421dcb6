"""What cannot be meant is refused, for every variant: a `ValueError` that names the argument, before any work is done."""

import math
from functools import partial

import pytest
import torch
from tiny import (
    AROUND_BASES,
    MEM_LEN,
    ROWS,
    SEGMENT_BY_SEGMENT,
    VOCAB_SIZE,
    allows,
    follows_same_length,
    keeps_blocks,
    lacks,
    memory_value,
    models,
    one_of_each_kind,
    tiny_config,
    tiny_model,
    tokens,
)
from transformers import DynamicCache

from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory

every_variant = pytest.mark.parametrize("model_type", models())
of_our_own = pytest.mark.parametrize("model_type", [each for each in models() if each not in AROUND_BASES])
carrying = pytest.mark.parametrize("model_type", one_of_each_kind(models(memory=("exact", "own"))))
windowed = pytest.mark.parametrize("model_type", one_of_each_kind(models(memory=("exact",))))
WINDOWED = models(memory=("exact",))
WITHOUT_MEMORY = [each for each in models(memory=("exact",)) if allows(each, mem_len=0, same_length=False)]


def assert_refused(names: list[str], call, *args, **kwargs) -> None:
    """With a `ValueError` that says all the patterns `names`."""
    with pytest.raises(ValueError) as error:
        call(*args, **kwargs)
    for name in names:
        assert error.match(name)


@pytest.mark.parametrize("model_type", one_of_each_kind(models()))
def test_inputs(model_type):
    model = tiny_model(model_type)
    for make_arguments, names in (
        (dict, ["input_ids", "inputs_embeds"]),
        (lambda: {"input_ids": tokens(2, 5), "inputs_embeds": torch.zeros(2, 5, 32)}, ["input_ids", "inputs_embeds"]),
        (lambda: {"input_ids": tokens(2, 5)[:, :0]}, ["input_ids", r"\(2, 0\)"]),
        (lambda: {"input_ids": tokens(2, 5)[:0]}, ["input_ids", r"\(0, 5\)"]),
        (lambda: {"input_ids": tokens(2, 5)[0]}, ["input_ids", r"\(5,\)"]),
        (lambda: {"inputs_embeds": torch.zeros(2, 0, 32)}, ["inputs_embeds", r"\(2, 0, 32\)"]),
        (lambda: {"inputs_embeds": torch.zeros(2, 5, 31)}, ["inputs_embeds", "31", "32"]),
        (lambda: {"input_ids": torch.full((2, 5), VOCAB_SIZE)}, ["input_ids", str(VOCAB_SIZE), "vocab_size"]),
        (lambda: {"input_ids": torch.full((2, 5), -1)}, ["input_ids", "-1"]),
        (lambda: {"input_ids": tokens(2, 5), "attention_mask": torch.ones(2, 4)}, ["attention_mask", r"\(2, 4\)"]),
        (lambda: {"input_ids": tokens(2, 5), "attention_mask": torch.ones(3, 5)}, ["attention_mask", r"\(3, 5\)"]),
        (lambda: {"input_ids": tokens(2, 5), "attention_mask": torch.ones(2, 1, 5, 5)}, ["attention_mask"]),
        (lambda: {"input_ids": tokens(2, 5), "reset": torch.ones(3, dtype=torch.bool)}, ["reset", r"\(3,\)"]),
        (lambda: {"input_ids": tokens(2, 5), "reset": torch.ones(2, 4, dtype=torch.bool)}, ["reset", r"\(2, 4\)"]),
        (lambda: {"input_ids": tokens(2, 5), "reset": torch.ones(2)}, ["reset", "float32", "bool"]),
        (lambda: {"input_ids": tokens(2, 5).tolist()}, ["input_ids", "a list", "tensor"]),
        (lambda: {"input_ids": tokens(2, 5).double()}, ["input_ids", "float64"]),
        (lambda: {"input_ids": tokens(2, 5) > 1}, ["input_ids", "bool"]),
        (lambda: {"input_ids": tokens(2, 5), "reset": [True, False]}, ["reset", "a list", "tensor"]),
        (lambda: {"input_ids": tokens(2, 5), "position_ids": [[0, 1, 2, 3, 4]] * 2}, ["position_ids", "a list"]),
    ):
        for use_cache in (None, True):
            assert_refused(names, model, **make_arguments(), use_cache=use_cache)


@pytest.mark.parametrize("model_type", [each for each in models() if ROWS[each].causal_lm_class is not None])
def test_ids_of_one_dimension(model_type):
    """What a user meets first who forgets the batch; a head looks at them before the model does."""
    model, ids = tiny_model(model_type, "causal_lm"), tokens(1, 5)[0]
    for given in ({}, {"labels": ids}):
        with pytest.raises(ValueError, match=r"\(5,\)"):
            model(ids, **given)


WITH_LABELS = one_of_each_kind([each for each in models() if ROWS[each].causal_lm_class is not None])


@pytest.mark.parametrize("model_type", WITH_LABELS)
@pytest.mark.parametrize("name", ["labels", "shift_labels"])
def test_targets_that_are_no_words(model_type: str, name: str):
    model, ids = tiny_model(model_type, "causal_lm"), tokens(2, 5)
    for targets, names in (
        (ids.index_fill(1, torch.tensor([2]), VOCAB_SIZE), [str(VOCAB_SIZE), "vocab_size", "-100"]),
        (ids.index_fill(1, torch.tensor([2]), -1), ["holds -1", "-100"]),
        (torch.full_like(ids, -100).index_fill(1, torch.tensor([2]), VOCAB_SIZE), [str(VOCAB_SIZE)]),
        (ids.double(), ["float64", "integers"]),
        (ids[:, 1:], [r"\(2, 4\)"]),
        (ids.tolist(), ["tensor"]),
    ):
        assert_refused([f"`{name}`", *names], model, ids, **{name: targets})


@every_variant
def test_attention_mask_longer_than_the_segment_needs_a_cache(model_type):
    with pytest.raises(ValueError, match="attention_mask"):
        tiny_model(model_type)(tokens(2, 5), attention_mask=torch.ones(2, 9))


def first_layer(memory: Memory, **parts) -> Memory:
    """The memory with other `parts` in its first layer."""
    return memory._replace(layers=(memory.layers[0]._replace(**parts), *memory.layers[1:]))


@pytest.mark.parametrize("model_type", [each for each in one_of_each_kind(WINDOWED) if each not in AROUND_BASES])
@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
def test_mems(model_type, use_cache):
    model, memory = tiny_model(model_type), partial(memory_value, model_type)
    columns = (torch.zeros(2, MEM_LEN, 32),)
    for mems, names in (
        (memory(batch=3), ["mems", "3 rows", "2"]),
        (memory(layers=3), ["mems", "3 layers"]),
        (columns, ["mems", "tuple", "Memory"]),
        (MemoryCache(memory()), ["mems", "MemoryCache", "Memory"]),
        (memory().map(lambda each: each.long()), ["mems", "int64"]),
        (first_layer(memory(), state=(*memory().layers[0].state, columns[0])), [r"mems.layers\[0\].state"]),
        (first_layer(memory(), older=(*memory().layers[0].older, columns[0])), [r"mems.layers\[0\].older"]),
        (memory()._replace(state=(*memory().state, columns[0])), [r"mems.state"]),
        (memory()._replace(lengths=torch.zeros(3, dtype=torch.long)), ["mems", "3 rows"]),
        (memory()._replace(lengths=torch.zeros(2)), ["mems.lengths", "float32"]),
        (memory()._replace(tokens_read=torch.zeros(3, dtype=torch.long)), ["mems.tokens_read", r"\(3,\)"]),
    ):
        assert_refused(names, model, tokens(2, 5), use_cache=use_cache, mems=mems)


@pytest.mark.parametrize(
    "model_type", [each for each in WINDOWED if each not in AROUND_BASES and memory_value(each).layers[-1].columns]
)
def test_columns_that_are_no_columns_of_the_model(model_type):
    """Of another width, another number of heads, another number of projections, another batch, or of another type."""
    model, memory = tiny_model(model_type), memory_value(model_type)
    inputs, projected = memory.layers[-1].columns, model(tokens(2, 5), use_cache=True).mems.layers[-1].columns

    def given(*columns: torch.Tensor) -> Memory:
        return memory._replace(layers=(*memory.layers[:-1], memory.layers[-1]._replace(columns=columns)))

    wrong = [
        (),
        (inputs[0][..., :-1],),
        (inputs[0][:1],),
        (inputs[0][0],),
        (inputs[0].long(),),
        (inputs[0], inputs[0][..., :-1]),
        (*projected, projected[0]),
        projected[:1],
        tuple(each[..., :-1] for each in projected),
        (projected[0][:1], *projected[1:]),
        (projected[0][..., 1:, :], *projected[1:]),
    ]
    for columns in wrong:
        assert_refused(["`mems.*columns"], model, tokens(2, 5), mems=given(*columns))


@pytest.mark.parametrize(
    "model_type",
    [
        each
        for each in models(memory=("exact",))
        if not keeps_blocks(each) and each not in (*AROUND_BASES, *SEGMENT_BY_SEGMENT)
    ],
)
def test_mems_longer_than_mem_len(model_type):
    """Handed to a model whose `mem_len` was made smaller, the oldest positions are forgotten: by both forms."""
    model = tiny_model(model_type)
    mems = memory_value(model_type, length=MEM_LEN + 4).map(
        lambda t: torch.randn_like(t) if t.is_floating_point() else t
    )
    expected = model(tokens(2, 5), mems=mems.newest(model.config.layer_mem_lens))
    for use_cache in (None, True):
        output = model(tokens(2, 5), mems=mems, use_cache=use_cache)
        torch.testing.assert_close(output.last_hidden_state, expected.last_hidden_state)


@pytest.mark.parametrize("model_type", WITHOUT_MEMORY)
def test_memory_of_a_model_without_memory(model_type):
    model = tiny_model(model_type, mem_len=0, same_length=False)
    with pytest.raises(ValueError, match="`mem_len`=0"):
        model(tokens(2, 5), mems=memory_value(model_type))


@carrying
def test_caches(model_type):
    model = tiny_model(model_type)
    cache = model(tokens(2, 5), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="`mems` and `past_key_values`"):
        model(tokens(2, 5), mems=model(tokens(2, 5)).mems, past_key_values=cache)
    with pytest.raises(ValueError, match="`past_key_values`.* rows"):
        model(tokens(3, 5), past_key_values=cache)
    with pytest.raises(ValueError, match="`past_key_values` is a DynamicCache"):
        model(tokens(2, 5), past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="`mems` is a MemoryCache"):
        model(tokens(2, 5), mems=cache)


@windowed
def test_cache_of_another_depth(model_type):
    cache = tiny_model(model_type)(tokens(2, 5), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="`past_key_values`.* layers"):
        tiny_model(model_type, num_hidden_layers=3)(tokens(2, 5), past_key_values=cache)


@carrying
def test_refused_calls_leave_the_cache_as_it_was(model_type):
    model = tiny_model(model_type)
    cache = model(tokens(2, 5), use_cache=True).past_key_values
    expected = model(tokens(2, 5, seed=1), past_key_values=MemoryCache(cache.memory)).last_hidden_state
    with pytest.raises(ValueError, match="input_ids"):
        model(torch.full((2, 5), VOCAB_SIZE), past_key_values=cache)
    with pytest.raises(ValueError, match="reset"):
        model(tokens(2, 5), reset=torch.ones(5, dtype=torch.bool), past_key_values=cache)
    torch.testing.assert_close(model(tokens(2, 5, seed=1), past_key_values=cache).last_hidden_state, expected)


# --- configuration


@of_our_own
def test_config_keyword_close_to_a_field_is_refused(model_type):
    for misspelled, meant in (
        ("mem_length", "did you mean `mem_len`?"),
        ("memlen", "mem_len"),
        ("hiden_size", "hidden_size"),
        ("num_layers", "n_layer"),
        ("num_hidden_layer", "num_hidden_layers"),
        ("norm_postion", "norm_position"),
        ("n_heads", "n_head"),
        ("drop_out", "dropout"),
        ("segment_lenght", "segment_length"),
    ):
        assert_refused([f"`{misspelled}`.*{meant}"], tiny_config, model_type, **{misspelled: 8})


@every_variant
def test_other_config_keywords_pass(model_type):
    config = tiny_config(model_type, my_note="x", num_labels=7, problem_type="regression", output_hidden_states=True)
    assert (config.my_note, config.num_labels, config.problem_type) == ("x", 7, "regression")


@of_our_own
def test_config_values(model_type):
    for fields, names in (
        ({"mem_len": -1}, ["mem_len", "-1"]),
        ({"hidden_size": 0}, ["hidden_size"]),
        ({"vocab_size": 0}, ["vocab_size"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers"]),
        ({"num_attention_heads": 0}, ["num_attention_heads"]),
        ({"head_dim": 0}, ["head_dim"]),
        ({"num_attention_heads": 64}, ["head_dim", "num_attention_heads", "64"]),
        ({"segment_length": 0}, ["segment_length"]),
        ({"norm_position": "middle"}, ["norm_position", "middle", "pre", "post"]),
        (
            {"initial_memory": "ones"},
            ["initial_memory", "ones", "has no meaning" if lacks(model_type, "initial_memory") else "empty"],
        ),
        ({"dropout": 1.5}, ["dropout", "1.5"]),
        ({"layer_norm_eps": -1.0}, ["layer_norm_eps", "-1.0"]),
        ({"initializer_range": -1.0}, ["initializer_range", "-1.0"]),
        ({"initializer_range": math.nan}, ["initializer_range", "nan"]),
        ({"hidden_act": "nope"}, ["hidden_act", "nope", "relu"]),
        ({"attention_dropout": -0.1}, ["attention_dropout", "-0.1"]),
        ({"sliding_window": 4}, ["sliding_window", "mem_len"]),
    ):
        assert_refused(names, tiny_config, model_type, **fields)


NEED_A_TOKEN = (
    "block_recurrent",
    "infini_transformer",
    "memorizing_transformer",
    "recurrent_memory_transformer",
)


@pytest.mark.parametrize("model_type", [each for each in models(memory=("exact", "own")) if each not in AROUND_BASES])
def test_no_memory_needs_same_length_off(model_type):
    """Or a memory: where it changes nothing, a window or a block needs a token."""
    remedy = "must be at least 1" if model_type in NEED_A_TOKEN else "`same_length`"
    with pytest.raises(ValueError, match=f"`mem_len`=0 .*{remedy}"):
        tiny_config(model_type, mem_len=0)


@pytest.mark.parametrize("model_type", models(memory=("none",)))
@pytest.mark.parametrize("fields", [{"mem_len": 8}, {"same_length": True}], ids=str)
def test_a_variant_without_memory_takes_none(model_type, fields):
    with pytest.raises(ValueError, match=f"`{next(iter(fields))}`"):
        tiny_config(model_type, **fields)


@pytest.mark.parametrize("model_type", list(filter(follows_same_length, models(memory=("exact", "own")))))
def test_window_follows_from_the_memory(model_type):
    assert tiny_config(model_type, mem_len=5).sliding_window == 5
    assert tiny_config(model_type, mem_len=5, same_length=False).sliding_window == 6
