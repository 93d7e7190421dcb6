"""What Infini-attention adds: what a block held is found in a matrix of constant size, however long ago it was written."""

import pytest
import torch
from naive_infini_transformer import Naive
from tiny import EXACT, memory_of, pairwise, read, read_row_alone, tensors_of, tiny_model, tokens

from transformers_xl import InfiniTransformerConfig

MODEL = "infini_transformer"
BLOCK = 3
CUTS = [2, 5, 2, 3]  # inside of a block, over several, up to an end, over whole ones
use_cache = pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])


def model_of(**fields):
    """Blocks of three, and gates that are neither open nor closed."""
    model = tiny_model(MODEL, **({"mem_len": BLOCK, "hidden_size": 16, "intermediate_size": 16} | fields))
    for layer in model.layers:
        torch.nn.init.normal_(layer.self_attn.memory_gate)
    return model


FORMS = pairwise(["linear", "delta"], [10_000.0, 3.0, None], [None, 3], ["pre", "post"])


@pytest.mark.parametrize(("memory_update", "rope_theta", "value_head_dim", "norm_position"), FORMS)
def test_values_and_gradients_are_those_of_the_equations(memory_update, rope_theta, value_head_dim, norm_position):
    """Of calls with memory: what a call finds is detached, what its own tokens write is not."""
    model = model_of(
        memory_update=memory_update,
        rope_theta=rope_theta,
        value_head_dim=value_head_dim,
        norm_position=norm_position,
        num_attention_heads=2,
    )
    parameters, ids = dict(model.named_parameters()), tokens(1, sum(CUTS))
    found = read(model, ids, CUTS)[0]
    naive = Naive(parameters, model.config)
    wanted = torch.cat([naive.read(part) for part in ids[0].split(CUTS)])[None]
    torch.testing.assert_close(found, wanted, **EXACT)
    weight = torch.randn_like(found)
    gradients = [torch.autograd.grad((each * weight).sum(), parameters.values()) for each in (found, wanted)]
    for name, *pair in zip(parameters, *gradients, strict=True):
        torch.testing.assert_close(*pair, **EXACT, msg=lambda text, name=name: f"{name}: {text}")
        assert pair[0].any()


@use_cache
def test_there_is_no_horizon_and_the_memory_does_not_grow(use_cache):
    """In one layer the first of many tokens moves the last, through the matrix alone: with closed gates it does not."""
    model, ids = model_of(num_hidden_layers=1), tokens(1, 200)
    changed = ids.clone()
    changed[0, 0] = (ids[0, 0] + 1) % 37

    def moved() -> float:
        results = [read(model, each, [150, 50], use_cache=use_cache)[0][0, -1] for each in (ids, changed)]
        return float((results[0] - results[1]).detach().abs().max())

    assert moved() > 1e-6
    torch.nn.init.constant_(model.layers[0].self_attn.memory_gate, -torch.inf)
    assert moved() == 0.0
    sizes = set()
    for length in (20, 200):
        memory = read(model, ids[:, :length], [length], use_cache=use_cache)[1]
        held = memory["past_key_values"].memory if use_cache else memory["mems"]
        sizes.add(sum(each.numel() for each in tensors_of(held)))
    assert len(sizes) == 1


def test_a_token_reads_what_blocks_before_its_own_wrote():
    """Not its own block, also where that ends with the token."""
    model = model_of(num_hidden_layers=1)
    torch.nn.init.constant_(model.layers[0].self_attn.memory_gate, torch.inf)  # all that is attended to is the matrix
    ids = tokens(1, 3 * BLOCK)
    here = model(ids).last_hidden_state[0]
    for position in range(len(here)):
        changed = ids.clone()
        changed[0, position] = (ids[0, position] + 1) % 37
        moved = (model(changed).last_hidden_state[0] - here).abs().amax(-1) > 1e-9
        next_block = (position // BLOCK + 1) * BLOCK
        assert moved.nonzero().flatten().tolist() == [position, *range(next_block, len(here))]


def test_delta_leaves_out_what_is_known_already():
    """A second time the same block: `"linear"` doubles the matrix, `"delta"` leaves it; the divisor is doubled by both."""
    ids = tokens(1, BLOCK)
    for memory_update, times in (("linear", 2), ("delta", 1)):
        model = model_of(num_hidden_layers=1, memory_update=memory_update, num_attention_heads=1)
        matrix, normalizer = model(ids[:, :1].expand(1, BLOCK)).mems.layers[0].state  # one key and one value
        again = model(ids[:, :1].expand(1, 2 * BLOCK)).mems.layers[0].state
        torch.testing.assert_close(again[0], times * matrix, **EXACT)
        torch.testing.assert_close(again[1], 2 * normalizer, **EXACT)


@use_cache
def test_both_attentions_read_several_blocks_alike(use_cache):
    """All pairs at once, or block by block: with padding, and with documents that begin inside of blocks."""
    model, ids, lengths = model_of(), tokens(3, 30), [11, 1, 18]
    mask, reset = torch.ones(3, 30, dtype=torch.bool), torch.zeros(3, 30, dtype=torch.bool)
    mask[1, 4:9] = mask[1, 22:] = mask[2, :13] = False
    reset[0, 5] = reset[0, 16] = reset[1, 12] = reset[2, 27] = True
    results = []
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        results.append(read(model, ids, lengths, use_cache=use_cache, attention_mask=mask, reset=reset)[0])
    torch.testing.assert_close(results[0][mask], results[1][mask], **EXACT)
    for row in range(3):
        alone = read_row_alone(model, ids[row], [30], mask[row], reset[row])
        torch.testing.assert_close(results[1][row, mask[row]], alone, **EXACT)


def test_the_weights_of_a_token_are_those_of_its_block():
    model, ids = model_of(attn_implementation="eager"), tokens(1, 2 * BLOCK + 1)
    weights = model(ids, output_attentions=True).attentions[0]
    assert weights.shape == (1, 4, 2 * BLOCK + 1, 2 * BLOCK + 1)
    blocks = torch.arange(2 * BLOCK + 1) // BLOCK
    seen = (blocks[:, None] == blocks) & torch.ones(len(blocks), len(blocks), dtype=torch.bool).tril()
    assert torch.equal(weights[0].gt(0).all(0), seen)


@use_cache
def test_shorter_blocks_write_what_was_open(use_cache):
    """What was open are blocks of the new length, from the first of its positions on."""
    model, ids = model_of(mem_len=8, num_hidden_layers=1), tokens(2, 22)  # one layer's inputs know no blocks
    memory = {"mems": model(ids[:, :7]).mems}
    model.resize_memory(3)
    results = read(model, ids[:, 7:], [1, 14], use_cache=use_cache, memory=memory)[0]
    torch.testing.assert_close(results, model(ids).last_hidden_state[:, 7:], **EXACT)


def test_sums_over_a_text_are_kept_in_float32():
    """In bfloat16 a sum of 256 equal terms no longer grows."""
    model, ids = model_of(mem_len=1, num_hidden_layers=1), tokens(1, 1).expand(1, 600)
    expected = model(ids).mems.layers[0].state[1]
    (memory,) = read(model.bfloat16(), ids, [300, 300])[1]["mems"].layers
    assert [each.dtype for each in (*memory.columns, *memory.state)] == [torch.bfloat16, torch.float32, torch.float32]
    torch.testing.assert_close(memory.state[1].double(), expected, atol=0.0, rtol=0.05)


def test_a_row_that_is_continued_is_told_from_a_fresh_one():
    """Also where a block has just ended, and nothing but the matrix is remembered."""
    model, ids = model_of(), tokens(2, 2 * BLOCK)
    mask = torch.ones_like(ids)
    mask[0, BLOCK:] = 0
    memory = memory_of(model(ids, attention_mask=mask))
    with pytest.raises(ValueError, match=r"`position_ids` begins at 0 in rows \[0, 1\]"):
        model(ids, position_ids=torch.arange(2 * BLOCK)[None].expand(2, -1), **memory)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mem_len": 0}, "`mem_len`=0 must be at least 1: it is the number"),
        ({"memory_update": "hebb"}, "`memory_update`='hebb' must be one of"),
        ({"value_head_dim": 0}, "`value_head_dim`=0 must be at least 1"),
        ({"rope_theta": 0}, "`rope_theta`=0 must be above 0"),
        ({"rope_theta": float("nan")}, "`rope_theta`=nan must be a number"),
        ({"rope_parameters": {"rope_theta": 5e5}}, "`rope_parameters`=.* set `rope_theta`"),
        ({"hidden_size": 36, "num_attention_heads": 4}, "`head_dim`=9 must be even.*`rope_theta=None`"),
        ({"initial_memory": "zeros"}, "`initial_memory`='zeros' has no meaning"),
    ],
)
def test_what_cannot_run_is_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        InfiniTransformerConfig(**fields)
