"""What the causal Longformer changes: windows by layer, dilation by head, and no tensor of length x length."""

import itertools
import math

import pytest
import reference
import torch
from contexts import context_of
from tiny import EXACT, pairwise, read, read_row_alone, result_of, tiny_config, tiny_model, tokens
from torch.utils._python_dispatch import TorchDispatchMode

from transformers_xl.modeling.layers.banded_attention import BandedAttention
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment
from transformers_xl.modeling.ops import band, relative_attention

# layers with and without gaps, and heads with several kinds of them
FIELDS = {"attention_window": [2, 3], "attention_dilation": [[1, 1, 2, 2], [1, 3, 2, 3]], "mem_len": 10}
piece_lengths = pytest.mark.parametrize("piece_length", [1, 3, 64])


def naive(
    attention: BandedAttention, bias, segment: torch.Tensor, memory: torch.Tensor, window: int, dilations: list[int]
) -> torch.Tensor:
    """The attention of one row `(T, hidden)` after `(M, hidden)`, for every head, query and key in turn."""
    heads, width = attention.num_heads, attention.head_dim
    context = torch.cat([memory, segment])
    query = (segment @ attention.q_proj.weight.T).unflatten(-1, (heads, width))
    key = (context @ attention.k_proj.weight.T).unflatten(-1, (heads, width))
    value = (context @ attention.v_proj.weight.T).unflatten(-1, (heads, width))
    outputs = []
    for i in range(len(segment)):
        position = len(memory) + i
        for head, dilation in enumerate(dilations):
            seen = [j for j in range(position - window * dilation, position + 1, dilation) if j >= 0]
            scores = []
            for j in seen:
                sinusoid = reference.sinusoid(position - j, segment.shape[1], -1, segment.dtype)
                relative = (attention.r_proj.weight @ sinusoid).view(heads, width)[head]
                content = (query[i, head] + bias.content_bias[head]) @ key[j, head]
                scores.append((content + (query[i, head] + bias.position_bias[head]) @ relative) / math.sqrt(width))
            outputs.append(torch.stack(scores).softmax(0) @ value[seen, head])
    return torch.stack(outputs).view(len(segment), -1) @ attention.o_proj.weight.T


@pytest.mark.parametrize(
    ("attention", "piece_length", "heads", "lengths"),
    pairwise(
        ["eager", "sdpa", "sdpa without a backend"],
        [1, 3, 64],
        [(0, [1] * 4), (3, [1] * 4), (3, [2] * 4), (2, [1, 3, 2, 3]), (20, [1, 1, 1, 2])],  # window, dilations
        [(0, 1), (0, 9), (4, 2), (6, 1), (7, 12), (40, 3)],  # memory, segment
    ),
    ids=str,
)
def test_attention_is_its_equations(attention, piece_length, heads, lengths, monkeypatch):
    """Values and gradients, in float64; the second row has padding in its memory, the third a document that begins."""
    (window, dilations), (memory, length) = heads, lengths
    monkeypatch.setattr(band, "PIECE_LENGTH", piece_length)
    model = tiny_model(
        "causal_longformer", num_hidden_layers=1, attention_window=window, attention_dilation=[dilations], mem_len=40
    )
    if attention == "sdpa without a backend":  # as on devices that have none
        monkeypatch.setattr(relative_attention, "BACKENDS", {})
    model.set_attn_implementation(attention.split()[0])
    layer, bias, reach = model.layers[0].self_attn, model.positions.bias, window * max(dilations) + 1
    segment = torch.randn(3, length, 32, dtype=torch.float64, requires_grad=True)
    remembered = torch.randn(3, memory, 32, dtype=torch.float64)
    begins = [0, memory // 2, memory + length // 2]  # column that each row's text begins with

    lengths = torch.tensor([memory, memory - memory // 2, memory])
    reset = torch.zeros(3, length, dtype=torch.bool)
    reset[2, length // 2] = True
    here = Segment.of(memory, lengths, lengths, length, Call.of(None, reset, None)).seen_by(memory, memory, reach)
    table = model.positions(min(memory + length, 41), segment)
    context = LayerContext(here, reach, keep=0, positions=table, bias=bias())
    output, weights = layer(segment, *layer.project(torch.cat([remembered, segment], dim=1)), context)
    assert (weights is None) == (attention != "eager")

    expected = []
    for row, begin in enumerate(begins):
        text = torch.cat([remembered[row], segment[row]])
        split = max(begin, memory)
        part = naive(layer, bias, text[split:], text[begin:split], window, dilations)
        before = (
            naive(layer, bias, text[memory:split], text[:memory], window, dilations) if split > memory else part[:0]
        )
        expected.append(torch.cat([before, part]))
    expected = torch.stack(expected)
    torch.testing.assert_close(output, expected, **EXACT)
    sources = [segment, *layer.parameters(), *bias.parameters()]
    direction = torch.randn_like(expected)
    ours, by_hand = (torch.autograd.grad((result * direction).sum(), sources) for result in (output, expected))
    torch.testing.assert_close(ours, by_hand, **EXACT)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_head_sees_every_dth_position_of_its_window_and_no_other(attention):
    """The idea of the paper: which of 20 tokens move the last one, by the weights of each head alone."""
    model = tiny_model(
        "causal_longformer", num_hidden_layers=1, attention_window=3, attention_dilation=[[1, 2, 3, 5]], mem_len=15
    )
    model.set_attn_implementation(attention)
    layer = model.layers[0].self_attn
    states = torch.randn(4, 1, 4, 20, 8, dtype=torch.float64, requires_grad=True)  # queries, keys, values by head
    told = {"window": 16, "positions": model.positions(16, states), "bias": model.positions.bias()}
    output, _ = layer.attend(*states[:3], context_of(20, **told))
    for head, dilation in enumerate([1, 2, 3, 5]):
        (gradient,) = torch.autograd.grad(output[0, -1, head].sum(), states, retain_graph=True)
        for of_keys in gradient[1:3, 0]:
            seen = of_keys.abs().sum(-1).nonzero().tolist()
            assert seen == [[head, 19 - m * dilation] for m in (3, 2, 1, 0)]


@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
@piece_lengths
def test_segments_with_memory_are_one_long_forward(use_cache, piece_length, monkeypatch):
    monkeypatch.setattr(band, "PIECE_LENGTH", piece_length)
    model = tiny_model("causal_longformer", **FIELDS)
    ids = tokens(2, 30)
    at_once = result_of(model(ids))
    for lengths in ([1] * 30, [3] * 10, [7, 1, 22], [13, 17], [28, 2]):
        cut_up, memory = read(model, ids, lengths, use_cache=use_cache)
        torch.testing.assert_close(cut_up, at_once, **EXACT)
    kept = memory["past_key_values"].memory if use_cache else memory["mems"]
    assert [layer.num_columns for layer in kept.layers] == [4, 9]


@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_documents_with_gaps_by_head(use_cache, side):
    """Rows of unequal length in every segment, one of them empty, and documents that begin inside."""
    model = tiny_model("causal_longformer", **FIELDS)
    ids, mask, reset = tokens(3, 36), torch.zeros(3, 36, dtype=torch.bool), torch.zeros(3, 36, dtype=torch.bool)
    for (row, segment), count in zip(
        itertools.product(range(3), range(3)), [12, 5, 9, 7, 12, 0, 1, 2, 12], strict=True
    ):
        begin = 12 * segment + (12 - count if side == "left" else 0)
        mask[row, begin : begin + count] = True
        if row < 2 and count > 3:
            reset[row, begin + 3] = True
    result, _ = read(model, ids, [12] * 3, use_cache=use_cache, attention_mask=mask, reset=reset)
    for row in range(3):
        alone = read_row_alone(model, ids[row], [12] * 3, attention_mask=mask[row], reset=reset[row])
        torch.testing.assert_close(result[row, mask[row]], alone, **EXACT)


class LargestTensor(TorchDispatchMode):
    """Notes the entries of the largest tensor that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.entries = max(self.entries, tensor.numel())
        return result


@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
@pytest.mark.parametrize("padded", [False, True], ids=["plain", "padded"])
@pytest.mark.parametrize("memory", [False, True], ids=["fresh", "with memory"])
def test_nothing_grows_faster_than_the_length(memory, padded, use_cache):
    """Forward and backward of twice the tokens: the largest of all tensors is twice as large, not four times."""
    model = tiny_model(
        "causal_longformer", dtype=torch.float32, attention_window=[16, 32], attention_dilation=[1, [1, 1, 1, 2]],
        mem_len=64,
    )  # fmt: skip
    before = model(tokens(1, 70), use_cache=use_cache)
    sizes = []
    for length in (1024, 2048):
        mask = torch.ones(1, length, dtype=torch.bool)
        mask[0, :100] = not padded
        arguments = {"past_key_values": MemoryCache(before.mems)} if use_cache and memory else {"mems": before.mems}
        arguments = arguments if memory else {}
        with LargestTensor() as largest:
            output = model(tokens(1, length), attention_mask=mask, use_cache=use_cache, **arguments)
            output.last_hidden_state.square().mean().backward()
        sizes.append(largest.entries)
    assert sizes[1] <= 2.05 * sizes[0] < 1024**2


# --- configuration


def test_windows_grow_over_the_layers_up_to_the_memory():
    for layers in (1, 2, 3, 6, 12, 40):
        config = tiny_config("causal_longformer", num_hidden_layers=layers, mem_len=512)
        assert len(config.windows) == layers
        assert config.windows == sorted(config.windows)
        assert config.windows[-1] == 512
        assert config.windows[0] == (32 if layers > 1 else 512)
        assert config.layer_mem_lens == config.windows
        assert config.layer_windows == [window + 1 for window in config.windows]
    assert tiny_config("causal_longformer", num_hidden_layers=3, mem_len=100).windows == [6, 25, 100]
    dilated = tiny_config(
        "causal_longformer", num_hidden_layers=3, mem_len=100, attention_dilation=[1, 2, [1, 1, 4, 3]]
    )
    assert dilated.windows == [6, 12, 25]
    assert dilated.layer_windows == [7, 25, 101]


def test_a_layer_remembers_window_times_dilation():
    config = tiny_config("causal_longformer", **FIELDS)
    assert config.windows == [2, 3]
    assert config.dilations == FIELDS["attention_dilation"]
    assert config.layer_mem_lens == [4, 9]
    assert config.sliding_window == 10
    assert tiny_config("causal_longformer", attention_window=4, attention_dilation=2).layer_mem_lens == [8, 8]
    shortened = tiny_config("causal_longformer", attention_window=[2, 5], attention_dilation=[1, 3], mem_len=8)
    assert shortened.windows == [2, 2]
    assert shortened.layer_mem_lens == [2, 6]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_dilation": 9}, "`attention_dilation`=9 of layer 0 .*`mem_len`=8.*at least 9"),
        (
            {"attention_window": [2, 3], "attention_dilation": [1, [1, 1, 1, 9]]},
            "`attention_dilation`=9 of layer 1 .*`mem_len`=8.*at least 9",
        ),
        (
            {"attention_window": 1, "mem_len": 0, "same_length": False},
            "`attention_dilation`=1 of layer 0 .*`mem_len`=0",
        ),
        ({"attention_window": -1}, "`attention_window`=-1 of layer 0"),
        ({"attention_window": [2, -3]}, "`attention_window`=-3 of layer 1"),
        ({"attention_window": [2]}, r"`attention_window`=\[2\] has 1 entries.*`num_hidden_layers`=2"),
        ({"attention_dilation": [1, 1, 1]}, "`attention_dilation`=.* has 3 entries.*`num_hidden_layers`=2"),
        ({"attention_dilation": 0}, r"`attention_dilation`\[0\]=.*from 1 on"),
        ({"attention_dilation": [1, [1, 2]]}, r"`attention_dilation`\[1\]=\[1, 2\].*`num_attention_heads`=4"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny_config("causal_longformer", **fields)


def test_windows_may_be_changed_between_steps():
    """As the paper trains, in stages; a memory that is made shorter shortens the windows that it no longer holds."""
    model = tiny_model("causal_longformer", **FIELDS)
    for change, fields in (
        ({"mem_len": 6}, {"mem_len": 6, "attention_window": [2, 2]}),
        ({"mem_len": 20, "attention_window": [5, 6]}, {"mem_len": 20, "attention_window": [5, 6]}),
    ):
        other = tiny_model("causal_longformer", **(FIELDS | fields))
        other.load_state_dict(model.state_dict())
        for name, value in change.items():
            setattr(model.config, name, value)
        ours, expected = (read(each, tokens(2, 30), [9, 21], use_cache=True)[0] for each in (model, other))
        torch.testing.assert_close(ours, expected, **EXACT)
