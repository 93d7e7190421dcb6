"""The fixed settings that the models of the memory probe are trained with (no torch: the command reads its defaults)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ProbeTerms:
    """How a model of the memory probe is made and trained.

    Args:
        task: what it learns, a name of `TASKS` (evaluation/probe_tasks.py).
        model_type: that of the model.
        steps: training steps.
        seed: of the weights and of the stream.
        mem_len: length of the memory in tokens, or of the text that a model without memory reads again before each segment;
            0: each segment alone.
        segment_length: tokens per call.
        max_distance: distances of the questions are 1 to this many tokens.
        learning_rate: peak learning rate of AdamW: constant for the first 70 % of the steps, then linear to 0.

    Raises:
        ValueError: a number is out of range.
    """

    task: str
    model_type: str
    steps: int = 1000
    seed: int = 0
    mem_len: int = 128
    segment_length: int = 32
    max_distance: int = 256
    learning_rate: float = 5e-3

    def __post_init__(self) -> None:
        least = {"steps": 1, "seed": 0, "mem_len": 0, "segment_length": 1, "max_distance": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least {bound}.")
        if self.learning_rate <= 0:
            raise ValueError(f"`learning_rate`={self.learning_rate} must be above 0.")


PROBE_FILE = "probe.json"  # beside the weights: how they were trained
HIDDEN_SIZE, LAYERS, HEADS, INNER_SIZE, LANES, WARMUP_STEPS, DECAY_SHARE = 64, 2, 2, 256, 16, 50, 0.3
INITIALIZER_RANGE = 0.1  # the usual 0.02 is small for a width of 64, and everything learns more slowly from it

__all__ = [
    "DECAY_SHARE",
    "HEADS",
    "HIDDEN_SIZE",
    "INITIALIZER_RANGE",
    "INNER_SIZE",
    "LANES",
    "LAYERS",
    "PROBE_FILE",
    "WARMUP_STEPS",
    "ProbeTerms",
]
