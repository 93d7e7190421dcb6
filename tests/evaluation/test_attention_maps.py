"""What heads look at, against loops over the full attention weights of a model."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import run_processes
from tiny import EXACT, VOCAB_SIZE, in_turn, tiny_model, tokens, variants
from transformers import GPT2Config, GPT2LMHeadModel

from transformers_xl.evaluation.attention_maps import (
    Places,
    attention_atlas,
    attention_rows,
    by_distance,
    token_maps,
)
from transformers_xl.modeling.auto import ENCODERS

LENGTH = 21  # three segments of six, and half a one
NOT_SHOWN = (
    "tensorized_transformer", "star_transformer", "segment_memory", "recurrent_memory_transformer", "longformer_encoder",
)  # fmt: skip
SHOWN = [name for name in variants() if name not in NOT_SHOWN]


def text(length: int = LENGTH) -> np.ndarray:
    return tokens(1, length)[0].numpy()


def positions_of_keys(config, start: int, end: int, num_keys: int) -> list[range]:
    """The positions of the text that each key of the segment `start` .. `end` stands for: one, or those of a block that was
    compressed when all of it had left the window."""
    if config.model_type != "compressive_transformer":
        return [range(key, key + 1) for key in range(end - num_keys, end)]
    rate = config.compression_rate
    first, done = (max(count - config.mem_len, 0) // rate for count in (start, end))
    kept = [range(key, key + 1) for key in range(first * rate, end)]
    blocks = [range(number * rate, (number + 1) * rate) for number in range(done - num_keys + len(kept), done)]
    return blocks + kept


@torch.no_grad()
def weights_by_hand(model, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All weights `(rows, heads, tokens, tokens)` by position in the text, and who asked, `(rows, tokens)`."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    segment, mems, seen, asked = model.config.segment_length, None, None, []
    for start in range(0, len(ids), segment):
        kwargs = {"output_halting": True} if model.config.model_type == "universal_transformer" else {}
        here = torch.from_numpy(ids[None, start : start + segment])
        out = model(here, mems=mems, output_attentions=True, **kwargs)
        mems = out.mems
        rows, length = len(out.attentions), here.shape[1]
        depth = out.get("halting", out.get("exit_layers"))
        depth = torch.full((1, length), rows) if depth is None else depth
        asked.append(torch.stack([depth[0] > row for row in range(rows)]))
        seen = np.zeros((rows, out.attentions[0].shape[1], len(ids), len(ids))) if seen is None else seen
        for row, weights in enumerate(out.attentions):
            for j, keys in enumerate(positions_of_keys(model.config, start, start + length, weights.shape[-1])):
                for key in keys:
                    if key >= 0:
                        seen[row, :, start : start + length, key] += weights[0, :, :, j].numpy() / len(keys)
    return seen, torch.cat(asked, dim=1).numpy()


def atlas_by_hand(weights: np.ndarray, asked: np.ndarray, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean weight by distance `(rows, heads, tokens)` and mean entropy `(rows, heads)`, one token after the other."""
    rows, heads, length, _ = weights.shape
    mean, entropy = np.zeros((rows, heads, length)), np.zeros((rows, heads))
    for row in range(rows):
        who = [token for token in range(skip, length) if asked[row, token]]
        for token in who:
            for head in range(heads):
                for key in range(token + 1):
                    weight = weights[row, head, token, key]
                    mean[row, head, token - key] += weight / len(who)
                    entropy[row, head] -= weight * np.log(weight) / len(who) if weight > 0 else 0
        if not who:
            entropy[row] = np.nan
    return mean, entropy


@pytest.mark.parametrize(("length", "num_keys"), [(1, 1), (1, 4), (3, 3), (4, 9)])
def test_weights_by_distance(length: int, num_keys: int):
    weights = torch.rand(2, length, num_keys)
    expected = torch.zeros_like(weights)
    for t in range(length):
        for j in range(num_keys - length + t + 1):
            expected[:, t, num_keys - length + t - j] = weights[:, t, j]
    visible = torch.ones(length, num_keys).tril(num_keys - length)
    assert torch.equal(by_distance(weights * visible), expected)


def test_weights_of_keys_whose_distance_was_told():
    """Two queries, a part of blocks of two positions, a part whose distance is said, and the last three positions."""
    blocks = Places(torch.tensor([[[4, 2], [5, 3]]]), span=2)
    weights = torch.tensor([[0.2, 0.4, 0.1, 0.3, 0.0, 0.0], [0.0, 0.6, 0.1, 0.1, 0.1, 0.1]])
    expected = torch.zeros(2, 7)
    expected[0, [4, 5, 2, 3]] = torch.tensor([0.1, 0.1, 0.2, 0.2])
    expected[0, [1, 0]] += torch.tensor([0.3, 0.0])
    expected[0, 6] += 0.1
    expected[1, [3, 4]] = 0.3
    expected[1, [2, 1, 0, 6]] += torch.tensor([0.1, 0.1, 0.1, 0.1])
    one = Places(torch.tensor([[[6], [6]]]))
    torch.testing.assert_close(by_distance(weights, [blocks, one]), expected)


@pytest.mark.parametrize(("model_type", "implementation"), in_turn(SHOWN, ["sdpa", "eager"]))
def test_an_atlas_is_the_mean_of_all_weights(model_type: str, implementation: str):
    """Whatever form of attention the model uses, and where tokens halt or leave."""
    head = "causal_lm" if model_type == "depth_adaptive_transformer" else "model"  # whose head says who leaves
    model = tiny_model(model_type, head, segment_length=6, num_hidden_layers=3)
    model.set_attn_implementation(implementation)
    weights, asked = weights_by_hand(model, text())
    model.train()
    for skip in (0, 8):
        atlas = attention_atlas(model, text(), skip=skip)
        mean, entropy = atlas_by_hand(weights, asked, skip)
        reach = atlas.mean_weight.shape[-1]
        np.testing.assert_allclose(atlas.mean_weight, mean[..., :reach], **EXACT)
        assert not mean[..., reach:].any()
        assert atlas.mean_weight[..., -1].any()
        np.testing.assert_allclose(atlas.entropy, entropy, **EXACT)
        np.testing.assert_array_equal(atlas.tokens, asked[:, skip:].sum(1))
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(atlas.mean_distance, (mean * np.arange(LENGTH)).sum(-1) / mean.sum(-1), **EXACT)
    if model_type in ("universal_transformer", "depth_adaptive_transformer"):
        assert not asked.all()
    assert model.training
    assert model.config._attn_implementation == implementation
    assert not [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]


@pytest.mark.parametrize(
    "model_type",
    ["transformer_xl", "universal_transformer", "sha_rnn", "causal_longformer", "compressive_transformer"],
)
@pytest.mark.parametrize("count", [4, 9, 99])
def test_token_maps_are_the_weights_themselves(model_type: str, count: int):
    model = tiny_model(model_type, segment_length=6)
    weights, asked = weights_by_hand(model, text())
    heads = [(0, 0), (weights.shape[0] - 1, model.config.num_attention_heads - 1)]
    maps = token_maps(model, text(), heads, count)
    first = max(0, LENGTH - count)
    np.testing.assert_array_equal(maps.queries, np.arange(first, LENGTH))
    assert maps.keys[0] >= 0
    for index, (row, head) in enumerate(heads):
        expected = weights[row, head, first:] * asked[row, first:, None]
        np.testing.assert_allclose(maps.weights[index], expected[:, maps.keys], **EXACT)
        assert not expected[:, : maps.keys[0]].any()
    assert maps.names[0].endswith(", head 1")


def test_a_memory_of_zeros_stands_before_the_text():
    model = tiny_model("transformer_xl", initial_memory="zeros")
    maps = token_maps(model, text(4), [(0, 0)])
    assert maps.keys[0] == 1 - model.config.mem_len
    np.testing.assert_allclose(maps.weights.sum(-1), 1.0, **EXACT)


def test_heads_that_look_furthest_come_first():
    atlas = attention_atlas(tiny_model("transformer_xl"), text())
    order = atlas.furthest(99)
    distances = [atlas.mean_distance[place] for place in order]
    assert len(set(order)) == len(distances) == atlas.entropy.size
    assert distances == sorted(distances, reverse=True)
    assert atlas.furthest(2) == order[:2]
    atlas.mean_weight[1, 2] = 0  # as where nobody asks
    assert (1, 2) not in atlas.furthest(99)
    assert len(atlas.furthest(99)) == len(order) - 1


def test_rows_are_named_by_layer_or_step():
    assert list(attention_rows(tiny_model("transformer_xl", "causal_lm"))) == ["layer 1", "layer 2"]
    assert list(attention_rows(tiny_model("universal_transformer"))) == ["step 1", "step 2"]
    assert list(attention_rows(tiny_model("sha_rnn", num_hidden_layers=3))) == ["layer 2"]


def test_a_model_of_transformers():
    """It reads each segment on its own."""
    config = GPT2Config(vocab_size=VOCAB_SIZE, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    model = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").double().eval()
    ids, segment = text(12), 6
    mean = np.zeros((2, 2, segment))
    model.set_attn_implementation("eager")
    for start in (0, 6):
        out = model(torch.from_numpy(ids[None, start : start + segment]), output_attentions=True)
        for row, weights in enumerate(out.attentions):
            for t in range(segment):
                for j in range(t + 1):
                    mean[row, :, t - j] += weights[0, :, t, j].detach().numpy() / len(ids)
    model.set_attn_implementation("sdpa")
    np.testing.assert_allclose(attention_atlas(model, ids, segment).mean_weight, mean, **EXACT)
    with pytest.raises(ValueError, match="`segment_length`=None"):
        attention_atlas(model, ids)


@pytest.mark.parametrize(
    ("model_type", "word"),
    [
        ("tensorized_transformer", "pair_weights"),
        ("star_transformer", "ring_weights"),
        ("recurrent_memory_transformer", "segment by segment"),
        *((name, "both sides") for name in ("longformer_encoder", *ENCODERS)),
    ],
)
def test_what_has_no_such_weights_says_so(model_type: str, word: str):
    with pytest.raises(ValueError, match=f"{model_type}.*{word}"):
        attention_atlas(tiny_model(model_type), text())
    with pytest.raises(ValueError, match=f"{model_type}.*{word}"):
        token_maps(tiny_model(model_type), text(), [(0, 0)])


def test_what_cannot_be_meant():
    model = tiny_model("transformer_xl")
    for call, message in (
        (lambda: attention_atlas(model, text(), skip=LENGTH), f"`skip`={LENGTH}"),
        (lambda: attention_atlas(model, text(), skip=-1), "`skip`=-1"),
        (lambda: attention_atlas(model, text(), segment_length=0), "`segment_length`=0"),
        (lambda: attention_atlas(model, text(1)), "too short"),
        (lambda: token_maps(model, text(), [(0, 4)]), r"`heads` has \(0, 4\)"),
        (lambda: token_maps(model, text(), [(2, 0)]), r"`heads` has \(2, 0\)"),
        (lambda: token_maps(model, text(), [(0, 0)], tokens=0), "`tokens`=0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


# a memory of zeros is there from the start, so that every segment sees 4000 positions
LARGE = """
import ctypes
from pathlib import Path
import torch
from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.evaluation.attention_maps import attention_atlas

torch.set_num_threads(1)
ctypes.CDLL(None).mallopt(-3, 1_000_000)  # M_MMAP_THRESHOLD: what is freed is given back
SEGMENT = 8
config = TransformerXLConfig(
    vocab_size=40, hidden_size=20, num_hidden_layers=16, num_attention_heads=10, intermediate_size=20, mem_len=4000,
    segment_length=SEGMENT, initial_memory="zeros",
)
model = TransformerXLForCausalLM(config).eval()

def peak():  # of this program: `ru_maxrss` begins with that of the process which started it
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024

attention_atlas(model, torch.arange(2 * SEGMENT) % 40)
print(peak())
atlas = attention_atlas(model, torch.arange(8 * SEGMENT) % 40)
assert atlas.mean_weight.shape == (16, 10, 4000)
print(peak())
model.set_attn_implementation("eager")
with torch.no_grad():
    kept = [model(torch.arange(SEGMENT)[None], output_attentions=True).attentions for _ in range(5)]
print(peak())
"""


def test_a_long_text_of_160_heads_and_4000_positions_fits(tmp_path: Path):
    """The peak of the process stays where it is while the text grows; weights that are kept would lift it."""
    (tmp_path / "large.py").write_text(LARGE)
    result = run_processes(tmp_path / "large.py", processes=1)
    assert result.succeeded, result.stderr
    short, long, kept = map(int, result.stdout.split())
    assert long - short <= 25, result.stdout  # MiB, for 6 segments more: 118 MiB of weights
    assert kept - long >= 60, result.stdout  # the weights of 5 segments of 8 tokens are 98 MiB
