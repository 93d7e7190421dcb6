"""What `generate()` must do, in loops that anyone can read."""

import torch
from tiny import memory_of, tiny_model

PAD = 2  # `tiny.tokens` begin at 3; beam search takes a padding of 0 for none


def language_model(model_type: str, **fields):
    """A model whose text varies and hangs on its memory: a tied head would repeat the last token for ever."""
    defaults = {"pad_token_id": PAD, "tie_word_embeddings": False, "initializer_range": 0.6}
    model = tiny_model(model_type, "causal_lm", **(defaults | fields))
    if model.lm_head.bias is None:
        torch.nn.init.zeros_(model.lm_head.weight[: PAD + 1])  # the other logits lie far apart
    else:
        torch.nn.init.constant_(model.lm_head.bias[: PAD + 1], -100.0)  # a text holds no padding
    return model


def greedy(model, ids: torch.Tensor, new: int = 10, **arguments):
    return model.generate(ids, max_new_tokens=new, do_sample=False, **arguments)


def new_tokens(sequences: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
    return sequences[:, prompt.shape[1] :]


def choose(output, do_sample: bool) -> torch.Tensor:
    """The next token of each row, `(batch, 1)`, from its last logits: in float32, as transformers takes them."""
    logits = output.logits[:, -1].float()
    return torch.multinomial(logits.softmax(-1), 1) if do_sample else logits.argmax(-1, keepdim=True)


@torch.no_grad()
def text_by_hand(model, ids: torch.Tensor, new: int = 10, do_sample: bool = False) -> torch.Tensor:
    """Every token from one forward over the whole text, without any memory."""
    for _ in range(new):
        ids = torch.cat([ids, choose(model(ids), do_sample)], dim=1)
    return ids


@torch.no_grad()
def text_by_hand_with_mems(model, ids: torch.Tensor, new: int = 10, do_sample: bool = False, **memory) -> torch.Tensor:
    """The prompt in one call, then one token per call, with the memory as a value."""
    following = ids
    for _ in range(new):
        output = model(following, **memory)
        following, memory = choose(output, do_sample), memory_of(output)
        ids = torch.cat([ids, following], dim=1)
    return ids


@torch.no_grad()
def log_probability(model, sequences: torch.Tensor, prompt_length: int) -> torch.Tensor:
    """Log-probability of all that follows the prompt, by one forward over the whole text."""
    logprobs = model(sequences[:, :-1]).logits.log_softmax(-1)
    return logprobs.gather(-1, sequences[:, 1:, None]).squeeze(-1)[:, prompt_length - 1 :].sum(-1)
