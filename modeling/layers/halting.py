"""Positions that halt: they keep their state while others continue, are still read by them, and cost no more work.

For models whose tokens choose their depth: Dehghani et al., 2018, https://arxiv.org/abs/1807.03819, section 2.2.
"""

from typing import cast

import torch

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.ops.columns import is_symbolic


# B batch, T segment length, K = memory + T, Q queries per row, N positions of the batch that run, F features
def gather(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The positions of `states` (B, T, ...) that are True in `mask` (B, T), row after row: (N, ...)."""
    return states[mask]


def scatter(rows: torch.Tensor, mask: torch.Tensor, states: torch.Tensor | None = None) -> torch.Tensor:
    """`states` (B, T, ...), or zeros, with the `rows` (N, ...) of `gather` in the places where `mask` (B, T) is True."""
    if states is None:
        states = rows.new_zeros(*mask.shape, *rows.shape[1:])
    return states.index_put((mask,), rows)


def skips_halted(
    config: MemoryConfig, hidden_states: torch.Tensor, output_attentions: bool | None = None, **kwargs
) -> bool:
    """Whether a call that reads `hidden_states` computes running positions only: in inference.

    Shapes that depend on values make no graph, and would make training on many devices wait; whole maps of the attention
    (`output_attentions`) need all queries.
    """
    if output_attentions is None:
        output_attentions = config.output_attentions
    return not (torch.is_grad_enabled() or is_symbolic(hidden_states) or output_attentions)


class HaltingAttention(RelativeAttention):
    """Relative attention that may be asked by the running positions only. Keys and values are those of all positions."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        context: LayerContext,
        running: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As in `MemoryAttention`; with `running` (B, T) bool the output is that of the running positions, (N, E)."""
        if running is None:
            return super().forward(hidden_states, key, value, context, **kwargs)
        counts = running.sum(dim=1)
        num_queries = int(counts.max())
        # the queries of each row move together, where that makes fewer columns of them
        places = torch.arange(num_queries, device=running.device) < counts[:, None]
        places = places if num_queries < running.shape[1] else running
        query = self.split_heads(scatter(self.q_proj(gather(hidden_states, running)), places))
        if num_queries < running.shape[1]:
            here = context.segment
            interval = here.columns, here.first, here.columns if here.last is None else here.last
            moved = (scatter(gather(each.expand_as(running), running), places)[..., None] for each in interval)
            own, first, last = moved
            columns = torch.arange(key.shape[-2], device=key.device)
            visible = ((columns >= first) & (columns <= last))[:, None]
            context = context._replace(mask=visible, distance=own - columns)
        attn_output, _ = self.attend(query, key, value, context, **kwargs)
        return self.o_proj(gather(attn_output.flatten(-2), places)), None


class HaltingLayer(MemoryLayer):
    """A Transformer-XL layer that changes the state of running positions only."""

    attention_class = HaltingAttention

    def forward(
        self,
        hidden_states: torch.Tensor,
        past: LayerMemory,
        context: LayerContext,
        running: torch.Tensor | None = None,
        halted_states: torch.Tensor | None = None,
        skip_halted: bool = False,
        **kwargs,
    ) -> LayerOutput:
        """
        Args:
            running: `(B, T)` bool, positions that have not halted; all when not given.
            halted_states: `(B, T, E)`, the state that halted positions keep; their input when not given.
            skip_halted: whether nothing is computed for halted positions but keys and values, which others read.
        """
        halted_states = hidden_states if halted_states is None else halted_states
        # attention to a source reads rows, not the running positions of all
        skip_halted = skip_halted and self.cross_attention is None
        count = int(running.sum()) if skip_halted and running is not None else None
        if running is None or count == running.numel():
            return super().forward(hidden_states, past, context, **kwargs)
        if not skip_halted:
            output = super().forward(hidden_states, past, context, **kwargs)
            return output._replace(hidden_states=torch.where(running[..., None], output.hidden_states, halted_states))
        if count == 0:
            return LayerOutput(halted_states, self.remember(hidden_states, past, context))
        attn_output, kept = self.attend(hidden_states, past.columns, context, running=running, **kwargs)
        rows = self.after_attention(gather(hidden_states, running), attn_output, context, **kwargs)
        return LayerOutput(scatter(rows, running, halted_states), past._replace(columns=kept))

    def remember(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext) -> LayerMemory:
        """What is remembered of a segment `(B, T, E)` that no position asks for: keys and values where a cache wants them,
        and positions, which it has of all layers or of none."""
        if context.layer_cache is not None:
            cast(HaltingAttention, self.self_attn).project_positions(context)
        if context.projects or len(past.columns) > 1:
            _, kept = context.extend(past.columns, hidden_states, self.project(hidden_states), self.project)
        else:
            kept = context.newest_inputs(past.columns[0].to(hidden_states), hidden_states)
        return past._replace(columns=kept)


__all__ = ["HaltingAttention", "HaltingLayer", "gather", "scatter", "skips_halted"]
