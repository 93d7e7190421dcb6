"""Which bases can read memory tokens, and what the tokens of a trained base start from."""

import inspect
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.modeling.pretrained.base_head import decoder_of

logger = logging.get_logger(__name__)

NUM_MEASURED = 64  # tokens
# where little comes of their Mamba layers, as at the start of a training, a trial would not show it
READ_ANEW = {"jamba", "zamba"}


def objection_to_tokens(model_class: type[nn.Module], base: PreTrainedConfig) -> str | None:
    """Why models of this class cannot read memory tokens, if so."""
    arguments = inspect.signature(model_class.forward).parameters
    for argument, lacks in (("inputs_embeds", "reads no embeddings"), ("past_key_values", "has no such cache")):
        if argument not in arguments:
            return f"whose `forward` takes no `{argument}` and {lacks}, which `kind`='tokens' needs"
    if base.model_type in READ_ANEW:
        return "whose Mamba layers read several tokens as a new text, whatever their cache holds"
    if getattr(base, "hidden_size_per_layer_input", 0):
        return "whose layers also read the ids of tokens, which memory tokens have not"
    return None


def check_tokens_base(backbone: PreTrainedModel, config: SegmentMemoryConfig) -> None:
    """Check that a base can read `[memory tokens; segment; memory tokens]` as embeddings.

    Raises:
        ValueError: it cannot, or not so many.
    """
    objection = objection_to_tokens(type(backbone), config.base_config)
    if objection is not None:
        raise ValueError(f"`text_config` is a {config.base_config.model_type}, {objection}: use another base.")
    check_length(backbone, config)


def check_length(backbone: PreTrainedModel, config: SegmentMemoryConfig) -> None:
    """Check that a segment between its memory tokens has room in the positions of the base; warn where it was not trained
    for so many.

    Raises:
        ValueError: positions are learned and there are not so many, or they turn otherwise beyond so many.
    """
    length = 2 * config.num_memory_tokens + config.segment_length
    asked = (
        f"`segment_length`={config.segment_length} and `num_memory_tokens`={config.num_memory_tokens} on both sides make "
        f"{length} positions"
    )
    trained = getattr(config.text_config, "max_position_embeddings", None)
    embedding = backbone.get_input_embeddings()
    learned = [
        module.num_embeddings
        for module in decoder_of(backbone).modules()
        if isinstance(module, nn.Embedding) and module is not embedding
    ]
    angles = [len(buffer) for path, buffer in backbone.named_buffers() if path.endswith("embed_positions")]
    if trained is not None and length > trained and any(size >= trained for size in (*learned, *angles)):
        raise ValueError(f"{asked}, and `text_config` has a table of {trained}: shorten the segment.")
    for rope in rope_parameters(config.text_config):
        original = rope.get("original_max_position_embeddings") or trained
        if rope.get("rope_type") in ("dynamic", "longrope") and original is not None and length > original:
            raise ValueError(
                f"{asked}, and beyond {original} the angles of `rope_type`={rope['rope_type']!r} depend on the longest "
                "position of a call: shorten the segment."
            )
    if trained is not None and length > trained:
        logger.warning(
            f"{asked}, and the base was trained for {trained}: its predictions get worse until it is fine-tuned."
        )


def rope_parameters(text_config: Any) -> list[dict[str, Any]]:
    """What a configuration says of rotary positions, of each type of layer."""
    parameters = getattr(text_config, "rope_parameters", None) or {}
    nested = [each for each in parameters.values() if isinstance(each, dict)]
    return nested or [parameters]


@torch.no_grad()
def measured_start(backbone: PreTrainedModel) -> dict[str, float]:
    """Fields of [`SegmentMemoryConfig`] by which memory tokens start as large as embeddings, and written ones become so."""
    embedding = backbone.get_input_embeddings()
    weight = cast(torch.Tensor, embedding.weight)
    num_words = weight.shape[0]
    count = min(NUM_MEASURED, num_words)
    ids = torch.arange(count, device=weight.device) * (num_words // count)
    embeds = embedding(ids[None])
    hidden_states = decoder_of(backbone)(inputs_embeds=embeds, use_cache=False)[0]
    embeds, hidden_states = embeds.double(), hidden_states.double()
    return {
        "memory_initializer_range": float(embeds.std()),
        "memory_scale": float(embeds.square().mean().sqrt() / hidden_states.square().mean().sqrt()),
    }


__all__ = ["check_tokens_base", "measured_start", "objection_to_tokens"]
