"""Trainers that compute a language model's loss themselves, of `last_hidden_state` and `lm_head.weight`.

TRL's `add_fused_lm_head` puts a forward over the model's own, which calls the base model and multiplies by the weight of
the head a few words at a time. What the head does beside that product, and what its loss has beside the cross-entropy,
would be lost.
"""

from typing import Any

from transformers_xl.modeling.layers.adaptive_embedding import uses_adaptive_softmax
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


class OwnLoss(MemoryPreTrainedModel):
    """A head that is not called for that product where its loss is another."""

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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # here and not in `forward`, which TRL replaces
        if kwargs.get("fused_lm_head") and self.own_loss() is not None:
            raise ValueError(
                f"`fused_lm_head`=True asks for the loss of `last_hidden_state` and `lm_head.weight` alone, but the loss "
                f"of this {type(self).__name__} is {self.own_loss()}. Train it with `MemoryTrainer` or "
                "`transformers.Trainer`, or give TRL's trainer the `compute_loss` of `transformers.Trainer` "
                "(docs/peft_trl.md)."
            )
        return super().__call__(*args, **kwargs)


__all__ = ["OwnLoss"]
