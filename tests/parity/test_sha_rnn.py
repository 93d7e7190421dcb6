"""SHA-RNN against numbers recorded from the authors' code (Smerity/sha-rnn), whose tensors are time-major."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformers_xl import ShaRNNConfig, ShaRNNForCausalLM
from transformers_xl.modeling.layers.boom import Boom
from transformers_xl.modeling.layers.single_head_attention import Overparameterization, SingleHeadAttention


def pytest_generate_tests(metafunc):
    kind = "model" if "model_case" in metafunc.fixturenames else "parts"
    files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob("sha_rnn__*.json"))
    files = [file for file in files if json.loads(file.read_text())["hyper"]["kind"] == kind]
    metafunc.parametrize(f"{kind}_case", files, ids=[file.stem for file in files], indirect=True)


def load(path: Path) -> tuple[dict, dict, dict[str, torch.Tensor]]:
    case = json.loads(path.read_text())
    return case["hyper"], case["tolerance"], load_file(path.with_suffix(".safetensors"))


@pytest.fixture
def model_case(request):
    return load(request.param)


@pytest.fixture
def parts_case(request):
    return load(request.param)


NAMES = {
    "encoder.weight": "model.embed_tokens.weight",
    "decoder.": "lm_head.",
    "blocks.": "model.layers.",
    "lnstart": "input_layernorm",
    "lnmid": "query_layernorm",
    "lnmem": "memory_layernorm",
    "lnxff": "mlp_layernorm",
    "lnff": "residual_layernorm",
    "rnn.": "lstm.",
    "ff.linear": "mlp.fc",
    "attn.": "self_attn.",
    "vq.l1.": "overparameterization.proj.",
    "qln.": "q_norm.",
    ".qs": ".query_gate",
    ".ks": ".key_gate",
    ".vs": ".value_gate",
    ".r_gate": ".mix_gate",
    ".q.": ".q_proj.",
    ".k.": ".k_proj.",
    ".v.": ".v_proj.",
    ".r.": ".mix_proj.",
}
GATES = (".qs", ".ks", ".vs", ".r_gate")


def translated(tensors: dict[str, torch.Tensor], prefix: str, unused: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Tensors under our names; what is never used there is left out."""
    ours = {}
    for name, tensor in tensors.items():
        if not name.startswith(prefix) or name.startswith(f"{prefix}in.") or any(part in name for part in unused):
            continue
        name = name.removeprefix(prefix)
        tensor = tensor.flatten() if name.endswith(GATES) else tensor
        for theirs, here in NAMES.items():
            name = name.replace(theirs, here)
        ours[name] = tensor
    return ours


def config_of(hyper: dict, **fields) -> ShaRNNConfig:
    return ShaRNNConfig(
        vocab_size=hyper["ntoken"],
        hidden_size=hyper["ninp"],
        intermediate_size=hyper["nhid"],
        num_hidden_layers=hyper["nlayers"],
        tie_word_embeddings=hyper["tie_weights"],
        same_length=False,
        dropout=0.0,
        **fields,
    )


def assert_gradients(found: dict, expected: dict, tolerance: dict) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        atol = tolerance["grad_atol"] * max(1.0, gradient.abs().max().item())
        torch.testing.assert_close(
            found[name], gradient, atol=atol, rtol=tolerance["grad_rtol"], msg=lambda m, n=name: f"{n}: {m}"
        )


def test_model(model_case):
    hyper, tolerance, tensors = model_case
    close = {"atol": tolerance["out_atol"], "rtol": tolerance["out_rtol"]}
    lengths, attention_layer = hyper["seg_lens"], hyper["nlayers"] - 2
    model = ShaRNNForCausalLM(config_of(hyper, mem_len=hyper["max_positions"] - min(lengths))).eval()
    without = [layer for layer in range(hyper["nlayers"]) if layer != attention_layer]
    unused = ("lnout", "qkvs", "r_gate", *(f"blocks.{layer}.lnm" for layer in without))
    weights = translated(tensors, "w.", unused)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == ([], [])

    objective, mems = 0.0, None
    for segment, length in enumerate(lengths):
        if mems is not None:  # the code cuts the memory so that it and the segment fill its positions
            seen = hyper["max_positions"] - length
            mems = tuple(m[:, -seen:] if i == attention_layer else m for i, m in enumerate(mems))
        output = model(tensors[f"in.x_seg{segment}"].T, mems=mems, output_hidden_states=True)
        mems, states = output.mems, output.hidden_states[-1]
        torch.testing.assert_close(states, tensors[f"out.h_seg{segment}"].transpose(0, 1), **close)
        torch.testing.assert_close(output.logits, tensors[f"out.logits_seg{segment}"].transpose(0, 1), **close)
        remembered = tensors[f"out.mem_seg{segment}.{attention_layer}"].transpose(0, 1)
        torch.testing.assert_close(mems[attention_layer], remembered[:, -model.config.mem_len :], **close)
        lstm_states = mems[hyper["nlayers"] :]
        for layer in range(hyper["nlayers"]):
            for state, kind in zip(lstm_states[2 * layer : 2 * layer + 2], "hc", strict=True):
                expected = tensors[f"out.lstm_{kind}_seg{segment}.{layer}"][0]
                torch.testing.assert_close(state, expected, **close)
        objective = objective + states.square().sum() + output.logits.square().mean()
    torch.testing.assert_close(objective.detach().view(1), tensors["out.scalar"], **close)
    objective.backward()
    gradients = translated(tensors, "grad.", unused)
    found = {name: parameter.grad for name, parameter in model.named_parameters() if name in gradients}
    assert_gradients(found, gradients, tolerance)


def test_parts(parts_case):
    """The attention with all of its maps, the Boom layer in both forms, and the over-parameterisation, each alone."""
    hyper, tolerance, tensors = parts_case
    attention_maps = [f"w.attn.{name}.weight" in tensors for name in "kvr"]
    config = config_of(
        hyper,
        num_attention_heads=tensors["out.attn_weights"].shape[1],
        **dict(zip(("project_keys", "project_values", "mix_query"), attention_maps, strict=True)),
        attn_implementation="eager",
    )
    modules = torch.nn.ModuleDict(
        {
            "attn": SingleHeadAttention(config, 0),
            "boom_shortcut": Boom(config),
            "boom": Boom(config_of(hyper, boom_shortcut=False)),
            "over": Overparameterization(hyper["ninp"]),
        }
    )
    unused = ("qkvs",) if config.mix_query else ("qkvs", "r_gate")

    def ours(prefix: str) -> dict[str, torch.Tensor]:
        names = {"self_attn.": "attn.", "linear": "fc", "over.l1.": "over.proj."}
        result = {}
        for name, tensor in translated(tensors, prefix, unused).items():
            for theirs, here in names.items():
                name = name.replace(theirs, here)
            result[name] = tensor
        return result

    modules.load_state_dict(ours("w."))
    inputs = {name: tensors[f"in.{name}"].clone().requires_grad_() for name in ("query", "key", "value")}
    query, key, value = (tensor.transpose(0, 1) for tensor in inputs.values())
    attention = modules["attn"]
    length, num_keys = query.shape[1], key.shape[1]
    visible = torch.ones(length, num_keys, dtype=torch.bool).tril(num_keys - length)[None, None]
    mixed, weights = attention.attend(
        attention.queries(query), attention.project(key)[0], attention.project(value)[1], visible, False, {}
    )
    outputs = {
        "attn": mixed.flatten(-2).transpose(0, 1),
        "attn_weights": weights,
        "boom_shortcut": modules["boom_shortcut"](inputs["query"]),
        "boom": modules["boom"](inputs["query"]),
        "overparam": modules["over"](inputs["query"]),
    }
    for name, output in outputs.items():
        expected = tensors[f"out.{name}"]
        torch.testing.assert_close(output, expected, atol=tolerance["out_atol"], rtol=tolerance["out_rtol"])
    sum(output.square().sum() for output in outputs.values()).backward()
    gradients = ours("grad.") | {f"in.{name}": tensors[f"grad.in.{name}"] for name in inputs}
    found = {name: parameter.grad for name, parameter in modules.named_parameters() if name in gradients}
    assert_gradients(found | {f"in.{name}": tensor.grad for name, tensor in inputs.items()}, gradients, tolerance)
