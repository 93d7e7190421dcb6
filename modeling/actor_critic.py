"""A head for reinforcement learning on any backbone of this package: what to do, and what it is worth.

The setting is that of Parisotto et al., 2019, https://arxiv.org/abs/1910.06764: an agent that remembers its episode.
"""

import os
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers.utils import auto_docstring, can_return_tuple, logging

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.heads import MemoryHead
from transformers_xl.modeling.layers.observation_encoders import build_encoder
from transformers_xl.modeling.layers.policies import build_policy
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.ops.columns import is_symbolic
from transformers_xl.modeling.outputs import MemoryActorCriticOutput

logger = logging.get_logger(__name__)


def of_environment(name: str, value: Any, device: torch.device) -> Any:
    """What an environment gave under this name as tensors: an array of numpy, a tensor, or a dict of these.

    An array is copied: a vector environment may write its next step into the same one, and backward still reads this one.
    """
    if isinstance(value, Mapping):
        return {key: of_environment(f"{name}[{key!r}]", each, device) for key, each in value.items()}
    if value is None or isinstance(value, torch.Tensor):
        return value
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"of type {type(value).__name__}"
        raise ValueError(f"`{name}` is {kind}: give a tensor, or an array of numpy that holds numbers or bools.")
    return torch.tensor(value, device=device)


def dropout_of(config: MemoryConfig) -> dict[str, float]:
    """The fields of dropout that are above 0."""
    fields = {name: getattr(config, name) for name in type(config).__dataclass_fields__ if "dropout" in name}
    return {name: value for name, value in fields.items() if not isinstance(value, bool) and value}


def unsaved_buffers(encoder: Any) -> dict[str, torch.Tensor]:
    """Copies of the buffers of an encoder that are not saved."""
    if not isinstance(encoder, nn.Module):
        return {}
    saved = encoder.state_dict()
    return {name: value.detach().clone() for name, value in encoder.named_buffers() if name not in saved}


class LastStep(nn.Module):
    """Projects the action and the reward of the step before. A step that begins an episode has neither."""

    def __init__(self, config: MemoryConfig, width: int):
        super().__init__()
        self.sizes = None if config.num_actions is None else tuple(np.atleast_1d(config.num_actions).tolist())
        self.action_proj = nn.Linear(config.action_size or sum(self.sizes or ()), width, bias=False)
        self.reward_proj = nn.Linear(1, width, bias=False)

    def forward(
        self,
        actions: torch.Tensor,
        rewards: torch.Tensor,
        begins: torch.Tensor | None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`(batch, steps, width)` of actions as the policy draws them, rewards `(batch, steps)`, and the steps `(batch,
        steps)` that begin an episode. What they had before, and what padding has (`mask` 0), may be anything."""
        dtype = self.reward_proj.weight.dtype
        unread = torch.zeros_like(rewards, dtype=torch.bool) if begins is None else begins
        unread = unread | ~mask.bool() if mask is not None and mask.shape == unread.shape else unread
        if self.sizes is not None:
            actions = self.as_zeros_and_ones(actions, self.sizes, unread)
        # before the projection, whose gradient would be NaN where these are: 0 times NaN is NaN
        actions = actions.to(dtype).masked_fill(unread[..., None], 0)
        rewards = rewards.to(dtype).masked_fill(unread, 0)
        return self.action_proj(actions) + self.reward_proj(rewards[..., None])

    def as_zeros_and_ones(self, actions: torch.Tensor, sizes: tuple[int, ...], unread: torch.Tensor) -> torch.Tensor:
        """A one for what was chosen, of each choice, `(batch, steps, sum of sizes)`. On a CPU what is no choice is refused,
        where the step is read."""
        choices = actions if actions.dim() == 3 else actions[..., None]
        limits = torch.tensor(sizes, device=actions.device)
        # elsewhere it would wait for the device, and in a compiled graph it would end it
        if actions.device.type == "cpu" and not is_symbolic(actions):
            wrong = (choices < 0) | (choices >= limits) | (choices != choices.long())
            wrong = wrong & ~unread[..., None]
            if wrong.any():
                raise ValueError(
                    f"`last_actions` holds {choices[wrong][0].item():g}: its choices are whole numbers from 0, below "
                    f"{limits.tolist()}; what a step has that begins an episode (`reset`) is not read."
                )
        pairs = zip(choices.unbind(dim=-1), sizes, strict=True)
        return torch.cat([part[..., None] == torch.arange(size, device=part.device) for part, size in pairs], -1)


class MemoryForActorCritic(MemoryHead):
    """Policy and value of every step.

    What can be done, and what is seen, stands in the config: [`AgentConfig`]. With `observation_size` or `image_shape` no
    token embedding is built. An `encoder` of your own, for images, dicts or anything else, is a module that maps what you
    pass as `observations`, tensors that begin with `(batch, steps)`, to `(batch, steps, hidden_size)`. Pass it to the model
    and to `from_pretrained(folder, encoder=..)`, or let a sub-class make it in `build_encoder`. It is saved with the agent,
    and a new agent keeps the weights that it has.
    """

    is_agent = True

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike | None, *model_args, **kwargs):
        """As in transformers; `encoder=..` for an agent that was saved with an encoder of your own.

        Raises:
            ValueError: the agent has weights for which this model has no place.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        given = kwargs.get("encoder")
        buffers = unsaved_buffers(given)
        loaded: Any = super().from_pretrained(
            pretrained_model_name_or_path, *model_args, **kwargs, output_loading_info=True
        )
        model, info = loaded
        encoder, is_agents = model.observation_proj, not any("policy_head." in each for each in info["missing_keys"])
        other = {each for each in info["missing_keys"] if each.startswith(("model.embed_tokens", "observation_proj"))}
        if is_agents and (other := other | set(info["unexpected_keys"])):
            needs_encoder = given is None and any(each.startswith("observation_proj") for each in other)
            remedy = (
                "load it with the class that saved it, or `AutoModelForActorCritic`, and pass `encoder` if it had one"
            )
            if needs_encoder:
                remedy = "pass `encoder`, a module like the one that it has, or load it with the class that builds it"
            raise ValueError(
                f"{str(pretrained_model_name_or_path)!r} holds an agent that has not the same weights as {cls.__name__}, "
                f"such as {min(other)!r}: {remedy}."
            )
        if given is None and unsaved_buffers(encoder):
            with torch.random.fork_rng(devices=[]):  # its weights are drawn, and not used
                buffers = unsaved_buffers(model.build_encoder(model.config))
        for name, value in buffers.items():  # transformers leaves them without values
            encoder.get_buffer(name).copy_(value)
        return (model, info) if wants_info else model

    def build_encoder(self, config: MemoryConfig) -> nn.Module | None:
        """What reads observations, None for token ids. Override it to make your own."""
        return build_encoder(config, config.embedding_width)

    def build_head(self, config: MemoryConfig, encoder: nn.Module | None = None) -> None:
        self.policy_head = build_policy(config, config.hidden_size)
        self.value_head = nn.Linear(config.hidden_size, 1)
        if encoder is not None and not isinstance(encoder, nn.Module):
            raise ValueError(f"`encoder`={encoder!r} must be an `nn.Module`, an object and not its class.")
        for module in () if encoder is None else encoder.modules():
            module._is_hf_initialized = True  # type: ignore[assignment]  # else its weights would be drawn again
        self.observation_proj = self.build_encoder(config) if encoder is None else encoder
        if self.observation_proj is not None:
            self.model.embed_tokens = None  # type: ignore[assignment]  # no ids are read
        self.last_step = LastStep(config, config.embedding_width) if config.reads_last_step else None

    def distribution(self, logits: torch.Tensor) -> torch.distributions.Distribution:
        """What the policy draws actions from, by the `logits` of an output: it has `sample()`, `mode`, `log_prob(actions)`
        and `entropy()`, the last two `(batch, steps)`.

        Raises:
            ValueError: these are not the logits of this policy.
        """
        numbers, choices = self.config.action_size, self.config.num_actions
        width = int(np.sum(cast(Any, choices))) if numbers is None else 2 * numbers
        if not isinstance(logits, torch.Tensor) or logits.shape[-1:] != (width,):
            given = tuple(logits.shape) if isinstance(logits, torch.Tensor) else f"of type {type(logits).__name__}"
            raise ValueError(f"`logits` is {given}: pass the `logits` of an output, whose last axis here is {width}.")
        return self.policy_head.distribution(logits)

    def inputs_of(
        self,
        inputs: dict[str, Any],
        last: dict[str, Any],
        reset: Any,
        mask: torch.Tensor | None,
        memory: Memory | None,
    ) -> torch.Tensor | None:
        """`inputs_embeds` of what was given: observations, and the step before. None: token ids alone are read."""
        given = [name for name, value in inputs.items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"Exactly one of `observations`, `input_ids` and `inputs_embeds` must be given, not {given or 'none'}."
            )
        if inputs["input_ids"] is not None and self.observation_proj is not None:
            raise ValueError(
                "`input_ids` was given, but this model has an encoder of `observations`. Leave `observation_size` and "
                "`image_shape` out for discrete ones."
            )
        if inputs["observations"] is not None and self.observation_proj is None:
            raise ValueError(
                "`observations` was given, but `observation_size`=None: set it or `image_shape` in the config, pass an "
                "`encoder` to the model, or pass `input_ids` (discrete observations) or `inputs_embeds`."
            )
        self.check_last_step(last, inputs)
        embeds = inputs["inputs_embeds"]
        if inputs["observations"] is not None and self.observation_proj is not None:
            embeds = self.observation_proj(inputs["observations"])
        if self.last_step is None:
            return embeds
        embeds = self.model.embed_tokens(inputs["input_ids"]) if embeds is None else embeds
        if mask is not None and mask.dim() == 2:  # of the whole history, with a cache
            mask = mask[:, -embeds.shape[1] :]
        begins = _begins(reset, mask, memory, *embeds.shape[:2])
        return embeds + self.last_step(*last.values(), begins, mask)

    def check_last_step(self, last: dict[str, Any], inputs: dict[str, Any]) -> None:
        """Check that the step before was given where the model reads it, in the right shapes."""
        missing = [name for name, value in last.items() if (value is not None) != (self.last_step is not None)]
        if missing:
            needs = "must be given" if self.last_step is not None else "was given"
            raise ValueError(
                f"`{missing[0]}` {needs}: the config says `reads_last_step`={self.last_step is not None}."
            )
        if self.last_step is None:
            return
        first = next(value for value in inputs.values() if value is not None)
        while isinstance(first, Mapping):
            first = next(iter(first.values()))
        steps, size = tuple(first.shape[:2]), self.policy_head.action_shape
        for name, shape in (("last_actions", (*steps, *size)), ("last_rewards", steps)):
            if tuple(last[name].shape) != shape:
                raise ValueError(
                    f"`{name}` has shape {tuple(last[name].shape)}: with these inputs it must be {shape}."
                )

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        observations: Any = None,
        attention_mask: torch.Tensor | np.ndarray | None = None,
        past_key_values: MemoryCache | None = None,
        input_ids: torch.Tensor | np.ndarray | None = None,
        inputs_embeds: torch.Tensor | None = None,
        mems: Memory | None = None,
        reset: torch.Tensor | np.ndarray | None = None,
        last_actions: torch.Tensor | np.ndarray | None = None,
        last_rewards: torch.Tensor | np.ndarray | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> MemoryActorCriticOutput:
        r"""
        observations (`torch.Tensor` or `np.ndarray` of shape `(batch, steps, observation_size)`, *optional*):
            What the environments showed, numbers of any type; images `(batch, steps, height, width, channels)`; or what an
            encoder of your own reads, also a dict. Exactly one of `observations`, `input_ids` and `inputs_embeds` is given.
            All arguments may be arrays of numpy too.
        last_actions (`torch.Tensor` of shape `(batch, steps)` or `(batch, steps, action_size)`, *optional*):
            With `reads_last_step`, the action before each observation, as the policy draws it.
        last_rewards (`torch.Tensor` of shape `(batch, steps)`, *optional*):
            With `reads_last_step`, the reward that came with each observation. Neither is read where an episode begins:
            where `reset` says so, and where a row of `mems` has read nothing; without `mems` and `reset` the first one is.
        mems ([`Memory`], *optional*):
            The `mems` of the previous call's output.
        reset (`torch.Tensor` of shape `(batch,)` or `(batch, steps)`, *optional*):
            Bool: rows whose first observation here begins an episode, or every step that does. What came before is not
            seen from there on. gymnasium says it one step earlier, by `terminated | truncated`, and the mode of the vector
            environment decides of which observation. With `AutoresetMode.SAME_STEP` the observation beside it begins the
            new episode: it is the `reset` of that observation. With `AutoresetMode.NEXT_STEP`, the default of gymnasium,
            the observation beside it ends the old episode, and the next one begins the new: it is the `reset` one step
            later. There the first form is wrong without a message: the end of an episode counts as the start of the next.
        """
        if self.training and (dropout := dropout_of(self.config)):
            logger.warning_once(
                f"An agent is trained with {' and '.join(f'`{name}`={value}' for name, value in dropout.items())}: two "
                "reads of one window give two policies, which PPO takes for a change. Set it to 0."
            )
        if self.training and not self.config.same_length and self.config.mem_len > 0:
            logger.warning_once(
                f"An agent is trained with `same_length`=False and `mem_len`={self.config.mem_len}: a step of a rollout "
                "sees more than the same step did alone, which PPO takes for a change. Set `same_length` to True."
            )
        device = self.value_head.weight.device
        inputs = {"observations": observations, "input_ids": input_ids, "inputs_embeds": inputs_embeds}
        inputs = {name: of_environment(name, value, device) for name, value in inputs.items()}
        last = {"last_actions": last_actions, "last_rewards": last_rewards}
        last = {name: of_environment(name, value, device) for name, value in last.items()}
        reset = of_environment("reset", reset, device)
        mask = of_environment("attention_mask", attention_mask, device)
        memory = mems if past_key_values is None else getattr(past_key_values, "memory", None)  # else it is refused
        embeds = self.inputs_of(inputs, last, reset, mask, memory)
        outputs = self.model(
            input_ids=inputs["input_ids"] if embeds is None else None,
            attention_mask=mask,
            past_key_values=past_key_values,
            inputs_embeds=embeds,
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


def _begins(
    reset: torch.Tensor | None, mask: torch.Tensor | None, memory: Memory | None, batch: int, steps: int
) -> torch.Tensor | None:
    """The steps that begin an episode, `(batch, steps)` bool: where `reset` says so, the first one after it that is no
    padding, in this call or, of rows whose `memory` holds no step since, in the next. None: nothing says of any."""
    shapes = (batch,), (batch, steps)
    if reset is not None and (reset.dtype != torch.bool or tuple(reset.shape) not in shapes):
        return None  # the model refuses what does not fit
    new = memory.tokens_read == 0 if isinstance(memory, Memory) and memory.batch_size == batch else None
    given = [each for each in (reset, new) if each is not None]
    if not given:
        return None
    first = torch.arange(steps, device=given[0].device) == 0
    marks = torch.stack([each if each.dim() == 2 else each.to(first.device)[:, None] & first for each in given]).sum(0)
    has_mask = mask is not None and mask.shape == marks.shape
    is_step = cast(torch.Tensor, mask).bool() if has_mask else torch.ones_like(marks, dtype=torch.bool)
    episode = marks.cumsum(1)
    before = nn.functional.pad(episode.where(is_step, 0).cummax(1).values, (1, 0))[:, :-1]
    return is_step & (episode > before)


__all__ = ["LastStep", "MemoryForActorCritic", "dropout_of", "of_environment", "unsaved_buffers"]
