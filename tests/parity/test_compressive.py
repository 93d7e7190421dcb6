"""The Compressive Transformer against a naive form of the paper's algorithms 1 and 2, a loop over queries.

There a call is a segment: it compresses what its own tokens push out of the window, and does not see it yet
(`same_length=False`).
"""

import re

import golden
import torch
from golden import Case
from torch.nn import functional as F

from transformers_xl import CompressiveTransformerConfig, CompressiveTransformerForCausalLM

NAMES = [
    (r"^embed\.", "model.embed_tokens."),
    (r"^u$", "model.positions.bias.content_bias"),
    (r"^v$", "model.positions.bias.position_bias"),
    (r"^out\.", "lm_head."),
    (r"\.([qkvro])\.", r".self_attn.\1_proj."),
    (r"\.norm1\.", ".input_layernorm."),
    (r"\.norm2\.", ".post_attention_layernorm."),
    (r"\.ff([12])\.", r".mlp.fc\1."),
    (r"\.conv\.", ".compression.conv."),
    (r"^layers\.", "model.layers."),
]


def translated(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under our names. Our convolution is a linear map of the vectors side by side."""
    ours = {}
    for name, tensor in tensors.items():
        tensor = tensor.transpose(1, 2).flatten(1) if name.endswith("conv.weight") else tensor
        for theirs, here in NAMES:
            name = re.sub(theirs, here, name)
        ours[name] = tensor
    return ours


def build(case: Case) -> CompressiveTransformerForCausalLM:
    hyper = case.hyper
    hyper.only_describe(segment_len=max(case.lengths("input_ids", "target", axis=1)))
    if max(hyper["segments"]) > hyper["mem_len"]:
        case.out_of_scope("tokens of a segment that never enter the memory are lost there", "segments", "mem_len")
    config = CompressiveTransformerConfig(
        vocab_size=hyper["vocab_size"],
        hidden_size=hyper["d_model"],
        num_hidden_layers=hyper["n_layer"],
        num_attention_heads=hyper["n_head"],
        head_dim=hyper["d_head"],
        intermediate_size=hyper["d_inner"],
        mem_len=hyper["mem_len"],
        compressed_mem_len=hyper["cmem_len"],
        compression_rate=hyper["ratio"],
        compression_function=hyper["compression"],
        initial_memory=hyper.get("initial_memory", "zeros"),
        same_length=False,
        norm_position="post",
        tie_word_embeddings=False,
        dropout=0.0,
    )
    model = CompressiveTransformerForCausalLM(config).to(case.dtype)
    model.load_state_dict(translated(case.weights))
    return model


@golden.cases("compressive_transformer")
def test_values_and_gradients(case: Case):
    model, mems = build(case), None  # in training mode, without dropout: the auxiliary loss belongs to training
    for segment in range(len(case.hyper["segments"])):
        output = model(case.inputs[f"input_ids_seg{segment}"], mems=mems)
        mems, targets = output.mems, case.inputs[f"target_seg{segment}"]
        loss = F.cross_entropy(output.logits.flatten(0, 1), targets.flatten())
        case.check(f"logits_seg{segment}", output.logits)
        case.check(f"loss_seg{segment}", loss)
        case.check(f"aux_loss_seg{segment}", output.compression_loss.mean())
        for layer, memory in enumerate(mems.layers):
            case.check(f"mem_seg{segment}.{layer}", memory.columns[0])
            case.check(f"cmem_seg{segment}.{layer}", memory.older[0])
    check_gradients(case, model, loss, "grad.")
    if case.part("grad_aux."):  # a mean or a maximum has no weights that could learn
        check_gradients(case, model, output.compression_loss.mean(), "grad_aux.")
    case.finish()


def check_gradients(case: Case, model: torch.nn.Module, loss: torch.Tensor, prefix: str) -> None:
    """The gradients of one loss are the recorded ones, and what has none there has none here."""
    model.zero_grad()
    loss.backward(retain_graph=True)
    case.gradients = case.part(prefix)
    found = golden.gradients_of(model)
    case.check_gradients(found, translated)
    learning = {name for name, gradient in found.items() if gradient is not None and gradient.any()}
    assert learning == translated(case.gradients).keys()
