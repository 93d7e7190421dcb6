"""What complex-order embeddings add: words that turn with their position, however the text is cut, and complex layers."""

import cmath
import math

import mpmath
import pytest
import torch
from contexts import context_of
from safetensors.torch import load_file, save_file
from tiny import EXACT, memory_of, read, result_of, tiny_config, tiny_model, tokens

from transformers_xl.modeling.layers.complex_embedding import AmplitudeDropout, at_positions
from transformers_xl.modeling.layers.complex_layers import ComplexAttention, ComplexLinear, modulus
from transformers_xl.modeling.memory.memory_value import Memory

MODEL = "complex_order_transformer"
SHARING = ("word_and_dimension", "word", "dimension")
use_cache = pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])


# --- the whole model in complex128, position by position, from the state dict alone


def complex_map(state: dict[str, torch.Tensor], name: str, states: torch.Tensor) -> torch.Tensor:
    matrix = torch.complex(*state[f"{name}.weight"].chunk(2))
    mapped = states @ matrix.T
    bias = state.get(f"{name}.bias")
    return mapped if bias is None else mapped + torch.complex(*bias.chunk(2))


def normed(state: dict[str, torch.Tensor], name: str, states: torch.Tensor) -> torch.Tensor:
    scale, shift = state[f"{name}.weight"], state[f"{name}.bias"]
    parts = []
    for part in (states.real, states.imag):
        deviation = part - part.mean(-1, keepdim=True)
        parts.append(deviation / (deviation.square().mean(-1, keepdim=True) + 1e-5).sqrt() * scale + shift)
    return torch.complex(*parts)


def embedded(state: dict[str, torch.Tensor], config, word: int, position: int) -> torch.Tensor:
    """The word at a position, one complex number after the other."""
    width = config.hidden_size // 2

    def entry(table: str, sharing: str, dimension: int) -> torch.Tensor:
        if sharing == "none":
            return torch.zeros((), dtype=torch.float64)
        weight = state[f"model.embed_tokens.{table}.weight"]
        return weight[0 if sharing == "dimension" else word, 0 if sharing == "word" else dimension]

    numbers = []
    for dimension in range(width):
        amplitude = state["model.embed_tokens.weight"][word, dimension] * math.sqrt(width)
        angle = entry("frequency", config.frequency_per, dimension) * position
        angle = angle + entry("phase", config.phase_per, dimension)
        numbers.append(torch.polar(torch.ones_like(angle), angle) * amplitude)
    return torch.stack(numbers)


def attended(state: dict[str, torch.Tensor], name: str, states: torch.Tensor, config) -> torch.Tensor:
    """Attention of `(length, width)` complex vectors to themselves and to what came before, no further than the window."""
    query, key, value = (
        complex_map(state, f"{name}.{kind}_proj", states).unflatten(-1, (config.num_attention_heads, -1))
        for kind in "qkv"
    )
    outputs = []
    for i in range(len(states)):
        first = max(0, i - config.mem_len + 1)
        scores = torch.stack(
            [(query[i] * key[j].conj()).sum(-1).abs() / math.sqrt(config.head_dim / 2) for j in range(first, i + 1)]
        )
        weights = scores.softmax(0)
        outputs.append(sum(weights[j - first][:, None] * value[j] for j in range(first, i + 1)).flatten())
    return complex_map(state, f"{name}.o_proj", torch.stack(outputs))


def logits_by_hand(state: dict[str, torch.Tensor], config, row: torch.Tensor) -> torch.Tensor:
    is_pre = config.norm_position == "pre"
    states = torch.stack([embedded(state, config, int(word), place + 1) for place, word in enumerate(row)])
    for layer in range(config.num_hidden_layers):
        name = f"model.layers.{layer}"
        first, second = f"{name}.input_layernorm", f"{name}.post_attention_layernorm"
        inputs = normed(state, first, states) if is_pre else states
        states = states + attended(state, f"{name}.self_attn", inputs, config)
        states = states if is_pre else normed(state, first, states)
        inner = complex_map(state, f"{name}.mlp.fc1", normed(state, second, states) if is_pre else states)
        inner = torch.complex(inner.real.relu(), inner.imag.relu())
        states = states + complex_map(state, f"{name}.mlp.fc2", inner)
        states = states if is_pre else normed(state, second, states)
    if is_pre:
        states = normed(state, "model.norm", states)
    return states.abs() @ state["model.embed_tokens.weight"].T + state["lm_head.bias"]


@pytest.mark.parametrize("frequency_per", SHARING)
@pytest.mark.parametrize("phase_per", [*SHARING, "none"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_the_model_is_its_equations(frequency_per, phase_per, norm_position):
    """Values and gradients, at once and in segments with memory in both forms."""
    model = tiny_model(
        MODEL,
        "causal_lm",
        hidden_size=12,
        num_attention_heads=2,
        intermediate_size=20,
        mem_len=5,
        frequency_per=frequency_per,
        phase_per=phase_per,
        norm_position=norm_position,
        attention_bias=norm_position == "post",
    )
    for name, parameter in model.named_parameters():  # biases and norms that a wrong half would show
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=float("norm.weight" in name), std=0.3)
    ids = tokens(2, 11)
    ours = model(ids).logits
    assert ours.dtype == torch.float64
    state = dict(model.named_parameters())
    expected = torch.stack([logits_by_hand(state, model.config, row) for row in ids])
    torch.testing.assert_close(ours, expected, **EXACT)
    direction = torch.randn_like(ours)
    by_hand, found = (
        torch.autograd.grad((logits * direction).sum(), list(state.values())) for logits in (expected, ours)
    )
    torch.testing.assert_close(found, by_hand, **EXACT)
    for form in (None, True):
        in_segments, _ = read(model, ids, [3, 1, 7], use_cache=form)
        torch.testing.assert_close(in_segments, expected, **EXACT)


# --- complex arithmetic


def test_a_complex_map_is_linear_over_the_complex_numbers():
    torch.manual_seed(0)
    linear = ComplexLinear(6, 4).double()
    torch.nn.init.normal_(linear.weight)
    torch.nn.init.normal_(linear.bias)
    z = torch.randn(3, 3, dtype=torch.complex128)
    matrix, bias = torch.complex(*linear.weight.chunk(2)), torch.complex(*linear.bias.chunk(2))
    expected = z @ matrix.T + bias
    ours = linear(torch.cat([z.real, z.imag], dim=-1))
    torch.testing.assert_close(ours, torch.cat([expected.real, expected.imag], dim=-1), **EXACT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_modulus_has_a_gradient_at_zero(dtype):
    real, imaginary = (torch.tensor([0.0, part], dtype=dtype, requires_grad=True) for part in (3.0, -4.0))
    values = modulus(real, imaginary)
    values.sum().backward()
    torch.testing.assert_close(values, torch.tensor([0.0, 5.0], dtype=dtype))
    torch.testing.assert_close(real.grad, torch.tensor([0.0, 0.6], dtype=dtype))
    torch.testing.assert_close(imaginary.grad, torch.tensor([0.0, -0.8], dtype=dtype))


def test_attention_turns_with_its_input():
    """A common turn of all numbers leaves the weights as they are: with one product of the score counted twice it would
    not."""
    attention = ComplexAttention(tiny_config(MODEL), 0).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    states = torch.randn(2, 6, 32, dtype=torch.float64)
    turn = cmath.exp(0.7j)
    z = torch.complex(*states.chunk(2, dim=-1)) * turn
    turned_states = torch.cat([z.real, z.imag], dim=-1)
    (output, weights), (turned, turned_weights) = (
        attention(each, *attention.project(each), context_of(6)) for each in (states, turned_states)
    )
    expected = torch.complex(*output.chunk(2, dim=-1)) * turn
    torch.testing.assert_close(turned_weights, weights, **EXACT)
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], dim=-1), **EXACT)


def test_dropout_drops_numbers_and_no_angles():
    dropout = AmplitudeDropout(tiny_config(MODEL, dropout=0.5)).train()
    waves = torch.rand(4, 5, 12, dtype=torch.float64) + 0.1
    dropped = dropout(waves)
    assert torch.equal(dropped[..., 4:], waves[..., 4:])
    kept = dropped[..., :4] != 0
    assert kept.any()
    assert not kept.all()
    torch.testing.assert_close(dropped[..., :4][kept], 2 * waves[..., :4][kept], **EXACT)
    real, imaginary = (part != 0 for part in at_positions(dropped, torch.ones(4, 5)).chunk(2, dim=-1))
    assert torch.equal(real, imaginary)


# --- positions


def test_order_is_in_the_frequencies_alone():
    """A token that sees the same words before it in another order notices it by their turns, and by nothing else."""
    ids = tokens(1, 8)
    shuffled = torch.cat([ids[:, torch.tensor([3, 0, 6, 2, 5, 1, 4])], ids[:, 7:]], dim=1)
    model = tiny_model(MODEL, num_hidden_layers=1)
    for is_still in (False, True):
        if is_still:
            torch.nn.init.zeros_(model.embed_tokens.frequency.weight)
        ours, other = (model(text).last_hidden_state[:, -1] for text in (ids, shuffled))
        assert torch.allclose(ours, other, **EXACT) == is_still


@use_cache
def test_positions_run_on(use_cache):
    """The same words in the second segment are other vectors than in the first, and so are those of one long text; what a
    row has read is counted without padding, from 1 again after a reset, of a document's own start."""
    model = tiny_model(MODEL)
    seen = []
    model.layers[0].register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]), prepend=True)
    ids = tokens(1, 1).expand(4, 6)
    mask, reset = torch.ones(4, 6, dtype=torch.bool), torch.zeros(4, 6, dtype=torch.bool)
    mask[1, :2] = mask[2, 3:] = False
    reset[3, 2] = True
    first = model(ids, attention_mask=mask, reset=reset, use_cache=use_cache)
    memory = memory_of(first)
    assert first.mems.tokens_read.tolist() == [6, 4, 3, 4]
    assert first.mems.tokens_read.dtype == torch.long
    model(ids[:, :1], reset=torch.tensor([False, False, True, False]), **memory)
    waves = model.embed_tokens(ids)
    expected = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 1, 1], [1, 2, 3, 1, 1, 1], [1, 2, 1, 2, 3, 4]])
    here = at_positions(waves, expected)
    real = torch.stack([mask[0], mask[1].flip(0), mask[2], mask[3]])  # padding stands after the tokens inside
    torch.testing.assert_close(seen[0][real], here[real], **EXACT)
    torch.testing.assert_close(seen[1], at_positions(waves[:, :1], torch.tensor([[7], [5], [1], [5]])), **EXACT)


def test_a_segment_of_padding_alone_moves_no_position():
    model = tiny_model(MODEL)
    first = model(tokens(2, 5))
    mask = torch.tensor([[False] * 3, [True] * 3])
    second = model(tokens(2, 3, seed=1), attention_mask=mask, mems=first.mems)
    assert second.mems.tokens_read.tolist() == [5, 8]
    ours = model(tokens(2, 4, seed=2), mems=second.mems)
    expected = model(tokens(2, 4, seed=2)[:1], mems=first.mems.rows([0]))
    torch.testing.assert_close(result_of(ours)[:1], result_of(expected), **EXACT)


def test_a_text_that_begins_at_padding_counts_from_there():
    model = tiny_model(MODEL)
    first = model(tokens(2, 5))
    mask = torch.tensor([[False] * 3, [True] * 3])
    reset = torch.tensor([[False, True, False], [False, False, False]])
    second = model(tokens(2, 3, seed=1), attention_mask=mask, reset=reset, mems=first.mems)
    assert second.mems.tokens_read.tolist() == [0, 8]
    ours = model(tokens(2, 4, seed=2), mems=second.mems)
    expected = model(tokens(2, 4, seed=2)[:1])
    torch.testing.assert_close(result_of(ours)[:1], result_of(expected), **EXACT)


def test_far_angles_are_exact():
    """At position 1,000,000 and far beyond, for float32 frequencies: float64 angles, where float32 angles are lost."""
    torch.manual_seed(0)
    waves = torch.cat([torch.ones(1, 1, 64), torch.rand(1, 1, 64), torch.rand(1, 1, 64) * 6 - 3], dim=-1)
    for position in (1_000_000, 2**29 - 1):
        values = at_positions(waves, torch.tensor([[position]]))[0, 0]
        with mpmath.workdps(50):
            angles = [
                mpmath.mpf(f) * position + mpmath.mpf(p)
                for f, p in zip(*(part[0, 0].tolist() for part in waves.chunk(3, dim=-1)[1:]), strict=True)
            ]
            exact = torch.tensor([float(function(angle)) for function in (mpmath.cos, mpmath.sin) for angle in angles])
        torch.testing.assert_close(values, exact, atol=2e-7, rtol=0)
        in_float32 = (waves[0, 0, 64:128] * position + waves[0, 0, 128:]).cos()
        assert (in_float32 - exact[:64]).abs().max() > 1e-2


@use_cache
def test_a_text_far_on_is_read_as_in_float64(use_cache):
    """A float32 model whose row has read 1,000,000 tokens, against the same model in float64."""
    results = []
    for dtype in (torch.float32, torch.float64):
        model = tiny_model(MODEL, dtype=torch.float32).to(dtype)
        mems = model(tokens(1, 6)).mems._replace(tokens_read=torch.tensor([1_000_000]))
        output = model(tokens(1, 9, seed=1), mems=mems, use_cache=use_cache)
        assert output.mems.tokens_read.tolist() == [1_000_009]
        results.append(result_of(model(tokens(1, 4, seed=2), **memory_of(output))).double())
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_a_bfloat16_model_counts_every_token():
    """A bfloat16 number stops counting at 256."""
    model = tiny_model(MODEL, dtype=torch.bfloat16)
    mems = model(tokens(1, 300)).mems
    for use_cache in (None, True):
        output = model(tokens(1, 1), mems=mems, use_cache=use_cache)
        assert output.mems.tokens_read.tolist() == [301]


def test_memory_goes_through_a_file(tmp_path):
    mems = tiny_model(MODEL)(tokens(2, 9)).mems
    save_file(mems.named_tensors(), tmp_path / "mems.safetensors")
    loaded = Memory.from_named_tensors(load_file(tmp_path / "mems.safetensors"))
    assert all(not tensor.is_complex() for tensor in mems.named_tensors().values())
    torch.testing.assert_close(loaded, mems, atol=0, rtol=0)


# --- vocabulary and configuration


@pytest.mark.parametrize("sharing", SHARING)
def test_new_words_get_frequencies_and_phases(sharing):
    model = tiny_model(MODEL, "causal_lm", frequency_per=sharing, phase_per=sharing)
    before = {name: parameter.clone() for name, parameter in model.model.embed_tokens.named_parameters()}
    logits = model(tokens(2, 7)).logits
    model.resize_token_embeddings(41)
    for name, parameter in model.model.embed_tokens.named_parameters():
        rows = 1 if sharing == "dimension" and name != "weight" else 41
        assert parameter.shape == (rows, before[name].shape[1])
        assert torch.equal(parameter[: len(before[name])], before[name])
    output = model(torch.tensor([[40, 5, 39]]))
    assert output.logits.shape == (1, 3, 41)
    assert output.logits.isfinite().all()
    torch.testing.assert_close(model(tokens(2, 7)).logits[..., :37], logits, **EXACT)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"hidden_size": 31}, ["`hidden_size`=31", "even"]),
        ({"head_dim": 7}, ["`head_dim`=7", "even"]),
        ({"intermediate_size": 63}, ["`intermediate_size`=63", "even"]),
        ({"frequency_per": "token"}, ["`frequency_per`='token'", "word_and_dimension"]),
        ({"frequency_per": "none"}, ["`frequency_per`='none'", "word_and_dimension"]),
        ({"phase_per": "token"}, ["`phase_per`='token'", "none"]),
    ],
    ids=str,
)
def test_config_values(fields, names):
    with pytest.raises(ValueError) as error:
        tiny_config(MODEL, **fields)
    for name in names:
        assert error.match(name)


def test_embeddings_without_frequencies_are_refused():
    with pytest.raises(ValueError, match="`inputs_embeds` has width 32: .* must be 48"):
        tiny_model(MODEL)(inputs_embeds=torch.zeros(2, 5, 32, dtype=torch.float64))


@torch.no_grad()
def test_a_model_that_is_loaded_in_bfloat16_keeps_its_angles(tmp_path):
    """A frequency of 8 bits is off by a radian after some hundreds of tokens."""
    model = tiny_model("complex_order_transformer", "causal_lm", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    table, exact = (each.get_input_embeddings() for each in (loaded, model))
    assert {table.frequency.weight.dtype, table.phase.weight.dtype} == {torch.float32}
    assert table.weight.dtype == torch.bfloat16
    positions, ids = torch.full((1, 9), 5000), tokens(1, 9)
    torch.testing.assert_close(
        at_positions(table(ids), positions), at_positions(exact(ids), positions), atol=0.01, rtol=0.01
    )
    output = loaded(ids, use_cache=True)
    assert output.logits.dtype == torch.bfloat16
    assert {each.dtype for each in output.mems.named_tensors().values() if each.is_floating_point()} == {
        torch.bfloat16
    }
    assert loaded.generate(ids, max_new_tokens=3, do_sample=False).shape == (1, 12)
