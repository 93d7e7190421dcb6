"""Transformer-XL against numbers recorded from the authors' code (kimiyoung/transformer-xl, `MemTransformerLM`).

The converter of their checkpoints reads each case's `hyper`: any geometry of relative attention is run, with a plain or an
adaptive softmax. The other attentions of that code are made of our layers: learned vectors of distances, with two biases
(`attn_type` 1), by Shaw's; sinusoids at the input (2) and tables in each layer (3), both counted from the end of a segment,
by the vanilla Transformer, and with memory by Transformer-XL with absolute positions, whose memory gets here what that code
adds to it in every segment.
"""

import golden
import torch
from golden import Case
from old_gradients import translated
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from transformers_xl import (
    AbsoluteTransformerXLConfig,
    AbsoluteTransformerXLForCausalLM,
    ShawTransformerConfig,
    ShawTransformerForCausalLM,
    TransformerXLForCausalLM,
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
)
from transformers_xl.modeling.conversion.mem_transformer import translate_weights
from transformers_xl.modeling.conversion.original import DEFAULTS, HYPER_PARAMETERS, config_of
from transformers_xl.modeling.layers.absolute_positions import LearnedPositions, SinusoidPositions
from transformers_xl.modeling.layers.shaw_attention import ShawAttention
from transformers_xl.modeling.memory.memory_value import Memory


def skip_what_is_not_ours(case: Case) -> None:
    hyper = case.hyper
    case.choice("attn_type", 0, 1, 2, 3)
    hyper.change_nothing("tgt_len")  # of the training: a call reads any length
    if hyper["attn_type"] == 3:
        hyper.change_nothing("clamp_len")  # its tables are not clamped
    if hyper["ext_len"] != 0:
        case.out_of_scope("an extended context is not part of the model", "ext_len")
    if hyper["same_length"] and not hyper["mem_len"]:
        case.out_of_scope("no token sees anything, and a mean of nothing is no number", "same_length", "mem_len")
    if hyper["attn_type"] in (2, 3) and hyper["pre_lnorm"]:
        case.out_of_scope("its pre-norm leaves queries without a norm", "attn_type", "pre_lnorm")


def note_ties(config, hyper: dict) -> None:
    config.tie_word_embeddings = hyper["tie_weight"]
    tied = hyper["tie_projs"] or [False] * len(config.clusters)
    if config.has_projections:
        config.tie_projs = tied
    else:
        assert not any(tied), "there is no projection that could be tied"


def geometry(hyper: dict) -> dict:
    """What all models of that code share."""
    return {
        "vocab_size": hyper["n_token"],
        "hidden_size": hyper["d_model"],
        "num_hidden_layers": hyper["n_layer"],
        "num_attention_heads": hyper["n_head"],
        "head_dim": hyper["d_head"],
        "intermediate_size": hyper["d_inner"],
        "mem_len": hyper["mem_len"],
        "same_length": hyper["same_length"],
        "norm_position": "pre" if hyper["pre_lnorm"] else "post",
        "use_final_norm": False,
        "dropout": 0.0,
        "cutoffs": hyper["cutoffs"],
        "div_val": hyper["div_val"],
        "embedding_size": hyper["d_embed"],
    }


def build_relative(case: Case) -> TransformerXLForCausalLM:
    given = {name: case.hyper[name] for name in HYPER_PARAMETERS if name in case.hyper}
    config = config_of(DEFAULTS | given | {"dropout": 0.0})
    note_ties(config, case.hyper)
    state_dict = translate_weights(dict(case.weights), config, case.file.name, "reversed")
    return filled(TransformerXLForCausalLM(config).to(case.dtype), state_dict)


class BiasedShawAttention(ShawAttention):
    """With a bias on the queries that meet the keys, and one on each distance."""

    def __init__(self, config: ShawTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.content_bias = torch.nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        self.distance_bias = torch.nn.Parameter(torch.empty(self.key_table.shape[:2]))

    def score_terms(self, query: torch.Tensor, num_keys: int, *args) -> tuple[torch.Tensor, torch.Tensor]:
        _, by_distance = super().score_terms(query, num_keys, *args)
        biases = self.distance_bias[:, self.distances(query.shape[2], num_keys, query.device)]
        return query + self.content_bias[:, None], by_distance + self.scaling * biases


def learned_distances(name: str, tensor: torch.Tensor, rows: int) -> dict[str, torch.Tensor]:
    """Weights of `attn_type` 1 alone: of each layer, tables of the `rows` nearest distances, farthest first; ours go on
    into the future, which nobody sees."""
    ours = {"r_emb": "key_table", "r_bias": "distance_bias", "r_w_bias": "content_bias"}[name]
    result = {}
    for layer, part in enumerate(tensor):
        if name != "r_w_bias":
            part = part[-rows:].transpose(0, 1)
            part = F.pad(part, (*[0, 0] * (part.dim() - 2), 0, rows - 1))
        result[f"model.layers.{layer}.self_attn.{ours}"] = part
    return result


def build_learned(case: Case) -> ShawTransformerForCausalLM:
    rows = rows_of(case)
    fields = {"max_relative_distance": rows - 1, "tables_per_head": True, "use_value_table": False}
    config = ShawTransformerConfig(**geometry(case.hyper), **fields)
    note_ties(config, case.hyper)
    model = ShawTransformerForCausalLM(config)
    for index, layer in enumerate(model.model.layers):
        layer.self_attn = BiasedShawAttention(config, index)
    return filled(model.to(case.dtype), ours_of(case, config, case.weights))


def rows_of(case: Case) -> int:
    """How many distances have a vector of their own."""
    rows, clamp_len = case.weights["r_emb"].shape[1], case.hyper["clamp_len"]
    return min(rows, clamp_len) if clamp_len > 0 else rows


class FromTheEnd(LearnedPositions):
    """The last row of the table belongs to the last token, whatever the place of a segment in its text."""

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        length = positions.shape[1]
        return super().forward(torch.arange(self.num_embeddings - length, self.num_embeddings)[None], dtype)


def piled_up(model, mems: Memory, length: int) -> Memory:
    """`mems` as that code changes them before a segment of `length`: it adds positions to what has some already. Where the
    table of a layer is too short, its first row is that of all that lie farther."""
    result = []
    for layer, memory in zip(model.model.layers, golden.columns_of(mems), strict=True):
        rows = layer.positions.weight[: layer.positions.num_embeddings - length]
        missing = memory.shape[1] - len(rows)
        rows = torch.cat([rows[:1].expand(missing, -1), rows]) if missing > 0 else rows[len(rows) - memory.shape[1] :]
        result.append(memory + rows)
    return golden.with_columns(mems, result)


def tables(case: Case, length: int) -> torch.Tensor:
    """What each layer adds to the last `length` tokens."""
    if case.hyper["attn_type"] == 3:
        return case.weights["r_emb"].flatten(2)
    distances = torch.arange(length - 1, -1, -1)
    if case.hyper["clamp_len"] > 0:
        distances = distances.clamp(max=case.hyper["clamp_len"])
    at_the_input = SinusoidPositions(case.hyper["d_model"])(distances, case.dtype)
    return torch.stack([at_the_input, *[torch.zeros_like(at_the_input)] * (case.hyper["n_layer"] - 1)])


def build_absolute(case: Case) -> VanillaTransformerForCausalLM | AbsoluteTransformerXLForCausalLM:
    positions = tables(case, max(case.hyper["segments"]) + case.hyper["mem_len"])
    fields = geometry(case.hyper) | {"segment_length": positions.shape[1]}
    if case.hyper["mem_len"]:
        config = AbsoluteTransformerXLConfig(**fields)
    else:
        config = VanillaTransformerConfig(**fields, intermediate_losses="none", num_targets=1)
    note_ties(config, case.hyper)
    model = AutoModelForCausalLM.from_config(config).to(case.dtype)
    for layer, table in zip(model.model.layers, positions, strict=True):
        layer.positions = FromTheEnd.from_pretrained(table, freeze=False)
    return filled(model, ours_of(case, config, case.weights))


def ours_of(case: Case, config, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights or gradients under our names."""
    ours: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if case.hyper["attn_type"] == 1 and name in ("r_emb", "r_bias", "r_w_bias"):
            ours |= learned_distances(name, tensor, rows_of(case))
        elif name != "pos_emb.inv_freq":
            ours |= translated(name, tensor, config, "reversed")
    return ours


def filled(model, state_dict: dict[str, torch.Tensor]):
    missing, unexpected = model.load_state_dict(state_dict, strict=False)
    assert not unexpected
    tied = set(model.all_tied_weights_keys)
    assert all(name in tied or name.endswith(".positions.weight") for name in missing)
    return model.eval()


@golden.cases("transformer_xl")
def test_values_and_gradients(case: Case):
    skip_what_is_not_ours(case)
    build = {0: build_relative, 1: build_learned}.get(case.hyper["attn_type"], build_absolute)
    model, memory, scalar = build(case), {}, torch.zeros(())
    for segment, length in enumerate(case.lengths("data", "target", axis=0)):
        ids, targets = (
            case.inputs[f"{name}_seg{segment}"].long().T for name in ("data", "target")
        )  # time-major there
        if memory and case.hyper["attn_type"] in (2, 3):
            memory["mems"] = piled_up(model, memory["mems"], length)
        output = model(ids, shift_labels=targets, output_hidden_states=True, **memory)
        memory = {"mems": output.mems} if case.hyper["mem_len"] else {}
        logprobs = output.logits.log_softmax(-1)
        losses = -logprobs.gather(-1, targets[..., None]).squeeze(-1)
        scalar = scalar + golden.squares(losses)
        case.check(f"hidden_seg{segment}", output.hidden_states[-1].transpose(0, 1))
        case.check(f"loss_seg{segment}", losses.T)
        torch.testing.assert_close(output.loss, losses.mean(), check_dtype=False)
        case.check(f"logprob_seg{segment}", logprobs.transpose(0, 1))
        for layer, remembered in enumerate(golden.columns_of(output.mems)):
            case.check(f"mems_seg{segment}.{layer}", remembered.transpose(0, 1))
        assert (output.mems is None) == (case.hyper["mem_len"] == 0)
    case.check("scalar", scalar)
    scalar.backward()
    case.check_gradients(golden.gradients_of(model), lambda tensors: ours_of(case, model.config, tensors))
    # the same losses, cluster after cluster; and the last layer's output, which no layer reads
    case.finish("loss_as_returned_seg*", f"mems_seg*.{case.hyper['n_layer']}")
