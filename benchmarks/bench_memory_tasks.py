"""Agents with memory, learned by PPO (`examples/agents/ppo.py`) on environments of popgym, bsuite and MiniGrid and on a
T-maze: GTrXL, TrXL-I, TrXL, torch's LSTM, and GTrXL whose steps see nothing but themselves.

    OMP_NUM_THREADS=1 nice -n 19 python benchmarks/bench_memory_tasks.py
    python benchmarks/write_memory_tasks.py

One process, one thread. A run is one task, model and seed; each ends as one line of `results/memory_tasks.jsonl`, and one
that is there with the same settings is not run again, so that a stop loses one run. Tasks follow each other by importance,
and all models of a seed come before the next seed.

A run takes as many environment steps as its task says, and then goes on until the processor seconds of its task are used
up: the cheaper model gets more steps. So its curve can be read at equal steps and at equal seconds. It ends before when
98 % of its last 400 episodes were won, at full length. The agent without memory, a control, takes two fifths of the steps.
Processor seconds are those of the process: agent, PPO and environments. Episodes of some tasks grow: to the next length
whenever 95 % of the last 200 were won.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from agent_tasks import TASKS, Task, ppo
from lstm_agent import LSTMForActorCritic

from transformers_xl import GTrXLConfig, GTrXLForActorCritic, TransformerXLConfig, TransformerXLForActorCritic
from transformers_xl.files.atomic_write import atomic_write
from transformers_xl.files.processor import processor

RESULT = Path(__file__).parent / "results" / "memory_tasks.jsonl"
SEEDS = range(10, 15)
ENVIRONMENTS = 64
SOLVED, GROWN = (0.98, 400), (0.95, 200)  # shares, of how many last episodes
LEARNED, LAST = 0.9, 200
POINTS = 8192  # steps between two points of a curve, at least
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.15}
LSTM_SIZES = {"hidden_size": 64, "num_hidden_layers": 1}
MODELS: dict[str, Callable[..., torch.nn.Module]] = {
    "GTrXL": lambda encoder, **fields: GTrXLForActorCritic(GTrXLConfig(**SIZES | fields), encoder=encoder),
    "TrXL-I": lambda encoder, **fields: GTrXLForActorCritic(
        GTrXLConfig(**SIZES | fields, gate_type="none"), encoder=encoder
    ),
    "TrXL": lambda encoder, **fields: TransformerXLForActorCritic(
        TransformerXLConfig(**SIZES | fields, norm_position="post"), encoder=encoder
    ),
    "LSTM": lambda encoder, **fields: LSTMForActorCritic(GTrXLConfig(**SIZES | LSTM_SIZES | fields), encoder=encoder),
    # a step sees `mem_len` steps, itself included
    "no memory": lambda encoder, **fields: GTrXLForActorCritic(
        GTrXLConfig(**SIZES | fields | {"mem_len": 1}), encoder=encoder
    ),
}
WIDTHS = {"LSTM": LSTM_SIZES["hidden_size"]}
# Of 1e-3 and 3e-3 (for the LSTM also 1e-2, and a width of 32), chosen on seed 0 of RepeatFirstEasy
RATES = {name: 3e-3 if name == "LSTM" else 1e-3 for name in MODELS}
CONTROL = 0.4  # of the steps, for the agent without memory


def build(task: Task, name: str, environments: gym.vector.VectorEnv) -> torch.nn.Module:
    """An untrained agent for the environments of a task."""
    spaces = {"num_actions": environments.single_action_space, "mem_len": task.mem_len}
    if name != "LSTM":
        spaces["num_hidden_layers"] = task.layers
    encoder = None if task.encoder is None else task.encoder(WIDTHS.get(name, SIZES["hidden_size"]))
    if encoder is None:
        spaces["observation_size"] = environments.single_observation_space
    return MODELS[name](encoder, **spaces)


class Episodes:
    """What share of an episode's answers was right, of those that ended at the present length."""

    def __init__(self, task: Task):
        self.task, self.returns, self.seen, self.lengths = task, ppo.Returns(ENVIRONMENTS), 0, list(task.lengths or ())

    def add(self, rollout: ppo.Rollout) -> None:
        self.returns.add(rollout)

    def success(self, last: int = LAST, at_least: int = 1) -> float | None:
        """Mean of the last episodes; None where too few ended."""
        ended = self.returns.ended[self.seen :][-last:]
        return float(np.mean([self.task.success(each) for each in ended])) if len(ended) >= at_least else None

    def grow(self, environments: gym.vector.VectorEnv) -> None:
        """Let episodes be longer, where those of this length are won."""
        share, last = GROWN
        if len(self.lengths) > 1 and (self.success(last, last) or 0.0) >= share:
            self.lengths.pop(0)
            self.seen = len(self.returns.ended) + ENVIRONMENTS  # those that run now are of the old length
            self.task.set_length(environments, self.lengths[0])

    def solved(self) -> bool:
        share, last = SOLVED
        return len(self.lengths) < 2 and (self.success(last, last) or 0.0) >= share


def train(task: Task, name: str, seed: int, rate: float) -> dict[str, Any]:
    """One run: its curve, and what it came to."""
    torch.manual_seed(seed)
    environments = ppo.vector(task.make, ENVIRONMENTS)
    if task.lengths:
        task.set_length(environments, task.lengths[0])
    agent, episodes, curve, steps = build(task, name, environments), Episodes(task), [], 0
    settings = ppo.Settings(updates=10**9, window=task.window, discount=task.discount, learning_rate=rate)
    start, seconds, next_point = time.process_time(), 0.0, POINTS
    enough, limit = (CONTROL * task.steps, 0.0) if name == "no memory" else (task.steps, task.seconds)
    for rollout in ppo.learn(agent, environments, seed, settings):
        steps, seconds = steps + rollout.rewards.numel(), time.process_time() - start
        episodes.add(rollout)
        late = (steps >= enough and seconds >= limit) or 0 < 3 * limit <= seconds
        done = late or episodes.solved()
        if steps >= next_point or done:
            length, success = (episodes.lengths or [None])[0], episodes.success()
            curve.append([steps, round(seconds, 1), length, None if success is None else round(success, 4)])
            next_point = steps + max(POINTS, steps // 20)
        if done:
            break
        episodes.grow(environments)
    environments.close()
    return {
        "steps": steps, "seconds": round(seconds, 1), "solved": episodes.solved(), "length": curve[-1][2],
        "success": curve[-1][3], "episodes": len(episodes.returns.ended),
        "parameters": sum(each.numel() for each in agent.parameters()), "curve": curve,
    }  # fmt: skip


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def learned(run: dict[str, Any]) -> bool:
    """Whether nine of ten of its last 200 episodes were won, at full length."""
    return run["length"] in (None, (run["settings"]["lengths"] or [None])[-1]) and (run["success"] or 0.0) >= LEARNED


def cell(task: str, model: str, seed: int, rate: float | None = None) -> dict[str, Any]:
    """What tells a run from others."""
    settings = TASKS[task].limits()
    return {"task": task, "model": model, "seed": seed, "rate": rate or RATES[model], "settings": settings}


def run(cell: dict[str, Any], path: Path = RESULT) -> dict[str, Any]:
    """The run of a cell: the one that is there, or a new one, which is written."""
    runs = read(path)
    for each in runs:
        if cell.items() <= each.items():
            return each
    new = cell | train(TASKS[cell["task"]], cell["model"], cell["seed"], cell["rate"])
    new |= {"processor": str(processor()), "torch": torch.__version__, "gymnasium": gym.__version__}
    with atomic_write(path) as file:
        file.write_text("".join(json.dumps(each) + "\n" for each in [*runs, new]), encoding="utf-8")
    print(
        *(new[key] for key in ("task", "model", "seed", "rate", "steps", "seconds", "length", "success")), flush=True
    )
    return new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument(
        "--rates", nargs="+", type=float, default=[None], help="learning rates in place of the chosen ones"
    )
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for task, seed, rate, model in itertools.product(args.tasks, args.seeds, args.rates, args.models):
        if model in (TASKS[task].models or MODELS):
            run(cell(task, model, seed, rate), args.output)


if __name__ == "__main__":
    main()
