"""The benchmark of agents: its LSTM, its environments, its control, its growing episodes, and that it is resumed."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from optional_packages import needs
from torch import nn

list(map(needs, ("gymnasium", "popgym", "bsuite", "minigrid")))
from gymnasium.utils.env_checker import check_env  # noqa: E402

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import bench_memory_tasks as bench  # noqa: E402
import minigrid_memory  # noqa: E402
import write_memory_tasks as report  # noqa: E402
from agent_tasks import TASKS, ppo  # noqa: E402
from bsuite_memory import MemoryLength  # noqa: E402
from lstm_agent import LSTMForActorCritic, State  # noqa: E402
from minigrid_memory import GridEncoder  # noqa: E402

from transformers_xl import GTrXLConfig  # noqa: E402

EXACT = {"atol": 1e-12, "rtol": 1e-12}


def lstm() -> LSTMForActorCritic:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return LSTMForActorCritic(GTrXLConfig(num_actions=3, observation_size=4, **sizes)).double()


@pytest.mark.parametrize("share", [0.0, 0.3], ids=["no reset", "resets"])
def test_the_lstm_is_that_of_its_equations(share):
    model, observations = lstm(), torch.randn(3, 9, 4, dtype=torch.float64)
    reset, before = torch.rand(3, 9) < share, State(*torch.randn(2, 1, 3, 8, dtype=torch.float64))
    cell = nn.LSTMCell(8, 8).double()
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in model.lstm.state_dict().items()})
    (hidden, memory), values = (each[0] for each in before), []
    for step in range(9):
        goes_on = ~reset[:, step, None]
        inputs = model.observation_proj(observations[:, step : step + 1])[:, 0]
        hidden, memory = cell(inputs, (hidden * goes_on, memory * goes_on))
        values.append(model.value_head(hidden))
    found = model(observations, reset=reset, mems=before)
    torch.testing.assert_close(found.value, torch.cat(values, dim=1), **EXACT)
    torch.testing.assert_close(found.mems.cell[0], memory, **EXACT)
    (expected,) = torch.autograd.grad(torch.cat(values).sum(), [cell.weight_hh])
    (gradient,) = torch.autograd.grad(found.value.sum(), [model.lstm.weight_hh_l0])
    torch.testing.assert_close(gradient, expected, **EXACT)


def test_the_lstm_acts_as_it_learns():
    model, mems = lstm().float(), None
    for _ in range(2):
        observations, resets, past = torch.randn(3, 7, 4), torch.rand(3, 7) < 0.2, {}
        steps = [ppo.act(model, ppo.Beginning(observations[:, i], resets[:, i], mems, {}), past) for i in range(7)]
        window = model(observations, reset=resets, mems=mems)
        torch.testing.assert_close(torch.stack([s.logits[:, -1] for s in steps], dim=1), window.logits)
        mems = window.mems
    torch.testing.assert_close(
        model(observations[1:], reset=resets[1:], mems=mems.rows(torch.tensor([1, 2]))).value,
        model(observations, reset=resets, mems=mems).value[1:],
    )


@pytest.mark.filterwarnings("ignore:.*render")
@pytest.mark.filterwarnings("ignore:.*spec")
@pytest.mark.filterwarnings("ignore:.*Box")
def test_memory_length_is_that_of_bsuite():
    environment = MemoryLength(6)
    check_env(environment)
    for seed in range(6):
        bit = environment.reset(seed=seed)[0][2] > 0
        shown = [environment.step(0) for _ in range(6)]
        assert [each[1:3] for each in shown] == [(0.0, False)] * 6
        assert [each[0][2] for each in shown] == [2.0 * bit - 1] + [0.0] * 5  # bsuite shows it twice
        _, reward, ended, _, _ = environment.step(int(bit) if seed % 2 else 1 - int(bit))
        assert (reward, ended) == (1.0 if seed % 2 else -1.0, True)
    environment.memory_length = 2
    environment.reset(seed=0)
    assert [environment.step(0)[2] for _ in range(3)] == [False, False, True]


def test_what_minigrid_shows_is_looked_up():
    environment = TASKS["MiniGrid-MemoryS7"].make()
    shown = [environment.reset(seed=seed)[0] for seed in range(4)]
    seen = {name: np.stack([each[name] for each in shown])[:, None] for name in ("image", "direction")}
    encoder, kinds = GridEncoder(5), GridEncoder.sizes
    images = seen["image"].reshape(4, 49, 3)
    assert (images.reshape(-1, 3).max(axis=0) < kinds).all()
    weight = encoder.places.weight.view(5, 49, sum(kinds))
    places, numbers = np.arange(49), images + np.cumsum([0, *kinds[:2]])
    expected = sum(weight[:, places, numbers[..., part]].sum(dim=-1) for part in range(3)).T + encoder.places.bias
    expected = expected + encoder.direction.weight[seen["direction"][:, 0]]
    found = encoder({name: torch.from_numpy(value) for name, value in seen.items()})
    torch.testing.assert_close(found[:, 0], expected)


def test_the_example_of_minigrid_learns_from_dicts(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["minigrid", "--steps", "256", "--environments", "4", "-o", str(tmp_path)])
    minigrid_memory.main()
    assert capsys.readouterr().out.startswith(f"{tmp_path}, loaded again: ")


def test_the_control_remembers_nothing():
    environments = ppo.vector(TASKS["RepeatFirstEasy"].make, 2)
    agent = bench.build(TASKS["RepeatFirstEasy"], "no memory", environments)
    ids, reset = torch.randint(0, 4, (3, 6)), torch.zeros(3, 6, dtype=torch.bool)
    window = agent(input_ids=ids, reset=reset)
    other = agent(input_ids=torch.cat([(ids[:, :5] + 1) % 4, ids[:, 5:]], dim=1), reset=reset)
    step = agent(input_ids=ids[:, 5:], reset=reset[:, 5], mems=window.mems)
    for logits in (other.logits[:, 5], step.logits[:, 0]):
        torch.testing.assert_close(logits, window.logits[:, 5])


def test_a_run_that_is_there_is_not_run_again(monkeypatch, tmp_path):
    ran, output = [], tmp_path / "runs.jsonl"

    def train(task, *cell):
        ran.append(cell)
        return {"steps": 1, "seconds": 1.0, "length": 40, "success": 0.9}

    monkeypatch.setattr(bench, "train", train)
    arguments = ["--tasks", "T-maze 40", "--models", "LSTM", "GTrXL", "--output", str(output), "--seeds"]
    for seeds in (["0"], ["0", "1"]):
        monkeypatch.setattr(sys, "argv", ["bench", *arguments, *seeds])
        bench.main()
    assert ran == [("LSTM", 0, 3e-3), ("GTrXL", 0, 1e-3), ("LSTM", 1, 3e-3), ("GTrXL", 1, 1e-3)]
    runs = [json.loads(line) for line in output.read_text().splitlines()]
    assert [run["seed"] for run in runs] == [0, 0, 1, 1]
    assert bench.learned(runs[0])
    assert not bench.learned(runs[0] | {"length": 20})
    assert not bench.learned(runs[0] | {"success": 0.89})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GTrXL", "LSTM"])
def test_episodes_grow_as_they_are_won(name):
    """bsuite's `memory_len`, 5 steps at first."""
    run = bench.train(replace(TASKS["memory_len 10"], steps=60_000), name, 0, bench.RATES[name])
    assert run["solved"]
    assert run["success"] > 0.9
    assert {point[2] for point in run["curve"]} <= {5, 10}
    assert run["length"] == 10


def test_the_page_is_what_the_runs_say():
    rows = report.summary(bench.read(bench.RESULT))
    assert rows == json.loads(report.SUMMARY.read_text())["rows"], "run `python benchmarks/write_memory_tasks.py`"
    assert report.PAGE.read_text(encoding="utf-8") == report.page(rows)
    assert {row["seeds"] for row in rows if row["task"] == "RepeatFirstEasy"} == {len(bench.SEEDS)}


def test_curves_are_read_at_equal_steps_and_at_equal_seconds():
    curve = [[100, 1.0, 10, 0.95], [200, 2.0, 40, None], [300, 3.0, 40, 0.92], [400, 4.0, 40, 0.99]]
    grows = {"curve": curve, "settings": {"lengths": [10, 40]}}
    fixed = grows | {"settings": {"lengths": None}}
    assert [report.at(grows, 0, steps) for steps in (50, 149, 151, 999)] == [10, 10, 40, 40]  # the nearest point
    found = [report.at(fixed, 1, seconds) for seconds in (0.5, 1.4, 2.0, 3.4)]
    np.testing.assert_equal(found, [0.95, 0.95, np.nan, 0.92])
    assert (report.first(grows, 0), report.first(grows, 1)) == (300, 3.0)  # at full length
    assert report.first({"curve": curve[:2], "settings": grows["settings"]}, 0) is None


def test_a_task_counts_with_the_seeds_that_all_its_models_have():
    runs = [
        bench.cell("T-maze 40", model, seed)
        | {"curve": [[1, 1.0, 40, 0.5]], "parameters": 1, "length": 40, "success": 0.5}
        for model in bench.MODELS
        for seed in (10, 11)
    ]
    (found,) = report.cells(runs[1:]).values()
    assert {name: [run["seed"] for run in each] for name, each in found.items()} == {
        name: [11] for name in bench.MODELS
    }
    assert report.cells(runs[2:]) == {}
    assert report.cells([run | {"rate": 0.5} for run in runs]) == {}
    assert report.cells([run | {"settings": {}} for run in runs]) == {}
    (row, *_) = report.summary(runs)
    assert (row["seeds"], row["learned"], row["at equal steps"]["mean"]) == (2, 0, 0.5)
    others = [run | {"rate": 0.5} for run in runs if run["model"] == "LSTM"]
    assert [*report.cells([*runs, *others])["T-maze 40"]] == [*bench.MODELS, "LSTM at 0.5"]
    assert [*report.cells([*runs, *others[1:]])["T-maze 40"]] == [*bench.MODELS]  # not of all seeds
