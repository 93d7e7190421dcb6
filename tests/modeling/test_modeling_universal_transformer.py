"""What the Universal Transformer adds: one layer over depth, positions that halt, and what their halting saves."""

from itertools import pairwise

import pytest
import tiny
import torch
from contexts import context_of
from reference import sinusoid
from tiny import EXACT, MEM_LEN, memory_of, read, result_of, tiny_config, tiny_model, tokens

from transformers_xl import UniversalTransformerConfig
from transformers_xl.modeling.layers.attention import RelativeBias
from transformers_xl.modeling.layers.halting import HaltingLayer, gather, scatter

FIELDS = {"num_hidden_layers": 5, "halting_threshold": 0.9, "halting_bias": -0.5}
use_cache = pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])


def halting_model(head: str = "model", **fields):
    """A model whose positions halt after one to five steps."""
    model = tiny_model("universal_transformer", head, **(FIELDS | fields))
    with torch.no_grad():
        model.base_model.layers.shared.halting.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    return model


# --- halting


def test_a_halted_position_keeps_its_state_and_the_output_is_the_weighted_sum():
    model = halting_model(use_final_norm=False)
    output = model(tokens(2, 16), output_hidden_states=True, output_halting=True)
    states = output.hidden_states[:-1]  # the last one is the output
    moved = [(after != before).any(-1) for before, after in pairwise(states)]
    for step, here in enumerate(moved, start=1):
        assert torch.equal(here, output.halting >= step)
    layer = model.layers.shared
    signals = layer.step_signals(torch.arange(1, 6), torch.float64)
    p = torch.stack([layer.halting(s + signal) for s, signal in zip(states, signals, strict=False)])
    n = torch.arange(1, 5)[:, None, None]
    weights = p[:4] * (n < output.halting) + (1 - (p[:4] * (n < output.halting)).sum(0)) * (n == output.halting)
    short = output.halting < 5
    expected = (weights[..., None] * torch.stack(states[1:])).sum(0)
    torch.testing.assert_close(output.last_hidden_state[short], expected[short], **EXACT)
    assert short.any()
    assert not short.all()


def test_a_position_halts_by_itself():
    """What follows a token, or stands in other rows, changes neither when it halts nor what it becomes."""
    model = halting_model()
    ids, other = tokens(2, 16), tokens(2, 16, seed=1)
    other[0, :9] = ids[0, :9]
    here, there = (model(text, output_halting=True) for text in (ids, other))
    assert not torch.equal(there.halting, here.halting)
    assert torch.equal(there.halting[0, :9], here.halting[0, :9])
    torch.testing.assert_close(there.last_hidden_state[0, :9], here.last_hidden_state[0, :9], **EXACT)


def test_the_layer_is_told_its_step():
    """Without halting, the steps differ by their signals alone, and every step has a memory of its own."""
    model = halting_model(halting_bias=-40.0)
    output = model(tokens(2, 6), output_halting=True)
    assert (output.halting == 5).all()
    torch.testing.assert_close(output.ponder_cost, torch.full_like(output.ponder_cost, 6.0), **EXACT)
    assert len(output.mems.layers) == 5
    for step, signal in enumerate(model.layers.shared.step_signals(torch.arange(1, 6), torch.float64), start=1):
        torch.testing.assert_close(signal, sinusoid(step, 32, -1, torch.float64), **EXACT)
    model.layers.shared.step_signals.forward = lambda numbers, dtype: torch.zeros(len(numbers), 32, dtype=dtype)
    assert not torch.allclose(model(tokens(2, 6)).last_hidden_state, output.last_hidden_state)


def test_weights_do_not_grow_with_the_steps():
    sizes = {steps: halting_model(num_hidden_layers=steps).num_parameters() for steps in (1, 5)}
    assert sizes[1] == sizes[5]
    assert halting_model(halting_bias=-0.5).layers.shared.halting.bias.item() == -0.5
    config = UniversalTransformerConfig(max_steps=7)
    assert (config.num_hidden_layers, config.max_steps) == (7, 7)
    assert len(halting_model(num_hidden_layers=3)(tokens(1, 4), use_cache=True).mems.layers) == 3


# --- inference: what has halted is not computed


def padded() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, mask and starts of documents of three rows of 24 columns; the last row is short and has interior padding."""
    mask, reset = torch.ones(3, 24, dtype=torch.bool), torch.zeros(3, 24, dtype=torch.bool)
    mask[1, :5] = mask[2, 9:14] = mask[2, 20:] = False
    reset[0, 11] = reset[2, 7] = True
    return tokens(3, 24), mask, reset


@pytest.mark.parametrize(
    ("lengths", "attention", "same_length", "use_cache"),
    tiny.pairwise([(24,), (7, 1, 16), (1,) * 24], ["eager", "sdpa"], [True, False], [None, True]),
    ids=str,
)
def test_skipping_what_has_halted_changes_nothing(use_cache, same_length, lengths, attention):
    """With gradients everything is computed, without them the running positions only; also with padding and documents."""
    model = halting_model(same_length=same_length)
    model.set_attn_implementation(attention)
    ids, mask, reset = padded()
    for arguments in ({}, {"attention_mask": mask}, {"attention_mask": mask, "reset": reset}):
        expected, memory = read(model, ids, lengths, **arguments)
        with torch.no_grad():
            ours, our_memory = read(model, ids, lengths, use_cache=use_cache, **arguments)
        real = arguments.get("attention_mask", torch.ones_like(mask))
        torch.testing.assert_close(ours[real], expected[real], **EXACT)
        if use_cache is None:
            tiny.assert_same_memory(our_memory["mems"], memory["mems"])


def count_rows(model) -> dict[str, int]:
    """How many vectors went through the queries, the feed-forward, and the keys."""
    counts = dict.fromkeys(("q_proj", "fc1", "k_proj"), 0)
    layer = model.base_model.layers.shared
    for name, module in (
        ("q_proj", layer.self_attn.q_proj),
        ("fc1", layer.mlp.fc1),
        ("k_proj", layer.self_attn.k_proj),
    ):

        def count(module, arguments, name=name):
            counts[name] += arguments[0].shape[:-1].numel()

        module.register_forward_pre_hook(count)
    return counts


@torch.no_grad()
def test_work_is_that_of_the_running_positions():
    """Queries and feed-forward: one per token and step that it ran. Keys: with a cache, of every token at every step."""
    model = halting_model()
    ids, mask, _ = padded()
    counts = count_rows(model)
    output = model(ids, attention_mask=mask, use_cache=True, output_halting=True)
    assert (output.halting == 0).eq(~mask).all()
    total = int(output.halting.sum())
    assert total < 5 * mask.sum()
    assert counts == {"q_proj": total, "fc1": total, "k_proj": 5 * ids.numel()}


@torch.no_grad()
@use_cache
def test_all_halted_is_an_early_stop_that_later_tokens_do_not_notice(use_cache):
    """Tokens that all halt at once cost one step, and are still in the memory of the later steps."""
    model = halting_model()
    layer = model.layers.shared
    embeds = model.embed_tokens(tokens(2, 12))
    easy = layer.halting.weight[0] * 40 / layer.halting.weight.square().sum()
    embeds[:, :6] += easy
    with torch.enable_grad():
        expected = model(inputs_embeds=embeds, output_halting=True)
    assert (expected.halting[:, :6] == 1).all()
    assert expected.halting[:, 6:].max() == 5
    counts = count_rows(model)
    first = model(inputs_embeds=embeds[:, :6], use_cache=use_cache)
    assert counts == {"q_proj": 12, "fc1": 12, "k_proj": 12 if use_cache is None else 60}
    if use_cache:
        assert [layer.num_columns for layer in first.mems.layers] == [6] * 5
        # projected once, for the steps that nobody ran too
        assert len({id(layer_cache.positions) for layer_cache in first.past_key_values.layer_caches}) == 1
        assert first.past_key_values.layer_caches[4].positions is not None
    second = model(inputs_embeds=embeds[:, 6:], **memory_of(first))
    states = torch.cat([first.last_hidden_state, second.last_hidden_state], dim=1)
    torch.testing.assert_close(states, expected.last_hidden_state, **EXACT)


def test_attention_maps_are_whole():
    model = halting_model()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        ours = model(tokens(2, 9), output_attentions=True, output_hidden_states=True)
    expected = model(tokens(2, 9), output_attentions=True, output_hidden_states=True)
    assert len(ours.attentions) == 5
    torch.testing.assert_close(ours.attentions, expected.attentions, **EXACT)
    torch.testing.assert_close(ours.hidden_states, expected.hidden_states, **EXACT)
    with torch.no_grad():
        states = model(tokens(2, 9), output_hidden_states=True).hidden_states
    torch.testing.assert_close(states, expected.hidden_states, **EXACT)


def test_gather_and_scatter():
    """Of rows with unequal numbers of positions, one of them with none; values and gradients."""
    states = torch.arange(24.0).view(3, 4, 2).requires_grad_()
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]]).bool()
    rows = gather(states, mask)
    assert rows.tolist() == [
        states[0, 0].tolist(),
        states[0, 2].tolist(),
        states[0, 3].tolist(),
        states[2, 1].tolist(),
    ]
    changed = scatter(rows * 10, mask, states)
    for row in range(3):
        for column in range(4):
            factor = 10 if mask[row, column] else 1
            assert torch.equal(changed[row, column], states[row, column] * factor)
    changed.sum().backward()
    assert torch.equal(states.grad, torch.where(mask[..., None], 10.0, 1.0).expand_as(states))


@pytest.mark.parametrize("skip_halted", [False, True])
def test_a_layer_leaves_halted_positions_as_they_are(skip_halted):
    config = tiny_config("universal_transformer")
    layer = HaltingLayer(config, 0).double()
    table = torch.randn(7, 32, dtype=torch.float64)
    bias = RelativeBias(config).double()
    bias.init_weights(config)
    states, halted = torch.randn(2, 3, 6, 32, dtype=torch.float64)
    running = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()
    context = context_of(6, batch=3, positions=table, bias=bias(), keep=6)
    arguments = (layer.new_memory(3, 0, states), context)
    everywhere = layer(states, *arguments).hidden_states
    for others in (None, halted):
        output = layer(states, *arguments, running=running, halted_states=others, skip_halted=skip_halted)
        torch.testing.assert_close(output.hidden_states[running], everywhere[running], **EXACT)
        assert torch.equal(output.hidden_states[~running], (states if others is None else halted)[~running])
        assert torch.equal(output.memory.columns[0], states)


# --- the loss


@pytest.mark.parametrize("padding", [False, True], ids=["plain", "padded"])
def test_the_ponder_cost_is_in_the_training_loss_only(padding):
    model = halting_model("causal_lm", ponder_loss_coef=0.3)
    ids, mask, _ = padded()
    arguments = {"attention_mask": mask} if padding else {}
    labels = ids.where(mask, -100) if padding else ids
    nats = model(ids, labels=labels, **arguments).loss
    assert model(ids).ponder_cost is None
    output = model.train()(ids, labels=labels, **arguments)
    predicts = labels[:, 1:] != -100
    predicts &= mask[:, :-1] if padding else True
    cost = output.ponder_cost[:, :-1][predicts].mean()
    torch.testing.assert_close((output.loss - nats).item(), 0.3 * cost.item(), atol=1e-5, rtol=1e-5)
    assert cost > 1.5
    if padding:
        assert (output.ponder_cost[~mask] == 0).all()
        assert (output.ponder_cost[mask] > 1).all()


@pytest.mark.parametrize("head", ["sequence_classification", "token_classification"])
def test_classifiers_pay_for_every_real_token(head):
    model = halting_model(head, ponder_loss_coef=0.3, num_labels=3)
    ids, mask, _ = padded()
    labels = torch.tensor([0, 2, 1]) if head == "sequence_classification" else (ids % 3).where(mask, -100)
    alone = model(ids, attention_mask=mask, labels=labels).loss
    output = model.train()(ids, attention_mask=mask, labels=labels)
    texts = output.ponder_cost.sum(1) / mask.sum(1)
    cost = texts.mean() if head == "sequence_classification" else output.ponder_cost[mask].mean()
    torch.testing.assert_close((output.loss - alone).item(), 0.3 * cost.item(), atol=1e-5, rtol=1e-5)


def test_a_price_on_steps_makes_positions_halt_earlier():
    """By the gradient of the ponder cost alone, which flows through the remainder R."""
    model = halting_model(halting_bias=-3.0)
    before = model(tokens(4, 12), output_halting=True)
    optimizer = torch.optim.SGD(model.layers.shared.halting.parameters(), lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        model(tokens(4, 12), output_halting=True).ponder_cost.mean().backward()
        optimizer.step()
    after = model(tokens(4, 12), output_halting=True)
    assert after.halting.double().mean() < before.halting.double().mean() - 0.5


@use_cache
def test_steps_per_token_stand_at_their_tokens(use_cache):
    """With padding on either side, by the heads too, and as a tuple."""
    model = halting_model("causal_lm")
    ids, mask, _ = padded()
    output = model(ids, attention_mask=mask, use_cache=use_cache, output_halting=True)
    for row in range(3):
        alone = model(ids[row : row + 1, mask[row]], output_halting=True)
        assert torch.equal(output.halting[row, mask[row]], alone.halting[0])
        torch.testing.assert_close(output.ponder_cost[row, mask[row]], alone.ponder_cost[0], **EXACT)
    assert "halting" not in model(ids)
    assert torch.equal(model(ids, output_halting=True, return_dict=False)[-1], model(ids, output_halting=True).halting)


@torch.no_grad()
def test_generated_text_is_that_of_full_forwards():
    """Tokens of rows that halt at different steps, with memory from before, and far past the window."""
    model = halting_model("causal_lm")
    ids, before = tokens(3, 7), model(tokens(3, 11, seed=1)).mems
    text = model.generate(ids, mems=before, max_new_tokens=2 * MEM_LEN, do_sample=False)
    whole = torch.cat([tokens(3, 11, seed=1), text[:, :-1]], dim=1)
    with torch.enable_grad():
        expected = result_of(model(whole))[:, 17:].argmax(-1)
    assert torch.equal(text[:, 7:], expected)


@pytest.mark.parametrize(
    "fields", [{"halting_threshold": 0.0}, {"halting_threshold": 1.5}, {"ponder_loss_coef": -0.1}], ids=str
)
def test_values_of_the_config(fields):
    with pytest.raises(ValueError, match=f"`{next(iter(fields))}`={next(iter(fields.values()))}"):
        tiny_config("universal_transformer", **fields)
