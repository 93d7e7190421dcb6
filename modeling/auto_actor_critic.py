"""The Auto class of agents, which transformers lacks: `AutoModelForActorCritic.from_pretrained(folder)`."""

from collections import OrderedDict

from transformers.models.auto.auto_factory import _BaseAutoModelClass, _LazyAutoMapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES


class AutoModelForActorCritic(_BaseAutoModelClass):
    """A policy and a value at every step, on the variant that the config is of. See [`MemoryForActorCritic`].

    `from_config(config)` makes a new agent, `from_pretrained(folder)` loads one.
    """

    _model_mapping = _LazyAutoMapping(CONFIG_MAPPING_NAMES, OrderedDict())  # type: ignore[assignment]  # None in the base


__all__ = ["AutoModelForActorCritic"]
