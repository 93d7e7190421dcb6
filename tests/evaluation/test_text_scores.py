"""Perplexity and bits per byte as modules of the `evaluate` library: they are those of `score_text`, weighed by tokens."""

import math
from pathlib import Path

import pytest
from optional_packages import needs

from transformers_xl import ByteTokenizer, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.evaluation.bits_per_byte import score_text
from transformers_xl.evaluation.text_scores import score_texts

evaluate = needs("evaluate")
FOLDER = Path(__file__).parent.parent.parent / "transformers_xl" / "evaluation" / "metrics"
TEXTS = ["It was the best of times, it was the worst of times.", "na\u00efve words", "ab"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = TransformerXLConfig(
        vocab_size=259, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, mem_len=8,
        segment_length=4, initializer_range=0.3,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("model")
    for part in (TransformerXLForCausalLM(config), ByteTokenizer()):
        part.save_pretrained(path, include_code=False)
    return str(path)


def loaded(name: str):
    return evaluate.load(str(FOLDER / name), keep_in_memory=True)


@pytest.mark.parametrize("memory", [True, False])
def test_modules_weigh_every_token_alike(folder: str, memory: bool):
    model = TransformerXLForCausalLM.from_pretrained(folder)
    scores = [score_text(model, ByteTokenizer()(text)["input_ids"], memory=memory) for text in TEXTS]
    nats = sum(score.nats for score in scores)
    sizes = [len(text.encode()) - 1 for text in TEXTS]
    found = loaded("memory_perplexity").compute(predictions=TEXTS, model=folder, memory=memory)
    assert found["perplexity"] == pytest.approx(math.exp(nats / sum(sizes)))
    assert found["word_perplexity"] == pytest.approx(math.exp(nats / sum(len(text.split()) for text in TEXTS)))
    assert found["perplexities"] == pytest.approx([score.perplexity for score in scores])
    assert found["nats_per_token"] == pytest.approx(nats / sum(sizes))
    metric = loaded("memory_bits_per_byte")
    for text in TEXTS:
        metric.add_batch(predictions=[text])
    found = metric.compute(model=folder, memory=memory)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / sum(sizes))
    assert found["bits_per_character"] == pytest.approx(nats / math.log(2) / sum(len(text) - 1 for text in TEXTS))
    assert found["by_text"] == pytest.approx(
        [score.nats / math.log(2) / size for score, size in zip(scores, sizes, strict=True)]
    )


def test_what_cannot_be_scored_is_refused(folder: str):
    model = TransformerXLForCausalLM.from_pretrained(folder)
    with pytest.raises(ValueError, match="'a', of 1 tokens"):
        score_texts(["a"], model, ByteTokenizer())
    with pytest.raises(ValueError, match="`tokenizer`=None"):
        score_texts(TEXTS, model)
    with pytest.raises(ValueError, match="`predictions` is empty"):
        score_texts([], model, ByteTokenizer())
