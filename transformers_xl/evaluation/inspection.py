"""What a variant has learned besides its attention weights, measured on a text through hooks on its layers.

Each function works for the variants that have the quantity, and refuses others by name. Only sums, or one number per token,
are kept.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from transformers_xl.evaluation.reading import read_in_segments
from transformers_xl.modeling.layers import gating
from transformers_xl.modeling.layers.multi_linear_attention import MultiLinearAttention
from transformers_xl.modeling.layers.product_key_memory import KeyUsage
from transformers_xl.modeling.layers.star_attention import RingAttention

RING = ("token before", "token itself", "token after", "its embedding", "relay")
GATED = ("attention", "feed-forward")


def learned_spans(model: PreTrainedModel) -> np.ndarray:
    """How many positions before a token each head of an adaptive-span model sees, its ramp included, `(layers, heads)`."""
    spans: Any = getattr(model, "spans", None)
    _require(model, "adaptive_span", spans is not None, "learned spans")
    return spans().cpu().numpy()


def halting_steps(
    model: PreTrainedModel, ids: np.ndarray | torch.Tensor, segment_length: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Of each token of a text, the number of steps N after which a Universal Transformer halted, and its ponder cost N + R
    (R what was left of its halting probability), each `(tokens,)`."""
    _require(model, "universal_transformer", model.config.model_type == "universal_transformer", "halting steps")
    outputs = [output for _, output in read_in_segments(model, ids, segment_length, output_halting=True)]
    steps, cost = ([getattr(output, name)[0] for output in outputs] for name in ("halting", "ponder_cost"))
    return torch.cat(steps).cpu().numpy(), torch.cat(cost).float().cpu().numpy()


def exit_layers(
    model: PreTrainedModel, ids: np.ndarray | torch.Tensor, segment_length: int | None = None
) -> np.ndarray:
    """The layer, counted from 1, after which each token of a text exited a Depth-adaptive Transformer, `(tokens,)`.

    All stay to the last one, unless `config.confidence_thresholds` or `config.exit_by_halting` is set.
    """
    is_adaptive = model.config.model_type == "depth_adaptive_transformer"
    _require(model, "depth_adaptive_transformer", is_adaptive, "exit layers")
    outputs = [output["exit_layers"][0] for _, output in read_in_segments(model, ids, segment_length)]
    return torch.cat(outputs).cpu().numpy()


def key_usage(
    model: PreTrainedModel, ids: np.ndarray | torch.Tensor, segment_length: int | None = None
) -> dict[int, KeyUsage]:
    """How the tokens of a text used the slots of each product-key memory, by the layer that has it, counted from 1."""
    layers = getattr(model.config, "memory_layers", [])
    _require(model, "pkm_transformer", bool(layers), "product keys")
    calls = [output["key_usage"] for _, output in read_in_segments(model, ids, segment_length, output_key_usage=True)]
    sums = [torch.stack([usage.weights for usage in of_layer]).sum(0) for of_layer in zip(*calls, strict=True)]
    return {layer + 1: KeyUsage(weights.cpu()) for layer, weights in zip(sorted(layers), sums, strict=True)}


def gate_openness(
    model: PreTrainedModel, ids: np.ndarray | torch.Tensor, segment_length: int | None = None
) -> np.ndarray:
    """How far the gates of a GTrXL are open, the mean over the tokens of a text, `(layers, 2, hidden_size)`, 0..1: those
    of the attention, then those of the feed-forward.

    0 passes the residual stream alone. It is z of the GRU, the sigmoid that the sub-layer's output is multiplied with of
    `"output"`, `"sigmoid_tanh"` and `"highway"` (one minus that of the stream), and for `"input"`, where the output
    always passes whole, the share of the stream that is kept.
    """
    gates = _modules(model, tuple(_OPENNESS))
    _require(model, "gtrxl", bool(gates), "gates" if model.config.model_type == "gtrxl" else "gates of its sub-layers")
    sums: dict[int, torch.Tensor] = {}
    nothing = torch.zeros((), dtype=torch.float64)

    def add(place: int, gate: nn.Module, args: tuple, kwargs: dict) -> None:
        opened = _OPENNESS[type(gate)](gate, *args)
        sums[place] = sums.get(place, nothing) + opened.sum((0, 1), dtype=torch.float64).cpu()

    in_turn = [gate for layer in _layers(model) for gate in (layer.attn_gate, layer.mlp_gate)]
    with _hooked(dict(enumerate(in_turn)), add, before=True):
        _read(model, ids, segment_length)
    mean = torch.stack([sums[place] for place in range(len(in_turn))]) / len(ids)
    return mean.unflatten(0, (-1, len(GATED))).numpy()


def ring_weights(
    model: PreTrainedModel, ids: np.ndarray | torch.Tensor, segment_length: int | None = None
) -> np.ndarray:
    """Mean weight of what the tokens of a Star-Transformer read (`RING`), `(layers, heads, 5)`."""
    rings = _modules(model, RingAttention)
    _require(model, "star_transformer", bool(rings), "a ring of satellites")
    sums: dict[int, torch.Tensor] = {}
    nothing = torch.zeros((), dtype=torch.float64)

    def add(layer: int, ring: nn.Module, args: tuple, kwargs: dict, output: tuple) -> None:
        sums[layer] = sums.get(layer, nothing) + output[1][0].sum(1, dtype=torch.float64).cpu()

    with _hooked(rings, add):
        _read(model, ids, segment_length)
    return (torch.stack(list(sums.values())) / len(ids)).numpy()


def pair_weights(
    model: PreTrainedModel, ids: np.ndarray | torch.Tensor, segment_length: int | None = None
) -> np.ndarray:
    """How much a Tensorized Transformer reads of each pair of distances, a as key and b as value: the mean of |F| x the
    norm of the column of the output map that reads it, `(layers, heads, attention_window, attention_window)`."""
    attentions = _modules(model, MultiLinearAttention)
    _require(model, "tensorized_transformer", bool(attentions), "pairs of positions")
    sums: dict[int, torch.Tensor] = {}
    nothing = torch.zeros((), dtype=torch.float64)

    def add(layer: int, output_map: nn.Module, args: tuple, kwargs: dict) -> None:
        sums[layer] = sums.get(layer, nothing) + args[0].abs().sum((0, 1), dtype=torch.float64).cpu()

    with _hooked({layer: attention.o_proj for layer, attention in attentions.items()}, add, before=True):
        _read(model, ids, segment_length)
    maps = []
    for layer, attention in attentions.items():
        norms = attention.o_proj.weight.detach().double().norm(dim=0).cpu()
        maps.append((sums[layer] / len(ids) * norms).unflatten(0, (attention.num_heads, attention.window, -1)))
    return torch.stack(maps).numpy()


def _gru(gate: gating.GRUGate, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    update_y, update_x = gate.output_proj(y).chunk(3, dim=-1)[1], gate.stream_proj(x).chunk(2, dim=-1)[1]
    return (update_y + update_x - gate.gate_bias).sigmoid()


_OPENNESS: dict[type, Callable] = {
    gating.GRUGate: _gru,
    gating.HighwayGate: lambda gate, x, y: 1 - (gate.gate_proj(x) + gate.gate_bias).sigmoid(),
    gating.InputGate: lambda gate, x, y: gate.gate_proj(x).sigmoid(),
    gating.OutputGate: lambda gate, x, y: (gate.gate_proj(x) - gate.gate_bias).sigmoid(),
    gating.SigmoidTanhGate: lambda gate, x, y: (gate.gate_proj(y) - gate.gate_bias).sigmoid(),
}


def _layers(model: PreTrainedModel) -> list:
    return list(getattr(model.base_model, "layers", []))


def _modules(model: PreTrainedModel, kind: type | tuple[type, ...]) -> dict[int, Any]:
    """The first module of a kind in each layer that has one, by the number of the layer, from 1."""
    found = {
        number: [module for module in layer.modules() if isinstance(module, kind)]
        for number, layer in enumerate(_layers(model), 1)
    }
    return {number: modules[0] for number, modules in found.items() if modules}


def _require(model: PreTrainedModel, wanted: str, has_it: bool, what: str) -> None:
    if not has_it:
        raise ValueError(f"`model` is a {model.config.model_type!r} without {what}: give a {wanted!r} that has them.")


@contextmanager
def _hooked(modules: dict[int, nn.Module], add: Callable, before: bool = False) -> Iterator[None]:
    """`add(number, module, args, kwargs[, output])` at every call of the modules, before it or after."""
    handles = []
    for number, module in modules.items():
        register = module.register_forward_pre_hook if before else module.register_forward_hook

        def hook(*call, number: int = number) -> None:
            add(number, *call)

        handles.append(register(hook, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _read(model: PreTrainedModel, ids: np.ndarray | torch.Tensor, segment_length: int | None) -> None:
    for _ in read_in_segments(model, ids, segment_length):
        pass


__all__ = [
    "GATED",
    "RING",
    "exit_layers",
    "gate_openness",
    "halting_steps",
    "key_usage",
    "learned_spans",
    "pair_weights",
    "ring_weights",
]
