"""The example of reinforcement learning: its environment, what it learns from, and that it runs."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from optional_packages import needs

needs("gymnasium")
from gymnasium.utils.env_checker import check_env  # noqa: E402

PATH = Path(__file__).parents[2] / "examples/rl_memory_task.py"
spec = importlib.util.spec_from_file_location("rl_memory_task", PATH)
task = sys.modules["rl_memory_task"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(task)


@pytest.mark.filterwarnings("ignore:.*render")
@pytest.mark.filterwarnings("ignore:.*spec")
def test_the_environment_is_one_of_gymnasium():
    check_env(task.CueTask(3, 5))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("follow", [True, False])
def test_only_the_cue_says_where_to_turn(seed, follow):
    environment = task.CueTask(3, 6)
    observation, _ = environment.reset(seed=seed)
    cue = int(observation[2] > 0)
    assert observation[:2].tolist() == [1, 0]
    for position in range(1, 7):
        observation, reward, terminated, truncated, _ = environment.step(1 - cue)
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert observation[0] == 0
        assert observation[1] == (position == environment.corridor)
        if observation[1]:
            break
    assert position == environment.corridor >= 3
    _, reward, terminated, _, _ = environment.step(cue if follow else 1 - cue)
    assert terminated
    assert reward == (1.0 if follow else -1.0)


def test_the_signal_in_the_corridor_tells_nothing_of_the_cue():
    agreed = []
    environment = task.CueTask(4, 4)
    for seed in range(500):
        observation, _ = environment.reset(seed=seed)
        later = [environment.step(0)[0][2] for _ in range(4)]
        agreed.append([signal == observation[2] for signal in later])
    assert np.abs(np.mean(agreed, axis=0) - 0.5).max() < 0.1


def test_advantages_are_the_sums_that_they_stand_for():
    settings = task.Settings(discount=0.9, trace=0.8)
    rewards, values = torch.randn(2, 5), torch.randn(2, 6)
    ends = torch.tensor([[False, False, True, False, False], [False] * 5])
    found = task.advantages(rewards, ends, values, settings)
    for row in range(2):
        for step in range(5):
            expected, weight = 0.0, 1.0
            for later in range(step, 5):
                going_on = 0.0 if ends[row, later] else 1.0
                error = rewards[row, later] + 0.9 * going_on * values[row, later + 1] - values[row, later]
                expected, weight = expected + weight * error, weight * 0.9 * 0.8 * going_on
            torch.testing.assert_close(found[row, step], expected)


@pytest.mark.parametrize("name", task.AGENTS)
def test_what_acts_is_what_learns(name):
    """Steps of two rollouts, the second from the memory of the first, and the same steps in windows: one policy."""
    torch.manual_seed(0)
    model, mems = task.AGENTS[name](), None
    for _ in range(2):
        observations, resets, past = torch.randn(3, 7, 4), torch.rand(3, 7) < 0.2, {}
        steps = [task.act(model, observations[:, i], resets[:, i], past, mems) for i in range(7)]
        window = model(observations, reset=resets, mems=mems)
        torch.testing.assert_close(torch.stack([s.logits[:, -1] for s in steps], dim=1), window.logits)
        torch.testing.assert_close(torch.stack([s.value[:, -1] for s in steps], dim=1), window.value)
        mems = window.mems


def test_it_runs_and_writes_what_it_says(tmp_path):
    settings = task.Settings(updates=3, environments=4, window=4, shortest=5, longest=6, epochs=1)
    result = task.main(settings, seeds=2, output=tmp_path)
    assert (tmp_path / "rl_memory_task.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "rl_memory_task.json").read_text()) == result
    for name in task.AGENTS:
        counts = np.array(result["agents"][name]["won_and_ended_by_update"])
        assert counts.shape == (2, 3, 2)
        # every episode has 6 or 7 steps, and 12 are made: each environment has ended one at least
        assert (counts[..., 1].sum(axis=1) >= 4).all()
        assert (counts[..., 0] <= counts[..., 1]).all()


def test_the_success_rate_counts_episodes_not_updates():
    counts = np.array([[0, 0], [9, 10], [0, 10], [5, 10]])
    np.testing.assert_allclose(task.success_rate(counts, 2), [np.nan, 0.9, 0.45, 0.25])
