"""The Universal Transformer in plain loops over positions and steps, from the equations of Dehghani et al., 2018,
https://arxiv.org/abs/1807.03819, with the relative positions of ours in place of signals of absolute ones."""

import math

import torch
from reference import attention, part, sinusoid
from torch.nn import functional as F


def by_hand(
    state: dict, input_ids: torch.Tensor, mems: list | None, config, halts: bool = True
) -> tuple[torch.Tensor, ...]:
    """Logits, N and N + R of every position, and the inputs of every step: each position in turn.

    `halts=False` is the form with a fixed number of steps: the output is the state behind the last of them.
    """

    def norm(states, prefix):
        return F.layer_norm(
            states, (config.hidden_size,), state[f"{prefix}.weight"], state[f"{prefix}.bias"], config.layer_norm_eps
        )

    name = "model.layers.shared"
    is_pre = config.norm_position == "pre"
    bias = (state["model.positions.bias.content_bias"], state["model.positions.bias.position_bias"])
    feed_forward, halting = part(state, f"{name}.mlp."), part(state, f"{name}.halting.")
    embedding = state["model.embed_tokens.weight"]
    batch, length = input_ids.shape
    places = [(row, column) for row in range(batch) for column in range(length)]
    states = {(row, i): embedding[input_ids[row, i]] * math.sqrt(config.hidden_size) for row, i in places}
    p_of = {place: [] for place in places}  # of the steps that it ran
    states_of = {place: [] for place in places}
    has_halted = dict.fromkeys(places, False)
    inputs_of_steps = []
    for step in range(1, config.max_steps + 1):
        signal = sinusoid(step, config.hidden_size, -1, embedding.dtype)
        x = torch.stack([torch.stack([states[row, i] + signal for i in range(length)]) for row in range(batch)])
        inputs_of_steps.append(x)
        memory = x[:, :0] if mems is None else mems[step - 1]
        first, second = f"{name}.input_layernorm", f"{name}.post_attention_layernorm"
        reads = [norm(each, first) if is_pre else each for each in (x, memory)]
        hidden = x + attention(part(state, f"{name}.self_attn."), bias, *reads, config)
        hidden = hidden if is_pre else norm(hidden, first)
        inner = norm(hidden, second) if is_pre else hidden
        inner = F.relu(inner @ feed_forward["fc1.weight"].T + feed_forward["fc1.bias"])
        hidden = hidden + inner @ feed_forward["fc2.weight"].T + feed_forward["fc2.bias"]
        hidden = hidden if is_pre else norm(hidden, second)
        for row, i in places:
            if has_halted[row, i]:
                continue  # the state is copied
            states[row, i] = hidden[row, i]
            states_of[row, i].append(hidden[row, i])
            p_of[row, i].append(torch.sigmoid(halting["weight"][0] @ x[row, i] + halting["bias"][0]))
            has_halted[row, i] = halts and sum(p_of[row, i]).item() >= config.halting_threshold
    outputs, costs = {}, {}
    for place in places:
        weights = [p * halts for p in p_of[place][:-1]]
        remainder = 1 - sum(weights)
        costs[place] = len(p_of[place]) + remainder * torch.ones((), dtype=embedding.dtype)
        weighted = [weight * s for weight, s in zip([*weights, remainder], states_of[place], strict=True)]
        outputs[place] = torch.stack(weighted).sum(0)
    output, cost = (
        torch.stack([torch.stack([values[row, i] for i in range(length)]) for row in range(batch)])
        for values in (outputs, costs)
    )
    if config.use_final_norm:
        output = norm(output, "model.norm")
    steps = torch.tensor([[len(p_of[row, i]) for i in range(length)] for row in range(batch)])
    return output @ embedding.T + state["lm_head.bias"], steps, cost, inputs_of_steps
