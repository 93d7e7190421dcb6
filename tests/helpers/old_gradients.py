"""Old weights, or their gradients, under our names, for the parity tests: the stored gradients are some of all."""

import golden
import torch
from golden import Case

NAMES = {
    "r_w_bias": "model.positions.bias.content_bias",
    "r_r_bias": "model.positions.bias.position_bias",
    "crit.cluster_weight": "lm_head.tails.weight",
    "crit.cluster_bias": "lm_head.tails.bias",
}
LAYER_NAMES = {
    "dec_attn.r_net": "self_attn.r_proj",
    "dec_attn.o_net": "self_attn.o_proj",
    "dec_attn.layer_norm": "input_layernorm",
    "pos_ff.CoreNet.0": "mlp.fc1",
    "pos_ff.CoreNet.3": "mlp.fc2",
    "pos_ff.layer_norm": "post_attention_layernorm",
}
VOCABULARY_NAMES = {
    "word_emb.emb_layers": "model.embed_tokens.tables",
    "word_emb.emb_projs": "model.embed_tokens.projections",
    "crit.out_layers": "lm_head.clusters",
    "crit.out_projs": "lm_head.projections",
}


def translated(name: str, tensor: torch.Tensor, config, cluster_order: str) -> dict[str, torch.Tensor]:
    """An old weight, or its gradient, by the names of ours."""
    name = name.removeprefix("transformer.")
    if name in NAMES:
        return {NAMES[name]: tensor.flip(0) if cluster_order == "reversed" and "cluster" in name else tensor}
    owner, *rest = name.split(".")
    if name == "r_emb":
        return {f"model.layers.{layer}.positions.weight": table for layer, table in enumerate(tensor.flatten(2))}
    if owner != "layers":
        beginning, index, parameter = f"{owner}.{rest[0]}", int(rest[1]), (rest[2:] or ["weight"])[0]
        ours = VOCABULARY_NAMES[beginning]
        if not config.is_adaptive:
            return {f"{'lm_head' if owner == 'crit' else 'model.embed_tokens'}.{parameter}": tensor}
        if beginning.endswith("_layers") and config.div_val == 1:
            parts = tensor.split([size for size, _ in config.clusters])
            return {f"{ours}.{cluster}.{parameter}": part for cluster, part in enumerate(parts)}
        return {f"{ours}.{index}.{parameter}": tensor}
    layer, parameter = f"model.layers.{rest[0]}", rest[-1]
    if parameter in ("r_w_bias", "r_r_bias"):
        return {f"{layer}.self_attn.bias.{'content' if parameter == 'r_w_bias' else 'position'}_bias": tensor}
    module = ".".join(rest[1:-1])
    if module in ("dec_attn.qkv_net", "dec_attn.q_net", "dec_attn.kv_net"):
        parts = module.removeprefix("dec_attn.").removesuffix("_net")
        names = [f"{layer}.self_attn.{part}_proj.{parameter}" for part in parts]
        return dict(zip(names, tensor.chunk(len(names)), strict=True))
    return {f"{layer}.{LAYER_NAMES[module]}.{parameter}": tensor}


def check_gradients(case: Case, model, cluster_order: str) -> None:
    """Every stored gradient is the model's."""

    def ours(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        parts = (translated(name, tensor, model.config, cluster_order) for name, tensor in stored.items())
        return {name: part for each in parts for name, part in each.items()}

    case.check_gradients(golden.gradients_of(model), ours)
