"""What an encoder-decoder is given: the mask of a source goes with its encoding, and what cannot be meant is refused."""

import pytest
import torch
from tiny import EXACT, VOCAB_SIZE, tiny_config, tokens

from transformers_xl import MemoryEncoderDecoderConfig, MemoryForConditionalGeneration, ShawTransformerEncoderConfig

SPECIAL = {"pad_token_id": 2, "bos_token_id": 1, "eos_token_id": 0}
SOURCE, TARGET = tokens(2, 6).clamp(min=3), tokens(2, 5, seed=1).clamp(min=3)
PADDED = torch.cat([SOURCE, torch.full((2, 3), 2)], 1)
GENERATED = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}


def built(**fields) -> MemoryForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    encoder = ShawTransformerEncoderConfig(**sizes, **SPECIAL, dropout=0.0, initializer_range=0.3)
    decoder = tiny_config("transformer_xl", **SPECIAL, initializer_range=0.3)
    config = MemoryEncoderDecoderConfig(encoder=encoder, decoder=decoder, **fields)
    return MemoryForConditionalGeneration(config).double().eval()


@torch.no_grad()
def test_the_mask_of_a_source_goes_with_its_encoding() -> None:
    model = built()
    loss, text = model(SOURCE, labels=TARGET).loss, model.generate(SOURCE, **GENERATED)
    encoded = model.encode(PADDED)
    as_a_tuple = model.encode(PADDED).to_tuple()[:1]  # which has no mask
    torch.testing.assert_close(model(SOURCE, labels=TARGET, shift_labels=None).loss, loss, **EXACT)
    for given in (
        {"input_ids": PADDED},
        {"encoder_outputs": encoded},
        {"encoder_outputs": encoded, "input_ids": PADDED},
        {"encoder_outputs": as_a_tuple, "attention_mask": PADDED != 2},
    ):
        torch.testing.assert_close(model(labels=TARGET, **given).loss, loss, **EXACT)
        assert model.generate(**given, **GENERATED).equal(text)
        assert model.generate(**given, **GENERATED, num_beams=2).equal(
            model.generate(SOURCE, **GENERATED, num_beams=2)
        )


@torch.no_grad()
def test_a_mask_of_another_source_is_refused() -> None:
    model = built()
    encoded = model.encode(SOURCE)
    for mask in (torch.ones(2, 5), torch.ones(2, 1), torch.ones(1, 6), torch.ones(2, 7)):
        with pytest.raises(ValueError, match=r"`attention_mask` has shape.*\(2, 6\)"):
            model(encoder_outputs=encoded, attention_mask=mask, labels=TARGET)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shift_labels": TARGET}, "`shift_labels` was given"),
        ({"labels": TARGET[0]}, r"`labels` is a Tensor of shape \(5,\)"),
        ({"labels": TARGET.tolist()}, "`labels` is a list"),
        ({"labels": TARGET.numpy()}, "`labels` is a ndarray"),
        ({"labels": TARGET + VOCAB_SIZE}, "`labels` holds"),
        ({"labels": TARGET, "reset": torch.tensor([1, 0])}, "`reset` has shape .*int64.* bool"),
        ({"labels": TARGET, "reset": [True, False]}, "`reset` is a list"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(given: dict, message: str) -> None:
    model = built(source_mem_len=4)
    earlier = model(SOURCE, labels=TARGET).source_mems
    with pytest.raises(ValueError, match=message):
        model(SOURCE, source_mems=earlier, **given)


def test_gradients_that_would_be_lost_are_refused() -> None:
    model = built().train()
    plain = torch.autograd.grad(model(SOURCE, labels=TARGET).loss, [*model.parameters()])
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again = torch.autograd.grad(model(SOURCE, labels=TARGET).loss, [*model.parameters()])
    torch.testing.assert_close(again, plain, **EXACT)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="`use_reentrant`=True"):
        model(SOURCE, labels=TARGET)
    with torch.no_grad():
        model(SOURCE, labels=TARGET)
    model.eval()(SOURCE, labels=TARGET)


@pytest.mark.parametrize(
    "reset", [torch.tensor([1, 0]), torch.tensor([True, False, False]), [True, False], torch.ones(2, 1) > 0], ids=str
)
def test_a_reset_of_generated_sentences(reset) -> None:
    model = built(source_mem_len=4)
    with torch.no_grad():
        before = model(SOURCE, labels=TARGET)
    with pytest.raises(ValueError, match="`reset`"):
        model.generate(SOURCE, mems=before.mems, source_mems=before.source_mems, reset=reset, **GENERATED)
