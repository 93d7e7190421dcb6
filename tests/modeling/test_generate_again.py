"""`generate()` that goes on with a cache of an earlier call, or with a text of several documents."""

import pytest
import torch
from tiny import EXACT, tiny_model, tokens
from transformers import LogitsProcessor

from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.segment import document_starts

GREEDY = {"do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}


@pytest.mark.parametrize("model_type", ["transformer_xl", "absolute_transformer_xl", "complex_order_transformer"])
def test_assisted_decoding_reads_of_a_whole_text_what_is_new(model_type):
    """As decoding without an assistant does: the prompt is all of the text, and the cache has read its beginning."""
    model = tiny_model(model_type, "causal_lm")
    results = []
    for options in ({}, {"prompt_lookup_num_tokens": 2}):
        first = model.generate(tokens(1, 7), max_new_tokens=5, **GREEDY)
        whole = torch.cat([first.sequences, tokens(1, 3, seed=1)], dim=1)
        results.append(
            model.generate(whole, past_key_values=first.past_key_values, max_new_tokens=6, **GREEDY, **options)
        )
    assert torch.equal(results[0].sequences, results[1].sequences)
    assert results[1].mems.tokens_read.tolist() == results[0].mems.tokens_read.tolist() == [20]
    logits = [model(tokens(1, 4, seed=2), mems=result.mems).logits for result in results]
    torch.testing.assert_close(*logits, **EXACT)


def test_assisted_decoding_reads_all_of_new_tokens():
    model = tiny_model("transformer_xl", "causal_lm")
    memory = model(tokens(1, 7), use_cache=True).mems
    plain, assisted = (
        model.generate(
            tokens(1, 4, seed=1), past_key_values=MemoryCache(memory), max_new_tokens=6, **GREEDY, **options
        )
        for options in ({}, {"prompt_lookup_num_tokens": 2})
    )
    assert torch.equal(plain.sequences, assisted.sequences)
    assert plain.mems.tokens_read.tolist() == assisted.mems.tokens_read.tolist() == [16]


@pytest.mark.parametrize("length", [3, 11, 10])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"prompt_lookup_num_tokens": 2}])
def test_new_tokens_alone_after_a_cache(length, options):
    """transformers takes a prompt for the whole text: of one as short as the cache it would read nothing, or all again."""
    model, rows = tiny_model("transformer_xl", "causal_lm"), options.get("num_beams", 1)
    cache = MemoryCache()
    model(tokens(rows, 11), past_key_values=cache)
    with pytest.raises(ValueError, match=r"`past_key_values` holds 11 tokens, .* `mems=`"):
        model.generate(tokens(1, length), past_key_values=cache, max_new_tokens=2, **GREEDY, **options)
    assert cache.num_tokens == 11


@pytest.mark.parametrize("second_begins_at", [0, 1000])
@pytest.mark.parametrize("padding", [0, 3])
def test_documents_of_a_long_prompt_are_those_of_one_call(second_begins_at, padding):
    """A prompt is read in pieces of 512 tokens; the second document begins where the second piece does."""
    model, ids = tiny_model("transformer_xl", "causal_lm", torch.float32), tokens(1, 600 + padding)
    positions = torch.cat([torch.zeros(padding), torch.arange(88), second_begins_at + torch.arange(512)]).long()[None]
    mask = (torch.arange(600 + padding) >= padding).long()[None]
    result = model.generate(ids, attention_mask=mask, position_ids=positions, max_new_tokens=3, **GREEDY)
    expected = model.generate(ids[:, -512:], max_new_tokens=3, **GREEDY)
    assert torch.equal(result.sequences[:, -3:], expected.sequences[:, -3:])
    assert result.mems.tokens_read.tolist() == expected.mems.tokens_read.tolist() == [514]


def test_where_documents_start():
    positions = torch.tensor([[0, 0, 1, 5, 6, 9, 0, 1]])
    mask = torch.tensor([[0, 1, 1, 1, 0, 0, 1, 1]]).bool()
    assert document_starts(positions, mask).int().tolist() == [[0, 0, 0, 1, 0, 0, 1, 0]]
    assert document_starts(positions, None).int().tolist() == [[0, 1, 0, 1, 0, 1, 1, 0]]


class Interrupt(LogitsProcessor):
    """Ctrl-C in a step of `generate()`."""

    def __init__(self, step: int):
        self.left = step

    def __call__(self, input_ids, scores):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return scores


@pytest.mark.parametrize("static", [False, True])
def test_what_had_ended_when_it_was_interrupted_reads_on(static):
    model = tiny_model("transformer_xl", "causal_lm")
    for seed in range(50):  # until the first row ends, and the second goes on
        prompts = tokens(2, 5, seed=seed)
        texts = model.generate(prompts, max_new_tokens=12, **GREEDY).sequences[:, 5:].tolist()
        ends = [each for each in texts[0][:8] if each not in texts[1]]
        if ends:
            break
    end = ends[0]
    cache = MemoryCache(static=static)
    options = {"eos_token_id": end, "logits_processor": [Interrupt(12)], "max_new_tokens": 12}
    with pytest.raises(KeyboardInterrupt):
        model.generate(prompts, past_key_values=cache, **options, **GREEDY)
    assert cache.aside == {}
    assert cache.ended is None
    before = cache.memory.tokens_read.tolist()
    model(tokens(2, 6, seed=1), past_key_values=cache, reset=torch.tensor([True, True]))
    assert cache.memory.tokens_read.tolist() == [6, 6]
    assert before[0] < before[1]


def test_a_static_cache_that_is_given_takes_all_columns():
    """A compiled step knows memories of one shape only."""
    model, prompt = tiny_model("streaming_transformer", "causal_lm"), tokens(1, 1, seed=1)
    memory = model(tokens(1, 1)).mems
    cache = MemoryCache(memory, static=True)
    given = model.generate(prompt, past_key_values=cache, max_new_tokens=2, disable_compile=True, **GREEDY)
    expected = model.generate(prompt, mems=memory, max_new_tokens=2, **GREEDY)
    assert torch.equal(given.sequences, expected.sequences)
    assert cache.memory.num_columns == model.model.new_memory(1, torch.zeros(0), static=True).num_columns
