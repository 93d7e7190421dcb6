"""Numbers of numpy, which environments and arrays give (`env.action_space.n`), where a config wants those of Python."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """A number of numpy as that of Python which it is; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def with_plain_numbers(init: Callable[..., None]) -> Callable[..., None]:
    """`init` of a config, whose keywords may be numbers of numpy."""

    @wraps(init)
    def plain_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **{name: plain(value) for name, value in kwargs.items()})

    return plain_init


__all__ = ["plain", "with_plain_numbers"]
