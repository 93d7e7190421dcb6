"""Rotary positions (Su et al., 2021, https://arxiv.org/abs/2104.09864) of any base, measured instead of read in its code.

A token that sees only itself has the same keys at every position but for the rotation: rows of one token, read at several
positions, show which features are rotated, in which layout, and how far per position.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from transformers_xl.modeling.pretrained.backbone_cache import written_by

NUM_TOKENS = 8  # different ones, so that no feature is zero in all of them
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2}


class FeaturePairs(NamedTuple):
    """Which features are rotated in pairs: `width` of them from `start` on; neighbours, or a feature and the one that
    stands half of the width after it."""

    start: int
    width: int
    are_neighbours: bool

    def slices(self) -> tuple[slice, slice]:
        """The first and the second features of all pairs."""
        end, half = self.start + self.width, self.width // 2
        if self.are_neighbours:
            return slice(self.start, end, 2), slice(self.start + 1, end, 2)
        return slice(self.start, self.start + half), slice(self.start + half, end)


class Rotation(NamedTuple):
    """How features turn from one position to the next: `angles` `(width / 2,)` float64, in radians."""

    pairs: FeaturePairs
    angles: torch.Tensor

    def __call__(self, features: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """`features` `(batch, heads, columns, dim)` as if their tokens stood `shift` positions later, `(batch,)` or
        `(batch, columns)`."""
        shift = shift.reshape(len(shift), 1, -1, 1).double()
        turn = (shift * self.angles.to(shift.device)).to(features.device)
        dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
        cos, sin = turn.cos().to(dtype), turn.sin().to(dtype)
        first, second = self.pairs.slices()
        x, y = features[..., first].to(dtype), features[..., second].to(dtype)
        rotated = features.clone()
        rotated[..., first] = (x * cos - y * sin).to(features.dtype)
        rotated[..., second] = (x * sin + y * cos).to(features.dtype)
        return rotated


class LayerRotation(NamedTuple):
    """Of what a layer hands to its cache; None: no position is in it. Latent attention turns its values."""

    keys: Rotation | None
    values: Rotation | None

    def __call__(self, tensors: Sequence[torch.Tensor], shift: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Keys and values `(batch, heads, columns, dim)` as if their tokens stood `shift` positions later, `(batch,)` or
        `(batch, columns)`."""
        return tuple(
            tensor if rotation is None else rotation(tensor, shift)
            for rotation, tensor in zip(self, tensors, strict=True)
        )


def measure_rotations(backbone: Any, last: int) -> list[LayerRotation]:
    """How each layer turns what it hands to a cache, measured at the powers of two up to position `last`.

    The angles of powers of two are exact in the float32 of a base, whatever the number of its frequency.

    Raises:
        ValueError: what differs between positions is no rotation.
    """
    positions = [0, *(2**power for power in range(max(last, 1).bit_length()))]
    written = written_by(backbone, NUM_TOKENS, positions)
    rotations: list[LayerRotation] = []
    tried: list[FeaturePairs] = []
    for layer, tensors in enumerate(written):
        measured = []
        for tensor in tensors:
            rotation = _measure(tensor.reshape(len(positions), -1, tensor.shape[-1]), positions, tried)
            if isinstance(rotation, float):
                raise ValueError(
                    f"The keys of layer {layer} at two positions are no rotation of each other (error {rotation:.1e} of "
                    "their size): positions that a base learned one by one cannot be moved. Use `kind`='tokens'."
                )
            measured.append(rotation)
            if rotation is not None and rotation.pairs not in tried:
                tried.insert(0, rotation.pairs)
        rotations.append(LayerRotation(*measured))
    return rotations


def _measure(features: torch.Tensor, positions: list[int], tried: list[FeaturePairs]) -> Rotation | float | None:
    """The rotation of `features` `(positions, vectors, dim)`; None: there is none; else how far they are from any.

    Args:
        tried: pairs of other layers, which come first.
    """
    tolerance = TOLERANCES[features.dtype]
    features = features.double()
    scale = float(features.abs().max()) or 1.0
    if float((features - features[:1]).abs().max()) < tolerance * scale:
        return None
    dim, best = features.shape[-1], float("inf")
    widths = range(dim - dim % 2, 1, -2)
    starts = [(0, width) for width in widths] + [(dim - width, width) for width in widths if width < dim]
    candidates = [FeaturePairs(*place, are_neighbours) for place in starts for are_neighbours in (False, True)]
    for pairs in [*(each for each in tried if each.start + each.width <= dim), *candidates]:
        rotation = Rotation(pairs, _angles(features, positions, pairs))
        turned = rotation(features[0].expand_as(features)[:, None], torch.tensor(positions, device=features.device))
        error = float((turned[:, 0] - features).abs().max()) / scale
        if error < 10 * tolerance:
            return rotation
        best = min(best, error)
    return best


def _angles(features: torch.Tensor, positions: list[int], pairs: FeaturePairs) -> torch.Tensor:
    """Radians per position of each pair, followed from one power of two to the next, since one turn looks like none."""
    first, second = pairs.slices()
    vectors = torch.complex(features[..., first].contiguous(), features[..., second].contiguous())
    turns = (vectors[1:] * vectors[:1].conj()).sum(dim=1).angle()
    total = turns[0]
    for turn in turns[1:]:
        total = 2 * total
        total = total + torch.remainder(turn - total + torch.pi, 2 * torch.pi) - torch.pi
    return total / positions[-1]


__all__ = ["FeaturePairs", "LayerRotation", "Rotation", "measure_rotations"]
