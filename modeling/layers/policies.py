"""What an agent does: policies over one choice, over several choices at once, and over numbers.

A policy is a linear map to `logits` `(batch, steps, ..)` and the distribution that they describe. A distribution has
`sample()`, `mode`, `log_prob(actions)` and `entropy()`, those of all parts of an action together: `(batch, steps)`.
"""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Independent, Normal
from transformers import initialization as init

from transformers_xl.configuration.configuration_agent import AgentConfig


def _as_tensor(actions: torch.Tensor | np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """An array is copied: an environment may write into it before the backward pass reads it."""
    return actions if isinstance(actions, torch.Tensor) else torch.tensor(actions, device=like.device)


class Choice(Categorical):
    """One choice; actions may also be arrays of numpy."""

    def log_prob(self, value: torch.Tensor | np.ndarray) -> torch.Tensor:
        return super().log_prob(_as_tensor(value, self.logits))


class Numbers(Independent):
    """Numbers that make one action; actions may also be arrays of numpy."""

    def log_prob(self, value: torch.Tensor | np.ndarray) -> torch.Tensor:
        return super().log_prob(_as_tensor(value, self.base_dist.mean))


class CategoricalPolicy(nn.Linear):
    """One of `num_actions`; actions are `(batch, steps)` integers."""

    action_shape: tuple[int, ...] = ()

    def distribution(self, logits: torch.Tensor) -> Distribution:
        return Choice(logits=logits)


class Choices(Distribution):
    """Several independent choices at once: actions are `(batch, steps, choices)` integers."""

    arg_constraints = {}

    def __init__(self, logits: torch.Tensor, sizes: tuple[int, ...]):
        self.parts = [Categorical(logits=each) for each in logits.split(sizes, dim=-1)]
        super().__init__(logits.shape[:-1], torch.Size([len(sizes)]), validate_args=False)

    @property
    def mode(self) -> torch.Tensor:
        return torch.stack([part.mode for part in self.parts], dim=-1)

    def sample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> torch.Tensor:
        return torch.stack([part.sample(torch.Size(sample_shape)) for part in self.parts], dim=-1)

    def log_prob(self, value: torch.Tensor | np.ndarray) -> torch.Tensor:
        value = _as_tensor(value, self.parts[0].logits)
        if value.shape[-1] != len(self.parts):
            raise ValueError(f"`value` has shape {tuple(value.shape)}: it must end with {len(self.parts)} choices.")
        pairs = zip(self.parts, value.unbind(dim=-1), strict=True)
        return torch.stack([part.log_prob(each) for part, each in pairs]).sum(0)

    def entropy(self) -> torch.Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)


class ChoicesPolicy(nn.Linear):
    """One of `sizes[i]` for every i."""

    def __init__(self, in_features: int, sizes: list[int]):
        super().__init__(in_features, sum(sizes))
        self.sizes, self.action_shape = tuple(sizes), (len(sizes),)

    def distribution(self, logits: torch.Tensor) -> Distribution:
        return Choices(logits, self.sizes)


class GaussianPolicy(nn.Linear):
    """Numbers with independent normal distributions; actions are `(batch, steps, action_size)`.

    `logits` are the means, and after them the logarithms of the standard deviations, which are learned and the same in all
    steps, 0 at first. Nothing bounds an action: clip it to what the environment takes.
    """

    def __init__(self, in_features: int, action_size: int):
        super().__init__(in_features, action_size)
        self.action_shape = (action_size,)
        self.log_std = nn.Parameter(torch.zeros(action_size))

    def init_weights(self, config: AgentConfig) -> None:
        init.zeros_(self.log_std)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        means = super().forward(hidden_states)
        return torch.cat([means, self.log_std.expand_as(means)], dim=-1)

    def distribution(self, logits: torch.Tensor) -> Distribution:
        means, log_std = logits.chunk(2, dim=-1)
        return Numbers(Normal(means, log_std.exp()), 1)


def build_policy(config: AgentConfig, width: int) -> CategoricalPolicy | ChoicesPolicy | GaussianPolicy:
    """The policy of a config, on hidden states of `width`.

    Raises:
        ValueError: the config says nothing of actions.
    """
    if config.action_size is not None:
        return GaussianPolicy(width, config.action_size)
    if config.num_actions is None:
        raise ValueError(
            "`num_actions`=None: set it in the config to the number of actions to choose from, or `action_size` where an "
            "action is numbers; both also from `env.action_space`."
        )
    if isinstance(config.num_actions, int):
        return CategoricalPolicy(width, config.num_actions)
    return ChoicesPolicy(width, list(config.num_actions))


__all__ = ["CategoricalPolicy", "Choices", "ChoicesPolicy", "GaussianPolicy", "build_policy"]
