"""The old model as its papers and descriptions have it, token by token, and checkpoints of random weights for every option.

Names of weights and hyper-parameters are those of the original repository (kimiyoung/transformer-xl).
"""

import math
import sys
import types
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

HYPER = {
    "n_token": 23,
    "n_layer": 2,
    "n_head": 2,
    "d_model": 12,
    "d_head": 5,
    "d_inner": 14,
    "d_embed": 12,
    "div_val": 1,
    "cutoffs": [],
    "pre_lnorm": False,
    "tgt_len": 4,
    "ext_len": 0,
    "mem_len": 6,
    "clamp_len": -1,
    "same_length": False,
    "attn_type": 0,
    "sample_softmax": -1,
    "dropout": 0.0,
    "dropatt": 0.0,
    "tie_weight": True,
    "tie_projs": [False],
}


def clusters(hyper: dict) -> list[tuple[int, int]]:
    """First id and width of each cluster."""
    starts = [0, *hyper["cutoffs"]]
    return [(start, hyper["d_embed"] // hyper["div_val"] ** index) for index, start in enumerate(starts)]


def has_projections(hyper: dict) -> bool:
    return hyper["div_val"] > 1 or hyper["d_embed"] != hyper["d_model"]


def random_weights(hyper: dict, untie_r: bool = False) -> dict[str, torch.Tensor]:
    """Weights by their names in `state_dict()`; tied ones are the same tensor. `untie_r`: a pair of biases in each layer,
    as in transformers."""
    generator = torch.Generator().manual_seed(0)

    def new(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.5

    width, inner, heads = hyper["d_model"], hyper["d_inner"], (hyper["n_head"], hyper["d_head"])
    both = heads[0] * heads[1]
    weights = {} if untie_r else {"r_w_bias": new(*heads), "r_r_bias": new(*heads)}
    starts = [start for start, _ in clusters(hyper)] + [hyper["n_token"]]
    tables = [
        (starts[i + 1] - starts[i] if hyper["div_val"] > 1 else hyper["n_token"], cluster_width)
        for i, (_, cluster_width) in enumerate(clusters(hyper))
    ][: None if hyper["div_val"] > 1 else 1]
    for index, shape in enumerate(tables):
        weights[f"word_emb.emb_layers.{index}.weight"] = table = new(*shape)
        weights[f"crit.out_layers.{index}.weight"] = table if hyper["tie_weight"] else new(*shape)
        weights[f"crit.out_layers.{index}.bias"] = new(shape[0])
    if has_projections(hyper):
        for index, (_, cluster_width) in enumerate(clusters(hyper)):
            source = index if hyper["div_val"] > 1 else 0
            name = f"word_emb.emb_projs.{source}"
            if name not in weights:
                weights[name] = new(width, cluster_width)
            tied = hyper["tie_projs"][index]
            weights[f"crit.out_projs.{index}"] = weights[name] if tied else new(width, cluster_width)
    if hyper["cutoffs"]:
        weights["crit.cluster_weight"] = new(len(hyper["cutoffs"]), hyper["d_embed"])
        weights["crit.cluster_bias"] = new(len(hyper["cutoffs"]))
    for layer in range(hyper["n_layer"]):
        name = f"layers.{layer}"
        if untie_r:
            weights |= {f"{name}.dec_attn.r_w_bias": new(*heads), f"{name}.dec_attn.r_r_bias": new(*heads)}
        weights |= {
            f"{name}.dec_attn.qkv_net.weight": new(3 * both, width),
            f"{name}.dec_attn.o_net.weight": new(width, both),
            f"{name}.dec_attn.r_net.weight": new(both, width),
            f"{name}.dec_attn.layer_norm.weight": 1 + 0.1 * new(width),
            f"{name}.dec_attn.layer_norm.bias": 0.1 * new(width),
            f"{name}.pos_ff.CoreNet.0.weight": new(inner, width),
            f"{name}.pos_ff.CoreNet.0.bias": new(inner),
            f"{name}.pos_ff.CoreNet.3.weight": new(width, inner),
            f"{name}.pos_ff.CoreNet.3.bias": new(width),
            f"{name}.pos_ff.layer_norm.weight": 1 + 0.1 * new(width),
            f"{name}.pos_ff.layer_norm.bias": 0.1 * new(width),
        }
    weights["pos_emb.inv_freq"] = 1 / 10000 ** (torch.arange(0, width, 2) / width)
    return weights


def log_probs(weights: dict, hyper: dict, ids: list[int], lengths: list[int], order: str, zeros: bool = False):
    """Log-probabilities `(tokens, n_token)` of one text, read in segments of `lengths` with memory.

    `order`: whether tail cluster i stands in the i-th entry behind the frequent words ("natural") or in the i-th from the
    end ("reversed"). `zeros`: whether the memory begins with `mem_len` vectors of zeros.
    """
    width, mem_len = hyper["d_model"], hyper["mem_len"]
    begin = [torch.zeros(width)] * mem_len if zeros else []
    memories: list[list[torch.Tensor]] = [list(begin) for _ in range(hyper["n_layer"])]
    results, start = [], 0
    for length in lengths:
        hidden = [_embed(weights, hyper, token) for token in ids[start : start + length]]
        for layer in range(hyper["n_layer"]):
            inputs = hidden
            hidden = _layer(weights, hyper, layer, memories[layer], inputs)
            memories[layer] = (memories[layer] + inputs)[-mem_len:] if mem_len else []
        results += [_predict(weights, hyper, state, order) for state in hidden]
        start += length
    return torch.stack(results)


def _embed(weights: dict, hyper: dict, token: int) -> torch.Tensor:
    index = max(i for i, (start, _) in enumerate(clusters(hyper)) if token >= start)
    if hyper["div_val"] > 1:
        row = weights[f"word_emb.emb_layers.{index}.weight"][token - clusters(hyper)[index][0]]
    else:
        row, index = weights["word_emb.emb_layers.0.weight"][token], 0
    if has_projections(hyper):
        row = weights[f"word_emb.emb_projs.{index}"] @ row
    return row * math.sqrt(hyper["d_model"])


def _layer(weights: dict, hyper: dict, layer: int, memory: list, inputs: list) -> list[torch.Tensor]:
    heads, size, width = hyper["n_head"], hyper["d_head"], hyper["d_model"]
    w = {name.removeprefix(f"layers.{layer}."): weight for name, weight in weights.items()}
    biases = [w.get(f"dec_attn.{name}", weights.get(name)) for name in ("r_w_bias", "r_r_bias")]

    def norm(part: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (width,), w[f"{part}.layer_norm.weight"], w[f"{part}.layer_norm.bias"])

    pre = hyper["pre_lnorm"]
    seen = [norm("dec_attn", x) if pre else x for x in memory + inputs]
    query, key, value = (
        [(part @ x).view(heads, size) for x in seen] for part in w["dec_attn.qkv_net.weight"].chunk(3)
    )
    outputs = []
    for i, x in enumerate(inputs):
        here = len(memory) + i
        visible = [j for j in range(here + 1) if not hyper["same_length"] or here - j < hyper["mem_len"]]
        context = torch.zeros(heads, size)
        for head in range(heads):
            scores = []
            for j in visible:
                distance = here - j if hyper["clamp_len"] <= 0 else min(here - j, hyper["clamp_len"])
                angles = distance * weights["pos_emb.inv_freq"]
                position = (w["dec_attn.r_net.weight"] @ torch.cat([angles.sin(), angles.cos()])).view(heads, size)
                content = (query[here][head] + biases[0][head]) @ key[j][head]
                scores.append((content + (query[here][head] + biases[1][head]) @ position[head]) / math.sqrt(size))
            shares = torch.stack(scores).softmax(0)
            context[head] = sum(share * value[j][head] for share, j in zip(shares, visible, strict=True))
        x = x + w["dec_attn.o_net.weight"] @ context.flatten()
        x = x if pre else norm("dec_attn", x)
        inner = F.linear(norm("pos_ff", x) if pre else x, w["pos_ff.CoreNet.0.weight"], w["pos_ff.CoreNet.0.bias"])
        x = x + F.linear(inner.relu(), w["pos_ff.CoreNet.3.weight"], w["pos_ff.CoreNet.3.bias"])
        outputs.append(x if pre else norm("pos_ff", x))
    return outputs


def _predict(weights: dict, hyper: dict, state: torch.Tensor, order: str) -> torch.Tensor:
    def project(index: int) -> torch.Tensor:
        return state @ weights[f"crit.out_projs.{index}"] if has_projections(hyper) else state

    def rows(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        name = f"crit.out_layers.{index if hyper['div_val'] > 1 else 0}"
        table, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        if hyper["div_val"] > 1:
            return table, bias
        starts = [start for start, _ in clusters(hyper)] + [hyper["n_token"]]
        return table[starts[index] : starts[index + 1]], bias[starts[index] : starts[index + 1]]

    tails = len(hyper["cutoffs"])
    table, bias = rows(0)
    if tails:
        table = torch.cat([table, weights["crit.cluster_weight"]])
        bias = torch.cat([bias, weights["crit.cluster_bias"]])
    head = F.linear(project(0), table, bias).log_softmax(0)
    parts = [head[: len(head) - tails]]
    for index in range(1, tails + 1):
        entry = head[len(head) - tails + index - 1] if order == "natural" else head[-index]
        parts.append(F.linear(project(index), *rows(index)).log_softmax(0) + entry)
    return torch.cat(parts)


def module(weights: dict, hyper: dict) -> nn.Module:
    """A module of the original's class names with these weights and hyper-parameters, as `torch.save(model)` pickles it.
    Its classes are there inside of `original_classes` alone."""
    classes = sys.modules["mem_transformer"]

    def fill(owner: nn.Module, beginning: str) -> nn.Module:
        for name, weight in weights.items():
            rest = name.removeprefix(beginning)
            if name.startswith(beginning) and "." not in rest:
                # a tied weight is one parameter
                parameter = parameters.setdefault(id(weight), nn.Parameter(weight))
                owner.register_parameter(rest, parameter)
        return owner

    def make(kind: str, **attributes) -> nn.Module:
        made = getattr(classes, kind, None) or getattr(nn, kind)
        result = made.__new__(made)
        nn.Module.__init__(result)
        result.__dict__.update(attributes)
        return result

    parameters: dict[int, nn.Parameter] = {}
    own = (
        "n_token",
        "n_layer",
        "n_head",
        "d_model",
        "d_head",
        "d_embed",
        "tgt_len",
        "ext_len",
        "mem_len",
        "clamp_len",
    )
    top = make(
        "MemTransformerLM", **{name: hyper[name] for name in (*own, "same_length", "attn_type", "sample_softmax")}
    )
    fill(top, "")
    ends = [*hyper["cutoffs"], hyper["n_token"]]
    for name, beginning in (("word_emb", "emb"), ("crit", "out")):
        kind = "AdaptiveEmbedding" if name == "word_emb" else "ProjectedAdaptiveLogSoftmax"
        child = fill(make(kind, cutoffs=ends, div_val=hyper["div_val"]), f"{name}.")
        tables = [fill(make("Linear"), f"{name}.{beginning}_layers.{i}.") for i in range(len(ends))]
        child.add_module(f"{beginning}_layers", nn.ModuleList([table for table in tables if table._parameters]))
        projections = fill(make("ParameterList"), f"{name}.{beginning}_projs.")
        child.add_module(f"{beginning}_projs", projections)
        top.add_module(name, child)
    layers = nn.ModuleList()
    for index in range(hyper["n_layer"]):
        layer = make("RelPartialLearnableDecoderLayer")
        for part, attributes in (("dec_attn", {}), ("pos_ff", {"d_inner": hyper["d_inner"]})):
            child = fill(make("PositionwiseFF", pre_lnorm=hyper["pre_lnorm"], **attributes), f"layers.{index}.{part}.")
            for inner in ("qkv_net", "o_net", "r_net", "layer_norm"):
                if f"layers.{index}.{part}.{inner}.weight" in weights:
                    child.add_module(inner, fill(make("Linear"), f"layers.{index}.{part}.{inner}."))
            child.add_module("dropatt", nn.Dropout(hyper["dropatt"]))
            if part == "pos_ff":
                linears = {str(i): fill(make("Linear"), f"layers.{index}.pos_ff.CoreNet.{i}.") for i in (0, 3)}
                core = make("Sequential")
                core._modules.update(linears)
                child.add_module("CoreNet", core)
            layer.add_module(part, child)
        layers.append(layer)
    top.add_module("layers", layers)
    top.add_module("drop", nn.Dropout(hyper["dropout"]))
    return top


@contextmanager
def original_classes():
    """The modules of the original repository, with empty classes of the same names."""
    names = {
        "mem_transformer": (
            "MemTransformerLM", "AdaptiveEmbedding", "RelPartialLearnableDecoderLayer", "PositionwiseFF",
        ),
        "proj_adaptive_softmax": ("ProjectedAdaptiveLogSoftmax",),
    }  # fmt: skip
    for name, class_names in names.items():
        made = types.ModuleType(name)
        for class_name in class_names:
            setattr(made, class_name, type(class_name, (nn.Module,), {"__module__": name}))
        sys.modules[name] = made
    sys.modules["mem_transformer"].ProjectedAdaptiveLogSoftmax = sys.modules[
        "proj_adaptive_softmax"
    ].ProjectedAdaptiveLogSoftmax
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
