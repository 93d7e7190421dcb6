"""Which bases can have a memory. What cannot is refused in a sentence that says what can."""

import inspect
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils import logging

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.modeling.pretrained.sinks import farthest
from transformers_xl.modeling.pretrained.token_bases import check_tokens_base, objection_to_tokens

logger = logging.get_logger(__name__)

WINDOWED_LAYERS = {"full_attention", "sliding_attention"}
WINDOWED_CACHES = {"DynamicLayer", "DynamicSlidingWindowLayer"}
WINDOWED_ATTENTION = ("eager", "sdpa", "flex_attention")
UNSTEADY_ROPE = {"dynamic", "longrope"}  # their angles follow from the longest position that was read
TABLED_ROPE = {"gptj", "codegen"}  # their angles stand in a table


def check_config(config: SegmentMemoryConfig) -> None:
    """Check what the configuration of a base says of it, and warn of a window that is longer than what it was trained for.

    Raises:
        ValueError: such a base cannot have this memory.
    """
    base = config.base_config
    objection = _is_no_language_model(base)
    if objection is None and config.kind == "window":
        objection = _has_no_window(base)
    if objection is not None:
        raise ValueError(f"`text_config` is a {base.model_type}, {objection}.")
    trained = getattr(base, "max_position_embeddings", None)
    if config.kind == "window" and trained is not None and farthest(config.num_sinks, config.mem_len) >= trained:
        sinks = f" with `num_sinks`={config.num_sinks}" if config.num_sinks else ""
        longest = trained - farthest(config.num_sinks, 1)
        instead = f" It does not with `mem_len` up to {longest}." if longest > 0 else ""
        logger.warning(
            f"`mem_len`={config.mem_len}{sinks} reaches further than what the base was trained for "
            f"(`max_position_embeddings`={trained}): its predictions get worse until it is fine-tuned with this window."
            f"{instead}"
        )


def _is_no_language_model(base: PreTrainedConfig) -> str | None:
    """Why no memory can be put around it at all."""
    is_encoder = base.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(base, "is_decoder", True)
    if base.is_encoder_decoder or is_encoder:
        return "an encoder: what can remember is a causal language model"
    if base.get_text_config() is not base:
        return "which reads more than text: take the language model in it, whose configuration is its `text_config`"
    if getattr(base, "output_router_logits", False):
        return (
            "with `output_router_logits`=True, whose loss needs masks that the memory does not have: set it to False"
        )
    return None


def in_place_of_a_window(base: PreTrainedConfig) -> str:
    """What to do where a base cannot have a window."""
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(base), None)
    has_tokens = model_class is None or objection_to_tokens(model_class, base) is None
    return "try `kind`='tokens'" if has_tokens else "use another base, it cannot have `kind`='tokens' either"


def _has_no_window(base: PreTrainedConfig) -> str | None:
    """Why its layers cannot remember a window."""
    instead = in_place_of_a_window(base)
    others = sorted(set(getattr(base, "layer_types", None) or ()) - WINDOWED_LAYERS)
    if others:
        return f"whose `layer_types` has {others[0]!r}, which remembers in its own way: {instead}"
    if getattr(base, "num_kv_shared_layers", 0):
        return f"whose last {base.num_kv_shared_layers} layers read the keys of others (`num_kv_shared_layers`): {instead}"
    unsteady = sorted(set(rope_types(base)) & UNSTEADY_ROPE)
    if unsteady:
        return (
            f"with `rope_type`={unsteady[0]!r}, whose angles change with the longest position that was read, so that keys "
            f"cannot be kept: set `rope_parameters` to another type, as 'yarn' or 'default', or {instead}"
        )
    if base.model_type == "beam":
        return f"whose queries are scaled by their position, so that the window cannot be moved back: {instead}"
    if base.model_type == "bloom" or getattr(base, "alibi", False) is True:
        return f"whose ALiBi biases follow from a mask of the whole text: {instead}"
    return None


def rope_types(base: PreTrainedConfig) -> list[str]:
    """The kinds of rotary positions of a base's layers."""
    parameters = getattr(base, "rope_parameters", None) or {}
    each = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return [part["rope_type"] for part in each if "rope_type" in part]


def table_of_positions(base: PreTrainedConfig) -> int | None:
    """Positions for which a base holds angles, and among which its scores depend on distances alone; None: all."""
    if base.model_type in TABLED_ROPE:
        return base.max_position_embeddings
    parameters = getattr(base, "rope_parameters", None) or {}
    # later queries are longer: Llama 4's scaling by position, which is 1 up to there
    return parameters.get("original_max_position_embeddings") if parameters.get("llama_4_scaling_beta") else None


def check_base(backbone: PreTrainedModel, config: SegmentMemoryConfig) -> None:
    """Check what a base is.

    Raises:
        ValueError: it cannot have this memory.
    """
    if config.kind == "tokens":
        check_tokens_base(backbone, config)
        return
    name, base = backbone.config.model_type, backbone.config
    instead = in_place_of_a_window(base)
    if "past_key_values" not in inspect.signature(backbone.forward).parameters:
        raise ValueError(f"`text_config` is a {name}, whose `forward` takes no `past_key_values`: {instead}.")
    if getattr(backbone, "_is_stateful", False):
        raise ValueError(f"`text_config` is a {name}, whose layers carry a state that no window holds: {instead}.")
    others = sorted({type(layer).__name__ for layer in DynamicCache(config=base).layers} - WINDOWED_CACHES)
    if others:
        raise ValueError(f"`text_config` is a {name}, whose layers remember in a {others[0]}, no window: {instead}.")
    tables = {path: module for path, module in backbone.named_modules() if _is_position_table(path, module)}
    if tables:
        path, table = next(iter(tables.items()))
        raise ValueError(
            f"`text_config` is a {name}, whose learned positions (`{path}`) end at {table.num_embeddings}: a window would "
            f"leave them, {instead}."
        )
    check_attention(base)


def check_attention(base: PreTrainedConfig) -> None:
    """Check that the attention of a base takes masks.

    Raises:
        ValueError: it takes none.
    """
    if base._attn_implementation not in WINDOWED_ATTENTION:
        raise ValueError(
            f"`attn_implementation`={base._attn_implementation!r} takes no mask of a window: load the base with one of "
            f"{WINDOWED_ATTENTION}, or {in_place_of_a_window(base)}."
        )


def _is_position_table(path: str, module: nn.Module) -> bool:
    """Whether a module holds a learned vector for every position."""
    name = path.rpartition(".")[2]
    return isinstance(module, nn.Embedding) and (name == "wpe" or "position" in name)


class PositionAngles:
    """The frequencies of rotary positions in a base, which a cast of the model casts too.

    `model.bfloat16()` rounds them, and positions are wrong from the first ones on; `from_pretrained(dtype=torch.bfloat16)`
    leaves them in float32.
    """

    def __init__(self, backbone: nn.Module):
        self.modules: tuple[Any, ...] = tuple(
            module for module in backbone.modules() if isinstance(getattr(module, "inv_freq", None), torch.Tensor)
        )

    def warn_of_cast(self) -> None:
        """Say once that they were cast."""
        for module in self.modules:
            if module.inv_freq.dtype.itemsize < 4:
                logger.warning_once(
                    f"The frequencies of the positions (`inv_freq`) are {module.inv_freq.dtype}: the model was cast, and "
                    "its positions are wrong. Load it with `from_pretrained(..., dtype=...)`, which leaves them in float32."
                )


__all__ = [
    "PositionAngles",
    "check_attention",
    "check_base",
    "check_config",
    "in_place_of_a_window",
    "rope_types",
    "table_of_positions",
]
