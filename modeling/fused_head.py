"""Trainers that compute a language model's loss themselves, of `last_hidden_state` and `lm_head.weight`.

TRL's `add_fused_lm_head` puts a forward over the model's own, which calls the base model and multiplies by the weight of
the head a few words at a time. What the head does beside that product, and what its loss has beside the cross-entropy,
would be lost.
"""

from typing import Any

from transformers_xl.modeling.layers.adaptive_embedding import uses_adaptive_softmax
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


def is_fused_forward(value: Any) -> bool:
    """Whether `value` is such a forward: it takes `fused_lm_head`."""
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    return code is not None and "fused_lm_head" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


class OwnLoss(MemoryPreTrainedModel):
    """A head that keeps its forward where its loss is not the cross-entropy of that product."""

    model: MemoryModel

    def own_loss(self) -> str | None:
        """What the training loss is, in words, where it is not the cross-entropy of `last_hidden_state @
        lm_head.weight.T + lm_head.bias`; else None."""
        if uses_adaptive_softmax(self.config):
            return "that of an adaptive softmax (`cutoffs`, `div_val`, `embedding_size`)"
        field = self.model.auxiliary_loss_coef
        if field is not None and getattr(self.config, field) > 0:
            return f"the cross-entropy and an auxiliary loss (`{field}`={getattr(self.config, field)})"
        return None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward" and is_fused_forward(value) and self.own_loss() is not None:
            return  # ours stays, and refuses to be called with `fused_lm_head`
        super().__setattr__(name, value)

    def check_fused_head(self, fused_lm_head: bool) -> None:
        """Refuse a call that asks for the loss of the product alone."""
        if fused_lm_head:
            raise ValueError(
                f"`fused_lm_head`=True asks for the loss of `last_hidden_state` and `lm_head.weight` alone, but the loss "
                f"of this {type(self).__name__} is {self.own_loss()}. Train it with `MemoryTrainer` or "
                "`transformers.Trainer`, or give TRL's trainer the `compute_loss` of `transformers.Trainer` "
                "(docs/peft_trl.md)."
            )


__all__ = ["OwnLoss", "is_fused_forward"]
