"""The tasks of `bench_memory_tasks.py`: environments, what an episode is worth, how long a run may take."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import popgym  # noqa: F401  # registers its environments
from gymnasium.vector import VectorEnv
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "examples/agents"))
import ppo
from bsuite_memory import MemoryLength
from minigrid_memory import GridEncoder, make
from t_maze import CueTask


@dataclass(frozen=True)
class Task:
    """An environment, and the limits of a run.

    Args:
        make: makes an environment.
        success: of an episode's return, 0 to 1.
        steps: environment steps that every run takes, unless it is solved.
        seconds: processor seconds that a run goes on for, where its steps took less; it never takes three times as many. 0:
            steps alone count.
        mem_len: steps that a layer remembers.
        layers: of the agents that are transformers.
        window: steps of a rollout.
        lengths: of episodes that grow.
        set_length: tells environments how long their next episodes are.
        encoder: of a width, what reads observations.
        models: who takes part, where not all do.
    """

    make: Callable[[], gym.Env]
    success: Callable[[float], float]
    steps: int
    seconds: float
    mem_len: int
    layers: int = 2
    window: int = 16
    discount: float = 0.95
    lengths: tuple[int, ...] | None = None
    set_length: Callable[[VectorEnv, int], None] | None = None
    encoder: Callable[[int], nn.Module] | None = None
    models: tuple[str, ...] | None = None

    def limits(self) -> dict[str, Any]:
        """What a run hangs on beside its environment, for JSON."""
        lengths = None if self.lengths is None else list(self.lengths)
        names = ("steps", "seconds", "mem_len", "layers", "window", "discount")
        return {name: getattr(self, name) for name in names} | {"lengths": lengths}


def named(environment: str) -> Callable[[], gym.Env]:
    return partial(gym.make, environment, disable_env_checker=True)


def won(total: float) -> float:
    return float(total > 0)


def right(total: float) -> float:
    """popgym pays 1 for all answers right, -1 for none."""
    return (1 + total) / 2


def set_memory_length(environments: VectorEnv, length: int) -> None:
    environments.set_attr("memory_length", length)


def set_corridor(environments: VectorEnv, length: int) -> None:
    """Corridors of 0.8 to 1 times a length."""
    environments.set_attr("shortest", int(0.8 * length))
    environments.set_attr("longest", length)


memory_length = partial(Task, MemoryLength, won, set_length=set_memory_length)
t_maze = partial(Task, partial(CueTask, 8, 10), won, set_length=set_corridor)


def grid(name: str, steps: int, seconds: float, mem_len: int) -> Task:
    return Task(partial(make, name), won, steps, seconds, mem_len, window=32, discount=0.99, encoder=GridEncoder)


TASKS = {
    "RepeatFirstEasy": Task(named("popgym-RepeatFirstEasy-v0"), right, 100_000, 30, mem_len=64),
    "RepeatPreviousEasy": Task(named("popgym-RepeatPreviousEasy-v0"), right, 100_000, 30, mem_len=64),
    "memory_len 100": memory_length(200_000, 40, mem_len=104, window=32, lengths=(10, 20, 40, 80, 100)),
    "T-maze 40": t_maze(120_000, 30, mem_len=48, lengths=(40,)),
    "T-maze 160": t_maze(250_000, 60, mem_len=168, window=32, lengths=(10, 20, 40, 80, 160)),
    "MiniGrid-MemoryS7": grid("MiniGrid-MemoryS7-v0", 200_000, 60, mem_len=64),
    "RepeatFirstMedium": Task(
        named("popgym-RepeatFirstMedium-v0"), right, 700_000, 240, mem_len=416, layers=1, window=32
    ),
    "memory_len 400": memory_length(
        500_000, 120, mem_len=408, layers=1, window=64, lengths=(10, 20, 40, 80, 160, 280, 400)
    ),
    "T-maze 400": t_maze(500_000, 120, mem_len=408, layers=1, window=64, lengths=(10, 20, 40, 80, 160, 280, 400)),
    "T-maze 1000": t_maze(
        1_500_000,
        300,
        mem_len=1008,
        layers=1,
        window=64,
        lengths=(10, 20, 40, 80, 160, 280, 400, 560, 780, 1000),
    ),
    "MiniGrid-MemoryS13": grid("MiniGrid-MemoryS13-v0", 400_000, 120, mem_len=128),
    "memory_len 10": memory_length(25_000, 0, mem_len=12, lengths=(5, 10), models=("GTrXL", "TrXL-I", "TrXL")),
}

__all__ = ["TASKS", "Task", "ppo"]
