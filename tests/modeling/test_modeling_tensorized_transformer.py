"""What the Tensorized Transformer adds: products of three factors over pairs of distances, causal, and one map of them."""

from pathlib import Path

import pytest
import torch
from by_hand import greedy, language_model, text_by_hand
from tiny import EXACT, memory_of, pairwise, read, tiny_config, tiny_model, tokens
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from transformers_xl import TensorizedTransformerConfig, TransformerXLConfig
from transformers_xl.modeling.layers.attention import RelativeAttention, RelativeBias
from transformers_xl.modeling.layers.multi_linear_attention import (
    MultiLinearAttention,
    NonCausalMultiLinearAttention,
)

CARD = Path(__file__).parents[2] / "model_cards" / "tensorized_transformer.md"


def one_layer(**fields):
    """One layer; biases that are not small and cores that differ, so that each of them shows."""
    tensorized = tiny_model("tensorized_transformer", num_hidden_layers=1, **({"num_cores": 3} | fields))
    with torch.no_grad():
        for name, parameter in tensorized.named_parameters():
            if "bias" in name or "cores" in name:
                parameter.normal_()
    return tensorized


def attention_by_hand(tensorized, inputs: torch.Tensor) -> torch.Tensor:
    """The multi-linear attention of one text `(length, hidden_size)`, for every token, head, core and pair in turn."""
    attention, config = tensorized.layers[0].self_attn, tensorized.config
    bias = tensorized.positions.bias
    table = tensorized.positions(config.attention_window, inputs).flip(0)[1:]  # distances 0 .. W-1
    heads, window = config.num_attention_heads, config.attention_window
    query, key, value, r = (
        (states @ projection.weight.T).unflatten(-1, (heads, config.head_dim))
        for states, projection in (
            (inputs, attention.q_proj), (inputs, attention.k_proj), (inputs, attention.v_proj),
            (table, attention.r_proj),
        )
    )  # fmt: skip
    outputs = []
    for i in range(len(inputs)):
        features = []
        for h in range(heads):
            content_query, position_query = query[i, h] + bias.content_bias[h], query[i, h] + bias.position_bias[h]
            for a in range(window):
                for b in range(window):
                    if i - a < 0 or i - b < 0:
                        features.append(inputs.new_zeros(()))
                        continue
                    factor = content_query * key[i - a, h] + position_query * r[a, h]
                    cores = [(core * factor * value[i - b, h]).sum() for core in attention.cores[h]]
                    features.append(sum(cores) / len(cores))
        outputs.append(attention.o_proj.weight @ torch.stack(features))
    return torch.stack(outputs)


def model_by_hand(tensorized, ids: torch.Tensor) -> torch.Tensor:
    """Output of a model with one layer for one text of ids `(length,)`."""
    layer = tensorized.layers[0]
    x = tensorized.embed_tokens(ids)
    x = layer.input_layernorm.after(x + attention_by_hand(tensorized, layer.input_layernorm.before(x)))
    x = layer.post_attention_layernorm.after(x + layer.mlp(layer.post_attention_layernorm.before(x)))
    return x if tensorized.norm is None else tensorized.norm(x)


@pytest.mark.parametrize(
    ("window", "heads", "norm_position", "recompute"), pairwise([1, 3, 9], [1, 4], ["pre", "post"], [False, True])
)
def test_a_layer_is_its_equations(monkeypatch, recompute, norm_position, heads, window):
    """Values and gradients, at once and in pieces of two tokens, against loops; the memory is the last W - 1 inputs."""
    model = one_layer(
        attention_window=window, num_attention_heads=heads, norm_position=norm_position, recompute_attention=recompute
    )
    ids = tokens(1, 11)
    expected = model_by_hand(model, ids[0])
    parameters = dict(model.named_parameters())
    direction = torch.randn_like(expected)
    by_hand = torch.autograd.grad((expected * direction).sum(), list(parameters.values()))
    for piece in (2**22, 2 * heads * window * max(window, 32 // heads)):
        monkeypatch.setattr("transformers_xl.modeling.layers.multi_linear_attention.PIECE_SIZE", piece)
        output = model(ids)
        ours = output.last_hidden_state[0]
        torch.testing.assert_close(ours, expected, **EXACT)
        gradients = torch.autograd.grad((ours * direction).sum(), list(parameters.values()))
        for name, gradient, other in zip(parameters, gradients, by_hand, strict=True):
            torch.testing.assert_close(gradient, other, **EXACT, msg=lambda m, n=name: f"{n}: {m}")
    (kept,) = output.mems.layers[0].columns
    assert kept.shape == (1, window - 1, 32)
    torch.testing.assert_close(kept[0], model.embed_tokens(ids)[0, 12 - window :].detach(), **EXACT)


@pytest.mark.parametrize(
    ("lengths", "use_cache", "same_length"),
    pairwise([[11], [1] * 11, [2, 6, 3], [10, 1]], [None, True], [True, False]),
)
def test_any_cut_is_the_loop(lengths, use_cache, same_length):
    """Also with `same_length=False`: what a token sees is its window."""
    model = one_layer(attention_window=4, same_length=same_length)
    ids = tokens(2, 11)
    results, memory = read(model, ids, lengths, use_cache=use_cache)
    for row in range(2):
        torch.testing.assert_close(results[row], model_by_hand(model, ids[row]), **EXACT)
    if use_cache:
        assert memory["past_key_values"].memory.num_columns == 3


@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
def test_padding_and_documents_are_the_loop(use_cache):
    model = one_layer(attention_window=4)
    ids = tokens(3, 14)
    mask, reset = torch.ones(3, 14, dtype=torch.bool), torch.zeros(3, 14, dtype=torch.bool)
    mask[0, :3] = mask[1, 5:9] = mask[2, [1, 8, 13]] = False
    reset[0, 6] = reset[2, 9] = reset[2, 3] = True
    results, _ = read(model, ids, [7, 7], use_cache=use_cache, attention_mask=mask, reset=reset)
    for row in range(3):
        document_ids = reset[row].cumsum(0)
        for number in document_ids.unique():
            here = mask[row] & (document_ids == number)
            torch.testing.assert_close(results[row, here], model_by_hand(model, ids[row, here]), **EXACT)


def test_no_output_depends_on_later_tokens():
    """Token i is moved by the W tokens up to itself, and by no other: through one layer, read off the gradient."""
    model = one_layer(attention_window=4)
    embeds = model.get_input_embeddings()(tokens(1, 9)).detach().requires_grad_()
    outputs = model(inputs_embeds=embeds).last_hidden_state[0]
    for i, output in enumerate(outputs):
        (gradient,) = torch.autograd.grad((output * torch.randn_like(output)).sum(), embeds, retain_graph=True)
        moved = gradient[0].any(dim=-1).nonzero().flatten().tolist()
        assert moved == list(range(max(0, i - 3), i + 1))


def test_the_layer_of_the_authors_sees_later_tokens():
    config = tiny_config("tensorized_transformer", attention_window=6)
    torch.manual_seed(0)
    attention, bias = NonCausalMultiLinearAttention(config, 0).double(), RelativeBias(config).double()
    for parameter in (*attention.parameters(), *bias.parameters()):
        nn.init.normal_(parameter)
    x = torch.randn(1, 6, 32, dtype=torch.float64, requires_grad=True)
    positions = torch.randn(6, 32, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(attention(x, positions, bias)[0, 0].sum(), x)
    assert gradient[0].any(dim=-1).all()
    with pytest.raises(ValueError, match="5 positions and `positions` 6: .*`attention_window`=6"):
        attention(x[:, 1:], positions, bias)


def test_last_token_of_a_full_window_is_that_of_the_authors():
    """There all keys exist: place j of theirs is distance W-1-j of ours, and so are the inputs of the map."""
    model = one_layer(attention_window=6)
    ours, bias = model.layers[0].self_attn, model.positions.bias
    theirs = NonCausalMultiLinearAttention(model.config, 0).double()
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():
        theirs.o_proj.weight.copy_(ours.o_proj.weight.unflatten(1, (4, 6, 6)).flip(2, 3).flatten(1))
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    expected = torch.stack([attention_by_hand(model, row)[-1] for row in x])
    positions = model.positions(6, x)[:-1]
    torch.testing.assert_close(theirs(x, positions, bias)[:, -1], expected, **EXACT)


def test_attention_is_a_product_of_three_factors():
    """No softmax and no scale: what is put into one factor comes out."""
    model = one_layer(attention_window=4)
    layer, ids = model.layers[0], tokens(1, 9)
    outputs = []
    layer.self_attn.register_forward_hook(lambda module, arguments, output: outputs.append(output[0]))
    model(ids)
    with torch.no_grad():
        layer.self_attn.v_proj.weight.mul_(3)
    model(ids)
    torch.testing.assert_close(outputs[1], 3 * outputs[0], **EXACT)
    with torch.no_grad():
        for weight in (layer.self_attn.k_proj.weight, layer.self_attn.r_proj.weight):
            weight.mul_(5)
    model(ids)
    torch.testing.assert_close(outputs[2], 15 * outputs[0], **EXACT)


def test_cores_are_averaged_and_belong_to_a_head():
    model = one_layer(attention_window=4)
    cores, ids = model.layers[0].self_attn.cores, tokens(1, 9)
    assert cores.shape == (4, 3, 8)
    expected = model(ids).last_hidden_state
    with torch.no_grad():
        cores.copy_(cores.mean(dim=1, keepdim=True).expand_as(cores))
    torch.testing.assert_close(model(ids).last_hidden_state, expected, **EXACT)
    with torch.no_grad():
        cores.copy_(cores.flip(0))
    assert not torch.allclose(model(ids).last_hidden_state, expected)


def test_cores_begin_as_weights_of_sum_one():
    cores = tiny_model("tensorized_transformer").layers[0].self_attn.cores
    assert (cores > 0).all()
    torch.testing.assert_close(cores.sum(-1), torch.ones(4, 2, dtype=torch.float64))


def test_default_window_fits_into_the_memory():
    assert TensorizedTransformerConfig().attention_window == 32
    assert TensorizedTransformerConfig(mem_len=8).attention_window == 9
    assert TensorizedTransformerConfig(mem_len=0, same_length=False).attention_window == 1
    model = tiny_model("tensorized_transformer", mem_len=64, attention_window=5)
    output = model(tokens(2, 20))
    assert [layer.num_columns for layer in output.mems.layers] == [4, 4]
    following = model(tokens(2, 3, seed=1), **memory_of(output)).last_hidden_state
    whole = model(torch.cat([tokens(2, 20), tokens(2, 3, seed=1)], dim=1)).last_hidden_state
    torch.testing.assert_close(following, whole[:, -3:], **EXACT)


@pytest.mark.parametrize("settings", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str)
def test_generate_with_a_window_shorter_than_the_memory(settings):
    model = language_model("tensorized_transformer", attention_window=4)
    before, ids = tokens(2, 10, seed=1), tokens(2, 5)
    expected = text_by_hand(model, torch.cat([before, ids], dim=1))[:, 10:]
    assert torch.equal(greedy(model, ids, mems=model(before).mems, **settings), expected)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"attention_window": 10}, ["`attention_window`=10", "`mem_len` \\+ 1 = 9"]),
        ({"attention_window": 0}, ["`attention_window`=0", "at least 1"]),
        ({"num_cores": 0}, ["`num_cores`=0", "at least 1"]),
    ],
    ids=str,
)
def test_config_values(fields, names):
    with pytest.raises(ValueError) as error:
        tiny_config("tensorized_transformer", **fields)
    for name in names:
        assert error.match(name)


class StorageSizes(TorchDispatchMode):
    """Numbers in the largest tensor that is made, whatever looks at parts of it."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def test_pairs_of_few_tokens_are_there_at_a_time(monkeypatch):
    monkeypatch.setattr("transformers_xl.modeling.layers.multi_linear_attention.PIECE_SIZE", 2**15)
    model = one_layer(attention_window=9, num_attention_heads=1)
    with torch.no_grad(), StorageSizes() as sizes:
        model(tokens(2, 200))
    assert 2**14 < sizes.largest <= 2 * 200 * 200  # the visible keys, which the model marks once for all layers
    assert sizes.largest < 2 * 200 * 9 * 32


def test_recomputed_pairs_are_not_kept():
    kept = []
    for recompute in (False, True):
        model = one_layer(attention_window=9, recompute_attention=recompute)
        numbers = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, n=numbers: n.append(t.numel()) or t, lambda t: t):
            model(tokens(2, 200))
        kept.append(max(numbers))
    assert kept[0] >= 2 * 200 * 4 * 9 * 9
    assert kept[1] <= 2 * 200 * 64


def attention_dropout_output(p: float) -> torch.Tensor:
    torch.manual_seed(1)
    return one_layer(attention_dropout=p).train()(tokens(1, 9)).last_hidden_state


def test_attention_dropout_falls_on_the_pairs():
    assert not torch.allclose(attention_dropout_output(0.5), attention_dropout_output(0.0))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_on_the_card_are_those_of_the_layers():
    """Attention of width 512, against that of a dense layer."""
    dense = count(RelativeAttention(TransformerXLConfig(), 0))
    rows = [f"| Transformer-XL, 8 heads of 64 | {dense:,} | 1.00 |"]
    for heads, rank, window in ((1, 64, 32), (1, 64, 16), (1, 512, 32), (8, 64, 16), (8, 64, 32)):
        config = TensorizedTransformerConfig(
            num_attention_heads=heads, head_dim=rank, attention_window=window, hidden_size=512
        )
        total = count(MultiLinearAttention(config, 0))
        assert total == 4 * 512 * heads * rank + 512 * heads * window**2 + 2 * heads * rank
        heads = f"{heads} head" if heads == 1 else f"{heads} heads"
        rows.append(f"| {heads} of {rank}, window {window} | {total:,} | {total / dense:.2f} |")
    text = CARD.read_text()
    assert [row for row in rows if row not in text] == []
