"""Positions that halt: they keep their state while others go on, are still read by them, and cost no more work.

For models whose tokens choose their depth: Dehghani et al., 2018, https://arxiv.org/abs/1807.03819, section 2.2.
"""

from dataclasses import replace

import torch

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.layers.segment_context import ALL_VISIBLE, PLAIN_SEGMENT, KeyView, SegmentContext
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer


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
        memory: torch.Tensor | None = None,
        running: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As in `MemoryAttention`; with `running` (B, T) bool the output is that of the running positions, (N, E)."""
        if running is None:
            return super().forward(hidden_states, memory, **kwargs)
        return self.attend_running(hidden_states, memory, running, **kwargs), None

    def attend_running(
        self,
        hidden_states: torch.Tensor,
        memory: torch.Tensor | None,
        running: torch.Tensor,
        past_key_values=None,
        view: KeyView = ALL_VISIBLE,
        segment: SegmentContext = PLAIN_SEGMENT,
        **kwargs,
    ) -> torch.Tensor:
        key, value = self.keys_and_values(hidden_states, memory, past_key_values, view.order)
        length, counts = running.shape[1], running.sum(dim=1)
        num_queries = int(counts.max())
        places, behind = running, None
        if num_queries < length:  # the queries of each row move together
            places = torch.arange(num_queries, device=running.device) < counts[:, None]
            seen = gather(view.visible.transpose(1, 2).expand(len(running), -1, -1, -1), running)
            view = replace(view, visible=scatter(seen, places).transpose(1, 2), by_distance=False)
            behind = scatter(length - 1 - running.nonzero()[:, 1], places)
        query = self.split_heads(scatter(self.q_proj(gather(hidden_states, running)), places))
        attn_output, _ = self.attend(query, key, value, view, segment, past_key_values, behind=behind, **kwargs)
        return self.o_proj(gather(attn_output.flatten(-2), places))


class HaltingLayer(MemoryLayer):
    """A Transformer-XL layer that changes the state of running positions only."""

    attention_class = HaltingAttention

    def forward(
        self,
        hidden_states: torch.Tensor,
        memory: torch.Tensor | None = None,
        running: torch.Tensor | None = None,
        kept: torch.Tensor | None = None,
        skip_halted: bool = False,
        *,
        view: KeyView,
        past_key_values=None,
        **kwargs,
    ) -> LayerOutput:
        """
        Args:
            running: `(B, T)` bool, positions that have not halted; all when not given.
            kept: `(B, T, E)`, the state that halted positions keep; their input when not given.
            skip_halted: whether nothing is computed for halted positions but keys and values, which others read.
        """
        kept = hidden_states if kept is None else kept
        kwargs |= {"view": view, "past_key_values": past_key_values}
        count = int(running.sum()) if skip_halted and running is not None else None
        if running is None or count == running.numel():
            return super().forward(hidden_states, memory, **kwargs)
        if not skip_halted:
            output = super().forward(hidden_states, memory, **kwargs)
            return output._replace(hidden_states=torch.where(running[..., None], output.hidden_states, kept))
        if count == 0:  # nobody asks; a cache still wants keys and values, `mems` does not
            if past_key_values is not None:
                inputs = self.attention_input(hidden_states)
                self.self_attn.keys_and_values(inputs, memory, past_key_values, view.order)
            return LayerOutput(kept, hidden_states)
        attn_output = self.attend(hidden_states, memory, running=running, **kwargs)
        rows = self.after_attention(gather(hidden_states, running), attn_output, **kwargs)
        return LayerOutput(scatter(rows, running, kept), hidden_states)
