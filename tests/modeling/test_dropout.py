"""Variational dropout: one mask for all positions of a row's segment, wherever a variant drops anything."""

import pytest
import torch
from tiny import AROUND_BASES, tiny_config, tiny_model, tokens, variants
from torch import nn

from transformers_xl.modeling.layers.transformer_layer import Dropout

of_our_own = pytest.mark.parametrize("model_type", [each for each in variants() if each not in AROUND_BASES])


def dropout(variational: bool, p: float = 0.4) -> Dropout:
    return Dropout(tiny_config("transformer_xl", dropout=p, variational_dropout=variational))


@pytest.mark.parametrize("variational", [False, True])
def test_what_is_dropped(variational: bool):
    dropped = dropout(variational)(torch.ones(40, 30, 50))
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 1 / 0.6))
    assert kept.float().mean() == pytest.approx(0.6, abs=0.03)
    over_positions = kept.float().mean(dim=1)
    assert bool(((over_positions == 0) | (over_positions == 1)).all()) is variational
    rows = kept[:, 0].float()
    assert rows.mean(dim=0).min() > 0  # every row has a mask of its own
    assert rows.mean(dim=0).max() < 1


def test_states_without_positions_and_evaluation():
    relay = torch.ones(400, 50)
    torch.manual_seed(0)
    dropped = dropout(True)(relay)
    torch.manual_seed(0)
    assert torch.equal(dropped, nn.functional.dropout(relay, 0.4))
    layer = dropout(True).eval()
    assert layer(relay) is relay
    states = torch.ones(1, 2, 3)
    assert dropout(True, p=0.0)(states) is states


def head_of(model_type: str) -> str:
    return "causal_lm" if model_type in variants(causal_lm=True) else "token_classification"


@of_our_own
def test_every_variant_drops_the_same_features_at_all_positions(model_type: str):
    model = tiny_model(model_type, head_of(model_type), dropout=0.5, variational_dropout=True).train()
    patterns: dict[nn.Module, list[torch.Tensor]] = {}

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        (states,) = inputs
        if states.dim() < 3:
            return
        nonzero = states != 0  # a ReLU's zeros say nothing
        share = ((output == 0) & nonzero).sum(dim=1) / nonzero.sum(dim=1).clamp(min=1)
        assert bool(((share == 0) | (share == 1)).all())
        patterns.setdefault(module, []).append(share)

    layers = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    assert layers
    assert all(type(module).forward is not nn.Dropout.forward for module in layers)
    for module in layers:
        module.register_forward_hook(note)
    first = model(tokens(3, 6))
    model(tokens(3, 6), mems=first.mems)
    ours = patterns[model.model.dropout]
    assert not torch.equal(ours[0], ours[1])  # the next segment drops others
    assert not torch.equal(ours[0][0], ours[0][1])  # and so does another row


@pytest.mark.parametrize("model_type", ["transformer_xl", "sha_rnn"])
def test_activation_checkpointing_draws_the_same_masks(model_type: str):
    fields = {"weight_dropout": 0.5} if model_type == "sha_rnn" else {}
    model = tiny_model(model_type, "causal_lm", dropout=0.5, variational_dropout=True, **fields).train()
    ids, gradients = tokens(2, 6), []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(3)
        model(ids, labels=ids).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)


@of_our_own
def test_the_embedding_has_a_dropout_of_its_own(model_type: str):
    ids = tokens(2, 6)
    model = tiny_model(model_type, head_of(model_type), embedding_dropout=0.5).train()
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout) and module.p > 0] == [0.5]
    assert not torch.equal(model(ids).logits, model(ids).logits)
    model = tiny_model(model_type, head_of(model_type), dropout=0.5, embedding_dropout=0.0).train()
    embeddings = model.get_input_embeddings()(ids)
    assert model.model.dropout(embeddings) is embeddings or torch.equal(model.model.dropout(embeddings), embeddings)
    assert tiny_model(model_type, head_of(model_type), dropout=0.5).model.dropout.p == 0.5


@of_our_own
def test_what_sublayers_add_has_a_dropout_of_its_own(model_type: str):
    ids = tokens(2, 6)
    model = tiny_model(model_type, residual_dropout=0.5).train()
    dropping = [module for module in model.modules() if isinstance(module, nn.Dropout) and module.p > 0]
    assert {module.p for module in dropping} == {0.5}
    assert len(dropping) >= len(model.layers)
    assert not torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)
    model = tiny_model(model_type, dropout=0.5, residual_dropout=0.0, embedding_dropout=0.0).train()
    left = [name for name, module in model.named_modules() if isinstance(module, nn.Dropout) and module.p > 0]
    assert not [name for name in left if not name.endswith("mlp.dropout")]  # inside of the feed-forwards


@pytest.mark.parametrize("name", ["embedding_dropout", "residual_dropout"])
def test_a_probability_that_is_none_is_refused(name: str):
    with pytest.raises(ValueError, match=f"`{name}`=1.0 must be at least 0 and below 1"):
        tiny_config("transformer_xl", **{name: 1.0})


@pytest.mark.parametrize("model_type", ["transformer_xl", "sha_rnn", "r_transformer"])
def test_bfloat16(model_type: str):
    fields = {} if model_type == "transformer_xl" else {"weight_dropout": 0.3}
    model = tiny_model(
        model_type, "causal_lm", torch.bfloat16, dropout=0.3, variational_dropout=True, **fields
    ).train()
    ids = tokens(2, 6)
    outputs = model(ids, labels=ids)
    outputs.loss.backward()
    assert outputs.mems.layers[0].columns[0].dtype == torch.bfloat16
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_transformer_xl_drops_where_its_authors_do():
    """`mem_transformer.py` of kimiyoung/transformer-xl: the embedding, the table of positions, and the last output."""
    model = tiny_model(
        "transformer_xl", embedding_dropout=0.5, dropout=0.0, residual_dropout=0.0, norm_position="post"
    ).train()
    read = {}
    (first, *_) = model.layers
    first.register_forward_hook(lambda layer, inputs, output: read.update(embedding=inputs[0]))
    first.self_attn.r_proj.register_forward_hook(lambda layer, inputs, output: read.update(positions=inputs[0]))
    read["output"] = model(tokens(2, 40)).last_hidden_state
    for name, states in read.items():
        zeros = float((states == 0).float().mean())
        assert 0.4 < zeros < 0.6, name


def test_a_cache_holds_no_dropped_positions():
    """They serve calls to come, which may be in evaluation."""
    model = tiny_model("transformer_xl", embedding_dropout=0.5).train()
    with torch.no_grad():
        held = model(tokens(2, 6), use_cache=True).past_key_values
        expected = model.eval()(tokens(2, 6), use_cache=True).past_key_values
    assert len(held.layer_caches) == len(model.layers)
    for one, other in zip(held.layer_caches, expected.layer_caches, strict=True):
        assert torch.equal(one.positions, other.positions)
