"""Relative attention, its layer and the whole Transformer-XL against the loops of `reference.py`: values and gradients."""

import pytest
import reference
import torch
from tiny import EXACT, FLOAT32, VOCAB_SIZE, tiny_config, tokens

from transformers_xl import TransformerXLForCausalLM
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory

LENGTH = 5
SETTINGS = [
    pytest.param({"same_length": True, "mem_len": 8}, 7, id="window, memory longer than the segment"),
    pytest.param({"same_length": True, "mem_len": 8}, 8, id="window, full memory"),
    pytest.param({"same_length": True, "mem_len": 3}, 3, id="window shorter than the segment"),
    pytest.param({"same_length": True, "mem_len": 1}, 1, id="window of one"),
    pytest.param({"same_length": True, "mem_len": 8}, 0, id="window, no memory yet"),
    pytest.param({"same_length": False, "mem_len": 8}, 8, id="all, memory longer than the segment"),
    pytest.param({"same_length": False, "mem_len": 2}, 2, id="all, memory shorter than the segment"),
    pytest.param({"same_length": False, "mem_len": 1}, 1, id="all, memory of one"),
    pytest.param({"same_length": False, "mem_len": 0}, 0, id="all, memory off"),
    pytest.param({"same_length": True, "mem_len": 8, "clamp_len": 4}, 8, id="window, clamped"),
    pytest.param({"same_length": False, "mem_len": 8, "clamp_len": 1}, 8, id="all, clamped to one"),
    pytest.param({"norm_position": "post"}, 8, id="post-norm"),
    pytest.param({"norm_position": "pre", "use_final_norm": False}, 8, id="pre-norm, no final norm"),
    pytest.param({"share_relative_bias": False}, 6, id="biases per layer"),
    pytest.param({"share_relative_bias": False, "norm_position": "post", "same_length": False}, 8, id="all differ"),
    pytest.param({"head_dim": 5, "num_attention_heads": 3}, 4, id="heads that do not fill the width"),
]
every_setting = pytest.mark.parametrize(
    ("fields", "memory_length", "attention", "dtype", "tolerance"),
    [
        pytest.param(*setting.values, attention, dtype, tolerance, id=f"{setting.id}, {attention} {dtype}")
        for index, setting in enumerate(SETTINGS)
        for attention in ("eager", "sdpa")
        for dtype, tolerance in ((torch.float64, EXACT), (torch.float32, FLOAT32))
        if dtype == torch.float64 or index == 0  # the equations do not know the type
    ],
)


def build(fields: dict, attention: str, dtype: torch.dtype) -> TransformerXLForCausalLM:
    torch.manual_seed(0)
    model = TransformerXLForCausalLM._from_config(
        tiny_config("transformer_xl", **fields), attn_implementation=attention
    )
    for parameter in model.parameters():  # biases and norms too must count
        torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.25)
    return model.to(dtype).eval()


def memory_for(model, batch: int, length: int) -> Memory | None:
    if length == 0:
        return None
    shape = (batch, length, model.config.hidden_size)
    layers = [LayerMemory((torch.randn(shape, dtype=model.dtype),)) for _ in range(model.config.num_hidden_layers)]
    number = torch.full((batch,), length)
    return Memory(tuple(layers), number, number)


def assert_all_close(actual: dict, expected: dict, tolerance: dict) -> None:
    """Close, relative to large entries too: a gradient is a sum, whose rounding does not shrink with the sum, and what
    cancels in it was as large as what does not in others."""
    assert actual.keys() == expected.keys()
    largest = max(reference_value.abs().max().item() for reference_value in expected.values())
    for name, reference_value in expected.items():
        scale = max(1.0, reference_value.abs().max().item(), largest / 10)
        bounds = {"atol": tolerance["atol"] * scale, "rtol": tolerance["rtol"]}
        torch.testing.assert_close(
            actual[name], reference_value, **bounds, msg=lambda text, name=name: f"{name}: {text}"
        )


@every_setting
def test_attention_layer(fields, memory_length, attention, dtype, tolerance):
    """One attention layer inside the model, with the segment and memory that reach it, and every gradient it gives."""
    model = build(fields, attention, dtype)
    layer = model.model.layers[-1].self_attn
    calls, projected = [], []
    layer.register_forward_hook(lambda module, args, output: calls.append((args[0], output[0])))
    layer.k_proj.register_forward_hook(lambda module, args, output: projected.append(args[0]))
    model(tokens(3, LENGTH), mems=memory_for(model, 3, memory_length))
    [(segment, output)] = calls
    assert projected.pop(0) is segment
    [memory] = projected or [segment[:, :0]]
    shared = model.model.positions.bias
    biases = layer.bias if shared is None else shared
    parameters = dict(layer.named_parameters()) | dict(biases.named_parameters(prefix="bias"))
    inputs = {"segment": segment} | ({"memory": memory} if memory.requires_grad and memory.numel() else {})

    bias = (biases.content_bias, biases.position_bias)
    expected = reference.attention(dict(layer.named_parameters()), bias, segment, memory, model.config)

    torch.testing.assert_close(output, expected, **tolerance)
    cotangent = torch.randn_like(expected)
    sources = parameters | inputs
    assert_all_close(
        dict(
            zip(
                sources, torch.autograd.grad(output, list(sources.values()), cotangent, retain_graph=True), strict=True
            )
        ),
        dict(zip(sources, torch.autograd.grad(expected, list(sources.values()), cotangent), strict=True)),
        tolerance,
    )


@every_setting
def test_whole_model(fields, memory_length, attention, dtype, tolerance):
    """Logits, memory and the gradient of every parameter."""
    model = build(fields, attention, dtype)
    ids, mems = tokens(2, LENGTH), memory_for(model, 2, memory_length)
    output = model(ids, mems=mems)
    state = dict(model.named_parameters())
    mems = None if mems is None else [layer.columns[0] for layer in mems.layers]
    expected, inputs = reference.model_logits(state, ids, mems, model.config)

    torch.testing.assert_close(output.logits, expected, **tolerance)
    if model.config.mem_len:
        for layer, (new, remembered) in enumerate(zip(inputs, output.mems.layers, strict=True)):
            new = new if mems is None else torch.cat([mems[layer], new], dim=1)
            torch.testing.assert_close(remembered.columns[0], new[:, -model.config.mem_len :].detach(), **tolerance)
    cotangent = torch.randn(2, LENGTH, VOCAB_SIZE, dtype=dtype)
    assert_all_close(
        dict(zip(state, torch.autograd.grad(output.logits, list(state.values()), cotangent), strict=True)),
        dict(zip(state, torch.autograd.grad(expected, list(state.values()), cotangent), strict=True)),
        tolerance,
    )


def test_sines_come_before_cosines():
    """R(1) by hand for width 4: frequencies 1 and 1/100."""
    expected = torch.tensor([0.8414709848, 0.0099998333, 0.5403023059, 0.9999500004], dtype=torch.float64)
    torch.testing.assert_close(reference.sinusoid(1, 4, -1, torch.float64), expected)
    torch.testing.assert_close(reference.sinusoid(9, 4, 1, torch.float64), expected)
