"""Memory tokens against the authors' code: their `MemoryCell`, around a language model of transformers."""

import dataclasses
from pathlib import Path

import golden
import pytest
import torch
from golden import Case, gradients_of
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from transformers_xl import SegmentMemoryConfig, SegmentMemoryForCausalLM

# the names of the case, and those that configurations of transformers have for them
FIELDS = {
    "n_positions": ("max_position_embeddings",),
    "d_model": ("hidden_size",),
    "n_layer": ("num_hidden_layers",),
    "n_head": ("num_attention_heads",),
    "n_kv_head": ("num_key_value_heads",),
    "d_head": ("head_dim",),
    "d_inner": ("intermediate_size", "n_inner"),
    "norm_eps": ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
    "tie": ("tie_word_embeddings",),
}
# what is no field of the base: what runs, and how
OF_THE_RUN = ("base", "num_mem_tokens", "segment_len", "segments", "n_segments", "batch")


def base_config(hyper: golden.Fields) -> PreTrainedConfig:
    """The configuration of the base, without dropout. A field has a name above, or that of the configuration."""
    empty = AutoConfig.for_model(hyper["base"])
    known = {field.name for field in dataclasses.fields(empty)} | set(empty.attribute_map)
    known |= {"rope_theta"} if "rope_parameters" in known else set()  # it is taken under its old name too
    settings = {name: 0.0 for name in known if name.endswith(("dropout", "pdrop"))}
    settings |= {"bos_token_id": None, "eos_token_id": None}
    for field in hyper:
        if field in OF_THE_RUN:
            continue
        names = [name for name in FIELDS.get(field, (field,)) if name in known]
        if not names:
            pytest.fail(f"{field}={hyper[field]!r} is no field of a {hyper['base']}")
        settings |= dict.fromkeys(names, hyper[field])
    return AutoConfig.for_model(hyper["base"], **settings, attn_implementation="eager")


def translated(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under our names."""
    return {
        "reader.memory_tokens.start" if name == "memory" else f"backbone.{name.removeprefix('model.')}": tensor
        for name, tensor in tensors.items()
    }


def build(case: Case, bptt_segments: int) -> SegmentMemoryForCausalLM:
    hyper, lengths = case.hyper, case.lengths("input_ids", "target", axis=1)
    hyper.change_nothing("segments", "n_segments", "batch")  # they describe those inputs
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
        for segment, length in enumerate(case.lengths("input_ids", axis=1)):
            output = model(case.inputs[f"input_ids_seg{segment}"], mems=mems, output_hidden_states=True)
            mems = output.mems
            nll = F.cross_entropy(output.logits.transpose(1, 2), case.inputs[f"target_seg{segment}"], reduction="none")
            case.check(f"logits_seg{segment}", output.logits)
            case.check(f"hidden_seg{segment}", output.hidden_states[-1])
            case.check(f"nll_seg{segment}", nll)
            case.check(f"loss_seg{segment}", nll.mean())
            if length == case.hyper["segment_len"]:
                case.check(f"memory_seg{segment}", mems.layers[0].state[0])
        ids = torch.cat(
            [case.inputs[f"input_ids_seg{segment}"] for segment in range(case.count("in.input_ids_seg*"))], 1
        )
        case.check("wrapper_loss", model(ids, labels=ids).loss)
    case.finish()


@pytest.mark.parametrize(
    ("prefix", "bptt_segments"), [("detached", 1), ("bptt2", 2), ("full", None), ("sum_full", None)]
)
@golden.cases("rmt")
def test_gradients(case: Case, prefix: str, bptt_segments: int | None):
    """One call of all segments, in which the last ones learn together."""
    lengths = case.lengths("input_ids", axis=1)
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


def recorded(folder: Path, hyper: dict) -> Case:
    """A case of this item, made by the description of the others: the base reads `[memory; text; memory]`."""
    base = AutoModelForCausalLM.from_config(base_config(golden.Fields(hyper))).eval()
    memory = torch.nn.Parameter(torch.randn(hyper["num_mem_tokens"], hyper["d_model"]))
    weights = {"w.memory": memory.detach(), **{f"w.model.{name}": each for name, each in base.state_dict().items()}}
    ids = torch.randint(hyper["vocab_size"], (hyper["batch"], sum(hyper["segments"]) + 1))
    tensors, carried, begin = dict(weights), memory.expand(hyper["batch"], -1, -1), 0
    for segment, length in enumerate(hyper["segments"]):
        text, targets = ids[:, begin : begin + length], ids[:, begin + 1 : begin + 1 + length]
        embeds = torch.cat([carried, base.get_input_embeddings()(text), carried], dim=1)
        output = base(inputs_embeds=embeds, output_hidden_states=True, use_cache=False)
        tokens = carried.shape[1]
        logits, carried = output.logits[:, tokens:-tokens], output.hidden_states[-1][:, -tokens:]
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        tensors |= {f"in.input_ids_seg{segment}": text, f"in.target_seg{segment}": targets}
        tensors |= {f"out.logits_seg{segment}": logits, f"out.memory_seg{segment}": carried}
        tensors |= {f"out.loss_seg{segment}": loss[None]}
        begin += length
    loss.backward()
    named = {"memory": memory, **{f"model.{name}": each for name, each in base.named_parameters()}}
    tensors |= {f"grad.full.{name}": each.grad for name, each in named.items() if each.grad is not None}
    return golden.write_case(folder / "made.json", "rmt", hyper, tensors)


@pytest.mark.parametrize("tie", [False, True])
def test_grouped_queries_around_a_llama(tie: bool, tmp_path: Path):
    sizes = {
        "vocab_size": 29,
        "n_positions": 16,
        "d_model": 16,
        "n_layer": 2,
        "n_head": 4,
        "n_kv_head": 2,
        "d_inner": 20,
    }
    run = {"num_mem_tokens": 2, "segment_len": 5, "segments": [5, 5, 5], "batch": 2}
    case = recorded(tmp_path, sizes | run | {"base": "llama", "tie": tie})
    test_values(case)
    test_gradients(case, "full", None)
    case.check_all_read()


def test_what_a_base_does_not_know_fails():
    hyper = {"base": "gpt2", "n_layer": 1, "n_kv_head": 2}
    with pytest.raises(pytest.fail.Exception, match="^n_kv_head=2 is no field of a gpt2$"):
        base_config(golden.Fields(hyper))
