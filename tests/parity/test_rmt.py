"""Memory tokens against the authors' code: their `MemoryCell`, around a language model of transformers."""

import dataclasses

import golden
import pytest
import torch
from golden import Case, gradients_of
from torch.nn import functional as F
from transformers import AutoConfig, PreTrainedConfig

from transformers_xl import SegmentMemoryConfig, SegmentMemoryForCausalLM

# the names of the case, and those that configurations of transformers have for them
FIELDS = {
    "vocab_size": ("vocab_size",),
    "n_positions": ("max_position_embeddings",),
    "d_model": ("hidden_size",),
    "n_layer": ("num_hidden_layers",),
    "n_head": ("num_attention_heads",),
    "d_inner": ("intermediate_size", "n_inner"),
    "tie": ("tie_word_embeddings",),
}


def base_config(hyper: dict) -> PreTrainedConfig:
    """The configuration of the base, without dropout."""
    empty = AutoConfig.for_model(hyper["base"])
    known = {field.name for field in dataclasses.fields(empty)} | set(empty.attribute_map)
    settings = {name: hyper[field] for field, names in FIELDS.items() if field in hyper for name in names}
    settings |= {name: value for name, value in hyper.items() if name not in FIELDS}
    settings |= {name: 0.0 for name in known if name.endswith(("dropout", "pdrop"))}
    settings |= {"bos_token_id": None, "eos_token_id": None, "attn_implementation": "eager"}
    return AutoConfig.for_model(
        hyper["base"], **{name: value for name, value in settings.items() if name in known | {"attn_implementation"}}
    )


def translated(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under our names."""
    return {
        "reader.memory_tokens.start" if name == "memory" else f"backbone.{name.removeprefix('model.')}": tensor
        for name, tensor in tensors.items()
    }


def build(case: Case, bptt_segments: int) -> SegmentMemoryForCausalLM:
    hyper = case.hyper
    lengths = hyper["segments"]
    if any(length != hyper["segment_len"] for length in lengths[:-1]) or lengths[-1] > hyper["segment_len"]:
        case.out_of_scope("a segment that is not whole is not closed before the next", "segments", "segment_len")
    config = SegmentMemoryConfig(
        text_config=base_config(hyper),
        kind="tokens",
        num_memory_tokens=hyper["num_mem_tokens"],
        segment_length=hyper["segment_len"],
        bptt_segments=bptt_segments,
    )
    model = SegmentMemoryForCausalLM(config).to(case.dtype).eval()
    missing, unexpected = model.load_state_dict(translated(case.weights), strict=False)
    assert not unexpected
    assert set(missing) <= {"reader.memory_tokens.scale", "backbone.lm_head.weight"}
    torch.nn.init.ones_(model.reader.memory_tokens.scale)  # not in the original
    model.tie_weights()
    return model


def losses(case: Case, logits: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of each segment, `(batch, length)`."""
    return [
        F.cross_entropy(each.transpose(1, 2), case.inputs[f"target_seg{segment}"], reduction="none")
        for segment, each in enumerate(logits)
    ]


@golden.cases("rmt")
def test_values(case: Case):
    """Segment by segment, by the memory that is handed on."""
    model, mems = build(case, bptt_segments=1), None
    with torch.no_grad():
        for segment, length in enumerate(case.hyper["segments"]):
            output = model(case.inputs[f"input_ids_seg{segment}"], mems=mems, output_hidden_states=True)
            mems = output.mems
            nll = F.cross_entropy(output.logits.transpose(1, 2), case.inputs[f"target_seg{segment}"], reduction="none")
            case.check(f"logits_seg{segment}", output.logits)
            case.check(f"hidden_seg{segment}", output.hidden_states[-1])
            case.check(f"nll_seg{segment}", nll)
            case.check(f"loss_seg{segment}", nll.mean())
            if length == case.hyper["segment_len"]:
                case.check(f"memory_seg{segment}", model.layout.split(mems).model["memory_tokens"])
        ids = torch.cat([case.inputs[f"input_ids_seg{segment}"] for segment in range(len(case.hyper["segments"]))], 1)
        case.check("wrapper_loss", model(ids, labels=ids).loss)
    case.finish()


@pytest.mark.parametrize(
    ("prefix", "bptt_segments"), [("detached", 1), ("bptt2", 2), ("full", None), ("sum_full", None)]
)
@golden.cases("rmt")
def test_gradients(case: Case, prefix: str, bptt_segments: int | None):
    """One call of all segments, in which the last ones learn together."""
    lengths = case.hyper["segments"]
    model = build(case, bptt_segments or len(lengths))
    ids = torch.cat([case.inputs[f"input_ids_seg{segment}"] for segment in range(len(lengths))], dim=1)
    of_segments = [each.mean() for each in losses(case, list(model(ids).logits.split(lengths, dim=1)))]
    (sum(of_segments) if prefix == "sum_full" else of_segments[-1]).backward()
    case.gradients = {
        name.removeprefix(f"{prefix}."): each for name, each in case.gradients.items() if name.startswith(f"{prefix}.")
    }
    case.check_gradients(gradients_of(model), translated)
    written = model.reader.memory_tokens.start.grad
    assert (written is not None and bool(written.any())) == ((bptt_segments or len(lengths)) >= len(lengths))
