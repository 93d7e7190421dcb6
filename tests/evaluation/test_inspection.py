"""What variants have learned: spans, steps, exits, slots, gates, rings and pairs, each against a naive reading."""

import math

import numpy as np
import pytest
import torch
from tiny import EXACT, tiny_model, tokens

from transformers_xl.evaluation import inspection
from transformers_xl.modeling.layers.gating import GATES
from transformers_xl.modeling.layers.product_key_memory import KeyUsage

IDS = tokens(1, 21)
TEXT = IDS[0].numpy()


def test_spans_are_where_the_masks_are_above_zero():
    model = tiny_model("adaptive_span", span_ramp=3)
    for layer, share in zip(model.layers, (0.1, 0.6), strict=True):
        torch.nn.init.uniform_(layer.self_attn.span_mask.span, 0, share)
    spans = inspection.learned_spans(model)
    for layer, row in zip(model.layers, spans, strict=True):
        mask = layer.self_attn.span_mask(model.config.max_span)
        np.testing.assert_array_equal(row, (mask > 0).sum(-1).numpy())
    assert len(np.unique(spans)) > 1


@torch.no_grad()
def test_halting_steps_do_not_depend_on_the_cut():
    model = tiny_model("universal_transformer", "causal_lm", num_hidden_layers=3)
    steps, cost = inspection.halting_steps(model, TEXT)
    whole = model(IDS, output_halting=True)
    np.testing.assert_array_equal(steps, whole.halting[0].numpy())
    np.testing.assert_allclose(cost, whole.ponder_cost[0].numpy(), atol=1e-6)
    assert len(np.unique(steps)) > 1
    assert ((cost > steps) & (cost <= steps + 1)).all()


@torch.no_grad()
def test_exit_layers_do_not_depend_on_the_cut():
    model = tiny_model("depth_adaptive_transformer", "causal_lm", num_hidden_layers=3)
    layers = inspection.exit_layers(model, TEXT)
    np.testing.assert_array_equal(layers, model(IDS).exit_layers[0].numpy())
    assert len(np.unique(layers)) > 1
    model.config.confidence_thresholds = None
    assert set(inspection.exit_layers(model, TEXT)) == {3}


@torch.no_grad()
def test_slots_are_counted_over_the_whole_text():
    model = tiny_model("pkm_transformer", memory_layers=[0, 1], num_memory_keys=12, memory_topk=2, memory_key_dim=8)
    usage = inspection.key_usage(model, TEXT)
    assert list(usage) == [1, 2]
    for slots, whole in zip(usage.values(), model(IDS, output_key_usage=True).key_usage, strict=True):
        torch.testing.assert_close(slots, whole)
        assert slots.weights.sum().item() == pytest.approx(4 * len(TEXT))  # of each of 4 heads, weights that sum to 1
        assert slots.shares.sum().item() == pytest.approx(1)
        assert 0 < slots.used < 1
    even, one = KeyUsage(torch.full((9,), 3.0)), KeyUsage(3 * torch.eye(9)[0])
    assert (even.used, one.used) == (1, 1 / 9)
    assert even.kl.item() == pytest.approx(0)
    assert one.kl.item() == pytest.approx(math.log(9))


def openness_by_hand(kind: str, gate, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Solved for in what the gate returned."""
    if kind == "input":
        return (out - y) / x
    if kind == "output":
        return (out - x) / y
    if kind == "highway":
        return (out - x) / (y - x)
    if kind == "sigmoid_tanh":
        return (out - x) / gate.candidate_proj(y).tanh()
    reset = (gate.output_proj(y).chunk(3, -1)[0] + gate.stream_proj(x).chunk(2, -1)[0]).sigmoid()
    candidate = (gate.output_proj(y).chunk(3, -1)[2] + gate.candidate_proj(reset * x)).tanh()
    return (out - x) / (candidate - x)


@pytest.mark.parametrize("kind", sorted(set(GATES) - {"none"}))
@torch.no_grad()
def test_openness_is_what_a_gate_lets_through(kind: str):
    model = tiny_model("gtrxl", gate_type=kind)
    found: list[torch.Tensor] = []

    gates = [gate for layer in model.layers for gate in (layer.attn_gate, layer.mlp_gate)]
    # relu leaves zeros, from which nothing can be solved: y is moved a little, for the gate and for all who look at it
    for gate in gates:
        gate.register_forward_pre_hook(lambda gate, args: (args[0], args[1] + 1e-3))
        gate.register_forward_hook(lambda gate, args, out: found.append(openness_by_hand(kind, gate, *args, out)[0]))
    model(IDS)
    expected = torch.stack([rows.mean(0) for rows in found]).unflatten(0, (2, 2))
    found.clear()
    openness = inspection.gate_openness(model, TEXT)
    assert openness.shape == (2, 2, model.config.hidden_size)
    np.testing.assert_allclose(openness, expected.numpy(), atol=1e-6)
    assert ((openness > 0) & (openness < 1)).all()


@torch.no_grad()
def test_the_ring_is_the_mean_of_its_weights():
    model = tiny_model("star_transformer")
    expected, mems = [], None
    for start in range(0, len(TEXT), model.config.segment_length):
        out = model(IDS[:, start : start + model.config.segment_length], mems=mems, output_attentions=True)
        expected.append(torch.stack(out.attentions)[:, 0])
        mems = out.mems
    weights = inspection.ring_weights(model, TEXT)
    assert weights.shape == (2, 4, len(inspection.RING))
    np.testing.assert_allclose(weights, torch.cat(expected, dim=2).mean(2).numpy(), **EXACT)


@torch.no_grad()
def test_pairs_are_the_products_times_what_reads_them():
    model = tiny_model("tensorized_transformer", attention_window=3, num_attention_heads=2, num_hidden_layers=1)
    (layer,) = model.layers
    attention, width = layer.self_attn, model.config.head_dim
    states = layer.attention_input(model.embed_tokens(IDS))[0]  # of the one layer, whatever came before
    relative = model.positions(3, states[None])[:-1].flip(0)
    expected = np.zeros((2, 3, 3))
    for head in range(2):
        part = slice(head * width, (head + 1) * width)
        query, key, value = (proj(states)[:, part] for proj in (attention.q_proj, attention.k_proj, attention.v_proj))
        r = attention.r_proj(relative)[:, part]
        u, w = model.positions.bias.content_bias[head], model.positions.bias.position_bias[head]
        core = attention.cores[head].mean(0)
        for a in range(3):
            for b in range(3):
                column = attention.o_proj.weight[:, head * 9 + a * 3 + b].norm().item()
                for i in range(max(a, b), len(TEXT)):
                    product = (core * ((query[i] + u) * key[i - a] + (query[i] + w) * r[a]) * value[i - b]).sum()
                    expected[head, a, b] += abs(product.item()) * column / len(TEXT)
    np.testing.assert_allclose(inspection.pair_weights(model, TEXT)[0], expected, **EXACT)


@pytest.mark.parametrize(
    ("function", "model_type"),
    [
        ("learned_spans", "adaptive_span"),
        ("halting_steps", "universal_transformer"),
        ("exit_layers", "depth_adaptive_transformer"),
        ("key_usage", "pkm_transformer"),
        ("gate_openness", "gtrxl"),
        ("ring_weights", "star_transformer"),
        ("pair_weights", "tensorized_transformer"),
    ],
)
def test_others_are_refused_by_name(function: str, model_type: str):
    arguments = () if function == "learned_spans" else (TEXT,)
    with pytest.raises(ValueError, match=f"`model` is a 'transformer_xl' .*give a '{model_type}'"):
        getattr(inspection, function)(tiny_model("transformer_xl"), *arguments)


def test_a_gtrxl_without_gates_is_refused():
    with pytest.raises(ValueError, match="gates"):
        inspection.gate_openness(tiny_model("gtrxl", gate_type="none"), TEXT)
