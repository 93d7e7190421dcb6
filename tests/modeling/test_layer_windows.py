"""Layers that look back differently far: `config.layer_windows` and `layer_mem_lens`, which some variants override."""

import pytest
import torch
from huggingface_hub.dataclasses import strict
from tiny import EXACT, tokens

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.modeling.memory.memory_cache import MemoryCache


@strict
class OwnWindowsConfig(TransformerXLConfig):
    @property
    def layer_windows(self) -> list[int]:
        return [3, 6, 1]

    @property
    def layer_mem_lens(self) -> list[int]:
        return [2, 5, 0]


@pytest.fixture
def model() -> TransformerXLForCausalLM:
    torch.manual_seed(0)
    config = OwnWindowsConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, mem_len=6,
        dropout=0.0, initializer_range=0.3,
    )  # fmt: skip
    return TransformerXLForCausalLM(config).double().eval()


def whole(model: TransformerXLForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    return model(ids).logits


def test_each_layer_sees_its_window(model):
    model.set_attn_implementation("eager")
    output = model(tokens(1, 12), output_attentions=True)
    for weights, window in zip(output.attentions, (3, 6, 1), strict=True):
        columns = torch.arange(12)
        distance = columns[:, None] - columns
        seen = (distance >= 0) & (distance < window)
        assert (weights[0, :, seen] > 0).all()
        assert (weights[0, :, ~seen] == 0).all()
    assert [layer.num_columns for layer in output.mems.layers] == [2, 5, 0]


@pytest.mark.parametrize("cuts", [(1,) * 12, (5, 7), (3, 1, 8), (12,)])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_segments_equal_the_whole_text(model, cuts, cached, static):
    ids = tokens(2, 12)
    empty = model.model.new_memory(2, model.model.embed_tokens.weight, static)
    cache = MemoryCache(empty, static) if cached else None
    logits, memory = [], {"past_key_values": cache} if cached else {}
    for segment in ids.split(cuts, dim=1):
        output = model(segment, **memory)
        memory = memory if cached else {"mems": output.mems}
        logits.append(output.logits)
    torch.testing.assert_close(torch.cat(logits, dim=1), whole(model, ids), **EXACT)


@pytest.mark.parametrize("cached", [False, True])
def test_padding_and_resets_do_not_matter(model, cached):
    ids = tokens(2, 12)
    first, second = ids[:, :4], ids[:, 4:]
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, [1, 2, 4, 7, 8]] = 0  # row 0 has four tokens, fewer than the longest window; interior and right padding
    padded = torch.zeros(2, 9, dtype=torch.long)
    padded[0, mask[0].bool()] = first[0]
    padded[1] = tokens(2, 9, seed=1)[1]
    output = model(padded, attention_mask=mask, use_cache=cached)
    memory = {"past_key_values": output.past_key_values} if cached else {"mems": output.mems}
    output = model(second, reset=torch.tensor([False, True]), **memory)
    torch.testing.assert_close(output.logits[:1], whole(model, ids[:1])[:, 4:], **EXACT)
    torch.testing.assert_close(output.logits[1:], whole(model, second[1:]), **EXACT)


def test_value_becomes_the_cache(model):
    ids = tokens(2, 12)
    mems = model(ids[:, :7]).mems
    result = model.generate(ids[:, 7:], mems=mems, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(
        result,
        torch.cat([ids[:, 7:], model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)[:, 12:]], 1),
    )


def test_assisted_decoding_takes_tokens_back(model):
    ids = tokens(1, 9)
    torch.manual_seed(1)
    assistant = TransformerXLForCausalLM(model.config).double().eval()
    greedy = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, assistant_model=assistant, **greedy), model.generate(ids, **greedy))
