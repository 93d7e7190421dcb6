"""SHA-RNN against numbers recorded from the authors' code (Smerity/sha-rnn), whose tensors are time-major."""

import golden
import torch
from contexts import context_of
from golden import Case

from transformers_xl import ShaRNNConfig, ShaRNNForCausalLM
from transformers_xl.modeling.layers.boom import Boom
from transformers_xl.modeling.layers.single_head_attention import Overparameterization, SingleHeadAttention
from transformers_xl.modeling.memory.memory_value import Memory

NAMES = {
    "encoder.weight": "model.embed_tokens.weight",
    "decoder.": "lm_head.",
    "blocks.": "model.layers.",
    "lnstart": "input_layernorm",
    "lnmid": "query_layernorm",
    "lnmem": "memory_layernorm",
    "lnxff": "mlp_layernorm",
    "lnff": "residual_layernorm",
    "rnn.": "lstm.",
    "ff.linear": "mlp.fc",
    "linear": "fc",
    "over.l1.": "over.proj.",
    "attn.": "self_attn.",
    "vq.l1.": "overparameterization.proj.",
    "qln.": "q_norm.",
    ".qs": ".query_gate",
    ".ks": ".key_gate",
    ".vs": ".value_gate",
    ".r_gate": ".mix_gate",
    ".q.": ".q_proj.",
    ".k.": ".k_proj.",
    ".v.": ".v_proj.",
    ".r.": ".mix_proj.",
}
GATES = (".qs", ".ks", ".vs", ".r_gate")
MAPS = {"k": "project_keys", "v": "project_values", "r": "mix_query"}


def is_left_out(name: str, attention: str, config: ShaRNNConfig) -> bool:
    """Whether that code never uses a weight: it gives every block the norms of an attention, and more."""
    of_attention = "lnmid" in name or "lnmem" in name
    return (
        "lnout" in name
        or name.endswith("qkvs")
        or (name.endswith("r_gate") and not config.mix_query)
        or (of_attention and not name.startswith(attention.removesuffix("attn.")))
    )


def translated(tensors: dict[str, torch.Tensor], attention: str, config: ShaRNNConfig) -> dict[str, torch.Tensor]:
    """Tensors under our names; what is never used there is left out. `attention`: how the names of its weights begin."""
    ours = {}
    for name, tensor in tensors.items():
        if is_left_out(name, attention, config):
            continue
        tensor = tensor.flatten() if name.endswith(GATES) else tensor
        for theirs, here in NAMES.items():
            name = name.replace(theirs, here)
        ours[name] = tensor
    return ours


def config_of(case: Case, attention: str, **fields) -> ShaRNNConfig:
    """With those maps in the attention that have weights."""
    return ShaRNNConfig(
        vocab_size=case.hyper["ntoken"],
        hidden_size=case.hyper["ninp"],
        intermediate_size=case.hyper["nhid"],
        num_hidden_layers=case.hyper["nlayers"],
        tie_word_embeddings=case.hyper["tie_weights"],
        same_length=False,
        dropout=0.0,
        attn_implementation="eager",
        **{field: f"{attention}{name}.weight" in case.weights for name, field in MAPS.items()},
        **fields,
    )


@golden.cases("sha_rnn")
def test_values_and_gradients(case: Case):
    checks = {"model": check_model, "parts": check_parts}
    checks[case.choice("kind", *checks)](case)


def check_model(case: Case) -> None:
    hyper, lengths = case.hyper, case.lengths("x", axis=0)
    hyper.only_describe(seg_lens=lengths)
    if hyper["nlayers"] < 2:
        case.out_of_scope("the last block but one has the attention", "nlayers")
    layer = hyper["nlayers"] - 2  # that with attention
    attention = f"blocks.{layer}.attn."
    mem_len = max(1, hyper["max_positions"] - min(lengths))  # without any memory no state is handed on
    boom_shortcut = "blocks.0.ff.linear2.weight" not in case.weights
    config = config_of(case, attention, mem_len=mem_len, boom_shortcut=boom_shortcut)
    model = ShaRNNForCausalLM(config).to(case.dtype).eval()
    missing, unexpected = model.load_state_dict(translated(case.weights, attention, config), strict=False)
    assert not unexpected
    assert set(missing) <= set(model.all_tied_weights_keys)

    objective, mems = 0.0, None
    for segment, length in enumerate(lengths):
        # the memory and the segment fill the positions of that code
        mems = None if mems is None else mems.newest([max(0, hyper["max_positions"] - length)] * hyper["nlayers"])
        output = model(case.inputs[f"x_seg{segment}"].long().T, mems=mems, output_hidden_states=True)
        mems, states = output.mems, output.hidden_states[-1]
        case.check(f"h_seg{segment}", states.transpose(0, 1))
        case.check(f"logits_seg{segment}", output.logits.transpose(0, 1))
        check_memory(case, segment, mems, layer)
        objective = objective + golden.squares(states) + output.logits.square().mean()
    case.check("scalar", objective)
    objective.backward()
    case.check_gradients(golden.gradients_of(model), lambda tensors: translated(tensors, attention, config))
    case.finish()


def check_memory(case: Case, segment: int, mems: Memory, layer: int) -> None:
    """The end of what that code keeps, which is all that it ever uses; and the states of the networks."""
    ours = mems.layers[layer].columns[0].transpose(0, 1)
    case.check(f"mem_seg{segment}.{layer}", ours, lambda kept: kept[len(kept) - len(ours) :])
    for block, remembered in enumerate(mems.layers):
        for state, kind in zip(remembered.state, "hc", strict=True):
            case.check(f"lstm_{kind}_seg{segment}.{block}", state[None])


def attend(attention: SingleHeadAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple:
    """Output and weights for tensors that are time-major, as all of that code's are."""
    query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
    context = context_of(query.shape[1], key.shape[1] - query.shape[1])
    projected = attention.queries(query), attention.project(key)[0], attention.project(value)[1]
    mixed, weights = attention.attend(*projected, context)
    return mixed.flatten(-2).transpose(0, 1), weights


def check_parts(case: Case) -> None:
    """The attention with the maps that it has, the Boom layer in both forms, and the over-parameterisation, each alone."""
    case.hyper.change_nothing("seg_lens", "max_positions")  # of the model
    case.hyper.only_describe(batch=case.inputs["query"].shape[1])
    heads = case.tensors["out.attn_weights"].shape[1] if case.has("attn_weights") else 1
    config = config_of(case, "attn.", num_attention_heads=heads)
    parts = {
        "attn": SingleHeadAttention(config, 0),
        "boom_shortcut": Boom(config),
        "boom": Boom(config_of(case, "attn.", num_attention_heads=heads, boom_shortcut=False)),
        "over": Overparameterization(config.hidden_size),
    }
    present = {name.split(".")[0] for name in case.weights}
    chosen = {name.replace("attn", "self_attn"): part for name, part in parts.items() if name in present}
    modules = torch.nn.ModuleDict(chosen).to(case.dtype)
    modules.load_state_dict(translated(case.weights, "attn.", config))

    inputs = {name: case.leaf(name) for name in ("query", "key", "value") if name in case.inputs}
    outputs = {"boom_shortcut": "boom_shortcut", "boom": "boom", "overparam": "over"}
    made = {name: modules[part](inputs["query"]) for name, part in outputs.items() if part in modules}
    if "self_attn" in modules:
        made["attn"], made["attn_weights"] = attend(modules["self_attn"], *inputs.values())
    for name, output in made.items():
        case.check(name, output)
    total = golden.squares(*made.values())
    case.check("scalar", total)
    total.backward()
    case.check_gradients(golden.gradients_of(modules, **inputs), lambda tensors: translated(tensors, "attn.", config))
    case.finish()
