"""Transformer-XL in plain loops, written from the equations of Dai et al., 2019, https://arxiv.org/abs/1901.02860.

    score[i, j] = ((q_i + u) . k_j + (q_i + v) . r_{i-j}) / sqrt(head_dim)        r_p = W_r R(p)
    R(p) = [sin(p f_0), .., sin(p f_n), cos(p f_0), .., cos(p f_n)]               f_m = 10000^(-2m / hidden_size)

Slow on purpose, and without a line of the package: it takes a state dict, a config and tensors. Gradients by autograd.
"""

import math

import torch
from torch.nn import functional as F


def sinusoid(distance: int, width: int, clamp_len: int, dtype: torch.dtype) -> torch.Tensor:
    """R(distance), sines first, of shape `(width,)`."""
    if clamp_len > 0:
        distance = min(distance, clamp_len)
    angles = [distance * 10000 ** (-2 * m / width) for m in range(width // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=dtype)


def is_visible(distance: int, config) -> bool:
    return distance >= 0 and (distance < config.mem_len or not config.same_length)


def attention(
    weights: dict[str, torch.Tensor], bias: tuple, segment: torch.Tensor, memory: torch.Tensor, config
) -> torch.Tensor:
    """Relative attention of `segment` `(batch, T, hidden)` over `[memory; segment]`, for every i and j in turn.

    `weights` holds the projections by their names, `bias` is (u, v), each `(heads, head_dim)`.
    """
    content_bias, position_bias = bias
    heads, width = config.num_attention_heads, config.head_dim
    context = torch.cat([memory, segment], dim=1)
    query = (segment @ weights["q_proj.weight"].T).unflatten(-1, (heads, width))
    key = (context @ weights["k_proj.weight"].T).unflatten(-1, (heads, width))
    value = (context @ weights["v_proj.weight"].T).unflatten(-1, (heads, width))
    outputs = []
    for i in range(segment.shape[1]):
        scores, seen = [], []
        for j in range(context.shape[1]):
            distance = memory.shape[1] + i - j
            if not is_visible(distance, config):
                continue
            relative = sinusoid(distance, config.hidden_size, config.clamp_len, segment.dtype)
            relative = (weights["r_proj.weight"] @ relative).view(heads, width)
            content_score = ((query[:, i] + content_bias) * key[:, j]).sum(-1)
            position_score = ((query[:, i] + position_bias) * relative).sum(-1)
            scores.append((content_score + position_score) / math.sqrt(width))
            seen.append(value[:, j])
        probabilities = torch.stack(scores).softmax(dim=0)  # (seen, batch, heads)
        outputs.append((probabilities[..., None] * torch.stack(seen)).sum(0).flatten(1))
    return torch.stack(outputs, dim=1) @ weights["o_proj.weight"].T


def part(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def model_logits(
    state: dict[str, torch.Tensor], input_ids: torch.Tensor, mems: list[torch.Tensor] | None, config
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits of the whole language model, and the inputs of its layers, from a state dict of `TransformerXLForCausalLM`."""

    def norm(states, prefix):
        weight, bias = state[f"{prefix}.weight"], state[f"{prefix}.bias"]
        return F.layer_norm(states, (config.hidden_size,), weight, bias, config.layer_norm_eps)

    is_pre = config.norm_position == "pre"
    embedding = state["model.embed_tokens.weight"]
    hidden = embedding[input_ids] * math.sqrt(config.hidden_size)
    inputs = []
    for layer in range(config.num_hidden_layers):
        name = f"model.layers.{layer}"
        inputs.append(hidden)
        memory = hidden[:, :0] if mems is None else mems[layer]
        first, second = f"{name}.input_layernorm", f"{name}.post_attention_layernorm"
        biases = part(state, "model.positions.bias." if config.share_relative_bias else f"{name}.self_attn.bias.")
        bias = (biases["content_bias"], biases["position_bias"])
        normed = [norm(states, first) if is_pre else states for states in (hidden, memory)]
        hidden = hidden + attention(part(state, f"{name}.self_attn."), bias, *normed, config)
        hidden = hidden if is_pre else norm(hidden, first)
        feed_forward = part(state, f"{name}.mlp.")
        inner = norm(hidden, second) if is_pre else hidden
        inner = F.relu(inner @ feed_forward["fc1.weight"].T + feed_forward["fc1.bias"])
        hidden = hidden + inner @ feed_forward["fc2.weight"].T + feed_forward["fc2.bias"]
        hidden = hidden if is_pre else norm(hidden, second)
    if config.use_final_norm:
        hidden = norm(hidden, "model.norm")
    return hidden @ embedding.T + state["lm_head.bias"], inputs
