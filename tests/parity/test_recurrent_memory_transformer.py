"""The Recurrent Memory Transformer on Transformer-XL against the authors' code (booydar/LM-RMT)."""

import golden
import torch
from golden import Case
from old_gradients import translated

from transformers_xl import RecurrentMemoryTransformerConfig, RecurrentMemoryTransformerForCausalLM


def build(case: Case, bptt_segments: int) -> RecurrentMemoryTransformerForCausalLM:
    hyper = case.hyper
    if hyper["num_mem_tokens"] > 1:
        case.out_of_scope("memory tokens see those behind them there, by scores of the next query", "num_mem_tokens")
    if "mem_at_end" in hyper:
        case.choice("mem_at_end", True, but=[False], reason="a segment without write positions writes nothing")
    case.choice("pre_lnorm", False, but=[True], reason="queries have no norm there")
    config = RecurrentMemoryTransformerConfig(
        vocab_size=hyper["n_token"],
        hidden_size=hyper["d_model"],
        num_hidden_layers=hyper["n_layer"],
        num_attention_heads=hyper["n_head"],
        head_dim=hyper["d_head"],
        intermediate_size=hyper["d_inner"],
        mem_len=max(hyper["mem_len"], 1),
        segment_reads_cache=hyper["mem_len"] > 0,
        segment_length=hyper["tgt_len"],
        num_memory_tokens=hyper["num_mem_tokens"],
        memory_reads_cache=hyper["read_mem_from_cache"] and hyper["mem_len"] > 0,
        bptt_segments=bptt_segments,
        norm_position="post",
        dropout=0.0,
    )
    model = RecurrentMemoryTransformerForCausalLM(config).to(case.dtype).eval()
    missing, unexpected = model.load_state_dict(ours(case.weights, config), strict=False)
    assert not unexpected
    assert set(missing) <= set(model.all_tied_weights_keys)
    return model


def ours(tensors: dict[str, torch.Tensor], config) -> dict[str, torch.Tensor]:
    """Weights or gradients under our names."""
    result = {}
    for name, tensor in tensors.items():
        if name == "mem_tokens":
            result["model.memory_tokens.start"] = tensor.squeeze(1)
        elif name != "pos_emb.inv_freq":
            result |= translated(name, tensor, config, "reversed")
    return result


def losses_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -logits.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)


@golden.cases("rmt_txl")
def test_values_and_gradients(case: Case):
    """Segment by segment, and all in one call, through as many as learn together."""
    lengths = case.lengths("data", "target", axis=0)
    if set(lengths) != {case.hyper["tgt_len"]}:
        case.out_of_scope("a segment that is not whole is not closed before the next", "segments", "tgt_len")
    tokens = case.hyper["num_mem_tokens"]
    model, mems = build(case, 1), None
    parts = [[case.inputs[f"{name}_seg{n}"].long().T for n in range(len(lengths))] for name in ("data", "target")]
    for segment, (ids, targets) in enumerate(zip(*parts, strict=True)):
        output = model(ids, mems=mems, output_hidden_states=True)
        mems = output.mems
        case.check(f"hidden_seg{segment}", output.hidden_states[-1].transpose(0, 1), lambda all_: all_[tokens:-tokens])
        case.check(f"loss_seg{segment}", losses_of(output.logits, targets).T)
        case.check(f"mem_tokens_seg{segment}", mems.state[0].transpose(0, 1))
        for layer, memory in enumerate(mems.layers):
            case.check(f"mems_seg{segment}.{layer}", memory.columns[0].transpose(0, 1))
    check_gradients(case, model, losses_of(output.logits, parts[1][-1]), "grad.detached.")
    case.finish(f"mems_seg*.{case.hyper['n_layer']}")  # the last layer's output, which no layer reads
    for name, bptt_segments in (("detached", 1), ("bptt2", 2), ("full", len(lengths))):
        model = build(case, bptt_segments)
        logits = model(torch.cat(parts[0], dim=1)).logits[:, -lengths[-1] :]
        check_gradients(case, model, losses_of(logits, parts[1][-1]), f"grad.{name}.")


def check_gradients(case: Case, model: torch.nn.Module, losses: torch.Tensor, prefix: str) -> None:
    model.zero_grad()
    losses.mean().backward()
    case.gradients = case.part(prefix)
    if case.gradients:
        case.check_gradients(golden.gradients_of(model), lambda tensors: ours(tensors, model.config))
