"""torch's LSTM as an agent of `examples/agents/ppo.py`: what `bench_memory_tasks.py` compares memories with."""

from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transformers_xl.configuration.configuration_agent import AgentConfig
from transformers_xl.modeling.layers.observation_encoders import build_encoder
from transformers_xl.modeling.layers.policies import build_policy


class State(NamedTuple):
    """What an LSTM remembers, each `(layers, batch, width)`."""

    hidden: torch.Tensor
    cell: torch.Tensor

    def rows(self, rows: torch.Tensor) -> "State":
        return State(*(each[:, rows] for each in self))


class LSTMForActorCritic(nn.Module):
    """Reads, remembers and answers as `MemoryForActorCritic` does, as far as PPO asks.

    Args:
        config: of its observations and actions; its width and depth too.
        encoder: what reads observations, in place of the one that `config` asks for.
    """

    def __init__(self, config: AgentConfig, encoder: nn.Module | None = None):
        super().__init__()
        self.config, width = config, config.hidden_size
        self.observation_proj = build_encoder(config, width) if encoder is None else encoder
        self.embed_tokens = nn.Embedding(config.vocab_size, width) if self.observation_proj is None else None
        self.lstm = nn.LSTM(width, width, config.num_hidden_layers, batch_first=True)
        self.policy_head, self.value_head = build_policy(config, width), nn.Linear(width, 1)

    def distribution(self, logits: torch.Tensor) -> torch.distributions.Distribution:
        return self.policy_head.distribution(logits)

    def forward(
        self, observations=None, input_ids=None, reset=None, mems=None, past_key_values=None, use_cache=None
    ) -> SimpleNamespace:
        """`reset` is `(batch,)`, of the first step, or `(batch, steps)`."""
        inputs = self.embed_tokens(input_ids) if observations is None else self.observation_proj(observations)
        begins = torch.zeros(inputs.shape[:2], dtype=torch.bool)
        begins[:, : 1 if reset.dim() == 1 else None] = reset if reset.dim() == 2 else reset[:, None]
        state = mems if past_key_values is None else past_key_values
        if state is None:
            zeros = inputs.new_zeros(self.lstm.num_layers, len(inputs), self.lstm.hidden_size)
            state = State(zeros, zeros)
        state = State(*(each * ~begins[:, 0, None] for each in state))
        if begins[:, 1:].any():
            hidden, state = self.read_episodes(inputs, begins, state)
        else:
            hidden, state = self.lstm(inputs, tuple(state))
            state = State(*state)
        return SimpleNamespace(
            logits=self.policy_head(hidden), value=self.value_head(hidden)[..., 0], mems=state, past_key_values=state
        )

    def read_episodes(self, inputs: torch.Tensor, begins: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Hidden states `(batch, steps, width)`, and the state after them. Every episode is a sequence by itself, so that
        all are read in one call."""
        starts = begins.clone()
        starts[:, 0] = True
        number = starts.flatten().cumsum(0).view_as(starts) - 1  # of the sequence that a step belongs to
        lengths = number.flatten().bincount()
        place = torch.arange(number.numel()) - (lengths.cumsum(0) - lengths)[number.flatten()]
        padded = inputs.new_zeros(len(lengths), int(lengths.max()), inputs.shape[2])
        padded[number.flatten(), place] = inputs.flatten(0, 1)
        first = [each.new_zeros(each.shape[0], len(lengths), each.shape[2]) for each in state]
        for whole, each in zip(first, state, strict=True):
            whole[:, number[:, 0]] = each
        packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        packed, last = self.lstm(packed, tuple(first))
        hidden, _ = pad_packed_sequence(packed, batch_first=True)
        return hidden[number.flatten(), place].view(*number.shape, -1), State(*last).rows(number[:, -1])


__all__ = ["LSTMForActorCritic", "State"]
