"""What a checkpoint lacks starts as in a fresh model: in all variants and heads, and whatever else the checkpoint has."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from tiny import AROUND_BASES, ROWS, one_of_each_kind, tiny_config, variants
from torch import nn
from transformers import logging

from transformers_xl import GTrXLForActorCritic

HEADS = ("model", "causal_lm", "masked_lm", "sequence_classification", "token_classification")
ADAPTIVE = {"cutoffs": [10, 20], "div_val": 2, "tie_projs": [False, True, True]}
# further layers that a variant can be made of
OPTIONS = [
    ("transformer_xl", ADAPTIVE | {"share_relative_bias": False, "attention_bias": True}),
    ("transformer_xl", {"cutoffs": [10], "embedding_size": 16, "tie_word_embeddings": False, "pad_token_id": 0}),
    ("adaptive_span", {"initial_span": 0.4}),
    ("complex_order_transformer", {"frequency_per": "word", "phase_per": "dimension", "tie_word_embeddings": False}),
    ("complex_order_transformer", ADAPTIVE),
    ("depth_adaptive_transformer", {"halting": "geometric", "shared_classifier": False}),
    ("gtrxl", {"gate_type": "highway"}),
    ("pkm_transformer", {"sparse_values": True}),
    ("r_transformer", {"rnn_type": "lstm", "num_local_rnns": 2}),
    ("r_transformer", {"rnn_type": "tanh"}),
    ("sha_rnn", {"project_keys": True, "project_values": True, "mix_query": True, "boom_shortcut": False}),
    ("shaw_transformer", {"tables_per_head": True, "value_head_dim": 4}),
]
MODELS = [(model_type, {}) for model_type in variants()] + OPTIONS


@pytest.fixture(autouse=True)
def _nothing_is_in_fresh_memory() -> Iterator[None]:
    """Memory that nothing was written to holds NaN, and not by chance a number."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # the report of a load takes longer than the load
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
    logging.set_verbosity(verbosity)


def held_by(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, those that are not saved too."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def check_fresh(name: str, tensor: torch.Tensor, fresh: torch.Tensor) -> None:
    """The same constant, or mean and standard deviation within what chance allows."""
    tensor, fresh = tensor.detach().double(), fresh.detach().double()
    if (fresh == fresh.flatten()[0]).all():
        assert torch.equal(tensor, fresh), name
        return
    spread, allowed = fresh.std(), 8 * fresh.numel() ** -0.5
    assert (tensor.mean() - fresh.mean()).abs() < allowed * spread, name  # false for NaN
    assert (tensor.std() / spread - 1).abs() < allowed, name


def loaded(model_class: type, config, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return held_by(model_class.from_pretrained(None, config=config, state_dict=weights))


@pytest.mark.parametrize("model_type", one_of_each_kind(variants()))
def test_a_checkpoint_without_any(model_type: str):
    """Each weight of every variant is absent from some checkpoint below."""
    classes = [each for head in HEADS if (each := getattr(ROWS[model_type], f"{head}_class"))]
    # heads are one code for all variants (`modeling/heads.py`)
    for model_class in classes if model_type == MODELS[0][0] else classes[1:2]:
        norm = {} if model_type in AROUND_BASES else {"norm_initializer_range": 0.02}
        config = tiny_config(model_type, **norm)
        fresh = held_by(model_class(config))
        held = loaded(model_class, config, {})
        assert held.keys() == fresh.keys()
        for name, tensor in held.items():
            check_fresh(name, tensor, fresh[name])


def test_an_actor_critic_without_any():
    config = tiny_config("gtrxl", num_actions=3, observation_size=4)
    fresh = held_by(GTrXLForActorCritic(config))
    for name, tensor in loaded(GTrXLForActorCritic, config, {}).items():
        check_fresh(name, tensor, fresh[name])


@pytest.mark.parametrize(("model_type", "fields"), MODELS, ids=str)
def test_a_checkpoint_with_some(model_type: str, fields: dict):
    """Any two weights of a layer, that is, of 8 neighbours, are apart in one of the checkpoints: what one starts from does
    not hang on the other."""
    row = ROWS[model_type]
    model_class = row.causal_lm_class or row.model_class
    config = tiny_config(model_type, **fields)
    model = model_class(config)
    fresh, weights, ties = held_by(model), model.state_dict(), model.all_tied_weights_keys
    for bit, side in itertools.product(range(3), (0, 1)):
        given = {
            name: torch.full_like(weight, 3)
            for index, (name, weight) in enumerate(weights.items())
            if index >> bit & 1 == side
        }
        held = loaded(model_class, config, given)
        both = given.keys() | {name for tie in ties.items() if given.keys() & set(tie) for name in tie}
        for name, tensor in held.items():
            if name in both:
                assert bool((tensor == 3).all()), name
            else:
                check_fresh(name, tensor, fresh[name])
