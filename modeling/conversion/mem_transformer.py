"""The weights of the original `MemTransformerLM` (kimiyoung/transformer-xl) under our names.

The TransfoXL of transformers 4.x has the same names after `transformer.`, and a pair of biases in each layer.
"""

from collections.abc import Iterable
from typing import cast

import torch

from transformers_xl.configuration.configuration_transformer_xl import TransformerXLConfig
from transformers_xl.modeling.conversion.safe_pickle import refusal, short_repr

LAYER_NAMES = {
    "dec_attn.o_net.weight": "self_attn.o_proj.weight",
    "dec_attn.r_net.weight": "self_attn.r_proj.weight",
    "dec_attn.layer_norm.weight": "input_layernorm.weight",
    "dec_attn.layer_norm.bias": "input_layernorm.bias",
    "pos_ff.CoreNet.0.weight": "mlp.fc1.weight",
    "pos_ff.CoreNet.0.bias": "mlp.fc1.bias",
    "pos_ff.CoreNet.3.weight": "mlp.fc2.weight",
    "pos_ff.CoreNet.3.bias": "mlp.fc2.bias",
    "pos_ff.layer_norm.weight": "post_attention_layernorm.weight",
    "pos_ff.layer_norm.bias": "post_attention_layernorm.bias",
}
BIASES = {"r_w_bias": "content_bias", "r_r_bias": "position_bias"}


class OldWeights:
    """Weights by their old names, popped one by one; what is missing, of another shape, or no number is refused."""

    def __init__(self, weights: dict[str, torch.Tensor], where: str):
        self.weights = {without_prefix(name): weight for name, weight in weights.items()}
        self.where = where
        if len(self.weights) < len(weights):
            raise refusal(where, "it holds one weight under two names")
        weights.clear()  # from here on a weight is freed when it is taken

    def has(self, beginning: str) -> bool:
        return any(name.startswith(beginning) for name in self.weights)

    def pop(self, shape: tuple[int, ...], *names: str, parts: list[int] | None = None) -> list[torch.Tensor]:
        """Copies of the weight that stands under `names`, or under some of them: of all rows, or of `parts` of them.

        Copies, because the file may be mapped into memory, and may be written again while the model is in use.
        """
        found = [self.weights.pop(name) for name in names if name in self.weights]
        if not found:
            raise refusal(self.where, f"it holds no weight {names[0]!r}")
        for weight in found:
            if tuple(weight.shape) != shape:
                raise refusal(
                    self.where,
                    f"{names[0]!r} has shape {tuple(weight.shape)}, where the configuration asks for {shape}",
                )
            if not weight.is_floating_point() or not all(part.isfinite().all() for part in weight.split(2**12)):
                raise refusal(self.where, f"{names[0]!r} holds what is no number (NaN or infinite)")
            if not equal(weight, found[0]):
                raise refusal(self.where, f"{names[0]!r} is tied, but has two values")
        return [rows.clone() for rows in found[0].split(len(found[0]) if parts is None else parts)]

    def finish(self) -> None:
        """Refuse weights that nobody took: the model would be another one without them."""
        unused = [name for name in self.weights if name != "pos_emb.inv_freq"]  # sinusoids, which are computed
        if unused:
            raise refusal(
                self.where,
                f"it holds {short_repr(unused[0])}, which is no part of the model that its configuration describes",
            )


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two weights hold the same numbers of one type; `torch.equal` has an error for two types."""
    return one.dtype == other.dtype and torch.equal(one, other)


def without_prefix(name: str) -> str:
    """`transformer.` is the base model of transformers 4.x, `module.` a wrapper for many GPUs or for half precision."""
    return name.removeprefix("module.").removeprefix("transformer.")


def translate_weights(
    weights: dict[str, torch.Tensor], config: TransformerXLConfig, where: str, cluster_order: str = "natural"
) -> dict[str, torch.Tensor]:
    """The state dict of our model of `config`; tied weights stand under the embedding's name alone.

    A checkpoint without a head, or with one for classification, gives what it has.

    Args:
        weights: by their old names; the dict is emptied, so that a large model is not held twice.
        where: the file that they come from, for errors.
        cluster_order: `"reversed"` where the i-th row of the cluster weights belongs to the i-th cluster from the end.

    Raises:
        ValueError: weights do not fit the configuration, or are no numbers; the file and the weight are named.
    """
    if cluster_order not in ("natural", "reversed"):
        raise ValueError(f"`cluster_order`={cluster_order!r} must be 'natural' or 'reversed'.")
    old, ours = OldWeights(weights, where), {}
    hidden_size, heads = config.hidden_size, config.num_attention_heads
    head_dim = cast(int, config.head_dim)  # given, or derived as the config was made
    inner_size = heads * head_dim
    shapes = {
        "dec_attn.o_net.weight": (hidden_size, inner_size),
        "dec_attn.r_net.weight": (inner_size, hidden_size),
        "pos_ff.CoreNet.0.weight": (config.intermediate_size, hidden_size),
        "pos_ff.CoreNet.0.bias": (config.intermediate_size,),
        "pos_ff.CoreNet.3.weight": (hidden_size, config.intermediate_size),
    }
    layers = range(config.num_hidden_layers)
    for layer in layers:
        for old_name, new_name in LAYER_NAMES.items():
            shape = shapes.get(old_name, (hidden_size,))
            (ours[f"model.layers.{layer}.{new_name}"],) = old.pop(shape, f"layers.{layer}.{old_name}")
        joint = (3 * inner_size, hidden_size), f"layers.{layer}.dec_attn.qkv_net.weight"
        for part, rows in zip("qkv", old.pop(*joint, parts=[inner_size] * 3), strict=True):
            ours[f"model.layers.{layer}.self_attn.{part}_proj.weight"] = rows
    for old_name, new_name in BIASES.items():
        in_layers = [f"layers.{layer}.dec_attn.{old_name}" for layer in layers]
        if config.share_relative_bias:  # transformers 4.x also writes the shared one under the name of each layer
            shared = old.pop((heads, head_dim), old_name, *in_layers)
            (ours[f"model.positions.bias.{new_name}"],) = shared
        else:
            for layer, name in zip(layers, in_layers, strict=True):
                own = old.pop((heads, head_dim), name)
                (ours[f"model.layers.{layer}.self_attn.bias.{new_name}"],) = own
    ours |= _vocabulary_weights(old, config, cluster_order)
    if old.has("score."):
        (ours["score.weight"],) = old.pop((cast(int, config.num_labels), hidden_size), "score.weight")
    old.finish()
    return ours


def _vocabulary_weights(old: OldWeights, config: TransformerXLConfig, cluster_order: str) -> dict[str, torch.Tensor]:
    """Those of the embedding and of the head."""
    ours: dict[str, torch.Tensor] = {}
    clusters = config.clusters
    has_head = old.has("crit.")
    # with `div_val` 1 the old code had one table for all clusters
    tables = clusters if config.div_val > 1 else [(config.vocab_size, clusters[0][1])]
    parts = None if config.div_val > 1 else [size for size, _ in clusters]
    embeddings: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    biases: list[torch.Tensor] = []
    for index, shape in enumerate(tables):
        names = f"word_emb.emb_layers.{index}.weight", f"crit.out_layers.{index}.weight"
        if config.tie_word_embeddings:
            embeddings += old.pop(shape, *names, parts=parts)
        else:
            embeddings += old.pop(shape, names[0], parts=parts)
            outputs += old.pop(shape, names[1], parts=parts) if has_head else []
        biases += old.pop(shape[:1], f"crit.out_layers.{index}.bias", parts=parts) if has_head else []
    if not config.is_adaptive:
        ours |= _named(["model.embed_tokens.weight"], embeddings)
        return ours | _named(["lm_head.weight"], outputs) | _named(["lm_head.bias"], biases)

    each = range(len(clusters))
    ours |= _named((f"model.embed_tokens.tables.{index}.weight" for index in each), embeddings)
    ours |= _named((f"lm_head.clusters.{index}.weight" for index in each), outputs)
    ours |= _named((f"lm_head.clusters.{index}.bias" for index in each), biases)
    if has_head and config.cutoffs:
        tails = len(config.cutoffs)
        weight = old.pop((tails, clusters[0][1]), "crit.cluster_weight", parts=[1] * tails)
        bias = old.pop((tails,), "crit.cluster_bias", parts=[1] * tails)
        for name, rows in (("weight", weight), ("bias", bias)):
            ours[f"lm_head.tails.{name}"] = torch.cat(rows[::-1] if cluster_order == "reversed" else rows)
    if config.has_projections:
        ours |= _projections(old, config, has_head)
    return ours


def _projections(old: OldWeights, config: TransformerXLConfig, has_head: bool) -> dict[str, torch.Tensor]:
    ours: dict[str, torch.Tensor] = {}
    count = len(config.clusters)
    tied = config.tie_projs if isinstance(config.tie_projs, list) else [config.tie_projs] * count
    shapes = [(config.hidden_size, width) for _, width in config.clusters]
    projected = [index for index in range(count) if config.projected_clusters[index]]
    for index in projected if config.div_val > 1 else [0]:
        sharing = [i for i in range(count) if tied[i] and (index == i or config.div_val == 1)]
        names = [f"word_emb.emb_projs.{index}", *(f"crit.out_projs.{i}" for i in sharing)]
        (ours[f"model.embed_tokens.projections.{index}.weight"],) = old.pop(shapes[index], *names)
    for index in projected if has_head else []:
        if not tied[index]:
            (ours[f"lm_head.projections.{index}.weight"],) = old.pop(shapes[index], f"crit.out_projs.{index}")
    return ours


def _named(names: Iterable[str], weights: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip(names, weights, strict=False))


__all__ = ["equal", "translate_weights", "without_prefix"]
