"""The options of the memory probe (no torch: the command reads its defaults)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ProbeOptions:
    """How a model is asked.

    Args:
        length: tokens of memory, or for a model without one, of the stream that is read again before each segment. When not
            given: the memory that the model has; `max_distance` or as much of it as positions allow; nothing for a model of
            this package without memory, which knows segments alone.
        segment_length: tokens per call.
        max_distance: answers were told 1 to this many tokens before.
        lanes: streams that are read side by side.
        tokens: tokens of each stream whose questions count, after `max_distance` that only fill the memory.
        seed: of the streams; trainings count theirs from 0.

    Raises:
        ValueError: a number is out of range.
    """

    length: int | None = None
    segment_length: int = 32
    max_distance: int = 256
    lanes: int = 32
    tokens: int = 1536
    seed: int = 1_000_000

    def __post_init__(self) -> None:
        least = {"length": 0, "segment_length": 1, "max_distance": 1, "lanes": 1, "tokens": 1, "seed": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"`{name}`={value} must be at least {bound}.")


__all__ = ["ProbeOptions"]
