"""Variants compiled by TorchDynamo: values, gradients, and how many graphs it takes."""

import pytest
import torch
from tiny import (
    AROUND_BASES,
    EXACT,
    MEM_LEN,
    NOT_ONE_GRAPH,
    VARIANTS,
    layers_to_compile,
    memory_if_any,
    memory_of,
    result_of,
    right_padded,
    said_by,
    tiny_model,
    tokens,
)

# these change nothing around their layers, which are traced by themselves, but a table of positions or a mask, which
# tests/uses/test_export.py traces with the whole; or a call of theirs is no one graph: recurrent networks, and blocks that
# end wherever a text says
LAYERS_ALONE = [
    *("gtrxl", "macaron", "pkm_transformer", "shaw_transformer", "r_transformer", "sha_rnn"),
    *("adaptive_span", "causal_longformer", "infini_transformer", "tensorized_transformer"),
    *("memorizing_transformer", "recurrent_memory_transformer"),
]
# the attention of these is that of Transformer-XL, whose backward pass is traced below: they are compiled for reading
READ_ONLY = (
    *("gtrxl", "macaron", "pkm_transformer", "sha_rnn"),
    *("absolute_transformer_xl", "vanilla_transformer", "universal_transformer", "depth_adaptive_transformer"),
)
WHOLE = [each for each in VARIANTS if each not in (*LAYERS_ALONE, "transformer_xl")]  # it has its own test below


def slow_around_a_base(model_types: list[str]) -> list:
    """Memory around a base is traced in many graphs."""
    return [pytest.param(each, marks=pytest.mark.slow) if each in AROUND_BASES else each for each in model_types]


def one_layer(model_type: str):
    return tiny_model(model_type, num_hidden_layers=layers_to_compile(model_type))


def assert_compiles(model_type: str, compiled, lengths: list[int], first: int = 0) -> None:
    """Values and gradients of segments from the `first` on, with memory and padding, are those of the plain model."""
    plain, memories, learns = one_layer(model_type), [{}, {}], model_type not in READ_ONLY
    for segment, length in enumerate(lengths):
        results, gradients = [], []
        for index, model in enumerate((plain, compiled if segment >= first else plain)):
            model.zero_grad()
            mask = right_padded()[:, :length]
            with torch.set_grad_enabled(learns):
                output = model(tokens(2, length, seed=segment), attention_mask=mask, **memories[index])
            if learns:
                sum(result[:, 0].square().sum() for result in said_by(output)).backward()
            memories[index] = memory_if_any(model_type, output)
            results.append(result_of(output)[:, :4])
            gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        torch.testing.assert_close(results[1], results[0], **EXACT)
        torch.testing.assert_close(gradients[1], gradients[0], **EXACT)


@pytest.mark.parametrize("model_type", slow_around_a_base(WHOLE))
def test_forward_compiles(model_type):
    """With a full memory, at fixed shapes, to one graph."""
    torch._dynamo.reset()
    whole = model_type not in NOT_ONE_GRAPH
    compiled = torch.compile(one_layer(model_type), fullgraph=whole, backend="eager", dynamic=False)
    assert_compiles(model_type, compiled, [MEM_LEN if whole else 6, 6], first=1)


@pytest.mark.parametrize("model_type", LAYERS_ALONE)
def test_layers_compile(model_type):
    """Every layer to one graph; TorchDynamo traces no recurrent network."""
    torch._dynamo.reset()
    model = one_layer(model_type)
    recurrent = any(isinstance(module, torch.nn.RNNBase) for module in model.modules())
    for layer in model.layers:
        layer.compile(fullgraph=not recurrent, backend="eager", dynamic=False)
    assert_compiles(model_type, model, [MEM_LEN, 6], first=1)


@pytest.mark.slow
def test_forward_and_backward_compile():
    """ "aot_eager" traces the backward pass too, of the attention that most variants share; without a memory:
    `test_cache_compiles` and a training (test_trainer_arguments.py)."""
    torch._dynamo.reset()
    compiled = torch.compile(one_layer("transformer_xl"), fullgraph=True, backend="aot_eager")
    assert_compiles("transformer_xl", compiled, [MEM_LEN, 6], first=1)


@pytest.mark.parametrize("model_type", ["transformer_xl", "compressive_transformer"])
def test_cache_compiles(model_type):
    """A cache of windows, from none until they move, and one that also holds what was compressed, from the first segment
    on: that there is none yet is the same code."""
    torch._dynamo.reset()
    model, ids = one_layer(model_type), tokens(2, 2 * MEM_LEN)
    compiled, memories = torch.compile(model, fullgraph=True, backend="eager", dynamic=False), [{}, {}]
    with torch.no_grad():
        for segment, part in enumerate(ids.split(MEM_LEN, dim=1)):
            results = []
            for index, each in enumerate((model, compiled)):
                begun = segment > 0 or model_type == "transformer_xl"
                output = (each if begun else model)(part, use_cache=True, **memories[index])
                memories[index] = memory_of(output)
                results.append(result_of(output))
            torch.testing.assert_close(results[1], results[0], **EXACT)
