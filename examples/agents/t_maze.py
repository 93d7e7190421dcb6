"""A task that needs memory, learned by PPO: GTrXL, TrXL-I, TrXL and an agent without memory, in a few minutes on two cores.

`python examples/agents/t_maze.py` writes the learning curves to `build/t_maze/` as a picture and a JSON. It needs
gymnasium: `pip install '.[rl]'`. What learns is `ppo.py`, beside this file.
"""

import argparse
import json
import multiprocessing
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import ppo
import torch

from transformers_xl import GTrXLConfig, GTrXLForActorCritic, TransformerXLConfig, TransformerXLForActorCritic
from transformers_xl.evaluation.plots import figure, save, styled
from transformers_xl.modeling.actor_critic import MemoryForActorCritic

OUTPUT = Path("build/t_maze")


class CueTask(gym.Env):
    """A T-maze: the cue stands in the first observation, the junction comes after `shortest` to `longest` steps, and
    turning there to the side of the cue pays 1, to the other side -1. Before the junction every action walks on.

    Observation: [first step, at the junction, signal, noise]. The signal is the cue in the first step and a coin in all
    others, so that only its time tells them apart.
    """

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, shortest: int, longest: int):
        self.shortest, self.longest = shortest, longest

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.corridor = int(self.np_random.integers(self.shortest, self.longest + 1))
        self.position = 0
        observation = self.observe()
        self.cue = int(observation[2] > 0)
        return observation, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        finished = self.position == self.corridor
        reward = (1.0 if action == self.cue else -1.0) if finished else 0.0
        self.position = min(self.position + 1, self.corridor)
        return self.observe(), reward, finished, False, {}

    def observe(self) -> np.ndarray:
        signal, noise = self.np_random.choice([-1.0, 1.0], 2)
        return np.array([self.position == 0, self.position == self.corridor, signal, noise], np.float32)


SIZES = {"num_actions": 2, "observation_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 64, "mem_len": 48, "dropout": 0.0, "initializer_range": 0.15, "vocab_size": 1}  # fmt: skip
AGENTS = {
    "GTrXL": lambda: GTrXLForActorCritic(GTrXLConfig(**SIZES)),
    "TrXL-I": lambda: GTrXLForActorCritic(GTrXLConfig(**SIZES, gate_type="none")),
    "TrXL": lambda: TransformerXLForActorCritic(TransformerXLConfig(**SIZES, norm_position="post")),
    # sees all of its training window, in acting as in learning, and nothing before it
    "GTrXL without memory": lambda: GTrXLForActorCritic(GTrXLConfig(**SIZES | {"mem_len": 0, "same_length": False})),
}


@dataclass
class Settings(ppo.Settings):
    """Lengths in steps of one environment. The corridor is longer than the window: the cue is seen in memory only."""

    updates: int = 120
    minibatches: int = 1
    environments: int = 64
    shortest: int = 32
    longest: int = 40


def train(name: str, seed: int, settings: Settings) -> list[tuple[int, int]]:
    """Train one agent from a seed: see `learn`."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    return learn(AGENTS[name](), seed, settings)


def learn(model: MemoryForActorCritic, seed: int, settings: Settings) -> list[tuple[int, int]]:
    """Train an agent; for each update, how many of the episodes that ended in its rollout were won, and how many ended."""
    environments = ppo.vector(partial(CueTask, settings.shortest, settings.longest), settings.environments)
    rollouts = ppo.learn(model, environments, seed, settings)
    return [((each.rewards > 0).sum().item(), each.ends.sum().item()) for each in rollouts]


def success_rate(counts: np.ndarray, updates: int = 10) -> np.ndarray:
    """Share of won episodes, over the last `updates`, NaN before any ended; `counts` is (..., updates, 2)."""
    sums = np.cumsum(counts, axis=-2)
    sums[..., updates:, :] -= sums[..., :-updates, :].copy()
    return np.where(sums[..., 1] > 0, sums[..., 0] / np.maximum(sums[..., 1], 1), np.nan)


@styled
def draw(runs: dict[str, np.ndarray], settings: Settings, path: Path) -> None:
    picture, ((axes,),) = figure(width=8.0, height=4.5)
    styles = zip(("black", "tab:blue", "tab:orange", "tab:red"), ("-", "--", "-.", ":"), strict=True)
    for (name, counts), (color, style) in zip(runs.items(), styles, strict=True):
        rates = success_rate(counts)
        steps = np.arange(1, rates.shape[1] + 1) * settings.environments * settings.window
        axes.plot(steps, rates.mean(axis=0), style, color=color, linewidth=2, label=name)
        axes.fill_between(steps, rates.min(axis=0), rates.max(axis=0), color=color, alpha=0.12, linewidth=0)
    axes.axhline(0.5, color="gray", linewidth=0.8, label="chance")
    axes.set(xlabel="environment steps", ylabel="success rate (last 10 updates)", ylim=(0, 1.02))
    axes.set_title(f"A cue {settings.shortest} to {settings.longest} steps ago, windows of {settings.window} steps: mean "
                   f"and range of {len(counts)} seeds", fontsize=10)  # fmt: skip
    axes.legend(loc="lower right")
    save(picture, path)


def main(settings: Settings, seeds: int = 2, workers: int = 1, output: Path = OUTPUT) -> dict:
    output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    jobs = [(name, seed, settings) for name in AGENTS for seed in range(seeds)]
    if workers == 1:
        results = [train(*job) for job in jobs]
    else:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            results = list(pool.map(train, *zip(*jobs, strict=True)))
    runs = dict(zip(AGENTS, np.array(results).reshape(len(AGENTS), seeds, settings.updates, 2), strict=True))
    result = {"settings": asdict(settings), "model": SIZES, "torch": torch.__version__, "python": platform.python_version(),
              "gymnasium": gym.__version__, "seconds": round(time.perf_counter() - start), "workers": workers,
              "agents": {}}  # fmt: skip
    for name, counts in runs.items():
        final = success_rate(counts, 20)[:, -1].round(4).tolist()  # over the last 20 updates
        print(f"{name}: success of each seed " + ", ".join(f"{rate:.3f}" for rate in final), flush=True)
        result["agents"][name] = {"parameters": AGENTS[name]().num_parameters(), "final_success_rate": final,
                                  "won_and_ended_by_update": counts.tolist()}  # fmt: skip
    draw(runs, settings, output / "t_maze.png")
    (output / "t_maze.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    print(f"{result['seconds']} s; wrote {output}/t_maze.png and .json")
    return result


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main(Settings(), workers=min(2, os.cpu_count() or 1))
