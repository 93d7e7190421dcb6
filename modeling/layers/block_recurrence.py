"""The recurrent cell of Hutchins et al., 2022, https://arxiv.org/abs/2203.07852, section 3: a state updated once per block.

Tokens attend to each other and to the state; the state attends to itself and to the tokens. Each side has one set of keys
and values, which both sides read, and a second query for the other side.
"""

from typing import NamedTuple

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_block_recurrent import BlockRecurrentConfig
from transformers_xl.modeling.layers.activations import activation
from transformers_xl.modeling.layers.local_attention import CosineAttention, HeadScale, LocalAttention, unit_vectors
from transformers_xl.modeling.memory.memory_cache import LayerCache, Tensors
from transformers_xl.modeling.ops.block_ends import BlockEnds
from transformers_xl.modeling.ops.columns import gather_columns


class BlockPlan(NamedTuple):
    """What the layers are told about the blocks of a call.

    Args:
        blocks: those that end in it.
        begun: `(B,)` bool, rows that have read a whole block before it: the others read the learned start of a state.
        visible_states: `(B or 1, 1, T, states)` bool, which vectors each token reads of the states before and after these
            ends; None: all tokens read all.
        fed_back: keys and values of the state that all layers read; None without feedback.
    """

    blocks: BlockEnds
    begun: torch.Tensor
    visible_states: torch.Tensor | None = None
    fed_back: Tensors | None = None


# B batch, T segment, S vectors of a state, H heads, D head dim, E hidden size
class CrossAttention(CosineAttention):
    """Self-attention and cross-attention whose heads are concatenated before one output projection."""

    def __init__(self, config: BlockRecurrentConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        inner_size = config.num_attention_heads * config.head_dim
        self.cross_q_proj = nn.Linear(config.hidden_size, inner_size, bias=config.attention_bias)
        self.cross_attention_scale = HeadScale(config)
        self.o_proj: nn.Module = nn.Linear(2 * inner_size, config.hidden_size, bias=config.attention_bias)

    def cross_attend(self, hidden_states: torch.Tensor, other: Tensors, visible: torch.Tensor | None) -> torch.Tensor:
        """Attention of `hidden_states` `(B, T, E)` to keys and values of the other side, `(B, T, H, D)`."""
        key, value = other
        query = self.cross_attention_scale(unit_vectors(self.split_heads(self.cross_q_proj(hidden_states))))
        return self.attend_with_bias(query, key, value, None, visible)[0]


class StateReadingAttention(LocalAttention, CrossAttention):
    """Attention of tokens that also reads `states`, keys and values `(B, H, states, D)`; by default those that are fed
    back to all layers."""

    def forward(self, hidden_states, key, value, context, states=None, **kwargs):
        states = context.plan.fed_back if states is None else states
        found = self.cross_attend(hidden_states, states, context.plan.visible_states)
        return super().forward(hidden_states, key, value, context, found=found, **kwargs)

    def attend(self, query, key, value, context, found=None, **kwargs):
        attn_output, weights = super().attend(query, key, value, context, **kwargs)
        return torch.cat([attn_output, found], dim=2), weights


class LearnedVectors(nn.Module):
    """One learned vector per vector of the state, `(S, E)`, initialised from a normal distribution around 0."""

    def __init__(self, config: BlockRecurrentConfig, std: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_states, config.hidden_size))
        self.std = std

    def init_weights(self, config: BlockRecurrentConfig) -> None:
        init.normal_(self.weight, mean=0.0, std=self.std)

    def forward(self) -> torch.Tensor:
        return self.weight


class FixedGate(nn.Module):
    """g c + (1 - g) z, g = sigmoid(b): a learned constant per feature."""

    def __init__(self, config: BlockRecurrentConfig, size: int):
        super().__init__()
        self.gate_bias = nn.Parameter(torch.empty(config.hidden_size))

    def init_weights(self, config: BlockRecurrentConfig) -> None:
        init.normal_(self.gate_bias, mean=0.0, std=0.1)

    def forward(self, state: torch.Tensor, candidate: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
        share = self.gate_bias.sigmoid()
        return share * state + (1 - share) * candidate


class LSTMGate(nn.Module):
    """sigmoid(W_f h + b_f + 1) c + sigmoid(W_i h + b_i - 1) z, where the candidate z is a projection of h `(.., size)`."""

    def __init__(self, config: BlockRecurrentConfig, size: int):
        super().__init__()
        self.input_gate = nn.Linear(size, config.hidden_size)
        self.forget_gate = nn.Linear(size, config.hidden_size)

    def forward(self, state: torch.Tensor, candidate: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
        kept, added = (self.forget_gate(inner) + 1).sigmoid(), (self.input_gate(inner) - 1).sigmoid()
        return kept * state + added * candidate


GATES = {"fixed": FixedGate, "lstm": LSTMGate}


class GatedFeedForward(nn.Module):
    """The feed-forward of a state, with a gate after it. With `state_update="single"` a tanh comes before the gate."""

    def __init__(self, config: BlockRecurrentConfig, size: int):
        super().__init__()
        self.fc1 = nn.Linear(size, config.intermediate_size, bias=False)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = activation(config.hidden_act)
        self.is_single = config.state_update == "single"
        self.gate = GATES[config.state_gate](config, config.intermediate_size)

    def forward(self, state: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        inner = self.act_fn(self.fc1(inputs))
        candidate = self.fc2(inner)
        return self.gate(state, candidate.tanh() if self.is_single else candidate, inner)


class BlockState(nn.Module):
    """The state of a layer, `(B, S, E)`: its learned start and its update. Figure 2, right.

    c = gate(c, o_proj [self-attention of c; attention of c to the tokens of a block and of the window before it])
    c = gate(c, feed-forward(norm(c)))        only with "dual"

    "skip" has the first line alone; "single" has one gate, after the feed-forward of the attention's heads.
    """

    def __init__(self, config: BlockRecurrentConfig, layer_idx: int):
        super().__init__()
        heads, update = 2 * config.num_attention_heads * config.head_dim, config.state_update
        self.start = LearnedVectors(config, std=0.1)
        self.position_embeddings = LearnedVectors(config, std=1.0)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attn = CrossAttention(config, layer_idx)
        self.attn.attention_dropout = 0.0  # no dropout in the state
        self.attn_gate: nn.Module | None = None
        self.mlp_layernorm: nn.Module | None = None
        self.mlp: nn.Module | None = None
        if update == "single":
            self.attn.o_proj = nn.Identity()
        else:
            self.attn_gate = GATES[config.state_gate](config, heads)
        if update == "dual":
            self.mlp_layernorm = nn.RMSNorm(config.hidden_size, eps=config.layer_norm_eps)
        if update != "skip":
            self.mlp = GatedFeedForward(config, heads if update == "single" else config.hidden_size)

    def inputs(self, state: torch.Tensor) -> torch.Tensor:
        """The input of the attention: each vector has a position embedding (the paper's state IDs), so that they differ."""
        return self.input_layernorm(state) + self.position_embeddings()

    def project(self, state: torch.Tensor) -> Tensors:
        """Keys and values of the state, each `(B, H, S, D)`, which the state and the tokens read."""
        return self.attn.project(self.inputs(state))

    def forward(
        self, state: torch.Tensor, own: Tensors, tokens: Tensors, visible: torch.Tensor | None
    ) -> torch.Tensor:
        """The state after a block, from its `own` keys and values and those of the tokens."""
        inputs, (key, value) = self.inputs(state), own
        found, _ = self.attn.attend_with_bias(self.attn.queries(inputs), key, value, None, None)
        found = torch.cat([found, self.attn.cross_attend(inputs, tokens, visible)], dim=2).flatten(2)
        if self.attn_gate is not None:
            state = self.attn_gate(state, self.attn.o_proj(found), found)
        if self.mlp is None:
            return state
        return self.mlp(state, found if self.mlp_layernorm is None else self.mlp_layernorm(state))

    def started(self, written: torch.Tensor, begun: torch.Tensor) -> torch.Tensor:
        """What rows read, `(B, S, E)`: what they have `written`, or the start where they have not `begun` `(B,)`."""
        start = self.start().to(written.dtype)
        return torch.where(begun[:, None, None].to(start.device), written.to(start.device), start)

    def read(self, written: torch.Tensor, begun: torch.Tensor, layer_cache: LayerCache | None) -> Tensors:
        """Keys and values of the state before a call. A cache keeps them until the state is written."""
        if layer_cache is None or torch.is_grad_enabled():
            return self.project(self.started(written, begun))
        if layer_cache.derived is None or layer_cache.derived[0] is not written:
            layer_cache.derived = written, self.project(self.started(written, begun))
        return layer_cache.derived[1]

    def run(
        self, written: torch.Tensor, own: Tensors, tokens: Tensors, plan: BlockPlan
    ) -> tuple[Tensors, torch.Tensor]:
        """Update the state at every end of a block.

        Args:
            written: the state before the call, as it is remembered.
            own: keys and values of this state, as [`read`] gives them.
            tokens: keys and values of `[memory; segment]`, each `(B, H, K, D)`.
            plan: the ends of blocks in the call.

        Returns:
            Keys and values of all states that the tokens read, concatenated, each `(B, H, states, D)`, and the state after
            the call.
        """
        blocks, read = plan.blocks, [own]
        if self.training and blocks.num_read == 1:
            # no token reads an update: DDP still needs a gradient of every weight in every step
            unread = self(self.started(written, plan.begun), own, tuple(each[:, :, -1:] for each in tokens), None)
            read = [(own[0] + 0 * unread.mean(), own[1])]
        if not blocks.ends:
            return read[0], written
        state = self.started(written, plan.begun)
        for index, (columns, visible, ended, document_begins) in enumerate(blocks.ends, start=1):
            here = tuple(gather_columns(each, columns.expand(len(each), -1), dim=2) for each in tokens)
            state = torch.where(ended[:, None, None], self(state, own, here, visible), state)
            if document_begins is not None:
                state = torch.where(document_begins[:, None, None], self.start().to(state.dtype), state)
            if index < max(len(blocks.ends), blocks.num_read):
                own = self.project(state)
            if index < blocks.num_read:
                read.append(own)
        return tuple(torch.cat(each, dim=2) for each in zip(*read, strict=True)), state


__all__ = ["BlockPlan", "BlockState", "StateReadingAttention"]
