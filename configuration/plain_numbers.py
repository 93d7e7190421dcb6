"""What environments and arrays give, numbers of numpy and spaces, where a config wants plain fields."""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any

import numpy as np

from transformers_xl.configuration.configuration_agent import agent_settings, with_agent_defaults


def plain(value: Any) -> Any:
    """A number of numpy as that of Python which it is; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def with_plain_settings(init: Callable[..., None]) -> Callable[..., None]:
    """`init` of a config, whose keywords may be numbers of numpy, spaces of gymnasium, and other names of fields."""

    @wraps(init)
    def plain_init(self: Any, *args: Any, **kwargs: Any) -> None:
        settings = {name: plain(value) for name, value in agent_settings(kwargs).items()}
        settings = self.by_fields(settings, settings.get("cutoffs"))
        init(self, *args, **with_agent_defaults(settings, {each.name: each for each in fields(self)}))

    return plain_init


__all__ = ["plain", "with_plain_settings"]
