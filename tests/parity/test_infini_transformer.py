"""The Infini-Transformer against a naive loop of the paper's equations over single tokens."""

import re

import golden
import torch
from golden import Case
from torch.nn import functional as F

from transformers_xl import InfiniTransformerConfig, InfiniTransformerForCausalLM

NAMES = [
    (r"^embed\.", "model.embed_tokens."),
    (r"^norm_f\.", "model.norm."),
    (r"^out\.", "lm_head."),
    (r"\.([qkvo])\.", r".self_attn.\1_proj."),
    (r"\.norm1\.", ".input_layernorm."),
    (r"\.norm2\.", ".post_attention_layernorm."),
    (r"\.ff([12])\.", r".mlp.fc\1."),
    (r"^layers\.", "model.layers."),
]


def translated(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under our names; the gates of all layers are one tensor there."""
    ours = {}
    for name, tensor in tensors.items():
        for theirs, here in NAMES:
            name = re.sub(theirs, here, name)
        ours[name] = tensor
    gates = ours.pop("beta")
    return ours | {f"model.layers.{i}.self_attn.memory_gate": gate for i, gate in enumerate(gates)}


def build(case: Case) -> InfiniTransformerForCausalLM:
    hyper = case.hyper
    case.choice("update", "linear", "delta")
    hyper.only_describe(segment_len=max(case.lengths("input_ids", "target", axis=1)))
    config = InfiniTransformerConfig(
        vocab_size=hyper["vocab_size"],
        hidden_size=hyper["d_model"],
        num_hidden_layers=hyper["n_layer"],
        num_attention_heads=hyper["n_head"],
        head_dim=hyper["d_key"],
        value_head_dim=hyper.get("d_value"),
        intermediate_size=hyper["d_inner"],
        mem_len=hyper["segment_len"],
        memory_update=hyper["update"],
        rope_theta=hyper.get("rope_theta") or None,
        hidden_act="gelu",
        lm_head_bias=False,
        scale_embedding=False,
        tie_word_embeddings=False,
    )
    model = InfiniTransformerForCausalLM(config).to(case.dtype).eval()
    model.load_state_dict(translated(case.weights))
    return model


def loss_of(case: Case, logits: torch.Tensor, segment: int) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), case.inputs[f"target_seg{segment}"].flatten())


def check_gradients(case: Case, model: torch.nn.Module, objective: torch.Tensor, prefix: str) -> None:
    model.zero_grad()
    objective.backward()
    case.gradients = case.part(prefix)
    case.check_gradients(golden.gradients_of(model), translated)


@golden.cases("infini_attention")
def test_values_and_gradients(case: Case):
    """A segment there is a block here, in a call of its own, before which the memory is detached. In one call over all
    blocks the gradient goes through the memory."""
    model, mems, retrieved = build(case), None, []
    record_retrieved(model, retrieved)
    lengths = case.hyper["segments"]
    for segment, length in enumerate(lengths):
        model.resize_memory(length)
        output = model(case.inputs[f"input_ids_seg{segment}"], mems=mems)
        mems, loss = output.mems, loss_of(case, output.logits, segment)
        case.check(f"logits_seg{segment}", output.logits)
        case.check(f"loss_seg{segment}", loss)
        for layer, memory in enumerate(mems.layers):
            case.check(f"M_seg{segment}.{layer}", memory.state[0])
            case.check(f"z_seg{segment}.{layer}", memory.state[1])
            case.check(
                f"A_mem_seg{segment}.{layer}", retrieved[segment * len(model.model.layers) + layer].transpose(1, 2)
            )
    check_gradients(case, model, loss, "grad.detached.")
    case.finish()
    block, last = lengths[0], lengths[-1]
    if set(lengths[:-1]) - {block} or last > block:
        case.out_of_scope("the blocks of one call have one length: gradients through the memory", "segments")
    model.resize_memory(block)
    whole = model(torch.cat([case.inputs[f"input_ids_seg{segment}"] for segment in range(len(lengths))], dim=1))
    check_gradients(case, model, loss_of(case, whole.logits[:, -last:], len(lengths) - 1), "grad.full.")


def record_retrieved(model: InfiniTransformerForCausalLM, retrieved: list[torch.Tensor]) -> None:
    """Note A_mem of every layer, call after call."""
    for layer in model.model.layers:
        attention = layer.self_attn

        def noting(*args, read_and_write=attention.read_and_write):
            found, sums = read_and_write(*args)
            retrieved.append(found)
            return found, sums

        attention.read_and_write = noting
