"""A model of this package in vLLM: it runs as it is, after memories that stand in the states that vLLM keeps of requests.

To vLLM it is a model without attention that has one state a request, as Mamba has: requests join and leave between tokens,
and long prompts are read in parts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.models.interfaces import HasInnerState, IsAttentionFree
from vllm.v1.attention.backend import AttentionBackend, AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.serve.vllm_plugin import BACKEND
from transformers_xl.serve.vllm_reader import Piece, PoolReader
from transformers_xl.serve.vllm_state import StateLayout

STATE = "memory.0"  # the name of the state: vLLM wants exactly one number in it


@dataclass
class MemoryMetadata:
    """What a call is told: the tokens of each request."""

    pieces: list[Piece]


class MemoryMetadataBuilder(AttentionMetadataBuilder[MemoryMetadata]):
    """Makes it of what vLLM says of a call."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> MemoryMetadata:
        common = common_attn_metadata
        starts = common.query_start_loc_cpu.tolist()
        ends = common.seq_lens_cpu_upper_bound  # exact where no tokens are guessed
        ends = (common.seq_lens if ends is None else ends)[: common.num_reqs].tolist()
        slots = common.block_table_tensor[: common.num_reqs, 0].tolist()
        rows = zip(slots, starts, starts[1:], ends, strict=False)  # vLLM pads
        pieces = [Piece(slot, start, stop, end - (stop - start)) for slot, start, stop, end in rows if stop > start]
        return MemoryMetadata(pieces)


class MemoryBackend(AttentionBackend):
    """Names the builder."""

    @staticmethod
    def get_name() -> str:
        return BACKEND

    @staticmethod
    def get_builder_cls() -> type[MemoryMetadataBuilder]:
        return MemoryMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        return True


class MemoryState(MambaBase):
    """The state of each request: the bytes of a row's memory."""

    def __init__(self, layout: StateLayout, reader: PoolReader):
        self.layout, self.reader = layout, reader
        self.kv_cache: tuple[torch.Tensor, ...] = ()

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        super().bind_kv_cache(kv_cache)
        self.reader.use(self.kv_cache[0])

    def get_state_shape(self) -> list[tuple[int, ...]]:
        return [(self.layout.num_bytes,)]

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return (torch.uint8,)

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return MambaAttentionBackendEnum[BACKEND]


class MemoryForVLLM(nn.Module, HasInnerState, IsAttentionFree):
    """A causal language model of this package, as vLLM calls it."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        self.config: Any = vllm_config.model_config.hf_config
        self.model_class = cast(Any, VARIANTS[self.config.model_type].causal_lm_class)
        self.weights_type = vllm_config.model_config.dtype
        self.language_model: Any = self.model_class._from_config(self.config, dtype=self.weights_type).eval()
        self.states = vllm_config.compilation_config.static_forward_context
        self.set_up()

    def set_up(self) -> None:
        """Read with the language model as it is now."""
        self.reader = PoolReader(self.language_model)
        self.states[STATE] = MemoryState(self.reader.layout, self.reader)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.language_model.get_input_embeddings()(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """States of ids `(tokens,)`. `positions` say nothing that the memory does not know."""
        metadata = get_forward_context().attn_metadata
        pieces = [] if metadata is None else metadata[STATE].pieces  # None: vLLM measures, and nobody has a memory
        return self.reader.read(input_ids.long(), pieces)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.reader.tokens.logits(hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load them as `from_pretrained` does.

        Raises:
            ValueError: a weight is missing, or one is too many.
        """
        device = next(self.language_model.parameters()).device
        model, report = self.model_class.from_pretrained(
            None, config=self.config, state_dict=dict(weights), dtype=self.weights_type, output_loading_info=True
        )
        for name in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if report[name]:
                raise ValueError(f"The weights do not fit the config: {name} {sorted(report[name])[:4]}.")
        self.language_model = model.to(device).eval()
        self.set_up()
        return {name for name, _ in self.named_parameters()}


__all__ = ["MemoryForVLLM"]
