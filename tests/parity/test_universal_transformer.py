"""The Universal Transformer against a naive loop of the paper, and its parts against numbers of a released code
(andreamad8/Universal-Transformer-Pytorch).

That code is another model: signals of absolute positions, convolutions with ReLU behind both, and a halting that updates an
average while halted positions go on. Around these, which are written out here, stand our attention and our halting unit.
"""

import math

import golden
import pytest
import torch
from contexts import context_of
from golden import Case
from naive_universal_transformer import by_hand
from tiny import EXACT, MEM_LEN, memory_of, tiny_model, tokens
from torch import nn
from torch.nn import functional as F

from transformers_xl import UniversalTransformerConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.modeling_universal_transformer import HaltingUnit

THRESHOLD = 0.9  # of that code

# --- the paper


def halting_model(norm_position: str):
    """A model whose positions halt after one to five steps."""
    fields = {"num_hidden_layers": 5, "halting_threshold": 0.9, "halting_bias": -0.5, "norm_position": norm_position}
    model = tiny_model("universal_transformer", "causal_lm", **fields)
    with torch.no_grad():
        weight = halting_parameters(model.base_model.layers.shared.halting)["weight"]
        weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    return model


def halting_parameters(unit: nn.Module) -> dict[str, nn.Parameter]:
    return {name.rsplit(".")[-1]: parameter for name, parameter in unit.named_parameters()}


def never_halting_model(norm_position: str):
    """Every probability is exactly zero, so that all positions run all steps and the last state is the output."""
    model = halting_model(norm_position)
    with torch.no_grad():
        parameters = halting_parameters(model.base_model.layers.shared.halting)
        parameters["weight"].zero_()
        parameters["bias"].fill_(-1e4)
    return model


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("halts", [True, False], ids=["halting", "fixed"])
def test_values_and_gradients_are_those_of_a_naive_loop(halts: bool, norm_position: str):
    """Two segments with memory, and the whole text at once: logits, steps, ponder cost, memory and all gradients."""
    model = (halting_model if halts else never_halting_model)(norm_position)
    ids = tokens(4, 17)
    parameters = dict(model.named_parameters())
    state = parameters | {"lm_head.weight": model.lm_head.weight}
    first, second = ids[:, :9], ids[:, 9:]
    *_, inputs = by_hand(state, first, None, model.config, halts)
    mems = [each[:, -MEM_LEN:].detach() for each in inputs]
    logits, steps, cost, _ = by_hand(state, second, mems, model.config, halts)
    assert set(steps.flatten().tolist()) == ({1, 2, 3, 4, 5} if halts else {5})

    memory = memory_of(model(first))
    assert len(memory["mems"].layers) == 5
    torch.testing.assert_close(golden.columns_of(memory["mems"]), mems, **EXACT)
    output = model(second, output_halting=True, **memory)
    assert torch.equal(output.halting, steps)
    torch.testing.assert_close(output.logits, logits, **EXACT)
    torch.testing.assert_close(output.ponder_cost, cost, **EXACT)
    direction, prices = torch.randn_like(logits), torch.rand_like(cost)
    ours, expected = (
        torch.autograd.grad((y * direction).sum() + (c * prices).sum(), [*parameters.values()], materialize_grads=True)
        for y, c in ((output.logits, output.ponder_cost), (logits, cost))
    )
    torch.testing.assert_close(
        dict(zip(parameters, ours, strict=True)), dict(zip(parameters, expected, strict=True)), **EXACT
    )

    whole, steps, _, _ = by_hand(state, ids, None, model.config, halts)
    at_once = model(ids, output_halting=True)
    torch.testing.assert_close(at_once.logits, whole, **EXACT)
    torch.testing.assert_close(at_once.logits[:, 9:], logits, **EXACT)
    assert torch.equal(at_once.halting, steps)


# --- the released code


def signals(length: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Those of 0 .. length-1, whether of positions or of steps, `(length, width)`."""
    scales = torch.exp(-torch.arange(width // 2, dtype=dtype) * math.log(10000) / max(1, width // 2 - 1))
    angles = torch.arange(length, dtype=dtype)[:, None] * scales
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))


class ReleasedLayer(nn.Module):
    """Attention, in a decoder attention to an encoder, and convolutions, each in a pre-norm sub-layer."""

    def __init__(self, case: Case, weights: dict[str, torch.Tensor]):
        super().__init__()
        hyper, self.is_decoder = case.hyper, case.choice("kind", "encoder", "decoder") == "decoder"
        masks = case.choice("use_mask", True, False)
        self.is_causal = self.is_decoder or masks
        width, heads = hyper["hidden_size"], hyper["num_heads"]
        config = UniversalTransformerConfig(
            hidden_size=width, num_attention_heads=heads, head_dim=hyper["total_key_depth"] // heads
        )
        config._attn_implementation = "eager"
        places = ["self", "encoder"] if self.is_decoder else ["self"]
        self.attentions = nn.ModuleDict({place: MemoryAttention(config, 0) for place in places})
        for attention in self.attentions.values():
            attention.v_proj = nn.Linear(width, hyper["total_value_depth"], bias=False)
            attention.o_proj = nn.Linear(hyper["total_value_depth"], width, bias=False)
        self.norms = nn.ModuleDict({place: nn.LayerNorm(width, eps=1e-12) for place in (*places, "convolutions")})
        shapes = [weights[f"convolutions.{number}.weight"].shape for number in range(2)]
        key_depth = len(weights["attentions.self.q_proj.weight"])
        hyper.only_describe(filter_size=shapes[0][0], total_key_depth=key_depth)
        self.convolutions = nn.ModuleList(nn.Conv1d(inner, out, size) for out, inner, size in shapes)

    def forward(self, states: torch.Tensor, encoded: torch.Tensor | None = None) -> torch.Tensor:
        length = states.shape[1]
        visible = torch.ones(1, 1, length, length, dtype=torch.bool)
        visible = visible.tril() if self.is_causal else visible
        inner = self.norms["self"](states)
        states = states + self.attend("self", inner, inner, visible)
        if self.is_decoder:
            states = states + self.attend(
                "encoder", self.norms["encoder"](states), encoded, visible.new_ones(1, 1, 1, 1)
            )
        inner = self.norms["convolutions"](states).transpose(1, 2)
        for convolution in self.convolutions:
            reach = convolution.kernel_size[0] - 1
            around = (reach, 0) if self.is_decoder else (reach // 2, reach - reach // 2)
            inner = convolution(F.pad(inner, around)).relu()
        return states + inner.transpose(1, 2)

    def attend(self, place: str, queries: torch.Tensor, read: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        attention = self.attentions[place]
        return attention(queries, *attention.project(read), context_of(queries.shape[1], mask=visible))[0]


class ReleasedModel(nn.Module):
    def __init__(self, case: Case):
        super().__init__()
        width = case.hyper["hidden_size"]
        self.width, self.num_steps = width, case.hyper["num_layers"]
        ours = translated(case.weights, ((width - 1) / width) ** 0.5)
        self.embedding = nn.Linear(case.hyper["embedding_size"], width, bias=False)
        self.layer = ReleasedLayer(case, {name.removeprefix("layer."): each for name, each in ours.items()})
        self.halting = HaltingUnit(UniversalTransformerConfig(hidden_size=width)) if case.hyper["act"] else None
        self.to(case.dtype)
        names = dict(self.named_parameters())
        ours = {own_name(name, names): tensor for name, tensor in ours.items()}
        if "embedding.weight" not in ours:
            self.embedding = nn.Identity()
        self.load_state_dict(ours)

    def forward(self, x: torch.Tensor, encoded: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """The output, and of a halting model the remainders and the number of updates."""
        state = self.embedding(x)
        by_position = signals(x.shape[1], self.width, x.dtype)
        by_step = signals(self.num_steps, self.width, x.dtype)
        if self.halting is None:
            for signal in by_step:
                state = self.layer(state + by_position + signal, encoded)
            return (state,)
        spent = remainders = updates = torch.zeros_like(x[..., 0])
        output, step = torch.zeros_like(state), 0
        while ((spent < THRESHOLD) & (updates < self.num_steps)).any():
            state = state + by_position + by_step[step]
            p, runs = self.halting(state), (spent < 1).to(x.dtype)
            halts = (spent + p * runs > THRESHOLD) * runs
            runs = (spent + p * runs <= THRESHOLD) * runs
            spent = spent + p * runs
            remainders = remainders + halts * (1 - spent)
            spent = spent + halts * remainders
            updates = updates + runs + halts
            weight = (p * runs + halts * remainders)[..., None]
            state = self.layer(state, encoded)
            output, step = state * weight + output * (1 - weight), step + 1
        return output, remainders, updates


PLACES = {"": "self", "_dec": "self", "_enc_dec": "encoder", "mha": "self", "mha_dec": "self", "mha_enc": "encoder"}
PLACES["ffn"] = "convolutions"


def translated(tensors: dict[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """Tensors under our names, the scales of the norms times `scale`: theirs divide by the unbiased deviation."""
    ours = {}
    for name, tensor in tensors.items():
        match name.split("."):
            case ["layer_norm", _]:
                continue  # it is never used
            case ["embedding_proj", "weight"]:
                ours["embedding.weight"] = tensor
            case ["act_fn", "p", kind]:
                ours[f"halting.{kind}"] = tensor
            case [_, "positionwise_feed_forward", "layers", number, "conv", kind]:
                ours[f"layer.convolutions.{number}.{kind}"] = tensor
            case [_, norm, ("gamma" | "beta") as kind]:
                place = PLACES[norm.removeprefix("layer_norm_")]
                kind, factor = ("weight", scale) if kind == "gamma" else ("bias", 1.0)
                ours[f"layer.norms.{place}.{kind}"] = tensor * factor
            case [_, attention, projection, "weight"]:
                place = PLACES[attention.removeprefix("multi_head_attention")]
                ours[f"layer.attentions.{place}.{projection[0]}_proj.weight"] = tensor
            case _:
                raise KeyError(name)
    return ours


def own_name(name: str, names: dict) -> str:
    """The weights of the halting unit, wherever it holds them."""
    beginning, kind = name.split(".", 1)
    return (
        next(own for own in names if own.startswith("halting.") and own.endswith(kind))
        if beginning == "halting"
        else name
    )


@golden.cases("universal_transformer")
def test_parts_in_the_released_code(case: Case):
    model, width = ReleasedModel(case), case.hyper["hidden_size"]
    inputs = {"x": case.leaf("x")}
    case.hyper.only_describe(batch=inputs["x"].shape[0], len=inputs["x"].shape[1])
    case.hyper.change_nothing("halt_bias")  # it stands among the weights
    if "encoder_output" in case.inputs:
        inputs["encoder_output"] = case.leaf("encoder_output")
    y, *halting = model(*inputs.values())
    case.check("y", y)
    for name, ours in zip(("remainders", "n_updates"), halting, strict=False):
        case.check(name, ours)
    case.check("timing_signal", signals(case.hyper["max_length"], width, case.dtype)[None])
    case.check("position_signal", signals(case.hyper["num_layers"], width, case.dtype)[None])
    scalar = golden.squares(y) + 0.1 * sum(each.sum() for each in halting)
    case.check("scalar", scalar)
    scalar.backward()
    scale, names = (width / (width - 1)) ** 0.5, dict(model.named_parameters())
    found = golden.gradients_of(model, **inputs)
    case.check_gradients(
        found, lambda tensors: {own_name(name, names): each for name, each in translated(tensors, scale).items()}
    )
    case.finish()
