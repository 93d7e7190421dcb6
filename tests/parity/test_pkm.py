"""Product-key memory against numbers recorded from the authors' code (facebookresearch/XLM), values and gradients; and from
another (lucidrains/product-key-memory) where its queries have a layer norm.

Cases differ in their query networks (one linear map and batch norm, which is ours; deeper ones; one for each half of each
head; none), in their keys (shared or not; whole ones in the "flat" form) and in what becomes of the scores.
"""

import golden
import pytest
import torch
from golden import Case
from torch import nn

from transformers_xl import PKMTransformerConfig
from transformers_xl.modeling.layers.product_key_memory import ProductKeyMemory, QueryBatchNorm

# what has no formula when it is on
ADDITIONS = ("mem_grouped_conv", "mem_input2d", "mem_shuffle_indices", "mem_shuffle_query", "mem_query_residual")
# how weights are initialised and trained, what is dropped in training, and which layers share values
WITHOUT_EFFECT = (
    "mem_values_optimizer", "optimizer", "mem_sparse", "mem_share_values", "mem_keys_type", "mem_keys_normalized_init",
    "mem_keys_learn", "mem_query_net_learn", "mem_value_zero_init", "mem_input_dropout", "mem_query_dropout",
    "mem_value_dropout",
)  # fmt: skip
QUERIES = "query_proj.query_mlps."


def network(weights: dict[str, torch.Tensor]) -> nn.Sequential:
    """The layers that have weights under these names, `<place>.<kind>`, and ReLU in the places between."""
    last = max(int(name.split(".")[0]) for name in weights)
    layers: list[nn.Module] = []
    for place in range(last + 1):
        weight = weights.get(f"{place}.weight")
        if weight is None:
            layers.append(nn.ReLU())
        elif weight.dim() == 1:
            layers.append(QueryBatchNorm(len(weight)))
        else:
            layers.append(nn.Linear(*weight.T.shape, bias=f"{place}.bias" in weights))
    return nn.Sequential(*layers)


class QueryNetworks(nn.Module):
    """One network, or the outputs of several side by side (`mem_multi_query_net`)."""

    def __init__(self, weights: dict[str, torch.Tensor], separate: bool):
        super().__init__()
        if separate:
            numbers = sorted({int(name.split(".")[0]) for name in weights})
            parts = [
                {n.removeprefix(f"{i}."): w for n, w in weights.items() if n.startswith(f"{i}.")} for i in numbers
            ]
            self.query_mlps: nn.Module = nn.ModuleList(network(part) for part in parts)
        else:
            self.query_mlps = network(weights)

    def forward(self, rows: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        separate = isinstance(self.query_mlps, nn.ModuleList)
        return torch.cat([each(rows) for each in (self.query_mlps if separate else [self.query_mlps])], dim=-1)


class NoNetwork(nn.Module):
    def forward(self, rows: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        return rows


class FlatMemory(ProductKeyMemory):
    """A key for each slot, in place of one for each half."""

    def best_slots(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.einsum("nhd,hkd->nhk", query, self.keys).topk(self.topk, dim=-1)


def is_ours(weights: dict[str, torch.Tensor]) -> bool:
    """Whether the queries come from one linear map with a bias, normalised or not."""
    names = {name.removeprefix(QUERIES) for name in weights if name.startswith(QUERIES)}
    return "0.bias" in names and not any(name[0] in "23456789" or name.count(".") > 1 for name in names)


def describe(case: Case) -> None:
    """What weights and tensors show too."""
    params, weights, x = case.hyper["params"], case.weights, case.inputs["x"]
    *_, width = x.shape
    size = weights["values.weight"].shape[1]
    case.hyper.only_describe(input_dim=width, output_dim=size, batch=x.shape[0], length=x.shape[1])
    case.choice("params.mem_v_dim", -1, size)
    params.change_nothing(*WITHOUT_EFFECT)
    queries = {name.removeprefix(QUERIES): each for name, each in weights.items() if name.startswith(QUERIES)}
    maps = [each for name, each in queries.items() if name.endswith("weight") and each.dim() == 2]
    biases = [each for name, each in queries.items() if name.endswith("running_mean")]
    params.only_describe(mem_query_batchnorm=bool(biases), mem_query_kernel_sizes="")
    separate = any(name.count(".") > 1 for name in queries)
    if queries:
        linear = [name for name, each in queries.items() if name.endswith("weight") and each.dim() == 2]
        params.only_describe(
            mem_query_bias=all(f"{name.removesuffix('weight')}bias" in queries for name in linear),
            mem_multi_query_net=separate,
        )
    params.change_nothing("mem_query_bias", "mem_multi_query_net")  # of a network, where there is one
    networks = params["mem_heads"] * 2 if separate else 1
    widths = [len(each) for each in maps[: len(maps) // networks][:-1]]
    params.only_describe(mem_query_layer_sizes=",".join(map(str, [0, *widths, 0])) if queries else "")
    params.only_describe(mem_use_different_keys=weights["keys"].dim() == (3 if is_flat(case) else 4))


def is_flat(case: Case) -> bool:
    return case.choice("params.mem_implementation", "pq_default", "pq_fast", "flat") == "flat"


def build(case: Case) -> ProductKeyMemory:
    params, weights = case.hyper["params"], case.weights
    describe(case)
    config = PKMTransformerConfig(
        hidden_size=case.inputs["x"].shape[-1],
        num_attention_heads=1,
        num_memory_keys=params["mem_n_keys"],
        memory_key_dim=params["mem_k_dim"],
        memory_heads=params["mem_heads"],
        memory_topk=params["mem_knn"],
        query_batch_norm=params["mem_query_batchnorm"],
        dropout=0.0,
    )
    memory = (FlatMemory if is_flat(case) else ProductKeyMemory)(config)
    queries = {name.removeprefix(QUERIES): each for name, each in weights.items() if name.startswith(QUERIES)}
    if not queries:
        memory.query_net = NoNetwork()
    elif not is_ours(weights):
        memory.query_net = QueryNetworks(queries, params["mem_multi_query_net"])
    if is_flat(case):
        shape = weights["keys"].shape[-2:]
        memory.keys = nn.Parameter(torch.empty(memory.heads, *shape))
    memory.values = nn.EmbeddingBag(*weights["values.weight"].shape, mode="sum")
    memory.to(case.dtype).load_state_dict(translated(weights, memory))
    return memory.eval()


def translated(tensors: dict[str, torch.Tensor], memory: ProductKeyMemory) -> dict[str, torch.Tensor]:
    """Tensors under our names; keys that heads and halves share are given to each."""
    ours = {}
    for name, tensor in tensors.items():
        if name == "keys":
            tensor = tensor.expand_as(memory.keys)
        name = name.replace("query_proj.", "query_net.")
        if hasattr(memory.query_net, "proj"):
            name = name.replace("query_mlps.0.", "proj.").replace("query_mlps.1.", "norm.")
        ours[name] = tensor
    return ours


def rescored(scores: torch.Tensor, params: dict) -> torch.Tensor:
    """What the scores of the slots that were found weigh, `(rows, heads, slots)`."""
    scores = scores / params["mem_temperature"]
    if params["mem_score_softmax"]:
        scores = scores.softmax(dim=-1)
    match params["mem_score_subtract"]:
        case "":
            pass
        case "min":
            scores = scores - scores.amin(-1, keepdim=True)
        case "mean":
            scores = scores - scores.mean(-1, keepdim=True)
        case "median":
            scores = scores - scores.median(-1, keepdim=True).values
        case unknown:
            pytest.fail(f"params.mem_score_subtract={unknown!r} is not known")
    if params["mem_score_normalize"]:
        scores = scores / scores.norm(p=1, dim=-1, keepdim=True)
    return scores


@golden.cases("pkm")
def test_values_and_gradients(case: Case):
    params, x = case.hyper["params"], case.leaf("x")
    for name in ADDITIONS:
        case.choice(f"params.{name}", False, but=[True], reason="not part of the paper's memory")
    memory = build(case)
    rows = x.detach() if params["mem_query_detach_input"] else x
    query = memory.query_net(rows.flatten(0, 1)).unflatten(-1, (memory.heads, -1))
    if params["mem_normalize_query"]:
        query = query / query.norm(dim=-1, keepdim=True)
    case.check("query", query.flatten(0, 1))
    scores, slots = memory.best_slots(query)
    if params["mem_modulo_size"] != -1:
        slots = slots % params["mem_modulo_size"]
    weights = rescored(scores, params)
    for name, output in (("indices", slots), ("scores", weights)):
        if case.has(name):
            case.check(name, output.reshape(case.tensors[f"out.{name}"].shape))
    y = memory.values(slots.flatten(1), per_sample_weights=weights.flatten(1)).unflatten(0, x.shape[:2])
    case.check("y", y)
    plain = rows is x and not params["mem_normalize_query"] and params["mem_modulo_size"] == -1 and y.shape == x.shape
    if plain and torch.equal(weights, scores.softmax(-1)):  # all options are ours
        y, _ = memory(x)
        case.check("y", y)
    case.check("scalar", golden.squares(y))

    golden.squares(y).backward()
    found = golden.gradients_of(memory, x=x)
    if "keys" in case.gradients:
        shared = tuple(range(memory.keys.dim() - case.gradients["keys"].dim()))
        found["keys"] = found["keys"].sum(shared) if shared else found["keys"]
    expected = {name: each for name, each in case.gradients.items() if name == "keys"}
    case.check_gradients(found, lambda tensors: translated_gradients(tensors, memory) | expected)
    case.finish()


def translated_gradients(tensors: dict[str, torch.Tensor], memory: ProductKeyMemory) -> dict[str, torch.Tensor]:
    return translated({name: each for name, each in tensors.items() if name != "keys"}, memory)


class NormedQueries(nn.Module):
    """Queries of the other code: halves stand before heads, and one layer norm is for all of them."""

    def __init__(self, width: int, heads: int, half: int):
        super().__init__()
        self.heads = heads
        self.proj = nn.Linear(width, 2 * heads * half, bias=False)
        self.norm = nn.LayerNorm(half)

    def forward(self, rows: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        halves = self.norm(self.proj(rows).unflatten(-1, (2, self.heads, -1)))
        return halves.transpose(-3, -2).flatten(-3)


def of_another_code(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under our names."""
    names = {"to_queries": "query_net.proj", "norm": "query_net.norm", "values": "values"}
    ours = {"keys": tensors["keys"].transpose(1, 2)}
    for name, tensor in tensors.items():
        part, _, kind = name.rpartition(".")
        if part:
            ours[f"{names[part]}.{kind}"] = tensor
    return ours


@golden.cases("pkm_lucidrains")
def test_another_code(case: Case):
    hyper, x = case.hyper, case.leaf("x")
    case.choice("use_layernorm", True, but=[False], reason="its batch norm is over time")
    for name in ("pre_layernorm", "concat_values_and_combine", "norm_output", "non_competitive_gates"):
        case.choice(name, False, but=[True], reason="not part of the paper's memory")
    config = PKMTransformerConfig(
        hidden_size=hyper["dim"],
        num_attention_heads=1,
        num_memory_keys=hyper["num_keys"],
        memory_key_dim=2 * hyper["dim_head"],
        memory_heads=hyper["heads"],
        memory_topk=hyper["topk"],
        dropout=0.0,
    )
    memory = ProductKeyMemory(config)
    memory.query_net = NormedQueries(hyper["dim"], hyper["heads"], hyper["dim_head"])
    memory.to(case.dtype).load_state_dict(of_another_code(case.weights))
    y, _ = memory(x)
    case.check("y", y)
    case.check("scalar", golden.squares(y))
    golden.squares(y).backward()
    case.check_gradients(golden.gradients_of(memory, x=x), of_another_code)
    case.finish()
