"""What cannot be meant is refused, for every variant: a `ValueError` that names the argument, before any work is done."""

import math
from functools import partial

import pytest
import torch
from tiny import (
    AROUND_BASES,
    MEM_LEN,
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

from transformers_xl.configuration.configuration_memory import MemoryConfig

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
    ):
        for use_cache in (None, True):
            assert_refused(names, model, **make_arguments(), use_cache=use_cache)


@every_variant
def test_attention_mask_longer_than_the_segment_needs_a_cache(model_type):
    with pytest.raises(ValueError, match="attention_mask"):
        tiny_model(model_type)(tokens(2, 5), attention_mask=torch.ones(2, 9))


@pytest.mark.parametrize("model_type", [each for each in one_of_each_kind(WINDOWED) if each not in AROUND_BASES])
def test_mems(model_type):
    model, memory = tiny_model(model_type), partial(memory_value, model_type)
    for make_arguments, names in (
        (lambda memory: {"mems": memory(batch=3)}, ["mems", "batch", "3"]),
        (lambda memory: {"mems": memory() + memory()[:1]}, ["mems", "inputs"]),
        (lambda memory: {"mems": memory()[:1]}, ["mems", "of length 1: .*inputs"]),
        (lambda memory: {"mems": memory(width=40)}, ["mems", "hidden_size", "40"]),
        (lambda memory: {"mems": tuple(m[0] for m in memory())}, ["mems", "batch"]),
        (lambda memory: {"mems": tuple(m.long() for m in memory())}, ["mems", "int64", "float"]),
        (
            lambda memory: {"mems": memory(), "mems_mask": torch.ones(2, 3, dtype=torch.bool)},
            ["mems_mask", r"\(2, 3\)"],
        ),
        (lambda memory: {"mems": memory(), "mems_mask": torch.ones(2, MEM_LEN)}, ["mems_mask", "float32", "bool"]),
        (lambda memory: {"mems_mask": torch.ones(2, MEM_LEN, dtype=torch.bool)}, ["mems_mask", "mems`"]),
        (
            lambda memory: {"mems": memory(), "mems_mask": torch.arange(MEM_LEN).expand(2, -1) != 3},
            ["mems_mask", "to the right"],
        ),
    ):
        for use_cache in (None, True):
            assert_refused(names, model, tokens(2, 5), use_cache=use_cache, **make_arguments(memory))


@pytest.mark.parametrize(
    "model_type",
    [
        model_type
        for model_type in one_of_each_kind(WINDOWED)
        if type(tiny_config(model_type)).layer_windows is MemoryConfig.layer_windows
    ],
)
@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
def test_mems_of_unequal_length(model_type, use_cache):
    """Layers without windows of their own remember equally much."""
    model = tiny_model(model_type)
    longer, shorter = memory_value(model_type), memory_value(model_type, length=3)
    for index, tensor in enumerate(model.layout.tensors[: model.layout.num_windows]):
        if tensor.layer == 1:
            mems = (*longer[:index], shorter[index], *longer[index + 1 :])
            with pytest.raises(ValueError, match=rf"`mems`\[{index}\].* \(2, 3, 32\)"):
                model(tokens(2, 5), use_cache=use_cache, mems=mems)


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
    mems = tuple(torch.randn_like(state) for state in memory_value(model_type, length=MEM_LEN + 4))
    windows = model.layout.windows(mems)
    expected = model(tokens(2, 5), mems=(*(window[:, 4:] for window in windows), *mems[len(windows) :]))
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
    with pytest.raises(ValueError, match="`past_key_values`.* rows"):
        model(tokens(3, 5), mems=cache)
    with pytest.raises(ValueError, match="`mems_mask` has shape"):
        model(tokens(2, 5), mems=cache, mems_mask=torch.ones(2, 77, dtype=torch.bool))
    model.train().activation_checkpointing_enable()
    with pytest.raises(ValueError, match="activation checkpointing"):
        model(tokens(2, 5), use_cache=True)


@windowed
def test_cache_of_another_depth(model_type):
    cache = tiny_model(model_type)(tokens(2, 5), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="`past_key_values`.* layers"):
        tiny_model(model_type, num_hidden_layers=3)(tokens(2, 5), past_key_values=cache)


@carrying
def test_refused_calls_leave_the_cache_as_it_was(model_type):
    model = tiny_model(model_type)
    cache = model(tokens(2, 5), use_cache=True).past_key_values
    expected = model(tokens(2, 5, seed=1), past_key_values=cache.copy()).last_hidden_state
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
