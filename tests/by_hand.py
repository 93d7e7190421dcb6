"""What `generate()` must do, in loops that anyone can read."""

import torch
from tiny import memory_of, tiny_model

PAD = 0


def language_model(model_type: str, **fields):
    return tiny_model(model_type, "causal_lm", pad_token_id=PAD, **fields)


def greedy(model, ids: torch.Tensor, new: int = 12, **arguments):
    return model.generate(ids, max_new_tokens=new, do_sample=False, **arguments)


def new_tokens(sequences: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
    return sequences[:, prompt.shape[1] :]


@torch.no_grad()
def greedy_by_hand(model, ids: torch.Tensor, new: int = 12) -> torch.Tensor:
    """Every token from one forward over the whole text, without any memory."""
    for _ in range(new):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids


@torch.no_grad()
def greedy_by_hand_with_mems(model, ids: torch.Tensor, new: int = 12, **memory) -> torch.Tensor:
    """The prompt in one call, then one token per call, with the memory as a value."""
    following = ids
    for _ in range(new):
        output = model(following, **memory)
        following, memory = output.logits[:, -1:].argmax(-1), memory_of(output)
        ids = torch.cat([ids, following], dim=1)
    return ids


@torch.no_grad()
def log_probability(model, sequences: torch.Tensor, prompt_length: int) -> torch.Tensor:
    """Log-probability of all that follows the prompt, by one forward over the whole text."""
    logprobs = model(sequences[:, :-1]).logits.log_softmax(-1)
    return logprobs.gather(-1, sequences[:, 1:, None]).squeeze(-1)[:, prompt_length - 1 :].sum(-1)
