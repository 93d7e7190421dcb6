"""Configuration of models that remember nothing."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_memory import MemoryConfig


@strict
class WithoutMemoryConfig(MemoryConfig):
    """Fields of the variants without memory: `mem_len` is 0 and `same_length` False. `segment_length` is the number of
    positions, the longest text of one call. Further fields are those of [`MemoryConfig`], except `initial_memory`."""

    # what the base class reads, and no field
    initial_memory: ClassVar[str] = "empty"  # type: ignore[misc]  # a ClassVar drops the field

    mem_len: int = 0
    same_length: bool = False

    def validate_architecture(self) -> None:
        super().validate_architecture()
        for name, only in (("mem_len", 0), ("same_length", False)):
            if getattr(self, name) != only:
                raise ValueError(
                    f"`{name}`={getattr(self, name)} must be {only}: {type(self).__name__} is for a model without memory. "
                    "Leave it out, or use a variant with memory."
                )


__all__ = ["WithoutMemoryConfig"]
