"""What the Streaming Transformer is made of: convolutions, n-grams, rotary positions, and how they are remembered."""

import math

import pytest
import torch
from tiny import EXACT, allows, newest, tiny_config, tiny_model, tokens

from transformers_xl.configuration.configuration_streaming_transformer import StreamingTransformerConfig
from transformers_xl.modeling.layers.ngram_embedding import MULTIPLIER, PRIME
from transformers_xl.modeling.layers.rotary_positions import Rotation
from transformers_xl.modeling.memory.memory_value import cat_memories
from transformers_xl.modeling.memory.segment import Call, Segment

STREAMING = "streaming_transformer"


def convolved(convolution, inputs: torch.Tensor) -> torch.Tensor:
    """`x_t + sum_k w_k x_{t-k}` of `(length, width)`, position by position."""
    weight, outputs = convolution.weight, []
    for place in range(len(inputs)):
        outputs.append(inputs[place])
        for back in range(min(len(weight), place + 1)):
            outputs[-1] = outputs[-1] + weight[len(weight) - 1 - back] * inputs[place - back]
    return torch.stack(outputs)


def turned(features: torch.Tensor, place: int, base: float) -> torch.Tensor:
    """`features` `(head_dim,)` of a token at this place, pair by pair."""
    half, out = len(features) // 2, features.clone()
    for pair in range(half):
        angle = place * base ** (-pair / half)
        x, y, cos, sin = features[pair], features[half + pair], math.cos(angle), math.sin(angle)
        out[pair], out[half + pair] = x * cos - y * sin, x * sin + y * cos
    return out


def attended(attention, inputs: torch.Tensor, window: int) -> torch.Tensor:
    """The attention on `(length, width)`, head by head and query by query."""
    config, outputs = attention.config, []
    query, key, value = (
        each(inputs).unflatten(-1, (config.num_attention_heads, config.head_dim))
        for each in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    query, key = attention.q_norm(query), attention.k_norm(key)
    for place in range(len(inputs)):
        heads = []
        for head in range(config.num_attention_heads):
            seen = range(max(0, place - window + 1), place + 1)
            mine = turned(query[place, head], place, config.rotary_base)
            scores = torch.stack([mine @ turned(key[each, head], each, config.rotary_base) for each in seen])
            weights = (scores / config.head_dim**0.5).softmax(0)
            heads.append(sum(weight * value[each, head] for weight, each in zip(weights, seen, strict=True)))
        outputs.append(attention.o_proj(torch.cat(heads)))
    return torch.stack(outputs)


def ngram_vectors(model, ids: list[int]) -> torch.Tensor:
    """The sum of the vectors of the n-grams that end with each id, `(length, width)`."""
    table, rows = model.ngrams.weight, model.config.ngram_table_size
    outputs = []
    for place in range(len(ids)):
        total = 0
        for number, order in enumerate(model.config.ngram_orders):
            code = 0
            for back in range(order):
                number_of_id = ids[place - back] + 1 if back <= place else 0
                code += pow(MULTIPLIER, back + 1, PRIME) * number_of_id
            total = total + table[number * rows + code % PRIME % rows]
        outputs.append(total)
    return torch.stack(outputs)


def by_hand(model, ids: list[int]) -> torch.Tensor:
    """The last hidden states `(length, width)` of one document."""
    config = model.config
    x = (model.embed_tokens.weight[ids] + ngram_vectors(model, ids)) * math.sqrt(config.hidden_size)
    for layer in model.layers:
        x = x + attended(layer.self_attn, convolved(layer.attn_conv, layer.input_layernorm(x)), config.mem_len)
        y = convolved(layer.mlp_conv, layer.post_attention_layernorm(x))
        gate, up = (y @ layer.mlp.gate_up_proj.weight.T).chunk(2, dim=-1)
        x = x + (gate * gate.sigmoid() * up) @ layer.mlp.down_proj.weight.T
    return model.norm(x)


def random_weights(model):
    """The model with gains and biases that are not where they start."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    ("conv_kernel_size", "ngram_orders", "mem_len"), [(4, [2, 3], 8), (1, [2], 3), (3, [3, 5], 16), (6, [4], 1)]
)
def test_the_model_is_its_equations(conv_kernel_size, ngram_orders, mem_len):
    """Values and gradients of one call, and values of segments, as short as a token, against loops over positions."""
    model = random_weights(
        tiny_model(STREAMING, conv_kernel_size=conv_kernel_size, ngram_orders=ngram_orders, mem_len=mem_len)
    )
    ids = tokens(1, 14)
    expected, output = by_hand(model, ids[0].tolist()), model(ids).last_hidden_state[0]
    torch.testing.assert_close(output, expected, atol=1e-7, rtol=1e-7)  # angles are counted in 2^32 parts of a turn
    direction, parameters = torch.randn_like(expected), list(model.parameters())
    ours, theirs = (
        torch.autograd.grad((result * direction).sum(), parameters, allow_unused=True) for result in (output, expected)
    )
    assert all(gradient is not None for gradient in ours)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    for use_cache in (None, True):
        memory, parts = {}, []
        for segment in ids.split([1, 2, 1, 7, 3], dim=1):
            result = model(segment, use_cache=use_cache, **memory)
            memory = {"mems": result.mems} if use_cache is None else {"past_key_values": result.past_key_values}
            parts.append(result.last_hidden_state[0])
        torch.testing.assert_close(torch.cat(parts), output, **EXACT)


def test_documents_of_padded_rows_are_read_as_if_alone():
    """A row of two documents, one that begins with the last token, and padding on the left: each document by hand."""
    model = random_weights(tiny_model(STREAMING))
    ids, reset = tokens(3, 9), torch.zeros(3, 9, dtype=torch.bool)
    reset[0, 2] = reset[1, 8] = reset[2, 5] = True
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[2, :4] = 0
    first = model(tokens(3, 2, seed=1))
    output = model(ids, attention_mask=mask, reset=reset, mems=first.mems)
    follow = tokens(3, 4, seed=2)
    then = model(follow, mems=output.mems).last_hidden_state
    start, after = tokens(3, 2, seed=1).tolist(), follow.tolist()
    documents = {
        0: [(start[0] + ids[0, :2].tolist(), 2), (ids[0, 2:].tolist() + after[0], 0)],
        1: [(start[1] + ids[1, :8].tolist(), 2), (ids[1, 8:].tolist() + after[1], 0)],
        2: [(start[2] + ids[2, 4:5].tolist(), 2), (ids[2, 5:].tolist() + after[2], 0)],
    }
    for row, texts in documents.items():
        expected = torch.cat([by_hand(model, text)[known:] for text, known in texts])
        ours = torch.cat([output.last_hidden_state[row, mask[row].bool()], then[row]])
        torch.testing.assert_close(ours, expected, atol=1e-7, rtol=1e-7)


def test_what_is_remembered():
    """Keys and values that have been read, the last inputs of both convolutions, and the last ids."""
    model = tiny_model(STREAMING, mem_len=5)
    inputs: dict[str, list] = {"attn_conv": [], "mlp_conv": []}
    for name, seen in inputs.items():
        for layer in model.layers:
            getattr(layer, name).register_forward_pre_hook(lambda module, given, seen=seen: seen.append(given[0]))
    ids = tokens(2, 9)
    memory = model(ids).mems
    torch.testing.assert_close(memory.state[0], ids[:, -2:] + 1)
    for number, (layer, past) in enumerate(zip(model.layers, memory.layers, strict=True)):
        for state, name in zip(past.state, inputs, strict=True):
            torch.testing.assert_close(state, inputs[name][number][:, -3:], **EXACT)
        read = layer.attn_conv(inputs["attn_conv"][number], layer.attn_conv.new_tail(2, past.state[0]), whole(9))[0]
        key, value = layer.self_attn.project(read)
        key = Rotation.of(torch.arange(9)[None], 8, model.config.rotary_base, torch.float64).turn(key)
        for ours, expected in zip(past.columns, (key, value), strict=True):
            torch.testing.assert_close(ours, newest(expected, 4), **EXACT)
            assert not ours.requires_grad
    short = model(ids[:, :1]).mems
    assert short.state[0].tolist() == [[0, id_ + 1] for id_ in ids[:, 0].tolist()]
    assert all((state[:, :-1] == 0).all() for past in short.layers for state in past.state)


def whole(length: int):
    """A segment of one new row."""
    none = torch.zeros(1, dtype=torch.long)
    return Segment.of(0, none, none, length, Call())


def test_scores_depend_on_distances_however_far_a_text_is_read():
    """Places of a token in the millions turn queries and keys by the same angles, to the last places of float32."""
    query, key = torch.randn(2, 1, 1, 1, 64)
    scores = []
    for place in (0, 1000, 10**6, 10**9):
        places = torch.tensor([[place + 37]]), torch.tensor([[place]])
        turned_ones = [
            Rotation.of(each, 64, 1000.0, torch.float32).turn(states)
            for each, states in zip(places, (query, key), strict=True)
        ]
        scores.append((turned_ones[0] * turned_ones[1]).sum())
    torch.testing.assert_close(torch.stack(scores[1:]), scores[0].expand(3), atol=1e-5, rtol=1e-5)


def test_tokens_without_ids_are_in_no_ngram():
    """Vectors have none; ids after them begin new n-grams, and the vectors of ids that follow ids end theirs."""
    model = tiny_model(STREAMING)
    ids = tokens(1, 8)
    without = tiny_model(STREAMING, ngram_orders=[])
    without.load_state_dict({name: each for name, each in model.state_dict().items() if name != "ngrams.weight"})
    vectors = model.get_input_embeddings()(ids)
    given = model(inputs_embeds=vectors)
    torch.testing.assert_close(given.last_hidden_state, without(ids).last_hidden_state, **EXACT)
    assert given.mems.state[0].tolist() == [[0, 0]]
    both = model(inputs_embeds=vectors[:, :1], mems=model(ids[:, :5]).mems)
    assert both.mems.state[0].tolist() == [[int(ids[0, 4]) + 1, 0]]
    expected = without(ids).last_hidden_state, model(ids).last_hidden_state
    assert not any(torch.allclose(each[0, -1], model(ids[:, 5:], mems=both.mems)[0][0, -1]) for each in expected)


def test_ngrams_share_rows_as_chance_has_it():
    """The pairs of 256 bytes fill the rows of a table evenly: no more collisions than those of random rows."""
    model = tiny_model(STREAMING, vocab_size=256, ngram_orders=[2], ngram_table_size=2048)
    pairs = torch.cartesian_prod(torch.arange(256), torch.arange(256))
    last = pairs[:, :1] + 1
    rows = model.ngrams.find(pairs[:, 1:], last, whole(1))[0].flatten()
    counts = rows.bincount(minlength=2048).double()  # 32 in the mean
    assert len(counts) == 2048
    assert counts.min() > 0
    assert counts.var() < 2 * 32
    assert len(set(rows.view(256, 256)[97, 97:123].tolist())) == 26  # letters after a letter are told apart


def test_rows_of_several_texts_continue_as_one_batch():
    model = tiny_model(STREAMING, "causal_lm")
    texts = tokens(1, 3), tokens(1, 12, seed=1)
    memories = [model(text, use_cache=True).mems for text in texts]
    ids = tokens(2, 4, seed=2)
    together = model(ids, mems=cat_memories(memories)).logits
    for row, memory in enumerate(memories):
        torch.testing.assert_close(together[row], model(ids[row : row + 1], mems=memory).logits[0], **EXACT)


def test_weights_start_where_the_card_says():
    config = tiny_config(STREAMING, hidden_size=128, num_attention_heads=4, initializer_range=None)
    model = tiny_model(STREAMING, hidden_size=128, num_attention_heads=4, initializer_range=None)
    spread = (0.4 / 128) ** 0.5
    assert config.initializer_range == pytest.approx(spread)
    layer = model.layers[0]
    for weight in (model.embed_tokens.weight, layer.self_attn.q_proj.weight, layer.mlp.gate_up_proj.weight):
        assert float(weight.detach().std()) == pytest.approx(spread, rel=0.1)
    assert float(model.ngrams.weight.detach().std()) == pytest.approx(spread / 2, rel=0.05)
    for convolution in (layer.attn_conv, layer.mlp_conv):
        assert 0.45 < float(convolution.weight.detach().abs().max()) <= 0.5


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"conv_kernel_size": 0}, "`conv_kernel_size`=0 must be at least 1"),
        ({"ngram_table_size": 0}, "`ngram_table_size`=0 must be at least 1"),
        ({"ngram_orders": [1, 2]}, r"`ngram_orders`=\[1, 2\] must rise from at least 2"),
        ({"ngram_orders": [3, 2]}, r"`ngram_orders`=\[3, 2\] must rise"),
        ({"ngram_orders": [2, 9]}, r"`ngram_orders`=\[2, 9\] must rise from at least 2 to at most 8"),
        ({"rotary_base": 1.0}, "`rotary_base`=1.0 must be a finite number above 1"),
        ({"head_dim": 7}, "`head_dim`=7 must be even"),
        ({"norm_position": "post"}, "`norm_position`='post' must be 'pre'"),
    ],
)
def test_what_cannot_run_is_refused(fields, remedy):
    with pytest.raises(ValueError, match=remedy):
        tiny_config(STREAMING, **fields)


@pytest.mark.parametrize(("vocab_size", "orders"), [(259, [2, 3]), (384, [2, 3]), (385, []), (8192, [])])
def test_ngrams_are_of_bytes_and_characters_unless_they_are_given(vocab_size, orders):
    assert StreamingTransformerConfig(vocab_size=vocab_size).ngram_orders == orders
    assert StreamingTransformerConfig(n_token=vocab_size).ngram_orders == orders
    for given in ([], [2, 4]):
        config = StreamingTransformerConfig(vocab_size=vocab_size, ngram_orders=given)
        assert StreamingTransformerConfig.from_dict(config.to_dict()).ngram_orders == given


def test_sizes_that_are_allowed():
    assert allows(STREAMING, ngram_orders=[])
    assert allows(STREAMING, conv_kernel_size=1)
    assert tiny_model(STREAMING, ngram_orders=[]).new_memory(2, torch.zeros(0)).state == ()
