"""Tokens of rows with their own settings, against the warpers of transformers."""

from random import Random

import pytest
import torch
from tiny import tiny_model
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from transformers_xl import generate_many
from transformers_xl.serve.sampling import RowSampling, logprobs_of
from transformers_xl.serve.text_request import TextRequest

VOCAB_SIZE, DRAWS = 11, 4000
SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 4},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 2.0, "top_k": 5, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 4, "top_p": 0.0},
    {"temperature": 1.0, "top_k": 100},
]


class Grid(Random):
    """Every number of 0..1 equally often, the ends too."""

    def __init__(self) -> None:
        self.count = -1

    def random(self) -> float:
        self.count += 1
        return self.count / (DRAWS - 1)


def some_logits(rows: int) -> torch.Tensor:
    return 2 * torch.randn(rows, VOCAB_SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def expected(logits: torch.Tensor, settings: dict) -> torch.Tensor:
    """Probabilities `(vocab_size,)`, by transformers."""
    if settings["temperature"] == 0:
        return torch.nn.functional.one_hot(logits[0].argmax(), VOCAB_SIZE).double()
    logits = TemperatureLogitsWarper(settings["temperature"])(None, logits)
    if settings.get("top_k"):
        logits = TopKLogitsWarper(settings["top_k"])(None, logits)
    if settings.get("top_p", 1.0) < 1:
        logits = TopPLogitsWarper(max(settings["top_p"], 1e-9))(None, logits)
    return logits.softmax(-1)[0]


@pytest.mark.parametrize("settings", SETTINGS)
def test_tokens_have_the_probabilities_of_transformers(settings: dict):
    logits, grid = some_logits(1), Grid()
    sampling = RowSampling([TextRequest([0], **settings)] * DRAWS, [grid] * DRAWS, logits)
    counts = torch.bincount(sampling.choose(logits.expand(DRAWS, -1)), minlength=VOCAB_SIZE)
    probabilities = expected(logits, settings)
    assert counts[probabilities == 0].sum() == 0
    torch.testing.assert_close(counts / DRAWS, probabilities, atol=2 / DRAWS, rtol=0, check_dtype=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_gets_the_same_beside_any_others(dtype: torch.dtype):
    """Exactly, whatever the settings of the others: nothing is rounded in another way."""
    requests = [TextRequest([0], **settings) for settings in 3 * SETTINGS]
    logits = some_logits(len(requests)).to(dtype)
    together = RowSampling(requests, [Random(row) for row in range(len(requests))], logits).choose(logits)
    alone = [
        RowSampling([request], [Random(row)], logits[:1]).choose(logits[row : row + 1])
        for row, request in enumerate(requests)
    ]
    assert together.tolist() == torch.cat(alone).tolist()


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_the_smallest_temperatures_are_greedy(scale: float):
    """Logits that are divided by less would be infinite, and stop all rows of the batch."""
    model = tiny_model("transformer_xl", "causal_lm", torch.float32)
    model.lm_head.weight.data *= scale
    least = [{}, {"top_p": 0.5}, {"top_k": 5}, {"top_k": 5, "top_p": 0.5}]
    settings = [options | {"temperature": value} for options in least for value in (1e-45, 1e-40, 1e-38, 1e-9, 0.0)]
    requests = [TextRequest([1, 2, 3], max_new_tokens=6, seed=1, stop_token_ids=(), **each) for each in settings]
    beside = TextRequest([4, 5], max_new_tokens=6, seed=2, stop_token_ids=())
    (likeliest,) = generate_many(model, [requests[-1]])
    found = {each.number: each.token_ids for each in generate_many(model, [*requests, beside])}
    assert [found[number] for number in range(len(requests))] == [likeliest.token_ids] * len(requests)
    assert len(found[len(requests)]) == 6


def test_logprobs_are_those_of_the_model():
    logits, tokens = some_logits(3), torch.tensor([1, 0, 10])
    found = logprobs_of(logits, tokens, [2, 0, 5])
    for row, (each, count) in enumerate(zip(found, [2, 0, 5], strict=True)):
        logprobs = logits[row].log_softmax(-1)
        assert (each.token_id, len(each.top)) == (tokens[row], count)
        assert each.logprob == pytest.approx(logprobs[tokens[row]].item())
        best = sorted(enumerate(logprobs.tolist()), key=lambda pair: -pair[1])[:count]
        assert [token for token, _ in each.top] == [token for token, _ in best]
        assert [value for _, value in each.top] == pytest.approx([value for _, value in best])
