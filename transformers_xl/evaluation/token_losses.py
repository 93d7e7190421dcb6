"""What each token of a text costs, by any language model: how everything that scores a text asks a model."""

from typing import Any

import torch
from transformers import PreTrainedModel

from transformers_xl.modeling.heads import MemoryForCausalLM
from transformers_xl.modeling.layers.token_loss import cross_entropy_in_slices, token_cross_entropy
from transformers_xl.modeling.modeling_segment_memory import SegmentMemoryForCausalLM
from transformers_xl.modeling.pretrained.base_head import decoder_of, head_of_base


def losses_of_targets(
    model: PreTrainedModel, input_ids: torch.Tensor, targets: torch.Tensor, **kwargs: Any
) -> tuple[torch.Tensor, Any]:
    """`-log p` of each target, by a language model of this package or of transformers in evaluation, which makes logits of
    a few tokens at a time, and of none where there is no target.

    Args:
        model: the language model, in eval mode.
        input_ids: `(batch, length)`.
        targets: `(batch, length)`, what follows each token; -100: nothing is asked for.
        kwargs: more arguments of the model's call, such as its memory or its cache.

    Returns:
        Losses in nats `(batch, length)`, 0 where there is no target, in float32 at least; and the output of the model, or
        of its decoder, without logits of all tokens.
    """
    if isinstance(model, (MemoryForCausalLM, SegmentMemoryForCausalLM)):
        asked = {"shift_labels": targets, "logits_to_keep": 1, "output_token_losses": True}
        outputs = model(input_ids, **asked, **kwargs)
        return outputs.token_losses, outputs
    head = head_of_base(model)
    if head is None:
        outputs = model(input_ids, **kwargs)
        return token_cross_entropy(outputs.logits, targets), outputs
    outputs = decoder_of(model)(input_ids, **kwargs)
    size = model.config.get_text_config().vocab_size
    return cross_entropy_in_slices(head, outputs[0], targets, size), outputs


__all__ = ["losses_of_targets"]
