"""Configuration of the Block-Recurrent Transformer (Hutchins et al., 2022, https://arxiv.org/abs/2203.07852)."""

from typing import Any

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_local_attention import LocalAttentionConfig

STATE_GATES = ("fixed", "lstm")
STATE_UPDATES = ("skip", "single", "dual")


@strict
class BlockRecurrentConfig(LocalAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Block-Recurrent Transformer. Further fields are those of [`LocalAttentionConfig`] and
    [`AdaptiveSoftmaxConfig`].

    Args:
        block_length (`int`, *optional*, defaults to 512):
            Tokens of a block (W in the paper): after each the state is written once.
        num_states (`int`, *optional*, defaults to 512):
            Vectors of the state (S in the paper).
        recurrent_layers (`list[int]`, *optional*):
            Layers with a state, counted from 0; one at three quarters of the depth when not given (the paper's: the tenth
            of twelve).
        state_gate (`str`, *optional*, defaults to `"fixed"`):
            How much of the state stays: `"fixed"`, a learned share of each feature; `"lstm"`, an input and a forget gate
            that look at what was read.
        state_update (`str`, *optional*, defaults to `"skip"`):
            `"dual"`: attention and feed-forward, each with a gate; `"single"`: both behind one gate; `"skip"`: no
            feed-forward.
        feedback (`bool`, *optional*, defaults to `False`):
            Whether the other layers read the state too, that of the last of `recurrent_layers`. A call is then run block by
            block.
        segment_length (`int`, *optional*, defaults to 4096):
            As in [`MemoryConfig`]. What is written learns from the tokens of the same segment that read it: a segment wants
            several blocks.
    """

    model_type = "block_recurrent"

    block_length: int = 512
    num_states: int = 512
    recurrent_layers: list[int] | tuple[int, ...] | None = None
    state_gate: str = "fixed"
    state_update: str = "skip"
    feedback: bool = False
    segment_length: int = 4096

    def __post_init__(self, **kwargs: Any):
        layers = kwargs.get("n_layer", self.num_hidden_layers)
        self.recurrent_layers = [3 * layers // 4] if self.recurrent_layers is None else list(self.recurrent_layers)
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        super().validate_architecture()
        for name in ("block_length", "num_states"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 1.")
        layers = list(self.recurrent_layers or ())
        if not layers or sorted(set(layers) & set(range(self.num_hidden_layers))) != sorted(layers):
            raise ValueError(
                f"`recurrent_layers`={layers} must name different layers of 0..{self.num_hidden_layers - 1}, at least one."
            )
        for name, choices in (("state_gate", STATE_GATES), ("state_update", STATE_UPDATES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}`={getattr(self, name)!r} must be one of {choices}.")

    def is_recurrent(self, layer_idx: int) -> bool:
        """Whether a layer has a state."""
        return layer_idx in (self.recurrent_layers or ())

    @property
    def layer_mem_lens(self) -> list[int]:
        """The window; in a recurrent layer also the open block, which its state is yet to read."""
        open_block = self.sliding_window - self.mem_len + self.block_length - 1
        layers = range(self.num_hidden_layers)
        return [self.mem_len + (open_block if self.is_recurrent(layer_idx) else 0) for layer_idx in layers]

    @property
    def layer_windows(self) -> list[int]:
        layers = enumerate(self.layer_mem_lens)
        return [mem_len + 1 if self.is_recurrent(layer_idx) else self.sliding_window for layer_idx, mem_len in layers]


__all__ = ["BlockRecurrentConfig"]
