"""A Llama that reads with a window and sinks, token by token and key by key, as the papers' words say."""

import torch
from transformers import LlamaForCausalLM


def rotate(features: torch.Tensor, position: int, base: float) -> torch.Tensor:
    """`(..., dim)` turned to a position: features i and i + dim / 2 by `position / base^(2i / dim)`."""
    half = features.shape[-1] // 2
    angle = position * base ** (-torch.arange(half, dtype=torch.float64) / half)
    first, second = features[..., :half], features[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], dim=-1)


STEP = 4  # tokens after which sinks move on


def attend(base: LlamaForCausalLM, layer, hidden_states: torch.Tensor, starts: list[int], window: int, sinks: int):
    """The attention of one layer over a text `(batch, length, width)`; `starts`: of each token, where its call begins.

    What a token sees of an earlier call has no gradient. Sinks behind the window stand in front of it, or up to `STEP` - 1
    positions before that.
    """
    attention, config = layer.self_attn, base.config
    theta, groups = config.rope_parameters["rope_theta"], config.num_attention_heads // config.num_key_value_heads
    heads = [
        projection(hidden_states).unflatten(-1, (-1, config.head_dim))
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    ]
    queries, keys, values = heads[0], *(each.repeat_interleave(groups, dim=2) for each in heads[1:])
    outputs = []
    for here, start in enumerate(starts):
        query, scores, seen = rotate(queries[:, here], here, theta), [], []
        for there in range(here + 1):
            is_far_sink = there < sinks and here - there >= window
            if here - there >= window and not is_far_sink:
                continue
            place = there + max((here - (window - 1) - sinks) // STEP, 0) * STEP if is_far_sink else there
            key, value = keys[:, there], values[:, there]
            if starts[there] != start:
                key, value = key.detach(), value.detach()
            scores.append((query * rotate(key, place, theta)).sum(-1) * config.head_dim**-0.5)
            seen.append(value)
        weights = torch.stack(scores, dim=-1).softmax(dim=-1)
        outputs.append((weights[..., None] * torch.stack(seen, dim=2)).sum(dim=2).flatten(1))
    return attention.o_proj(torch.stack(outputs, dim=1))


def naive_logits(
    base: LlamaForCausalLM, input_ids: torch.Tensor, lengths: list[int], window: int, sinks: int = 0
) -> torch.Tensor:
    """Logits `(batch, length, vocab_size)` of a text that is read in calls of `lengths`."""
    starts = [start for index, count in enumerate(lengths) for start in [sum(lengths[:index])] * count]
    hidden_states = base.model.embed_tokens(input_ids)
    for layer in base.model.layers:
        normed = layer.input_layernorm(hidden_states)
        hidden_states = hidden_states + attend(base, layer, normed, starts, window, sinks)
        hidden_states = hidden_states + layer.mlp(layer.post_attention_layernorm(hidden_states))
    return base.lm_head(base.model.norm(hidden_states))
