"""Memory as a window: every layer keeps the keys and values of the last positions, and of the first ones (sinks).

    | sinks | the last mem_len - 1 positions | segment |

Attention sinks: Xiao et al., 2023, https://arxiv.org/abs/2309.17453. They are placed directly before the window,
however long ago the text began.
"""

import copy
import sys
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.masking_utils import create_masks_for_generate
from transformers.utils import ModelOutput

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.modeling.memory.key_value_memory import KeyValueMemory, KeyValueShape, SinkMemory
from transformers_xl.modeling.memory.layer_memory import LayerMemory
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.position_memory import PositionMemory
from transformers_xl.modeling.ops.key_mask import KeyMask
from transformers_xl.modeling.ops.window import SegmentPacking
from transformers_xl.modeling.pretrained.backbone_cache import BackboneCache, key_value_shapes, written_by
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
        mem_len, num_sinks = self.config.mem_len, self.config.num_sinks
        if num_sinks == 0:
            return [WindowLayerMemory(KeyValueMemory(shape, mem_len)) for shape in self.shapes]
        return [
            WindowAndSinks(KeyValueMemory(shape, mem_len), SinkMemory((num_sinks, shape.width)))
            for shape in self.shapes
        ]

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
        key_mask = KeyMask(order=packing.rows(memory.num_seen).order)
        for window in memory.windows:
            window.key_mask = key_mask
        plan = self.sink_plan(backbone, places)
        readers: list[Any] = [layer.window.read_and_write for layer in memory.layers]
        if plan is not None:
            rotations = [None] * len(readers) if plan.shift is None else self.measured(backbone)
            readers = [
                SinkReader(layer, plan, rotation) for layer, rotation in zip(memory.layers, rotations, strict=True)
            ]
        cache = BackboneCache(readers, memory.num_seen + (0 if plan is None else plan.num_columns))
        mask = self.mask(backbone, inputs_embeds, packing, places, plan, cache)
        return run(inputs_embeds, mask, places.position_ids, cache, **kwargs)

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
        if self.config.num_sinks > 0 and packing.document_ids is not None:
            raise ValueError(
                f"`reset` of shape (batch, length), and `position_ids` that start again, need `num_sinks`=0: with "
                f"`num_sinks`={self.config.num_sinks} every document has its own sinks. Start each document with a new "
                "call, and pass `reset` of shape (batch,)."
            )
        places = Places.of(memory.own.next_position.read(), packing)
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
        plan: SinkPlan | None,
        cache: BackboneCache,
    ) -> Any:
        """The attention mask of a segment in the form that the base takes; None: plain causal attention."""
        before, length, mem_len = cache.num_before, packing.length, self.config.mem_len
        step = 0 if plan is None else plan.alike(places, self.config.num_sinks, mem_len)
        if not packing.is_plain or step is None:
            return self.new_mask(backbone, inputs_embeds, packing, places, plan, cache)
        if (length == 1 and not self.hides_sinks(backbone.config)) or (before == 0 and length <= mem_len):
            return None
        attention = backbone.config._attn_implementation
        columns = 0 if plan is None else plan.num_columns
        key = (mem_len, before, length, columns, step, inputs_embeds.dtype, inputs_embeds.device, attention)
        if key not in self.masks:
            mask = self.new_mask(backbone, inputs_embeds[:1], packing, places, plan, cache)
            self.masks = {key: mask} if len(self.masks) >= KEPT_MASKS else self.masks | {key: mask}
        return self.masks[key]

    def new_mask(
        self,
        backbone: Any,
        inputs_embeds: torch.Tensor,
        packing: SegmentPacking,
        places: Places,
        plan: SinkPlan | None,
        cache: BackboneCache,
    ) -> Any:
        """A new mask in the form that the base takes, with as many rows as `inputs_embeds`: one if all rows are alike."""
        before, num_sinks, mem_len = cache.num_before, self.config.num_sinks, self.config.mem_len
        columns = 0 if plan is None else plan.num_columns
        rows = packing.rows(before - columns)
        valid = torch.ones(len(inputs_embeds), before + packing.length, dtype=torch.bool, device=inputs_embeds.device)
        if rows.valid is not None:
            valid[:, columns:] = rows.valid
        if plan is None or columns == 0:
            sees = nearest_of_document(mem_len, rows.document_ids)
        else:
            sees = nearest_and_sinks(mem_len, num_sinks, columns, before, places.position_ids, plan.copies)
        return mask_of_base(
            backbone,
            config=self.config_of_masks(backbone.config),
            inputs_embeds=inputs_embeds,
            attention_mask=valid,
            past_key_values=cache,
            position_ids=None,
            and_mask_function=sees,
        )

    def hides_sinks(self, base: PreTrainedConfig) -> bool:
        """Whether a window of the base's own is longer than this one and ends before the sinks."""
        own, mem_len = getattr(base, "sliding_window", None) or 0, cast(int, self.config.mem_len)
        return mem_len < own <= farthest(cast(int, self.config.num_sinks), mem_len)

    def config_of_masks(self, base: PreTrainedConfig) -> PreTrainedConfig:
        """The config from which the base makes its masks. A base with a sliding window of its own counts columns, and the
        copies of the sinks are columns: if its window reaches the sinks, it is set to show all copies, else none."""
        own = getattr(base, "sliding_window", None)
        if own is None or own <= self.config.mem_len or self.config.num_sinks == 0:
            return base
        changed = copy.copy(base)
        changed.sliding_window = self.config.mem_len if self.hides_sinks(base) else sys.maxsize
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
