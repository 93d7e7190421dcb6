"""The Streaming Transformer with one part exchanged (benchmarks/streaming_variants.py): each is the model that it says."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.runs import comparison_models
from transformers_xl.runs.comparison_models import REGISTERED, ComparedModel, known_types, register_variant
from transformers_xl.runs.comparison_plan import plan_of, read_plan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = (
    "plain_feed_forward",
    "without_qk_norm",
    "rms_norm",
    "relative_keys",
    "relative_inputs",
    "head_gates",
    "value_residual",
)
WEIGHTS = {  # those that a layer has beside the model's own, and those that it lacks
    "plain_feed_forward": ({"mlp.fc1.weight"}, {"mlp.gate_up_proj.weight"}),
    "without_qk_norm": (set(), {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}),
    "rms_norm": (set(), set()),
    "relative_keys": ({"self_attn.r_proj.weight"}, set()),
    "relative_inputs": ({"self_attn.r_proj.weight"}, set()),
    "head_gates": ({"self_attn.gate.weight"}, set()),
    "value_residual": ({"self_attn.value_shares"}, set()),
}


@pytest.fixture(scope="module", autouse=True)
def variants() -> Iterator[None]:
    """They are registered for these tests alone."""
    spec = importlib.util.spec_from_file_location("streaming_variants", BENCHMARKS / "streaming_variants.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    yield
    REGISTERED.clear()


def model_of(kind: str) -> torch.nn.Module:
    sizes = {"hidden_size": 16, "layers": 2, "heads": 2, "mem_len": 12, "segment_length": 4, "batch_size": 2}
    texts = {"train": "-", "validation": "-", "test": "-"}
    plan = plan_of({"texts": texts, "models": {kind: {}}, "reference": kind, "parameters": 90_000} | sizes)
    return ComparedModel(kind, plan).build(0, 0.2).eval()


@pytest.mark.parametrize("name", NAMES)
def test_each_has_its_part_and_is_exact_over_segments(name: str):
    """Segments with memory equal one long text, by inputs or by keys and values."""
    model, own = model_of(f"streaming_{name}"), model_of("streaming_transformer")
    layer, usual = ({*each.model.layers[1].state_dict()} for each in (model, own))
    more, fewer = WEIGHTS[name]
    assert more <= layer - usual
    assert fewer <= usual - layer
    ids = torch.randint(0, 256, (2, 30), generator=torch.Generator().manual_seed(1))
    for use_cache in (False, True):
        with torch.no_grad():
            whole, mems, parts = model(ids).logits, None, []
            for part in ids.split([7, 1, 12, 10], dim=1):
                output = model(part, mems=mems, use_cache=use_cache)
                mems = output.mems
                parts.append(output.logits)
        torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-4, rtol=1e-4)
    model(ids, labels=ids).loss.backward()
    unused = {"value_shares"} if name == "value_residual" else set()  # the first layer shares its values
    without = {key for key, weight in model.named_parameters() if weight.grad is None}
    assert {key.rpartition(".")[2] for key in without} <= unused


def test_norms_are_rms_norms_everywhere():
    modules = [*model_of("streaming_rms_norm").modules()]
    assert not any(isinstance(each, torch.nn.LayerNorm) for each in modules)
    assert sum(isinstance(each, torch.nn.RMSNorm) for each in modules) == 2 * 4 + 1


class Words:
    """A tokenizer of 8,192 tokens, as far as a config asks."""

    pad_token_id = bos_token_id = eos_token_id = 0

    def __len__(self) -> int:
        return 8192


@pytest.mark.parametrize(
    "plan",
    ["streaming_ablation", "streaming_ablation_prose", "streaming_ablation_words", "streaming_rates_words_sources"],
)
def test_the_models_of_the_plans_are_of_one_size(plan: str, monkeypatch: pytest.MonkeyPatch):
    read = read_plan(BENCHMARKS / f"{plan}.yaml")
    if read.tokenizer is not None:
        monkeypatch.setattr(comparison_models, "comparison_tokenizer", lambda folder: Words())
    counts = [ComparedModel(name, read).parameters for name in read.models]
    assert max(counts) / min(counts) < 1.01


def test_a_name_is_registered_once():
    assert {f"streaming_{name}" for name in NAMES} <= {*known_types()}
    for taken in ("transformer_xl", "mamba2", "streaming_rms_norm"):
        with pytest.raises(ValueError, match=f"`name`='{taken}' is a model of comparisons already"):
            register_variant(taken, VARIANTS["transformer_xl"])
