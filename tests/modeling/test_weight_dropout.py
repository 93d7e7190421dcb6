"""Weight dropout against recurrent networks whose matrices are dropped by hand."""

import copy

import pytest
import torch
from safetensors import safe_open
from tiny import EXACT, FLOAT32, tiny_config, tiny_model, tokens
from torch import nn
from torch.nn import functional as F

from transformers_xl.modeling.layers.segment_lstm import SegmentLSTM, split_chunks
from transformers_xl.modeling.layers.weight_dropout import call_with_weight_dropout
from transformers_xl.modeling.memory.segment import Call, Segment

RECURRENT = ("sha_rnn", "r_transformer")


def dropped_by_hand(rnn: nn.RNNBase, p: float, seed: int) -> tuple[nn.RNNBase, torch.Tensor]:
    """A copy of `rnn` with the mask of `seed` on its recurrent matrix, and the mask."""
    torch.manual_seed(seed)
    mask = F.dropout(torch.ones_like(rnn.weight_hh_l0), p)
    other = copy.deepcopy(rnn)
    with torch.no_grad():
        other.weight_hh_l0.mul_(mask)
    return other, mask


@pytest.mark.parametrize("rnn_class", [nn.GRU, nn.LSTM, nn.RNN])
def test_values_and_gradients(rnn_class: type[nn.RNNBase]):
    torch.manual_seed(0)
    rnn, inputs = rnn_class(5, 7, batch_first=True, dtype=torch.float64), torch.randn(3, 6, 5, dtype=torch.float64)
    reference, mask = dropped_by_hand(rnn, 0.5, seed=1)
    torch.manual_seed(1)
    outputs, _ = call_with_weight_dropout(rnn, 0.5, inputs)
    expected, _ = reference(inputs)
    torch.testing.assert_close(outputs, expected, **EXACT)
    assert not torch.allclose(outputs, rnn(inputs)[0])
    outputs.square().sum().backward()
    expected.square().sum().backward()
    for name, parameter in rnn.named_parameters():
        gradient = reference.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad, gradient * mask if name == "weight_hh_l0" else gradient, **EXACT)


def test_one_mask_for_all_chunks_of_a_segment():
    torch.manual_seed(0)
    lstm = SegmentLSTM(tiny_config("sha_rnn")).double()
    none = torch.zeros(2, dtype=torch.long)
    parts = split_chunks(Segment.of(0, none, none, 6, Call(num_tokens=torch.tensor([4, 6]))))
    assert len(parts) > 1
    inputs, state = torch.randn(2, 6, 32, dtype=torch.float64), torch.zeros(2, 32, dtype=torch.float64)
    reference, _ = dropped_by_hand(lstm, 0.5, seed=1)
    torch.manual_seed(1)
    outputs, *_ = call_with_weight_dropout(lstm, 0.5, inputs, state, state, parts)
    torch.testing.assert_close(outputs, reference(inputs, state, state, parts)[0], **EXACT)


@pytest.mark.parametrize("model_type", RECURRENT)
def test_training_drops_and_evaluation_does_not(model_type: str):
    model, plain = (tiny_model(model_type, "causal_lm", weight_dropout=p) for p in (0.5, 0.0))
    ids = tokens(2, 6)
    before = model(ids).logits
    assert torch.equal(before, plain(ids).logits)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(model.train()(ids, labels=ids).loss.item())
    assert losses[0] == losses[1] != losses[2]  # what the random numbers say, and nothing else
    assert torch.equal(model.eval()(ids).logits, before)
    assert torch.equal(copy.deepcopy(model)(ids).logits, before)


@pytest.mark.parametrize("model_type", RECURRENT)
def test_names_and_files_do_not_know_of_it(tmp_path, model_type: str):
    model, plain = (tiny_model(model_type, "causal_lm", torch.float32, weight_dropout=p) for p in (0.5, 0.0))
    ids = tokens(2, 6)
    model.train()(ids, labels=ids).loss.backward()
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(file.keys()) <= set(plain.state_dict())
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert loaded.config.weight_dropout == 0.5
    torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits, **FLOAT32)


@pytest.mark.parametrize("model_type", RECURRENT)
@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_what_cannot_be_meant(model_type: str, p: float):
    with pytest.raises(ValueError, match="`weight_dropout`"):
        tiny_config(model_type, weight_dropout=p)
