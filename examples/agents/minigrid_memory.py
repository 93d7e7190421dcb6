"""An agent with an encoder of its own: it walks through MiniGrid's Memory, where an object seen at the start says which way
to turn at the end of a corridor.

    pip install '.[rl]'
    python examples/agents/minigrid_memory.py --steps 400000

MiniGrid shows a dict: an image whose three channels are numbers of things (kind, colour, state), a direction, and a text.
"""

import argparse
from pathlib import Path

import gymnasium as gym
import minigrid  # noqa: F401  # registers its environments
import numpy as np
import ppo
import torch
from gymnasium.wrappers import FilterObservation
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from torch import nn

from transformers_xl import GTrXLConfig, GTrXLForActorCritic


class GridEncoder(nn.Module):
    """Reads the 7 x 7 places that are seen, and the direction."""

    sizes = (
        len(OBJECT_TO_IDX),
        len(COLOR_TO_IDX),
        len(STATE_TO_IDX) + 1,
    )  # the state of the place of the agent is one more

    def __init__(self, width: int):
        super().__init__()
        self.places, self.direction = nn.Linear(7 * 7 * sum(self.sizes), width), nn.Embedding(4, width)

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        channels = zip(observations["image"].long().unbind(-1), self.sizes, strict=True)
        kinds = torch.cat([nn.functional.one_hot(channel, size) for channel, size in channels], dim=-1)
        return self.places(kinds.flatten(2).float()) + self.direction(observations["direction"])


def make(name: str = "MiniGrid-MemoryS7-v0") -> gym.Env:
    """Without the text, which is always the same."""
    return FilterObservation(gym.make(name, disable_env_checker=True), ["image", "direction"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="build/minigrid_agent", help="folder of the agent")
    parser.add_argument("--steps", type=int, default=400_000, help="of all environments together")
    parser.add_argument("--environments", type=int, default=64)
    args = parser.parse_args()
    try:
        Path(args.output).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output {args.output} cannot be a folder: {error}")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    environments = ppo.vector(make, args.environments)
    config = GTrXLConfig(
        num_actions=environments.single_action_space, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        mem_len=64, initializer_range=0.15,
    )  # fmt: skip
    agent, returns = GTrXLForActorCritic(config, encoder=GridEncoder(32)), ppo.Returns(args.environments)
    settings = ppo.Settings(updates=args.steps // (32 * args.environments), window=32, discount=0.99)
    for number, rollout in enumerate(ppo.learn(agent, environments, 0, settings), start=1):
        returns.add(rollout)
        if number % 10 == 0 and returns.ended:
            won = np.mean(np.array(returns.ended[-200:]) > 0)
            print(f"{number * rollout.rewards.numel():,} steps: {won:.0%} of the last episodes won", flush=True)
    agent.save_pretrained(args.output)
    agent = GTrXLForActorCritic.from_pretrained(args.output, encoder=GridEncoder(32))
    print(f"{args.output}, loaded again: {agent.num_parameters():,} parameters")


if __name__ == "__main__":
    main()
