"""The Block-Recurrent Transformer against the authors' code (google-research/meliad).

There the zeros of an empty memory are attended to, a token does not see itself, a block is as long as the window, and the
logits are divided by the root of the model's width: the gain of our last norm is.
"""

from functools import partial

import golden
import torch
from golden import Case
from meliad import OTHER_POSITIONS, translated
from torch.nn import functional as F

from transformers_xl import BlockRecurrentConfig, BlockRecurrentForCausalLM
from transformers_xl.modeling.memory.memory_value import Memory

NAMES = [
    (r"^embed\.embedding$", "model.embed_tokens.weight"),
    (r"^final_layernorm\.scale$", "model.norm.weight"),
    (r"^transformer(\d+)\.", r"model.layers.\1."),
    (r"\.relative_positions\.rel_embedding$", ".self_attn.relative_attention_bias.weight"),
    (r"\.recurrent_initial_state$", ".state.start.weight"),
    (r"\.recurrent_tbase\.", ".state."),
    (r"\.state\.(_kvq\.)?(attention_scale|\w+_layer\b)", r".state.attn.\2"),
    (r"\.tbase\.(_kvq\.)?(attention_scale|\w+_layer\b)", r".self_attn.\2"),
    (r"\.state\._kvq\.position_embeddings$", ".state.position_embeddings.weight"),
    (r"\.attention_scale2$", ".cross_attention_scale.weight"),
    (r"\.attention_scale$", ".attention_scale.weight"),
    (r"\.queries2_layer\.", ".cross_q_proj."),
    (r"\.queries_layer\.", ".q_proj."),
    (r"\.keys_layer\.", ".k_proj."),
    (r"\.values_layer\.", ".v_proj."),
    (r"\._kvq\.pre_attn_layernorm\.scale$", ".input_layernorm.weight"),
    (r"\.state\.pre_ffn_layernorm\.scale$", ".state.mlp_layernorm.weight"),
    (r"\.pre_ffn_layernorm\.scale$", ".post_attention_layernorm.weight"),
    (r"\.state\.post_attn_mlp\.output_layer\.", ".state.attn.o_proj."),
    (r"\.post_attn_mlp\.output_layer\.", ".self_attn.o_proj."),
    (r"\.state\.post_attn_mlp\.(gate_bias|input_gate|forget_gate)", r".state.attn_gate.\1"),
    (r"\.state\.ffn\.(gate_bias|input_gate|forget_gate)", r".state.mlp.gate.\1"),
    (r"\.ffn\.hidden0\.", ".mlp.fc1."),
    (r"\.ffn\.output_layer\.", ".mlp.fc2."),
    (r"\.tbase\.", "."),
    (r"\.kernel$", ".weight"),
]


def update_of(case: Case) -> str:
    """Our name of `skip_ffn` and `single_gate`."""
    hyper = case.hyper
    skips, single = hyper.get("skip_ffn", False), hyper.get("single_gate", False)
    assert not (skips and single), "one gate is that of the feed-forward, which `skip_ffn` leaves out"
    return "single" if single else "skip" if skips else "dual"


def build(case: Case) -> BlockRecurrentForCausalLM:
    hyper = case.hyper
    case.choice("position", "t5", but=OTHER_POSITIONS, reason="the paper's models have T5's biases")
    case.choice("gate", "bias", "lstm", but=["residual"], reason="not one of the paper's gates")
    hyper.only_describe(segment_length=max(case.lengths("input_ids", "target", axis=1)))
    config = BlockRecurrentConfig(
        vocab_size=hyper["vocab_size"],
        hidden_size=hyper["embedding_size"],
        num_hidden_layers=hyper["num_layers"],
        num_attention_heads=hyper["num_heads"],
        head_dim=hyper["head_size"],
        intermediate_size=hyper["mlp_dim"],
        mem_len=hyper["window_length"],
        block_length=hyper["window_length"],
        num_states=hyper["num_states"],
        recurrent_layers=[layer % hyper["num_layers"] for layer in hyper["recurrent_layers"]],
        state_gate="fixed" if hyper["gate"] == "bias" else "lstm",
        state_update=update_of(case),
        feedback=hyper.get("feedback", hyper.get("feedback_recurrence", False)),
        attend_to_self=False,
        initial_memory="zeros",
        layer_norm_eps=1e-6,
        scale_embedding=False,
        lm_head_bias=False,
        dropout=0.0,
    )
    model = BlockRecurrentForCausalLM(config).to(case.dtype)
    state = translated(case.weights, NAMES)
    state["model.norm.weight"] = state["model.norm.weight"] / config.hidden_size**0.5
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    biases = {f"{name}.mlp.{layer}.bias" for name, _ in model.named_modules() for layer in ("fc1", "fc2")}
    own = {name: each for name, each in model.state_dict().items() if name in biases and "state" not in name}
    model.load_state_dict(state | {name: torch.zeros_like(each) for name, each in own.items()})
    return model.train()


def check_memory(case: Case, model: BlockRecurrentForCausalLM, segment: int, mems: Memory) -> None:
    """The keys and values of the window, and the state."""
    for index, (layer, memory) in enumerate(zip(model.model.layers, mems.layers, strict=True)):
        name = f"state_seg{segment}.state.transformer{index}"
        key, value = layer.project(memory.newest(case.hyper["window_length"]).columns[0])
        case.check(f"{name}.previous_keys_test", key.transpose(1, 2))
        case.check(f"{name}.previous_values_test", value.transpose(1, 2))
        if memory.state:
            case.check(f"{name}.recurrent_state_test", memory.state[0])


@golden.cases("block_recurrent")
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
    case.finish()
