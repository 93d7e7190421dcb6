"""The gates of GTrXL: a naive form of the paper's equations (`gtrxl_gates`), and the GRU gate of a released code (`gtrxl`).

The rest of the `gtrxl` cases is background: that code feeds un-normalised queries to its attention.
"""

import golden
import torch
from golden import Case

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


def build(case: Case, kind: str, prefix: str, suffix: str = "") -> torch.nn.Module:
    """Our gate of a kind with the weights `<prefix><matrix><suffix>`; a bias has no suffix."""
    names = OURS[kind][1]
    weights = {name.removeprefix(prefix).removesuffix(suffix): tensor for name, tensor in case.weights.items()}
    size = len(weights[next(iter(names.values()))[0]])
    gate = GATES[kind](GTrXLConfig(hidden_size=size, num_attention_heads=1, gate_type=kind)).to(case.dtype)
    gate.load_state_dict({ours: torch.cat([weights[name] for name in theirs]) for ours, theirs in names.items()})
    return gate


def parts_of_gradients(gate: torch.nn.Module, kind: str, prefix: str, suffix: str = "") -> dict[str, torch.Tensor]:
    """The gradients of a gate by the names of the file."""
    found = {}
    for ours, theirs in OURS[kind][1].items():
        for name, part in zip(theirs, gate.get_parameter(ours).grad.chunk(len(theirs)), strict=True):
            found[f"{prefix}{name}{'' if name == 'bg' else suffix}"] = part
    return found


@golden.cases("gtrxl_gates")
def test_every_gate(case: Case):
    x, y = case.leaf("x"), case.leaf("y")
    gates = {
        kind: build(case, kind, f"{theirs}.") for kind, (theirs, _) in OURS.items() if f"out.{theirs}" in case.tensors
    }
    outputs = {kind: gate(x, y) for kind, gate in gates.items()}
    for kind, output in outputs.items():
        case.check(OURS[kind][0], output)
    total = golden.squares(*outputs.values())
    case.check("scalar", total)
    total.backward()
    found = {"in.x": x.grad, "in.y": y.grad}
    for kind, gate in gates.items():
        found |= parts_of_gradients(gate, kind, f"{OURS[kind][0]}.")
    case.check_gradients(found)
    case.finish()


@golden.cases("gtrxl")
def test_the_gru_gate_of_a_released_code(case: Case):
    case.skip_background()
    if case.hyper["kind"] != "parts":
        case.out_of_scope("the attention of that code gets queries without a norm", "kind")
    prefix = "layers.0.gate1."
    gate = build(case, "gru", prefix, ".weight")
    output = gate(case.inputs["x"], case.inputs["y"])
    case.check("gru_gate", output)
    if not case.hyper["gru_gating"]:  # then nothing but this gate reaches its gradients
        golden.squares(output).backward()
        case.gradients = {name: each for name, each in case.gradients.items() if name.startswith(prefix)}
        case.check_gradients(parts_of_gradients(gate, "gru", prefix, ".weight"))
    case.finish("attention", "layer", "pos_embedding", "scalar")
