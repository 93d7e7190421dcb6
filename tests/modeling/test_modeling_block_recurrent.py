"""What the Block-Recurrent Transformer adds: a state that is written once per block, and read by the tokens of the next."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from naive_block_recurrent import Naive
from tiny import EXACT, memory_of, pairwise, read, read_row_alone, tiny_model, tokens

from transformers_xl import BlockRecurrentConfig
from transformers_xl.modeling.layers.local_attention import LocalAttention, unit_vectors

MODEL = "block_recurrent"
use_cache = pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
LENGTH, CUTS = 13, [4, 1, 6, 2]


def language_model(**fields):
    """Blocks of three tokens, which a state of two vectors reads with the window of four before them."""
    defaults = {"block_length": 3, "num_states": 2, "mem_len": 4, "num_attention_heads": 2, "hidden_size": 8}
    model = tiny_model(MODEL, "causal_lm", **(defaults | fields))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "scale" in name or "norm" in name:  # those that start alike
                weight.mul_(1 + torch.rand(weight.shape, dtype=weight.dtype)).mul_(-2.0 if "scale" in name else 1.0)
    return model


FORMS = pairwise(
    ["fixed", "lstm"], ["skip", "single", "dual"], [False, True], ["empty", "zeros"], [True, False], [[1], [0, 2]]
)


@pytest.mark.parametrize(("gate", "update", "feedback", "initial_memory", "attend_to_self", "recurrent_layers"), FORMS)
def test_values_and_gradients_are_those_of_the_equations(
    gate, update, feedback, initial_memory, attend_to_self, recurrent_layers
):
    model = language_model(
        num_hidden_layers=3,
        state_gate=gate,
        state_update=update,
        feedback=feedback,
        initial_memory=initial_memory,
        attend_to_self=attend_to_self,
        recurrent_layers=recurrent_layers,
        relative_attention_num_buckets=4,
        relative_attention_max_distance=4,
    ).train()
    ids, parameters = tokens(1, LENGTH), dict(model.named_parameters())
    logits = model(ids).logits
    expected = Naive(parameters | {"lm_head.weight": model.lm_head.weight}, model.config).read(ids[0])[None]
    torch.testing.assert_close(logits, expected, **EXACT)
    segments, _ = read(model.eval(), ids, CUTS, use_cache=True)
    torch.testing.assert_close(segments, expected, **EXACT)

    weight = torch.randn(logits.shape, dtype=logits.dtype, generator=torch.Generator().manual_seed(1))
    cached = model(ids, use_cache=True).logits
    found, kept, wanted = (
        torch.autograd.grad((each * weight).sum(), parameters.values()) for each in (logits, cached, expected)
    )
    for name, ours, of_cache, naive in zip(parameters, found, kept, wanted, strict=True):
        for gradient in (ours, of_cache):
            torch.testing.assert_close(gradient, naive, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


# --- what the state is for


def moved_by_the_first_token(model, length: int) -> list[bool]:
    """Which logits of a text change with its first token."""
    ids = tokens(1, length)
    other = ids.clone()
    other[0, 0] = 3 if ids[0, 0] != 3 else 4
    return [not torch.equal(*pair) for pair in zip(model(ids).logits[0], model(other).logits[0], strict=True)]


def test_a_token_far_behind_all_windows_reaches_through_the_state_alone():
    model, reach = language_model(num_hidden_layers=2), 2 * (4 - 1)
    assert moved_by_the_first_token(model, 20) == [True] * 20
    with torch.no_grad():
        model.model.layers[1].state.attn_gate.gate_bias.fill_(1e4)  # what was read is not written
    assert moved_by_the_first_token(model, 20) == [True] * (reach + 1) + [False] * (19 - reach)


def test_what_a_block_writes_the_next_one_reads():
    """Within its block a token is not moved by the state that the block writes, whatever the window."""
    model = language_model(num_hidden_layers=1, mem_len=1, block_length=4)
    assert moved_by_the_first_token(model, 9) == [True, False, False, False, True, True, True, True, True]


# --- blocks are those of the text


@use_cache
@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("cuts", [[LENGTH], CUTS], ids=str)
def test_rows_with_padding_and_documents_count_their_own_blocks(cuts, feedback, use_cache):
    model, ids = language_model(feedback=feedback), tokens(2, LENGTH)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, 11:] = mask[1, :2] = mask[1, 7] = 0
    reset = torch.zeros(2, LENGTH, dtype=torch.bool)
    reset[0, 3] = reset[0, 7] = reset[1, 2] = reset[1, 10] = True  # behind a block, and inside one
    together, _ = read(model, ids, cuts, use_cache=use_cache, attention_mask=mask, reset=reset)
    for row in range(2):
        alone = read_row_alone(model, ids[row], cuts, mask[row], reset[row])
        torch.testing.assert_close(together[row][mask[row].bool()], alone, **EXACT)


def test_the_start_learns_in_every_row_that_has_not_written():
    """Also where the row began in an earlier call, and whatever the other rows have done."""
    model, ids = language_model(), tokens(3, 6)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]])  # two rows have written,
    reset = torch.tensor([[False] * 4, [False] * 4, [False, False, False, True]])  # one of them in another document
    first = model(ids[:, :4], attention_mask=mask, reset=reset)
    logits = model(ids[:, 4:], **memory_of(first)).logits
    start = model.model.layers[1].state.start.weight
    for row, learns in ((0, True), (1, False), (2, True)):
        (gradient,) = torch.autograd.grad(logits[row].sum(), start, retain_graph=True)
        assert bool(gradient.any()) == learns


@pytest.mark.parametrize("length", [2, 6], ids=["none ends", "the last one is not read"])
def test_all_weights_have_a_gradient_whatever_ends_in_a_segment(length):
    """As processes want that train together, in every step."""
    model, ids = language_model(block_length=6, state_update="dual").train(), tokens(2, length)
    model(ids).logits.sum().backward()
    without = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert without == []


@pytest.mark.parametrize("mem_len", [2, 7])
def test_another_window_leaves_the_state_and_the_open_block(mem_len):
    model, ids = language_model(), tokens(1, 14)
    first = model(ids[:, :8])
    model.resize_memory(mem_len)
    memory = model(ids[:, 8:], **memory_of(first)).mems
    assert memory.tokens_read.tolist() == [14]  # so blocks end where they did
    assert memory.layers[1].num_columns <= mem_len + 2
    whole = language_model(mem_len=mem_len)
    # what is written after the first new block differs by the old states alone
    assert whole(ids).mems.layers[1].num_columns == mem_len + 2


def test_a_cache_projects_a_state_once():
    model, ids = language_model(), tokens(1, 8)
    cache = model(ids[:, :6], use_cache=True).past_key_values
    calls = []
    model.model.layers[1].state.input_layernorm.register_forward_hook(lambda *args: calls.append(1))
    with torch.no_grad():
        for position in (6, 7):
            model(ids[:, position : position + 1], past_key_values=cache)
    assert len(calls) == 1


# --- feedback


def test_feedback_shows_the_hidden_states_of_all_blocks():
    model, ids = language_model(feedback=True), tokens(2, 8)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, 5:] = 0
    shown = model(ids, attention_mask=mask, output_hidden_states=True)
    parts = [model(ids[:, :3], output_hidden_states=True)]
    parts.append(model(ids[:, 3:], output_hidden_states=True, attention_mask=mask[:, 3:], **memory_of(parts[0])))
    for whole, *pieces in zip(shown.hidden_states, *(part.hidden_states for part in parts), strict=True):
        torch.testing.assert_close(whole[mask.bool()], torch.cat(pieces, dim=1)[mask.bool()], **EXACT)
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match=r"output_attentions.*feedback"):
        model(ids, output_attentions=True)


def test_checkpoints_pass_gradients_from_block_to_block():
    """Those that see them; the others are refused where there are several blocks."""
    model, ids = language_model(feedback=True, dropout=0.0).train(), tokens(2, 8)
    expected = torch.autograd.grad(model(ids).logits.square().sum(), list(model.parameters()))
    model.activation_checkpointing_enable({"use_reentrant": False})
    found = torch.autograd.grad(model(ids).logits.square().sum(), list(model.parameters()))
    torch.testing.assert_close(found, expected, **EXACT)
    model.activation_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="use_reentrant"):
        model(ids)
    assert model(ids[:, :3]).logits.requires_grad


# --- configuration


def test_large_keys_keep_their_direction_in_half_precision():
    torch.testing.assert_close(unit_vectors(torch.full((2, 4), 300.0).half()), torch.full((2, 4), 0.5).half())


@pytest.mark.parametrize("attend_to_self", [True, False])
def test_a_long_call_reads_windows_alone(attend_to_self, monkeypatch):
    """Pieces of queries, with padding and documents: values and gradients are those of all pairs."""
    model = tiny_model("block_recurrent", attend_to_self=attend_to_self, block_length=40)
    ids, mask, reset, seen = tokens(2, 300), torch.ones(2, 300, dtype=torch.bool), torch.zeros(2, 300).bool(), []
    mask[0, :20], reset[1, 70] = False, True
    attend = LocalAttention.attend_with_bias

    def counting(self, query, key, *args, **kwargs):
        seen.append(key.shape[-2])
        return attend(self, query, key, *args, **kwargs)

    monkeypatch.setattr(LocalAttention, "attend_with_bias", counting)
    results = []
    for implementation in ("sdpa", "eager"):
        model.config._attn_implementation = implementation
        seen.clear()
        output, _ = read(model, ids, [30, 270], attention_mask=mask, reset=reset)
        gradients = torch.autograd.grad(output[mask].square().sum(), list(model.parameters()), allow_unused=True)
        results.append([output[mask], *(each for each in gradients if each is not None)])
        assert max(seen) == (64 + 8 - attend_to_self if implementation == "sdpa" else 300)
    torch.testing.assert_close(*results, **EXACT)


def test_the_layer_of_the_paper_is_the_tenth_of_twelve():
    assert BlockRecurrentConfig(num_hidden_layers=12).recurrent_layers == [9]
    assert BlockRecurrentConfig(n_layer=4).recurrent_layers == [3]


@pytest.mark.parametrize(
    "field",
    [
        {"block_length": 0},
        {"num_states": 0},
        {"recurrent_layers": []},
        {"recurrent_layers": [6]},
        {"recurrent_layers": [1, 1]},
        {"state_gate": "gru"},
        {"state_update": "residual"},
        {"mem_len": 0},
        {"relative_attention_num_buckets": 1},
        {"relative_attention_max_distance": 16},
    ],
    ids=str,
)
def test_what_cannot_run_is_refused_by_name(field):
    with pytest.raises(ValueError, match=next(iter(field))) as caught:
        BlockRecurrentConfig(**field)
    assert "same_length" not in str(caught.value)  # it changes nothing, so that no remedy names it


def test_a_number_of_layers_of_the_wrong_type_is_named():
    with pytest.raises(StrictDataclassError, match=r"num_hidden_layers.*expected int"):
        BlockRecurrentConfig(n_layer="4")
