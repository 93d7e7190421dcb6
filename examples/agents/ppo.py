"""PPO for an agent with memory, on any environment of gymnasium, in one file to copy and change.

    pip install '.[rl]'
    python examples/agents/ppo.py popgym:popgym-RepeatFirstEasy-v0 -o build/agent
    python examples/agents/ppo.py CartPole-v1 --steps 200000

It prints the mean return of the episodes that ended, saves the agent as a folder of Hugging Face, loads it again and lets
it play. Every rollout starts from the `mems` that the one before left, acts step by step with a `MemoryCache`, and is read
again in one window from those same `mems`, with `reset` where episodes begin: one memory a rollout, not one a step. The
memory is stale after the first update of the weights, as is usual. An episode that is cut short by a limit of time counts
as ended: where that is wrong, add `discount` times the value of `infos["final_obs"]`, read with the memory of its episode,
to its last reward.

TorchRL was tried (0.14.1, the newest in November 2026): declared with a `TensorDictPrimer`, `mems` do travel through its
rollouts and `ClipPPOLoss`, but as fields of every step that hold the whole memory, and the loss runs the model once for the
policy and once for the value. The backbones with a cache of keys and values of its main branch are in no release yet.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from transformers_xl import AutoModelForActorCritic, GTrXLConfig, Memory
from transformers_xl.modeling.actor_critic import MemoryForActorCritic


@dataclass
class Settings:
    """Of PPO, https://arxiv.org/abs/1707.06347. A window is how many steps of one environment a rollout has."""

    updates: int = 100
    window: int = 16
    epochs: int = 4
    minibatches: int = 4  # of an epoch, each of some environments
    learning_rate: float = 1e-3
    discount: float = 0.95
    trace: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01


Observation = torch.Tensor | dict[str, "Observation"]


class Rollout(NamedTuple):
    """What was seen and done, `(environments, window, ..)`; `last`: the step before each, where the agent reads it."""

    observations: Observation
    last: dict[str, torch.Tensor]
    resets: torch.Tensor  # where the observation begins an episode
    actions: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    rewards: torch.Tensor
    ends: torch.Tensor  # where the step ended an episode


class Beginning(NamedTuple):
    """Where a rollout begins: the first observations, whether they begin episodes, what is remembered, and the step before,
    where the agent reads it."""

    observation: Observation
    reset: torch.Tensor
    mems: Memory | None
    last: dict[str, torch.Tensor]


def beginning(model: MemoryForActorCritic, observation: Observation, environments: VectorEnv) -> Beginning:
    """Where all episodes begin: what the step before was is not read."""
    count, last = environments.num_envs, {}
    if model.config.reads_last_step:
        shape = (count, *model.policy_head.action_shape)
        last = {"last_actions": torch.zeros(shape), "last_rewards": torch.zeros(count)}
    return Beginning(observation, torch.ones(count, dtype=torch.bool), None, last)


def parts(change: Callable, *observations: Any) -> Any:
    """`change` of observations, or, where these are dicts, of each of their parts."""
    if isinstance(observations[0], dict):
        return {name: parts(change, *(each[name] for each in observations)) for name in observations[0]}
    return change(*observations)


def stacked(*steps: torch.Tensor) -> torch.Tensor:
    return torch.stack(steps, dim=1)


def named(model: MemoryForActorCritic, observations: Observation, last: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What the model reads, by its arguments: observations are ids, where it has no encoder."""
    return {"input_ids" if model.observation_proj is None else "observations": observations} | last


@torch.no_grad()
def act(model: MemoryForActorCritic, start: Beginning, past: dict):
    """One step of the rollout: the last step of `model` on what is new, or on the window so far without memory."""
    observation, reset, mems, last = start
    if model.config.mem_len == 0:
        for name, new in (*named(model, observation, last).items(), ("reset", reset)):
            new = parts(lambda each: each[:, None], new)
            past[name] = parts(lambda *both: torch.cat(both, dim=1), past[name], new) if name in past else new
        return model(**past)
    given = parts(lambda each: each[:, None], named(model, observation, last))
    outputs = model(**given, reset=reset, **(past or {"mems": mems}), use_cache=True)
    past["past_key_values"] = outputs.past_key_values
    return outputs


def within(space: gym.Space, action: torch.Tensor) -> np.ndarray:
    """What the environments take of an action: a normal distribution knows no bounds."""
    numbers = action.numpy().reshape(space.shape)
    return numbers.clip(space.low, space.high) if isinstance(space, gym.spaces.Box) else numbers


def collect(model: MemoryForActorCritic, environments: VectorEnv, start: Beginning, window: int):
    """A rollout, the value of what comes after it, and where the next one begins, but for its memory."""
    steps, past = [], {}
    for _ in range(window):
        outputs = act(model, start, past)
        policy = model.distribution(outputs.logits[:, -1])
        action = policy.sample()
        new, reward, terminated, truncated, _ = environments.step(within(environments.action_space, action))
        reward, ended = torch.from_numpy(reward).float(), torch.from_numpy(terminated | truncated)
        done = (action, policy.log_prob(action), outputs.value[:, -1], reward, ended)
        steps.append((start.observation, start.last, start.reset, *done))
        # SAME_STEP: the observation beside the end of an episode begins the next
        last = {"last_actions": action, "last_rewards": reward} if start.last else {}
        start = Beginning(parts(torch.from_numpy, new), ended, start.mems, last)
    following = act(model, start, past).value[:, -1:]
    rollout = Rollout(*(parts(stacked, *column) for column in zip(*steps, strict=True)))
    return rollout, following, start


def advantages(rewards: torch.Tensor, ends: torch.Tensor, values: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Generalised advantage estimation, https://arxiv.org/abs/1506.02438; `values` (batch, window + 1) has one more."""
    result, trace = torch.zeros_like(rewards), torch.zeros(len(rewards))
    for step in reversed(range(rewards.shape[1])):
        going_on = 1.0 - ends[:, step].float()
        error = rewards[:, step] + settings.discount * going_on * values[:, step + 1] - values[:, step]
        trace = error + settings.discount * settings.trace * going_on * trace
        result[:, step] = trace
    return result


def loss_of(model, rollout: Rollout, targets: tuple[torch.Tensor, ...], mems: Memory | None, settings: Settings):
    """The loss of a rollout that began with `mems`; `targets` are advantages and returns."""
    advantage, returns = targets
    outputs = model(**named(model, rollout.observations, rollout.last), reset=rollout.resets, mems=mems)
    policy = model.distribution(outputs.logits)
    ratio = (policy.log_prob(rollout.actions) - rollout.log_probs).exp()
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    gain = torch.min(ratio * advantage, clipped * advantage).mean() + settings.entropy * policy.entropy().mean()
    return 0.5 * (outputs.value - returns).square().mean() - gain


def update(model, optimizer, rollout: Rollout, following: torch.Tensor, mems: Memory | None, settings: Settings):
    """Learn from a rollout, which began with `mems`; the memory after it."""
    values = torch.cat([rollout.values, following], dim=1)
    advantage = advantages(rollout.rewards, rollout.ends, values, settings)
    returns, advantage = advantage + rollout.values, (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(advantage)).chunk(settings.minibatches):
            here = Rollout(*(parts(itemgetter(rows), each) for each in rollout))
            past = None if mems is None else mems.rows(rows)
            loss = loss_of(model, here, (advantage[rows], returns[rows]), past, settings)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    with torch.no_grad():
        return model(**named(model, rollout.observations, rollout.last), reset=rollout.resets, mems=mems).mems


def learn(model: MemoryForActorCritic, environments: VectorEnv, seed: int, settings: Settings) -> Iterator[Rollout]:
    """Train an agent; yields every rollout after its update.

    Raises:
        ValueError: the environments begin episodes in another mode than `vector` makes.
    """
    if (mode := environments.metadata.get("autoreset_mode")) is not AutoresetMode.SAME_STEP:
        raise ValueError(
            f"`autoreset_mode`={mode}: make the environments by `vector`, or with AutoresetMode.SAME_STEP."
        )
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    first = parts(torch.from_numpy, environments.reset(seed=seed * environments.num_envs)[0])
    start = beginning(model, first, environments)
    for _ in range(settings.updates):
        rollout, following, after = collect(model, environments, start, settings.window)
        start = after._replace(mems=update(model, optimizer, rollout, following, start.mems, settings))
        yield rollout


def made(name: str) -> gym.Env:
    """An environment whose observation is an id, numbers or an image; anything else becomes one array, in which parts of a
    dict or tuple stand side by side, and a choice is zeros and a one.

    Raises:
        ValueError: a part is no number.
    """
    environment, spaces = gym.make(name), gym.spaces
    space = environment.observation_space
    axes = {spaces.MultiBinary: (1,), spaces.Box: (1, 3)}.get(type(space), ())
    if isinstance(space, spaces.Discrete) or len(space.shape or ()) in axes:
        return environment
    try:
        return gym.wrappers.FlattenObservation(environment)
    except NotImplementedError:
        raise ValueError(
            f"`environment`={name} shows {space}, which is not numbers alone: leave parts out with "
            "`gymnasium.wrappers.FilterObservation`, as minigrid_memory.py does."
        ) from None


def vector(maker: Callable[[], gym.Env], count: int) -> SyncVectorEnv:
    """Environments in the mode that this file is written for: `reset` is what ended one step before."""
    return SyncVectorEnv([maker] * count, autoreset_mode=AutoresetMode.SAME_STEP)


class Returns:
    """Sums of rewards of the episodes that ended."""

    def __init__(self, environments: int):
        self.running, self.ended = np.zeros(environments), []

    def add(self, rollout: Rollout) -> None:
        for rewards, ends in zip(rollout.rewards.numpy().T, rollout.ends.numpy().T, strict=True):
            self.running += rewards
            self.ended += self.running[ends].tolist()
            self.running[ends] = 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", help="a name that `gymnasium.make` knows")
    parser.add_argument("-o", "--output", default="build/agent", help="folder of the agent")
    parser.add_argument("--steps", type=int, default=100_000, help="of all environments together")
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--mem-len", type=int, default=64, help="steps that a layer remembers")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if min(args.steps, args.environments, args.mem_len) < 1:
        parser.error("--steps, --environments and --mem-len must be at least 1")
    if args.steps < (least := args.environments * Settings.window):
        parser.error(
            f"--steps {args.steps} is less than one update: at least {least} for {args.environments} environments"
        )
    try:
        Path(args.output).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output {args.output} cannot be a folder: {error}")
    return args


def main() -> None:
    args = parse()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # small models: more threads wait for each other
    environments = vector(lambda: made(args.environment), args.environments)
    config = GTrXLConfig(
        observation_size=environments.single_observation_space,
        num_actions=environments.single_action_space,
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, mem_len=args.mem_len, initializer_range=0.15,
    )  # fmt: skip
    agent, returns = AutoModelForActorCritic.from_config(config), Returns(args.environments)
    settings = Settings(updates=args.steps // (args.environments * Settings.window))
    for number, rollout in enumerate(learn(agent, environments, args.seed, settings), start=1):
        returns.add(rollout)
        if number % 10 == 0 and returns.ended:
            print(
                f"{number * rollout.rewards.numel():,} steps: return {np.mean(returns.ended[-200:]):.3f}", flush=True
            )
    agent.save_pretrained(args.output)
    agent = AutoModelForActorCritic.from_pretrained(args.output)
    first = beginning(agent, parts(torch.from_numpy, environments.reset()[0]), environments)
    played = Returns(args.environments)
    played.add(collect(agent, environments, first, 512)[0])
    count = len(played.ended)
    worth = f"return {np.mean(played.ended):.3f} in {count} episodes" if count else "no episode ended in 512 steps"
    print(f"{args.output}, loaded again: {worth}")


if __name__ == "__main__":
    main()
