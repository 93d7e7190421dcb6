"""Sessions by the protocol's own words: each turn is read once, and continues after the process has ended."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from killed import KILLED, end_at
from optional_packages import needs
from served import NAME, Here, Process, greedy, letters_model, save_letters, serving, wait_until
from tiny import tiny_model

for name in ("fastapi", "uvicorn", "prometheus_client"):
    needs(name)

from transformers_xl import ByteTokenizer, Memory  # noqa: E402
from transformers_xl.serve.bounds import Bounds, RequestError  # noqa: E402
from transformers_xl.serve.server_process import Sessions, make_service  # noqa: E402
from transformers_xl.serve.session_store import SessionStore, new_id  # noqa: E402

SETTINGS = {"model": NAME, "max_output_tokens": 6, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sessions") / "new"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Here]:
    with serving(sessions=Sessions(folder)) as here:
        yield here


def whole(*turns: str) -> str:
    """A conversation as the template renders all of it: turns of the user, and greedy answers but for the last one."""
    text = ""
    for turn in turns:
        text += f"user: {turn}\nassistant: "
        text += "" if turn == turns[-1] else greedy(text, 6) + "\n"
    return text


def test_a_turn_continues_an_answer(server: Here):
    """Token for token what the model writes of the whole conversation; each turn costs its own tokens."""
    first = server.client.responses.create(**SETTINGS, input="Who is there?")
    second = server.client.responses.create(**SETTINGS, input="And now?", previous_response_id=first.id)
    third = server.client.responses.create(**SETTINGS, input="Oh.", previous_response_id=second.id)
    assert second.output_text == greedy(whole("Who is there?", "And now?"), 6)
    assert third.output_text == greedy(whole("Who is there?", "And now?", "Oh."), 6)
    assert (second.previous_response_id, third.previous_response_id) == (first.id, second.id)
    # the last token of the answer before, the end of its line, the new turn
    assert second.usage.input_tokens == 1 + len("\nuser: And now?\nassistant: ")
    again = server.client.responses.retrieve(second.id)
    assert (again.output_text, again.usage) == (second.output_text, second.usage)


def test_an_answer_that_was_cut_keeps_its_last_token(tmp_path: Path):
    """Where it ends with the line break that the template puts after it."""
    model = letters_model()
    model.lm_head.bias.data[ord("\n")] += 100.0
    with serving(sessions=Sessions(tmp_path / "sessions"), model=model) as server:
        first = server.client.responses.create(**SETTINGS, input="Who is there?")
        second = server.client.responses.create(**SETTINGS, input="And now?", previous_response_id=first.id)
    assert first.output_text == "\n" * 6
    # that token, which the memory does not hold yet, and the whole new turn
    assert second.usage.input_tokens == 1 + len("\nuser: And now?\nassistant: ")


def test_a_fork_leaves_its_origin_as_it_was(server: Here, folder: Path):
    first = server.client.responses.create(**SETTINGS, input="Who is there?")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    settings = SETTINGS | {"previous_response_id": first.id, "max_output_tokens": 12}
    one, two = (server.client.responses.create(**settings, input=text) for text in ("And now?", "Why?"))
    assert one.output_text == greedy(whole("Who is there?", "And now?"), 12)
    assert two.output_text == greedy(whole("Who is there?", "Why?"), 12)
    assert server.client.responses.create(**settings, input="And now?").output_text == one.output_text
    assert {name: (folder / name).read_bytes() for name in files} == files


def test_a_stream_is_kept_when_its_last_event_comes(server: Here):
    events = list(server.client.responses.create(**SETTINGS, input="Who is there?", stream=True))
    second = server.client.responses.create(
        **SETTINGS, input="And now?", previous_response_id=events[-1].response.id, stream=True
    )
    assert [*second][-1].response.output_text == greedy(whole("Who is there?", "And now?"), 6)


def test_a_conversation(server: Here):
    conversation = server.client.conversations.create(metadata={"topic": "doors"})
    assert conversation.id.startswith("conv_")
    assert server.client.conversations.retrieve(conversation.id).metadata == {"topic": "doors"}
    texts = []
    for turn in ("Who is there?", "And now?", "Oh."):
        answer = server.client.responses.create(**SETTINGS, input=turn, conversation=conversation.id)
        assert answer.conversation.id == conversation.id
        texts.append(answer.output_text)
    assert texts[-1] == greedy(whole("Who is there?", "And now?", "Oh."), 6)
    # each of its answers is one, and can be continued in another way
    fork = server.client.responses.create(**SETTINGS, input="Why?", previous_response_id=answer.id)
    assert fork.output_text == greedy(whole("Who is there?", "And now?", "Oh.", "Why?"), 6)
    assert server.client.conversations.delete(conversation.id).deleted
    with pytest.raises(needs("openai").NotFoundError, match="unknown"):
        server.client.conversations.retrieve(conversation.id)
    with pytest.raises(needs("openai").BadRequestError, match="unknown"):
        server.client.responses.create(**SETTINGS, input="a", conversation={"id": conversation.id})


def test_a_conversation_whose_last_answer_was_removed_says_so(server: Here):
    conversation = server.client.conversations.create()
    answer = server.client.responses.create(**SETTINGS, input="a", conversation=conversation.id)
    server.client.responses.delete(answer.id)
    said = f"{conversation.id}.*its last answer was removed, .* begin another one"
    with pytest.raises(needs("openai").BadRequestError, match=said):
        server.client.responses.create(**SETTINGS, input="b", conversation=conversation.id)


def test_one_turn_of_a_conversation_at_a_time(folder: Path):
    with serving(sessions=Sessions(folder), bounds=Bounds(new_tokens=10**9)) as here:
        name = here.client.conversations.create().id
        endless = {"model": NAME, "max_output_tokens": 10**9, "conversation": name, "input": "a"}
        stream = here.client.responses.create(**endless, stream=True)
        next(stream)
        with pytest.raises(needs("openai").ConflictError, match="wait for the end of its last turn"):
            here.client.responses.create(**endless)
        with pytest.raises(needs("openai").ConflictError, match="wait for the end"):
            here.client.conversations.delete(name)
        stream.close()  # nothing of this turn is kept
        wait_until(lambda: here.service.engine.num_open == 0)
        answer = here.client.responses.create(**endless | {"max_output_tokens": 6}, temperature=0)
        assert answer.output_text == greedy(whole("a"), 6)


def test_without_store_nothing_is_kept(server: Here, folder: Path):
    first = server.client.responses.create(**SETTINGS, input="Who is there?")
    before = sorted(folder.iterdir())
    answer = server.client.responses.create(**SETTINGS, input="And?", previous_response_id=first.id, store=False)
    assert answer.output_text == greedy(whole("Who is there?", "And?"), 6)
    assert sorted(folder.iterdir()) == before
    with pytest.raises(needs("openai").NotFoundError, match="unknown"):
        server.client.responses.retrieve(answer.id)


BAD_IDS = (
    "resp_" + "0" * 32, "resp_", "", "..", "../secret", "resp_../../secret", "/etc/passwd", "resp_" + "0" * 31 + "/",
    "RESP_" + "0" * 32, "resp_" + "0" * 32 + "\n", "resp_" + "\u0660" * 32, "resp_%2e%2e", "a" * 5000, "resp_\0", "conv_1",
)  # fmt: skip


@pytest.mark.parametrize("name", BAD_IDS)
def test_an_unknown_id_is_refused(server: Here, folder: Path, name: str):
    """It is compared with the form of ids before it becomes a part of a path."""
    (folder.parent / "secret.json").write_text('{"response": {"id": "secret"}}')
    for field in ("previous_response_id", "conversation"):
        answer = server.post("responses", json={"input": "a", field: name, "max_output_tokens": 1})
        assert answer.status_code == 400, answer.text
        assert (answer.json()["error"]["param"], "unknown" in answer.text) == (field, True)
    store = server.service.store
    for ask in (store.response, store.conversation, lambda name: store.delete("resp", name)):
        with pytest.raises(RequestError, match="unknown"):
            ask(name)
    assert (folder.parent / "secret.json").exists()


def test_what_belongs_to_the_beginning_is_refused_later(server: Here):
    bad = needs("openai").BadRequestError
    first = server.client.responses.create(**SETTINGS, input="a", instructions="Be short.")
    with pytest.raises(bad, match="`instructions` stand at the beginning"):
        server.client.responses.create(**SETTINGS, input="a", previous_response_id=first.id, instructions="Be long.")
    conversation = server.client.conversations.create().id
    with pytest.raises(bad, match="give one"):
        server.client.responses.create(**SETTINGS, input="a", previous_response_id=first.id, conversation=conversation)
    with pytest.raises(bad, match="`store`=false"):
        server.client.responses.create(**SETTINGS, input="a", conversation=conversation, store=False)
    second = server.client.responses.create(
        **SETTINGS, previous_response_id=first.id, input=[{"role": "system", "content": "Be long."}]
    )
    text = "system: Be short.\nuser: a\nassistant: "
    assert second.output_text == greedy(f"{text}{greedy(text, 6)}\nsystem: Be long.\nassistant: ", 6)


def test_a_text_without_a_template_goes_on(tmp_path: Path):
    with serving(template=None, sessions=Sessions(tmp_path)) as here:
        first = here.client.responses.create(**SETTINGS, input="Once")
        second = here.client.responses.create(**SETTINGS, input=" and", previous_response_id=first.id)
        assert second.output_text == greedy(f"Once{greedy('Once', 6)} and", 6)
        assert second.usage.input_tokens == 1 + len(" and")  # the last token of the answer before


def test_a_restart_on_a_copy_of_the_folder(tmp_path: Path):
    """Another server, another folder, the model loaded anew: the session goes on, a fork of it differs."""
    with serving(sessions=Sessions(tmp_path / "a")) as here:
        first = here.client.responses.create(**SETTINGS, input="Who is there?")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with serving(sessions=Sessions(tmp_path / "b")) as here:
        settings = SETTINGS | {"previous_response_id": first.id, "max_output_tokens": 12}
        second = here.client.responses.create(**settings, input="And now?")
        fork = here.client.responses.create(**settings, input="Why?")
    assert second.output_text == greedy(whole("Who is there?", "And now?"), 12)
    assert fork.output_text == greedy(whole("Who is there?", "Why?"), 12)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        f"{first.id}.json",
        f"{first.id}.safetensors",
    ]


def test_several_servers_share_a_folder(tmp_path: Path):
    with serving(sessions=Sessions(tmp_path)) as one, serving(sessions=Sessions(tmp_path)) as other:
        name = one.client.conversations.create().id
        texts = []
        for number, turn in enumerate(("Who is there?", "And now?", "Oh.")):
            client = (one, other)[number % 2].client
            texts.append(client.responses.create(**SETTINGS, input=turn, conversation=name).output_text)
        assert texts[-1] == greedy(whole("Who is there?", "And now?", "Oh."), 6)


def test_killed_between_two_turns_and_in_one(tmp_path: Path):
    """`transformers-xl serve` in a process of its own: what a client was told of is there; half a turn is not."""
    for name in ("openai", "uvicorn"):
        needs(name)
    model, folder = save_letters(tmp_path / "model"), tmp_path / "sessions"
    words = (model, "--sessions", folder, "--max-tokens", 10**9)
    settings = SETTINGS | {"model": str(model)}
    process = Process(tmp_path / "first", *words)
    try:
        here = process.wait()
        name = here.client.conversations.create().id
        first = here.client.responses.create(**settings, input="Who is there?", conversation=name)
        endless = settings | {"max_output_tokens": 10**9}
        stream = here.client.responses.create(**endless, input="never ends", conversation=name, stream=True)
        assert "delta" in [next(stream) for _ in range(6)][-1].type
    finally:
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
    process = Process(tmp_path / "second", *words)
    try:
        here = process.wait()
        second = here.client.responses.create(**settings, input="And now?", conversation=name)
        assert second.output_text == greedy(whole("Who is there?", "And now?"), 6)
        assert here.client.responses.retrieve(first.id).output_text == first.output_text
    finally:
        process.end(signal.SIGTERM)
    assert "Traceback" not in process.said()


def kept(store: SessionStore, memory: Memory, conversation: str | None = None) -> str:
    name = new_id("resp")
    linked = None if conversation is None else {"id": conversation}
    store.save({"id": name, "conversation": linked}, memory, [3])
    return name


def read(model, length: int) -> Memory:
    with torch.no_grad():
        return model(torch.arange(length)[None] % 250, use_cache=True).past_key_values.memory


def test_a_process_that_ends_at_any_write_loses_no_finished_turn(tmp_path: Path):
    """Killed at each write of a turn in turn: the conversation has the turn before, or this one, whole."""
    model = letters_model()
    before, after = read(model, 5), read(model, 9)
    store = SessionStore(tmp_path, model)
    name = store.create_conversation({})["id"]
    first = kept(store, before, name)
    number, code = 0, KILLED
    while code == KILLED:
        child = os.fork()
        if child == 0:
            end_at(number, "kill", tmp_path)
            kept(store, after, name)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        again = SessionStore(tmp_path, model)
        last = again.conversation(name)["last"]
        past = again.past(last)
        assert past.unread_ids == [3]
        assert past.memory.tokens_read.tolist() == [5 if last == first else 9]
        number += 1
        assert number < 60
    assert last != first
    assert number > 5


def test_no_more_are_kept_than_the_bound(tmp_path: Path):
    model = letters_model()
    memory = read(model, 5)
    store = SessionStore(tmp_path, model, most=5, days=1e6)
    names = []
    for number in range(8):
        names.append(kept(store, memory))
        for path in tmp_path.glob(f"{names[-1]}*"):
            os.utime(path, (1e9 + number, 1e9 + number))
    assert store.count() == 5
    assert len(list(tmp_path.iterdir())) == 10
    with pytest.raises(RequestError, match="unknown"):
        store.past(names[0])
    assert store.past(names[-1]).memory.tokens_read.tolist() == [5]


def test_what_nobody_uses_is_removed(tmp_path: Path):
    """By its last use: what is continued stays. Before it is removed it is already unknown."""
    model = letters_model()
    memory = read(model, 5)
    store = SessionStore(tmp_path, model, days=2)
    old, used, new = (kept(store, memory) for _ in range(3))
    yesterday, long_ago = time.time() - 86_400, time.time() - 3 * 86_400
    for name, moment in ((old, long_ago), (used, yesterday)):
        for path in tmp_path.glob(f"{name}*"):
            os.utime(path, (moment, moment))
    with pytest.raises(RequestError, match="too old"):
        store.past(old)
    store.past(used)
    assert (tmp_path / f"{used}.json").stat().st_mtime > yesterday + 3600
    left = tmp_path / f"{new_id('resp')}.safetensors"  # by a process that was killed
    workspace = tmp_path / f".{new_id('resp')}.json-abc.transformers-xl"
    workspace.mkdir()
    (workspace / "half").write_text("{")
    foreign = [tmp_path / name for name in ("notes.txt", "config.json", "model.safetensors", "resp_1.json")]
    for path in (left, *foreign):
        path.write_text("")
    for path in (left, *foreign, workspace):
        os.utime(path, (long_ago, long_ago))
    SessionStore(tmp_path, model, days=2)
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {f"{each}.{suffix}" for each in (used, new) for suffix in ("json", "safetensors")} | {
        path.name for path in foreign
    }
    store = SessionStore(tmp_path, model, most=2, days=2)
    assert store.count() == 2
    assert all(path.exists() for path in foreign)


def test_a_conversation_goes_on_with_the_least_that_is_kept(tmp_path: Path):
    model = letters_model()
    store = SessionStore(tmp_path, model, most=2)
    conversation = store.create_conversation({})
    for _ in range(3):
        name = new_id("resp")
        store.save({"id": name, "conversation": {"id": conversation["id"]}}, read(model, 5), [3])
        assert store.past_of_conversation(conversation["id"]) is not None


def test_a_memory_that_is_damaged_or_of_another_model_is_refused(tmp_path: Path):
    model = letters_model()
    store = SessionStore(tmp_path, model)
    name = kept(store, read(model, 5))
    other = letters_model()
    other.lm_head.bias.data += 1
    with pytest.raises(RequestError, match="of another model"):
        SessionStore(tmp_path, other).past(name)
    file = tmp_path / f"{name}.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RequestError, match="cannot be continued.*damaged") as caught:
        store.past(name)
    assert caught.value.field == "previous_response_id"
    (tmp_path / f"{name}.json").write_text("[]")
    with pytest.raises(ValueError, match="JSON object"):
        store.past(name)


def test_a_model_that_remembers_nothing_keeps_no_sessions(tmp_path: Path):
    model = tiny_model("transformer_xl", "causal_lm", mem_len=0, same_length=False)
    with pytest.raises(ValueError, match="`mem_len`=0"):
        make_service(model, None, NAME, sessions=Sessions(tmp_path))


def test_sessions_are_private(tmp_path: Path):
    SessionStore(tmp_path / "new", letters_model())
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    (tmp_path / "shared").mkdir(mode=0o755)
    store = SessionStore(tmp_path / "shared", letters_model())
    kept(store, read(store.model, 3), store.create_conversation({})["id"])
    files = [*(tmp_path / "shared").iterdir()]
    assert {file.suffix for file in files} >= {".json", ".safetensors"}
    assert [file for file in files if file.stat().st_mode & 0o077] == []


def test_many_sessions_at_a_time(server: Here):
    """Each goes on with its own memory, whoever else is written."""
    texts: dict[int, str] = {}

    def talk(number: int) -> None:
        last = None
        for turn in (f"I am {number}", "And now?"):
            answer = server.client.responses.create(**SETTINGS, input=turn, previous_response_id=last)
            last = answer.id
        texts[number] = answer.output_text

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {number: greedy(whole(f"I am {number}", "And now?"), 6) for number in range(8)}


def test_the_server_knows_which_tokens_end_an_answer():
    """A turn leaves out an end that the model has written, also one that is no special token of its tokenizer."""
    model = tiny_model("transformer_xl", "causal_lm", vocab_size=len(ByteTokenizer()))
    model.generation_config.eos_token_id = [7, 9]
    assert make_service(model, ByteTokenizer(), NAME).ends == {7, 9}
