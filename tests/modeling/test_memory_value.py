"""The one memory value, for every variant: its rows, its names, where it goes, and that nobody changes it."""

import copy

import pytest
import torch
from accelerate.utils import concatenate, recursively_apply, send_to_device, slice_tensors
from by_hand import greedy, language_model, text_by_hand
from safetensors.torch import load_file, save_file
from tiny import (
    AROUND_BASES,
    EXACT,
    MEM_LEN,
    ROWS,
    assert_same_memory,
    follows_same_length,
    has_states,
    in_turn,
    models,
    num_remembered,
    read,
    read_row_alone,
    result_of,
    said_by,
    tensors_of,
    tiny_config,
    tiny_model,
    tokens,
)

from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory, cat_memories, with_columns_of

CARRYING = models(memory=("exact", "own"))
WINDOWED = models(memory=("exact",))
GENERATING = models(causal=True, causal_lm=True, memory=("exact", "own"))
WITHOUT_STATES = [each for each in WINDOWED if not has_states(each)]
CROPPABLE = [each for each in WITHOUT_STATES if ROWS[each].croppable and each not in AROUND_BASES]
CROPPABLE = [each for each in CROPPABLE if min(tiny_config(each).layer_mem_lens) == MEM_LEN]  # seven tokens leave none
carrying = pytest.mark.parametrize("model_type", CARRYING)
in_both_forms = pytest.mark.parametrize(
    ("model_type", "use_cache"), [(each, form) for each in CARRYING for form in (None, True)]
)
LENGTHS = (1, 5, 21)  # of texts: shorter than the window, and longer


def memories_of(model, use_cache: bool | None, lengths: tuple[int, ...] = LENGTHS) -> list[Memory]:
    """One row each, after texts of these lengths."""
    return [model(tokens(1, length, seed=length), use_cache=use_cache).mems for length in lengths]


def continued(model, memory: Memory, lengths: tuple[int, ...] = (4, 7)) -> torch.Tensor:
    """What follows, the same text for every row."""
    ids = tokens(1, sum(lengths), seed=3).expand(memory.batch_size, -1)
    return read(model, ids, lengths, memory={"mems": memory})[0]


def assert_equal(ours: Memory, expected: Memory) -> None:
    """Bit for bit, and of the same names and types."""
    assert isinstance(ours, Memory)
    assert all(isinstance(layer, LayerMemory) for layer in ours.layers)
    assert list(ours.named_tensors()) == list(expected.named_tensors())
    for pair in zip(tensors_of(ours), tensors_of(expected), strict=True):
        torch.testing.assert_close(*pair, atol=0, rtol=0)


# --- rows


@in_both_forms
def test_rows_of_different_fill_go_on_side_by_side(model_type, use_cache):
    """In any order; a row that was read in two calls is one of them."""
    model = tiny_model(model_type)
    memories = [*memories_of(model, use_cache), read_in_two(model, use_cache)]
    expected = torch.cat([continued(model, memory) for memory in memories])
    together = cat_memories(memories)
    assert together.batch_size == 4
    assert together.tokens_read.tolist() == [*LENGTHS, 9]
    torch.testing.assert_close(continued(model, together), expected, **EXACT)
    order = [2, 0, 3, 1]
    turned = cat_memories([memories[row] for row in order])
    torch.testing.assert_close(continued(model, turned), expected[order], **EXACT)
    for row, memory in enumerate(memories):
        assert_same_memory(together.rows([row]), memory)


def read_in_two(model, use_cache: bool | None) -> Memory:
    first = model(tokens(1, 6), use_cache=use_cache).mems
    return model(tokens(1, 3, seed=2), mems=first, use_cache=use_cache).mems


@in_both_forms
def test_torch_saves_and_loads_it(model_type, use_cache, tmp_path):
    memory = memories_of(tiny_model(model_type), use_cache)[0]
    torch.save({"mems": memory}, tmp_path / "state.pt")
    assert_same_memory(torch.load(tmp_path / "state.pt", weights_only=True)["mems"], memory)


@in_both_forms
def test_rows_are_taken_and_repeated(model_type, use_cache):
    model = tiny_model(model_type)
    together = cat_memories(memories_of(model, use_cache))
    results = continued(model, together)
    for rows, numbers in (
        ([2, 0], [2, 0]),
        ((2, 0), [2, 0]),  # not one number for each axis
        (slice(1, None), [1, 2]),
        (torch.tensor([1, 1, 0]), [1, 1, 0]),
        (torch.tensor([True, False, True]), [0, 2]),
    ):
        taken = together.rows(rows)
        assert taken.batch_size == len(numbers)
        torch.testing.assert_close(continued(model, taken), results[numbers], **EXACT)
    assert [together.rows(none).batch_size for none in ((), [])] == [0, 0]
    for rows in (1, torch.tensor(1), [[0, 1]]):
        with pytest.raises(ValueError, match="`rows`="):
            together.rows(rows)
    repeated = together.repeat(2)
    assert_equal(repeated, together.rows([0, 0, 1, 1, 2, 2]))
    torch.testing.assert_close(continued(model, repeated), results.repeat_interleave(2, 0), **EXACT)


@carrying
def test_memories_that_do_not_belong_together(model_type):
    model = tiny_model(model_type)
    inputs, projected = (model(tokens(1, 5), use_cache=use_cache).mems for use_cache in (None, True))
    if (
        inputs.named_tensors().keys() != projected.named_tensors().keys()
    ):  # a base remembers keys and values in any case
        with pytest.raises(ValueError, match=r"`memories`\[1\].*`use_cache=True`"):
            cat_memories([inputs, projected])
    deeper = inputs._replace(layers=(*inputs.layers, LayerMemory((torch.zeros(1, 2, 32),))))
    with pytest.raises(ValueError, match=r"`memories`\[2\].*one model"):
        cat_memories([inputs, inputs, deeper])
    widest = max(projected.named_tensors().values(), key=torch.Tensor.dim)
    wider = projected.map(lambda each: torch.cat([each, each], -1) if each.dim() == widest.dim() else each)
    with pytest.raises(ValueError, match=r"`memories`\[1\] has a `.*` of shape .* one model"):
        cat_memories([projected, wider])


def test_nothing_put_side_by_side_is_refused():
    with pytest.raises(ValueError, match="`memories` is empty"):
        cat_memories([])


# --- names and files


@in_both_forms
def test_a_saved_memory_goes_on_bit_for_bit(model_type, use_cache, tmp_path):
    model = tiny_model(model_type)
    memory = cat_memories(memories_of(model, use_cache))
    tensors = {
        name: each.clone(memory_format=torch.contiguous_format) for name, each in memory.named_tensors().items()
    }
    assert {"lengths", "tokens_read"} <= tensors.keys()
    assert all(name.split(".")[0] in Memory._fields for name in tensors)
    save_file(tensors, tmp_path / "memory.safetensors")
    loaded = Memory.from_named_tensors(load_file(tmp_path / "memory.safetensors"))
    assert_equal(loaded, memory)
    # in tensors of their own: where numbers lie may change the order of a sum
    assert torch.equal(
        *(continued(model, each.map(torch.clone)) for each in (loaded, Memory.from_named_tensors(tensors)))
    )


@carrying
def test_names_that_are_missing_or_unknown(model_type):
    tensors = tiny_model(model_type)(tokens(2, 5)).mems.named_tensors()
    for name in ("lengths", "tokens_read"):
        with pytest.raises(ValueError, match=f"`{name}` is not among the tensors"):
            Memory.from_named_tensors({key: value for key, value in tensors.items() if key != name})
    for name in (
        "stray",
        "layers.0.column.0",
        "layers",
        "layers.x.columns.0",
        "layers.0.columns.17",
        "layers.0.columns.0.1",
    ):
        with pytest.raises(ValueError, match=f"`{name}`"):
            Memory.from_named_tensors(tensors | {name: torch.zeros(2)})
    in_the_middle = [
        name for name in tensors if name.startswith("layers.0.") and name.endswith(".0") and name[:-1] + "1" in tensors
    ]
    for name in in_the_middle:  # the second of two is there without the first
        with pytest.raises(ValueError, match=f"`{name[:-1]}1`"):
            Memory.from_named_tensors({key: value for key, value in tensors.items() if key != name})


# --- where it goes


@in_both_forms
def test_others_that_walk_over_it_keep_what_it_is(model_type, use_cache):
    """Accelerate and the Trainer know tuples with names: a dataclass would be passed over in silence."""
    model = tiny_model(model_type)
    memory = cat_memories(memories_of(model, use_cache))
    assert_equal(send_to_device(memory, "cpu"), memory)
    assert_equal(slice_tensors(memory, slice(1, 3)), memory.rows([1, 2]))
    assert_equal(concatenate([memory, memory]), cat_memories([memory, memory]))
    assert_equal(recursively_apply(lambda each: each, memory), memory)
    assert_equal(copy.deepcopy(memory), memory)
    assert_equal(memory.map(lambda each: each), memory)
    halves = send_to_device({"mems": memory}, "cpu")["mems"]
    torch.testing.assert_close(continued(model, halves), continued(model, memory), atol=0, rtol=0)


@carrying
def test_it_moves_to_another_device_and_type(model_type):
    memory = tiny_model(model_type)(tokens(2, 5)).mems
    away = memory.to("meta")
    assert all(each.device.type == "meta" for each in tensors_of(away))
    assert [each.shape for each in tensors_of(away)] == [each.shape for each in tensors_of(memory)]
    coarse = memory.to(dtype=torch.bfloat16)
    for ours, before in zip(tensors_of(coarse), tensors_of(memory), strict=True):
        assert ours.dtype == (torch.bfloat16 if before.is_floating_point() else before.dtype)


# --- nobody changes it


class Unchanged:
    """That the tensors of a memory keep their numbers, and that nobody has written to them."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self.copies = [each.clone() for each in tensors_of(memory)]
        self.versions = [None if each.is_inference() else each._version for each in tensors_of(memory)]

    def check(self) -> None:
        assert all(map(torch.equal, tensors_of(self.memory), self.copies))


@pytest.mark.parametrize("model_type", CARRYING)
@pytest.mark.parametrize("use_cache", [None, True], ids=["inputs", "keys and values"])
@pytest.mark.parametrize("grad", [True, False], ids=["with gradients", "without"])
def test_no_call_changes_what_it_is_given(model_type, use_cache, grad):
    """As a value and in a cache, with padding, with rows that begin afresh, long and short."""
    model = tiny_model(model_type)
    with torch.set_grad_enabled(grad):
        memory = cat_memories(memories_of(model, use_cache))
        kept, shown = Unchanged(memory), []
        mask = torch.ones(3, 9, dtype=torch.long)
        mask[0, 2:6] = 0
        reset = torch.tensor([False, True, False])
        for given in ({}, {"attention_mask": mask}, {"reset": reset}):
            for call in (
                {"mems": memory},
                {"mems": memory, "use_cache": True},
                {"past_key_values": MemoryCache(memory)},
            ):
                output = model(tokens(3, 9), **given, **call)
                shown.append(Unchanged(output.mems))
                for length in (1, 2, 30):
                    output = model(tokens(3, length), **(call if "mems" not in call else {"mems": output.mems}))
                    shown.append(Unchanged(output.mems))
        for each in (kept, *shown):
            each.check()
        assert [each._version for each in tensors_of(memory)] == kept.versions


@in_both_forms
@torch.no_grad()
def test_two_caches_of_one_memory_go_different_ways(model_type, use_cache):
    model = tiny_model(model_type)
    memory = cat_memories(memories_of(model, use_cache))
    texts = [tokens(3, 14, seed=seed) for seed in (5, 6)]
    caches = [MemoryCache(memory) for _ in texts]
    results = [[] for _ in texts]
    for start in range(14):  # in turn
        for text, cache, here in zip(texts, caches, results, strict=True):
            here.append(result_of(model(text[:, start : start + 1], past_key_values=cache)))
            if start == 6:  # a branch of what it has come to, which goes on by itself
                branch = MemoryCache(cache.memory)
                result_of(model(tokens(3, 5, seed=9), past_key_values=branch))
    for text, here in zip(texts, results, strict=True):
        expected, _ = read(model, text, [14], memory={"mems": memory})
        if ROWS[model_type].memory == "own":
            expected, _ = read(model, text, [1] * 14, memory={"mems": memory})
        torch.testing.assert_close(torch.cat(here, dim=1), expected, **EXACT)


@pytest.mark.parametrize("model_type", CARRYING)
@torch.no_grad()
def test_a_value_that_a_cache_has_shown_stays(model_type):
    """What is appended later stands behind it; and an older value may be put back."""
    model = tiny_model(model_type)
    cache, shown, results = MemoryCache(), [], []
    ids = tokens(2, 50)
    for start in range(50):
        results.append(result_of(model(ids[:, start : start + 1], past_key_values=cache)))
        shown.append(Unchanged(cache.memory))
    for each in shown:
        each.check()
    for start in (10, 30, 48):
        cache.memory = shown[start].memory
        again = result_of(model(ids[:, start + 1 : start + 2], past_key_values=cache))
        torch.testing.assert_close(again, results[start + 1], **EXACT)
    for each in shown:
        each.check()


# --- generation


@pytest.mark.parametrize("model_type", GENERATING)
def test_generation_goes_on_from_inputs_as_from_keys_and_values(model_type):
    model, ids = language_model(model_type), tokens(3, 4, seed=1)
    memories = [cat_memories(memories_of(model, use_cache)) for use_cache in (None, True)]
    texts = [greedy(model, ids, mems=memory) for memory in memories]
    assert torch.equal(*texts)
    results = [greedy(model, ids, mems=memory, return_dict_in_generate=True) for memory in memories]
    assert_same_memory(results[0].mems, results[1].mems)
    for memory in memories:
        assert torch.equal(greedy(model, ids, past_key_values=None, mems=memory, use_cache=False), texts[0])
    if ROWS[model_type].memory == "exact":
        for row, length in enumerate(LENGTHS):
            whole = torch.cat([tokens(1, length, seed=length), ids[row : row + 1]], dim=1)
            assert torch.equal(text_by_hand(model, whole)[0, length:], texts[0][row])


# --- training


@pytest.mark.parametrize("model_type", CARRYING)
@pytest.mark.parametrize("form", ["checkpointing", "keys and values"])
def test_gradients_of_every_form(model_type, form):
    """Through a call and not into what it remembers: with keys and values, the weights that made them have no part."""
    ids = tokens(2, 18)
    mask = torch.ones(2, 18, dtype=torch.bool)
    mask[1, 8:11] = False

    def gradients(
        use_cache: bool | None, checkpointing: bool, remembered: bool | None = None
    ) -> dict[str, torch.Tensor]:
        model = tiny_model(model_type).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        memory, loss = None, 0.0
        for start in range(0, 18, 6):
            here = slice(start, start + 6)
            output = model(ids[:, here], attention_mask=mask[:, here], mems=memory, use_cache=use_cache)
            loss = loss + sum(result[mask[:, here]].square().sum() for result in said_by(output) if result.dim() == 3)
            memory = output.mems
            assert not any(each.requires_grad for each in tensors_of(memory))
        loss.backward()
        return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}

    use_cache = True if form == "keys and values" else None
    expected = gradients(use_cache, checkpointing=False)
    torch.testing.assert_close(gradients(use_cache, checkpointing=True), expected, **EXACT)
    assert expected


@pytest.mark.parametrize("model_type", CARRYING)
def test_a_first_call_has_the_gradients_of_one_without_a_cache(model_type):
    results = []
    for use_cache in (None, True):
        model = tiny_model(model_type).train()
        output = model(tokens(2, 6), use_cache=use_cache)  # one segment, where a call may be several
        sum(result.square().sum() for result in said_by(output)).backward()
        results.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    torch.testing.assert_close(*results, **EXACT)


# --- padding


@pytest.mark.parametrize(("model_type", "side"), in_turn(CARRYING, ["left", "right", "middle", "both"]))
@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
def test_padding_anywhere_in_every_call(model_type, side, use_cache):
    model = tiny_model(model_type)
    shapes = {
        "left": [0, 0, 1, 1, 1, 1],
        "right": [1, 1, 1, 1, 0, 0],
        "middle": [1, 1, 0, 0, 1, 1],
        "both": [0, 1, 1, 1, 1, 0],
    }
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[1] = torch.tensor([int(each) for each in shapes[side]]).repeat(4)
    ids = tokens(2, 24)
    results, memory = read(model, ids, [6] * 4, use_cache=use_cache, attention_mask=mask)
    mems = memory["mems"] if use_cache is None else memory["past_key_values"].memory
    assert mems.tokens_read.tolist() == [24, 16]
    for row in range(2):
        alone = read_row_alone(model, ids[row], [6] * 4, attention_mask=mask[row].bool())
        torch.testing.assert_close(results[row, mask[row].bool()], alone, **EXACT)


# --- more and fewer columns than `mem_len`


@pytest.mark.parametrize("model_type", list(filter(follows_same_length, WITHOUT_STATES)))
@pytest.mark.parametrize("use_cache", [None, True], ids=["inputs", "keys and values"])
def test_a_memory_of_a_longer_and_of_a_shorter_one(model_type, use_cache):
    """More columns than `mem_len` are cut, fewer grow, in both forms and in a cache; unused columns say nothing."""
    longer = tiny_model(model_type, mem_len=MEM_LEN + 6)
    model = tiny_model(model_type)
    longer.load_state_dict(model.state_dict())
    ids, before = tokens(2, 10, seed=1), tokens(2, 20)
    long, short = longer(before, use_cache=use_cache).mems, model(before[:, :3], use_cache=use_cache).mems
    cut = long.newest(model.config.layer_mem_lens)
    assert cut.num_columns <= long.num_columns
    expected = read(model, ids, [4, 6], memory={"mems": cut})[0]
    for given in ({"mems": long}, {"past_key_values": MemoryCache(long)}):
        torch.testing.assert_close(read(model, ids, [4, 6], memory=given)[0], expected, **EXACT)
    wide = with_columns_of(short, long)
    assert wide.num_columns == max(short.num_columns, long.num_columns)
    assert wide.lengths.tolist() == short.lengths.tolist()
    junk = wide.map(lambda each: each)
    for layer in junk.layers:
        for each in layer.columns:
            each[..., : each.shape[-2] - 3, :] = 1e3
    expected = read(longer, ids, [4, 6], memory={"mems": short})[0]
    for memory in (wide, junk):
        for given in ({"mems": memory}, {"past_key_values": MemoryCache(memory)}):
            torch.testing.assert_close(read(longer, ids, [4, 6], memory=given)[0], expected, **EXACT)


@carrying
def test_lengths_say_what_is_real(model_type):
    model, ids = tiny_model(model_type), tokens(2, 30)
    memory = None
    for start, length in ((0, 1), (1, 4), (5, 2), (7, 20), (27, 3)):
        memory = model(ids[:, start : start + length], mems=memory).mems
        columns = num_remembered(model, start + length) if any(layer.columns for layer in memory.layers) else 0
        assert memory.lengths.tolist() == [columns] * 2
        assert memory.tokens_read.tolist() == [start + length] * 2


@pytest.mark.parametrize("model_type", CROPPABLE)
@pytest.mark.parametrize("use_cache", [None, True], ids=["inputs", "keys and values"])
def test_tokens_are_taken_back(model_type, use_cache):
    model, ids = tiny_model(model_type), tokens(2, 7)
    memory = model(ids, use_cache=use_cache).mems
    assert_same_memory(memory.without(3), model(ids[:, :4], use_cache=use_cache).mems)
    assert memory.without(9).lengths.tolist() == [0, 0]


def test_a_memory_is_a_value_of_its_own():
    """Its representation names its parts; a layer without a window has no columns."""
    memory = tiny_model("sha_rnn")(tokens(2, 5)).mems
    assert [layer.num_columns for layer in memory.layers] == [5, 0]
    assert memory.num_columns == 5
    assert memory.batch_size == 2
    assert not memory.detach().layers[0].columns[0].requires_grad
