"""Memory as a window: every layer keeps the keys and values of the last positions, and of the first ones (sinks).

    | sinks | the last mem_len - 1 positions | segment |

Attention sinks: Xiao et al., 2023, https://arxiv.org/abs/2309.17453. They are placed directly before the window,
however long ago the text began.
"""

import copy
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from transformers import Cache, PreTrainedConfig
from transformers.masking_utils import create_masks_for_generate
from transformers.utils import ModelOutput

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig, own_windows
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment
from transformers_xl.modeling.pretrained.backbone_cache import (
    BackboneLayer,
    KeyValueShape,
    key_value_shapes,
    written_by,
)
from transformers_xl.modeling.pretrained.memory_reader import MemoryReader, ModelAroundBase
from transformers_xl.modeling.pretrained.places import Places
from transformers_xl.modeling.pretrained.rotation import LayerRotation, measure_rotations
from transformers_xl.modeling.pretrained.sinks import SinkLayer, SinkPlan, farthest, moved_by
from transformers_xl.modeling.pretrained.supported_bases import (
    check_attention,
    in_place_of_a_window,
    table_of_positions,
)

LAST_POSITION = 2**15  # the float32 angles of later ones have visible errors
KEPT_MASKS = 4
ASKS: dict[type, bool] = {}  # whether the masks of a base ask a function what a token sees


class WindowReader(MemoryReader):
    """Gives the base a cache with the keys and values of the memory of its layers.

    The columns of a layer are keys and values `(B, H, C, D)`, its state those of the sinks; the state of the model says how
    many positions each row's text has been moved back, `(B,)`.
    """

    def __init__(self, config: SegmentMemoryConfig):
        super().__init__(config)
        self.shapes: list[KeyValueShape] | None = None
        self.rotations: list[LayerRotation] | None = None
        self.masks: dict[tuple, Any] = {}

    @property
    def num_sinks(self) -> int:
        return cast(int, self.config.num_sinks)

    @property
    def mem_len(self) -> int:
        return cast(int, self.config.mem_len)

    def new_memory(self, backbone: nn.Module, batch: int, counts: list[int], like: torch.Tensor) -> Memory:
        if self.shapes is None:
            self.shapes = key_value_shapes(written_by(backbone, 1, [0]))
        # in layers that do not see the sinks too: a shorter `mem_len` would let them
        layers = tuple(
            LayerMemory(
                shape.new_columns(batch, count, like),
                shape.new_columns(batch, self.num_sinks, like) if self.num_sinks > 0 else (),
            )
            for shape, count in zip(self.shapes, counts, strict=True)
        )
        none = torch.zeros(batch, dtype=torch.long, device=like.device)
        return Memory(layers, none, none, (none,))

    def read(
        self,
        model: ModelAroundBase,
        inputs_embeds: torch.Tensor,
        memory: Memory,
        call: Call,
        cache: MemoryCache | None,
        **kwargs: Any,
    ) -> tuple[ModelOutput, Memory]:
        length = inputs_embeds.shape[1]
        segment = Segment.of(memory.num_columns, memory.lengths, memory.tokens_read, length, call)
        memory, places = self.places(model.backbone, memory, segment)
        plan = self.sink_plan(model.backbone, segment, places)
        contexts = model.contexts(segment, memory, plan, cache, inputs_embeds)
        layers = self.layers(model.backbone, memory, contexts)
        mask = self.mask(model.backbone, inputs_embeds, places, layers)
        output = model.run_backbone(inputs_embeds, mask, places.position_ids, Cache(layers=[*layers]), **kwargs)
        after = tuple(layer.after for layer in layers)
        lengths = model.lengths_after(segment, max(context.keep for context in contexts))
        return output, Memory(after, lengths, segment.tokens_read_after(), (places.moved,))

    def layers(self, backbone: nn.Module, memory: Memory, contexts: list[LayerContext]) -> list[BackboneLayer]:
        """What the layers of the base take for their caches. The base's own window shows all sinks or none: it counts
        columns, and the copies of the sinks are columns."""
        plan: SinkPlan | None = contexts[0].plan
        moves = plan is not None and plan.shift is not None
        rotations = self.measured(backbone) if moves else [None] * len(contexts)
        layers = []
        own = own_windows(self.config.base_config)
        for past, context, window, rotation in zip(memory.layers, contexts, own, rotations, strict=True):
            if plan is None:
                layers.append(BackboneLayer(past, context, window is not None))
            else:
                is_seen = window is None or window > farthest(self.num_sinks, self.mem_len)
                here = plan if is_seen else plan.hidden()
                layers.append(SinkLayer(past, context, window is not None, here, rotation))
        return layers

    def sink_plan(self, backbone: nn.Module, segment: Segment, places: Places) -> SinkPlan | None:
        """What a call does with the sinks; None: the model has none."""
        if self.num_sinks == 0:
            return None
        plan = SinkPlan.of(segment, places, self.num_sinks, self.mem_len)
        turns = plan.shift is None or any(any(rotation) for rotation in self.measured(backbone))
        return plan if turns else plan.unmoved(self.num_sinks)

    def places(self, backbone: nn.Module, memory: Memory, segment: Segment) -> tuple[Memory, Places]:
        """The positions of the tokens. When they would become too large, the window is moved back to the first positions:
        its keys are rotated as if they had been read there."""
        (moved,) = memory.state
        places = Places.of(segment, moved)
        if self.num_sinks > 0 and places.longest_begun > self.mem_len:
            raise ValueError(
                f"A document of {places.longest_begun} tokens begins inside a call (`reset` of shape (batch, length), or "
                f"`position_ids` that start again). With `num_sinks`={self.num_sinks} it may have `mem_len`={self.mem_len} "
                "there: begin it with a new call and `reset` of shape (batch,), set a longer `mem_len`, or add the memory "
                "with `num_sinks`=0."
            )
        longest = farthest(self.num_sinks, self.mem_len) + segment.length
        if places.highest + segment.length <= self.last_position(longest):
            return memory, places
        shift = moved_by(places.before, self.num_sinks, self.mem_len)
        layers = tuple(
            layer._replace(columns=rotation(layer.columns, -shift))
            for layer, rotation in zip(memory.layers, self.measured(backbone), strict=True)
        )
        return memory._replace(layers=layers), Places.of(segment, moved + shift)

    def last_position(self, wanted: int) -> int:
        """The last position that is used before the window is moved back, for a call that needs `wanted` positions.

        Raises:
            ValueError: the base has fewer.
        """
        table = table_of_positions(self.config.base_config)
        if table is None:
            return max(LAST_POSITION, 2 * wanted)
        if wanted > table:
            raise ValueError(
                f"`mem_len`={self.config.mem_len} and this call need {wanted} positions, but the base has angles, or "
                f"scores that depend on distances alone, for only {table}: set a shorter `mem_len`, or make shorter calls."
            )
        return min(LAST_POSITION, table)

    def measured(self, backbone: nn.Module) -> list[LayerRotation]:
        """How the layers rotate their keys and values, measured once."""
        if self.rotations is None:
            self.rotations = measure_rotations(backbone, self.last_position(0) - 1)
        return self.rotations

    def mask(self, backbone: Any, inputs_embeds: torch.Tensor, places: Places, layers: list[BackboneLayer]) -> Any:
        """The attention mask of a segment in the form that the base takes, which may be one for each type of layer; None:
        the base makes its own, of causal attention in its own windows."""
        types = getattr(backbone.config, "layer_types", None)
        # those of a type are alike
        one_of: dict[Any, BackboneLayer] = (
            {None: layers[0]} if types is None else dict(zip(types, layers, strict=True))
        )
        seen = [(layer.context.segment, layer.num_before, layer.num_extra) for layer in one_of.values()]
        steps = [layer.step(places) for layer in one_of.values()]
        if None in steps or not all(segment.is_plain for segment, *_ in seen):
            return self.new_mask(backbone, inputs_embeds, places, one_of)
        length, windows = inputs_embeds.shape[1], [layer.context.window for layer in one_of.values()]
        sees_all = length == 1 and all(segment.first is segment.start for segment, *_ in seen)
        if sees_all or (length <= self.mem_len and not any(num_before for _, num_before, _ in seen)):
            return None
        sizes = [(window, *columns) for window, (_, *columns) in zip(windows, seen, strict=True)]
        key = (*sizes, length, *steps, inputs_embeds.dtype, inputs_embeds.device, backbone.config._attn_implementation)
        if key not in self.masks:
            mask = self.new_mask(backbone, inputs_embeds[:1], places, one_of)
            self.masks = {key: mask} if len(self.masks) >= KEPT_MASKS else self.masks | {key: mask}
        return self.masks[key]

    def new_mask(
        self, backbone: Any, inputs_embeds: torch.Tensor, places: Places, one_of: dict[Any, BackboneLayer]
    ) -> Any:
        """A new mask in the form that the base takes, with as many rows as `inputs_embeds`: one if all rows are alike."""
        masks: dict[Any, Any] = {}
        for layer_type, layer in one_of.items():
            mask = mask_of_base(
                backbone,
                config=config_of_masks(backbone.config, layer_type),
                inputs_embeds=inputs_embeds,
                attention_mask=None,
                past_key_values=Cache(layers=[layer]),
                position_ids=None,
                and_mask_function=layer.sees(places),
            )
            if not isinstance(mask, dict):
                return mask
            masks |= mask
        return masks


def config_of_masks(base: PreTrainedConfig, layer_type: str | None) -> PreTrainedConfig:
    """The config from which the base makes the mask of one type of its layers. What its tokens see is said for each, so its
    own window hides nothing more."""
    changed = copy.copy(base)
    if layer_type is not None:
        changed.layer_types = [layer_type]
    if getattr(base, "sliding_window", None) is not None:
        changed.sliding_window = sys.maxsize
    return changed


def mask_of_base(backbone: Any, **kwargs: Any) -> Any:
    """The mask that a base takes, made by its own `create_masks_for_generate` or else by transformers'.

    Raises:
        ValueError: the base takes no mask of a window.
    """
    check_attention(backbone.config)
    mask = mask_maker(backbone, kwargs)(**kwargs)
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        raise ValueError(
            f"`text_config` is a {backbone.config.model_type}, which takes no mask of a window: "
            f"{in_place_of_a_window(backbone.config)}."
        )
    if isinstance(mask, dict):
        return {name: within_float32(each) for name, each in mask.items()}
    return within_float32(mask)


def mask_maker(backbone: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
    """A base's own `create_masks_for_generate`, or transformers' where it has none, or one that does not ask the
    `and_mask_function` what a token sees."""
    own = getattr(backbone, "create_masks_for_generate", None)
    if own is None:
        return create_masks_for_generate
    if type(backbone) not in ASKS:
        asked: list[bool] = []

        def ask(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
            asked.append(True)
            return kv_idx <= q_idx

        config = copy.copy(kwargs["config"])
        config._attn_implementation = "eager"
        own(**(kwargs | {"and_mask_function": ask, "config": config}))
        ASKS[type(backbone)] = bool(asked)
    return own if ASKS[type(backbone)] else create_masks_for_generate


def within_float32(mask: Any) -> Any:
    """Clamp a float64 mask to the range of float32, in which a base may compute its softmax: a row of -inf there would
    give NaN."""
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.float64:
        return mask
    return mask.clamp(min=torch.finfo(torch.float32).min)


__all__ = ["WindowReader"]
