"""Relative attention of some of a segment's positions to all of `[memory; segment]`."""

import torch

from transformers_xl.modeling.layers.attention import MemoryAttention, RelativeAttention
from transformers_xl.modeling.layers.halting import Running
from transformers_xl.modeling.ops.window import take


class RunningAttention(RelativeAttention):
    """Relative attention that can leave out the queries of positions that have halted; their keys and values stay."""

    def attend_running(
        self,
        hidden_states: torch.Tensor,
        running: Running,
        memory: torch.Tensor | None = None,
        past_key_values=None,
        visible: torch.Tensor | None = None,
        by_distance: bool = False,
        order: torch.Tensor | None = None,
        position_embeddings: tuple | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """
        The output `(N, hidden_size)` of the N positions of `running`; arguments as in `forward`. Where none runs, keys and
        values are only remembered.
        """
        if not running.any and past_key_values is None:
            return running.pack(hidden_states)
        key, value = self.keys_and_values(hidden_states, memory, past_key_values, order)
        positions = {"position_embeddings": position_embeddings, "past_key_values": past_key_values}
        if not running.any:
            self.relative_terms(key.shape[-2], **positions)  # a cache keeps the positions of all layers
            return running.pack(hidden_states)
        query = self.split_heads(running.to_rows(self.q_proj(running.pack(hidden_states))))
        if running.columns is None:
            attn_output, _ = self.attend(query, key, value, visible, by_distance, positions, **kwargs)
        else:  # backends take the queries of the last positions only
            kwargs.pop("window", None)
            positions["from_end"] = hidden_states.shape[1] - 1 - running.columns
            visible = None if visible is None else take(visible, running.columns, dim=2)
            attn_output, _ = MemoryAttention.attend(self, query, key, value, visible, by_distance, positions, **kwargs)
        return self.o_proj(running.from_rows(attn_output.flatten(-2)))

    def score_terms(
        self,
        query: torch.Tensor,
        num_keys: int,
        position_embeddings: tuple,
        past_key_values=None,
        from_end: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`from_end` `(B, R)`: how far before the last key each query stands; None: they are those of the last keys."""
        if from_end is None:
            return super().score_terms(query, num_keys, position_embeddings, past_key_values)
        positions, bias = self.relative_terms(num_keys, position_embeddings, past_key_values)
        position_query = (query + bias.position_bias[:, None]) * self.scaling
        by_distance = torch.einsum("bhtd,hkd->bhtk", position_query, positions)
        # a query's distance to the last key is its own 0 plus `from_end`; keys behind it are hidden, whatever they get
        columns = (from_end[..., None] + torch.arange(num_keys, device=query.device)).clamp(max=num_keys)
        return query + bias.content_bias[:, None], by_distance.take_along_dim(columns[:, None], dim=-1)


__all__ = ["RunningAttention"]
