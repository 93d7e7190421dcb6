"""Shaw's relative positions against numbers of a naive form of the equations, and with memory against loops.

The cases from a released library (`relative_key` of BERT) have a table that runs the other way and that no text exceeds:
turned round it is ours, without an output projection.
"""

import golden
import pytest
import torch
from contexts import context_of
from golden import Case
from tiny import EXACT, pairwise

from transformers_xl import ShawTransformerConfig
from transformers_xl.modeling.layers.shaw_attention import ShawAttention

NAMES = {
    "W_Q": "q_proj.weight",
    "W_K": "k_proj.weight",
    "W_V": "v_proj.weight",
    "W_O": "o_proj.weight",
    "a_K": "key_table",
    "a_V": "value_table",
}


def translated(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under our names: matrices are `[in, out]` there, and a table of all heads has no axis for them."""
    ours = {}
    for name, tensor in tensors.items():
        if name.startswith("W_"):
            ours[NAMES[name]] = tensor.T
        elif name in NAMES:
            ours[NAMES[name]] = tensor if tensor.dim() == 3 else tensor[None]
        elif name == "distance_embedding.weight":
            ours["key_table"] = tensor.flip(0)[None]
        else:  # query.weight
            module, kind = name.split(".")
            ours[f"{module[0]}_proj.{kind}"] = tensor
    return ours


def build(case: Case) -> ShawAttention:
    weights, hyper = translated(case.weights), case.hyper
    keys, values = weights["key_table"], weights.get("value_table")
    heads = hyper.get("n_head") or hyper["num_attention_heads"]
    batch, length, width = case.inputs["x"].shape
    memory, distances = case.inputs.get("mem"), (keys.shape[1] - 1) // 2
    hyper.only_describe(
        d_model=width, hidden_size=width, batch=batch, q_len=length, len=length, value_table=values is not None,
        d_k=keys.shape[-1], d_v=len(weights["v_proj.weight"]) // heads, clip=distances, tables_per_head=len(keys) > 1,
        max_position_embeddings=distances + 1, mem_len=0 if memory is None else memory.shape[1],
    )  # fmt: skip
    config = ShawTransformerConfig(
        hidden_size=case.inputs["x"].shape[-1],
        num_attention_heads=heads,
        head_dim=keys.shape[-1],
        value_head_dim=len(weights["v_proj.weight"]) // heads,
        max_relative_distance=distances,
        tables_per_head=len(keys) > 1,
        use_value_table=values is not None,
        attention_bias="q_proj.bias" in weights,
    )
    config._attn_implementation = "eager"
    attention = ShawAttention(config, layer_idx=0)
    if "o_proj.weight" not in weights:
        attention.o_proj = torch.nn.Identity()
    attention.to(case.dtype).load_state_dict(weights)
    return attention


def attend(
    attention: ShawAttention, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output and weights of `x` after a memory, each `(batch, length, width)`."""
    columns = attention.project(torch.cat([memory, x], dim=1))
    return attention(x, *columns, context_of(x.shape[1], memory.shape[1], mask=mask))


def visible_pairs(case: Case, length: int, num_keys: int) -> torch.Tensor:
    visible = torch.ones(1, 1, length, num_keys, dtype=torch.bool)
    if case.choice("causal", True, False):
        visible = visible.tril(num_keys - length)
    if "key_padding" in case.inputs:
        visible = visible & ~case.inputs["key_padding"].bool()[:, None, None, :]
    if "attention_mask" in case.inputs:  # added to the scores there
        visible = visible & (case.inputs["attention_mask"] == 0)
    return visible


@golden.cases("shaw_relative")
def test_values_and_gradients(case: Case):
    attention = build(case)
    inputs = {name: case.leaf(name) for name in ("x", "mem") if name in case.inputs}
    heads: list[torch.Tensor] = []
    attention.o_proj.register_forward_pre_hook(lambda module, args: heads.append(args[0]))
    x = inputs["x"]
    memory = inputs.get("mem", x[:, :0])
    y, alpha = attend(attention, x, memory, visible_pairs(case, x.shape[1], memory.shape[1] + x.shape[1]))
    for name, output in (("y", y), ("alpha", alpha), ("z", *heads), ("scalar", golden.squares(y))):
        case.check(name, output)
    golden.squares(y).backward()
    case.check_gradients(golden.gradients_of(attention, **inputs), translated)
    case.finish()


def naive(attention: ShawAttention, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """The paper's equations with loops over queries and keys."""
    heads, k = attention.config.num_attention_heads, attention.max_distance
    context = torch.cat([memory, x], dim=1)
    query, keys, values = (
        projection(tensor).unflatten(-1, (heads, -1))
        for projection, tensor in ((attention.q_proj, x), (attention.k_proj, context), (attention.v_proj, context))
    )
    rows = []
    for i in range(x.shape[1]):
        position = memory.shape[1] + i
        scores, seen = [], []
        for j in range(position + 1):
            row = max(-k, j - position) + k
            key = keys[:, j] if attention.key_table is None else keys[:, j] + attention.key_table[:, row]
            scores.append((query[:, i] * key).sum(-1) / key.shape[-1] ** 0.5)
            value = values[:, j]
            seen.append(value if attention.value_table is None else value + attention.value_table[:, row])
        weights = torch.stack(scores, dim=-1).softmax(-1)
        rows.append((weights[..., None] * torch.stack(seen, dim=2)).sum(2).flatten(1))
    return attention.o_proj(torch.stack(rows, dim=1))


TABLES = [{}, {"value_head_dim": 3}, {"use_value_table": False, "value_head_dim": 5}, {"use_key_table": False}]
LENGTHS = [(0, 5, 2), (4, 3, 2), (6, 1, 3), (2, 4, 20), (2, 4, 0)]


@pytest.mark.parametrize(
    ("tables", "lengths", "implementation", "tables_per_head"),
    pairwise(TABLES, LENGTHS, ["eager", "sdpa"], [False, True]),
)
def test_causal_with_memory(tables: dict, lengths: tuple[int, int, int], implementation: str, tables_per_head: bool):
    memory_length, length, k = lengths
    config = ShawTransformerConfig(
        hidden_size=12, num_attention_heads=3, max_relative_distance=k, tables_per_head=tables_per_head, **tables
    )
    config._attn_implementation = implementation
    attention = ShawAttention(config, layer_idx=0).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, length, 12, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(2, memory_length, 12, dtype=torch.float64)
    results = []
    for output in (attend(attention, x, memory)[0], naive(attention, x, memory)):
        attention.zero_grad()
        x.grad = None
        output.square().sum().backward()
        results.append([output, x.grad, *(parameter.grad for parameter in attention.parameters())])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, **EXACT)


def test_distances_beyond_the_clip_are_one():
    """The idea of clipping: the same text further away than k looks the same, and nearer it does not."""
    config = ShawTransformerConfig(hidden_size=12, num_attention_heads=3, max_relative_distance=2)
    config._attn_implementation = "eager"
    attention = ShawAttention(config, layer_idx=0)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    text = torch.randn(1, 7, 12)
    far, near = text.clone(), text.clone()
    far[:, [0, 1, 2]] = text[:, [2, 0, 1]]
    near[:, [5, 6]] = text[:, [6, 5]]
    outputs = [attend(attention, text[:, :1], tokens)[0] for tokens in (text, far, near)]
    torch.testing.assert_close(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2], atol=1e-3)


def test_one_of_the_tables_is_wanted():
    with pytest.raises(ValueError, match="`use_key_table`=False and `use_value_table`=False leave no positions"):
        ShawTransformerConfig(use_key_table=False, use_value_table=False)
