"""The loss of a token given exactly its c preceding tokens: the text is cut there, not the memory."""

from collections.abc import Sequence

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from transformers_xl.data.segments import token_row
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.token_losses import losses_of_targets
from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.modeling.evaluating import evaluating


def longest_window(model: PreTrainedModel) -> int | None:
    """The tokens that a model can read in one call, or None where positions do not bound it."""
    variant = VARIANTS.get(model.config.model_type)
    if variant is not None:
        return model.config.segment_length if variant.memory == "none" else None
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def spread_positions(
    tokens: int, longest: int, spacing: int = 1, blocks: int = 16, per_block: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens to measure, in blocks that are spread evenly over a text.

    Args:
        tokens: length of the text.
        longest: tokens that stand before every position.
        spacing: tokens from one position of a block to the next, less in a short text. With the distance of the contexts
            that are to be measured, most windows serve many positions.
        blocks: number of blocks.
        per_block: positions in each.

    Returns:
        Positions `(blocks * per_block,)` and the block of each.

    Raises:
        ValueError: the text is too short, or a number below 1.
    """
    for name, value in (("blocks", blocks), ("per_block", per_block), ("spacing", spacing), ("longest", longest)):
        if value < 1:
            raise ValueError(f"`{name}`={value} must be at least 1.")
    room = (tokens - longest) // blocks
    if room < per_block:
        raise ValueError(
            f"the text has {tokens} tokens, too short for {blocks * per_block} positions after a context of {longest}: at "
            f"least {longest + blocks * per_block} are needed. Use a longer text, fewer positions or a shorter context."
        )
    starts = longest + room * np.arange(blocks)
    positions = starts[:, None] + min(spacing, room // per_block) * np.arange(per_block)
    return positions.ravel(), np.repeat(np.arange(blocks), per_block)


def token_losses_with_context(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    lengths: list[int],
    positions: np.ndarray,
    batch_size: int = 32,
    progress: bool = False,
    beginning: Sequence[int] = (),
) -> np.ndarray:
    """Nats of the tokens at `positions`, given exactly their `lengths` preceding tokens and nothing else.

    One window gives the losses of all tokens in it, each with the context from the window's start on: positions whose
    distance is that of the lengths share most of their windows. A model that sees the same however a text is cut reads
    long windows in pieces, through its memory. A model that cannot read as many tokens as are given reads the nearest.

    Args:
        model: a causal language model, of this package or of transformers, left in the mode it comes in.
        ids: token ids of the text `(tokens,)`.
        lengths: context lengths in tokens.
        positions: indices into `ids` `(positions,)`, none below the longest context.
        batch_size: windows that are read side by side.
        progress: show a bar on stderr.
        beginning: ids that a text begins with, as [`~transformers_xl.data.text_beginning.beginning_of`] gives them:
            every window does, before the tokens of its context.

    Returns:
        Nats `(lengths, positions)`, float64.

    Raises:
        ValueError: `ids` is not one row of integers, a length or `batch_size` is below 1, or a position has too little
            before it; or a result is NaN or infinite.
    """
    text = torch.as_tensor(TextStream(ids, 1, keep_tail=True).ids.astype(np.int64))
    contexts, places = np.asarray(lengths, dtype=np.int64), np.asarray(positions, dtype=np.int64)
    if contexts.size == 0 or contexts.min() < 1 or batch_size < 1:
        raise ValueError(f"`lengths`={list(lengths)} and `batch_size`={batch_size} must be at least 1.")
    if places.size == 0 or places.min() < contexts.max() or places.max() >= len(text):
        raise ValueError(
            f"`positions` must lie in {contexts.max()}..{len(text) - 1}: the longest context of `lengths` stands before "
            f"each, and `ids` has {len(text)} tokens."
        )
    begin, limit = torch.from_numpy(token_row("beginning", beginning).astype(np.int64)), longest_window(model)
    read = contexts if limit is None else np.minimum(contexts, limit - len(begin))
    ends, end_of_length = np.unique(read, return_inverse=True)
    starts, window_of_pair = np.unique(places - read[:, None], return_inverse=True)
    window_of_pair = window_of_pair.reshape(len(read), len(places))
    longest = np.zeros(len(starts), dtype=np.int64)
    np.maximum.at(longest, window_of_pair, np.broadcast_to(read[:, None], window_of_pair.shape))

    losses = np.empty((len(starts), len(ends)))
    by_length = np.argsort(-longest, kind="stable")  # windows of a batch are about equally long
    with evaluating(model), torch.inference_mode():
        batches = range(0, len(starts), batch_size)
        for first in tqdm(batches, desc="reading windows", disable=None if progress else True):
            rows = by_length[first : first + batch_size]
            inside = ends[ends <= longest[rows[0]]]
            columns = torch.arange(longest[rows[0]] + 1)
            # after the text's end stands its last token again, which nothing that is asked for sees
            places_read = (torch.from_numpy(starts[rows])[:, None] + columns).clamp(max=len(text) - 1)
            windows = torch.cat([begin.expand(len(rows), -1), text[places_read]], dim=1).to(model.device)
            found = window_losses(model, windows, torch.from_numpy(inside) + len(begin))
            losses[rows, : len(inside)] = found.double().cpu().numpy()
    nats = losses[window_of_pair, end_of_length[:, None]]
    if not np.isfinite(nats).all():
        raise ValueError("The model predicts the text with NaN or infinite nats: its weights are unusable.")
    return nats


def window_losses(model: PreTrainedModel, windows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Nats `(batch, ends)` of the tokens of `windows` that stand after the first `ends` tokens."""
    length = windows.shape[1] - 1
    piece = _piece(model) or length
    memory: dict = {"use_cache": piece < length}
    losses = []
    for start in range(0, length, piece):
        stop = min(start + piece, length)
        here = ends[(ends > start) & (ends <= stop)]
        asked = here.to(windows.device)
        targets = torch.full_like(windows[:, start:stop], -100)
        targets[:, asked - start - 1] = windows[:, asked]
        found, outputs = losses_of_targets(model, windows[:, start:stop], targets, **memory)
        if memory["use_cache"]:
            memory["past_key_values"] = outputs.past_key_values
        losses.append(found[:, asked - start - 1])
    return torch.cat(losses, dim=1)


def _piece(model: PreTrainedModel) -> int | None:
    """Tokens to read at a time where segments with memory are exactly one long text; None: all at once."""
    variant, config = VARIANTS.get(model.config.model_type), model.config
    if variant is None or variant.memory != "exact" or not config.same_length or config.mem_len == 0:
        return None
    return max(config.segment_length, min(config.mem_len, 256))  # measured: less and more are slower


__all__ = ["longest_window", "spread_positions", "token_losses_with_context", "window_losses"]
