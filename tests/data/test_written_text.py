"""The text of tokens as they come: what was shown does not change, and nothing of a stop text is shown."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from transformers_xl import ByteTokenizer, WordTokenizer
from transformers_xl.data.streamers import WrittenTextStreamer
from transformers_xl.data.written_text import WholeDecoder, WrittenText, first_of, same_beginning
from transformers_xl.serve.completion_endpoint import Answer
from transformers_xl.serve.text_request import TokenLogprob
from transformers_xl.serve.token_texts import Offsets, by_text, lists, text_of

TEXT = "na\u00efve \u20ac\U0001f600 aab aaab END of \u65e5\u672c <stop"
STOPS = [(), ("END",), ("<stop>", "of \u65e5"), ("aaab", "b a"), ("\u20ac\U0001f600",)]


def byte_level_bpe() -> PreTrainedTokenizerFast:
    """With tokens of several characters, and of parts of one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [TEXT, "aab aab END END"], trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENIZERS = {"bytes": ByteTokenizer(), "bpe": byte_level_bpe()}


def shown(written: WrittenText, ids: list[int]) -> tuple[str, int]:
    """The text of tokens, and how many were taken until a stop text ended it."""
    text = ""
    for count, token_id in enumerate(ids, start=1):
        text += written.add(token_id)
        assert "\ufffd" not in text
        if written.has_ended:
            return text + written.finish(), count
    return text + written.finish(), len(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("stop", STOPS)
def test_text_is_that_of_all_tokens_up_to_the_first_stop(name: str, stop: tuple[str, ...]):
    """After every prompt, one that ends inside a character too; and no token is taken after the one that ends it."""
    tokenizer = TOKENIZERS[name]
    ids = tokenizer(TEXT)["input_ids"]
    for start in range(len(ids)):
        text, count = shown(WrittenText(tokenizer, ids[:start], stop), ids[start:])
        before = len(tokenizer.decode(ids[:start]).rstrip("\ufffd"))
        whole = [tokenizer.decode(ids[:end])[before:] for end in range(len(ids) + 1)]
        end = first_of(stop, whole[-1])
        assert text == (whole[-1] if end is None else whole[-1][:end])
        needed = [number for number in range(start, len(ids) + 1) if first_of(stop, whole[number]) is not None]
        assert count == (needed[0] if needed else len(ids)) - start


@pytest.mark.parametrize("decoder", [None, WholeDecoder])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_ends_a_prompt_is_not_said_again(name: str, decoder):
    """A replacement character that stands in the prompt, and bytes of a character that never ends."""
    tokenizer = TOKENIZERS[name]
    new = tokenizer("s \u20aca")["input_ids"]
    for prompt in (tokenizer("x\ufffd\ufffd")["input_ids"], tokenizer("x\u20ac")["input_ids"][:-1]):
        written = WrittenText(tokenizer, prompt, ())
        if decoder is not None:
            written.decoder = decoder(tokenizer, prompt)
        assert shown(written, new)[0] == "s \u20aca"


def test_of_several_bytes_of_a_prompt_the_last_become_a_character():
    written = WrittenText(TOKENIZERS["bytes"], [97, 0x82, 0xE2], ())
    assert [written.add(each) for each in (0x82, 0xAC, 98)] == ["", "\u20ac", "b"]


def pieces() -> PreTrainedTokenizerFast:
    """As those of Llama 2: the space before a word is a part of it, and that of a text's first word is dropped."""
    words = ["<unk>", "\u2581Hello", "\u2581world", "x", "\u2581", "<0xE2>", "<0x82>", "<0xAC>"]
    tokenizer = Tokenizer(
        models.BPE({word: number for number, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([*steps])
    options = {"unk_token": "<unk>", "additional_special_tokens": ["<sp>"], "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


@pytest.mark.parametrize("ids", [[1, 2], [1, 8, 2], [1, 99, 2], [1, 8, 99, 2], [1, 4, 2], [1, 5, 6, 7, 2], [8, 2, 3]])
@pytest.mark.parametrize("prompt", [[1], [8], [1, 8]])
def test_a_token_without_a_text_takes_no_space_from_the_next(prompt: list[int], ids: list[int]):
    """A special one, or one that the tokenizer does not know."""
    tokenizer = pieces()
    before, whole = (tokenizer.decode(each, skip_special_tokens=True) for each in (prompt, prompt + ids))
    assert shown(WrittenText(tokenizer, prompt, ()), ids)[0] == whole[len(before) :]


def test_bytes_that_are_no_text_are_shown_at_the_end():
    tokenizer = TOKENIZERS["bytes"]
    written = WrittenText(tokenizer, [97], ())
    assert [written.add(each) for each in (98, 0xE2, 0x82)] == ["b", "", ""]
    assert written.finish() == tokenizer.decode([0xE2, 0x82])


def test_words_that_are_joined_later_are_held_back():
    """The tokenizer of words writes `well @-@ known` as `well-known`, and quotation marks by their number."""
    words = ["he", "said", '"', "a", "well", "@-@", "known", "1", "@,@", "000", '"', ".", "then"]
    tokenizer = WordTokenizer.from_legacy({word: index for index, word in enumerate(dict.fromkeys(words))})
    ids = tokenizer.convert_tokens_to_ids(words)
    written = WrittenText(tokenizer, ids[:2], ("then",))
    assert isinstance(written.decoder, WholeDecoder)
    text, count = shown(written, ids[2:])
    assert (tokenizer.decode(ids[:2]) + text, count) == ('he said "a well-known 1,000". ', len(ids) - 2)
    assert (
        shown(WrittenText(tokenizer, ids[:2], ()), [*ids[2:], len(tokenizer) + 3])[0] == ' "a well-known 1,000". then'
    )


def test_the_text_of_words_is_that_of_all_of_them():
    """Whatever joins words of a random text later; words without a text between them settle nothing."""
    words = ["he", '"', "'", "s", "'s", "a", "@-@", "10", "@,@", "@.@", ".", "(", ")", "&quot;", "\u65e5", "$", "``"]
    tokenizer = WordTokenizer.train_from_iterator([" ".join(words) + " \n"], split="spaces", progress=False)
    rng = random.Random(0)
    for _ in range(1000):
        ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randrange(1, 40))]
        start = rng.choice([0, len(ids) // 3])
        before, whole = (tokenizer.decode(each, skip_special_tokens=True) for each in (ids[:start], ids))
        assert (
            shown(WrittenText(tokenizer, ids[:start], ()), ids[start:])[0]
            == whole[len(same_beginning(before, whole)) :]
        )


def test_a_stream_of_words_goes_on_where_the_prompt_was_joined():
    """`10 @,@` was shown as it stands; what follows is not held back to the end."""
    words = ["10", "@,@", "000", "men", "came", "home", "."]
    tokenizer = WordTokenizer.train_from_iterator([" ".join(words) + " \n"], split="spaces", progress=False)
    ids = tokenizer.convert_tokens_to_ids(words)
    written = WrittenText(tokenizer, ids[:2], ())
    assert [written.add(each) for each in ids[2:]] == ["", "", ",000", " men", " came"]
    assert written.finish() == " home."


@pytest.mark.parametrize("continues", [False, True])
def test_a_streamer_writes_what_decoding_gives(continues: bool):
    """The commands print it: `1 @,@ 000` is `1,000` there too."""
    words = ["a", "tax", "of", "1", "@,@", "000", "<unk>", "men"]
    tokenizer = WordTokenizer.train_from_iterator([" ".join(words) + " \n"], split="spaces", progress=False)
    ids = torch.tensor(tokenizer.convert_tokens_to_ids(words))
    written: list[str] = []
    streamer = WrittenTextStreamer(tokenizer, written.append, continues)
    for _ in range(2):  # it is used again for the next answer
        streamer.put(ids[None, :2])
        for each in ids[2:]:
            streamer.put(each[None])
        streamer.end()
        assert "".join(written) == (" of 1,000 men" if continues else "of 1,000 men")
        assert len(written) == len(ids) - 1
        written.clear()
    with pytest.raises(ValueError, match="2 rows"):
        streamer.put(ids[None].repeat(2, 1))


def test_a_long_text_of_words_costs_as_much_a_token_as_a_short_one():
    """It is decoded again each time that it has grown by a part, and not with each token; without stop texts."""
    tokenizer = WordTokenizer.from_legacy({word: index for index, word in enumerate(["a", "b", "c", "@-@", ",", "."])})
    decoded = []
    decode = tokenizer.decode
    tokenizer.decode = lambda ids, **options: decoded.append(len(ids)) or decode(ids, **options)
    ids = [(7 * place) % 6 for place in range(2000)]
    text, _ = shown(WrittenText(tokenizer, [0, 1], ()), ids)
    assert decode([0, 1]) + text == decode([0, 1, *ids])
    assert sum(decoded) < 120 * len(ids)
    # a stop text ends it with the token that ends the text, however long it is
    ids = [0, 1, 2] * 50 + [4] + [0, 1, 2] * 50
    text, count = shown(WrittenText(tokenizer, [0, 1], (",",)), ids)
    assert (decode([0, 1]) + text, count) == (decode([0, 1] + [0, 1, 2] * 50), 151)


def test_the_texts_of_tokens_are_those_of_the_text():
    """With their spaces; equal texts keep the likelier one; tokens begin where they stand, also after a prompt that is not
    echoed; and a token that the tokenizer does not have is no error."""
    tokenizer = pieces()
    assert [text_of(tokenizer, each) for each in (1, 2, 3, 99)] == [" Hello", " world", "x", ""]
    body: Any = SimpleNamespace(echo=False)
    service: Any = SimpleNamespace(tokenizer=tokenizer, name="m")
    (offsets,) = Answer(service, body, [[1, 2]]).offsets
    assert [offsets.of(each) for each in (2, 99, 3, 1)] == [0, 6, 6, 7]
    offsets = Offsets(TOKENIZERS["bytes"], [97, 0xE2, 0x82])
    assert [offsets.of(each) for each in (0xAC, 98)] == [0, 1]
    assert by_text(tokenizer, ((8, -1.0), (3, -2.0), (8, -3.0))) == {"<sp>": -1.0, "x": -2.0}
    words = WordTokenizer.from_legacy({"a": 0, "b": 1})
    logprob = TokenLogprob(7, -1.0, ((7, -1.0), (8, -2.0)))
    listed = lists(words, [7, 1], [logprob, None], Offsets(words, [0, 9]))
    assert listed["tokens"] == ["token_id:7", "b"]
    assert listed["top_logprobs"][0] == {"token_id:7": -1.0, "token_id:8": -2.0}
