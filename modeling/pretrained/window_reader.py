"""Memory as a window: every layer keeps the keys and values of the last positions, and of the first ones (sinks).

    | sinks | the last mem_len - 1 positions | segment |

Attention sinks: Xiao et al., 2023, https://arxiv.org/abs/2309.17453. They are placed directly before the window,
however long ago the text began.
"""

import copy
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers import Cache, PreTrainedConfig
from transformers.masking_utils import create_masks_for_generate
from transformers.utils import ModelOutput

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig, own_windows
from transformers_xl.modeling.memory.key_value_memory import KeyValueMemory, KeyValueShape, SinkMemory
from transformers_xl.modeling.memory.layer_memory import LayerMemory
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.position_memory import PositionMemory
from transformers_xl.modeling.ops.key_mask import KeyMask
from transformers_xl.modeling.ops.window import SegmentPacking
from transformers_xl.modeling.pretrained.backbone_cache import BackboneLayer, key_value_shapes, written_by
from transformers_xl.modeling.pretrained.memory_reader import MemoryReader, RunBackbone
from transformers_xl.modeling.pretrained.places import Places, nearest_and_sinks, nearest_of_document
from transformers_xl.modeling.pretrained.rotation import LayerRotation, measure_rotations
from transformers_xl.modeling.pretrained.sinks import SinkPlan, SinkReader, WindowAndSinks, farthest, moved_by
from transformers_xl.modeling.pretrained.supported_bases import (
    check_attention,
    in_place_of_a_window,
    table_of_positions,
)

LAST_POSITION = 2**15  # the float32 angles of later ones have visible errors
KEPT_MASKS = 4


class WindowLayerMemory(NamedTuple):
    """The memory of a layer without sinks."""

    window: KeyValueMemory


class WindowPosition(NamedTuple):
    """The memory of the model itself."""

    next_position: PositionMemory


class WindowReader(MemoryReader):
    """Gives the base a cache with the keys and values of the memory of its layers."""

    def __init__(self, config: SegmentMemoryConfig):
        super().__init__(config)
        self.shapes: list[KeyValueShape] | None = None
        self.rotations: list[LayerRotation] | None = None
        self.masks: dict[tuple, Any] = {}

    def layer_memories(self, backbone: nn.Module) -> list[LayerMemory]:
        if self.shapes is None:
            self.shapes = key_value_shapes(written_by(backbone, 1, [0]))
        num_sinks = self.config.num_sinks
        windows = [KeyValueMemory(*each) for each in zip(self.shapes, self.config.layer_windows, strict=True)]
        if num_sinks == 0:
            return [WindowLayerMemory(window) for window in windows]
        # in layers that do not see them too: a shorter `mem_len` would let them
        return [WindowAndSinks(window, SinkMemory((num_sinks, window.width))) for window in windows]

    def own_memories(self, backbone: nn.Module) -> LayerMemory:
        return WindowPosition(PositionMemory())

    def read(
        self,
        backbone: nn.Module,
        run: RunBackbone,
        inputs_embeds: torch.Tensor,
        segment_mask: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        memory: ModelMemory,
        **kwargs: Any,
    ) -> ModelOutput:
        packing = memory.open(inputs_embeds, segment_mask, document_ids)
        places = self.places(backbone, memory, packing)
        memory.own.next_position.write(places.after)
        for window in memory.windows:
            window.key_mask = KeyMask(order=packing.rows(window.num_seen).order)
        plan = self.sink_plan(backbone, places)
        views = self.views(memory, plan)
        rotations: list[Any] = [None] * len(views)
        if plan is not None and plan.shift is not None:
            rotations = self.measured(backbone)
        layers: list[Any] = [
            BackboneLayer(reader_of(layer, view.plan, rotation), view.num_before, own is not None)
            for layer, view, rotation, own in zip(
                memory.layers, views, rotations, own_windows(self.config.base_config), strict=True
            )
        ]
        mask = self.mask(backbone, inputs_embeds, packing, places, [*zip(views, layers, strict=True)])
        return run(inputs_embeds, mask, places.position_ids, Cache(layers=layers), **kwargs)

    def views(self, memory: ModelMemory, plan: SinkPlan | None) -> list["LayerView"]:
        """What tokens see in each layer. The base's own window shows all sinks or none: it counts columns, and the
        copies of the sinks are columns."""
        reach = farthest(cast(int, self.config.num_sinks), cast(int, self.config.mem_len))
        plans = [
            plan if plan is None or own is None or own > reach else plan.hidden()
            for own in own_windows(self.config.base_config)
        ]
        return [
            LayerView(layer.window.sliding_window, layer.window.num_seen, each)
            for layer, each in zip(memory.layers, plans, strict=True)
        ]

    def sink_plan(self, backbone: nn.Module, places: Places) -> SinkPlan | None:
        """What a call does with the sinks; None: the model has none."""
        num_sinks = cast(int, self.config.num_sinks)
        if num_sinks == 0:
            return None
        plan = SinkPlan.of(places, num_sinks, self.config.mem_len)
        turns = plan.shift is None or any(any(rotation) for rotation in self.measured(backbone))
        return plan if turns else plan.unmoved(num_sinks)

    def places(self, backbone: nn.Module, memory: ModelMemory, packing: SegmentPacking) -> Places:
        """The positions of the tokens. When they would become too large, the window is moved back to the first positions:
        its keys are rotated as if they had been read there."""
        places = Places.of(memory.own.next_position.read(), packing)
        if self.config.num_sinks > 0 and (longest := places.longest_begun()) > self.config.mem_len:
            raise ValueError(
                f"A document of {longest} tokens begins inside a call (`reset` of shape (batch, length), or `position_ids` "
                f"that start again). With `num_sinks`={self.config.num_sinks} it may have `mem_len`={self.config.mem_len} "
                "there: begin it with a new call and `reset` of shape (batch,), set a longer `mem_len`, or add the memory "
                "with `num_sinks`=0."
            )
        memory_of = self.config.num_sinks, self.config.mem_len
        if places.highest + packing.length <= self.last_position(farthest(*memory_of) + packing.length):
            return places
        shift = moved_by(places.before, *memory_of)
        for layer, rotation in zip(memory.layers, self.measured(backbone), strict=True):
            layer.window.turn(rotation, -shift)
        return Places.of(places.before - shift, packing)

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
                f"`mem_len`={self.config.mem_len} and this call need {wanted} positions, and the base has the angles of "
                f"{table}: set a shorter `mem_len`, or make shorter calls."
            )
        return min(LAST_POSITION, table)

    def measured(self, backbone: nn.Module) -> list[LayerRotation]:
        """How the layers rotate their keys and values, measured once."""
        if self.rotations is None:
            self.rotations = measure_rotations(backbone, self.last_position(0) - 1)
        return self.rotations

    def mask(
        self,
        backbone: Any,
        inputs_embeds: torch.Tensor,
        packing: SegmentPacking,
        places: Places,
        layers: list[tuple["LayerView", BackboneLayer]],
    ) -> Any:
        """The attention mask of a segment in the form that the base takes, which may be one for each type of layer; None:
        the base makes its own, of causal attention in its own windows."""
        length, types = packing.length, getattr(backbone.config, "layer_types", None)
        # those of a type are alike
        one_of: dict[Any, Any] = {None: layers[0]} if types is None else dict(zip(types, layers, strict=True))
        views: list[LayerView] = [view for view, _ in one_of.values()]
        num_sinks, mem_len = cast(int, self.config.num_sinks), cast(int, self.config.mem_len)
        steps = [0 if view.plan is None else view.plan.alike(places, num_sinks, mem_len) for view in views]
        if not packing.is_plain or None in steps:
            return self.new_mask(backbone, inputs_embeds, packing, places, one_of)
        if length == 1 or (length <= mem_len and not any(view.num_before for view in views)):
            return None
        sizes = [(view.window, view.num_before, view.num_columns) for view in views]
        device, attention = inputs_embeds.device, backbone.config._attn_implementation
        key = (*sizes, length, *steps, inputs_embeds.dtype, device, attention)
        if key not in self.masks:
            mask = self.new_mask(backbone, inputs_embeds[:1], packing, places, one_of)
            self.masks = {key: mask} if len(self.masks) >= KEPT_MASKS else self.masks | {key: mask}
        return self.masks[key]

    def new_mask(
        self,
        backbone: Any,
        inputs_embeds: torch.Tensor,
        packing: SegmentPacking,
        places: Places,
        one_of: dict[Any, tuple["LayerView", BackboneLayer]],
    ) -> Any:
        """A new mask in the form that the base takes, with as many rows as `inputs_embeds`: one if all rows are alike."""
        masks: dict[Any, Any] = {}
        for layer_type, (view, layer) in one_of.items():
            columns, rows = view.num_columns, packing.rows(view.num_seen)
            shape = len(inputs_embeds), view.num_before + packing.length
            valid = torch.ones(shape, dtype=torch.bool, device=inputs_embeds.device)
            if rows.valid is not None:
                valid[:, columns:] = rows.valid
            mask = mask_of_base(
                backbone,
                config=config_of_masks(backbone.config, layer_type),
                inputs_embeds=inputs_embeds,
                attention_mask=valid,
                past_key_values=Cache(layers=[layer]),
                position_ids=None,
                and_mask_function=view.sees(rows.document_ids, places, cast(int, self.config.num_sinks)),
            )
            if not isinstance(mask, dict):
                return mask
            masks |= mask
        return masks


class LayerView(NamedTuple):
    """What tokens see in a layer: the `window` nearest positions, themselves included, of `num_seen` columns of the memory
    and the segment; and the sinks, by `plan`."""

    window: int
    num_seen: int
    plan: SinkPlan | None

    @property
    def num_columns(self) -> int:
        """Columns of sinks, in front of all others."""
        return 0 if self.plan is None else self.plan.num_columns

    @property
    def num_before(self) -> int:
        """Columns in front of the segment."""
        return self.num_columns + self.num_seen

    def sees(self, document_ids: torch.Tensor | None, places: Places, num_sinks: int) -> Callable[..., Any]:
        """Which keys a query sees, as transformers' masks ask."""
        if self.plan is None or self.num_columns == 0:
            return nearest_of_document(self.window, document_ids)
        shown = (self.num_columns, self.num_before, places.position_ids, self.plan.copies, document_ids)
        return nearest_and_sinks(self.window, num_sinks, *shown)


def reader_of(memory: Any, plan: SinkPlan | None, rotation: LayerRotation | None) -> Callable[..., Any]:
    """What a layer asks for the keys and values of `[sinks; memory; segment]`."""
    return memory.window.read_and_write if plan is None else SinkReader(memory, plan, rotation)


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
    mask = getattr(backbone, "create_masks_for_generate", create_masks_for_generate)(**kwargs)
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        raise ValueError(
            f"`text_config` is a {backbone.config.model_type}, which takes no mask of a window: "
            f"{in_place_of_a_window(backbone.config)}."
        )
    if isinstance(mask, dict):
        return {name: within_float32(each) for name, each in mask.items()}
    return within_float32(mask)


def within_float32(mask: Any) -> Any:
    """Clamp a float64 mask to the range of float32, in which a base may compute its softmax: a row of -inf there would
    give NaN."""
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.float64:
        return mask
    return mask.clamp(min=torch.finfo(torch.float32).min)


__all__ = ["WindowReader"]
