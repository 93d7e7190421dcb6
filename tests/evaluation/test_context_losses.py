"""The loss of a token given exactly its c preceding tokens, against one call per token and context."""

import numpy as np
import pytest
import torch
from tiny import VOCAB_SIZE, one_of_each_kind, tiny_model, variants
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from transformers_xl.evaluation.context_losses import longest_window, spread_positions, token_losses_with_context

LENGTHS = [1, 3, 7, 8, 20]


def text(length: int = 90) -> np.ndarray:
    return np.random.default_rng(0).integers(3, VOCAB_SIZE, length)


@torch.no_grad()
def by_hand(model, ids: np.ndarray, lengths: list[int], positions) -> np.ndarray:
    """Nats, each from a call that reads the context and nothing else."""
    tokens, limit = torch.from_numpy(ids), longest_window(model)
    rows = []
    for length in lengths:
        length = length if limit is None else min(length, limit)
        logits = [model(tokens[None, t - length : t]).logits[0, -1].float() for t in positions]
        rows.append([-each.log_softmax(-1)[tokens[t]].item() for each, t in zip(logits, positions, strict=True)])
    return np.array(rows)


@pytest.mark.parametrize("model_type", one_of_each_kind(variants(causal_lm=True)))
def test_every_memory_reads_exactly_its_context(model_type: str):
    model = tiny_model(model_type, "causal_lm")
    positions = [20, 24, 28, 29, 50, 89]
    found = token_losses_with_context(model, text(), LENGTHS, positions, batch_size=4)
    np.testing.assert_allclose(found, by_hand(model, text(), LENGTHS, positions), atol=1e-5)


@pytest.mark.parametrize("fields", [{"mem_len": 0}, {"mem_len": 5}], ids=["without memory", "one call is one segment"])
def test_a_model_that_hangs_on_the_cut_reads_at_once(fields: dict):
    model = tiny_model("transformer_xl", "causal_lm", same_length=False, **fields)
    positions = np.array([30, 40, 41])
    found = token_losses_with_context(model, text(), LENGTHS, positions)
    np.testing.assert_allclose(found, by_hand(model, text(), LENGTHS, positions), atol=1e-5)


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCAB_SIZE, n_positions=16, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


def mistral() -> MistralForCausalLM:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCAB_SIZE, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=5, max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    return MistralForCausalLM(config).eval()


@pytest.mark.parametrize("make", [gpt2, mistral])
def test_models_of_transformers(make):
    """GPT-2 has 16 positions: given 20 tokens, it reads the nearest 16."""
    model = make()
    found = token_losses_with_context(model, text(), LENGTHS, [25, 31, 60])
    np.testing.assert_allclose(found, by_hand(model, text(), LENGTHS, [25, 31, 60]), atol=1e-5)


def test_windows_are_shared_between_positions(monkeypatch: pytest.MonkeyPatch):
    """Positions at the distance of the lengths: one window for each start, not one for each position and length."""
    model, read = gpt2(), []
    decoder = model.get_decoder()
    forward = decoder.forward
    monkeypatch.setattr(decoder, "forward", lambda ids, **kwargs: read.append(ids.shape) or forward(ids, **kwargs))
    token_losses_with_context(model, text(), [4, 8, 12, 16], np.arange(16, 88, 4), batch_size=50)
    assert read == [(18 + 4 - 1, 16)]  # 18 positions, 4 lengths


def test_leaves_the_mode_alone():
    model = gpt2()
    for mode in (True, False):
        model.train(mode)
        token_losses_with_context(model, text(), [4], [30])
        assert model.training is mode


def test_positions_are_spread_in_blocks():
    positions, blocks = spread_positions(1000, longest=100, spacing=10, blocks=3, per_block=4)
    assert positions.tolist() == [100, 110, 120, 130, 400, 410, 420, 430, 700, 710, 720, 730]
    assert blocks.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    positions, _ = spread_positions(112, longest=100, spacing=10, blocks=3, per_block=4)  # no room to spare
    assert positions.tolist() == list(range(100, 112))


def test_what_cannot_be_read_is_refused():
    model = gpt2()
    for lengths, positions, message in (
        ([], [30], "`lengths`"),
        ([0], [30], "`lengths`"),
        ([8], [7], "`positions`"),
        ([8], [90], "`positions`"),
        ([8], [], "`positions`"),
    ):
        with pytest.raises(ValueError, match=message):
            token_losses_with_context(model, text(), lengths, positions)
    with pytest.raises(ValueError, match="too short"):
        spread_positions(111, longest=100, blocks=3, per_block=4)
    with pytest.raises(ValueError, match="`blocks`=0"):
        spread_positions(111, longest=100, blocks=0)
