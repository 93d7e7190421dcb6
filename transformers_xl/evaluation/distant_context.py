"""What the loss of a token owes to the text further away than d tokens, and to its order.

Khandelwal et al., 2018, "Sharp Nearby, Fuzzy Far Away: How Neural Language Models Use Context",
https://arxiv.org/abs/1805.04623: the far part of the context is perturbed, the near part stays, and the loss rises by what
the model made of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from transformers_xl.data.segments import token_row
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.context_losses import longest_window, token_losses_with_context, window_losses
from transformers_xl.modeling.evaluating import evaluating

# text (tokens,), where a context begins and where its far part ends, a generator -> the far part as the model is given it
Perturbation = Callable[[np.ndarray, int, int, np.random.Generator], np.ndarray]


def shuffle(text: np.ndarray, start: int, stop: int, generator: np.random.Generator) -> np.ndarray:
    """The same tokens in any order."""
    return generator.permutation(text[start:stop])


def replace(text: np.ndarray, start: int, stop: int, generator: np.random.Generator) -> np.ndarray:
    """As many tokens from a random place of the text, that does not overlap with these where there is another."""
    length = stop - start
    starts = np.arange(len(text) - length + 1)
    elsewhere = starts[(starts + length <= start) | (starts >= stop)]
    place = int(generator.choice(elsewhere if len(elsewhere) else starts))
    return text[place : place + length]


PERTURBATIONS: dict[str, Perturbation] = {"shuffle": shuffle, "replace": replace}
KINDS = ("drop", *PERTURBATIONS)


@dataclass(frozen=True)
class DistantContext:
    """Losses of the same tokens, with the whole context and with a perturbed one.

    Attributes:
        whole: nats of each token `(positions,)`.
        perturbed: by kind of the perturbation and tokens that were left as they are, nats of each token `(positions,)`.
    """

    whole: np.ndarray
    perturbed: dict[str, dict[int, np.ndarray]]

    def added(self, kind: str, distance: int) -> tuple[float, float]:
        """Mean nats that a perturbation adds to a token, and the margin of its 95 % interval (normal, tokens taken for
        independent)."""
        differences = self.perturbed[kind][distance] - self.whole
        return float(differences.mean()), float(1.96 * differences.std(ddof=1) / len(differences) ** 0.5)


def distant_context(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    distances: list[int],
    context: int,
    positions: np.ndarray,
    batch_size: int = 32,
    seed: int = 0,
    progress: bool = False,
    beginning: Sequence[int] = (),
) -> DistantContext:
    """Predict tokens behind a context whose part further away than each of `distances` is dropped, shuffled, or replaced.

    Args:
        model: a causal language model, of this package or of transformers, left in the mode it comes in.
        ids: token ids of the text `(tokens,)`.
        distances: numbers of nearest tokens that stay as they are, each below `context`.
        context: tokens before each token that is predicted.
        positions: indices into `ids` of the tokens to predict `(positions,)`, at least two.
        batch_size: windows that are read side by side.
        seed: of the perturbations.
        progress: show a bar on stderr.
        beginning: ids that a text begins with, as [`~transformers_xl.data.text_beginning.beginning_of`] gives them:
            every window does, before the tokens of its context.

    Raises:
        ValueError: a distance is not 1 to `context` - 1, the model cannot read so long a context, or as
            [`~transformers_xl.evaluation.context_losses.token_losses_with_context`].
    """
    check_distances(distances, context)
    limit = longest_window(model)
    if limit is not None and context + len(beginning) > limit:
        raise ValueError(
            f"`context`={context} is more than the {limit - len(beginning)} tokens of a text that this model can read: "
            "give at most that."
        )
    lengths = [*distances, context]
    *dropped, whole = token_losses_with_context(model, ids, lengths, positions, batch_size, progress, beginning)
    text = TextStream(ids, 1, keep_tail=True).ids.astype(np.int64)
    begins = np.tile(token_row("beginning", beginning).astype(np.int64), (len(positions), 1))
    perturbed = {"drop": dict(zip(distances, dropped, strict=True))}
    for kind, perturb in PERTURBATIONS.items():
        perturbed[kind] = {}
        for distance in distances:
            generator = np.random.default_rng((seed, distance))
            windows = np.stack([_window(text, place, context, distance, perturb, generator) for place in positions])
            windows = np.concatenate([begins, windows], axis=1)
            perturbed[kind][distance] = _losses(
                model, windows, batch_size, f"{kind}, {distance}" if progress else None
            )
    return DistantContext(whole, perturbed)


def check_distances(distances: list[int], context: int) -> None:
    """Raise a `ValueError` where a distance leaves nothing near or nothing far."""
    if not distances or min(distances) < 1 or max(distances) >= context:
        raise ValueError(f"`distances`={list(distances)} must lie in 1..{context - 1}, below `context`={context}.")


def _window(
    text: np.ndarray, place: int, context: int, distance: int, perturb: Perturbation, generator: np.random.Generator
) -> np.ndarray:
    """The context of a token, its far part perturbed, and the token."""
    start, near = place - context, place - distance
    return np.concatenate([perturb(text, start, near, generator), text[near : place + 1]])


def _losses(model: PreTrainedModel, windows: np.ndarray, batch_size: int, told: str | None) -> np.ndarray:
    """Nats of the last token of each window `(windows,)`."""
    context = torch.tensor([windows.shape[1] - 1])
    losses = []
    with evaluating(model), torch.inference_mode():
        for first in tqdm(range(0, len(windows), batch_size), desc=told, disable=None if told else True):
            batch = torch.from_numpy(windows[first : first + batch_size]).to(model.device)
            losses.append(window_losses(model, batch, context)[:, 0].double().cpu())
    return torch.cat(losses).numpy()


__all__ = ["KINDS", "DistantContext", "check_distances", "distant_context"]
