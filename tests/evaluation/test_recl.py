"""RECL against loops that follow its definition, and on a loss whose effective context is known."""

import math

import numpy as np
import pytest

from transformers_xl.evaluation.recl import check_parameters, recl, relative_gain


def by_hand(losses: dict, model: str, r: float, c0: int, delta: int, threshold: float) -> int:
    """Step for step as the definition says, token by token."""
    tokens = range(len(next(iter(losses[model].values()))))

    def b(c: int, t: int) -> float:
        return min(losses[other][c][t] for other in losses)

    def f(c: int, longer: int, hardest: list[int]) -> float:
        return sum(min(b(c, t), losses[model][longer][t]) for t in hardest) / len(hardest)

    c = c0
    while c + delta in losses[model]:
        last = sorted((b(c, t) for t in tokens), reverse=True)[max(1, round(r * len(tokens))) - 1]
        hardest = [t for t in tokens if b(c, t) >= last]
        before, after = math.exp(f(c, c, hardest)), math.exp(f(c, c + delta, hardest))
        if (before - after) / before < threshold:
            return c
        c += delta
    return c


def some_losses(seed: int, models: int = 3, tokens: int = 60, contexts=range(4, 60, 4)) -> dict:
    """Losses that fall with the context, by model down to another level and at another pace, with noise."""
    generator = np.random.default_rng(seed)
    start, noise = generator.exponential(3, tokens), 0.05
    pace, floor = generator.uniform(5, 40, models), generator.uniform(0.2, 0.8, models)
    return {
        f"model {index}": {
            c: start * (floor[index] + (1 - floor[index]) * np.exp(-c / pace[index]))
            + noise * generator.standard_normal(tokens)
            for c in contexts
        }
        for index in range(models)
    }


@pytest.mark.parametrize("r", [0.05, 0.3, 1.0])
@pytest.mark.parametrize(("c0", "delta"), [(4, 4), (8, 8), (12, 4)])
def test_equals_the_definition_in_loops(r: float, c0: int, delta: int):
    seen = set()
    for seed in range(12):
        losses = some_losses(seed)
        for threshold in (0.003, 0.01, 0.1):
            results = recl(losses, r=r, c0=c0, delta=delta, threshold=threshold)
            for model, result in results.items():
                assert result.length == by_hand(losses, model, r, c0, delta, threshold)
                seen.add(result.length)
    assert len(seen) > 3  # the case is not decided at once, nor never


def test_a_gain_by_hand():
    """The hardest token of four is the last: the first model gains on it, the second stays behind its group."""
    shorter = np.log([[2.0, 2.0, 4.0, 8.0], [2.0, 2.0, 4.0, 16.0]])
    longer = np.log([[2.0, 2.0, 4.0, 6.0], [1.0, 1.0, 1.0, 12.0]])
    np.testing.assert_allclose(relative_gain(shorter, longer, r=0.25), [(8 - 6) / 8, 0.0], atol=1e-12)
    # over all tokens f is a mean of logarithms: the perplexities are geometric means
    best = 128 ** (1 / 4)
    expected = [(best - 96 ** (1 / 4)) / best, (best - 8 ** (1 / 4)) / best]
    np.testing.assert_allclose(relative_gain(shorter, longer, r=1.0), expected, atol=1e-12)


def test_equally_hard_tokens_are_taken_together():
    """No chance decides which of them count: here half of the six hardest gain."""
    shorter, longer = np.array([[5.0] * 6 + [1.0] * 4]), np.array([[5.0, 4.0] * 3 + [0.0] * 4])
    for r in (0.1, 0.4, 0.6):
        np.testing.assert_allclose(relative_gain(shorter, longer, r), 1 - math.exp(-0.5))


def test_a_weak_model_does_not_gain_what_its_group_knew_before():
    """This is what the measure was made for: alone the weak model seems to use 40 tokens, in the group none."""
    contexts = range(10, 60, 10)
    strong = {c: np.full(20, 1.0) for c in contexts}
    weak = {c: np.full(20, 6.0 - min(c, 40) / 10) for c in contexts}
    assert recl({"weak": weak})["weak"].length == 40
    assert recl({"weak": weak, "strong": strong})["weak"].length == 10


@pytest.mark.parametrize(("reach", "delta"), [(100, 10), (137, 10), (240, 32), (64, 1), (75, 20)])
@pytest.mark.parametrize("r", [0.1, 0.5, 1.0])
def test_an_ideal_loss_gives_its_reach(reach: int, delta: int, r: float):
    """Every token copies a source at a distance uniform in 1..reach, and is predicted well once the context holds it."""
    distances = np.random.default_rng(0).permutation(np.repeat(np.arange(1, reach + 1), 8))
    losses = {c: np.where(distances <= c, 0.1, 5.0) for c in range(delta, reach + 4 * delta, delta)}
    (result,) = recl({"ideal": losses}, r=r).values()
    assert abs(result.length - reach) <= delta
    assert not result.is_bound


def test_two_ideal_losses_have_their_own_reach():
    distances = np.random.default_rng(1).permutation(np.repeat(np.arange(1, 201), 10))
    contexts = range(10, 260, 10)
    far = {c: np.where(distances <= c, 0.1, 5.0) for c in contexts}
    near = {c: np.where(distances <= min(c, 60), 0.1, 5.0) for c in contexts}
    results = recl({"far": far, "near": near})
    assert results["far"].length == 200
    assert results["near"].length == 60


def test_a_gain_that_never_ends_is_a_bound():
    losses = {c: np.full(10, 10.0 - c) for c in range(1, 6)}
    result = recl({"model": losses})["model"]
    assert result.length == result.longest == 5
    assert result.is_bound
    assert list(result.gains) == [1, 2, 3, 4]
    np.testing.assert_allclose(list(result.gains.values()), 1 - math.exp(-1))


def test_intervals_are_those_of_texts_drawn_from_blocks():
    losses = some_losses(3, models=2, tokens=120)
    blocks = np.repeat(np.arange(12), 10)
    results = recl(losses, r=0.3, blocks=blocks, resamples=200, confidence=0.9, seed=5)
    generator, drawn = np.random.default_rng(5), []
    for _ in range(200):
        tokens = np.concatenate([np.flatnonzero(blocks == block) for block in generator.integers(12, size=12)])
        text = {model: {c: nats[tokens] for c, nats in rows.items()} for model, rows in losses.items()}
        drawn.append([by_hand(text, model, 0.3, 4, 4, 0.01) for model in losses])
    for column, result in enumerate(results.values()):
        lengths = sorted(row[column] for row in drawn)
        assert result.interval == (lengths[10], lengths[189])  # 5 % and 95 % of the way from the first to the last
        assert result.interval[0] <= result.length <= result.interval[1]
    assert results == recl(losses, r=0.3, blocks=blocks, resamples=200, confidence=0.9, seed=5)
    assert recl(losses)["model 0"].interval is None


def test_what_cannot_be_meant_is_refused():
    losses = some_losses(0)
    for arguments, message in (
        ({"r": 0}, "`r`=0"),
        ({"r": 1.5}, "`r`=1.5"),
        ({"threshold": 0}, "`threshold`=0"),
        ({"confidence": 2}, "`confidence`=2"),
        ({"resamples": 0, "blocks": np.arange(60)}, "`resamples`=0"),
        ({"delta": 0}, "`delta`=0"),
        ({"c0": 5}, "`c0`=5"),
        ({"delta": 3}, "`delta`=3"),
        ({"blocks": np.zeros(60)}, "`blocks`"),
        ({"blocks": np.arange(59)}, "`blocks`"),
    ):
        with pytest.raises(ValueError, match=message):
            recl(losses, **arguments)
    with pytest.raises(ValueError, match="`losses` is empty"):
        recl({})
    with pytest.raises(ValueError, match="at least two"):
        recl({"model": {4: np.zeros(3)}})
    with pytest.raises(ValueError, match="shapes"):
        recl({"model": {4: np.zeros(3), 8: np.zeros(4)}})
    with pytest.raises(ValueError, match="not finite"):
        recl({"model": {4: np.zeros(3), 8: np.full(3, np.nan)}})
    check_parameters(r=1, threshold=0.01)
