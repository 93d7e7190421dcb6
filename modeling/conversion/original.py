"""Checkpoints of the original repository (kimiyoung/transformer-xl, PyTorch): `model.pt`, a pickled module of either torch
format, or a plain state dict, for which what no shape tells must be given."""

from functools import reduce
from pathlib import Path
from types import UnionType
from typing import Any

import torch

from transformers_xl.configuration.configuration_transformer_xl import TransformerXLConfig
from transformers_xl.modeling.conversion.mem_transformer import equal, translate_weights, without_prefix
from transformers_xl.modeling.conversion.safe_pickle import Inert, path_repr, refusal, short_repr
from transformers_xl.modeling.conversion.torch_module import TorchFile, is_state_dict, module_weights
from transformers_xl.modeling.modeling_transformer_xl import TransformerXLForCausalLM

# the hyper-parameters of a checkpoint under their original names, with what their values are
HYPER_PARAMETERS: dict[str, type | UnionType] = {
    "n_token": int,
    "n_layer": int,
    "n_head": int,
    "d_model": int,
    "d_head": int,
    "d_inner": int,
    "d_embed": int,
    "div_val": int,
    "cutoffs": list,
    "pre_lnorm": bool,
    "tgt_len": int,
    "ext_len": int,
    "mem_len": int,
    "clamp_len": int,
    "same_length": bool,
    "attn_type": int,
    "sample_softmax": int,
    "dropout": float | int,
    "dropatt": float | int,
}
# of these no weight tells
NOT_IN_WEIGHTS = ("mem_len", "clamp_len", "same_length", "pre_lnorm")
DEFAULTS = {"tgt_len": 128, "ext_len": 0, "sample_softmax": -1, "dropout": 0.1, "dropatt": 0.0}
INSTEAD = {
    1: "Shaw's relative positions; train a ShawTransformer",
    2: "the vanilla Transformer with absolute positions; train a VanillaTransformer",
    3: "Al-Rfou's Transformer with positions in every layer; train a VanillaTransformer",
}
WRAPPERS = (
    "torch.nn.parallel.data_parallel.DataParallel",
    "data_parallel.BalancedDataParallel",
    "fp16_opt.FP16_Module",
)


def load_original(
    path: str | Path, given: dict[str, Any] | None = None, cluster_order: str = "reversed"
) -> TransformerXLForCausalLM:
    """Our model of a checkpoint of the original repository, in eval mode, in the type of its weights: of several types, in
    the one that holds the numbers of all.

    Args:
        path: `model.pt`, or a state dict that `torch.save` wrote.
        given: hyper-parameters by their original names: those that a state dict lacks, or others than the file's.
        cluster_order: `"reversed"`, as the original code reads its adaptive softmax, or `"natural"`.

    Raises:
        ValueError: the file is refused, an option cannot be converted, or a hyper-parameter is missing.
        OSError: the file cannot be read.
    """
    given = checked_hyper_parameters(given or {})
    where = str(path)
    file = TorchFile(path)
    if is_state_dict(file.value):
        weights = {without_prefix(name): weight for name, weight in file.tensors(file.value).items()}
        hyper = _hyper_of_weights(weights, where) | given
        check_carried_over(hyper, where)
        needed = [*NOT_IN_WEIGHTS, *(["cutoffs"] if _cutoffs_unknown(weights) else [])]
        missing = [name for name in needed if name not in given]
        if missing:
            raise ValueError(
                f"{path_repr(where)} holds only weights, without {', '.join(missing)}: give the values of the training in "
                "a JSON file, with --config."
            )
    else:
        module = _unwrapped(file)
        hyper = _hyper_of_module(file, module) | given
        check_carried_over(hyper, where)
        weights = module_weights(file, module)
    hyper = DEFAULTS | hyper
    missing = [name for name in HYPER_PARAMETERS if name not in hyper]
    if missing:
        raise refusal(where, f"its module has no attribute {missing[0]!r}")
    try:
        config = config_of(hyper)
    except ValueError as error:
        raise refusal(where, str(error).removesuffix(".")) from error
    _note_ties(config, weights)
    state_dict = translate_weights(weights, config, where, cluster_order)
    dtype = reduce(torch.promote_types, (each.dtype for each in state_dict.values()))
    model, info = TransformerXLForCausalLM.from_pretrained(
        None, config=config, state_dict=state_dict, dtype=dtype, output_loading_info=True
    )
    if info["missing_keys"]:
        raise refusal(where, f"it holds no head, whose {min(info['missing_keys'])!r} would be random")
    return model


def checked_hyper_parameters(given: dict[str, Any]) -> dict[str, Any]:
    """`given`, where it holds nothing but hyper-parameters; a `ValueError` names what is wrong."""
    for name, value in given.items():
        kind = HYPER_PARAMETERS.get(name)
        if kind is None:
            raise ValueError(
                f"`{name}`={short_repr(value)} is not a hyper-parameter: known are {', '.join(HYPER_PARAMETERS)}."
            )
        items = value if kind is list else [value]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            expected = kind.__name__ if isinstance(kind, type) else str(kind).replace(" | ", " or ")
            raise ValueError(f"`{name}`={short_repr(value)} must be of type {expected}.")
        if kind is list and (len(items) > 64 or any(type(item) is not int for item in items)):
            raise ValueError(f"`{name}` must hold only integers, at most 64.")
        if any(type(number) is int and abs(number) >= 2**31 for number in items):
            raise ValueError(f"`{name}` holds {short_repr(value)}, more than any such model has.")
    return given


def check_carried_over(hyper: dict[str, Any], where: str) -> None:
    """Raise a `ValueError` for what the original code can do, and this package does otherwise or not."""
    attn_type, ext_len, samples = (hyper.get(name, 0) for name in ("attn_type", "ext_len", "sample_softmax"))
    if attn_type != 0:
        raise ValueError(
            f"{path_repr(where)} has `attn_type`={attn_type}, {INSTEAD.get(attn_type, 'unknown')}: only 0, "
            "Transformer-XL's attention, can be converted."
        )
    if ext_len != 0:
        raise ValueError(
            f"{path_repr(where)} has `ext_len`={ext_len}: no segment is read again here. It is an option of the run: "
            'convert with {"ext_len": 0} and a longer `mem_len` in the JSON of --config.'
        )
    if samples > 0:
        raise ValueError(
            f"{path_repr(where)} was trained with `sample_softmax`={samples}, whose losses are estimates even in "
            "evaluation: only the full or adaptive softmax can be converted."
        )


def config_of(hyper: dict[str, Any]) -> TransformerXLConfig:
    """The configuration of a model with all of the original's hyper-parameters; weights are tied until they are seen not to
    be."""
    return TransformerXLConfig(
        vocab_size=hyper["n_token"],
        hidden_size=hyper["d_model"],
        num_hidden_layers=hyper["n_layer"],
        num_attention_heads=hyper["n_head"],
        head_dim=hyper["d_head"],
        intermediate_size=hyper["d_inner"],
        mem_len=hyper["mem_len"],
        segment_length=hyper["tgt_len"],
        same_length=hyper["same_length"],
        clamp_len=hyper["clamp_len"] if hyper["clamp_len"] > 0 else -1,
        initial_memory="empty",
        norm_position="pre" if hyper["pre_lnorm"] else "post",
        use_final_norm=False,  # the original has none, with pre-norm either
        share_relative_bias=True,
        dropout=hyper["dropout"],
        attention_dropout=hyper["dropatt"],
        cutoffs=hyper["cutoffs"],
        div_val=hyper["div_val"],
        embedding_size=hyper["d_embed"],
    )


def _unwrapped(file: TorchFile) -> Inert:
    module: Any = file.value
    for _ in WRAPPERS:  # each at most once, also where one holds itself
        if isinstance(module, Inert) and module.name.removeprefix("utils.") in WRAPPERS:
            module = module.mapping("_modules").get("module")
    if not isinstance(module, Inert) or module.name != "mem_transformer.MemTransformerLM":
        file.refuse(f"it holds {short_repr(module)}, neither a MemTransformerLM nor the weights of one")
    return module


# attributes of the whole module
OF_THE_MODULE = (
    "n_token", "n_layer", "n_head", "d_model", "d_head", "d_embed", "tgt_len", "ext_len", "mem_len", "clamp_len",
    "same_length", "attn_type", "sample_softmax",
)  # fmt: skip


def _hyper_of_module(file: TorchFile, module: Inert) -> dict[str, Any]:
    """The hyper-parameters of a pickled `MemTransformerLM`: attributes of it and of its parts."""

    def part(owner: Inert, *path: str) -> Inert:
        for name in path:
            child = owner.mapping("_modules").get(name)
            if not isinstance(child, Inert):
                file.refuse(f"its module has no part {'.'.join(path)!r}")
            owner = child
        return owner

    hyper = {name: module[name] for name in OF_THE_MODULE}
    embedding = part(module, "word_emb")
    cutoffs = embedding["cutoffs"]
    hyper |= {"div_val": embedding["div_val"], "cutoffs": cutoffs[:-1] if isinstance(cutoffs, list) else cutoffs}
    layers = list(part(module, "layers").mapping("_modules").values())
    if not layers or not all(isinstance(layer, Inert) for layer in layers):
        file.refuse("its module has no layers")
    attention, feed_forward = part(layers[0], "dec_attn"), part(layers[0], "pos_ff")
    norms = [bool(part(layer, name)["pre_lnorm"]) for layer in layers for name in ("dec_attn", "pos_ff")]
    if any(norms) and not all(norms):
        file.refuse("some of its layers are pre-norm, others post-norm")
    hyper |= {
        "pre_lnorm": bool(attention["pre_lnorm"]),  # None, where the keyword was not given
        "d_inner": feed_forward["d_inner"],
        "dropout": part(module, "drop")["p"],
        "dropatt": part(attention, "dropatt")["p"],
    }
    try:
        return checked_hyper_parameters({name: value for name, value in hyper.items() if value is not None})
    except ValueError as error:
        file.refuse(str(error).removesuffix("."), error)


def _hyper_of_weights(weights: dict[str, torch.Tensor], where: str) -> dict[str, Any]:
    """What the shapes of a state dict tell."""
    first = "layers.0.dec_attn"
    if f"{first}.qkv_net.weight" not in weights and f"{first}.q_net.weight" not in weights:
        raise refusal(where, "its weights are not those of a MemTransformerLM")
    if f"{first}.q_net.weight" in weights:
        return {"attn_type": 3 if "r_emb" in weights else 2}  # refused with a reason of its own
    if "r_emb" in weights:
        return {"attn_type": 1}
    indices = range(len(weights))
    tables = [weights[name] for i in indices if (name := f"word_emb.emb_layers.{i}.weight") in weights]
    layers = [i for i in indices if f"layers.{i}.dec_attn.layer_norm.weight" in weights]
    inner = weights.get("layers.0.pos_ff.CoreNet.0.bias")
    bias = weights.get("r_w_bias")
    norm = weights.get(f"{first}.layer_norm.weight")
    if (
        norm is None
        or inner is None
        or bias is None
        or not tables
        or any(vector.dim() != 1 for vector in (norm, inner))
        or any(matrix.dim() != 2 for matrix in (bias, *tables))
    ):
        raise refusal(where, "its biases, norms or embeddings are missing, or of no such shape")
    ends = torch.tensor([len(table) for table in tables]).cumsum(0).tolist()
    width, hidden_size = tables[0].shape[1], len(norm)
    if len(tables) > 1:
        div_val = width // max(tables[1].shape[1], 1)
    else:  # a projection where none is needed stands in one cluster of `div_val` above 1
        div_val = 2 if "word_emb.emb_projs.0" in weights and width == hidden_size else 1
    return {
        "n_token": ends[-1],
        "n_layer": len(layers),
        "n_head": bias.shape[0],
        "d_head": bias.shape[1],
        "d_model": hidden_size,
        "d_inner": len(inner),
        "d_embed": width,
        "div_val": div_val,
        "cutoffs": ends[:-1],
        "attn_type": 0,
    }


def _cutoffs_unknown(weights: dict[str, torch.Tensor]) -> bool:
    """With `div_val` 1 the clusters of an adaptive softmax are rows of one table."""
    return "crit.cluster_weight" in weights and "word_emb.emb_layers.1.weight" not in weights


def _note_ties(config: TransformerXLConfig, weights: dict[str, torch.Tensor]) -> None:
    """Tied is what holds the same numbers: the original writes it under both names."""

    def same(first: str, second: str) -> bool:
        one, other = weights.get(first), weights.get(second)
        if one is None or other is None:
            return True  # what is missing altogether is found missing later
        return equal(one, other)

    clusters = range(len(config.clusters))
    config.tie_word_embeddings = all(
        same(f"word_emb.emb_layers.{i}.weight", f"crit.out_layers.{i}.weight") for i in clusters
    )
    if config.has_projections:
        config.tie_projs = [
            same(f"word_emb.emb_projs.{i if config.div_val > 1 else 0}", f"crit.out_projs.{i}") for i in clusters
        ]


__all__ = ["HYPER_PARAMETERS", "check_carried_over", "checked_hyper_parameters", "config_of", "load_original"]
