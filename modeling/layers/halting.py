"""Positions that halt: they keep their state while others continue, are still read by them, and cost no more work.

For models whose tokens choose their depth: Dehghani et al., 2018, https://arxiv.org/abs/1807.03819, section 2.2.
"""

from dataclasses import replace
from typing import cast

import torch

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.memory.window_memory import AttentionMemory


# B batch, T segment length, Q queries per row, N positions of the batch that run, F features
def gather(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The positions of `states` (B, T, ...) that are True in `mask` (B, T), row after row: (N, ...)."""
    return states[mask]


def scatter(rows: torch.Tensor, mask: torch.Tensor, states: torch.Tensor | None = None) -> torch.Tensor:
    """`states` (B, T, ...), or zeros, with the `rows` (N, ...) of `gather` in the places where `mask` (B, T) is True."""
    if states is None:
        states = rows.new_zeros(*mask.shape, *rows.shape[1:])
    return states.index_put((mask,), rows)


def skips_halted(config: MemoryConfig, output_attentions: bool | None = None, **kwargs) -> bool:
    """Whether a call computes running positions only: in inference.

    Shapes that depend on values make no graph, and would make training on many devices wait; whole maps of the attention
    (`output_attentions`) need all queries.
    """
    if output_attentions is None:
        output_attentions = config.output_attentions
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling() or output_attentions)


class HaltingAttention(RelativeAttention):
    """Relative attention that may be asked by the running positions only. Keys and values are those of all positions."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        past: torch.Tensor | None,
        memory: ColumnMemory,
        segment: SegmentContext,
        running: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As in `MemoryAttention`; with `running` (B, T) bool the output is that of the running positions, (N, E)."""
        if running is None:
            return super().forward(hidden_states, past, memory, segment, **kwargs)
        key, value = self.keys_and_values(hidden_states, past, memory)
        length, counts = running.shape[1], running.sum(dim=1)
        num_queries = int(counts.max())
        places, num_keys_after, key_mask = running, None, memory.key_mask
        if num_queries < length:  # the queries of each row move together
            places = torch.arange(num_queries, device=running.device) < counts[:, None]
            visible = cast(torch.Tensor, key_mask.visible)  # there, for more than one token
            seen = gather(visible.transpose(1, 2).expand(len(running), -1, -1, -1), running)
            mask = scatter(seen, places).transpose(1, 2)
            key_mask = replace(key_mask, mask=mask, by_distance=False, columns=None)
            num_keys_after = scatter(length - 1 - running.nonzero()[:, 1], places)
        query = self.split_heads(scatter(self.q_proj(gather(hidden_states, running)), places))
        terms = self.relative_terms(segment, memory)
        kwargs |= {"num_keys_after": num_keys_after, "token_order": segment.token_order}
        attn_output, _ = self.attend_relative(query, key, value, *terms, key_mask, **kwargs)
        return self.o_proj(gather(attn_output.flatten(-2), places)), None


class HaltingLayer(MemoryLayer):
    """A Transformer-XL layer that changes the state of running positions only."""

    attention_class = HaltingAttention

    def forward(
        self,
        hidden_states: torch.Tensor,
        memory: AttentionMemory,
        segment: SegmentContext,
        running: torch.Tensor | None = None,
        kept: torch.Tensor | None = None,
        skip_halted: bool = False,
        **kwargs,
    ) -> LayerOutput:
        """
        Args:
            running: `(B, T)` bool, positions that have not halted; all when not given.
            kept: `(B, T, E)`, the state that halted positions keep; their input when not given.
            skip_halted: whether nothing is computed for halted positions but keys and values, which others read.
        """
        kept = hidden_states if kept is None else kept
        count = int(running.sum()) if skip_halted and running is not None else None
        if running is None or count == running.numel():
            return super().forward(hidden_states, memory, segment, **kwargs)
        if not skip_halted:
            output = super().forward(hidden_states, memory, segment, **kwargs)
            return LayerOutput(torch.where(running[..., None], output.hidden_states, kept))
        if count == 0:  # nobody asks, and only a cache wants keys and values
            self.remember(hidden_states, memory.inputs)
            return LayerOutput(kept)
        attn_output = self.attend(hidden_states, memory.inputs, segment, running=running, **kwargs)
        rows = self.after_attention(gather(hidden_states, running), attn_output, segment, **kwargs)
        return LayerOutput(scatter(rows, running, kept))

    def remember(self, hidden_states: torch.Tensor, memory: ColumnMemory) -> None:
        """Let the memory take a segment in that no position asks."""
        normed, past = self.attention_inputs(hidden_states, memory)
        if memory.buffer is not None:
            self.self_attn.keys_and_values(normed, past, memory)
