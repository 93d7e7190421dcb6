"""Old folders against numbers recorded from transformers 4.35.2 (`TransfoXLLMHeadModel`, `TransfoXLTokenizer`).

A case becomes a folder as that release wrote it, and is loaded through the Auto classes. The mapping reads each case's
`config`: other sizes and options run too.
"""

import json
from pathlib import Path

import golden
import pytest
import torch
from golden import Case
from old_gradients import check_gradients
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

import transformers_xl  # noqa: F401  registers the model types


def skip_what_is_not_ours(case: Case) -> None:
    options, config = case.hyper["config_kwargs"], case.description["config"]
    stored = {**config, "proj_share_all_but_first": config["tie_projs"] == [False, *[True] * len(config["cutoffs"])]}
    for name, value in options.items():
        assert stored[name] == value, f"config_kwargs.{name}={value!r}, but the folder's is {stored[name]!r}"
    case.hyper.only_describe(seg_len=max(case.lengths("input_ids", axis=1)))
    if "prompt_ids" in case.inputs:
        prompt, ids = case.inputs["prompt_ids"], case.tensors["out.generated_ids"]
        case.hyper.only_describe(prompt_len=prompt.shape[1], new_tokens=ids.shape[1] - prompt.shape[1])
    case.hyper.change_nothing("prompt_len", "new_tokens")  # nothing is generated without a prompt
    if options.get("mem_len") == 0 and options.get("same_length", True):  # as by default there
        reason = "with `same_length` all scores are masked, and that code takes a mean over all tokens, later ones too"
        case.out_of_scope(reason, "config_kwargs.mem_len")
    case.skip_background()


def load(case: Case, folder: Path, **kwargs):
    config = case.description["config"]
    if config["same_length"] and not config["mem_len"]:
        reason = "then a token sees nothing but masked positions there, and is refused here"
        pytest.skip(f"same_length=True with mem_len=0: {reason}")
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(case.weights, folder / "pytorch_model.bin")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=case.dtype, **kwargs)


def check_segment(case: Case, segment: int, output, losses: torch.Tensor) -> None:
    case.check(f"prediction_scores_seg{segment}", output.logits.log_softmax(-1))
    case.check(f"losses_natural_order_seg{segment}", losses)
    case.check(f"loss_seg{segment}", output.loss)
    case.check(f"last_hidden_state_seg{segment}", output.hidden_states[-1])
    for layer, remembered in enumerate(golden.columns_of(output.mems)):
        case.check(f"mems_seg{segment}.{layer}", remembered.transpose(0, 1))
    for layer, states in enumerate(output.hidden_states):
        case.check(f"hidden_states_seg{segment}.{layer}", states)
    for layer, weights in enumerate(output.attentions):
        name = f"attention_seg{segment}.{layer}"
        if case.has(name):  # positions that no token sees have no column here, and one of zeros there
            columns = case.tensors[f"out.{name}"].shape[-1] - weights.shape[-1]
            case.check(name, F.pad(weights, (columns, 0)))


@golden.cases("hf_transfo_xl")
def test_values_gradients_and_greedy_ids(case: Case, tmp_path: Path):
    skip_what_is_not_ours(case)
    model = load(case, tmp_path, attn_implementation="eager")
    memory, scalar = {}, torch.zeros(())
    for segment in range(case.count("in.input_ids_seg*")):
        ids = case.inputs[f"input_ids_seg{segment}"].long()
        output = model(ids, labels=ids, output_hidden_states=True, output_attentions=True, **memory)
        memory = {"mems": output.mems}
        logprobs = output.logits[:, :-1].log_softmax(-1)  # with an adaptive softmax they are that already
        losses = -logprobs.gather(-1, ids[:, 1:, None]).squeeze(-1)
        scalar = scalar + golden.squares(losses)
        check_segment(case, segment, output, losses)
    case.check("scalar", scalar)
    if case.gradients:
        scalar.backward()
        check_gradients(case, model, "natural")

    if case.has("generated_ids"):
        model.generation_config.eos_token_id = None
        prompt = case.inputs["prompt_ids"].long()
        new = case.tensors["out.generated_ids"].shape[1] - prompt.shape[1]
        case.check("generated_ids", model.generate(prompt, max_new_tokens=new, do_sample=False))
    case.finish("losses_as_returned_seg*")  # the same losses, cluster after cluster


@golden.cases("hf_transfo_xl")
def test_rows_of_the_clusters_matter(case: Case, tmp_path: Path):
    """The one difference between the two sources is of a size that no tolerance hides."""
    skip_what_is_not_ours(case)
    if len(case.description["config"]["cutoffs"]) < 2:
        pytest.skip(f"cutoffs={case.description['config']['cutoffs']}: one row or none has no order")
    logits = load(case, tmp_path, cluster_order="reversed")(case.inputs["input_ids_seg0"].long()).logits
    assert (logits - case.tensors["out.prediction_scores_seg0"]).abs().max() > 0.1
