"""Texts that must have a form: the best, or a sample, of those that fit it; others in the batch write what they would."""

import json
import sys
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from optional_packages import needs
from pydantic import BaseModel, ConfigDict
from served import NAME, Here, serving
from tiny import tiny_model
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from transformers_xl import ByteTokenizer, Scheduler, TextRequest, WordTokenizer, generate_many

BYTES = ByteTokenizer()
PROMPT = list(b"The answer: ")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["cat", "dog"]},
        "old": {"type": "boolean"},
    },
    "required": ["name", "kind", "old"],
    "additionalProperties": False,
}


class Pet(BaseModel):
    model_config = ConfigDict(extra="forbid")  # else an answer may have more properties, without end
    kind: Literal["cat", "dog"]
    old: bool


def grammar(schema: dict[str, Any] = SCHEMA) -> str:
    return str(
        needs("llguidance").LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    )


def regex(pattern: str) -> str:
    return str(needs("llguidance").LLMatcher.grammar_from_regex(pattern))


def model_of(size: int, **fields: Any) -> Any:
    torch.manual_seed(0)
    ends = {"vocab_size": size, "pad_token_id": 0, "initializer_range": 0.3} | fields
    return tiny_model("transformer_xl", "causal_lm", **ends)


def pairs() -> PreTrainedTokenizerFast:
    """A byte-level BPE, as most language models have."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(['{"name":"cat","kind":"dog","old":true}'] * 9, 300, 1, False, ["<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token="<eos>", pad_token="<eos>")


def best_of(model: Any, allowed: list[bytes]) -> str:
    """The reference: at each place the best of the bytes that may stand there."""
    ids, mems, found = torch.tensor([PROMPT]), None, b""
    for some in allowed:
        with torch.no_grad():
            output = model(ids, mems=mems)
        mems = output.mems
        found += bytes([max(some, key=output.logits[0, -1].__getitem__)])
        ids = torch.tensor([[found[-1]]])
    return found.decode()


def test_the_best_text_of_a_form_beside_others():
    model = model_of(len(BYTES), eos_token_id=258)
    forms = ["[a-f]{4}", "[0-9][x-z]{2}", "(yes|no)!"]
    requests = [TextRequest(PROMPT, temperature=0, max_new_tokens=20, grammar=regex(form)) for form in forms]
    free = [TextRequest(PROMPT, seed=seed, max_new_tokens=9, stop_token_ids=()) for seed in (1, 2)]
    mixed = [free[0], *requests, free[1]]
    found = {each.number: each for each in generate_many(model, mixed, BYTES)}
    assert found[1].text == best_of(model, [b"abcdef"] * 4)
    assert found[2].text == best_of(model, [b"0123456789", b"xyz", b"xyz"])
    assert found[3].text in ("yes!", "no!")
    assert {found[number].finish_reason for number in (1, 2, 3)} == {"stop"}
    assert found[1].unread_ids == (ord(found[1].text[-1]),)
    for number, request in ((0, free[0]), (4, free[1])):
        assert found[number].token_ids == next(generate_many(model, [request], BYTES)).token_ids


@pytest.mark.parametrize("make", [lambda: BYTES, pairs], ids=["bytes", "pairs"])
def test_every_sample_fits(make):
    tokenizer = make()
    model = model_of(len(tokenizer) + 3, eos_token_id=tokenizer.eos_token_id)  # more words than the tokenizer has
    ways = [{"temperature": 0}, {"temperature": 1.5}, {"top_p": 0.5}, {"top_k": 3}]
    requests = [
        TextRequest(tokenizer("A pet: ")["input_ids"], seed=seed, max_new_tokens=150, grammar=grammar(), **way)
        for way in ways
        for seed in range(4)
    ]
    alone = {number: next(generate_many(model, [each], tokenizer)) for number, each in enumerate(requests)}
    for each in generate_many(model, requests, tokenizer, capacity=5):
        assert (each.token_ids, each.finish_reason) == (alone[each.number].token_ids, "stop")
        pet = json.loads(each.text)
        assert list(pet) == ["name", "kind", "old"]
        assert len(pet["name"]) <= 6
        assert pet["kind"] in ("cat", "dog")
        assert isinstance(pet["old"], bool)
    assert len({each.text for each in alone.values()}) > 4


def test_a_form_that_may_go_on_ends_with_the_token_that_ends_a_text():
    model = model_of(len(BYTES), eos_token_id=258)
    model.lm_head.weight.data[258] = model.lm_head.weight.data[ord("a")]
    model.lm_head.bias.data[258] = model.lm_head.bias.data[ord("a")] + 1.0  # always before "a"
    for ends in (None, ()):
        request = TextRequest(PROMPT, temperature=0, max_new_tokens=9, grammar=regex("a{2}a*"), stop_token_ids=ends)
        written = next(generate_many(model, [request], BYTES))
        assert (written.text, written.token_ids[-1], written.finish_reason) == ("aa", 258, "stop")
    cut = TextRequest(PROMPT, temperature=0, max_new_tokens=1, grammar=regex("a{2}"))
    assert next(generate_many(model, [cut], BYTES)).finish_reason == "length"


def test_log_probabilities_are_those_of_the_model():
    model = model_of(len(BYTES), eos_token_id=258)
    request = TextRequest(PROMPT, temperature=0, max_new_tokens=4, grammar=regex("[ab]{4}"), top_logprobs=1)
    written = next(generate_many(model, [request], BYTES))
    with torch.no_grad():
        of_all = model(torch.tensor([[*PROMPT, *written.token_ids]])).logits.log_softmax(-1)[0, len(PROMPT) - 1 : -1]
    expected = [row[token].item() for row, token in zip(of_all, written.token_ids, strict=True)]
    assert [each.logprob for each in written.logprobs] == pytest.approx(expected)
    assert [each.top[0][0] for each in written.logprobs] == of_all.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nonsense(", "`grammar` cannot be honoured: .*Expected"),
        ("", "`grammar`='' must be a grammar"),
        (3, "`grammar`=3 must be a grammar"),
        ({"type": "foo"}, "cannot be honoured: .*foo"),
        ({"type": "array", "uniqueItems": True}, "cannot be honoured: .*uniqueItems"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "cannot be honoured: .*does not fetch"),
    ],
)
def test_what_is_no_grammar_is_refused(given: Any, message: str):
    needs("llguidance")
    scheduler = Scheduler(model_of(len(BYTES), eos_token_id=258), BYTES)
    with pytest.raises(ValueError, match=message):
        scheduler.add(TextRequest(PROMPT, grammar=grammar(given) if isinstance(given, dict) else given))
    assert scheduler.num_waiting == 0
    with pytest.raises(ValueError, match="`grammar` has no effect with `max_new_tokens`=0"):
        TextRequest(PROMPT, grammar=regex("a"), max_new_tokens=0)


def test_tokenizers_whose_tokens_are_no_bytes_are_refused(monkeypatch: pytest.MonkeyPatch):
    words = WordTokenizer.train_from_iterator(["a boat .\n"], progress=False)
    scheduler = Scheduler(model_of(len(words)), words)
    with pytest.raises(ValueError, match="no grammar holds for the tokens of this WordTokenizer"):
        scheduler.add(TextRequest([1], grammar=regex("a")))
    for tokenizer in (BYTES, pairs()):  # with more tokens than the model has words
        with pytest.raises(ValueError, match="`grammar` cannot be honoured"):
            Scheduler(model_of(200), tokenizer).add(TextRequest([1], grammar=regex("a")))
    with pytest.raises(ValueError, match="`grammar` cannot be honoured: it needs a tokenizer"):
        Scheduler(model_of(len(words))).add(TextRequest([1], grammar=regex("a")))
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match="pip install llguidance"):
        scheduler.add(TextRequest([1], grammar="start: /a/"))


@pytest.fixture(scope="module")
def server() -> Iterator[Here]:
    needs("llguidance")
    with serving() as here:
        yield here


MESSAGES: Any = [{"role": "user", "content": "A pet, please."}]
FORMAT = {"name": "pet", "schema": Pet.model_json_schema()}


def test_chats_of_a_schema(server: Here):
    chats = server.client.chat.completions
    parsed = chats.parse(model=NAME, messages=MESSAGES, response_format=Pet, n=2, max_tokens=100, seed=1)
    assert all(isinstance(each.message.parsed, Pet) for each in parsed.choices)
    asked = {"model": NAME, "messages": MESSAGES, "max_tokens": 100, "seed": 1}
    asked["response_format"] = {"type": "json_schema", "json_schema": FORMAT}
    streamed = "".join(each.choices[0].delta.content or "" for each in chats.create(stream=True, **asked))
    assert Pet.model_validate_json(streamed) == parsed.choices[0].message.parsed


def test_responses_of_a_schema(server: Here):
    answer = server.client.responses.parse(model=NAME, input="A pet.", text_format=Pet, max_output_tokens=100)
    assert isinstance(answer.output_parsed, Pet)
    assert answer.text.format.type == "json_schema"
    text: Any = {"format": {"type": "json_schema", **FORMAT}}
    asked = {"model": NAME, "input": "A pet.", "text": text, "max_output_tokens": 100}
    last = [*server.client.responses.create(stream=True, **asked)][-1]
    assert isinstance(Pet.model_validate_json(last.response.output[0].content[0].text), Pet)


def test_any_json(server: Here):
    asked: Any = {"model": NAME, "messages": MESSAGES, "response_format": {"type": "json_object"}, "max_tokens": 400}
    written = [server.client.chat.completions.create(seed=seed, **asked).choices[0] for seed in range(3)]
    assert all(each.message.content.startswith("{") for each in written)
    assert all(isinstance(json.loads(each.message.content), dict) for each in written if each.finish_reason == "stop")
    assert {each.finish_reason for each in written} <= {"stop", "length"}


@pytest.mark.parametrize(
    ("given", "name", "message"),
    [
        ({"type": "xml"}, "response_format", "xml"),
        ({}, "response_format", "type"),
        ({"type": "json_schema"}, "response_format.json_schema", "missing"),
        (
            {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
            "response_format.json_schema.name",
            "a b",
        ),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema.schema", "missing"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "foo"}}}, "response_format", "foo"),
        ({"type": "json_object", "other": 1}, "response_format.other", "not supported"),
    ],
)
def test_formats_that_are_refused(server: Here, given: Any, name: str, message: str):
    body = {"model": NAME, "messages": MESSAGES, "response_format": given}
    refused = server.post("chat/completions", json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == name
    assert message in refused.json()["error"]["message"]
