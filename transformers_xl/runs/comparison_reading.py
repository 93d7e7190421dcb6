"""How the models of a comparison read: the same bytes in training, each way with all of them predicted, and documents.

A step reads `lanes * segment` tokens. A model that carries something, a memory or a state, reads a segment of every lane,
and continues where its last step ended. One that carries nothing reads blocks of several segments, of a part of the lanes
in each step: after as many steps as a block has segments, it has read the same bytes as the others.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from transformers_xl.evaluation.token_losses import losses_of_targets
from transformers_xl.modeling.evaluating import evaluating
from transformers_xl.modeling.heads import MemoryForCausalLM

Batch = tuple[torch.Tensor, torch.Tensor, bool]
ROWS = 16  # documents, or tokens / `block` of them, that are read side by side


class Reading(ABC):
    """A way to read. `block` tokens are read in one call; `segment` is that of all models."""

    def __init__(self, block: int, segment: int):
        self.block, self.segment = block, segment

    @abstractmethod
    def loss(self, model: Any, ids: torch.Tensor, targets: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        """Nats per token of a batch in training, and the state that the next one is read with; None: nothing was read."""

    @abstractmethod
    def document_nats(self, model: Any, documents: list[np.ndarray]) -> np.ndarray:
        """The sum of nats of each document's tokens but its first, each read from its beginning `(documents,)`."""

    def batches(self, ids: np.ndarray, lanes: int) -> Iterator[Batch]:
        """Inputs and targets `(rows, block)`, and whether all lanes begin, without end: a text that ends begins again.

        Raises:
            ValueError: the text is too short for a block in each lane.
        """
        length = (len(ids) - 1) // lanes
        blocks, parts = length // self.block, self.block // self.segment
        if blocks < 1 or parts > lanes:
            raise ValueError(
                f"`texts.train` has {len(ids):,} tokens, too few for `batch_size`={lanes} lanes with blocks of "
                f"{self.block} tokens, or the lanes are too few: give a longer text, or shorter blocks."
            )
        starts = np.arange(lanes) * length
        while True:
            for block in range(blocks):
                for rows in np.array_split(starts, parts):
                    columns = (rows + block * self.block)[:, None] + np.arange(self.block)
                    inputs, targets = (
                        torch.from_numpy(ids[places].astype(np.int64)) for places in (columns, columns + 1)
                    )
                    yield inputs, targets, block == 0


class CarriedReading(Reading):
    """Segments, each with what the model made of those before it."""

    @abstractmethod
    def token_losses(self, model: Any, ids: torch.Tensor, targets: torch.Tensor, state: Any) -> tuple[Any, Any]:
        """Nats of each token `(rows, block)` in evaluation, and the next state."""

    def document_nats(self, model: Any, documents: list[np.ndarray]) -> np.ndarray:
        nats = np.zeros(len(documents))
        by_length = sorted(range(len(documents)), key=lambda index: len(documents[index]))
        with evaluating(model), torch.inference_mode():
            for first in range(0, len(by_length), ROWS):
                rows = by_length[first : first + ROWS]  # about equally long: padding is little, and after all tokens
                ids, targets = padded([documents[row] for row in rows])
                state = None
                for at in range(0, ids.shape[1], self.block):
                    here = slice(at, at + self.block)
                    inputs, wanted = (each[:, here].to(model.device) for each in (ids, targets))
                    losses, state = self.token_losses(model, inputs, wanted, state)
                    nats[rows] += losses.double().sum(1).cpu().numpy()
        return nats


class MemoryReading(CarriedReading):
    """By a model of this package: what it carries is its memory."""

    def loss(self, model: Any, ids: torch.Tensor, targets: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        remembered = {} if state is None else {"mems": state}
        outputs = model(ids, **labels(model, ids, targets), **remembered)
        return outputs.loss, outputs.mems

    def token_losses(self, model: Any, ids: torch.Tensor, targets: torch.Tensor, state: Any) -> tuple[Any, Any]:
        losses, outputs = losses_of_targets(model, ids, targets, past_key_values=state, use_cache=True)
        return losses, outputs.past_key_values


class StateReading(CarriedReading):
    """By a recurrent model of transformers: what it carries is its cache, without gradients into it."""

    def loss(self, model: Any, ids: torch.Tensor, targets: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        state = DynamicCache(config=model.config) if state is None else state
        outputs = model(ids, **labels(model, ids, targets), cache_params=state, use_cache=True)
        return outputs.loss, detached(outputs.cache_params)

    def token_losses(self, model: Any, ids: torch.Tensor, targets: torch.Tensor, state: Any) -> tuple[Any, Any]:
        state = DynamicCache(config=model.config) if state is None else state
        losses, outputs = losses_of_targets(model, ids, targets, cache_params=state, use_cache=True)
        return losses, outputs.cache_params


class BlockReading(Reading):
    """Blocks, of which all is predicted in training. A document is read in blocks that overlap: a segment, at most half a
    block, is predicted after the rest of the block, which is read again."""

    def loss(self, model: Any, ids: torch.Tensor, targets: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        return model(ids, **labels(model, ids, targets), use_cache=False).loss, None

    def document_nats(self, model: Any, documents: list[np.ndarray]) -> np.ndarray:
        nats = np.zeros(len(documents))
        windows = [(index, *each) for index, text in enumerate(documents) for each in self._windows(len(text))]
        with evaluating(model), torch.inference_mode():
            for first in range(0, len(windows), ROWS):
                owners, begins, scored = zip(*windows[first : first + ROWS], strict=True)
                texts = [documents[index][at : at + self.block + 1] for index, at in zip(owners, begins, strict=True)]
                ids, targets = padded(texts, self.block)
                for row, start in enumerate(scored):
                    targets[row, :start] = -100
                losses, _ = losses_of_targets(model, ids.to(model.device), targets.to(model.device), use_cache=False)
                np.add.at(nats, list(owners), losses.double().sum(1).cpu().numpy())
        return nats

    def _windows(self, tokens: int) -> Iterator[tuple[int, int]]:
        """Where each block of a document begins, and from which of its tokens on targets count."""
        new = min(self.segment, max(1, self.block // 2))
        yield 0, 0
        for at in range(self.block, tokens - 1, new):
            yield at + new - self.block, self.block - new


def labels(model: Any, ids: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
    """What a model is asked for its loss with. One of this package then makes logits of a few tokens at a time."""
    few = {"logits_to_keep": 1} if isinstance(model, MemoryForCausalLM) else {"labels": ids}
    return {"shift_labels": targets} | few


def padded(texts: list[np.ndarray], length: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of texts `(texts, length)`, the longest text's when not given: padding stands after all tokens,
    where no causal model sees it from, and has no targets."""
    length = max(len(text) for text in texts) - 1 if length is None else length
    ids, targets = torch.zeros(len(texts), length, dtype=torch.long), torch.full((len(texts), length), -100)
    for row, text in enumerate(texts):
        tokens = torch.from_numpy(np.asarray(text, dtype=np.int64))
        ids[row, : len(text) - 1], targets[row, : len(text) - 1] = tokens[:-1], tokens[1:]
    return ids, targets


def detached(cache: Any) -> Any:
    """The same cache, whose states have no gradients and share nothing with the last call."""
    for layer in cache.layers:
        for states in (layer.conv_states, layer.recurrent_states):
            states |= {index: state.detach().clone() for index, state in states.items() if state is not None}
    return cache


__all__ = ["BlockReading", "MemoryReading", "Reading", "StateReading", "detached", "padded"]
