"""`torch.export` of a step with static memory: the graph says what the model says, token by token."""

from pathlib import Path

import pytest
import torch
from optional_packages import needs
from tiny import (
    FLOAT32,
    MEM_LEN,
    layers_to_compile,
    result_of,
    tiny_model,
    tokens,
    variants,
)
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from transformers_xl.modeling.exporting import export_step, step_memory
from transformers_xl.modeling.memory.memory_value import Memory

LENGTH = 2 * MEM_LEN + 3  # the window fills, and moves on
# their layers are other ones around the attention of Transformer-XL, which is what reads a static memory
AS_TRANSFORMER_XL = ("gtrxl", "macaron", "pkm_transformer")
exportable = pytest.mark.parametrize(
    "model_type",
    [each for each in variants(causal_lm=True, memory=("exact", "own"), states=False) if each not in AS_TRANSFORMER_XL]
    + ["streaming_transformer"],  # whose states a static cache has a place for
)


def small(model_type: str, **fields):
    return tiny_model(
        model_type, "causal_lm", torch.float32, num_hidden_layers=layers_to_compile(model_type), **fields
    )


def steps(program, ids: torch.Tensor, memory: Memory) -> torch.Tensor:
    step, logits = program.module(), []
    for column in ids.split(1, dim=1):
        said, memory = step(column, memory)
        logits.append(said)
    return torch.stack(logits, dim=1)


@torch.no_grad()
def eager(model, ids: torch.Tensor, **memory) -> torch.Tensor:
    """The same tokens, one per call, through the dynamic memory."""
    logits = []
    for column in ids.split(1, dim=1):
        output = model(column, use_cache=True, **memory)
        memory = {"past_key_values": output.past_key_values}
        logits.append(output.logits[:, -1])
    return torch.stack(logits, dim=1)


@exportable
def test_an_exported_step_is_the_model(model_type: str):
    model, ids = small(model_type), tokens(2, LENGTH)
    program = export_step(model, batch=2)
    memory = step_memory(model, batch=2)
    expected = eager(model, ids)
    torch.testing.assert_close(steps(program, ids, memory), expected, **FLOAT32)
    assert not bool(memory.lengths.any())  # nothing was changed in place
    torch.testing.assert_close(steps(program, ids, memory), expected, **FLOAT32)


@pytest.mark.parametrize(
    "fields", [{"same_length": False}, {"initial_memory": "zeros"}, {"cutoffs": [10, 20]}], ids=str
)
def test_options_of_the_model_are_in_the_graph(fields: dict):
    model, ids = small("transformer_xl", **fields), tokens(1, LENGTH)
    torch.testing.assert_close(steps(export_step(model), ids, step_memory(model)), eager(model, ids), **FLOAT32)


@pytest.mark.parametrize("model_type", ["transformer_xl", "streaming_transformer"])
def test_a_step_goes_on_from_mems_and_from_a_file(model_type: str, tmp_path: Path):
    model, before, ids = small(model_type), tokens(2, 5, seed=1), tokens(2, LENGTH)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    output = model(before, attention_mask=mask)
    carried = {"mems": output.mems}
    torch.export.save(export_step(model, batch=2), tmp_path / "step.pt2")
    program = torch.export.load(tmp_path / "step.pt2")
    memory = step_memory(model, batch=2, **carried)
    torch.testing.assert_close(steps(program, ids, memory), eager(model, ids, **carried), **FLOAT32)


@pytest.mark.slow
@torch.no_grad()
def test_an_exported_step_runs_in_onnx(tmp_path: Path):
    for name in ("onnx", "onnxscript"):
        needs(name)
    model, ids = small("causal_longformer"), tokens(2, LENGTH)  # windows of unequal length
    program, memory = export_step(model, batch=2), step_memory(model, batch=2)
    torch.onnx.export(program, dynamo=True, verbose=False).save(tmp_path / "step.onnx")
    session = needs("onnxruntime").InferenceSession(tmp_path / "step.onnx")
    names, logits = [each.name for each in session.get_inputs()], []
    for column in ids.split(1, dim=1):
        given = [column, *tree_leaves(memory)]
        said, *after = session.run(None, {name: each.numpy() for name, each in zip(names, given, strict=True)})
        memory = tree_unflatten([torch.from_numpy(each) for each in after], tree_structure(memory))
        logits.append(torch.from_numpy(said))
    torch.testing.assert_close(torch.stack(logits, dim=1), eager(model, ids), **FLOAT32)


@torch.no_grad()
# no memory, a window, blocks that leave it, states and sums that blocks are read into, halting, and both encoders
@pytest.mark.parametrize(
    "model_type",
    [
        *("vanilla_transformer", "transformer_xl", "compressive_transformer", "block_recurrent", "infini_transformer"),
        *("universal_transformer", "star_transformer", "longformer_encoder"),
    ],
)
def test_a_padded_segment_is_exported(model_type: str):
    """The graph holds for any padding, not only for that which it was made with. Every variant is traced by
    tests/modeling/test_compilation.py."""
    layers = layers_to_compile(model_type)
    model, ids = tiny_model(model_type, dtype=torch.float32, num_hidden_layers=layers), tokens(2, 5)
    traced, other = torch.tensor([[[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], [[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]]])
    program = torch.export.export(model, (ids,), {"attention_mask": traced})
    ours, expected = (result_of(run(ids, attention_mask=other)) for run in (program.module(), model))
    torch.testing.assert_close(ours[other.bool()], expected[other.bool()], **FLOAT32)


@pytest.mark.parametrize(
    "model_type", ["sha_rnn", "r_transformer", "vanilla_transformer", "compressive_transformer", "infini_transformer"]
)
def test_models_that_remember_otherwise_are_refused(model_type: str):
    with pytest.raises(ValueError, match=f"`model` is a '{model_type}'"):
        export_step(small(model_type))


def test_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"`model` is in training mode.*eval"):
        export_step(small("transformer_xl").train())
