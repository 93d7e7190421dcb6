"""Configuration of the Block-Recurrent Transformer (Hutchins et al., 2022, https://arxiv.org/abs/2203.07852)."""

from typing import Any

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_local_attention import LocalAttentionConfig
from transformers_xl.configuration.derived_fields import NOT_GIVEN, Derived

STATE_GATES = ("fixed", "lstm")
STATE_UPDATES = ("skip", "single", "dual")


@strict
class BlockRecurrentConfig(LocalAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Block-Recurrent Transformer. Further fields are those of [`LocalAttentionConfig`] and
    [`AdaptiveSoftmaxConfig`].

    Args:
        block_length (`int`, *optional*, defaults to 512):
            Tokens in a block (W in the paper). The state is updated once at the end of each block.
        num_states (`int`, *optional*, defaults to 512):
            Number of vectors in the state (S in the paper).
        recurrent_layers (`list[int]`, *optional*):
            Indices of the layers with a state, counted from 0. When not given: one layer at three quarters of the depth (in
            the paper the tenth of twelve).
        state_gate (`str`, *optional*, defaults to `"fixed"`):
            How an update is mixed into the state: `"fixed"`, by a learned constant per feature; `"lstm"`, by an input gate
            and a forget gate that depend on the input of the update.
        state_update (`str`, *optional*, defaults to `"skip"`):
            Sub-layers of an update: `"dual"`, attention and feed-forward, each with a gate; `"single"`, both with one gate
            after the feed-forward; `"skip"`, attention and a gate without a feed-forward.
        feedback (`bool`, *optional*, defaults to `False`):
            Whether the other layers also attend to the state of the last recurrent layer. The model then runs a call block
            by block.
        segment_length (`int`, *optional*, defaults to 4096):
            Tokens in a training segment. The state update learns only from later blocks of the same segment, so that a
            segment should hold several blocks.
    """

    model_type = "block_recurrent"

    block_length: int = 512
    num_states: int = 512
    recurrent_layers: Derived[list[int] | tuple[int, ...]] = NOT_GIVEN
    state_gate: str = "fixed"
    state_update: str = "skip"
    feedback: bool = False
    segment_length: int = 4096

    def __post_init__(self, **kwargs: Any):
        num_layers = kwargs.get("n_layer", self.num_hidden_layers)
        if self.recurrent_layers is not None:
            self.recurrent_layers = list(self.recurrent_layers)
        elif isinstance(num_layers, int):  # else the base class names the field and its type
            self.recurrent_layers = [3 * num_layers // 4]
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        super().validate_architecture()
        for name in ("block_length", "num_states"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 1.")
        layers = list(self.recurrent_layers or ())
        if not layers or sorted(set(layers) & set(range(self.num_hidden_layers))) != sorted(layers):
            raise ValueError(
                f"`recurrent_layers`={layers} must list at least one layer of 0..{self.num_hidden_layers - 1}, each once."
            )
        for name, choices in (("state_gate", STATE_GATES), ("state_update", STATE_UPDATES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}`={getattr(self, name)!r} must be one of {choices}.")

    def is_recurrent(self, layer_idx: int) -> bool:
        """Whether a layer has a state."""
        return layer_idx in (self.recurrent_layers or ())

    @property
    def layer_mem_lens(self) -> list[int]:
        """The window. A recurrent layer also keeps the open block, which the next update of its state reads."""
        open_block = self.sliding_window - self.mem_len + self.block_length - 1
        layers = range(self.num_hidden_layers)
        return [self.mem_len + (open_block if self.is_recurrent(layer_idx) else 0) for layer_idx in layers]


__all__ = ["BlockRecurrentConfig"]
