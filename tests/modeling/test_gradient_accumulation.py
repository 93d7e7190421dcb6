"""Loss and gradients of micro-batches with `num_items_in_batch` add up to those of one batch, auxiliary losses included."""

import pytest
import torch
from tiny import tiny_model, tokens

LENGTH = 10
MODELS = {
    "transformer_xl": {},
    "clusters": {"cutoffs": [10, 20], "div_val": 2},
    "adaptive_span": {"span_loss_coef": 0.02, "initial_span": 0.5},
    "universal_transformer": {"ponder_loss_coef": 0.3},
}
CASES = {
    **{(name, head): fields for name, fields in MODELS.items() for head in ("causal_lm", "token_classification")},
    **{(name, "sequence_classification"): fields | {"num_labels": 3} for name, fields in MODELS.items()},
    ("universal_transformer", "regression"): {"num_labels": 1, "ponder_loss_coef": 0.3},
    ("universal_transformer", "several labels"): {"num_labels": 3, "ponder_loss_coef": 0.3},
    ("vanilla_transformer", "causal_lm"): {},
    ("depth_adaptive_transformer", "causal_lm"): {"halting": "geometric"},
    ("depth_adaptive_transformer", "sequence"): {"halting": "sequence"},
}


def labels_for(head: str, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """Labels of which the rows have unequally many."""
    if head == "regression":
        return {"labels": torch.tensor([0.3, -1.0, 2.0, 0.5])}
    if head == "several labels":
        return {"labels": tokens(4, 3, seed=1) % 2 * 1.0}
    if head == "sequence_classification":
        return {"labels": torch.tensor([0, 2, 1, -100])}
    if head == "token_classification":
        return {"labels": (ids % 2).where(mask, -100)}
    targets = tokens(4, LENGTH, seed=1).where(mask, -100)
    targets[0, 2:] = -100
    return {"shift_labels": targets}


def gradients_of(model, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    gradients = torch.autograd.grad(loss, [*named.values()], materialize_grads=True)
    return dict(zip(named, gradients, strict=True))


@pytest.mark.parametrize(("name", "head"), CASES)
def test_parts_of_a_batch_add_up_to_it(name, head):
    model_type = "transformer_xl" if name == "clusters" else name
    model_head = head if head in ("causal_lm", "token_classification") else "sequence_classification"
    model_head = "causal_lm" if head == "sequence" else model_head
    model = tiny_model(model_type, model_head, **CASES[name, head]).train()
    ids, mask = tokens(4, LENGTH), torch.ones(4, LENGTH, dtype=torch.bool)
    mask[1, 4:] = mask[3, 7:] = False
    labels = labels_for(head, ids, mask)
    count = sum((value != -100).sum() for value in labels.values())

    def loss_of(rows: slice, **kwargs) -> torch.Tensor:
        here = {key: value[rows] for key, value in labels.items()}
        return model(ids[rows], attention_mask=mask[rows], **here, **kwargs).loss

    # the plain call of the vanilla Transformer divides second targets by their own number, which is another
    whole = loss_of(slice(0, 4), **({"num_items_in_batch": count} if name == "vanilla_transformer" else {}))
    parts = sum(loss_of(rows, num_items_in_batch=count) for rows in (slice(0, 3), slice(3, 4)))
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-6)
    expected = gradients_of(model, whole)
    for parameter, gradient in gradients_of(model, parts).items():
        torch.testing.assert_close(gradient, expected[parameter], atol=1e-6, rtol=1e-5, msg=parameter)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("model_type", ["transformer_xl", "vanilla_transformer", "segment_memory"])
def test_the_items_of_labels_are_those_that_are_predicted(model_type, training):
    """transformers counts labels without the first of each row: behind padding that one is a text's first, too."""
    model = tiny_model(model_type, "causal_lm").train(training)
    ids = tokens(2, 5)
    expected = model(ids, labels=ids, num_items_in_batch=ids[:, 1:].numel()).loss
    for left, right in ((0, 3), (3, 0), (2, 1)):
        labels = torch.nn.functional.pad(ids, (left, right), value=-100)
        mask = torch.nn.functional.pad(torch.ones_like(ids), (left, right))
        items = (labels[:, 1:] != -100).sum()
        padded = {"input_ids": torch.nn.functional.pad(ids, (left, right)), "attention_mask": mask}
        loss = model(**padded, labels=labels, num_items_in_batch=items).loss
        torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
