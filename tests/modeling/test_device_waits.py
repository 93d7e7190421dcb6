"""What a training step and a generated token read back from the device: each such read lets a GPU wait for the CPU.

`docs/performance.md` has the table. A plain batch without padding is read; ids and targets are checked on a CPU alone: here
they are not.
"""

import pytest
import torch
from tiny import tiny_model, tokens, variants
from torch.utils._python_dispatch import TorchDispatchMode

from transformers_xl.modeling import checks

READS = {
    "aten._local_scalar_dense.default",
    "aten.nonzero.default",
    "aten.masked_select.default",
    "aten.equal.default",
}
# These follow how far each row is in its block, or which rows are done: how much is computed depends on it.
IN_TRAINING = {
    "block_recurrent", "compressive_transformer", "memorizing_transformer", "recurrent_memory_transformer",
    "segment_memory",
}  # fmt: skip
IN_GENERATION = IN_TRAINING | {"depth_adaptive_transformer", "universal_transformer"}


@pytest.fixture(autouse=True)
def on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As there: nobody looks at ids."""
    monkeypatch.setattr(checks, "check_ids", lambda *_, **__: None)


class Reads(TorchDispatchMode):
    """Counts the operators that hand a number or a size to Python."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += str(function) in READS
        return function(*args, **(kwargs or {}))


def reads_in_training(model) -> int:
    first, second = (model.get_input_embeddings()(tokens(2, 6, seed=seed)).detach() for seed in (0, 1))
    memory = {"mems": model(inputs_embeds=first).mems} if model.config.mem_len else {}
    with Reads() as reads:
        model(inputs_embeds=second, labels=tokens(2, 6), **memory).loss.backward()
    return reads.count


def reads_in_generation(model) -> int:
    first, token = (model.get_input_embeddings()(tokens(2, length)) for length in (6, 1))
    with torch.no_grad():
        cache = model(inputs_embeds=first, use_cache=True).past_key_values
        with Reads() as reads:
            model(inputs_embeds=token, past_key_values=cache)
    return reads.count


@pytest.mark.parametrize("model_type", variants(causal_lm=True))
def test_only_some_variants_let_a_training_step_wait(model_type: str):
    model = tiny_model(model_type, "causal_lm").train()
    assert (reads_in_training(model) > 0) == (model_type.partition("-")[0] in IN_TRAINING)


@pytest.mark.parametrize("model_type", variants(causal_lm=True, memory=("exact", "own")))
def test_only_some_variants_let_a_generated_token_wait(model_type: str):
    model = tiny_model(model_type, "causal_lm")
    assert (reads_in_generation(model) > 0) == (model_type.partition("-")[0] in IN_GENERATION)
