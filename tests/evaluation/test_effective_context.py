"""RECL as a module of the `evaluate` library."""

from pathlib import Path

import numpy as np
import pytest
from optional_packages import needs

from transformers_xl.evaluation.recl import recl

evaluate = needs("evaluate")
FOLDER = Path(__file__).parent.parent.parent / "transformers_xl" / "evaluation" / "metrics" / "effective_context"
MODELS, CONTEXTS, TOKENS = ["ours", "other"], list(range(4, 44, 4)), 80


@pytest.fixture(scope="module")
def metric() -> evaluate.Metric:
    return evaluate.load(str(FOLDER), keep_in_memory=True)


def losses() -> np.ndarray:
    """Nats `(tokens, models, contexts)`: falling with the context, faster for the second model."""
    start = np.random.default_rng(0).exponential(3, (TOKENS, 1, 1))
    return start * np.exp(-np.array(CONTEXTS) / np.array([[30.0], [8.0]]))


def test_equals_the_function(metric: evaluate.Metric):
    blocks = np.repeat(np.arange(8), 10)
    by_token, options = losses(), {"r": 0.4, "threshold": 0.02, "resamples": 50}
    for half in (slice(0, 40), slice(40, 80)):
        metric.add_batch(predictions=by_token[half].tolist(), references=blocks[half].tolist())
    found = metric.compute(models=MODELS, contexts=CONTEXTS, **options)
    expected = recl(
        {model: dict(zip(CONTEXTS, by_token[:, row].T, strict=True)) for row, model in enumerate(MODELS)},
        blocks=blocks,
        **options,
    )
    for model, result in expected.items():
        assert found["recl"][model] == result.length
        assert tuple(found["interval"][model]) == result.interval
        assert found["is_bound"][model] == result.is_bound
        assert list(found["gains"][model].values()) == pytest.approx(list(result.gains.values()))
    assert len(set(found["recl"].values())) == 2


def test_one_block_has_no_interval(metric: evaluate.Metric):
    found = metric.compute(predictions=losses().tolist(), references=[0] * TOKENS, models=MODELS, contexts=CONTEXTS)
    assert found["interval"] == {"ours": None, "other": None}


def test_losses_of_another_shape_are_refused(metric: evaluate.Metric):
    with pytest.raises(ValueError, match="`predictions`"):
        metric.compute(predictions=losses().tolist(), references=[0] * TOKENS, models=MODELS, contexts=[4, 8])
