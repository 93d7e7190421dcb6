"""Memory as a window: every layer remembers the keys and values of the last positions, and of the first ones (sinks).

    | sinks | the last mem_len - 1 positions | segment |

Attention sinks: Xiao et al., 2023, https://arxiv.org/abs/2309.17453. They stand right in front of the window of the first
token of a call, wherever the text began.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import nn
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
from transformers_xl.modeling.pretrained.sinks import SinkPlan, SinkReader, WindowAndSinks
from transformers_xl.modeling.pretrained.supported_bases import TOKENS, check_attention, table_of_positions

LAST_POSITION = 2**15  # float32 angles of later ones are visibly wrong
KEPT_MASKS = 4


class WindowLayerMemory(NamedTuple):
    """What a layer remembers."""

    window: KeyValueMemory


class WindowPosition(NamedTuple):
    """What the model remembers beside."""

    next_position: PositionMemory


class WindowReader(MemoryReader):
    """Hands the base a cache whose keys and values are those that its layers remember."""

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
        readers: list[Any] = [layer.window.read_and_write for layer in memory.layers]
        sinks_seen = 0
        num_sinks = cast(int, self.config.num_sinks)
        if num_sinks > 0:
            plan = SinkPlan.of(places, num_sinks, self.config.mem_len)
            rotations = [None] * len(readers) if plan.shift is None else self.measured(backbone)
            readers = [
                SinkReader(layer, plan, rotation) for layer, rotation in zip(memory.layers, rotations, strict=True)
            ]
            sinks_seen = num_sinks if plan.are_seen else 0
        cache = BackboneCache(readers, sinks_seen + memory.num_seen)
        mask = self.mask(backbone, inputs_embeds, packing, places, sinks_seen, cache)
        return run(inputs_embeds, mask, places.position_ids, cache, **kwargs)

    def places(self, backbone: nn.Module, memory: ModelMemory, packing: SegmentPacking) -> Places:
        """Where the tokens stand. Where positions would become too large, the window is moved back to their beginning: what
        is remembered turns as if it had been read there."""
        if self.config.num_sinks > 0 and packing.document_ids is not None:
            raise ValueError(
                f"`reset` of shape (batch, length), and `position_ids` that start again, need `num_sinks`=0: with "
                f"`num_sinks`={self.config.num_sinks} every document has sinks of its own. Let documents begin with a "
                "call: `reset` of shape (batch,)."
            )
        places = Places.of(memory.own.next_position.read(), packing)
        behind = self.config.mem_len - 1 + self.config.num_sinks
        if places.highest + packing.length <= self.last_position(behind + packing.length):
            return places
        shift = (places.before - behind).clamp(min=0)
        for layer, rotation in zip(memory.layers, self.measured(backbone), strict=True):
            layer.window.turn(rotation, -shift)
        return Places.of(places.before - shift, packing)

    def last_position(self, wanted: int) -> int:
        """Positions up to here are used as they are, of which a call needs as many as are `wanted`."""
        table = table_of_positions(self.config.text_config)
        if table is None:
            return max(LAST_POSITION, 2 * wanted)
        if wanted > table:
            raise ValueError(
                f"`mem_len`={self.config.mem_len} and this call need {wanted} positions, and the base has the angles of "
                f"{table}: take a shorter `mem_len`, or shorter calls."
            )
        return min(LAST_POSITION, table)

    def measured(self, backbone: nn.Module) -> list[LayerRotation]:
        """How the layers turn what they remember, measured once."""
        if self.rotations is None:
            self.rotations = measure_rotations(backbone, self.last_position(0) - 1)
        return self.rotations

    def mask(
        self,
        backbone: Any,
        inputs_embeds: torch.Tensor,
        packing: SegmentPacking,
        places: Places,
        sinks_seen: int,
        cache: BackboneCache,
    ) -> Any:
        """What the queries of a segment see, as the base takes it; None: all that came before."""
        before, length, mem_len = cache.num_before, packing.length, self.config.mem_len
        # behind the sinks and a full window all rows are alike
        is_plain = packing.is_plain and (not sinks_seen or places.lowest >= sinks_seen + mem_len - 1)
        if is_plain and (length == 1 or (before == 0 and length <= mem_len)):
            return None
        key = (
            mem_len,
            before,
            length,
            sinks_seen,
            inputs_embeds.dtype,
            inputs_embeds.device,
            backbone.config._attn_implementation,
        )
        if is_plain and key in self.masks:
            return self.masks[key]
        rows = packing.rows(before - sinks_seen)
        some = inputs_embeds[:1] if is_plain else inputs_embeds
        real = torch.ones(len(some), before + length, dtype=torch.bool, device=some.device)
        if rows.valid is not None:
            real[:, sinks_seen:] = rows.valid
        mask = mask_of_base(
            backbone,
            inputs_embeds=some,
            attention_mask=real,
            past_key_values=cache,
            position_ids=None,
            and_mask_function=nearest_and_sinks(mem_len, sinks_seen, before, places.position_ids)
            if sinks_seen
            else nearest_of_document(mem_len, rows.document_ids),
        )
        if is_plain:
            self.masks = {key: mask} if len(self.masks) >= KEPT_MASKS else self.masks | {key: mask}
        return mask


def mask_of_base(backbone: Any, **kwargs: Any) -> Any:
    """The mask that a base takes: of the library's function of this name, or the base's own.

    Raises:
        ValueError: it makes none.
    """
    check_attention(backbone.config)
    mask = getattr(backbone, "create_masks_for_generate", create_masks_for_generate)(config=backbone.config, **kwargs)
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        raise ValueError(
            f"`text_config` is a {backbone.config.model_type}, which takes no mask of a window: {TOKENS}."
        )
    if isinstance(mask, dict):
        return {name: within_float32(each) for name, each in mask.items()}
    return within_float32(mask)


def within_float32(mask: Any) -> Any:
    """A mask that stays finite where a base computes its softmax in float32: nothing to see is not NaN."""
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.float64:
        return mask
    return mask.clamp(min=torch.finfo(torch.float32).min)


__all__ = ["WindowReader"]
