"""Old folders against numbers recorded from transformers 4.35.2 (`TransfoXLLMHeadModel`, `TransfoXLTokenizer`).

A case becomes a folder as that release wrote it, and is loaded through the Auto classes. The mapping reads each case's
`config`: other sizes and options run too.
"""

import json
from pathlib import Path

import pytest
import torch
from old_gradients import assert_gradients
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

import transformers_xl  # noqa: F401  registers the model types

ITEM = "hf_transfo_xl"


def pytest_generate_tests(metafunc):
    if "case_file" in metafunc.fixturenames:
        files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob(f"{ITEM}__*.json"))
        metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


def load(case: dict, tensors: dict[str, torch.Tensor], folder: Path, **kwargs):
    weights = {name.removeprefix("w."): tensor for name, tensor in tensors.items() if name.startswith("w.")}
    (folder / "config.json").write_text(json.dumps(case["config"]))
    torch.save(weights, folder / "pytorch_model.bin")
    return AutoModelForCausalLM.from_pretrained(folder, **kwargs)


def test_values_gradients_and_greedy_ids(case_file, tmp_path: Path):
    case = json.loads(case_file.read_text())
    if case["use"] == "background":
        pytest.skip(f"background: {case['pins']}")
    if case["config"]["same_length"] and not case["config"]["mem_len"]:
        pytest.skip("same_length without memory sees nothing but masked positions there, and is refused here")
    tensors = load_file(case_file.with_suffix(".safetensors"))
    bounds = {"atol": case["tolerance"]["out_atol"], "rtol": case["tolerance"]["out_rtol"]}
    model = load(case, tensors, tmp_path, attn_implementation="eager")

    segments = len([name for name in tensors if name.startswith("in.input_ids_seg")])
    memory, scalar = {}, torch.zeros(())
    for segment in range(segments):
        ids = tensors[f"in.input_ids_seg{segment}"]
        output = model(ids, labels=ids, output_hidden_states=True, output_attentions=True, **memory)
        memory = {"mems": output.mems, "mems_mask": output.mems_mask}
        losses = -output.logits[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
        scalar = scalar + losses.square().sum()

        def close(actual, name, segment=segment):
            if name.format(segment) in tensors:  # not every case has all
                torch.testing.assert_close(actual, tensors[name.format(segment)], **bounds)

        assert f"out.prediction_scores_seg{segment}" in tensors
        close(output.logits, "out.prediction_scores_seg{}")
        close(losses, "out.losses_natural_order_seg{}")
        torch.testing.assert_close(output.loss, tensors[f"out.losses_natural_order_seg{segment}"].mean(), **bounds)
        close(output.hidden_states[-1], "out.last_hidden_state_seg{}")
        for layer, remembered in enumerate(output.mems or ()):
            close(remembered.transpose(0, 1), f"out.mems_seg{{}}.{layer}")
        for layer, states in enumerate(output.hidden_states):
            close(states, f"out.hidden_states_seg{{}}.{layer}")
        # positions that no token sees have no column here, and one of zeros there
        columns = tensors["out.attention_seg0.0"].shape[-1] - output.attentions[0].shape[-1]
        close(F.pad(output.attentions[0], (columns, 0)), "out.attention_seg{}.0")
    if "out.scalar" in tensors:
        torch.testing.assert_close(scalar, tensors["out.scalar"].squeeze(), **bounds)
        scalar.backward()
        assert_gradients(model, tensors, case, "natural")

    model.generation_config.eos_token_id = None
    expected = tensors["out.generated_ids"]
    prompt = tensors["in.prompt_ids"]
    written = model.generate(prompt, max_new_tokens=expected.shape[1] - prompt.shape[1], do_sample=False)
    assert torch.equal(written, expected)


def test_rows_of_the_clusters_matter(request, tmp_path: Path):
    """The one difference between the two sources is of a size that no tolerance hides."""
    case_file = Path(request.config.getoption("--golden-dir"), f"{ITEM}__a.json")
    case, tensors = json.loads(case_file.read_text()), load_file(case_file.with_suffix(".safetensors"))
    model = load(case, tensors, tmp_path, cluster_order="reversed")
    logits = model(tensors["in.input_ids_seg0"]).logits
    assert (logits - tensors["out.prediction_scores_seg0"]).abs().max() > 0.1
