"""Private names of torch that a release may lack: what uses them takes the slower way that is always right."""

import importlib.util
from types import ModuleType

import pytest
import torch
from tiny import tiny_model, tokens
from torch import nn
from torch.autograd import forward_ad

from transformers_xl.modeling.layers.segment_lstm import SegmentLSTM

LINEAR = "transformers_xl.runs.onednn_linear"


def imported_anew(name: str) -> ModuleType:
    """Another copy of a module, which finds torch as it is now."""
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("owner", "name"),
    [(forward_ad, "_current_level"), (torch._C._functorch, "peek_interpreter_stack"), (torch._C, "_functorch")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_products_stay_torchs_own(monkeypatch, owner, name: str):
    states, weight = torch.randn(3, 8), torch.randn(4, 8)
    monkeypatch.setattr(imported_anew(LINEAR), "LARGE_WEIGHT", 1)
    monkeypatch.delattr(owner, name)
    products = imported_anew(LINEAR)
    products.LARGE_WEIGHT = 1
    assert not products._pays(states, weight, None)
    assert torch.equal(products.linear(states, weight), nn.functional.linear(states, weight))


def test_without_the_product_of_onednn(monkeypatch):
    monkeypatch.delattr(torch.ops.mkldnn, "_linear_pointwise", raising=False)
    monkeypatch.setattr(type(torch.ops.mkldnn), "__getattr__", lambda self, name: raise_attribute_error(name))
    products = imported_anew(LINEAR)
    assert products._onednn_linear is None
    products.LARGE_WEIGHT = 1
    states, weight = torch.randn(3, 8), torch.randn(4, 8)
    assert torch.equal(products.linear(states, weight), nn.functional.linear(states, weight))


def raise_attribute_error(name: str):
    raise AttributeError(name)


def test_statistics_move_without_knowing_of_checkpoints(monkeypatch):
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    memory = imported_anew("transformers_xl.modeling.layers.product_key_memory")
    assert not memory._is_run_again()
    norm = memory.QueryBatchNorm(4).train()
    norm(torch.randn(5, 4) + 2).sum().backward()
    assert int(norm.num_batches_tracked) == 1
    assert bool((norm.running_mean > 0).all())


def test_a_static_cache_that_the_compiler_knows_nothing_of(monkeypatch):
    model = tiny_model("transformer_xl", "causal_lm", dtype=torch.float32)
    settings = {"max_new_tokens": 4, "do_sample": False}
    expected = model.generate(tokens(1, 5), **settings)
    monkeypatch.delattr(torch._dynamo, "mark_static_address")
    assert torch.equal(model.generate(tokens(1, 5), cache_implementation="static", **settings), expected)


def test_an_lstm_without_a_list_of_its_own():
    lstm = SegmentLSTM(tiny_model("sha_rnn").config)
    del lstm._flat_weights
    with lstm.weights_of_call():
        assert not hasattr(lstm, "_flat_weights")
