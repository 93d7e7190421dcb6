"""A text read in segments, each with the memory of those before: how the pictures of a model look at it."""

import inspect
from collections.abc import Iterator

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from transformers_xl.data.text_stream import TextStream
from transformers_xl.modeling.evaluating import evaluating
from transformers_xl.modeling.memory.memory_value import Memory


def read_in_segments(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    segment_length: int | None = None,
    progress: bool = False,
    **kwargs,
) -> Iterator[tuple[int, ModelOutput]]:
    """Read a text as one row, without gradients, and hand out each segment's first position and the model's output.

    A model of this package reads a segment with the `mems` of those before, any other each segment on its own. Hooks on its
    modules see all positions of all segments, once.

    Args:
        model: any model that reads token ids, left in the mode (training or not) it comes in.
        ids: token ids of the text `(tokens,)`.
        segment_length: tokens per segment; `config.segment_length` when not given.
        progress: show a bar on stderr.
        kwargs: further arguments of every call.

    Raises:
        ValueError: `ids` is too short or not one row of integers, or there is no `segment_length` of at least 1.
    """
    segment_length = getattr(model.config, "segment_length", None) if segment_length is None else segment_length
    if segment_length is None:
        name = type(model).__name__
        raise ValueError(f"`segment_length`=None: the config of {name} has none, so give the tokens that it reads.")
    TextStream(ids, segment_length, keep_tail=True)  # refuses what is no text
    tokens = torch.from_numpy(np.asarray(ids).astype(np.int64))[None]
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        kwargs = {"logits_to_keep": 1} | kwargs  # nobody asks for predictions
    with evaluating(model):
        starts = range(0, tokens.shape[1], segment_length)
        for start in tqdm(starts, desc="reading", disable=None if progress else True):
            segment = tokens[:, start : start + segment_length].to(model.device)
            with torch.no_grad():
                output = model(segment, use_cache=False, **kwargs)
            if isinstance(output.get("mems"), Memory):
                kwargs["mems"] = output.mems
            yield start, output


__all__ = ["read_in_segments"]
