"""A conversation and its file: saved after every turn, one chat at a time, by one model."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from killed import killed_at_each_write
from tiny import tiny_model

from transformers_xl import ByteTokenizer, Memory
from transformers_xl.data.chat_session import ChatSession
from transformers_xl.data.conversation import Conversation

SETTINGS = {"do_sample": False, "max_new_tokens": 6}
remembering = pytest.mark.parametrize("model_type", ["transformer_xl", "compressive_transformer", "sha_rnn"])


def model_of(model_type: str = "transformer_xl", **fields):
    fields = {"vocab_size": 259, "tie_word_embeddings": False} | fields
    return tiny_model(model_type, "causal_lm", torch.float32, **fields)


def conversation_of(model=None) -> Conversation:
    return Conversation(model_of() if model is None else model, ByteTokenizer(), **SETTINGS)


def session_of(path: Path | None = None, model=None) -> ChatSession:
    session = ChatSession(conversation_of(model))
    if path is not None:
        session.begin(path)
    return session


def say(session: ChatSession, text: str) -> str:
    answer = session.conversation.say(text)
    session.saved()
    return answer


@remembering
def test_it_goes_on_as_if_it_had_not_been_put_away(model_type, tmp_path):
    whole, part = (conversation_of(model_of(model_type)) for _ in range(2))
    assert part.mems is None
    for text in ("Hello.", "And then?", "Go on", "And?"):
        part.save(tmp_path / "session")  # also before the first turn
        part = conversation_of(model_of(model_type))
        part.load(tmp_path / "session")
        assert part.say(text) == whole.say(text)
        assert part.unread == whole.unread


def test_a_session_is_a_memory_with_the_token_that_it_has_not_read(tmp_path):
    with session_of(tmp_path / "session") as session:
        say(session, "Hello.")
        memory, unread_ids = Memory.load(tmp_path / "session", session.conversation.model)
        assert unread_ids.tolist() == [session.conversation.unread]
        assert memory.tokens_read.tolist() == [7 + 5]
        assert memory.num_bytes == session.conversation.mems.num_bytes


def test_a_fork_answers_by_itself_and_its_origin_stays(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    with session_of(first) as session:
        say(session, "Hello.")
        kept = first.read_bytes()
        said = session.fork(second)
        assert said == f"Saved in '{second}' from here on, after every turn; '{first}' stays as it is."
        answers = say(session, "Go on"), say(session, "And?")
        assert first.read_bytes() == kept
        assert second.read_bytes() != kept
        with pytest.raises(ValueError, match="'.*first' is there already: name a new file"):
            session.fork(first)
    with session_of(first) as again:
        assert say(again, "Another way") != answers[0]
    with session_of(second) as again:
        expected = conversation_of()
        for text in ("Hello.", "Go on", "And?"):
            expected.say(text)
        assert say(again, "More") == expected.say("More")


def test_a_copy_does_not_go_along(tmp_path):
    with session_of() as session:
        say(session, "Hello.")
        assert session.save(tmp_path / "copy") == f"Saved in '{tmp_path / 'copy'}', as it is now."
        assert session.path is None
        kept = (tmp_path / "copy").read_bytes()
        expected = say(session, "Go on")
        assert (tmp_path / "copy").read_bytes() == kept
        said = session.load(tmp_path / "copy")
        assert said.startswith(f"Going on with '{tmp_path / 'copy'}': 12 tokens read, ")
        assert say(session, "Go on") == expected
        assert (tmp_path / "copy").read_bytes() != kept  # it is the session's file now
        session.save(tmp_path / "copy")  # its own
    assert os.listdir(tmp_path) == ["copy"]


def test_one_chat_at_a_time(tmp_path):
    path, link = tmp_path / "session", tmp_path / "link"
    link.symlink_to(path)
    with session_of(path) as session, session_of(tmp_path / "other") as other:
        say(session, "Hello.")
        kept = path.read_bytes()
        for action in (other.load, other.save):
            for name in (path, link):
                with pytest.raises(ValueError, match=f"another chat has '{path}' open, process {os.getpid()} on host"):
                    action(name)
        with pytest.raises(ValueError, match=f"another chat has '{path}' open"):
            session_of(link)
        assert other.path == tmp_path / "other"
        assert path.read_bytes() == kept
        session.fork(tmp_path / "third")
        other.load(link)  # it is free now
        assert other.path == path
        session_of(tmp_path / "other").__exit__(None, None, None)
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "other", "session", "third"]


def test_what_cannot_be_used_changes_nothing(tmp_path):
    model = model_of()
    (tmp_path / "text").write_text("Dear diary")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    conversation_of(model_of(mem_len=4)).save(tmp_path / "another model")
    many = model(torch.zeros(2, 3, dtype=torch.long)).mems
    many.save(tmp_path / "rows", model, [[1], [2]])
    many.rows([0]).save(tmp_path / "nothing unread", model)
    with session_of(tmp_path / "session", model) as session:
        say(session, "Hello.")
        before, kept = session.conversation.mems, (tmp_path / "session").read_bytes()
        for name, said in (
            ("text", "'.*text' cannot be read"),
            ("folder", "'.*folder' is a folder"),
            ("pipe", "'.*pipe' is a pipe"),
            ("another model", "is a memory of another model: it was made with `mem_len`=4"),
            ("rows", "is no conversation, but a memory of 2 rows"),
            ("nothing unread", "is no conversation"),
        ):
            for action in (session.load, session.save, session_of):
                content = (tmp_path / name).read_bytes() if (tmp_path / name).is_file() else None
                with pytest.raises(ValueError, match=said):
                    action(tmp_path / name) if action is not session_of else session_of(tmp_path / name, model)
                assert content is None or (tmp_path / name).read_bytes() == content
        for name, said in (("", "name a file"), (tmp_path / "nowhere" / "x", "is not there")):
            with pytest.raises(ValueError, match=said):
                session.load(name)
        assert not (tmp_path / "nowhere").exists()
        assert session.conversation.mems is before
        assert session.path == tmp_path / "session"
        assert (tmp_path / "session").read_bytes() == kept
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".lock")]


def test_a_chat_that_is_killed_has_its_last_turn(tmp_path):
    """At any write of a turn: the file is that of this turn or of the one before it."""
    model = model_of()
    turns = [conversation_of(model) for _ in range(2)]
    turns[0].say("Hello.")
    for text in ("Hello.", "Go on"):
        turns[1].say(text)
    path, seen = tmp_path / "session", []

    def prepare() -> None:
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        turns[0].save(path)

    def turn() -> None:
        with session_of(path, model) as session:
            session.conversation.mems, session.conversation.unread = turns[1].mems, turns[1].unread
            session.saved()

    for _ in killed_at_each_write(tmp_path, prepare, turn):
        with session_of(path, model) as session:  # whose lock is that of a dead process
            seen.append(int(session.conversation.mems.tokens_read))
    assert {*seen} == {int(each.mems.tokens_read) for each in turns}
    assert seen == sorted(seen)
