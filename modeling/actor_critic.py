"""A head for reinforcement learning on any backbone of this package: what to do, and what it is worth.

The setting is that of Parisotto et al., 2019, https://arxiv.org/abs/1910.06764: an agent that remembers its episode.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.utils import auto_docstring, can_return_tuple

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.heads import MemoryHead
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.outputs import MemoryActorCriticOutput


def of_environment(name: str, value: Any, device: torch.device) -> torch.Tensor | None:
    """What an environment gave under this name, an array of numpy or a tensor, as a tensor.

    An array is copied: a vector environment may write its next step into the same one, and backward still reads this one.
    """
    if value is None or isinstance(value, torch.Tensor):
        return value
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"of type {type(value).__name__}"
        raise ValueError(f"`{name}` is {kind}: give a tensor, or an array of numpy that holds numbers.")
    return torch.tensor(value, device=device)


class MemoryForActorCritic(MemoryHead):
    """Policy and value of every step, for discrete actions.

    With `config.observation_size` a linear layer projects observations, and no token embedding is built. Without it,
    observations are `input_ids` (a Discrete space of `vocab_size`) or come from an encoder of your own as `inputs_embeds`.
    """

    def build_head(self, config: MemoryConfig) -> None:
        # the fields may come as plain keywords: a config of another variant does not declare them
        num_actions = getattr(config, "num_actions", None)
        if num_actions is None:
            raise ValueError("`num_actions`=None: set it in the config to the number of actions to choose from.")
        observation_size = getattr(config, "observation_size", None)
        self.observation_proj = None if observation_size is None else nn.Linear(observation_size, config.hidden_size)
        if observation_size is not None:
            self.model.embed_tokens = None  # type: ignore[assignment]  # no ids are read
        self.policy_head = nn.Linear(config.hidden_size, num_actions)
        self.value_head = nn.Linear(config.hidden_size, 1)

    def embed_observations(self, observations: torch.Tensor) -> torch.Tensor:
        """Project `(batch, steps, observation_size)` of any number type to `(batch, steps, hidden_size)`."""
        if self.observation_proj is None:
            raise ValueError(
                "`observations` was given, but `observation_size`=None: set it in the config, or pass `input_ids` "
                "(discrete observations) or `inputs_embeds`."
            )
        width = self.observation_proj.in_features
        if observations.dim() != 3 or observations.shape[2] != width or 0 in observations.shape:
            raise ValueError(
                f"`observations` has shape {tuple(observations.shape)}: it must be (batch, steps, observation_size) with "
                f"`observation_size`={width}, each at least 1; one step of a vector environment is `observations[:, None]`."
            )
        return self.observation_proj(observations.to(self.observation_proj.weight.dtype))

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        observations: torch.Tensor | np.ndarray | None = None,
        attention_mask: torch.Tensor | np.ndarray | None = None,
        past_key_values: MemoryCache | None = None,
        input_ids: torch.Tensor | np.ndarray | None = None,
        inputs_embeds: torch.Tensor | None = None,
        mems: Memory | None = None,
        reset: torch.Tensor | np.ndarray | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> MemoryActorCriticOutput:
        r"""
        observations (`torch.Tensor` or `np.ndarray` of shape `(batch, steps, observation_size)`, *optional*):
            What the environments showed, numbers of any type. Exactly one of `observations`, `input_ids` and
            `inputs_embeds` is given. `input_ids`, `reset` and `attention_mask` may be arrays of numpy too.
        mems ([`Memory`], *optional*):
            The `mems` of the previous call's output.
        reset (`torch.Tensor` of shape `(batch,)` or `(batch, steps)`, *optional*):
            Bool: rows whose first observation here begins an episode, or every step that does. What came before is not
            seen from there on. `terminated | truncated` of gymnasium says it one step earlier, and of which observation
            hangs on the mode of the vector environment. With `AutoresetMode.SAME_STEP` the observation beside it begins the
            new episode: it is the `reset` of that observation. With `AutoresetMode.NEXT_STEP`, the default of gymnasium,
            the observation beside it ends the old episode, and the next one begins the new: it is the `reset` one step
            later. There the first form is wrong without a message: the end of an episode counts as the start of the next.
        """
        device = self.value_head.weight.device
        observations = of_environment("observations", observations, device)
        input_ids = of_environment("input_ids", input_ids, device)
        attention_mask = of_environment("attention_mask", attention_mask, device)
        reset = of_environment("reset", reset, device)
        inputs = {"observations": observations, "input_ids": input_ids, "inputs_embeds": inputs_embeds}
        given = [name for name, value in inputs.items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"Exactly one of `observations`, `input_ids` and `inputs_embeds` must be given, not {given or 'none'}."
            )
        if input_ids is not None and self.observation_proj is not None:
            raise ValueError(
                f"`input_ids` was given, but `observation_size`={self.observation_proj.in_features}: this model projects "
                "`observations`. Leave `observation_size` out for discrete ones."
            )
        if observations is not None:
            inputs_embeds = self.embed_observations(observations)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            mems=mems,
            reset=reset,
            use_cache=use_cache,
            **(kwargs | {"return_dict": True}),
        )
        hidden_states = outputs.last_hidden_state
        return MemoryActorCriticOutput(
            logits=self.policy_head(hidden_states),
            value=self.value_head(hidden_states).squeeze(-1),
            past_key_values=outputs.past_key_values,
            mems=outputs.mems,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


__all__ = ["MemoryForActorCritic"]
