"""Adaptive attention span against numbers recorded from the authors' code (facebookresearch/adaptive-span).

Segments from a memory of zeros, with spans of every kind: values, the memory after each segment, masks, sizes, the loss of
the spans, and gradients. That code rounds what a layer keeps to 64 positions: its memory is the end of ours.
"""

import math

import golden
import torch
from golden import Case

from transformers_xl import AdaptiveSpanConfig, AdaptiveSpanForCausalLM

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


def translated(tensors: dict[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """Tensors under our names; the embedding times `scale`, as ours is multiplied by sqrt(hidden_size)."""
    ours = {}
    for name, tensor in tensors.items():
        if name.endswith("mask_template"):
            continue
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


def build(case: Case) -> AdaptiveSpanForCausalLM:
    hyper = case.hyper
    config = AdaptiveSpanConfig(
        vocab_size=hyper["vocab_size"],
        hidden_size=hyper["hidden_size"],
        num_attention_heads=hyper["nb_heads"],
        num_hidden_layers=hyper["nb_layers"],
        intermediate_size=hyper["inner_hidden_size"],
        mem_len=hyper["attn_span"],
        span_ramp=hyper["adapt_span_ramp"] or 1,
        span_loss_coef=hyper["adapt_span_loss"] if hyper["adapt_span_enabled"] else 0.0,
        initial_span=1.0,  # what a case without learned spans sees, and keeps
        initial_memory="zeros",
        norm_position="post",
        tie_word_embeddings=False,
        dropout=0.0,
    )
    model = AdaptiveSpanForCausalLM(config).to(case.dtype)
    ours = translated(case.weights, 1 / math.sqrt(hyper["hidden_size"]))
    missing, unexpected = model.load_state_dict(ours, strict=False)
    assert not unexpected
    assert all(name.endswith("span_mask.span") and not hyper["adapt_span_enabled"] for name in missing)
    return model


def check_spans(case: Case, model: AdaptiveSpanForCausalLM) -> None:
    span, ramp = case.hyper["attn_span"], case.hyper["adapt_span_ramp"]
    spans = case.hyper["span_values"] if case.hyper["adapt_span_enabled"] else None
    for layer, block in enumerate(model.model.layers):
        mask = block.self_attn.span_mask
        case.check(f"mask.{layer}", mask(span))
        case.check(f"span_loss.{layer}", model.config.span_loss_coef * mask.lengths().mean())
        if spans:
            torch.testing.assert_close(mask.span.detach(), torch.tensor(spans[layer], dtype=case.dtype))
        average = min(math.ceil(mask.lengths().mean().item()) + ramp, span)
        longest = int(model.spans()[layer].max())
        left_out = min(span - 1, span - longest) // 64 * 64  # that code does so in steps of 64
        kept = min(span, span - left_out + 64) if case.hyper["adapt_span_cache"] else span
        case.check(f"sizes.{layer}", torch.tensor([kept, left_out, longest, average]))


@golden.cases("adaptive_span")
def test_values_and_gradients(case: Case):
    lengths = case.lengths("x", "target", axis=1)
    case.hyper.only_describe(block=max(lengths))
    if case.hyper["pers_mem_size"] != 0:
        case.out_of_scope("vectors in place of the feed-forward are another paper's", "pers_mem_size")
    model = build(case)
    check_spans(case, model)
    total, mems = model.config.span_loss_coef * model.model.auxiliary_loss(None), None
    for segment in range(len(lengths)):
        output = model(case.inputs[f"x_seg{segment}"].long(), mems=mems)
        mems, logprobs = output.mems, output.logits.log_softmax(-1)
        case.check(f"logprob_seg{segment}", logprobs)
        for layer, memory in enumerate(golden.columns_of(mems)):
            name = f"cache_seg{segment}.{layer}"
            kept = case.tensors[f"out.{name}"].shape[1] if case.has(name) else 0
            case.check(name, memory[:, memory.shape[1] - kept :])
        nll = -logprobs.gather(-1, case.inputs[f"target_seg{segment}"].long()[..., None]).squeeze(-1)
        case.check(f"nll_seg{segment}", nll)
        total = total + nll.square().sum()
    case.check("scalar", total)
    total.backward()
    scale = math.sqrt(case.hyper["hidden_size"])
    case.check_gradients(golden.gradients_of(model), lambda tensors: translated(tensors, scale))
    case.finish()
