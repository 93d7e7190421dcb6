"""Fields of a model that acts: what an environment shows and what can be done, as numbers or as spaces of gymnasium."""

import math
from typing import Any

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.saved_with_code import ConfigWithCode

SPACES = ("num_actions", "observation_size")
OTHERS = {"action_size": "num_actions", "image_shape": "observation_size", "vocab_size": "observation_size"}


def agent_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` of a config with plain fields in place of spaces of gymnasium, and lists in place of arrays.

    Spaces are known by their names and sizes: gymnasium is not imported.

    Raises:
        ValueError: a space that no field can hold, or that says something else than another field.
    """
    plain = dict(settings)
    for name, readers in zip(SPACES, (_ACTIONS, _OBSERVATIONS), strict=True):
        value = settings.get(name)
        read = next((readers[each.__name__] for each in type(value).__mro__ if each.__name__ in readers), None)
        if read is not None:
            found = read(value)
            for field in found.keys() - {name}:
                _refuse_other(name, value, field, settings.get(field), found[field])
            plain |= found
        elif _is_space(value):
            remedy = (
                "pass an encoder of your own to the model" if name == "observation_size" else "wrap the environment"
            )
            raise ValueError(f"`{name}`={value} is a space that this field cannot hold: {remedy}.")
    for name, of_spaces in OTHERS.items():
        if _is_space(plain.get(name)):
            raise ValueError(f"`{name}`={plain[name]} is a space: pass it as `{of_spaces}`, which sets the fields.")
    for name in ("num_actions", "image_shape"):
        sizes: Any = plain.get(name)
        if isinstance(sizes, tuple):
            plain[name] = list(sizes)
        elif getattr(sizes, "ndim", 0):  # an array, such as `MultiDiscrete.nvec`
            plain[name] = sizes.flatten().tolist()
    return plain


def _is_space(value: Any) -> bool:
    return any(each.__module__.startswith("gymnasium.") for each in type(value).__mro__)


def _refuse_other(name: str, space: Any, field: str, given: Any, found: Any) -> None:
    given = list(given) if isinstance(given, tuple) else given.tolist() if hasattr(given, "tolist") else given
    if given is not None and given != found:
        raise ValueError(f"`{field}`={given!r} is not that of `{name}`={space}, {found!r}: leave it out.")


def with_agent_defaults(settings: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """`settings` of a new config, which has `fields`, with the defaults of an agent where it is one.

    Dropout is 0: PPO compares what acted with what learns. The feed-forward has four times the width.
    """
    if settings.get("num_actions") is None and settings.get("action_size") is None:
        return settings
    width = settings.get("hidden_size", settings.get("d_model", fields["hidden_size"].default))
    defaults: dict[str, Any] = {"dropout": 0.0}
    if "intermediate_size" in fields and "d_inner" not in settings and isinstance(width, int):
        defaults["intermediate_size"] = 4 * width
    return defaults | settings


def _discrete(space: Any) -> dict[str, Any]:
    _refuse_start(space, int(space.start) != 0)
    return {"num_actions": int(space.n)}


def _multi_discrete(space: Any) -> dict[str, Any]:
    _refuse_start(space, bool((space.start != 0).any()))
    return {"num_actions": [int(size) for size in space.nvec.flatten()]}


def _refuse_start(space: Any, other: bool) -> None:
    if other:
        raise ValueError(
            f"`num_actions`={space} does not begin at 0: wrap the environment with `TransformAction`, or give the number "
            "of actions and add the start yourself."
        )


def _box_of_actions(space: Any) -> dict[str, Any]:
    if space.dtype.kind != "f":
        raise ValueError(
            f"`num_actions`={space} holds integers, and a policy over a `Box` draws real numbers: wrap the environment "
            "with `TransformAction`, so that it asks for a `MultiDiscrete`."
        )
    return {"num_actions": None, "action_size": math.prod(space.shape)}


def _discrete_observations(space: Any) -> dict[str, Any]:
    if int(space.start) != 0:
        raise ValueError(
            f"`observation_size`={space} does not begin at 0: wrap the environment with `TransformObservation`."
        )
    return {"observation_size": None, "vocab_size": int(space.n)}


def _box_of_observations(space: Any) -> dict[str, Any]:
    if len(space.shape) != 3:
        return _row_of_observations(space)
    if space.shape[0] <= 4 and min(space.shape[1:]) >= 8:
        raise ValueError(
            f"`observation_size`={space} looks like an image with its channels in front: wrap the environment with "
            "`TransformObservation`, so that they come last. If not, give `image_shape` in place of the space."
        )
    return {"observation_size": None, "image_shape": [int(size) for size in space.shape]}


def _row_of_observations(space: Any) -> dict[str, Any]:
    if len(space.shape) != 1:
        raise ValueError(
            f"`observation_size`={space} has the shape {space.shape}, and a linear layer reads one axis: wrap the "
            "environment with `FlattenObservation`."
        )
    return {"observation_size": int(space.shape[0])}


_ACTIONS = {
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda space: {"num_actions": [2] * math.prod(space.shape)},
    "Box": _box_of_actions,
}
_OBSERVATIONS = {
    "Discrete": _discrete_observations,
    "MultiDiscrete": _row_of_observations,
    "MultiBinary": _row_of_observations,
    "Box": _box_of_observations,
}


@strict
class AgentConfig(ConfigWithCode):
    r"""
    What a class `...ForActorCritic` reads of its config. Where one of `num_actions` and `action_size` is given, `dropout`
    is 0 and `intermediate_size` four times `hidden_size`, unless they are given.

    Args:
        num_actions (`int` or `list[int]`, *optional*):
            Number of actions to choose from, or of each of several that are taken at once. Also a space of gymnasium:
            `Discrete`, `MultiDiscrete`, `MultiBinary`; a `Box` sets `action_size`.
        action_size (`int`, *optional*):
            How many numbers an action is; they have a Gaussian policy.
        observation_size (`int`, *optional*):
            Width of the observations that a linear layer projects. Also a space of gymnasium: a `Discrete` one sets
            `vocab_size`, since its observations are `input_ids`; a `Box` of three axes sets `image_shape`. When not given,
            observations are token ids, images, or what an encoder of your own reads.
        image_shape (`list[int]`, *optional*):
            Height, width and channels of the images that a small convolutional network reads.
        reads_last_step (`bool`, *optional*, defaults to `False`):
            Whether the model also reads the action and the reward of the step before (as in RL^2,
            https://arxiv.org/abs/1611.02779).
    """

    num_actions: int | list[int] | None = None
    action_size: int | None = None
    observation_size: int | None = None
    image_shape: list[int] | tuple[int, ...] | None = None
    reads_last_step: bool = False

    def validate_agent(self) -> None:
        """Raise a `ValueError` when the fields do not describe an agent."""
        if self.num_actions is not None and self.action_size is not None:
            raise ValueError(
                f"`num_actions`={self.num_actions} and `action_size`={self.action_size} are two kinds of actions: give one."
            )
        if self.observation_size is not None and self.image_shape is not None:
            raise ValueError(
                f"`observation_size`={self.observation_size} and `image_shape`={self.image_shape} are two kinds of "
                "observations: give one, or an encoder of your own."
            )
        if self.image_shape is not None and len(self.image_shape) != 3:
            raise ValueError(f"`image_shape`={self.image_shape} must be height, width and channels.")
        for name in ("num_actions", "action_size", "observation_size", "image_shape"):
            value = getattr(self, name)
            sizes = list(value) if isinstance(value, (list, tuple)) else [value]
            if value is not None and (not sizes or min(sizes) < 1):
                raise ValueError(f"`{name}`={value} must be at least 1, or None.")


__all__ = ["AgentConfig", "agent_settings", "with_agent_defaults"]
