"""Product-key memory against numbers recorded from the authors' code (facebookresearch/XLM), values and gradients.

The three cases differ in their query networks: one linear map and batch norm, which is ours; an own small network for each
half of each head; none at all, with one set of keys for both halves.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from transformers_xl import PKMTransformerConfig
from transformers_xl.modeling.layers.product_key_memory import ProductKeyMemory, QueryBatchNorm


def pytest_generate_tests(metafunc):
    files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob("pkm__*.json"))
    metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


class SeparateNetworks(nn.Module):
    """`mem_multi_query_net`: a network for each half of each head, a batch norm after each of its layers."""

    def __init__(self, input_size: int, inner: int, half: int, count: int):
        super().__init__()
        self.query_mlps = nn.ModuleList(
            nn.Sequential(
                nn.Linear(input_size, inner),
                QueryBatchNorm(inner),
                nn.ReLU(),
                nn.Linear(inner, half),
                QueryBatchNorm(half),
            )
            for _ in range(count)
        )

    def forward(self, rows: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        return torch.cat([network(rows) for network in self.query_mlps], dim=-1)


class NoNetwork(nn.Module):
    def forward(self, rows: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        return rows


def build(case: dict) -> ProductKeyMemory:
    hyper = case["hyper"]
    parameters = hyper["params"]
    config = PKMTransformerConfig(
        hidden_size=hyper["input_dim"],
        num_attention_heads=1,
        num_memory_keys=parameters["mem_n_keys"],
        memory_key_dim=parameters["mem_k_dim"],
        memory_heads=parameters["mem_heads"],
        memory_topk=parameters["mem_knn"],
        query_batch_norm=parameters["mem_query_batchnorm"],
        dropout=0.0,
    )
    memory = ProductKeyMemory(config)
    if parameters["mem_multi_query_net"]:
        inner = int(parameters["mem_query_layer_sizes"].split(",")[1])
        half, count = parameters["mem_k_dim"] // 2, 2 * parameters["mem_heads"]
        memory.query_net = SeparateNetworks(hyper["input_dim"], inner, half, count)
    elif not parameters["mem_query_layer_sizes"]:
        memory.query_net = NoNetwork()
    return memory.eval()


def our_name(name: str) -> str:
    name = name.replace("query_proj.", "query_net.")
    if name.count(".") == 3:  # one network of two layers
        name = name.replace("query_mlps.0", "proj").replace("query_mlps.1", "norm")
    return name


def translated(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    found = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return {our_name(name): tensor for name, tensor in found.items() if not name.startswith("in.")}


def test_values_and_gradients(case_file: Path):
    case = json.loads(case_file.read_text())
    tensors, tolerance = load_file(case_file.with_suffix(".safetensors")), case["tolerance"]
    memory = build(case)
    weights = translated(tensors, "w.")
    shares_keys = weights["keys"].dim() == 2
    if shares_keys:
        weights["keys"] = weights["keys"].expand_as(memory.keys)
    memory.load_state_dict(weights)

    x = tensors["in.x"].clone().requires_grad_()
    query = memory.query_net(x.flatten(0, 1)).unflatten(-1, (memory.heads, -1))
    torch.testing.assert_close(query.flatten(0, 1), tensors["out.query"], atol=1e-5, rtol=1e-4)
    scores, slots = memory.best_slots(query)
    assert torch.equal(slots, tensors["out.indices"].view_as(slots))
    torch.testing.assert_close(
        scores.softmax(-1),
        tensors["out.scores"].view_as(scores),
        atol=tolerance["out_atol"],
        rtol=tolerance["out_rtol"],
    )
    y, _ = memory(x)
    torch.testing.assert_close(y, tensors["out.y"], atol=tolerance["out_atol"], rtol=tolerance["out_rtol"])

    y.square().sum().backward()
    gradients = translated(tensors, "grad.")
    found = {name: parameter.grad for name, parameter in memory.named_parameters()}
    if shares_keys:
        found["keys"] = found["keys"].sum((0, 1))
    found["x"], gradients["x"] = x.grad, tensors["grad.in.x"]
    assert found.keys() == gradients.keys()
    for name, expected in gradients.items():
        atol = tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(
            found[name], expected, atol=atol, rtol=tolerance["grad_rtol"], msg=lambda m, n=name: f"{n}: {m}"
        )
