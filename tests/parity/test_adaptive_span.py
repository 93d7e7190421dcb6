"""Adaptive attention span against numbers recorded from the authors' code (facebookresearch/adaptive-span).

Three segments from a memory of zeros, with spans of every kind: values, the memory after each segment, masks, sizes, the
loss of the spans, and gradients.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file

from transformers_xl import AdaptiveSpanConfig, AdaptiveSpanForCausalLM


def pytest_generate_tests(metafunc):
    files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob("adaptive_span__*.json"))
    metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


NAMES = {
    "attn.attn.adaptive_span._mask.current_val": "self_attn.span_mask.span",
    "attn.proj_query.weight": "self_attn.q_proj.weight",
    "attn.proj_key.weight": "self_attn.k_proj.weight",
    "attn.proj_val.weight": "self_attn.v_proj.weight",
    "attn.proj_out.weight": "self_attn.o_proj.weight",
    "norm1.weight": "input_layernorm.weight",
    "norm1.bias": "input_layernorm.bias",
    "norm2.weight": "post_attention_layernorm.weight",
    "norm2.bias": "post_attention_layernorm.bias",
}


def translated(tensors: dict[str, torch.Tensor], prefix: str, scale: float) -> dict[str, torch.Tensor]:
    """Tensors under our names; the embedding times `scale`, as ours is multiplied by sqrt(hidden_size)."""
    ours = {}
    for name, tensor in tensors.items():
        if not name.startswith(prefix) or name.endswith("mask_template"):
            continue
        name = name.removeprefix(prefix)
        if name == "key_pe":
            ours["model.positions.table"] = tensor[0].T
        elif name == "in_emb.weight":
            ours["model.embed_tokens.weight"] = tensor * scale
        elif name.startswith("out_emb."):
            ours[name.replace("out_emb", "lm_head")] = tensor
        else:
            _, layer, name = name.split(".", 2)
            tensor = tensor.flatten() if name.endswith("current_val") else tensor
            ours[f"model.layers.{layer}.{NAMES.get(name, name.replace('ff.', 'mlp.'))}"] = tensor
    return ours


def config_of(hyper: dict) -> AdaptiveSpanConfig:
    return AdaptiveSpanConfig(
        vocab_size=hyper["vocab_size"],
        hidden_size=hyper["hidden_size"],
        num_attention_heads=hyper["nb_heads"],
        num_hidden_layers=hyper["nb_layers"],
        intermediate_size=hyper["inner_hidden_size"],
        mem_len=hyper["attn_span"],
        span_ramp=hyper["adapt_span_ramp"],
        span_loss_coef=hyper["adapt_span_loss"],
        initial_memory="zeros",
        norm_position="post",
        tie_word_embeddings=False,
        dropout=0.0,
    )


def test_values_and_gradients(case_file: Path):
    case = json.loads(case_file.read_text())
    hyper, tolerance = case["hyper"], case["tolerance"]
    tensors = load_file(case_file.with_suffix(".safetensors"))
    close = {"atol": tolerance["out_atol"], "rtol": tolerance["out_rtol"]}
    model = AdaptiveSpanForCausalLM(config_of(hyper))
    scale = math.sqrt(hyper["hidden_size"])
    model.load_state_dict(translated(tensors, "w.", 1 / scale))

    for layer, block in enumerate(model.model.layers):
        torch.testing.assert_close(
            block.self_attn.span_mask(hyper["attn_span"]), tensors[f"out.mask.{layer}"], **close
        )
        assert model.spans()[layer].max() == tensors[f"out.sizes.{layer}"][2]
    expected_loss = sum(tensors[f"out.span_loss.{layer}"].item() for layer in range(hyper["nb_layers"]))
    assert math.isclose(model.span_loss().item(), expected_loss, rel_tol=1e-5)

    total, mems = model.span_loss(), None
    for segment in range(3):
        output = model(tensors[f"in.x_seg{segment}"], mems=mems)
        mems, logprobs = output.mems, output.logits.log_softmax(-1)
        torch.testing.assert_close(logprobs, tensors[f"out.logprob_seg{segment}"], **close)
        for layer, memory in enumerate(mems):
            torch.testing.assert_close(memory, tensors[f"out.cache_seg{segment}.{layer}"], **close)
        nll = -logprobs.gather(-1, tensors[f"in.target_seg{segment}"][..., None]).squeeze(-1)
        torch.testing.assert_close(nll, tensors[f"out.nll_seg{segment}"], **close)
        total = total + nll.square().sum()
    torch.testing.assert_close(total.view(1), tensors["out.scalar"], **close)

    total.backward()
    gradients = translated(tensors, "grad.", scale)
    parameters = dict(model.named_parameters())
    for name, expected in gradients.items():
        atol = tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(
            parameters[name].grad, expected, atol=atol, rtol=tolerance["grad_rtol"], msg=lambda m, n=name: f"{n}: {m}"
        )
    assert len(gradients) == 7
