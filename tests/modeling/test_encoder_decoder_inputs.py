"""What an encoder-decoder is given: the mask of a source goes with its encoding, and what cannot be meant is refused."""

import pytest
import torch
from tiny import EXACT, VOCAB_SIZE, assert_same_memory, tiny_config, tokens

from transformers_xl import (
    MemoryEncoderDecoderConfig,
    MemoryForConditionalGeneration,
    ShawTransformerEncoderConfig,
    UniversalTransformerEncoderConfig,
)
from transformers_xl.modeling.modeling_memory_encoder_decoder import forget_source

SPECIAL = {"pad_token_id": 2, "bos_token_id": 1, "eos_token_id": 0}
SOURCE, TARGET = tokens(2, 6).clamp(min=3), tokens(2, 5, seed=1).clamp(min=3)
PADDED = torch.cat([SOURCE, torch.full((2, 3), 2)], 1)
GENERATED = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}


def built(
    encoder_class=ShawTransformerEncoderConfig, of_encoder=None, special=SPECIAL, **fields
) -> MemoryForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    encoder = encoder_class(**sizes, **special, dropout=0.0, initializer_range=0.3, **(of_encoder or {}))
    decoder = tiny_config("transformer_xl", **special, initializer_range=0.3)
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


@torch.no_grad()
def test_a_start_that_is_the_pad_token_is_the_last_of_them() -> None:
    """As with GPT-2's tokenizer, which has one special token. The Trainer takes the labels, to smooth them."""
    model = built(special=SPECIAL | {"bos_token_id": 2})
    labels = torch.cat([torch.tensor([[3, 4], [-100, -100]]), TARGET], 1)
    ids = model.prepare_decoder_input_ids_from_labels(labels)
    assert ids[:, :3].tolist() == [[2, 3, 4], [2, 2, 2]]
    found, expected = model(SOURCE, decoder_input_ids=ids).logits, model(SOURCE, labels=labels).logits
    torch.testing.assert_close(found[labels != -100], expected[labels != -100], **EXACT)


@pytest.mark.parametrize("use_cache", [False, True])
@torch.no_grad()
def test_a_document_that_begins_in_a_sentence_that_is_read_in_two_calls(use_cache: bool) -> None:
    model, reset = built(source_mem_len=9), torch.tensor([True, False])
    torch.nn.init.normal_(model.earlier_source)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.cross_attention.earlier_bias)
    before = model(SOURCE.flip(1), decoder_input_ids=TARGET)
    encoded, earlier = model.encode(SOURCE), before.source_mems
    given = {"encoder_outputs": encoded, "source_mems": earlier}
    whole = model(decoder_input_ids=TARGET, mems=before.mems, reset=reset, **given)
    assert whole.source_mems.lengths.tolist() == [6, 9]
    kept = {"decoder_input_ids": TARGET[:, :3], "mems": before.mems, "use_cache": use_cache}
    first = model(**kept, reset=reset, **given)
    if use_cache:
        then = {"past_key_values": first.past_key_values}
    else:
        then, given = {"mems": first.mems}, given | {"source_mems": forget_source(earlier, reset)}
    second = model(decoder_input_ids=TARGET[:, 3:], **then, **given)
    torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole.logits, **EXACT)
    assert_same_memory(second.source_mems, whole.source_mems)
    if use_cache:  # where the other row begins one too, the first has still forgotten
        first = model(**kept, reset=reset, **given)
        both = model(decoder_input_ids=TARGET[:, 3:], past_key_values=first.past_key_values, reset=~reset, **given)
        torch.testing.assert_close(both.logits[0], second.logits[0], **EXACT)
        assert both.source_mems.lengths.tolist() == [6, 6]
    first = model(**kept, **given | {"source_mems": earlier})
    assert (first.logits - whole.logits[:, :3])[0].abs().max() > 1e-3
    then = {"past_key_values": first.past_key_values} if use_cache else {"mems": first.mems}
    begins = model(decoder_input_ids=TARGET[:, 3:], reset=reset, **then, **given)  # in the second call
    alone = model(decoder_input_ids=TARGET[:, 3:], encoder_outputs=encoded)
    torch.testing.assert_close(begins.logits[0], alone.logits[0], **EXACT)


def test_gradients_after_a_beginning_that_was_read_without_them() -> None:
    """Keys and values of the source, which the cache keeps, are projected again."""
    model = built(source_mem_len=9)
    with torch.no_grad():
        earlier = model(SOURCE.flip(1), decoder_input_ids=TARGET).source_mems
    given = {"encoder_outputs": model.encode(SOURCE), "source_mems": earlier}
    with torch.no_grad():
        first = model(decoder_input_ids=TARGET[:, :3], use_cache=True, **given)
        again = model(decoder_input_ids=TARGET[:, :3], **given)
    reset = torch.tensor([True, False])
    weights = [*model.encoder.parameters(), model.earlier_source]
    weights += [each.k_proj.weight for each in (layer.cross_attention for layer in model.model.layers)]

    def gradients(**kwargs):
        logits = model(decoder_input_ids=TARGET[:, 3:], **given, **kwargs).logits
        return torch.autograd.grad(logits.square().sum(), weights, retain_graph=True)

    expected = gradients(mems=again.mems)
    torch.testing.assert_close(gradients(past_key_values=first.past_key_values), expected, **EXACT)
    # and of a row that began a document there
    with torch.no_grad():
        first = model(decoder_input_ids=TARGET[:, :3], use_cache=True, reset=reset, **given)
    cached = gradients(past_key_values=first.past_key_values)
    given["source_mems"] = forget_source(earlier, reset)
    torch.testing.assert_close(cached, gradients(mems=first.mems), **EXACT)


def test_what_an_encoder_learns_beside_is_in_the_loss() -> None:
    """The mean over the tokens of each text, weighed by its labels; calls of an accumulated step add up."""
    labels = TARGET.clone()
    labels[0, 2:] = -100
    losses = {}
    for coefficient in (0.0, 0.5):
        model = built(UniversalTransformerEncoderConfig, {"ponder_loss_coef": coefficient}).train()
        losses[coefficient] = model(PADDED, labels=labels).loss
        smaller = [model(PADDED[row : row + 1], labels=labels[row : row + 1]).loss for row in range(2)]
        rows = [
            model(PADDED[row : row + 1], labels=labels[row : row + 1], num_items_in_batch=7).loss for row in range(2)
        ]
        torch.testing.assert_close(sum(rows), losses[coefficient], **EXACT)
        torch.testing.assert_close((2 * smaller[0] + 5 * smaller[1]) / 7, losses[coefficient], **EXACT)
    cost = model.encoder.auxiliary_loss(model.encoder(PADDED, PADDED != 2))
    cost = (cost[:, :6].mean(1) * torch.tensor([2, 5])).sum() / 7
    torch.testing.assert_close(losses[0.5] - losses[0.0], 0.5 * cost, **EXACT)
    assert cost > 0
    model.eval()
    with torch.no_grad():
        evaluated = built(UniversalTransformerEncoderConfig, {"ponder_loss_coef": 0.0})(PADDED, labels=labels).loss
        torch.testing.assert_close(model(PADDED, labels=labels).loss, evaluated, **EXACT)
