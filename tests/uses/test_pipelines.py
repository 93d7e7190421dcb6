"""The pipelines of transformers: texts, batches, chats, memory, streaming, classes."""

import pytest
import torch
from tiny import FLOAT32, tiny_model
from transformers import TextIteratorStreamer, pipeline

from transformers_xl import ByteTokenizer, MemoryFeatureExtractionPipeline

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
GREEDY = {"do_sample": False, "max_new_tokens": 5}
TEXTS = ["Hello", "A longer text", "Hi", "ab", "x"]  # more than a model has layers
# pipelines call models as their heads say, which tests over all variants hold them to: padding, batches, memory
FEW = ["transformer_xl", "vanilla_transformer", "compressive_transformer", "sha_rnn"]
few = pytest.mark.parametrize("model_type", FEW)
encoders_too = pytest.mark.parametrize("model_type", [*FEW, "star_transformer", "longformer_encoder"])


def byte_pipeline(task: str, model_type: str, head: str, **settings):
    model = tiny_model(model_type, head, torch.float32, vocab_size=259, pad_token_id=256, eos_token_id=258)
    if head == "causal_lm" and getattr(model.lm_head, "bias", None) is not None:
        model.lm_head.bias.data[ord("a") : ord("z")] += 8.0  # letters: what is generated can be compared as text
    return pipeline(task, model=model, tokenizer=ByteTokenizer(chat_template=TEMPLATE), **settings), model


def by_hand(model, text: str, **settings) -> list[int]:
    ids = torch.tensor([list(text.encode())])
    return model.generate(ids, **(GREEDY | settings))[0, ids.shape[1] :].tolist()


def texts_of(answers: list) -> list[str]:
    return [
        answer[0]["generated_text"] if isinstance(answer, list) else answer["generated_text"] for answer in answers
    ]


@few
def test_text_generation(model_type: str):
    """A text, a batch of texts of unequal lengths, and a chat say what the model alone says."""
    generate, model = byte_pipeline("text-generation", model_type, "causal_lm")
    expected = [text + generate.tokenizer.decode(by_hand(model, text)) for text in TEXTS]
    assert texts_of(generate(TEXTS[0], **GREEDY)) == expected[:1]
    assert texts_of(generate(TEXTS, batch_size=len(TEXTS), **GREEDY)) == expected
    (chat,) = generate([{"role": "user", "content": "hi"}], **GREEDY)
    answer = generate.tokenizer.decode(by_hand(model, "user: hi\nassistant: "))
    assert chat["generated_text"][-1] == {"role": "assistant", "content": answer}


@pytest.mark.parametrize("model_type", ["transformer_xl", "compressive_transformer", "sha_rnn"])
def test_text_generation_from_a_memory(model_type: str):
    generate, model = byte_pipeline("text-generation", model_type, "causal_lm")
    mems = model(torch.tensor([list(b"What was said before. ")])).mems
    expected = generate.tokenizer.decode(by_hand(model, "Hello", mems=mems))
    assert texts_of(generate("Hello", mems=mems, **GREEDY)) == ["Hello" + expected]
    ids = generate("Hello", mems=mems, return_tensors=True, **GREEDY)[0]["generated_token_ids"]
    assert ids[-5:] == by_hand(model, "Hello", mems=mems)
    assert ids[-5:] == by_hand(
        model, "Hello", mems=model(torch.tensor([list(b"What was said before. ")]), use_cache=True).mems
    )


@few
def test_text_generation_streams(model_type: str):
    generate, _ = byte_pipeline("text-generation", model_type, "causal_lm")
    streamer = TextIteratorStreamer(generate.tokenizer, skip_prompt=True)
    (answer,) = generate("Hello", streamer=streamer, **GREEDY)
    assert "Hello" + "".join(streamer) == answer["generated_text"]


@encoders_too
def test_text_classification(model_type: str):
    classify, model = byte_pipeline("text-classification", model_type, "sequence_classification")
    answers = classify(TEXTS, batch_size=len(TEXTS), top_k=None)
    for text, answer in zip(TEXTS, answers, strict=True):
        scores = model(torch.tensor([list(text.encode())])).logits.softmax(-1)[0].tolist()
        assert {row["label"]: pytest.approx(row["score"], abs=1e-5) for row in answer} == {
            f"LABEL_{index}": score for index, score in enumerate(scores)
        }
    assert classify(TEXTS[1], top_k=None) == [
        {"label": row["label"], "score": pytest.approx(row["score"], abs=1e-5)} for row in answers[1]
    ]


@encoders_too
def test_token_classification(model_type: str):
    classify, model = byte_pipeline("token-classification", model_type, "token_classification")
    for text, answer in zip(TEXTS, classify(TEXTS, batch_size=len(TEXTS), ignore_labels=[]), strict=True):
        classes = model(torch.tensor([list(text.encode())])).logits.argmax(-1)[0].tolist()
        assert [row["entity"] for row in answer] == [f"LABEL_{number}" for number in classes]


@encoders_too
def test_feature_extraction(model_type: str):
    features, model = byte_pipeline(
        "feature-extraction", model_type, "model", pipeline_class=MemoryFeatureExtractionPipeline
    )
    for batch_size in (2, len(TEXTS)):
        for text, rows in zip(TEXTS, features(TEXTS, batch_size=batch_size, return_tensors=True), strict=True):
            expected = model(torch.tensor([list(text.encode())])).last_hidden_state[0]
            torch.testing.assert_close(rows[0, -len(text) :], expected, **FLOAT32)  # padding stands on the left


def test_a_pipeline_gets_no_memory_to_cut_into_rows():
    model = tiny_model("transformer_xl", "sequence_classification")
    ids = torch.ones(3, 4, dtype=torch.long)
    assert model(ids, use_cache=False).mems is None
    assert model(ids).mems.batch_size == 3
    assert model(ids, use_cache=True).past_key_values.memory.batch_size == 3
