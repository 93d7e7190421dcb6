"""Every variant compiled by TorchDynamo: values, gradients, and how many graphs it takes."""

import pytest
import torch
from tiny import (
    EXACT,
    MEM_LEN,
    NOT_ONE_GRAPH,
    SEGMENT_BY_SEGMENT,
    VARIANTS,
    layers_to_compile,
    memory_if_any,
    models,
    read,
    result_of,
    right_padded,
    said_by,
    tiny_model,
    tokens,
)

FROM_NONE = ("transformer_xl", "compressive_transformer")  # compiled from the first segment on
# tracing a base takes long: memory tokens around one meet the engine, a window the gradients too
every_variant = pytest.mark.parametrize("model_type", [*VARIANTS])
# a cache of windows alone is that of Transformer-XL, or of the base
WITH_STATES = {*models(memory=("exact", "own"), states=True)} - {
    "segment_memory",
    "segment_memory/phi",
    "memorizing_transformer",  # many graphs, as those of its value
    "r_transformer",  # a recurrent network breaks the graph as it does in SHA-RNN
    *SEGMENT_BY_SEGMENT,
}
carrying = pytest.mark.parametrize("model_type", ["transformer_xl", *sorted(WITH_STATES)])


def traced_whole(model_type: str) -> bool:
    if model_type in NOT_ONE_GRAPH:
        return False
    return not any(isinstance(module, torch.nn.RNNBase) for module in tiny_model(model_type).modules())


def assert_compiles(model_type: str, lengths: list[int], first: int = 0, **options) -> None:
    """Segments from the `first` on, values and gradients, to one graph each; TorchDynamo traces no recurrent network."""
    torch._dynamo.reset()
    model = tiny_model(model_type, num_hidden_layers=layers_to_compile(model_type))
    compiled = torch.compile(model, fullgraph=traced_whole(model_type), **options)
    memories = [{}, {}]
    for segment, length in enumerate(lengths):
        results, gradients = [], []
        for index, forward in enumerate((model, compiled if segment >= first else model)):
            model.zero_grad()
            mask = right_padded()[:, :length]
            output = forward(tokens(2, length, seed=segment), attention_mask=mask, **memories[index])
            sum(result[:, 0].square().sum() for result in said_by(output)).backward()
            memories[index] = memory_if_any(model_type, output)
            results.append(result_of(output)[:, :4])
            gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        torch.testing.assert_close(results[1], results[0], **EXACT)
        torch.testing.assert_close(gradients[1], gradients[0], **EXACT)


@every_variant
def test_forward_compiles(model_type):
    """With a full memory, at fixed shapes; `test_engine_compiles` starts from none."""
    # what reads block by block is traced anew for every part of a call: two calls that begin with a block have fewer
    first = 6 if model_type in NOT_ONE_GRAPH else MEM_LEN
    assert_compiles(model_type, [first, 6], first=model_type not in FROM_NONE, backend="eager", dynamic=False)


@pytest.mark.slow
def test_forward_and_backward_compile_without_memory_and_with():
    """ "aot_eager" traces the backward pass too, of the attention that most variants share."""
    assert_compiles("transformer_xl", [6, 6], backend="aot_eager")


@carrying
def test_engine_compiles(model_type):
    torch._dynamo.reset()
    model = tiny_model(model_type, num_hidden_layers=layers_to_compile(model_type))
    compiled = torch.compile(model, fullgraph=traced_whole(model_type), backend="eager")
    lengths = [MEM_LEN] * (3 if model_type in FROM_NONE else 2)
    ids = tokens(2, sum(lengths))
    with torch.no_grad():
        expected, _ = read(model, ids, lengths, use_cache=True)
        ours, _ = read(compiled, ids, lengths, use_cache=True)
    torch.testing.assert_close(ours, expected, **EXACT)
