"""The classes of every variant: whose methods and attributes come first."""

import pytest
from tiny import AROUND_BASES, HEADS, MADE_OF

from transformers_xl.modeling.auto import ENCODERS
from transformers_xl.modeling.heads import MemoryHead
from transformers_xl.modeling.modeling_memory import MemoryModel

OF_ENCODERS = [
    (model_type, head)
    for model_type in ENCODERS
    for head in ("model", "masked_lm", "sequence_classification", "token_classification")
]


@pytest.mark.parametrize(("model_type", "head"), [each for each in HEADS if each[0] not in AROUND_BASES] + OF_ENCODERS)
def test_what_a_variant_sets_comes_before_the_shared_model(model_type, head):
    """The variant's own `PreTrainedModel` says which config and which promises the shared classes have."""
    model_class = getattr(MADE_OF[model_type], f"{head}_class")
    shared = MemoryModel if head == "model" else MemoryHead
    own, *_, last = [base for base in model_class.__mro__ if base.__name__.endswith("PreTrainedModel")][:-1]
    order = [model_class.__mro__.index(base) for base in (own, shared, last)]
    assert order == sorted(order)
    assert issubclass(shared, last)
    assert model_class.config_class is MADE_OF[model_type].config_class
    assert model_class.can_generate() == (head == "causal_lm")
