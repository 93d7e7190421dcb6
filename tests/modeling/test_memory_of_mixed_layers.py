"""Windows around a Gemma 3, some of whose layers have a window of their own, which is narrower: what they keep and see."""

import pytest
import torch
from tiny import read, tokens
from tiny_bases import FIELDS, OWN_WINDOW, band_mask, read_with_band, tiny_base, tiny_base_config
from torch.nn.functional import pad
from transformers import DynamicCache

from transformers_xl.configuration.configuration_segment_memory import own_windows
from transformers_xl.modeling.modeling_segment_memory import SegmentMemoryForCausalLM, add_memory

WINDOW = 9
CUTS = ([33], [1, 7, 9, 10, 6], [7, 1, 1, 8, 16])
LAYERS = {"num_hidden_layers": 4}  # sliding, full, sliding, full


def gemma(num_sinks: int = 0, mem_len: int = WINDOW, **fields) -> SegmentMemoryForCausalLM:
    return add_memory(tiny_base("gemma3_text", **LAYERS, **fields), mem_len=mem_len, num_sinks=num_sinks)


@pytest.mark.parametrize("family", [name for name in FIELDS if name not in ("mamba", "falcon_h1", "qwen3_next")])
def test_windows_of_layers_are_those_of_transformers(family):
    config = tiny_base_config(family)
    layers = DynamicCache(config=config).layers
    assert own_windows(config) == [getattr(layer, "sliding_window", None) for layer in layers]


@torch.no_grad()
def test_a_layer_keeps_what_it_can_see():
    """With a cache too; the lengths are those of the longest."""
    model, ids = gemma(num_sinks=2), tokens(2, 30)
    assert model.config.layer_windows == [OWN_WINDOW, WINDOW] * 2
    lengths = [OWN_WINDOW - 1, WINDOW - 1] * 2
    assert model.config.layer_mem_lens == lengths
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :9] = 0
    output = model(ids[:, :12], attention_mask=mask)
    assert [layer.num_columns for layer in output.mems.layers] == lengths
    assert output.mems.lengths.tolist() == [3, WINDOW - 1]
    cache = model(ids, use_cache=True).past_key_values
    assert [layer.num_columns for layer in cache.memory.layers] == lengths
    assert gemma(mem_len=3).config.layer_windows == [3] * 4


def read_with_sinks(base, input_ids: torch.Tensor, num_sinks: int) -> torch.Tensor:
    """Logits of one call of the base whose full layers see the first tokens too, where they were read."""
    length = input_ids.shape[1]
    columns = torch.arange(length)
    first = (columns < num_sinks) & (columns <= columns[:, None])
    masks = {"full_attention": band_mask(length, WINDOW) | first, "sliding_attention": band_mask(length, OWN_WINDOW)}
    return base(input_ids, attention_mask=masks, position_ids=columns[None], use_cache=False).logits


@pytest.mark.parametrize("use_cache", [None, True])
@torch.no_grad()
def test_full_layers_see_sinks_and_sliding_ones_do_not(use_cache):
    """As long as the sinks have not moved, that is a call of the base with a mask."""
    model, ids = gemma(num_sinks=3), tokens(2, 33)
    expected = read_with_sinks(model.backbone, ids, 3)
    for lengths in CUTS:
        ours, _ = read(model, ids, lengths, use_cache=use_cache)
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=0)
    assert not torch.allclose(expected, read_with_band(model.backbone, ids, WINDOW), atol=1e-4)


@torch.no_grad()
def test_padded_rows_with_sinks_are_rows_alone():
    """Behind moved sinks too: a row of padding on any side, and one that begins again."""
    model, ids = gemma(num_sinks=2), tokens(3, 64)
    mask, reset = torch.ones(3, 16, dtype=torch.long), torch.tensor([False, False, True])
    mask[0, :13] = 0
    mask[1, 5:] = 0
    first = model(ids[:, :16], attention_mask=mask)
    ours, _ = read(model, ids[:, 16:], [16, 32], memory={"mems": first.mems})
    again = model(ids[:, 16:], mems=first.mems, reset=reset).logits
    for row in (0, 1):
        text = torch.cat([ids[row, :16][mask[row].bool()], ids[row, 16:]])
        alone = model(text[None]).logits[0, -48:]
        torch.testing.assert_close(ours[row], alone, atol=1e-6, rtol=0)
        torch.testing.assert_close(again[row], alone, atol=1e-6, rtol=0)
    torch.testing.assert_close(again[2], model(ids[2:, 16:]).logits[0], atol=1e-6, rtol=0)


@torch.no_grad()
def test_longer_memories_of_before_are_cut():
    """All layers kept `mem_len` positions, once. With the mask of padded rows too."""
    model, ids = gemma(num_sinks=2), tokens(2, 40)
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[0, 2:] = 0
    first = model(ids[:, :20], attention_mask=mask)
    old = first.mems._replace(
        layers=tuple(
            layer._replace(
                columns=tuple(pad(each, (0, 0, 8 - layer.num_columns, 0), value=9.0) for each in layer.columns)
            )
            for layer in first.mems.layers
        )
    )
    for length in (1, 3, 20):
        new = model(ids[:, 20 : 20 + length], mems=first.mems)
        cut = model(ids[:, 20 : 20 + length], mems=old)
        assert torch.equal(cut.logits, new.logits)
        names = new.mems.named_tensors()
        assert all(torch.equal(each, names[name]) for name, each in cut.mems.named_tensors().items())
        cache = model(ids[:, 20 : 20 + length], mems=old, use_cache=True)
        torch.testing.assert_close(cache.logits, new.logits)
        assert cache.past_key_values.memory.layers[0].num_columns == OWN_WINDOW - 1


@torch.no_grad()
def test_sinks_are_kept_in_layers_that_a_shorter_memory_lets_see_them():
    model, ids = gemma(num_sinks=2, mem_len=64, sliding_window=50), tokens(1, 80)
    mems = model(ids[:, :60]).mems
    seeing = gemma(num_sinks=2, mem_len=9, sliding_window=50)
    expected = seeing(ids[:, :4]).mems
    torch.testing.assert_close(mems.layers[0].state, expected.layers[0].state, atol=1e-12, rtol=0)
    model.resize_memory(9)
    output = model(ids[:, 60:], mems=mems)
    assert [layer.num_columns for layer in output.mems.layers] == [8] * 4


@pytest.mark.parametrize("num_sinks", [0, 2])
@torch.no_grad()
def test_generation_is_reading_everything_again(num_sinks):
    """Greedy, from padded prompts and from memory; with beams; with an assistant, whose tokens are taken back."""
    model, ids = gemma(num_sinks=num_sinks), tokens(2, 14)
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for row, prompt in ((0, ids[:1, 6:]), (1, ids[1:])):
        text = prompt
        for _ in range(12):
            text = torch.cat([text, model(text).logits[:, -1:].argmax(dim=-1)], dim=1)
        padded = model.generate(ids, attention_mask=mask, **settings)
        assert torch.equal(padded[row, 14:], text[0, prompt.shape[1] :])
        on = model.generate(prompt[:, -3:], mems=model(prompt[:, :-3]).mems, **settings)
        assert torch.equal(on[0, 3:], text[0, prompt.shape[1] :])
    assisted = model.generate(ids[1:], assistant_model=tiny_base("llama"), **settings)
    assert torch.equal(assisted, text)
    beams = model.generate(ids, num_beams=3, return_dict_in_generate=True, output_scores=True, **settings)
    said = model(beams.sequences).logits.log_softmax(dim=-1)[:, 13:-1]
    sums = said.gather(-1, beams.sequences[:, 14:, None])[..., 0].sum(dim=1)
    torch.testing.assert_close(beams.sequences_scores, sums / 12, atol=1e-5, rtol=0, check_dtype=False)
