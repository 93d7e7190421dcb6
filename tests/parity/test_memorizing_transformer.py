"""The Memorizing Transformer against the authors' code (google-research/meliad).

There the zeros of an empty memory are attended to, in the window and where fewer keys are remembered than are looked up; a
token does not see itself; a block is a segment; and the logits are divided by the root of the model's width: the gain of
our last norm is.
"""

import re
from functools import partial

import golden
import torch
from golden import Case
from meliad import OTHER_POSITIONS, translated
from torch.nn import functional as F

from transformers_xl import MemorizingTransformerConfig, MemorizingTransformerForCausalLM
from transformers_xl.modeling.memory.memory_value import Memory

NAMES = [
    (r"^embed\.embedding$", "model.embed_tokens.weight"),
    (r"^final_layernorm\.scale$", "model.norm.weight"),
    (r"^transformer(\d+)\.", r"model.layers.\1."),
    (r"\.relative_positions\.rel_embedding$", ".self_attn.relative_attention_bias.weight"),
    (r"\.external_memory_bias$", ".self_attn.memory_gate"),
    (r"\.tbase\._kvq\.pre_attn_layernorm\.scale$", ".input_layernorm.weight"),
    (r"\.tbase\.pre_ffn_layernorm\.scale$", ".post_attention_layernorm.weight"),
    (r"\.tbase\._kvq\.attention_scale$", ".self_attn.attention_scale.weight"),
    (r"\.tbase\._kvq\.queries_layer\.", ".self_attn.q_proj."),
    (r"\.tbase\._kvq\.keys_layer\.", ".self_attn.k_proj."),
    (r"\.tbase\._kvq\.values_layer\.", ".self_attn.v_proj."),
    (r"\.tbase\.post_attn_mlp\.output_layer\.", ".self_attn.o_proj."),
    (r"\.tbase\.ffn\.hidden0\.", ".mlp.fc1."),
    (r"\.tbase\.ffn\.output_layer\.", ".mlp.fc2."),
    (r"\.kernel$", ".weight"),
]


OTHER_MIXES = ("ADD", "STOP_FORWARD")  # `IntegrationMethod` and `CrossAttentionType` of that code


def build(case: Case) -> MemorizingTransformerForCausalLM:
    hyper = case.hyper
    has_biases = "the authors' models with this memory have T5's biases"
    case.choice("position", "t5", but=OTHER_POSITIONS, reason=has_biases)
    case.choice("retrieval", "exact", but=["approximate", "approx"], reason="the search is exact")
    case.choice("combine", "TRAINABLE_WEIGHTED_MEAN", but=OTHER_MIXES, reason="the paper mixes by a gate")
    case.lengths("input_ids", "target", axis=1)
    if {*hyper["segments"]} != {hyper["segment_length"]}:
        case.out_of_scope("a block is a segment, and all are alike", "segments")
    config = MemorizingTransformerConfig(
        vocab_size=hyper["vocab_size"],
        hidden_size=hyper["embedding_size"],
        num_hidden_layers=hyper["num_layers"],
        num_attention_heads=hyper["num_heads"],
        head_dim=hyper["head_size"],
        intermediate_size=hyper["mlp_dim"],
        mem_len=hyper["window_length"],
        block_length=hyper["segment_length"],
        memory_layers=[layer % hyper["num_layers"] for layer in hyper["memory_layers"]],
        num_retrieved=hyper["num_neighbors"],
        num_memory_keys=hyper["database_size"],
        attend_to_empty=True,
        attend_to_self=False,
        initial_memory="zeros",
        layer_norm_eps=1e-6,
        scale_embedding=False,
        lm_head_bias=False,
        dropout=0.0,
    )
    model = MemorizingTransformerForCausalLM(config).to(case.dtype)
    state = translated(case.weights, NAMES)
    state["model.norm.weight"] = state["model.norm.weight"] / config.hidden_size**0.5
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    biases = [name for name in model.state_dict() if re.search(r"\.mlp\.fc\d\.bias$", name)]
    model.load_state_dict(state | {name: torch.zeros_like(model.state_dict()[name]) for name in biases})
    return model.train()


def check_memory(case: Case, model: MemorizingTransformerForCausalLM, segment: int, mems: Memory) -> None:
    """The keys and values of the window, and those that are looked up: theirs are zero where nothing was written."""
    counts = mems.tokens_read.clamp(max=case.hyper["database_size"]).tolist()
    assert not (mems.tokens_read % model.config.block_length).any()
    for index, (layer, memory) in enumerate(zip(model.model.layers, mems.layers, strict=True)):
        name = f"state_seg{segment}.state.transformer{index}"
        inputs = memory.columns[0][:, -case.hyper["window_length"] :]
        key, value = layer.project(inputs)
        case.check(f"{name}.previous_keys_test", key.transpose(1, 2))
        case.check(f"{name}.previous_values_test", value.transpose(1, 2))
        name = f"state_seg{segment}.database.transformer{index}.mem_layer_test.wrapped"
        if not memory.older:
            continue
        written = case.tensors[f"out.{name}.database_index"].view(len(counts), -1)[:, 0].tolist()
        for theirs, ours in zip(("key_db", "value_db"), memory.older, strict=True):
            case.check(f"{name}.{theirs}", as_written(ours, counts, written, case.hyper["database_size"]))


def as_written(states: torch.Tensor, counts: list[int], written: list[int], size: int) -> torch.Tensor:
    """The newest `counts` of `states` `(B, H, C, D)` where they write them, the next one at `written % size`: `(B H, size,
    D)`, zeros elsewhere."""
    stored = states.new_zeros(*states.shape[:2], size, states.shape[3])
    for row, (count, end) in enumerate(zip(counts, written, strict=True)):
        for age in range(1, count + 1):
            stored[row, :, (end - age) % size] = states[row, :, -age]
    return stored.flatten(0, 1)


@golden.cases("memorizing_transformer")
def test_values_and_gradients(case: Case):
    """Of `mems` what they hold; of a cache the gradients: there, as here, what it has projected learns nothing more."""
    model, mems, cache = build(case), None, None
    for segment, starts in enumerate(case.hyper["start_of_sequence"]):
        ids, targets = case.inputs[f"input_ids_seg{segment}"], case.inputs[f"target_seg{segment}"]
        output = model(ids, mems=mems, reset=torch.tensor(starts))
        mems = output.mems
        check_memory(case, model, segment, mems)
        case.check(f"logits_seg{segment}", output.logits)
        output = model(ids, past_key_values=cache, use_cache=True, reset=torch.tensor(starts))
        cache, loss = output.past_key_values, F.cross_entropy(output.logits.flatten(0, 1), targets.flatten())
        case.check(f"loss_seg{segment}", loss)
    loss.backward()
    found = golden.gradients_of(model)
    found["model.norm.weight"] = found["model.norm.weight"] / model.config.hidden_size**0.5
    case.check_gradients(found, partial(translated, names=NAMES))
    case.finish("*.database_index")  # where they write next
