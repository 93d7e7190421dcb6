"""The outputs of the models: those of transformers, with memory."""

from dataclasses import dataclass

import torch
from transformers import Cache
from transformers.utils import ModelOutput

from transformers_xl.modeling.memory.memory_value import Memory


@dataclass
class MemoryModelOutput(ModelOutput):
    """
    Args:
        last_hidden_state (`torch.Tensor` of shape `(batch, length, hidden_size)`):
            Output of the last layer, after the final norm where there is one (`use_final_norm`).
        past_key_values ([`MemoryCache`], *optional*):
            The cache of the call, which holds `mems` too.
        mems ([`Memory`], *optional*):
            What is remembered, to pass to the next call, without a graph; None where `mem_len` is 0.
        hidden_states (`tuple[torch.Tensor]`, *optional*):
            Input of each layer, then `last_hidden_state`: each `(batch, length, hidden_size)`.
        attentions (`tuple[torch.Tensor]`, *optional*):
            Weights of each layer, `(batch, heads, length, keys)`, the keys being those of `[memory; segment]`
            with the padding of a segment after its tokens. Empty unless `attn_implementation="eager"`.
    """

    last_hidden_state: torch.Tensor
    past_key_values: Cache | None = None
    mems: Memory | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class MemoryHeadOutput(ModelOutput):
    """
    Args:
        loss (`torch.Tensor` of shape `()`, *optional*):
            Where labels were given; nats per token for language models, in training with the auxiliary loss.
        logits (`torch.Tensor`):
            `(batch, length or kept, vocab_size)` for language models, those of an adaptive softmax being logarithms of
            probabilities, and None in its training; `(batch, num_labels)` for sequence classification, `(batch, length,
            num_labels)` for token classification.
        past_key_values, mems, hidden_states, attentions:
            As in [`MemoryModelOutput`].
        token_losses (`torch.Tensor` of shape `(batch, length)`, *optional*):
            Of a language model that was called with `output_token_losses=True`: nats of each target, 0 where there is none.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    past_key_values: Cache | None = None
    mems: Memory | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    token_losses: torch.Tensor | None = None


@dataclass
class MemoryActorCriticOutput(ModelOutput):
    """
    Args:
        logits (`torch.Tensor` of shape `(batch, steps, num_actions)`):
            The policy before its softmax; that of several choices side by side; or means and logarithms of standard
            deviations of numbers, `2 * action_size`. `agent.distribution(logits)` reads them.
        value (`torch.Tensor` of shape `(batch, steps)`):
            The return that the critic expects from each step on.
        past_key_values, mems, hidden_states, attentions:
            As in [`MemoryModelOutput`].
    """

    logits: torch.Tensor | None = None
    value: torch.Tensor | None = None
    past_key_values: Cache | None = None
    mems: Memory | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
