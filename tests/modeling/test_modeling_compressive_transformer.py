"""What the Compressive Transformer adds: old memories are compressed, seen further back, and learn to be of use."""

import pytest
import torch
from naive_compressive_transformer import Naive
from tiny import EXACT, pairwise, tiny_model, tokens

MODEL = "compressive_transformer"
RATE, FAR, MEM_LEN = 3, 2, 5
CUTS = [4, 1, 9, 7, 1, 8]


def language_model(**fields):
    """Blocks of three, of which two are kept, behind a window of five."""
    defaults = {"compression_rate": RATE, "compressed_mem_len": FAR, "mem_len": MEM_LEN}
    return tiny_model(MODEL, "causal_lm", **(defaults | fields))


def read_by_hand(model, input_ids: torch.Tensor, cuts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits `(batch, length, vocab)` and the reconstruction loss of each call, each row on its own."""
    state = dict(model.named_parameters()) | {"lm_head.weight": model.lm_head.weight}
    logits, losses = [], []
    for row in input_ids:
        naive = Naive(state, model.config)
        parts = [naive.read(ids) for ids in row.split(cuts)]
        logits.append(torch.cat([part for part, _ in parts]))
        losses.append(torch.stack([loss for _, loss in parts]))
    return torch.stack(logits), torch.stack(losses).mean(0)


FORMS = pairwise(["conv", "mean", "max"], [True, False], ["empty", "zeros"], ["pre", "post"])
forms = pytest.mark.parametrize(("compression_function", "same_length", "initial_memory", "norm_position"), FORMS)


@forms
def test_values_and_gradients_are_those_of_the_equations(
    compression_function, same_length, initial_memory, norm_position
):
    model = language_model(
        compression_function=compression_function,
        same_length=same_length,
        initial_memory=initial_memory,
        norm_position=norm_position,
    ).train()
    ids = tokens(2, sum(CUTS))
    logits, losses, mems = [], [], None
    for part in ids.split(CUTS, dim=1):
        output = model(part, mems=mems)
        mems = output.mems
        logits.append(output.logits)
        losses.append(output.compression_loss.mean())
    logits, losses = torch.cat(logits, dim=1), torch.stack(losses)
    expected, expected_losses = read_by_hand(model, ids, CUTS)
    torch.testing.assert_close(logits, expected, **EXACT)
    torch.testing.assert_close(losses, expected_losses, **EXACT)
    assert (losses > 0).sum() >= 3

    weight = torch.randn(logits.shape, dtype=logits.dtype, generator=torch.Generator().manual_seed(1))
    parameters = dict(model.named_parameters())
    for ours, by_hand in (((logits * weight).sum(), (expected * weight).sum()), (losses.sum(), expected_losses.sum())):
        if not ours.requires_grad:  # the loss of what learns nothing
            assert compression_function != "conv"
            continue
        found, wanted = (
            dict(zip(parameters, torch.autograd.grad(loss, parameters.values(), allow_unused=True), strict=True))
            for loss in (ours, by_hand)
        )
        for name, gradient in wanted.items():
            nothing = torch.zeros_like(parameters[name])
            pair = (nothing if each is None else each for each in (found[name], gradient))
            torch.testing.assert_close(*pair, **EXACT, msg=lambda text, name=name: f"{name}: {text}")
