"""GTrXL: its gates against a naive form of the paper's equations (`gtrxl_gates`), and the whole against numbers recorded
from a released code (`gtrxl`, opendilab/DI-engine), which is not the authors'.

That model is made of our layers where it differs from the paper: its queries see states without a norm, its feed-forward
has any number of layers, its projections have biases, and its memory begins with zeros.
"""

import golden
import torch
from golden import Case
from torch import nn

from transformers_xl import GTrXLConfig, GTrXLModel
from transformers_xl.modeling.layers.gating import GATES
from transformers_xl.modeling.memory.memory_cache import Tensors
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.modeling_gtrxl import GTrXLLayer

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
    case.hyper.only_describe(dim=x.shape[-1], shape=list(x.shape[:-1]))
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
def test_a_released_code(case: Case):
    checks = {"parts": check_gru_gate, "model": check_released_model}
    checks[case.choice("kind", *checks)](case)


# what the gate alone does not depend on; its bias stands among the weights
BESIDE_THE_GATE = (
    "input_dim", "head_dim", "head_num", "mlp_num", "layer_num", "memory_len", "use_embedding_layer", "seg_lens", "batch",
    "gru_bias",
)  # fmt: skip


def check_gru_gate(case: Case) -> None:
    prefix = "layers.0.gate1."
    gate = build(case, "gru", prefix, ".weight")
    case.hyper.change_nothing(*BESIDE_THE_GATE)
    case.hyper.only_describe(embedding_dim=case.inputs["x"].shape[-1])
    case.inputs.change_nothing(*(name for name in case.inputs if name not in ("x", "y")))
    output = gate(case.inputs["x"], case.inputs["y"])
    case.check("gru_gate", output)
    if not case.hyper["gru_gating"]:  # then nothing but this gate reaches its gradients
        golden.squares(output).backward()
        case.gradients = {name: each for name, each in case.gradients.items() if name.startswith(prefix)}
        case.check_gradients(parts_of_gradients(gate, "gru", prefix, ".weight"))
    case.finish("attention", "layer", "pos_embedding", "scalar")


NAMES = {
    "attention.attention_q.0": "self_attn.q_proj",
    "attention.project.0": "self_attn.o_proj",
    "attention.project_pos.0": "self_attn.r_proj",
    "layernorm1": "input_layernorm",
    "layernorm2": "post_attention_layernorm",
    "gate1": "attn_gate",
    "gate2": "mlp_gate",
}


EMBEDDING = ("embedding.0.weight", "embedding.0.bias")  # it stands before the model


class RawQueries(GTrXLLayer):
    """Keys and values of what the norm makes, queries of what it is given."""

    def attend(
        self, hidden_states: torch.Tensor, past: Tensors, context: LayerContext, **kwargs
    ) -> tuple[torch.Tensor, Tensors]:
        columns, kept = context.extend(past, hidden_states, self.project(hidden_states), self.project)
        return self.self_attn(hidden_states, *columns, context, **kwargs)[0], kept


class ReleasedModel(GTrXLModel):
    layer_class = RawQueries


def perceptron(layers: int, width: int) -> nn.Sequential:
    """Linear maps with ReLU between them, each at every other place: behind the last one ours has it."""
    parts: list[nn.Module] = [nn.Linear(width, width)]
    for _ in range(layers - 1):
        parts += [nn.ReLU(), nn.Linear(width, width)]
    return nn.Sequential(*parts)


def build_released(case: Case) -> ReleasedModel:
    hyper = case.hyper
    width, inner = hyper["embedding_dim"], hyper["head_num"] * hyper["head_dim"]
    config = GTrXLConfig(
        vocab_size=1,
        hidden_size=width,
        num_hidden_layers=hyper["layer_num"],
        num_attention_heads=hyper["head_num"],
        head_dim=hyper["head_dim"],
        mem_len=hyper["memory_len"],
        same_length=False,
        initial_memory="zeros" if hyper["memory_len"] else "empty",
        gate_type="gru" if hyper["gru_gating"] else "none",
        share_relative_bias=True,
        attention_bias=True,
        use_final_norm=False,
        dropout=0.0,
    )
    model = ReleasedModel(config)
    for layer in model.layers:
        layer.self_attn.r_proj = nn.Linear(width, inner)
        layer.mlp = perceptron(hyper["mlp_num"], width)
    missing, unexpected = model.to(case.dtype).load_state_dict(translated(case.weights), strict=False)
    assert (missing, unexpected) == (["embed_tokens.weight"], [])
    return model.eval()


def translated(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights, or their gradients, under our names: gates stack theirs, and the embedding stands before the model."""
    ours: dict[str, torch.Tensor] = {}
    biases = {"u": "positions.bias.content_bias", "v": "positions.bias.position_bias"}
    for gate in {
        name.rpartition(f"{part}.")[0] + part for name in tensors for part in ("gate1", "gate2") if part in name
    }:
        layer, part = gate.rsplit(".", 1)
        for name, theirs in OURS["gru"][1].items():
            of_gate = [tensors[f"{gate}.{each}" if each == "bg" else f"{gate}.{each}.weight"] for each in theirs]
            ours[f"{layer}.{NAMES[part]}.{name}"] = torch.cat(of_gate)
    for name, tensor in tensors.items():
        match name.split("."):
            case [("u" | "v") as bias]:
                ours[biases[bias]] = tensor
            case ["layers", _, "gate1" | "gate2", *_]:
                pass
            case ["layers", layer, "attention", "attention_kv", "0", kind]:
                for part, rows in zip("kv", tensor.chunk(2), strict=True):
                    ours[f"layers.{layer}.self_attn.{part}_proj.{kind}"] = rows
            case ["layers", layer, "mlp", place, "0", kind]:
                ours[f"layers.{layer}.mlp.{place}.{kind}"] = tensor
            case ["layers", layer, *part, kind]:
                ours[f"layers.{layer}.{NAMES['.'.join(part)]}.{kind}"] = tensor
            case ["pos_embedding" | "embedding", *_]:
                pass
            case _:
                raise KeyError(name)
    return ours


def check_released_model(case: Case) -> None:
    model, mems, objective = build_released(case), None, torch.zeros(())
    case.hyper.only_describe(input_dim=case.inputs["x_seg0"].shape[-1], seg_lens=case.lengths("x", axis=0))
    case.hyper.change_nothing("gru_bias")  # the biases of gates stand among the weights
    slots, width = case.hyper["memory_len"], case.hyper["embedding_dim"]
    inputs = {name: case.leaf(name) for name in case.inputs}
    embedding = {name: case.weights[name].clone().requires_grad_() for name in EMBEDDING if name in case.weights}
    case.hyper.only_describe(use_embedding_layer=bool(embedding))
    for segment in range(case.count("in.x_seg*")):
        x = inputs[f"x_seg{segment}"].transpose(0, 1)  # time-major there
        x = nn.functional.linear(x, *embedding.values()).relu() if embedding else x
        before = [x.new_zeros(len(x), slots, width)] * len(model.layers) if mems is None else golden.columns_of(mems)
        output = model(inputs_embeds=x, mems=mems)
        mems = output.mems
        case.check(f"logit_seg{segment}", output.last_hidden_state.transpose(0, 1))
        for name, remembered in (("returned", before), ("after", golden.columns_of(mems))):
            if not remembered:
                continue
            kept = torch.stack([each.transpose(0, 1) for each in remembered])
            case.check(f"memory_{name}_seg{segment}", kept, lambda recorded: recorded[:-1])  # the last is never read
        objective = objective + golden.squares(output.last_hidden_state)
    case.check("scalar", objective)
    objective.backward()
    of_embedding = {f"in.{name}": case.gradients.pop(name) for name in EMBEDDING if name in case.gradients}
    case.gradients |= of_embedding
    case.check_gradients(golden.gradients_of(model, **inputs, **embedding), translated)
    case.finish()
