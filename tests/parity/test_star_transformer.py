"""The Star-Transformer against numbers recorded from the authors' code (fastnlp/fastNLP).

Its relay begins with a mean over padding too, and its rings read padding: rows that have some are left out, and of the
gradients, where a batch has such rows, all but those of the other rows' inputs.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from transformers_xl import StarTransformerConfig, StarTransformerModel

NAMES = {
    "ring_att": "ring_attn",
    "star_att": "relay_attn",
    "WQ": "q_proj",
    "WK": "k_proj",
    "WV": "v_proj",
    "WO": "o_proj",
}


def pytest_generate_tests(metafunc):
    files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob("star_transformer__*.json"))
    metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


def translated(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Tensors under our names; convolutions of width 1 are linear maps."""
    ours = {}
    for name, tensor in tensors.items():
        match name.removeprefix(prefix).split(".") if name.startswith(prefix) else []:
            case ["pos_emb", "weight"]:
                ours["positions.table.weight"] = tensor
            case ["norm", layer, kind]:
                ours[f"layers.{layer}.ring_layernorm.{kind}"] = tensor
            case [("ring_att" | "star_att") as attention, layer, projection, kind]:
                shape = tensor.shape[:2] if kind == "weight" else tensor.shape
                ours[f"layers.{layer}.{NAMES[attention]}.{NAMES[projection]}.{kind}"] = tensor.view(shape)
    return ours


def config_of(hyper: dict) -> StarTransformerConfig:
    return StarTransformerConfig(
        vocab_size=1,
        hidden_size=hyper["hidden_size"],
        num_hidden_layers=hyper["num_layers"],
        num_attention_heads=hyper["num_head"],
        head_dim=hyper["head_dim"],
        max_position_embeddings=hyper["max_len"],
        ring="open",
        norm_position="pre",
        use_final_norm=False,
        hidden_act="leaky_relu",
        attention_bias=True,
        layer_norm_eps=1e-6,
        dropout=0.0,
    )


def test_values_and_gradients(case_file: Path):
    case = json.loads(case_file.read_text())
    tolerance, tensors = case["tolerance"], load_file(case_file.with_suffix(".safetensors"))
    model = StarTransformerModel(config_of(case["hyper"]))
    missing, unexpected = model.load_state_dict(translated(tensors, "w."), strict=False)
    assert missing == ["embed_tokens.weight"]
    assert unexpected == []

    x, mask = tensors["in.x"].clone().requires_grad_(), tensors["in.mask"]
    full = mask.bool().all(dim=1)
    assert full.any()
    output = model(inputs_embeds=x, attention_mask=mask)
    satellites, relay = output.last_hidden_state[full], output.relay[full]
    close = {"atol": tolerance["out_atol"], "rtol": tolerance["out_rtol"]}
    torch.testing.assert_close(satellites, tensors["out.nodes"][full], **close)
    torch.testing.assert_close(relay, tensors["out.relay"][full], **close)

    (satellites.square().sum() + relay.square().sum()).backward()
    found, gradients = {"x": x.grad[full]}, {"x": tensors["grad.in.x"][full]}
    if full.all():
        gradients |= translated(tensors, "grad.")
        found |= {name: p.grad for name, p in model.named_parameters() if name != "embed_tokens.weight"}
        assert found.keys() == gradients.keys()
    for name, expected in gradients.items():
        atol = tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(
            found[name], expected, atol=atol, rtol=tolerance["grad_rtol"], msg=lambda m, n=name: f"{n}: {m}"
        )
