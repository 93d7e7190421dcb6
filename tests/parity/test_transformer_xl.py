"""Transformer-XL against numbers recorded from the authors' code (kimiyoung/transformer-xl, `MemTransformerLM`).

The converter of their checkpoints reads each case's `hyper`: any geometry of relative attention is run, with a plain or an
adaptive softmax.
"""

import json
from pathlib import Path

import pytest
import torch
from old_gradients import assert_gradients
from safetensors.torch import load_file

from transformers_xl import TransformerXLForCausalLM
from transformers_xl.modeling.conversion.mem_transformer import translate_weights
from transformers_xl.modeling.conversion.original import DEFAULTS, config_of

ITEM = "transformer_xl"


def pytest_generate_tests(metafunc):
    if "case_file" in metafunc.fixturenames:
        files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob(f"{ITEM}__*.json"))
        metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


def reason_to_skip(case: dict) -> str | None:
    """What this case needs that the package does not promise; None for a case that must pass."""
    hyper = case["hyper"]
    if case["use"] == "background":
        return f"background: {case['pins']}"
    if hyper["attn_type"] != 0:
        return f"attn_type {hyper['attn_type']} is not Transformer-XL's relative attention"
    if hyper["ext_len"] != 0:
        return f"ext_len {hyper['ext_len']}: an extended context is not part of the model"
    return None


def load(case: dict, tensors: dict[str, torch.Tensor], where: str) -> TransformerXLForCausalLM:
    hyper = DEFAULTS | case["hyper"] | {"dropout": 0.0}
    config = config_of(hyper)
    config.tie_word_embeddings = hyper["tie_weight"]
    if config.has_projections:
        config.tie_projs = hyper["tie_projs"] or [False] * len(config.clusters)
    weights = {name.removeprefix("w."): tensor for name, tensor in tensors.items() if name.startswith("w.")}
    state_dict = translate_weights(weights, config, where, "reversed")
    model = TransformerXLForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(state_dict, strict=False)
    assert not unexpected
    assert set(missing) <= set(model.all_tied_weights_keys)
    return model


def test_values_and_gradients(case_file):
    case = json.loads(case_file.read_text())
    reason = reason_to_skip(case)
    if reason:
        pytest.skip(reason)
    tensors = load_file(case_file.with_suffix(".safetensors"))
    out_bounds = {"atol": case["tolerance"]["out_atol"], "rtol": case["tolerance"]["out_rtol"]}
    model = load(case, tensors, case_file.name)

    memory, scalar = {}, torch.zeros(())
    for segment, length in enumerate(case["hyper"]["segments"]):
        ids, targets = tensors[f"in.data_seg{segment}"].T, tensors[f"in.target_seg{segment}"].T  # time-major there
        assert ids.shape[1] == length
        output = model(ids, shift_labels=targets, **memory)
        memory = {"mems": output.mems, "mems_mask": output.mems_mask}
        logprobs = output.logits.log_softmax(-1)
        losses = -logprobs.gather(-1, targets[..., None]).squeeze(-1)
        scalar = scalar + losses.square().sum()

        torch.testing.assert_close(losses.T, tensors[f"out.loss_seg{segment}"], **out_bounds)
        torch.testing.assert_close(output.loss, tensors[f"out.loss_seg{segment}"].mean(), **out_bounds)
        torch.testing.assert_close(logprobs.transpose(0, 1), tensors[f"out.logprob_seg{segment}"], **out_bounds)
        # the original also caches the last layer's output, which no layer reads
        for layer, remembered in enumerate(output.mems or ()):
            expected = tensors[f"out.mems_seg{segment}.{layer}"]
            torch.testing.assert_close(remembered.transpose(0, 1), expected, **out_bounds)
        assert (output.mems is None) == (case["hyper"]["mem_len"] == 0)
    torch.testing.assert_close(scalar, tensors["out.scalar"].squeeze(), **out_bounds)

    scalar.backward()
    assert_gradients(model, tensors, case, "reversed")
