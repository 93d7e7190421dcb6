"""The examples of agents: the environment, what they learn from, and that they learn."""

import json
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from optional_packages import needs

needs("gymnasium")
from gymnasium.utils.env_checker import check_env  # noqa: E402

sys.path.append(str(Path(__file__).parents[2] / "examples/agents"))
import ppo  # noqa: E402
import t_maze as task  # noqa: E402


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
    found = ppo.advantages(rewards, ends, values, settings)
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
        steps = [ppo.act(model, ppo.Beginning(observations[:, i], resets[:, i], mems, {}), past) for i in range(7)]
        window = model(observations, reset=resets, mems=mems)
        torch.testing.assert_close(torch.stack([s.logits[:, -1] for s in steps], dim=1), window.logits)
        torch.testing.assert_close(torch.stack([s.value[:, -1] for s in steps], dim=1), window.value)
        mems = window.mems


def test_it_runs_and_writes_what_it_says(tmp_path):
    settings = task.Settings(updates=3, environments=4, window=4, shortest=5, longest=6, epochs=1)
    result = task.main(settings, seeds=2, output=tmp_path)
    assert (tmp_path / "t_maze.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "t_maze.json").read_text()) == result
    for name in task.AGENTS:
        counts = np.array(result["agents"][name]["won_and_ended_by_update"])
        assert counts.shape == (2, 3, 2)
        # every episode has 6 or 7 steps, and 12 are made: each environment has ended one at least
        assert (counts[..., 1].sum(axis=1) >= 4).all()
        assert (counts[..., 0] <= counts[..., 1]).all()


def test_the_success_rate_counts_episodes_not_updates():
    counts = np.array([[0, 0], [9, 10], [0, 10], [5, 10]])
    np.testing.assert_allclose(task.success_rate(counts, 2), [np.nan, 0.9, 0.45, 0.25])


def test_rows_of_a_rollout_learn_as_they_do_together():
    """The gradient of minibatches, summed, is that of the whole rollout."""
    torch.manual_seed(0)
    model, settings = task.AGENTS["GTrXL"](), task.Settings(environments=4, window=6, shortest=3, longest=4)
    environments = ppo.vector(partial(task.CueTask, 3, 4), 4)
    start = ppo.beginning(model, torch.from_numpy(environments.reset(seed=0)[0]), environments)
    mems = model(torch.randn(4, 5, 4)).mems
    rollout, _, _ = ppo.collect(model, environments, start._replace(mems=mems), settings.window)
    targets = torch.randn(4, 6), torch.randn(4, 6)
    gradients = []
    for parts in (1, 2):
        model.zero_grad()
        for rows in torch.arange(4).chunk(parts):
            here = ppo.Rollout(*(ppo.parts(ppo.itemgetter(rows), each) for each in rollout))
            loss = ppo.loss_of(model, here, tuple(each[rows] for each in targets), mems.rows(rows), settings)
            (loss / parts).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_returns_are_sums_over_episodes():
    returns, ends = ppo.Returns(2), torch.tensor([[False, True, False, True], [False, False, False, False]])
    rewards = torch.tensor([[1.0, 2, 3, 4], [1, 1, 1, 1]])
    returns.add(ppo.Rollout(*[torch.empty(0)] * 6, rewards, ends))
    returns.add(ppo.Rollout(*[torch.empty(0)] * 6, rewards[:, :1], torch.tensor([[False], [True]])))
    assert returns.ended == [3.0, 7.0, 5.0]


def run(monkeypatch, capsys, tmp_path: Path, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["ppo.py", *arguments, "-o", str(tmp_path)])
    ppo.main()
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("environment", ["CartPole-v1", "Pendulum-v1"])
def test_any_environment_goes_in_and_an_agent_comes_out(environment, monkeypatch, capsys, tmp_path):
    last = run(monkeypatch, capsys, tmp_path, environment, "--steps", "64", "--environments", "4")
    assert last.startswith(f"{tmp_path}, loaded again: return ")
    assert (tmp_path / "model.safetensors").exists()


def test_fewer_steps_than_one_update_are_refused(monkeypatch, capsys, tmp_path):
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, tmp_path, "CartPole-v1", "--steps", "63", "--environments", "4")
    assert "--steps 63 is less than one update: at least 64" in capsys.readouterr().err


def test_dicts_and_tuples_go_in_as_one_array_and_text_is_refused():
    space = ppo.made("Blackjack-v1").observation_space
    assert (type(space).__name__, space.shape) == ("Box", (32 + 11 + 2,))
    needs("minigrid")
    with pytest.raises(ValueError, match=r"`environment`=minigrid:MiniGrid-MemoryS7-v0 .*FilterObservation"):
        ppo.made("minigrid:MiniGrid-MemoryS7-v0")


@pytest.mark.parametrize("mem_len", [0, 8])
def test_observations_may_be_dicts(mem_len):
    """What is learned from the parts of an observation is what is learned from all of it."""

    def parts() -> task.gym.Env:
        boxes = {name: task.gym.spaces.Box(-1, 1, (2,)) for name in ("where", "what")}
        cut = lambda seen: {"where": seen[:2], "what": seen[2:]}  # noqa: E731
        return task.gym.wrappers.TransformObservation(task.CueTask(3, 4), cut, task.gym.spaces.Dict(boxes))

    class Whole(torch.nn.Linear):
        def forward(self, seen):
            return super().forward(torch.cat([seen["where"], seen["what"]], -1) if isinstance(seen, dict) else seen)

    weights = []
    for environment in (partial(task.CueTask, 3, 4), parts):
        torch.manual_seed(0)
        fields = task.SIZES | {"observation_size": None, "mem_len": mem_len, "same_length": mem_len > 0}
        model = task.GTrXLForActorCritic(task.GTrXLConfig(**fields), encoder=Whole(4, 32))
        environments = ppo.vector(environment, 4)
        for _ in ppo.learn(model, environments, 0, ppo.Settings(updates=2, window=6)):
            pass
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    torch.testing.assert_close(*weights)


class Shapes(task.gym.Env):
    """Shows and takes arrays of any shape; episodes of two steps."""

    def __init__(self, shown, taken):
        self.observation_space, self.action_space = shown, taken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.place += 1
        return self.observation_space.sample(), 1.0, self.place == 2, False, {}


SPACES = task.gym.spaces


@pytest.mark.parametrize(
    ("shown", "taken"),
    [
        (SPACES.Box(0, 1, ()), SPACES.Box(-1, 1, ())),
        (SPACES.Box(0, 1, (2, 3)), SPACES.Box(-1, 1, (2, 2))),
        (SPACES.MultiBinary((2, 2)), SPACES.MultiDiscrete([[2, 3], [2, 2]])),
        (SPACES.Box(0, 1, (2, 2, 2, 2)), SPACES.MultiBinary(3)),
    ],
    ids=str,
)
def test_arrays_of_any_shape_go_in_and_out(shown, taken, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(ppo.gym, "make", lambda name: Shapes(shown, taken))
    assert "return 2.000" in run(monkeypatch, capsys, tmp_path, "shapes", "--steps", "64", "--environments", "2")


@pytest.mark.parametrize("mem_len", [0, 8])
def test_an_agent_reads_its_last_step(mem_len):
    """What acts is what learns: without an update between them, both have the same probabilities."""
    torch.manual_seed(0)
    fields = task.SIZES | {"mem_len": mem_len, "same_length": mem_len > 0, "reads_last_step": True}
    model = task.GTrXLForActorCritic(task.GTrXLConfig(**fields))
    environments = ppo.vector(partial(task.CueTask, 2, 3), 4)
    start = ppo.beginning(model, torch.from_numpy(environments.reset(seed=0)[0]), environments)
    for _ in range(2):
        rollout, _, after = ppo.collect(model, environments, start, 6)
        given = ppo.named(model, rollout.observations, rollout.last)
        window = model(**given, reset=rollout.resets, mems=start.mems)
        found = model.distribution(window.logits).log_prob(rollout.actions)
        torch.testing.assert_close(found, rollout.log_probs)
        assert torch.equal(rollout.last["last_actions"][:, 1:], rollout.actions[:, :-1])
        assert torch.equal(rollout.last["last_rewards"][:, 1:], rollout.rewards[:, :-1])
        start = after._replace(mems=window.mems)
    assert rollout.resets.any()
    assert torch.equal(after.last["last_actions"], rollout.actions[:, -1])


def test_environments_that_begin_episodes_one_step_later_are_refused():
    environments = task.gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(ValueError, match=r"`autoreset_mode`=AutoresetMode.NEXT_STEP: .*SAME_STEP"):
        next(ppo.learn(task.AGENTS["GTrXL"](), environments, 0, ppo.Settings()))


@pytest.mark.slow
def test_it_remembers_what_was_shown_first(monkeypatch, capsys, tmp_path):
    """An environment that nobody here wrote: popgym's RepeatFirst asks for the first observation at each of 52 steps. A
    quarter is right by chance, which is a return of -0.5."""
    needs("popgym")
    last = run(monkeypatch, capsys, tmp_path, "popgym:popgym-RepeatFirstEasy-v0")
    assert float(last.split("return ")[1].split()[0]) > 0.8  # nine of ten


def test_the_code_of_the_page_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs/agents.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        exec(compile(block, "agents.md", "exec"), {})
