"""The head of a base, by the base's own code, with what it has beside a matrix: a bias, a scale, a soft cap."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast


@dataclass
class StatesOfDecoder(MoeModelOutputWithPast):
    """The output of a decoder of any kind, of which a head asks for nothing but its last hidden states."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class NoDecoder(nn.Module):
    """Stands where a decoder stood, and has its attributes: its output is its input."""

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = (decoder,)  # no sub-module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.decoder[0], name)

    def forward(self, *args: Any, **kwargs: Any) -> StatesOfDecoder:
        return StatesOfDecoder(last_hidden_state=kwargs["inputs_embeds"])


class HeadOfBase:
    """What a language model of transformers makes of its last hidden states: its own `forward`, with nothing in place of
    the decoder. The model does not change; what was put into its head (adapters, quantized weights) works here.

    Args:
        base: the language model.
        path: the name of its decoder in it.
    """

    def __init__(self, base: PreTrainedModel, path: str):
        self.head = without_decoder(base, path.split("."))

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """Hidden states `(tokens, hidden_size)` to logits `(tokens, vocab_size)`; or with a batch in front of both."""
        rows = states if states.dim() == 3 else states[None]
        logits = self.head.forward(inputs_embeds=rows, use_cache=False, return_dict=True).logits
        return logits if states.dim() == 3 else logits[0]


def decoder_of(base: PreTrainedModel) -> PreTrainedModel:
    """The part of a language model that gives hidden states. transformers takes the whole of Llama 4 for it."""
    decoder, inner = base.get_decoder(), getattr(base, "model", None)
    return inner if decoder is base and isinstance(inner, PreTrainedModel) else decoder


def head_of_base(base: PreTrainedModel) -> HeadOfBase | None:
    """The head of a language model of transformers; None where it cannot be told from its decoder."""
    decoder = decoder_of(base)  # of some models that is what is called `decoder`, their head
    path = next((name for name, module in base.named_modules() if module is decoder), "")
    takes_states = "inputs_embeds" in inspect.signature(type(base).forward).parameters
    return HeadOfBase(base, path) if path and takes_states and isinstance(decoder, PreTrainedModel) else None


def without_decoder(module: nn.Module, path: list[str]) -> Any:
    """A module with the same parts, but for the decoder at `path` inside it. It has no hooks: they are for whole calls."""
    made = type(module).__new__(type(module))
    nn.Module.__init__(made)
    # neither hooks nor a `forward` that was put over that of the class
    shared = vars(module).keys() - vars(made).keys() - {"forward"} | {"_parameters", "_buffers", "training"}
    vars(made).update({name: vars(module)[name] for name in shared})
    first, *rest = path
    child: nn.Module = without_decoder(getattr(module, first), rest) if rest else NoDecoder(getattr(module, first))
    vars(made)["_modules"] = vars(module)["_modules"] | {first: child}
    return made


__all__ = ["HeadOfBase", "decoder_of", "head_of_base"]
