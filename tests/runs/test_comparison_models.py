"""The models of a comparison: of equal size, each type of the table, and what a plan may ask of them."""

from typing import Any

import numpy as np
import pytest
from tiny import AROUND_BASES, variants

from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.runs import comparison_models
from transformers_xl.runs.comparison_models import ComparedModel, known_types
from transformers_xl.runs.comparison_plan import ComparisonPlan, plan_of
from transformers_xl.runs.comparison_reading import BlockReading, MemoryReading
from transformers_xl.runs.comparison_search import Setting
from transformers_xl.runs.comparison_training import Training

IDS = np.random.default_rng(0).integers(0, 256, 700)


def plan_with(models: dict[str, Any], **fields: Any) -> ComparisonPlan:
    sizes = {"hidden_size": 16, "layers": 2, "heads": 2, "mem_len": 32, "segment_length": 16, "batch_size": 3}
    texts = {"train": "-", "validation": "-", "test": "-"}
    given = {"texts": texts, "models": models, "reference": next(iter(models)), "parameters": 90_000}
    return plan_of(given | sizes | fields)


def test_all_language_models_can_be_compared():
    from_nothing = [each for each in variants(causal_lm=True) if each not in AROUND_BASES]
    assert known_types() == sorted([*from_nothing, "gpt2", "lstm", "mamba2", "mistral"])


@pytest.mark.parametrize("name", known_types())
def test_each_type_takes_part(name: str):
    """As large as the others, trained, and scored; those of the table without memory read blocks."""
    plan = plan_with({name: {}})
    model = ComparedModel(name, plan)
    assert abs(model.parameters / 90_000 - 1) < 0.03
    blocks = name in ("gpt2", "mistral", "mamba2") or (name in VARIANTS and VARIANTS[name].memory == "none")
    assert isinstance(model.reading, BlockReading if blocks else MemoryReading)
    setting = Setting(model.starts[0], 1e-3, "constant")
    training = Training(model.build(0, setting.start), model.reading, IDS, plan, setting, 4)
    scores = training.run([IDS[:70], IDS[100:120]], [2, 4])
    assert all((scores[step] > 0).all() and np.isfinite(scores[step]).all() for step in (2, 4))
    assert abs(training.model.num_parameters() / model.parameters - 1) < 1e-6


def test_starts_are_those_of_the_search_and_of_the_models_own_config():
    search = {"starts": ["scaled", 0.02, "default"]}
    plan = plan_with({name: {} for name in ("transformer_xl", "gpt2", "mamba2")}, search=search)
    scaled = round((0.4 / 16) ** 0.5, 6)
    assert ComparedModel("transformer_xl", plan).starts == [scaled, 0.02]
    assert ComparedModel("gpt2", plan).starts == [scaled, 0.02]
    assert ComparedModel("mamba2", plan).starts == [scaled, 0.02, 0.1]


@pytest.mark.parametrize("name", ["transformer_xl", "gpt2", "mistral", "mamba2", "lstm"])
def test_weights_start_from_what_is_asked(name: str):
    model = ComparedModel(name, plan_with({name: {}}))
    small, large = ([*model.build(0, start).parameters()] for start in (0.02, 0.1))
    ratios = [(b.std() / a.std()).item() for a, b in zip(small, large, strict=True) if a.dim() == 2]
    assert max(ratios) == pytest.approx(5, rel=1e-3)
    other = model.build(1, 0.02).parameters()
    assert any(not a.equal(b) for a, b in zip(small, other, strict=True))


def test_fields_of_an_entry_are_those_of_its_config():
    model = ComparedModel("wide", plan_with({"wide": {"type": "transformer_xl", "fields": {"hidden_act": "gelu"}}}))
    assert model.build(0, 0.02).config.hidden_act == "gelu"


def test_parameters_are_those_of_the_usual_transformer_xl():
    plan = plan_with({"transformer_xl": {}}, parameters=None)
    model = ComparedModel("transformer_xl", plan)
    assert model.width == 4 * 16


@pytest.mark.parametrize(
    ("models", "fields", "told"),
    [
        ({"gru": {}}, {}, "`models.gru.type`='gru'"),
        ({"a": {"type": "segment_memory"}}, {}, "`models.a.type`='segment_memory'"),
        ({"transformer_xl": {"block": 32}}, {}, "`models.transformer_xl.block`=32 is for models without memory"),
        ({"lstm": {"block": 32}}, {}, "`models.lstm.block`=32"),
        ({"gpt2": {"carry": True}}, {}, "`models.gpt2.carry`=True"),
        ({"gpt2": {}}, {"mem_len": 40}, "`models.gpt2.block` is not given, and 56"),
        ({"mamba2": {}}, {"parameters": 5_000}, "`hidden_size`=16: mamba2 has"),
        (
            {"gpt2": {"fields": {"hiden_act": "relu"}}},
            {},
            "`models.gpt2.fields.hiden_act`='relu' is no field of GPT2Config",
        ),
        ({"gtrxl": {"fields": {"bogus": 1}}}, {}, "`models.gtrxl.fields.bogus`=1 is no field of GTrXLConfig"),
        (
            {"gtrxl": {"fields": {"hidden_size": 1}}},
            {},
            "`models.gtrxl.fields.hidden_size`=1 is the same for all models",
        ),
        ({"gtrxl": {"fields": {"d_model": 1}}}, {}, "`models.gtrxl.fields.d_model`=1 is the same for all models"),
    ],
)
def test_what_cannot_take_part_is_refused(models: dict, fields: dict, told: str):
    with pytest.raises(ValueError, match=told):
        ComparedModel(next(iter(models)), plan_with(models, **fields))


def test_no_way_to_equal_parameters_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison_models, "TOLERANCE", 1e-9)
    with pytest.raises(ValueError, match="`hidden_size`=16: gpt2 has"):
        ComparedModel("gpt2", plan_with({"gpt2": {}}))
