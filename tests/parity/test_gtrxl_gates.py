"""The gates of GTrXL: a naive form of the paper's equations (`gtrxl_gates`), and the GRU gate of a released code (`gtrxl`).

The rest of the `gtrxl` cases is background: that code feeds un-normalised queries to its attention.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformers_xl import GTrXLConfig
from transformers_xl.modeling.layers.gating import GATES

# our gate: its name in the file, and the matrices and biases that make up our parameters
OURS = {
    "input": ("input", {"gate_proj.weight": ["Wg"]}),
    "output": ("output", {"gate_proj.weight": ["Wg"], "gate_bias": ["bg"]}),
    "highway": ("highway", {"gate_proj.weight": ["Wg"], "gate_bias": ["bg"]}),
    "sigmoid_tanh": ("sigtanh", {"gate_proj.weight": ["Wg"], "candidate_proj.weight": ["Ug"], "gate_bias": ["bg"]}),
    "gru": (
        "gru",
        {
            "output_proj.weight": ["Wr", "Wz", "Wg"],
            "stream_proj.weight": ["Ur", "Uz"],
            "candidate_proj.weight": ["Ug"],
            "gate_bias": ["bg"],
        },
    ),
}


def pytest_generate_tests(metafunc):
    for name, pattern in (("gates_file", "gtrxl_gates__*.json"), ("gtrxl_file", "gtrxl__*.json")):
        if name in metafunc.fixturenames:
            files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob(pattern))
            metafunc.parametrize(name, files, ids=[file.stem for file in files])


def gate_from(kind: str, names: dict[str, list[str]], weights: dict[str, torch.Tensor], size: int) -> torch.nn.Module:
    gate = GATES[kind](GTrXLConfig(hidden_size=size, num_attention_heads=1, gate_type=kind))
    gate.load_state_dict({ours: torch.cat([weights[name] for name in theirs]) for ours, theirs in names.items()})
    return gate


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: dict, what: str) -> None:
    atol = tolerance[f"{what}_atol"] * (max(1.0, theirs.abs().max().item()) if what == "grad" else 1.0)
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=tolerance[f"{what}_rtol"])


@pytest.mark.parametrize("kind", OURS)
def test_every_gate(gates_file: Path, kind: str):
    case = json.loads(gates_file.read_text())
    tensors = load_file(gates_file.with_suffix(".safetensors"))
    theirs, names = OURS[kind]
    weights = {name.removeprefix(f"w.{theirs}."): w for name, w in tensors.items() if name.startswith(f"w.{theirs}.")}
    gate = gate_from(kind, names, weights, case["hyper"]["dim"])
    x, y = tensors["in.x"], tensors["in.y"]
    output = gate(x, y)
    close(output, tensors[f"out.{theirs}"], case["tolerance"], "out")
    output.square().sum().backward()
    for ours, parts in names.items():
        expected = torch.cat([tensors[f"grad.{theirs}.{part}"] for part in parts])
        close(gate.get_parameter(ours).grad, expected, case["tolerance"], "grad")


def test_gradients_of_the_inputs(gates_file: Path):
    """They are sums over all gates of a file."""
    case = json.loads(gates_file.read_text())
    tensors = load_file(gates_file.with_suffix(".safetensors"))
    x, y = tensors["in.x"].requires_grad_(), tensors["in.y"].requires_grad_()
    total = 0.0
    for kind, (theirs, names) in OURS.items():
        weights = {n.removeprefix(f"w.{theirs}."): w for n, w in tensors.items() if n.startswith(f"w.{theirs}.")}
        total = total + gate_from(kind, names, weights, case["hyper"]["dim"])(x, y).square().sum()
    close(total.detach(), tensors["out.scalar"].squeeze(), case["tolerance"], "out")
    total.backward()
    close(x.grad, tensors["grad.in.x"], case["tolerance"], "grad")
    close(y.grad, tensors["grad.in.y"], case["tolerance"], "grad")


def test_the_gru_gate_of_a_released_code(gtrxl_file: Path):
    case = json.loads(gtrxl_file.read_text())
    if case["use"] == "background" or case["hyper"].get("kind") != "parts":
        pytest.skip(f"background: {case['pins']}")
    tensors = load_file(gtrxl_file.with_suffix(".safetensors"))
    prefix = "w.layers.0.gate1."
    weights = {n.removeprefix(prefix).removesuffix(".weight"): w for n, w in tensors.items() if n.startswith(prefix)}
    names = OURS["gru"][1]
    gate = gate_from("gru", names, weights, case["hyper"]["embedding_dim"])
    output = gate(tensors["in.x"], tensors["in.y"])
    close(output, tensors["out.gru_gate"], case["tolerance"], "out")
    if not case["hyper"]["gru_gating"]:  # then nothing but this gate reaches its gradients
        output.square().sum().backward()
        grads = {n.removeprefix("grad.layers.0.gate1.").removesuffix(".weight"): g for n, g in tensors.items()}
        assert {"bg", "Wr", "Ur"} <= set(grads)
        for ours, parts in names.items():
            for part, gradient in zip(parts, gate.get_parameter(ours).grad.chunk(len(parts)), strict=True):
                if part in grads:
                    close(gradient, grads[part], case["tolerance"], "grad")
