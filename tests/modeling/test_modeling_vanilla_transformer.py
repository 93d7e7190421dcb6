"""What the vanilla Transformer is: absolute positions, fixed segments, and predictions that exist in training only."""

import math

import pytest
import torch
from by_hand import greedy
from tiny import EXACT, tiny_config, tiny_model, tokens
from torch.nn import functional as F

from transformers_xl import VanillaTransformerForCausalLM

TYPES = pytest.mark.parametrize("position_type", ["per_layer", "sinusoid"])


def moved_right(ids: torch.Tensor, mask: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    return F.pad(ids, (by, 0)), F.pad(mask, (by, 0))


@TYPES
def test_positions_are_added_where_the_paper_adds_them(position_type):
    model = tiny_model("vanilla_transformer", position_type=position_type)
    inputs = []
    for layer in model.layers:
        layer.input_layernorm.register_forward_hook(lambda module, arguments, output: inputs.append(arguments[0]))
    states = model(tokens(1, 7), output_hidden_states=True).hidden_states
    for index, layer in enumerate(model.layers):
        if position_type == "per_layer":
            expected = layer.positions.weight[:7]
        elif index == 0:
            angles = [[p / 10000 ** (2 * m / 32) for m in range(16)] for p in range(7)]
            rows = [[math.sin(a) for a in row] + [math.cos(a) for a in row] for row in angles]
            expected = torch.tensor(rows, dtype=torch.float64)
        else:
            expected = torch.zeros(7, 32, dtype=torch.float64)
        torch.testing.assert_close(inputs[index][0] - states[index][0], expected, **EXACT)


@TYPES
def test_positions_count_real_tokens_from_where_the_text_begins(position_type):
    """Padding moves nothing; a document inside of a segment begins at position 0, and sees nothing before it."""
    model = tiny_model("vanilla_transformer", position_type=position_type)
    ids = tokens(1, 7)
    expected = model(ids).last_hidden_state
    for by in (1, 5):
        padded, mask = moved_right(ids, torch.ones_like(ids), by)
        torch.testing.assert_close(model(padded, attention_mask=mask).last_hidden_state[:, by:], expected, **EXACT)
    both = torch.cat([tokens(1, 4, seed=1), ids], dim=1)
    reset = torch.zeros_like(both, dtype=torch.bool)
    reset[0, 4] = True
    torch.testing.assert_close(model(both, reset=reset).last_hidden_state[:, 4:], expected, **EXACT)
    padded, mask = moved_right(both, torch.ones_like(both), 3)
    output = model(padded, attention_mask=mask, reset=F.pad(reset, (3, 0)))
    torch.testing.assert_close(output.last_hidden_state[:, 7:], expected, **EXACT)


def test_a_text_longer_than_its_positions_is_refused():
    model = tiny_model("vanilla_transformer", segment_length=8)
    model(tokens(1, 8))
    with pytest.raises(ValueError, match="`segment_length`=8"):
        model(tokens(1, 9))


@pytest.mark.parametrize("decoding", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generate_reads_the_last_segment_length_tokens(decoding):
    model = tiny_model("vanilla_transformer", "causal_lm", segment_length=8)
    lengths = []
    model.model.register_forward_hook(
        lambda module, arguments, options, output: lengths.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    ids = tokens(2, 5)
    text = model.generate(ids, max_new_tokens=12, do_sample=False, **decoding)
    assert lengths == [min(length, 8) for length in range(5, 17)]
    if not decoding:
        expected = ids
        for _ in range(12):
            following = model(expected[:, -8:]).logits[:, -1:].argmax(-1)
            expected = torch.cat([expected, following], dim=1)
        assert torch.equal(text, expected)


def test_generate_from_prompts_longer_than_a_segment_and_padded():
    model = tiny_model("vanilla_transformer", "causal_lm", segment_length=8)
    ids, mask = tokens(2, 12), torch.ones(2, 12, dtype=torch.long)
    mask[1, :9] = 0
    both = greedy(model, ids, new=9, attention_mask=mask)
    assert torch.equal(both[0], greedy(model, ids[:1], new=9)[0])
    assert torch.equal(both[1, 9:], greedy(model, ids[1:, 9:], new=9)[0])


def nats(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("progress", [0.0, 0.2, 0.3, 0.9])
def test_training_loss_is_its_sum(norm_position, progress):
    """Layers of 4, "hard": layer l predicts while the progress is below l/8; the second target where there is one."""
    model = tiny_model("vanilla_transformer", "causal_lm", num_hidden_layers=4, norm_position=norm_position).train()
    model.training_progress = progress
    ids = tokens(2, 9)
    states = model(ids, output_hidden_states=True, labels=ids).hidden_states
    expected = 0.0
    for layer in range(4):
        if layer == 3 or progress < (layer + 1) / 8:
            hidden = states[layer + 1]
            hidden = model.model.norm(hidden) if norm_position == "pre" and layer < 3 else hidden
            head = model.lm_head if layer == 3 else model.auxiliary.next_token[layer]
            expected = expected + nats(head(hidden)[:, :-1], ids[:, 1:])
            expected = expected + 0.5 * nats(model.auxiliary.second_token[layer](hidden)[:, :-2], ids[:, 2:])
    torch.testing.assert_close(model(ids, labels=ids).loss.double(), expected, atol=1e-5, rtol=1e-5)
    shifted = F.pad(ids[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(model(ids, shift_labels=shifted).loss, model(ids, labels=ids).loss)
    summed = model(ids, labels=ids, num_items_in_batch=32).loss
    last_alone = model.eval()(ids, labels=ids).loss
    torch.testing.assert_close(last_alone.double(), nats(model(ids).logits[:, :-1], ids[:, 1:]), atol=1e-5, rtol=1e-5)
    assert summed < expected


def test_what_exists_in_training_only_can_be_left_behind(tmp_path):
    model = tiny_model("vanilla_transformer", "causal_lm", dtype=torch.float32)
    expected, size = model(tokens(2, 7)).logits, model.num_parameters()
    model.save_pretrained(tmp_path / "training")
    again = VanillaTransformerForCausalLM.from_pretrained(tmp_path / "training")
    assert len(again.auxiliary.second_token) == 2  # training goes on where it stopped
    torch.testing.assert_close(again.auxiliary.state_dict(), model.auxiliary.state_dict(), atol=0, rtol=0)
    again.prepare_for_inference()
    assert again.num_parameters() == size - 3 * (32 * 37 + 37)
    again.save_pretrained(tmp_path / "finished")
    finished, report = VanillaTransformerForCausalLM.from_pretrained(tmp_path / "finished", output_loading_info=True)
    assert finished.auxiliary is None
    assert not any(report.values())
    torch.testing.assert_close(finished(tokens(2, 7)).logits, expected)
    assert finished.train()(tokens(2, 7), labels=tokens(2, 7)).loss.isfinite()


@pytest.mark.parametrize(
    "fields",
    [{"position_type": "rotary"}, {"intermediate_losses": "soft"}, {"num_targets": 3}, {"second_target_weight": -1.0}],
    ids=str,
)
def test_values_of_the_config(fields):
    with pytest.raises(ValueError, match=f"`{next(iter(fields))}`"):
        tiny_config("vanilla_transformer", **fields)


def padded(ids: torch.Tensor, left: int, right: int) -> dict[str, torch.Tensor]:
    mask = F.pad(torch.ones_like(ids), (left, right))
    labels = F.pad(ids, (left, right), value=-100)
    return {"input_ids": F.pad(ids, (left, right)), "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("every_position", [True, False])
def test_padding_predicts_no_second_token(every_position):
    model = tiny_model("vanilla_transformer", "causal_lm", every_position_loss=every_position).train()
    ids = tokens(1, 6)
    expected = model(ids, labels=ids).loss
    for left, right in ((3, 0), (0, 3), (2, 1)):
        torch.testing.assert_close(model(**padded(ids, left, right)).loss, expected, **EXACT)


def test_nothing_is_predicted_across_documents():
    """Two documents in a row, whose first labels are left out as transformers' collators do, cost what they cost apart."""
    model = tiny_model("vanilla_transformer", "causal_lm").train()
    first, second = tokens(1, 4), tokens(1, 5, seed=1)
    places = torch.cat([torch.arange(4), torch.arange(5)])[None]
    labels = torch.cat([first, second], dim=1)
    labels[0, 4] = -100
    packed = model(torch.cat([first, second], 1), position_ids=places, labels=labels, num_items_in_batch=7).loss
    apart = sum(model(each, labels=each, num_items_in_batch=7).loss for each in (first, second))
    torch.testing.assert_close(packed, apart, **EXACT)


def test_the_last_position_of_each_row_is_that_with_a_target():
    """Rows of unequal length weigh the same; the items of the Trainer are all targets."""
    options = {"every_position_loss": False, "num_targets": 1, "intermediate_losses": "none"}
    model = tiny_model("vanilla_transformer", "causal_lm", **options).train()
    rows = [tokens(1, 6), tokens(1, 4, seed=1)]
    expected = torch.stack([nats(model(each).logits[:, -2:-1], each[:, -1:]) for each in rows]).mean()
    batch = {
        name: torch.cat(each)
        for name, each in zip(
            ("input_ids", "attention_mask", "labels"),
            zip(padded(rows[0], 0, 0).values(), padded(rows[1], 0, 2).values(), strict=True),
            strict=True,
        )
    }
    torch.testing.assert_close(model(**batch).loss, expected, **EXACT)
    torch.testing.assert_close(model(**batch, num_items_in_batch=8).loss, expected, **EXACT)
    batch["labels"] = torch.full_like(batch["labels"], -100)  # one of several calls of a step may have none
    assert model(**batch, num_items_in_batch=8).loss == 0


def test_a_text_of_two_tokens_has_no_second_target():
    model = tiny_model("vanilla_transformer", "causal_lm").train()
    assert model(tokens(1, 2), labels=tokens(1, 2)).loss.isfinite()
