"""The Star-Transformer against numbers recorded from the authors' code (fastnlp/fastNLP).

Its relay begins with a mean over padding too, and its rings read padding: rows that have some are left out, and of the
gradients, where a batch has such rows, all but those of the other rows' inputs.
"""

import golden
import torch
from golden import Case

from transformers_xl import StarTransformerConfig, StarTransformerModel

NAMES = {
    "ring_att": "ring_attn",
    "star_att": "relay_attn",
    "WQ": "q_proj",
    "WK": "k_proj",
    "WV": "v_proj",
    "WO": "o_proj",
}


def translated(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under our names; convolutions of width 1 are linear maps."""
    ours = {}
    for name, tensor in tensors.items():
        match name.split("."):
            case ["pos_emb", "weight"]:
                ours["positions.table.weight"] = tensor
            case ["norm", layer, kind]:
                ours[f"layers.{layer}.ring_layernorm.{kind}"] = tensor
            case [attention, layer, projection, kind]:
                shape = tensor.shape[:2] if kind == "weight" else tensor.shape
                ours[f"layers.{layer}.{NAMES[attention]}.{NAMES[projection]}.{kind}"] = tensor.view(shape)
            case _:
                raise KeyError(name)
    return ours


def build(case: Case) -> StarTransformerModel:
    hyper, mask = case.hyper, case.inputs["mask"]
    hyper.only_describe(batch=len(mask), length=mask.shape[1], lengths=mask.sum(dim=1).long().tolist())
    config = StarTransformerConfig(
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
    model = StarTransformerModel(config).to(case.dtype)
    missing, unexpected = model.load_state_dict(translated(case.weights), strict=False)
    assert (missing, unexpected) == (["embed_tokens.weight"], [])
    return model


@golden.cases("star_transformer")
def test_values_and_gradients(case: Case):
    mask = case.inputs["mask"].bool()
    full = mask.all(dim=1)
    if not full.any():
        case.out_of_scope("that code's rings and relay read padding, and every row has some", "lengths", "length")
    model, x = build(case), case.leaf("x")
    output = model(inputs_embeds=x, attention_mask=mask)
    satellites, relay = output.last_hidden_state, output.relay
    for name, ours in (("nodes", satellites), ("relay", relay)):
        case.check(name, ours[full], lambda recorded: recorded[full])
    case.check("scalar" if full.all() else "", golden.squares(satellites, relay))
    golden.squares(satellites[full], relay[full]).backward()
    found = golden.gradients_of(model) | {"in.x": x.grad[full]}
    if "in.x" in case.gradients:
        case.gradients["in.x"] = case.gradients["in.x"][full]
    if not full.all():
        case.gradients = {name: each for name, each in case.gradients.items() if name == "in.x"}
    case.check_gradients(found, translated)
    case.finish("" if full.all() else "scalar")
