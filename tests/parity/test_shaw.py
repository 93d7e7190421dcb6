"""Shaw's relative positions against numbers of a naive form of the equations, and with memory against loops.

The cases from a released library (`relative_key` of BERT) are background: their tables run the other way and do not clip.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import EXACT

from transformers_xl import ShawTransformerConfig
from transformers_xl.modeling.layers.shaw_attention import ShawAttention


def pytest_generate_tests(metafunc):
    if "case_file" in metafunc.fixturenames:
        files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob("shaw_relative__*.json"))
        metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


NAMES = {
    "W_Q": "q_proj.weight",
    "W_K": "k_proj.weight",
    "W_V": "v_proj.weight",
    "W_O": "o_proj.weight",
    "a_K": "key_table",
    "a_V": "value_table",
}


def translated(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if name.startswith("W_"):
        return tensor.T  # stored [in, out] there
    return tensor if tensor.dim() == 3 else tensor[None]  # tables: one for all heads


def test_values_and_gradients(case_file: Path):
    case = json.loads(case_file.read_text())
    hyper, tolerance = case["hyper"], case["tolerance"]
    if case["use"] == "background":
        pytest.skip(f"background: {case['pins']}")
    tensors = load_file(case_file.with_suffix(".safetensors"))
    config = ShawTransformerConfig(
        hidden_size=hyper["d_model"],
        num_attention_heads=hyper["n_head"],
        head_dim=hyper["d_k"],
        value_head_dim=hyper["d_v"],
        max_relative_distance=hyper["clip"],
        tables_per_head=hyper["tables_per_head"],
        use_value_table=hyper["value_table"],
    )
    config._attn_implementation = "eager"
    attention = ShawAttention(config, layer_idx=0)
    weights = {n.removeprefix("w."): t for n, t in tensors.items() if n.startswith("w.")}
    attention.load_state_dict({NAMES[name]: translated(name, tensor) for name, tensor in weights.items()})

    inputs = {name: tensors[f"in.{name}"].clone().requires_grad_() for name in ("x", "mem") if f"in.{name}" in tensors}
    length, memory = hyper["q_len"], inputs.get("mem")
    num_keys = length + (0 if memory is None else memory.shape[1])
    visible = torch.ones(1, 1, length, num_keys, dtype=torch.bool)
    if hyper["causal"]:
        visible = visible.tril(num_keys - length)
    if "in.key_padding" in tensors:
        visible = visible & ~tensors["in.key_padding"].bool()[:, None, None, :]
    y, alpha = attention(inputs["x"], memory, visible=visible)
    torch.testing.assert_close(y, tensors["out.y"], atol=tolerance["out_atol"], rtol=tolerance["out_rtol"])
    torch.testing.assert_close(alpha, tensors["out.alpha"], atol=tolerance["out_atol"], rtol=tolerance["out_rtol"])
    y.square().sum().backward()
    for name in weights:
        expected = translated(name, tensors[f"grad.{name}"])
        atol = tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
        found = attention.get_parameter(NAMES[name]).grad
        torch.testing.assert_close(found, expected, atol=atol, rtol=tolerance["grad_rtol"])
    for name, tensor in inputs.items():
        expected = tensors[f"grad.in.{name}"]
        atol = tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(tensor.grad, expected, atol=atol, rtol=tolerance["grad_rtol"])


def naive(attention: ShawAttention, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """The paper's equations with loops over queries and keys."""
    heads, k = attention.config.num_attention_heads, attention.max_distance
    context = torch.cat([memory, x], dim=1)
    query, keys, values = (
        projection(tensor).unflatten(-1, (heads, -1))
        for projection, tensor in ((attention.q_proj, x), (attention.k_proj, context), (attention.v_proj, context))
    )
    rows = []
    for i in range(x.shape[1]):
        position = memory.shape[1] + i
        scores, seen = [], []
        for j in range(position + 1):
            row = max(-k, j - position) + k
            key = keys[:, j] + attention.key_table[:, row]
            scores.append((query[:, i] * key).sum(-1) / key.shape[-1] ** 0.5)
            value = values[:, j]
            seen.append(value if attention.value_table is None else value + attention.value_table[:, row])
        weights = torch.stack(scores, dim=-1).softmax(-1)
        rows.append((weights[..., None] * torch.stack(seen, dim=2)).sum(2).flatten(1))
    return attention.o_proj(torch.stack(rows, dim=1))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("tables_per_head", [False, True])
@pytest.mark.parametrize(("use_value_table", "value_head_dim"), [(True, None), (True, 3), (False, 5)])
@pytest.mark.parametrize(("memory_length", "length", "k"), [(0, 5, 2), (4, 3, 2), (6, 1, 3), (2, 4, 20)])
def test_causal_with_memory(
    implementation, tables_per_head, use_value_table, value_head_dim, memory_length, length, k
):
    config = ShawTransformerConfig(
        hidden_size=12, num_attention_heads=3, max_relative_distance=k, tables_per_head=tables_per_head,
        use_value_table=use_value_table, value_head_dim=value_head_dim,
    )  # fmt: skip
    config._attn_implementation = implementation
    attention = ShawAttention(config, layer_idx=0).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, length, 12, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(2, memory_length, 12, dtype=torch.float64)
    visible = torch.ones(1, 1, length, memory_length + length, dtype=torch.bool).tril(memory_length)
    results = []
    for output in (attention(x, memory, visible=visible)[0], naive(attention, x, memory)):
        attention.zero_grad()
        x.grad = None
        output.square().sum().backward()
        results.append([output, x.grad, *(parameter.grad for parameter in attention.parameters())])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, **EXACT)


def test_distances_beyond_the_clip_are_one():
    """The idea of clipping: the same text further away than k looks the same, and nearer it does not."""
    config = ShawTransformerConfig(hidden_size=12, num_attention_heads=3, max_relative_distance=2)
    config._attn_implementation = "eager"
    attention = ShawAttention(config, layer_idx=0)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    text = torch.randn(1, 7, 12)
    far, near = text.clone(), text.clone()
    far[:, [0, 1, 2]] = text[:, [2, 0, 1]]
    near[:, [5, 6]] = text[:, [6, 5]]
    outputs = [attention(tokens[:, -1:] * 0 + text[:, :1], tokens)[0] for tokens in (text, far, near)]
    torch.testing.assert_close(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2], atol=1e-3)
