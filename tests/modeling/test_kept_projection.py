"""The projection of the relative positions is kept between calls without gradients, as long as the weight is the same."""

import copy

import pytest
import torch
from tiny import EXACT, tiny_config, tokens
from torch import nn

from transformers_xl import TransformerXLForCausalLM


@pytest.fixture
def model() -> TransformerXLForCausalLM:
    torch.manual_seed(0)
    return TransformerXLForCausalLM(tiny_config("transformer_xl")).double().eval()


@torch.no_grad()
def logits(model: nn.Module) -> torch.Tensor:
    return model(tokens(2, 7)).logits


def through_data(model):
    model.model.layers[0].self_attn.r_proj.weight.data.mul_(3.0)


def in_place(model):
    with torch.no_grad():
        model.model.layers[0].self_attn.r_proj.weight.add_(0.5)


def by_an_optimizer(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(tokens(2, 7), labels=tokens(2, 7)).loss.backward()
    optimizer.step()


def by_loading(model):
    state = {name: value + 0.3 if "r_proj" in name else value for name, value in model.state_dict().items()}
    model.load_state_dict(state)


def by_another_parameter(model):
    model.model.layers[0].self_attn.r_proj.weight = nn.Parameter(torch.randn(32, 32, dtype=torch.float64))


def by_an_adapter(model):
    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.weight, self.more = base, base.weight, nn.Linear(32, 32, dtype=torch.float64)

        def forward(self, states):
            return self.base(states) + self.more(states)

    attention = model.model.layers[0].self_attn
    attention.r_proj = Adapter(attention.r_proj)


def by_a_hook(model):
    model.model.layers[0].self_attn.r_proj.register_forward_hook(lambda module, inputs, output: 2 * output)


def by_a_parametrization(model):
    nn.utils.parametrizations.weight_norm(model.model.layers[0].self_attn.r_proj)
    with torch.no_grad():
        model.model.layers[0].self_attn.r_proj.parametrizations.weight.original0.mul_(2.0)


CHANGES = [
    through_data, in_place, by_an_optimizer, by_loading, by_another_parameter, by_an_adapter, by_a_hook,
    by_a_parametrization,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_of_the_weight_is_seen(model, change):
    before = logits(model)
    kept = model.model.layers[0].self_attn.kept
    assert kept is not None
    assert torch.equal(logits(model), before)
    assert model.model.layers[0].self_attn.kept is kept
    change(model)
    after = logits(model)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, model(tokens(2, 7)).logits.detach(), **EXACT)  # with gradients nothing is kept


def test_training_keeps_nothing(model):
    model.train()
    logits(model)
    assert model.model.layers[0].self_attn.kept is None


def test_another_length_or_type_is_projected_anew(model):
    logits(model)
    with torch.no_grad():
        longer = model(tokens(2, 9)).logits
    torch.testing.assert_close(longer, model(tokens(2, 9)).logits.detach(), **EXACT)
    model.float()
    assert logits(model).dtype == torch.float32


def test_what_inference_mode_made_can_be_trained_on(model):
    with torch.inference_mode():
        model(tokens(2, 7))
    model(tokens(2, 7), labels=tokens(2, 7)).loss.backward()


def test_nothing_of_it_is_saved(model):
    names = set(model.state_dict())
    logits(model)
    assert set(model.state_dict()) == names
    assert torch.equal(logits(copy.deepcopy(model)), logits(model))
