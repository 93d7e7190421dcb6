"""The Longformer encoder against a naive loop over its tokens, and what is its own."""

import pytest
import torch
from tiny import EXACT, VOCAB_SIZE, tiny_config, tiny_model, tokens
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM

WINDOW = 4


def naive(model, ids: list[int], is_global: list[bool]) -> torch.Tensor:
    """The states `(length, hidden_size)` of one text, token by token."""
    model, length = model.base_model, len(ids)
    states = model.embed_tokens(torch.tensor(ids)) + model.embeddings.positions.weight[:length]
    states = model.embeddings.layernorm(states)
    for layer in model.layers:
        attention, outputs = layer.self_attn, []
        for i in range(length):
            prefix = "global_" if is_global[i] else ""
            seen = [j for j in range(length) if is_global[i] or is_global[j] or abs(i - j) <= WINDOW // 2]
            query, key, value = (
                getattr(attention, f"{prefix}{name}_proj")(states[where]).unflatten(-1, (4, 8))
                for name, where in (("q", [i]), ("k", seen), ("v", seen))
            )
            weights = ((query * key).sum(-1) / 8**0.5).softmax(0)  # (seen, heads)
            outputs.append((weights[..., None] * value).sum(0).flatten())
        states = layer.input_layernorm(states + attention.o_proj(torch.stack(outputs)))
        inner = F.gelu(layer.mlp.fc1(states))
        states = layer.post_attention_layernorm(states + layer.mlp.fc2(inner))
    return states


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_documents_side_by_side_are_texts_of_their_own(attention: str, monkeypatch: pytest.MonkeyPatch):
    """Values and gradients; padding on both sides, pieces of the band that cut documents, many global tokens and none."""
    monkeypatch.setattr("transformers_xl.modeling.ops.band.PIECE_LENGTH", 5)
    model = tiny_model("longformer_encoder")
    model.set_attn_implementation(attention)
    ids, is_global = tokens(2, 23), torch.zeros(2, 23, dtype=torch.bool)
    is_global[0, [2, 9, 20]], is_global[1, 4] = True, True
    mask, positions = torch.ones(2, 23, dtype=torch.long), torch.arange(23).repeat(2, 1)
    mask[0, :2], mask[1, 16:] = 0, 0
    texts = [(0, 2, 13), (0, 13, 23), (1, 0, 7), (1, 7, 16)]  # row, start, end
    for row, start, end in texts:
        positions[row, start:end] = torch.arange(end - start)
    output = model(ids, attention_mask=mask, position_ids=positions, global_attention_mask=is_global)
    found, expected = [], []
    for row, start, end in texts:
        found.append(output.last_hidden_state[row, start:end])
        expected.append(naive(model, ids[row, start:end].tolist(), is_global[row, start:end].tolist()))
        torch.testing.assert_close(found[-1], expected[-1], **EXACT)
    weights = torch.randn(len(torch.cat(found)), 32, dtype=torch.float64)
    parameters = dict(model.named_parameters())
    gradients = (
        torch.autograd.grad((torch.cat(each) * weights).sum(), [*parameters.values()]) for each in (found, expected)
    )
    for name, ours, theirs in zip(parameters, *gradients, strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT, msg=lambda said, name=name: f"{name}: {said}")


def test_a_global_token_brings_what_no_window_does():
    model = tiny_model("longformer_encoder")
    ids, is_global = tokens(1, 40), torch.zeros(1, 40, dtype=torch.long)
    changed = ids.clone()
    changed[0, 0] = (ids[0, 0] + 1) % VOCAB_SIZE
    with torch.no_grad():
        states, other = (model(each).last_hidden_state[0] for each in (ids, changed))
        assert torch.equal(states[5:], other[5:])  # two layers, two tokens to the left each
        assert not torch.equal(states[4], other[4])
        is_global[0, 20] = 1
        states, other = (model(each, global_attention_mask=is_global).last_hidden_state[0] for each in (ids, changed))
    assert (states != other).any(dim=1).all()


def test_attention_weights_of_global_tokens():
    model = tiny_model("longformer_encoder")
    model.set_attn_implementation("eager")
    is_global = torch.zeros(1, 12, dtype=torch.long)
    is_global[0, 6] = 1
    with torch.no_grad():
        weights = model(tokens(1, 12), global_attention_mask=is_global, output_attentions=True).attentions[1][0, 0]
    columns = torch.arange(12)
    seen = ((columns[:, None] - columns).abs() <= WINDOW // 2) | (is_global.T == 1) | (is_global == 1)
    assert torch.equal(weights > 0, seen)
    torch.testing.assert_close(weights.sum(1), torch.ones(12, dtype=torch.float64))


def test_the_masked_head_is_found_and_learns(tmp_path):
    model = tiny_model("longformer_encoder", "masked_lm", dtype=torch.float32)
    model.save_pretrained(tmp_path, include_code=False)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    ids, labels = tokens(2, 9), torch.full((2, 9), -100)
    labels[0, 3], labels[1, 5] = 7, 8
    output = loaded(ids, labels=labels)
    torch.testing.assert_close(output.logits, model(ids).logits)
    expected = F.cross_entropy(output.logits[[0, 1], [3, 5]], torch.tensor([7, 8]))
    torch.testing.assert_close(output.loss, expected)
    assert output.mems is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_window": 3}, "`attention_window`=3 must be an even number"),
        ({"attention_window": [4, 0]}, r"`attention_window`=\[4, 0\] must be an even number"),
        ({"attention_window": [4]}, "has 1 entries: give one for each of `num_hidden_layers`=2"),
    ],
)
def test_windows_that_cannot_be(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        tiny_config("longformer_encoder", **fields)


def test_what_a_call_refuses():
    model = tiny_model("longformer_encoder")
    with pytest.raises(ValueError, match=r"`global_attention_mask` has shape \(2, 4\): it must be .* = \(2, 5\)"):
        model(tokens(2, 5), global_attention_mask=torch.zeros(2, 4))
    with pytest.raises(ValueError, match="`input_ids` holds 65 tokens, but the model has `segment_length`=64"):
        model(tokens(1, 65))
    with pytest.raises(ValueError, match="`mems` was given, but `mem_len`=0"):
        model(tokens(1, 5), mems=model.new_memory(1, model.embed_tokens.weight))
