"""What a call shows of hidden states and attentions: each token where the caller put it, on the path of the gradient."""

from typing import NamedTuple

import torch

from transformers_xl.modeling.ops.window import gather_columns, inverse, right_align


class TokenOrder(NamedTuple):
    """How rows are packed, whose padding stands on the left while the layers run, and how they are unpacked again.

    Both are `(batch, length)`, or None where no row has padding.
    """

    pack: torch.Tensor | None = None
    unpack: torch.Tensor | None = None

    @classmethod
    def of(cls, segment_mask: torch.Tensor | None) -> "TokenOrder":
        """That of a segment's real tokens `(batch, length)`; None: all are real."""
        if segment_mask is None:
            return cls()
        pack = right_align(segment_mask)
        return cls(pack, inverse(pack))


def unpack_tokens(
    states: torch.Tensor, token_order: TokenOrder | None, dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed `states`, with the tokens in dimension `dim`, as the caller sees them, and as the model continues with them:
    made of what is shown, so that it has a gradient. Nothing is done where nobody asked (`token_order` is None)."""
    if token_order is None or token_order.pack is None:
        return states, states
    unpacked = gather_columns(states, token_order.unpack, dim)
    return unpacked, gather_columns(unpacked, token_order.pack, dim)
