"""Names of google-research/meliad, which has the authors' code of the Block-Recurrent and the Memorizing Transformer."""

import re
from collections.abc import Sequence

import torch

OTHER_POSITIONS = (None, "fourier", "nn", "rotary", "absolute")  # than T5's biases


def translated(tensors: dict[str, torch.Tensor], names: Sequence[tuple[str, str]]) -> dict[str, torch.Tensor]:
    """Tensors under our names, by `names` (expressions of theirs, and ours) in turn, maps as `(out, in)`."""
    ours = {}
    for name, tensor in tensors.items():
        tensor = tensor.T if name.endswith((".kernel", ".rel_embedding")) else tensor
        for theirs, here in names:
            name = re.sub(theirs, here, name)
        ours[name] = tensor
    return ours
