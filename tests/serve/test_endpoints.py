"""The endpoints as the official client of OpenAI sees them, against what the model alone writes."""

import asyncio
from collections.abc import Iterator

import httpx2
import pytest
import torch
from optional_packages import needs
from served import NAME, Here, client_of, greedy, letters_model, serving

MESSAGES = [{"role": "user", "content": "Who is there?"}]
RENDERED = "user: Who is there?\nassistant: "


@pytest.fixture(scope="module")
def server() -> Iterator[Here]:
    with serving() as here:
        yield here


def test_completions(server: Here):
    settings = {"model": NAME, "prompt": "Once upon", "max_tokens": 12, "temperature": 0}
    expected = greedy("Once upon", 12)
    answer = server.client.completions.create(**settings)
    assert (answer.object, answer.model, answer.id[:5]) == ("text_completion", NAME, "cmpl_")
    assert answer.choices[0].text == expected
    assert answer.choices[0].finish_reason == "length"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (9, 12, 21)
    chunks = list(server.client.completions.create(**settings, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 11 + ["length"]
    assert (
        len(server.client.completions.create(model=NAME, prompt="a").choices[0].text) == 16
    )  # the protocol's default


def test_prompts_of_a_completion(server: Here):
    """Texts, token ids and lists of either; `n` of each, side by side."""
    settings = {"model": NAME, "max_tokens": 5, "temperature": 0}
    expected = [greedy(text, 5) for text in ("Once", "upon")]
    for prompt in (["Once", "upon"], [list(b"Once"), list(b"upon")], ["Once", list(b"upon")]):
        answer = server.client.completions.create(**settings, prompt=prompt)
        assert [choice.text for choice in answer.choices] == expected
        assert [choice.index for choice in answer.choices] == [0, 1]
    assert server.client.completions.create(**settings, prompt=list(b"Once")).choices[0].text == expected[0]
    answer = server.client.completions.create(**settings, prompt=["Once", "upon"], n=2)
    assert [choice.text for choice in answer.choices] == [expected[0]] * 2 + [expected[1]] * 2
    assert answer.usage.prompt_tokens == 8
    texts = {0: "", 1: ""}
    for chunk in server.client.completions.create(**settings, prompt=["Once", "upon"], stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert list(texts.values()) == expected


def test_a_temperature_samples(server: Here):
    """Greedy where it is 0; above it the seed decides, also with others in the batch."""

    def written(**settings) -> list[str]:
        answer = server.client.completions.create(model=NAME, prompt="Once upon", max_tokens=24, **settings)
        return [choice.text for choice in answer.choices]

    (alone,) = written(temperature=2.0, seed=1)
    assert written(temperature=2.0, seed=1) == [alone] != written(temperature=2.0, seed=2)
    several = written(temperature=2.0, seed=1, n=3)
    assert several[0] == alone
    assert len({*several}) == 3
    assert written() != written()  # temperature 1, and a seed that nobody knows
    assert alone != greedy("Once upon", 24)
    assert written(temperature=2.0, top_p=1e-6, seed=1) == written(temperature=1e-9) == [greedy("Once upon", 24)]


def test_the_text_of_a_stop_is_left_out(server: Here):
    settings = {"model": NAME, "prompt": "Once upon", "max_tokens": 30, "temperature": 2.0, "seed": 5}
    text = server.client.completions.create(**settings).choices[0].text
    assert len({*text}) > 5
    for stop in (text[4:7], [text[4:7], "never there"]):
        expected = text[: text.find(text[4:7])]
        answer = server.client.completions.create(**settings, stop=stop)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected, "stop")
        chunks = list(server.client.completions.create(**settings, stop=stop, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected
        assert chunks[-1].choices[0].finish_reason == "stop"


def logprobs_of(text: str) -> torch.Tensor:
    """Of each byte after the first, by one call of the model."""
    ids = torch.tensor([list(text.encode())])
    return letters_model()(ids).logits[0, :-1].log_softmax(-1)


def test_logprobs_and_echo(server: Here):
    """Of prompt and answer together: what one call of the model says of the same text."""
    settings = {"model": NAME, "prompt": "Once \u00e9", "max_tokens": 4, "temperature": 0, "logprobs": 3}
    choice = server.client.completions.create(**settings, echo=True).choices[0]
    assert choice.text == "Once \u00e9" + greedy("Once \u00e9", 4)
    expected, ids = logprobs_of(choice.text), list(choice.text.encode())
    assert choice.logprobs.token_logprobs[0] is None
    values = torch.tensor(choice.logprobs.token_logprobs[1:], dtype=torch.float64)
    torch.testing.assert_close(values, expected[range(len(ids) - 1), ids[1:]], atol=1e-5, rtol=0)
    assert choice.logprobs.tokens[:5] == list("Once ")
    # both bytes of a character begin where it does
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    best = expected[6].topk(3)
    named = {chr(byte): value for value, byte in zip(best.values.tolist(), best.indices.tolist(), strict=True)}
    assert choice.logprobs.top_logprobs[7] == pytest.approx(named, abs=1e-5)
    alone = server.client.completions.create(**settings).choices[0].logprobs
    assert alone.token_logprobs == pytest.approx(choice.logprobs.token_logprobs[7:], abs=1e-5)
    chunks = list(server.client.completions.create(**settings, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    streamed = [value for chunk in chunks for value in chunk.choices[0].logprobs.token_logprobs]
    assert streamed[1:] == pytest.approx(choice.logprobs.token_logprobs[1:], abs=1e-5)
    offsets = [place for chunk in chunks for place in chunk.choices[0].logprobs.text_offset]
    assert offsets == choice.logprobs.text_offset


def test_a_text_is_scored_without_writing(server: Here):
    """What programs that evaluate models ask for."""
    answer = server.client.completions.create(model=NAME, prompt="Once upon", max_tokens=0, echo=True, logprobs=0)
    choice = answer.choices[0]
    assert (choice.text, answer.usage.completion_tokens, choice.finish_reason) == ("Once upon", 0, "length")
    expected = logprobs_of("Once upon")[range(8), list(b"Once upon")[1:]].tolist()
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected, abs=1e-5)
    assert choice.logprobs.top_logprobs == [None, *[{}] * 8]


def test_chat_completions(server: Here):
    settings = {"model": NAME, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    expected = greedy(RENDERED, 12)
    answer = server.client.chat.completions.create(**settings)
    assert answer.object == "chat.completion"
    assert (answer.choices[0].message.role, answer.choices[0].message.content) == ("assistant", expected)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(RENDERED), 12)
    chunks = list(server.client.chat.completions.create(**settings, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "length"
    usage = {"include_usage": True}
    chunks = list(server.client.chat.completions.create(**settings, stream=True, stream_options=usage, n=2))
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 24)
    assert {chunk.usage for chunk in chunks[:-1]} == {None}


def test_messages_of_a_chat(server: Here):
    """Roles, parts of text, and an answer that a client sends back as it came."""
    settings = {"model": NAME, "max_completion_tokens": 4, "temperature": 0}
    first = server.client.chat.completions.create(**settings, messages=MESSAGES).choices[0].message
    parts = [{"type": "text", "text": "Who"}, {"type": "text", "text": "else?"}]
    messages = [{"role": "developer", "content": "Be short."}, *MESSAGES, first, {"role": "user", "content": parts}]
    answer = server.client.chat.completions.create(**settings, messages=messages)
    rendered = f"system: Be short.\nuser: Who is there?\nassistant: {first.content}\nuser: Who\nelse?\nassistant: "
    assert answer.choices[0].message.content == greedy(rendered, 4)


def test_logprobs_of_a_chat(server: Here):
    settings = {"model": NAME, "messages": MESSAGES, "max_tokens": 3, "temperature": 0}
    settings |= {"logprobs": True, "top_logprobs": 2}
    entries = server.client.chat.completions.create(**settings).choices[0].logprobs.content
    text = RENDERED + greedy(RENDERED, 3)
    for entry, row, byte in zip(entries, logprobs_of(text)[-3:], text.encode()[-3:], strict=True):
        assert (entry.token, entry.bytes) == (chr(byte), [byte])
        assert entry.logprob == pytest.approx(row[byte].item(), abs=1e-5)
        assert [each.bytes for each in entry.top_logprobs] == [[each] for each in row.topk(2).indices.tolist()]
    chunks = list(server.client.chat.completions.create(**settings, stream=True))
    streamed = [each for chunk in chunks if (found := chunk.choices[0].logprobs) for each in found.content]
    assert [each.token for each in streamed] == [each.token for each in entries]


def test_responses(server: Here):
    settings = {"model": NAME, "input": "Who is there?", "max_output_tokens": 12, "temperature": 0}
    expected = greedy(RENDERED, 12)
    answer = server.client.responses.create(**settings, include=["message.output_text.logprobs"])
    assert (answer.output_text, answer.status) == (expected, "incomplete")
    items = [{"role": "user", "content": "Who is there?"}, *answer.output, {"role": "user", "content": "x"}]
    assert server.client.responses.create(**settings | {"input": items}).output_text  # with their log-probabilities
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(RENDERED), 12)
    events = list(server.client.responses.create(**settings, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events if "delta" not in event.type] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.done", "content_part.done",
        "output_item.done", "incomplete",
    ]  # fmt: skip
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == expected
    assert events[-1].response.output_text == expected
    with server.client.responses.stream(**settings) as stream:  # the client puts the answer together itself
        assert [event.type for event in stream][-1] == "response.incomplete"
    listed = server.client.responses.create(**settings | {"input": MESSAGES, "instructions": "Be short."})
    assert listed.output_text == greedy(f"system: Be short.\n{RENDERED}", 12)
    assert listed.instructions == "Be short."


def test_logprobs_of_a_response(server: Here):
    settings = {"model": NAME, "input": "Who is there?", "max_output_tokens": 3, "temperature": 0}
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = server.client.responses.create(**settings, **asked)
    text = RENDERED + answer.output_text
    expected = logprobs_of(text)[-3:][range(3), list(text.encode()[-3:])].tolist()
    entries = answer.output[0].content[0].logprobs
    assert [each.logprob for each in entries] == pytest.approx(expected, abs=1e-5)
    assert {len(each.top_logprobs) for each in entries} == {2}
    events = list(server.client.responses.create(**settings, **asked, stream=True))
    streamed = [each for event in events if event.type.endswith("text.delta") for each in event.logprobs]
    assert [each.token for each in streamed] == [each.token for each in entries]


def test_an_answer_that_ends_itself_is_complete():
    model = letters_model()
    model.lm_head.bias.data[258] += 100.0  # the end of a text
    with serving(model=model) as here:
        answer = here.client.responses.create(model=NAME, input="a")
        assert (answer.status, answer.output_text, answer.incomplete_details) == ("completed", "", None)
        chat = here.client.chat.completions.create(model=NAME, messages=MESSAGES).choices[0]
        assert (chat.finish_reason, chat.message.content) == ("stop", "")
        with here.client.responses.stream(model=NAME, input="a") as stream:
            assert stream.get_final_response().status == "completed"


def test_the_client_without_waiting(server: Here):
    """Many at a time, by the client for asyncio: each gets its own answer."""
    texts = [f"Once {number}" for number in range(20)]

    async def ask_all() -> list[str]:
        async with client_of(server.url, kind="AsyncOpenAI") as client:

            async def whole(text: str) -> str:
                settings = {"model": NAME, "prompt": text, "max_tokens": 6, "temperature": 0}
                return (await client.completions.create(**settings)).choices[0].text

            async def streamed(text: str) -> str:
                messages = [{"role": "user", "content": text}]
                chunks = await client.chat.completions.create(
                    model=NAME, messages=messages, max_tokens=6, temperature=0, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            async def responded(text: str) -> str:
                settings = {"model": NAME, "input": text, "max_output_tokens": 6, "temperature": 0}
                return (await client.responses.create(**settings)).output_text

            return await asyncio.gather(*(ask(text) for ask in (whole, streamed, responded) for text in texts))

    written = asyncio.run(ask_all())
    assert written[:20] == [greedy(text, 6) for text in texts]
    assert written[20:40] == written[40:] == [greedy(f"user: {text}\nassistant: ", 6) for text in texts]


def test_what_asks_for_nothing_else_is_taken(server: Here):
    """Clients send these where nobody gave them."""
    right = {"model": NAME, "prompt": "a", "max_tokens": 1, "temperature": 0}
    neutral = {"n": 1, "echo": False, "logprobs": None, "presence_penalty": 0, "frequency_penalty": 0.0, "user": "me"}
    neutral |= {"best_of": 1, "logit_bias": {}, "suffix": ""}
    assert server.client.completions.create(**right, **neutral).choices[0].text == greedy("a", 1)
    chat = {"response_format": {"type": "text"}, "tools": [], "store": False, "top_p": 1, "stop": []}
    server.client.chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=1, **chat)
    response = {"truncation": "disabled", "background": False, "tool_choice": "auto", "metadata": {"a": "b"}}
    answer = server.client.responses.create(model=NAME, input="a", max_output_tokens=1, **response)
    assert answer.metadata == {"a": "b"}


def test_a_model_without_a_template_reads_texts():
    """Completions as before; a response continues its input as it stands, and messages are refused."""
    with serving(template=None) as here:
        right = {"model": NAME, "max_output_tokens": 5, "temperature": 0}
        assert here.client.responses.create(**right, input="Once").output_text == greedy("Once", 5)
        bad = needs("openai").BadRequestError
        with pytest.raises(bad, match="no chat template"):
            here.client.responses.create(**right, input=MESSAGES)
        with pytest.raises(bad, match="no chat template"):
            here.client.responses.create(**right, input="Once", instructions="Be short.")
        with pytest.raises(bad, match="no chat template"):
            here.client.chat.completions.create(model=NAME, messages=MESSAGES)


def test_a_template_that_refuses_or_writes_too_much():
    """It is a program of whoever made the tokenizer."""
    bad = needs("openai").BadRequestError
    with serving(template="{{ raise_exception('a user first') }}") as here:
        with pytest.raises(bad, match="a user first") as caught:
            here.client.chat.completions.create(model=NAME, messages=MESSAGES)
        assert caught.value.param == "messages"
    long = "{% for a in range(700) %}{% for b in range(700) %}{{ '-' }}{% endfor %}{% endfor %}"
    with serving(template=long) as here, pytest.raises(bad, match="the chat template of"):
        here.client.chat.completions.create(model=NAME, messages=MESSAGES)


def test_models_health_and_metrics(server: Here):
    assert [model.id for model in server.client.models.list()] == [NAME]
    assert server.client.models.retrieve(NAME).id == NAME
    with pytest.raises(needs("openai").NotFoundError, match="alone"):
        server.client.models.retrieve("gpt-4")
    assert server.get("health").json() == {"status": "ok"}
    before = server.metric("new_tokens_total"), server.metric("prompt_tokens_total")
    server.client.completions.create(model=NAME, prompt="Once", max_tokens=3, n=2)
    assert (server.metric("new_tokens_total"), server.metric("prompt_tokens_total")) == (before[0] + 6, before[1] + 8)
    assert server.metric('requests_total{endpoint="/v1/completions",status="200"}') > 0
    assert server.metric('request_seconds_count{endpoint="/v1/completions"}') > 0
    assert server.metric('texts_total{reason="length"}') > 0
    assert server.get("metrics").headers["content-type"].startswith("text/plain")


def test_what_the_server_of_transformers_had_besides_is_not_there(server: Here):
    """It loaded what a request named (`/load_model`, `/v1/audio/transcriptions`), and threw the model away (`/reset`)."""
    for path in ("load_model", "reset", "v1/audio/transcriptions", "v1/systemone", "docs", "openapi.json"):
        for method in ("GET", "POST"):
            answer = httpx2.request(method, f"{server.url}/{path}", timeout=60)
            assert answer.status_code == 404, (path, answer.text)
            assert answer.json()["error"]["message"]
