"""Product-key memory: Lample et al., 2019, https://arxiv.org/abs/1907.05242, section 3. Code: facebookresearch/XLM.

    query_h = BN(W x)_h        s_h[i, j] = query_h[:d/2] . key1_h[i] + query_h[d/2:] . key2_h[j]
    y = sum over heads h and the k best slots (i, j) of softmax(s_h)[i, j] value[i n + j]

The k best sums of two halves are among the sums of the k best of each half, so that n^2 slots cost 2 n products.
"""

from typing import NamedTuple

import torch
import torch.distributed.nn.functional as distributed
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_pkm_transformer import PKMTransformerConfig
from transformers_xl.modeling.layers.transformer_layer import Dropout


class KeyUsage(NamedTuple):
    """How tokens used the slots of a memory. Section 4.4.

    `weights` is the sum of the read weights on each slot, `(slots,)` float64; those of several calls can be added.
    """

    weights: torch.Tensor

    @property
    def shares(self) -> torch.Tensor:
        """Share of all read weights that fell on each slot, `(slots,)`."""
        return self.weights / self.weights.sum()

    @property
    def used(self) -> torch.Tensor:
        """Share of the slots that were read at all, 0..1."""
        return (self.weights > 0).double().mean()

    @property
    def kl(self) -> torch.Tensor:
        """Divergence of the shares from the uniform distribution, `log(slots) + sum z log z`, in nats."""
        return torch.xlogy(self.shares, self.shares * self.shares.numel()).sum()


# N tokens of the batch, F features
class QueryBatchNorm(nn.BatchNorm1d):
    """Batch norm over the real tokens of all processes.

    Differs from `nn.BatchNorm1d`: padding is left out of the statistics; they are those of all processes of a
    distributed run, on every kind of device; a batch of one token is allowed; the running statistics do not move a second
    time when activation checkpointing runs the forward pass again; a frozen norm (`weight.requires_grad=False`) reads with
    them as they are, so that what an adapter learns fits the model that it is loaded for.
    """

    def forward(self, rows: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """`rows` (N, F); `mask` (N,) bool, tokens that are no padding, all when not given."""
        if not self.training or not self.weight.requires_grad:
            statistics = self.get_buffer("running_mean"), self.get_buffer("running_var")
            return nn.functional.batch_norm(rows, *statistics, self.weight, self.bias, eps=self.eps)
        states = rows.to(torch.promote_types(rows.dtype, torch.float32))
        weights = torch.ones_like(states[:, :1]) if mask is None else mask[:, None].to(states.dtype)
        sums = _summed(torch.cat([(states * weights).sum(0), weights.sum(0)]))
        count = sums[-1].clamp(min=1.0)
        mean = sums[:-1] / count
        var = _summed(((states - mean).square() * weights).sum(0)) / count
        if not _is_run_again():
            with torch.no_grad():
                self.get_buffer("num_batches_tracked").add_(1)
                unbiased = var * count / (count - 1).clamp(min=1.0)
                for name, statistic in (("running_mean", mean), ("running_var", unbiased)):
                    running = self.get_buffer(name)
                    running.lerp_(statistic.to(running.dtype), self.momentum)  # type: ignore[arg-type]  # a number, as nobody chose another
        normalised = (states - mean) * torch.rsqrt(var + self.eps)
        return (normalised * self.weight + self.bias).to(rows.dtype)


def _summed(statistic: torch.Tensor) -> torch.Tensor:
    """The sum over all processes, with gradient."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return distributed.all_reduce(statistic)
    return statistic


# private: a torch without it moves the statistics twice under activation checkpointing
_current_graph_task_id = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def _is_run_again() -> bool:
    """Whether this forward pass runs inside a backward pass, as that of an activation checkpoint does."""
    return not torch.compiler.is_compiling() and _current_graph_task_id() != -1


class QueryNetwork(nn.Module):
    """Queries `(N, memory_heads * memory_key_dim)` of tokens `(N, hidden_size)`."""

    def __init__(self, config: PKMTransformerConfig):
        super().__init__()
        size = config.memory_heads * config.memory_key_dim
        self.proj = nn.Linear(config.hidden_size, size)
        self.norm = QueryBatchNorm(size) if config.query_batch_norm else None

    def forward(self, rows: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        query = self.proj(rows)
        return query if self.norm is None else self.norm(query, mask)


class Values(nn.EmbeddingBag):
    """The learned values, `(num_memory_keys ** 2, hidden_size)`, of which each token reads a sum."""

    def __init__(self, config: PKMTransformerConfig):
        super().__init__(config.num_memory_keys**2, config.hidden_size, mode="sum", sparse=config.sparse_values)

    def init_weights(self, config: PKMTransformerConfig) -> None:
        init.normal_(self.weight, mean=0.0, std=config.hidden_size**-0.5)


class ProductKeyMemory(nn.Module):
    """A feed-forward that reads `memory_topk` of `num_memory_keys` squared learned values per head."""

    def __init__(self, config: PKMTransformerConfig):
        super().__init__()
        self.heads, self.num_keys, self.topk = config.memory_heads, config.num_memory_keys, config.memory_topk
        self.query_net = QueryNetwork(config)
        self.keys = nn.Parameter(torch.empty(self.heads, 2, self.num_keys, config.memory_key_dim // 2))
        self.values = Values(config)
        self.dropout = Dropout(config, config.residual_dropout)

    def init_weights(self, config: PKMTransformerConfig) -> None:
        bound = (config.memory_key_dim // 2) ** -0.5
        init.uniform_(self.keys, -bound, bound)

    def learning_rate_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"keys": [self.keys], "values": [*self.values.parameters()]}

    def best_slots(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The highest scores of queries `(N, heads, memory_key_dim)`, best first, and their slots, `(N, heads, k)`."""
        halves = query.unflatten(-1, (2, -1))
        scores, keys = torch.einsum("nhpd,hpkd->nhpk", halves, self.keys).topk(self.topk, dim=-1)
        sums = (scores[:, :, 0, :, None] + scores[:, :, 1, None, :]).flatten(-2)
        slots = (keys[:, :, 0, :, None] * self.num_keys + keys[:, :, 1, None, :]).flatten(-2)
        best, chosen = sums.topk(self.topk, dim=-1)
        return best, slots.gather(-1, chosen)

    def forward(
        self, hidden_states: torch.Tensor, segment_mask: torch.Tensor | None = None, output_key_usage: bool = False
    ) -> tuple[torch.Tensor, KeyUsage | None]:
        """
        Args:
            hidden_states: `(batch, length, hidden_size)`.
            segment_mask: `(batch, length)` bool, tokens that are no padding; all when not given.
            output_key_usage: whether to return how the slots were used.
        """
        rows, mask = hidden_states.flatten(0, 1), None if segment_mask is None else segment_mask.flatten()
        query = self.query_net(rows, mask).unflatten(-1, (self.heads, -1))
        scores, slots = self.best_slots(query)
        weights = scores.softmax(dim=-1)
        shares = weights.flatten(1).to(self.values.weight.dtype)  # autocast leaves the table as it is
        read = self.values(slots.flatten(1), per_sample_weights=shares)
        usage = self.usage(slots, weights, mask) if output_key_usage else None
        return self.dropout(read.view_as(hidden_states)), usage

    @torch.no_grad()
    def usage(self, slots: torch.Tensor, weights: torch.Tensor, mask: torch.Tensor | None) -> KeyUsage:
        if mask is not None:
            slots, weights = slots[mask], weights[mask]
        read = torch.zeros(self.num_keys**2, dtype=torch.float64, device=slots.device)
        return KeyUsage(read.index_add(0, slots.flatten(), weights.flatten().double()))
