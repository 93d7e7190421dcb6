"""`generate()` that goes on from a memory and hands one on: rows, padding, ends of rows, beams, endless texts."""

import itertools

import pytest
import torch
from by_hand import PAD, greedy, language_model, new_tokens, text_by_hand, text_by_hand_with_mems
from tiny import (
    EXACT,
    FEW_MEMORIES,
    MEM_LEN,
    ROWS,
    SEGMENT_BY_SEGMENT,
    allows,
    in_turn,
    memory_of,
    models,
    num_remembered,
    one_of_each_kind,
    promises,
    tensors_of,
    tokens,
)

from transformers_xl.modeling.memory.memory_cache import MemoryCache

CARRYING = one_of_each_kind(models(causal=True, causal_lm=True, memory=("exact", "own")))
FEW = [each for each in models(causal=True, causal_lm=True, memory=("exact", "own")) if each in FEW_MEMORIES]
WINDOWED = one_of_each_kind(models(causal=True, causal_lm=True, memory=("exact",)))
FEW_WINDOWED = [each for each in FEW if promises(each, memory=("exact",))]
# what a cache appends to in place: windows of unequal length too
SLIDING = [*(each for each in FEW_WINDOWED if each not in SEGMENT_BY_SEGMENT), "causal_longformer"]
STATIC = one_of_each_kind(
    each for each in models(causal_lm=True, memory=("exact",)) if ROWS[each].causal_lm_class._can_compile_fullgraph
)
ENDLESS = [*FEW_WINDOWED, "causal_longformer", "infini_transformer"]
LENGTHS = [1, 3 * MEM_LEN]  # of prompts: what is generated passes the window
few = pytest.mark.parametrize("model_type", FEW)
windowed_with_prompts = pytest.mark.parametrize(("model_type", "length"), in_turn(WINDOWED, LENGTHS))
few_with_prompts = pytest.mark.parametrize(("model_type", "length"), in_turn(FEW_WINDOWED, LENGTHS))
few_cached_or_not = pytest.mark.parametrize(("model_type", "use_cache"), in_turn(FEW, [True, False]))


def left_padded(ids: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The last `counts[row]` tokens of each row behind padding, and the mask."""
    mask = (torch.arange(ids.shape[1]) >= ids.shape[1] - torch.tensor(counts)[:, None]).long()
    return ids.masked_fill(mask == 0, PAD), mask


def prompts_with_an_ending(model, new: int, row: int) -> tuple[torch.Tensor, int]:
    """Prompts, and a token that greedy text brings in `row` first after a few steps, and never in another row."""
    for seed in range(20):
        ids = tokens(3, 6, seed=seed)
        text = new_tokens(greedy(model, ids, new=new), ids)
        others = {token for other in range(len(ids)) if other != row for token in text[other].tolist()}
        for step in range(2, new - 4):
            if text[row, step] not in text[row, :step] and text[row, step].item() not in others:
                return ids, text[row, step].item()
    raise AssertionError("no such token: the test needs other seeds")


# --- padding


@few_cached_or_not
def test_left_padded_row_is_row_alone(model_type, use_cache):
    model = language_model(model_type)
    ids, mask = left_padded(tokens(3, 20), [20, 3, 11])
    result = greedy(model, ids, attention_mask=mask, use_cache=use_cache)
    for row in range(3):
        alone = ids[row : row + 1, mask[row].bool()]
        expected = greedy(model, alone, use_cache=use_cache)
        assert torch.equal(result[row, 20:], expected[0, alone.shape[1] :])


@pytest.mark.parametrize(
    ("model_type", "same_length", "use_cache"),
    in_turn(CARRYING, [(True, True), (False, True), (True, False), (False, False)]),
)
def test_left_padded_row_with_memory_is_row_alone(model_type, same_length, use_cache):
    """The memory, too, holds unequal numbers of tokens."""
    model = language_model(model_type, same_length=same_length)
    before, before_mask = left_padded(tokens(3, 10, seed=1), [2, 10, 5])
    memory = memory_of(model(before, attention_mask=before_mask))
    assert memory["mems"].tokens_read.tolist() == [2, 10, 5]
    ids, mask = left_padded(tokens(3, 20), [20, 3, 11])
    result = greedy(model, ids, attention_mask=mask, use_cache=use_cache, **memory)
    for row in range(3):
        row_memory = memory_of(model(before[row : row + 1, before_mask[row].bool()]))
        alone = ids[row : row + 1, mask[row].bool()]
        expected = greedy(model, alone, use_cache=use_cache, **row_memory)
        assert torch.equal(result[row, 20:], expected[0, alone.shape[1] :])


@few_cached_or_not
def test_reset_rows_forget_the_memory(model_type, use_cache):
    model, ids = language_model(model_type), tokens(2, 5, seed=2)
    mems = model(tokens(2, 10, seed=1)).mems
    result = greedy(model, ids, mems=mems, reset=torch.tensor([True, False]), use_cache=use_cache)
    assert torch.equal(result[0], greedy(model, ids)[0])
    assert torch.equal(result[1], greedy(model, ids, mems=mems)[1])
    assert not torch.equal(result[0], greedy(model, ids, mems=mems)[0])


# --- going on


@few_with_prompts
def test_mems_of_an_output_are_the_text_before(model_type, length):
    model, before, ids = language_model(model_type), tokens(2, length), tokens(2, 4, seed=1)
    whole = torch.cat([before, ids], dim=1)
    expected = text_by_hand(model, whole)[:, length:]
    output = model(before)
    for use_cache in (True, False):
        assert torch.equal(greedy(model, ids, use_cache=use_cache, **memory_of(output)), expected)
    assert torch.equal(greedy(model, ids, mems=model(before, use_cache=True).mems), expected)
    cache = model(before, use_cache=True).past_key_values
    assert torch.equal(greedy(model, whole, past_key_values=cache)[:, length:], expected)


@pytest.mark.parametrize(
    ("model_type", "length"), in_turn([each for each in FEW if allows(each, same_length=False)], LENGTHS)
)
def test_mems_without_same_length(model_type, length):
    model = language_model(model_type, same_length=False)
    memory = memory_of(model(tokens(2, 12, seed=1)))
    ids = tokens(2, length)
    assert torch.equal(greedy(model, ids, **memory), text_by_hand_with_mems(model, ids, **memory))


@few_with_prompts
def test_mems_of_a_result_go_on(model_type, length):
    """Two calls are one call: the next one begins with the last token, which the memory does not hold yet."""
    model, ids = language_model(model_type), tokens(2, length)
    expected = text_by_hand(model, ids, new=24)
    first = greedy(model, ids, new=10, return_dict_in_generate=True)
    second = greedy(model, first.sequences[:, -1:], new=14, mems=first.mems)
    assert torch.equal(torch.cat([first.sequences, second[:, 1:]], dim=1), expected)


@pytest.mark.parametrize("model_type", STATIC)
def test_static_memory_goes_on(model_type):
    model, ids = language_model(model_type), tokens(2, 12)
    expected = text_by_hand(model, ids, new=24)
    first = greedy(model, ids, new=10, cache_implementation="static", return_dict_in_generate=True)
    second = greedy(model, first.sequences[:, -1:], new=14, mems=first.mems, cache_implementation="static")
    assert torch.equal(torch.cat([first.sequences, second[:, 1:]], dim=1), expected)


@few
def test_without_a_cache_there_is_no_memory_to_hand_on(model_type):
    result = greedy(language_model(model_type), tokens(2, 5), use_cache=False, return_dict_in_generate=True)
    assert result.mems is None


@few
def test_memory_of_a_result_is_no_field_of_it(model_type):
    """Fields are copied into the answers of a pipeline, and into whatever else walks over a result."""
    result = greedy(language_model(model_type), tokens(2, 5), return_dict_in_generate=True)
    assert result.mems is not None
    assert "mems" not in result


@pytest.mark.parametrize(
    ("model_type", "decoding"),
    in_turn(FEW, [{}, {"num_beams": 3}, {"num_return_sequences": 2, "do_sample": True}]),
    ids=str,
)
def test_the_same_memory_can_be_continued_many_times(model_type, decoding):
    """Nothing in it is changed: neither in inputs, nor in keys and values."""
    model, ids = language_model(model_type), tokens(2, 5)
    mems = model(tokens(2, 10, seed=1)).mems
    kept = mems.map(torch.clone)
    result = greedy(model, ids, mems=mems, return_dict_in_generate=True)
    for start in (mems, result.mems):
        texts = []
        for _ in range(2):
            torch.manual_seed(0)
            texts.append(model.generate(ids, mems=start, max_new_tokens=9, **({"do_sample": False} | decoding)))
        assert torch.equal(texts[0], texts[1])
    torch.testing.assert_close(mems, kept, atol=0, rtol=0)


# --- beams


@few_with_prompts
def test_beams_go_on_from_memory(model_type, length):
    model, before, ids = language_model(model_type), tokens(2, length), tokens(2, 4, seed=1)
    settings = {
        "max_new_tokens": 10, "do_sample": False, "num_beams": 4, "num_return_sequences": 2, "output_scores": True,
        "return_dict_in_generate": True,
    }  # fmt: skip
    whole = model.generate(torch.cat([before, ids], dim=1), **settings)
    value, cached = memory_of(model(before)), {"mems": model(before, use_cache=True).mems}
    for use_cache, memory in ((True, value), (False, value), (True, cached)):
        result = model.generate(ids, use_cache=use_cache, **memory, **settings)
        assert torch.equal(result.sequences, whole.sequences[:, length:])
        torch.testing.assert_close(result.sequences_scores, whole.sequences_scores)


@few_with_prompts
def test_beams_are_continued_by_reading_them(model_type, length):
    """Those that ran last are not those that won: there is no memory of them, but of what came before the call."""
    model, before, ids = language_model(model_type), tokens(2, 6, seed=1), tokens(2, length)
    mems = model(before).mems
    settings = {"max_new_tokens": 10, "do_sample": False, "num_beams": 4, "num_return_sequences": 3}
    beams = model.generate(ids, mems=mems, return_dict_in_generate=True, **settings)
    assert beams.mems is None
    assert torch.equal(beams.sequences, model.generate(ids, mems=mems, **settings))
    again = greedy(model, beams.sequences, mems=mems.repeat(3))
    whole = torch.cat([before.repeat_interleave(3, dim=0), beams.sequences], dim=1)
    assert torch.equal(again[:, -10:], new_tokens(text_by_hand(model, whole), whole))


# --- rows that end


@pytest.mark.parametrize(
    ("model_type", "mem_len", "cache_implementation"),
    in_turn(CARRYING, [(MEM_LEN, "dynamic"), (32, "dynamic")])
    + in_turn(STATIC, [(MEM_LEN, "static"), (32, "static")]),
)  # a window that is left behind, and one that is not yet full
def test_a_row_that_ended_remembers_nothing_after_its_end(model_type, mem_len, cache_implementation):
    model = language_model(model_type, mem_len=mem_len)
    ids, end = prompts_with_an_ending(model, 16, row=1)
    settings = {"eos_token_id": end, "return_dict_in_generate": True, "cache_implementation": cache_implementation}
    result = greedy(model, ids, new=16, **settings)
    alone = greedy(model, ids[1:2], new=16, **settings)
    assert (result.sequences[1] == PAD).any()
    assert not (result.sequences[[0, 2]] == PAD).any()

    # after the end of row 1, all rows read the same text
    following = tokens(1, 7, seed=2)
    both = model(following.expand(3, -1), mems=result.mems).logits
    expected = model(following, mems=alone.mems).logits
    torch.testing.assert_close(both[1:2], expected, **EXACT)
    for row in range(3):
        text = result.sequences[row : row + 1, :-1] if row != 1 else alone.sequences[:, :-1]
        expected = model(torch.cat([text, following], dim=1)).logits[0, -7:]
        torch.testing.assert_close(both[row], expected, **EXACT)
    again = greedy(model, following.expand(3, -1), mems=result.mems, **settings).sequences[1, 7:]
    assert torch.equal(again[again != PAD], greedy(model, following, mems=alone.mems, **settings).sequences[0, 7:])


@few
def test_a_cache_of_the_caller_goes_on_after_its_rows_ended(model_type):
    """Also where only the tokens come back: the end of a row is that of a call, not of its cache."""
    model = language_model(model_type)
    ids, end = prompts_with_an_ending(model, 16, row=1)
    cache = model(ids[:, :-1], use_cache=True).past_key_values
    expected = greedy(model, ids, new=16, eos_token_id=end)
    assert torch.equal(greedy(model, ids, new=16, eos_token_id=end, past_key_values=cache), expected)
    following = tokens(3, 4, seed=3)
    logits = model(following, past_key_values=cache).logits
    text = expected[1][expected[1] != PAD][:-1]  # without its end
    alone = model(torch.cat([text, following[1]])[None]).logits[:, -4:]
    torch.testing.assert_close(logits[1:2], alone, **EXACT)
    assert cache.ended is None


# --- endless


@pytest.mark.parametrize(
    "model_type", [each for each in (*FEW_WINDOWED, "causal_longformer", "infini_transformer") if each in ROWS]
)
def test_endless_generation_holds_constant_memory(model_type):
    """6 x mem_len tokens: the cache stops growing at its window, and the text is drawn from one forward over all of it."""
    # small weights, and sampled: sharp predictions soon repeat themselves on one processor or another, and prove little
    model, ids, new = language_model(model_type, initializer_range=0.2), tokens(2, 5), 6 * MEM_LEN
    sizes = []

    def note_size(module, args, output):
        held = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors_of(output.mems)}
        sizes.append(sum(storage.nbytes() for storage in held.values()))

    hook = model.model.register_forward_hook(note_size)
    torch.manual_seed(0)
    text = model.generate(ids, max_new_tokens=new, do_sample=True, top_k=0)
    hook.remove()
    assert len(sizes) == new
    assert len(set(sizes[5 * MEM_LEN :])) == 1
    # there is room behind a window, so that it is not copied with every token
    mems = model.model(tokens(2, 3 * MEM_LEN - 1), use_cache=True).mems
    columns = [each for layer in mems.layers for each in layer.columns]
    counts = [each.shape[-2] + 2 * MEM_LEN + 48 for each in columns]
    others = sum(each.nbytes for each in tensors_of(mems)) - sum(each.nbytes for each in columns)
    room = sum(
        each.new_empty(*each.shape[:-2], count, each.shape[-1]).nbytes
        for each, count in zip(columns, counts, strict=True)
    )
    assert max(sizes) <= others + room
    torch.manual_seed(0)
    # each token is drawn behind all that stand before it
    chances = model(text[:, :-1]).logits[:, ids.shape[1] - 1 :].float().softmax(-1)
    drawn = torch.cat([torch.multinomial(each, 1) for each in chances.unbind(1)], dim=1)
    assert torch.equal(new_tokens(text, ids), drawn)
    assert len(set(text[0, -2 * MEM_LEN :].tolist())) > 3


@pytest.mark.parametrize(("model_type", "length"), in_turn(SLIDING, [1, 3]))
def test_a_window_is_not_copied_with_every_token(model_type, length):
    """Columns are appended in place until their room ends, and a branch still reads what it was made from."""
    model, ids = language_model(model_type), tokens(2, 60 * length)
    with torch.no_grad():
        expected = model(ids).logits
        cache, addresses, logits, branches = None, [], [], {}
        for step, part in enumerate(ids.split(length, dim=1)):
            output = model(part, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logits.append(output.logits)
            layer = next(layer for layer in cache.memory.layers if layer.columns)
            addresses.append(layer.columns[0].untyped_storage().data_ptr())
            if step in (20, 21, 40):
                branches[step] = MemoryCache(cache.memory)
        torch.testing.assert_close(torch.cat(logits, dim=1), expected, **EXACT)
        assert sum(here != there for here, there in itertools.pairwise(addresses)) <= 1 + 60 * length // 32
        for step, branch in branches.items():
            here = slice((step + 1) * length, (step + 1 + MEM_LEN) * length)
            parts = [model(part, past_key_values=branch).logits for part in ids[:, here].split(length, dim=1)]
            torch.testing.assert_close(torch.cat(parts, dim=1), expected[:, here], **EXACT)


@pytest.mark.parametrize("model_type", FEW_WINDOWED)
def test_endless_memory_is_handed_on_call_after_call(model_type):
    model, ids = language_model(model_type), tokens(2, 5)
    expected = text_by_hand(model, ids, new=28)
    text, mems, following = ids, None, ids
    for _ in range(4):
        result = greedy(model, following, new=7, mems=mems, return_dict_in_generate=True)
        text = torch.cat([text, new_tokens(result.sequences, following)], dim=1)
        mems, following = result.mems, result.sequences[:, -1:]
        pairs = zip(mems.layers, model.config.layer_mem_lens, strict=True)
        longest = [max(num_remembered(model, read, length) for read in range(50, 70)) for _, length in pairs]
        assert all(layer.num_columns <= length for layer, length in zip(mems.layers, longest, strict=True))
    assert torch.equal(text, expected)


@few
def test_nothing_of_inference_mode_is_left(model_type):
    """What a call returns, was given or has shown to a hook can be trained on."""
    model = language_model(model_type)
    start = model.generate(tokens(1, 5), max_new_tokens=3, return_dict_in_generate=True, pad_token_id=PAD)
    ids = greedy(model, tokens(1, 4), mems=start.mems)
    model(ids, labels=ids).loss.backward()
    model(ids, labels=ids, mems=start.mems).loss.backward()
    model(ids, labels=ids, past_key_values=start.past_key_values).loss.backward()
    seen = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output))
    greedy(model, tokens(1, 4))
    probe = torch.nn.Linear(seen[0].shape[-1], 1, dtype=seen[0].dtype)
    probe(seen[-1]).sum().backward()


@torch.no_grad()
def test_a_cache_of_inference_mode_goes_on_outside_of_it():
    """Its storage may not be written to there."""
    model, ids, cache = language_model("transformer_xl"), tokens(1, 8), None
    with torch.inference_mode():
        for token in ids[:, :6].split(1, dim=1):
            cache = model(token, past_key_values=cache, use_cache=True).past_key_values
    logits = [model(token, past_key_values=cache).logits for token in ids[:, 6:].split(1, dim=1)]
    torch.testing.assert_close(torch.cat(logits, dim=1), model(ids).logits[:, 6:], **EXACT)
