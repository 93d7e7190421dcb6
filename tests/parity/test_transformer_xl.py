"""Transformer-XL against numbers recorded from the authors' code (kimiyoung/transformer-xl, `MemTransformerLM`).

The mapping reads each case's `hyper`: any geometry of the plain softmax with relative attention is run.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM

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
    if hyper["cutoffs"] or hyper["div_val"] != 1 or hyper["d_embed"] != hyper["d_model"]:
        return "adaptive softmax or projected embedding: not built yet"
    return None


def config_from(hyper: dict) -> TransformerXLConfig:
    return TransformerXLConfig(
        vocab_size=hyper["n_token"],
        hidden_size=hyper["d_model"],
        num_hidden_layers=hyper["n_layer"],
        num_attention_heads=hyper["n_head"],
        head_dim=hyper["d_head"],
        intermediate_size=hyper["d_inner"],
        mem_len=hyper["mem_len"],
        segment_length=hyper["tgt_len"],
        same_length=hyper["same_length"],
        clamp_len=hyper["clamp_len"],
        tie_word_embeddings=hyper["tie_weight"],
        norm_position="pre" if hyper["pre_lnorm"] else "post",
        use_final_norm=False,
        dropout=0.0,
    )


NAMES = {
    "r_w_bias": "model.positions.bias.content_bias",
    "r_r_bias": "model.positions.bias.position_bias",
    "word_emb.emb_layers.0.weight": "model.embed_tokens.weight",
    "crit.out_layers.0.weight": "lm_head.weight",
    "crit.out_layers.0.bias": "lm_head.bias",
}
LAYER_NAMES = {
    "dec_attn.r_net": "self_attn.r_proj",
    "dec_attn.o_net": "self_attn.o_proj",
    "dec_attn.layer_norm": "input_layernorm",
    "pos_ff.CoreNet.0": "mlp.fc1",
    "pos_ff.CoreNet.3": "mlp.fc2",
    "pos_ff.layer_norm": "post_attention_layernorm",
}


def translate(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """An original weight (or its gradient) under our names."""
    if name in NAMES:
        return {NAMES[name]: tensor}
    _, index, *rest = name.split(".")
    module, parameter = ".".join(rest[:-1]), rest[-1]
    layer = f"model.layers.{index}"
    if module == "dec_attn.qkv_net":
        names = [f"{layer}.self_attn.{projection}.{parameter}" for projection in ("q_proj", "k_proj", "v_proj")]
        return dict(zip(names, tensor.chunk(3), strict=True))
    return {f"{layer}.{LAYER_NAMES[module]}.{parameter}": tensor}


def test_values_and_gradients(case_file):
    case = json.loads(case_file.read_text())
    reason = reason_to_skip(case)
    if reason:
        pytest.skip(reason)
    tensors = load_file(case_file.with_suffix(".safetensors"))
    out_bounds = {"atol": case["tolerance"]["out_atol"], "rtol": case["tolerance"]["out_rtol"]}

    model = TransformerXLForCausalLM(config_from(case["hyper"])).eval()
    state = {}
    for name, tensor in tensors.items():
        if name.startswith("w.") and name != "w.pos_emb.inv_freq":  # computed, not learned
            state |= translate(name.removeprefix("w."), tensor)
    model.load_state_dict(state)

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
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    stored = [name for name in tensors if name.startswith("grad.")]
    assert stored
    for name in stored:
        for ours, expected in translate(name.removeprefix("grad."), tensors[name]).items():
            atol = case["tolerance"]["grad_atol"] * max(1.0, tensors[name].abs().max().item())
            torch.testing.assert_close(
                gradients[ours],
                expected,
                atol=atol,
                rtol=case["tolerance"]["grad_rtol"],
                msg=lambda text, name=name: f"{name}: {text}",
            )
