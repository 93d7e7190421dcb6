"""`transformers-xl chat`: what the model reads of a session, what that costs, and the keys of a terminal."""

import json
import os
import pty
import select
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import tokenizers
import torch
from forked import fork_server
from patience import PATIENCE
from stand_in_base import base_tokenizer
from tiny import tensors_of, tiny_model
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from transformers_xl import ByteTokenizer, WordTokenizer
from transformers_xl.cli.main import app
from transformers_xl.data.conversation import Conversation
from transformers_xl.data.turns import ANSWER, turn_ids
from transformers_xl.files.output_lock import output_lock

TEMPLATE = (
    "{{ 'System: short answers.\n' }}{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}"
    "{% if message['role'] == 'user' %}{{ '\n' }}{% else %}{{ '|' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
SETTINGS = {"do_sample": False, "max_new_tokens": 6}
# a session is texts of `generate()`, which every memory meets in tests/modeling/test_generate.py: a window, what is
# compressed, a state
remembering = pytest.mark.parametrize("model_type", ["transformer_xl", "compressive_transformer", "sha_rnn"])


def byte_model(model_type: str = "transformer_xl", letter: str = "a", **fields):
    """A model that writes letters from `letter` on."""
    fields = {"vocab_size": 259, "tie_word_embeddings": False} | fields  # tied, it would repeat what it reads
    model = tiny_model(model_type, "causal_lm", torch.float32, **fields)
    if getattr(model.lm_head, "bias", None) is not None:
        model.lm_head.bias.data[ord(letter) : ord("z")] += 12.0
    return model


def saved(folder: Path, template: str | None = None, **fields) -> str:
    byte_model(**fields).save_pretrained(folder, include_code=False)
    ByteTokenizer(chat_template=template).save_pretrained(folder, include_code=False)
    return str(folder)


def read_by(model) -> list[int]:
    """The ids that the model reads from now on."""
    ids: list[int] = []
    model.model.embed_tokens.register_forward_pre_hook(lambda _, inputs: ids.extend(inputs[0].flatten().tolist()))
    return ids


@remembering
def test_a_session_is_one_text(model_type: str):
    """Turns and answers in a memory, against the whole text so far read anew for every answer."""
    model = byte_model(model_type, mem_len=64)
    conversation, whole = Conversation(model, ByteTokenizer(), **SETTINGS), b""
    for line in ("Hello.", "And then?", "Go on"):
        answer = conversation.say(line)
        whole += f"{line}\n".encode()
        ids = torch.tensor([list(whole)])
        expected = model.generate(ids, **SETTINGS)[0, len(whole) :].tolist()
        assert answer == ByteTokenizer().decode(expected)
        whole += bytes(expected)


def test_a_template_is_read_as_if_the_whole_session_were_rendered():
    tokenizer, model = ByteTokenizer(chat_template=TEMPLATE), byte_model()
    ids, messages = read_by(model), []
    conversation = Conversation(model, tokenizer, **SETTINGS)
    for line in ("Hello.", "[[answer]]?", "Go on"):
        messages += [{"role": "user", "content": line}, {"role": "assistant", "content": conversation.say(line)}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    # but for the end of the last answer and its last token, which wait for the next turn
    assert bytes(ids).decode() == rendered[:-2]


def test_the_end_of_an_answer_is_read_once():
    """The model itself may write what the template puts behind an answer."""
    tokenizer, model = ByteTokenizer(chat_template=TEMPLATE), byte_model(eos_token_id=ord("|"))
    model.lm_head.bias.data[ord("|")] += 100.0
    ids, conversation = read_by(model), Conversation(model, tokenizer, **SETTINGS)
    for line in ("Hello.", "Go on"):
        assert conversation.say(line) == "|"
    assert bytes(ids).decode() == "System: short answers.\nuser: Hello.\nassistant: |user: Go on\nassistant: "


@pytest.mark.parametrize("stop", [None, ["\n\n"]])
def test_an_answer_that_was_cut_keeps_its_last_token(stop: list[str] | None):
    """Where it ends with what the template puts after it, after as many tokens as are allowed or at a stop text."""
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
    tokenizer, model = ByteTokenizer(chat_template=template), byte_model()
    model.lm_head.bias.data[ord("\n")] += 100.0
    ids, messages = read_by(model), []
    conversation = Conversation(model, tokenizer, stop=stop, **SETTINGS)
    for line in ("Hello.", "And then?", "Go on"):
        whole = tokenizer.apply_chat_template([*messages, {"role": "user", "content": line}], tokenize=False)
        answer = conversation.say(line)
        assert answer == "\n" * (6 if stop is None else 2)
        assert bytes(ids).decode() == whole + answer[:-1]  # its last token waits for the next turn
        messages += [{"role": "user", "content": line}, {"role": "assistant", "content": answer}]


def test_a_special_token_of_the_tokenizer_ends_an_answer():
    """Also where the config of the model does not say so: the template puts it there once."""
    tokenizer = base_tokenizer()
    tokenizer.chat_template = TEMPLATE.replace("'|'", repr(tokenizer.eos_token))
    message = {"role": "user", "content": "Go on"}
    for end in (repr(tokenizer.eos_token), f"' ' + {tokenizer.eos_token!r}"):  # Llama 2's has a space before it
        tokenizer.chat_template = TEMPLATE.replace("'|'", end)
        unread = tokenizer.encode("a")
        ids = turn_ids(tokenizer, [message], unread)
        assert tokenizer.decode(ids).removeprefix("a").lstrip() == "</s>user: Go on\nassistant: "
        assert turn_ids(tokenizer, [message], [tokenizer.eos_token_id]) == ids[len(unread) :]


@pytest.mark.parametrize(
    "template",
    ["Q: {{ messages[-1].content }}", TEMPLATE.replace("['content']", "['content'] | upper"), ANSWER],
)
def test_a_template_that_loses_the_answer_before(template: str):
    """What follows the answer is not known: no message is dropped silently."""
    tokenizer, model = ByteTokenizer(chat_template=template), byte_model()
    conversation = Conversation(model, tokenizer, **SETTINGS)
    conversation.say("Hello.")
    with pytest.raises(ValueError, match="does not write an earlier answer as it is"):
        conversation.say("And then?")


@remembering
def test_a_turn_costs_the_same_however_long_the_session(model_type: str):
    model = byte_model(model_type)
    ids, conversation = read_by(model), Conversation(model, ByteTokenizer(), **SETTINGS)
    sizes = []
    for turn in range(20):
        conversation.say("A turn of 20 letters")
        # the turn, its line break, and what the model has written, of which the last token is read with the next turn
        assert len(ids) == 21 + 6 - (turn == 0)
        ids.clear()
        sizes.append(sum(each.numel() for each in tensors_of(conversation.mems)))
        # the window of the attention, and not one position more
        lengths = [layer.num_columns for layer in conversation.mems.layers]
        assert all(held <= most for held, most in zip(lengths, model.config.layer_mem_lens, strict=True))
    assert max(sizes[2:4]) == max(sizes[-2:])  # what is compressed leaves the window in blocks


def test_reset_forgets():
    conversation = Conversation(byte_model(mem_len=64), ByteTokenizer(), **SETTINGS)
    first = conversation.say("Hello.")
    assert conversation.say("Hello.") != first
    conversation.reset()
    assert conversation.say("Hello.") == first


def test_stop_strings_end_an_answer():
    settings = SETTINGS | {"max_new_tokens": 50}
    whole = Conversation(byte_model(), ByteTokenizer(), **settings).say("Hello.")
    stop = whole[3:5]
    end = whole.index(stop) + len(stop)
    tokenizer = ByteTokenizer()
    stopped = Conversation(byte_model(), tokenizer, stop=[stop], **settings)
    assert stopped.say("Hello.") == whole[:end]


def test_ctrl_c_ends_an_answer_and_the_memory_holds_what_was_written():
    """The next answer is that of a session whose answer was as short by itself."""

    class Impatient:
        def __init__(self, after: int):
            self.after = after

        def put(self, value: torch.Tensor) -> None:
            self.after -= 1
            if self.after == 0:
                signal.raise_signal(signal.SIGINT)

        def end(self) -> None: ...

    before = signal.getsignal(signal.SIGINT)
    interrupted = Conversation(byte_model(), ByteTokenizer(), do_sample=False, max_new_tokens=50)
    answer = interrupted.say("Hello.", Impatient(after=4))
    assert 2 < len(answer) < 5
    assert signal.getsignal(signal.SIGINT) is before
    short = Conversation(byte_model(), ByteTokenizer(), do_sample=False, max_new_tokens=len(answer))
    assert answer == short.say("Hello.")
    assert interrupted.say("Go on")[: len(answer)] == short.say("Go on")


def test_the_command(tmp_path: Path):
    folder = saved(tmp_path / "model")
    options = ["--max-new-tokens", "5", "--temperature", "0"]
    result = CliRunner().invoke(
        app, ["chat", folder, *options], input="Hello.\n\n/reset\nHello.\nHello.\n/quit\nnot read\n"
    )
    assert result.exit_code == 0, result.output
    assert "Forgotten." in result.output
    said = [line.removeprefix("> ") for line in result.output.splitlines() if line.startswith("> ")]
    answers = [line for line in said if line.lstrip("> ").isalpha() and line != "Forgotten."]
    assert len(answers) == 3
    assert answers[0].lstrip("> ") == answers[1].lstrip("> ") != answers[2].lstrip("> ")
    lines = CliRunner().invoke(app, ["chat", folder, *options, "--json"], input="Hello.\n/reset\nHello.\nHello.\n")
    turns = [json.loads(line) for line in lines.stdout.splitlines()]
    assert [turn["text"] for turn in turns] == ["Hello."] * 3
    assert [turn["answer"] for turn in turns] == [answer.lstrip("> ") for answer in answers]
    ended = CliRunner().invoke(app, ["chat", folder, *options, "--stop", answers[0].lstrip("> ")[1]], input="Hello.\n")
    assert ended.exit_code == 0, ended.output  # the end of the input ends the session
    assert answers[0].lstrip("> ")[:2] in ended.output
    assert answers[0].lstrip("> ") not in ended.output


def chat(folder: str, *words: str, lines: str) -> tuple[list[str], str]:
    """The answers, and what is said beside them."""
    options = ["--max-new-tokens", "5", "--temperature", "0", "--json"]
    result = CliRunner().invoke(app, ["chat", folder, *options, *words], input=lines)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["answer"] for line in result.stdout.splitlines()], result.stderr


def test_a_session_goes_on_in_another_chat(tmp_path: Path):
    folder, file = saved(tmp_path / "model"), str(tmp_path / "session")
    whole, _ = chat(folder, lines="Hello.\nAnd then?\nGo on\n")
    first, said = chat(folder, "--session", file, lines="Hello.\n")
    assert f"Saved in '{file}' from here on, after every turn." in said
    second, said = chat(folder, "--session", file, lines="And then?\n/quit\n")
    assert f"Going on with '{file}': 11 tokens read, " in said
    third, _ = chat(folder, "--session", file, lines="Go on\n")
    assert first + second + third == whole
    _, said = chat(folder, "--session", file, lines="/reset\n")
    assert "Forgotten." in said
    again, said = chat(folder, "--session", file, lines="Hello.\n")
    assert "0 tokens read" in said
    assert again == first


def test_the_commands_of_a_session(tmp_path: Path):
    folder, (a, b, c) = saved(tmp_path / "model"), (str(tmp_path / name) for name in "abc")
    other = saved(tmp_path / "other", mem_len=4)
    chat(other, "--session", c, lines="Hello.\n")
    lines = [
        *("Hello.", f"/fork {b}", "Go on", f"/load {a}", "Go on", f"/load {c}", f"/save {c}", f"/fork {b}", "/load"),
        *("/save", "/saved text"),
    ]
    answers, said = chat(folder, "--session", a, lines="\n".join(lines))
    assert len(answers) == 4
    assert answers[1] == answers[2]  # the fork left its origin as it was
    for sentence in (
        f"Saved in '{b}' from here on, after every turn; '{a}' stays as it is.",
        f"Going on with '{a}': 11 tokens read, ",
        f"/load: '{c}' is a memory of another model: it was made with `mem_len`=4, and `model` has 8",
        f"/save: '{c}' is a memory of another model",
        f"/fork: '{b}' is there already: name a new file.",
        "/load: name a file.",
        "/save: name a file.",
    ):
        assert sentence in said, said
    assert said.count("\n") < 14
    _, said = chat(folder, lines=f"Hello.\n/save {tmp_path / 'copy'}\n")
    assert f"Saved in '{tmp_path / 'copy'}', as it is now." in said


@pytest.mark.parametrize("kind", ["another model", "damaged", "folder", "open"])
def test_a_session_that_cannot_go_on_is_refused(tmp_path: Path, kind: str):
    folder, file = saved(tmp_path / "model"), tmp_path / "session"
    if kind == "folder":
        file.mkdir()
    elif kind == "another model":
        chat(saved(tmp_path / "other", letter="b"), "--session", str(file), lines="Hi\n")
    else:
        chat(folder, "--session", str(file), lines="Hi\n")
    if kind == "damaged":
        file.write_bytes(file.read_bytes()[:-1])
    kept = None if kind == "folder" else file.read_bytes()
    with output_lock(file.with_name(".session.lock")) if kind == "open" else nullcontext():
        result = CliRunner().invoke(app, ["chat", folder, "--session", str(file)], input="Hello.\n")
    assert result.exit_code == 2
    (error,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    said = {
        "another model": "with other weights in its head than `model` has",
        "damaged": "it is damaged, cut off, or no memory",
        "folder": "is a folder: name a file in it",
        "open": "another chat has",
    }
    assert said[kind] in error
    assert kept is None or file.read_bytes() == kept


@pytest.mark.parametrize(
    "fields", [{"model_type": "vanilla_transformer"}, {"same_length": False, "mem_len": 0}], ids=str
)
def test_a_model_without_memory_is_refused(tmp_path: Path, fields: dict):
    result = CliRunner().invoke(app, ["chat", saved(tmp_path / "model", **fields)], input="/quit\n")
    assert result.exit_code == 2
    assert "no memory from turn to turn" in result.output


def test_words_are_generated(tmp_path: Path):
    """A tokenizer without bytes: text comes word by word, as transformers shows it."""
    tokenizer = WordTokenizer.train_from_iterator(["one two three four five six"], progress=False)
    byte_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path, include_code=False)
    tokenizer.save_pretrained(tmp_path, include_code=False)
    options = ["--prompt", "one two", "--max-new-tokens", "5", "--temperature", "0"]
    result = CliRunner().invoke(app, ["generate", str(tmp_path), *options])
    assert result.exit_code == 0, result.output
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = tokenizer("one two", add_special_tokens=False, return_tensors="pt")["input_ids"]
    written = model.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(written, skip_special_tokens=True).split() == result.output.split()[2:]


class Terminal:
    """A command of ours at a terminal of its own, in a process that is forked."""

    def __init__(self, *words: str):
        self.end, theirs = pty.openpty()
        self.process = fork_server().Process(target=at_terminal, args=(os.ttyname(theirs), words))
        self.process.start()
        self.theirs = theirs  # open until the process has opened it
        self.seen = ""

    def types(self, text: str) -> None:
        os.write(self.end, text.encode())

    def comes(self, text: str, seconds: float) -> bool:
        """Read until `text` has come since the last one that came, for at most `seconds`."""
        until = time.monotonic() + seconds
        while text not in self.seen:
            if not select.select([self.end], [], [], max(until - time.monotonic(), 0))[0]:
                return False
            self.seen += os.read(self.end, 4096).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]
        return True

    def waits_for(self, text: str) -> None:
        assert self.comes(text, PATIENCE), f"{text!r} not in {self.seen!r}"

    def presses(self, keys: str, until: str) -> None:
        """Press keys once a second, as a person would: Python loses a Ctrl-C that comes between two letters it reads.

        (Its `readline` notices a signal only while it waits; one that came just before stays unseen until the next key.)
        """
        for _ in range(round(PATIENCE)):
            self.types(keys)
            if self.comes(until, seconds=1):
                return
        raise AssertionError(f"{until!r} not in {self.seen!r}")


def at_terminal(name: str, words: tuple[str, ...]) -> None:
    """Run a command whose input and output are a terminal. A new session takes the first that it opens for its own: Ctrl-C
    there reaches this process, also where the tests run in the background, which ignores it."""
    os.setsid()
    terminal = os.open(name, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(terminal, descriptor)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(each, mode) for each, mode in enumerate("rww"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["TERM"] = "dumb"
    app(words)


def test_ctrl_c_at_a_terminal(tmp_path: Path):
    folder = saved(tmp_path / "model", letter="y")
    terminal = Terminal("chat", folder, "--max-new-tokens", "1000000", "--temperature", "0")
    try:
        terminal.waits_for("> ")
        terminal.types("Hello.\n")
        terminal.waits_for("yyyyyyyyyy")  # it would write on for minutes
        terminal.types("\x03")
        terminal.waits_for("\n> ")
        terminal.types("half a li")
        terminal.waits_for("half a li")
        terminal.presses("\x03", until="\n> ")  # at the prompt it drops the line
        # a further press may still be on its way, which would drop what is typed
        terminal.presses("/reset\n", until="Forgotten.")
        terminal.types("/quit\n")
        terminal.process.join(PATIENCE)
        assert terminal.process.exitcode == 0
    finally:
        terminal.process.kill()
        terminal.process.join()
        os.close(terminal.theirs)
        os.close(terminal.end)


def test_a_chat_that_is_killed_between_two_turns_loses_nothing(tmp_path: Path):
    folder, file = saved(tmp_path / "model", letter="y"), str(tmp_path / "session")
    expected, _ = chat(folder, lines="Hello.\nAnd then?\nGo on\n")
    terminal = Terminal("chat", folder, "--session", file, "--max-new-tokens", "5", "--temperature", "0")
    try:
        for line in ("Hello.", "And then?"):
            terminal.waits_for("> ")
            terminal.types(f"{line}\n")
            terminal.waits_for(f"{line}\r\n")
        terminal.waits_for("\n> ")
        terminal.process.kill()
        terminal.process.join(PATIENCE)
    finally:
        terminal.process.kill()
        terminal.process.join()
        os.close(terminal.theirs)
        os.close(terminal.end)
    assert chat(folder, "--session", file, lines="Go on\n")[0] == expected[2:]


def test_an_empty_stop_text_is_refused():
    """It would end every answer after a token."""
    with pytest.raises(ValueError, match=r"`stop`=\['', 'END'\] has an empty text"):
        Conversation(byte_model(mem_len=64), ByteTokenizer(), stop=["", "END"])


def test_an_unknown_word_that_ends_an_answer_is_content():
    """Its id is special, and no end: what follows may begin with another unknown word."""
    vocabulary = {
        word: number for number, word in enumerate(["[UNK]", "user", "assistant", ":", "</s>", "hello", "."])
    }
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, unk_token="[UNK]", eos_token="</s>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }} : {{ m.content }} # {% endfor %}"
    message = [{"role": "user", "content": "hello"}]
    assert turn_ids(tokenizer, message, [0])[:2] == [0, 0]  # the unknown "#" of the template is read
    assert turn_ids(tokenizer, message, [4])[:2] == [4, 0]
    tokenizer.chat_template = tokenizer.chat_template.replace("#", "</s>")
    assert turn_ids(tokenizer, message, [4])[:2] == [4, vocabulary["user"]]  # the model has written it
