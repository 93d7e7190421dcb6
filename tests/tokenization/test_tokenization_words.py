"""The word tokenizer: the words of sacremoses, the ids of old vocabularies, and vocabularies of its own."""

import json
import random
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from golden import folder_of
from optional_packages import needs
from tokenizers import Regex
from tokenizers.normalizers import Replace
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from typer.testing import CliRunner

from transformers_xl import ByteTokenizer, GTrXLConfig, WordTokenizer
from transformers_xl.cli.main import app
from transformers_xl.data.files import read_ids
from transformers_xl.tokenization import moses
from transformers_xl.tokenization.cutoffs import cheapest_cutoffs

SPECIAL = ["<eos>", "<unk>", "<formula>"]
TEXT = "The boat of 1,000 tons left.\nThe boat, well-known, came back - at 3.5 knots!\n\nNo <unk> on the boat.\n"

# what people write, and what they should not have
SENTENCES = [
    "Dr. Jones paid $1,234.56 (about 1.1k) on Jan. 5, 2001; No. 7 wasn't sold.",
    '\u201cIt\u2019s rock \u2018n\u2019 roll,\u201d she said\u2026 \u2014 \u00abno\u00bb, he wrote: \u2013 "Yes".',
    "See https://example.org/a_b?c=1,2&d=3.4#e or mail me.too@example.co.uk, ok?!",
    "fo'c's'le, rock'n'roll, the '90s, the boys', 5's and 5'6\" and 'tis O'Neill's.",
    "The U.S. army vs. the U.K. e.g. i.e. etc. pp. 5-6, Art. 5, Nr. 3. end.",
    "Python 3.11.4 is v1.0. And v2.0. or 1,2,3,4 or 1.5.",
    "a,b , c ,d ,, ,,5 5,,5 .,5 ,5, half \u00bd,5 and Ch. \u2163.",
    "-- a--b -a- a-b-c 1-2 - @-@ @,@ x@y .. ... .... a..b a...",
    "na\u00efve \u0153uvre stra\u00dfe \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0440\u0443\u0441. \u0442\u043e \u00b5 \u00aa \U0001f600 e\u0301",
    "5\u00a0000 and 1\u00a02\u00a03\u00a04, 10\u00a0% of 5\u00a0cm \u00ab\u00a0oui\u00a0\u00bb\u00a0!",
    "tab\there\u3000and\u2003there\x0b\x1cjunk\x01 \x7f\r\n and a new line",
    '``quotes\'\' and `one\' \u00b4a\u00b4 "b","c". "d".... he said "e".,f',
    "Wait... What?! (Yes.) [no] {so} <b>bold</b> a|b a\\b a/b 50% #1 ^ ~ = + *",
    "It ended with a quote.'",
    "'It began so' and ended 'so'",
    "<UNK> and <Eos> are kept",
]


def reference_words(line: str) -> list[str]:
    """The words of one text, as TransfoXLTokenizer of transformers 4.35 found them with sacremoses."""
    sacremoses = needs("sacremoses")
    text = sacremoses.MosesPunctNormalizer("en").normalize(line.strip())
    words = sacremoses.MosesTokenizer("en").tokenize(
        text, aggressive_dash_splits=True, escape=False, protected_patterns=SPECIAL
    )
    return [part for word in words for part in re.sub(r"(?<=\d)[,.](?=\d)", r" @\g<0>@ ", word).split()]


def reference_text(words: list[str]) -> str:
    return (
        needs("sacremoses")
        .MosesDetokenizer("en")
        .detokenize(words)
        .replace(" @,@ ", ",")
        .replace(" @.@ ", ".")
        .strip()
    )


def moses_words(text: str) -> list[str]:
    words = moses.moses_pre_tokenizer(SPECIAL).pre_tokenize_str(moses.moses_normalizer().normalize_str(text))
    return [word for word, _ in words]


@pytest.fixture(scope="module")
def golden() -> dict:
    return json.loads((folder_of("legacy_hf_checkpoint") / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def trained() -> WordTokenizer:
    return WordTokenizer.train_from_iterator([TEXT], progress=False)


@pytest.mark.parametrize("text", SENTENCES)
def test_words_are_those_of_sacremoses(text: str):
    assert moses_words(text) == reference_words(text)


def test_random_texts_are_split_as_by_sacremoses():
    """Texts made of the pieces that rules are about, next to each other in ways that nobody writes."""
    draw = random.Random(0)
    pieces = [*"aabBsStI'',,..--\"\"  5567()@:%\u2019\u201c\u2014\u2026\u00a0\u00bb\u4e2d\u00bd\u2160"]
    pieces += ["n't", "'s", "Mr.", "No.", "U.S.", "...", "1,000", "3.5", "v1.0.", "the ", "@-@", "''", "rock'n'roll"]
    normalizer, pre_tokenizer = moses.moses_normalizer(), moses.moses_pre_tokenizer(SPECIAL)
    for _ in range(2500):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 12)))
        words = [word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))]
        assert words == reference_words(text), repr(text)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("IsAlpha", f"[{moses._ALPHA}]"),
        ("IsAlnum", f"[{moses._ALPHA}{moses._DIGIT}]"),
        ("IsLower", f"[{moses._LOWER}]"),
    ],
)
def test_classes_of_characters_are_those_of_moses(name: str, ours: str):
    everything = "".join(chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000)
    others = set(Replace(Regex(ours), "").normalize_str(everything))
    assert set(everything) - others == set(getattr(needs("sacremoses").MosesTokenizer, name))


def test_texts_are_joined_as_by_sacremoses():
    draw = random.Random(1)
    words = [
        *"'\"`,.?!:;%)]}([{$a5-\u201e\u201c\u20ac\u65e5\u672c\u00bf1",
        "the",
        "boys",
        "'s",
        "'ll",
        "n't",
        "@-@",
        "@,@",
        "@.@",
    ]
    words += ["&amp;", "&quot;", "''", "``", "...", "000", "<unk>", "\u00e9t\u00e9"]
    for _ in range(3000):
        drawn = draw.choices(words, k=draw.randint(1, 12))
        assert moses.detokenize(drawn) == reference_text(drawn), drawn


def test_golden_tokenizations(golden: dict, tmp_path: Path):
    """Ids and texts of transformers 4.35, also after the way through files."""
    tokenizer = WordTokenizer.from_legacy({"sym2idx": {s: i for i, s in enumerate(golden["idx2sym"])}})
    tokenizer.save_pretrained(tmp_path)
    assert golden["tokenizations"]
    for tested in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        for case in golden["tokenizations"]:
            assert tested(case["text"])["input_ids"] == case["ids"], case["text"]
            assert tested.decode(case["ids"]) == case["decoded"]
        assert {token: tested.convert_tokens_to_ids(token) for token in SPECIAL} == golden["added_tokens"]


def test_formula_is_past_the_table_where_the_old_vocabulary_lacks_it(golden: dict):
    symbols = golden["idx2sym"]
    tokenizer = WordTokenizer.from_legacy({symbol: index for index, symbol in enumerate(symbols)})
    assert tokenizer.convert_tokens_to_ids("<formula>") == tokenizer.vocab_size == len(symbols)
    assert len(tokenizer) == len(symbols) + 1
    within = WordTokenizer.from_legacy({symbol: index for index, symbol in enumerate([*symbols, "<formula>"])})
    assert within.convert_tokens_to_ids("<formula>") == len(symbols) == len(within) - 1


def test_the_vocabulary_is_by_frequency(trained: WordTokenizer):
    """A naive count: special tokens, then words as often as they occur, first seen first."""
    words = [word for line in TEXT.splitlines() for word in [*reference_words(line), "<eos>"]]
    counts = Counter(words)
    special = ["<eos>", "<unk>", "<formula>", "<pad>"]
    expected = special + [word for word, _ in counts.most_common() if word not in special]
    assert trained.convert_ids_to_tokens(list(range(len(trained)))) == expected
    assert trained.counts == [counts[word] for word in expected]
    assert {"@,@", "@.@", "@-@"} <= set(expected)
    assert (trained.eos_token_id, trained.unk_token_id, trained.pad_token_id) == (0, 1, 3)
    assert trained.unknown_share == 1 / len(words)

    few = WordTokenizer.train_from_iterator([TEXT], min_freq=2, max_size=6, progress=False)
    kept = [word for word in expected if counts[word] >= 2 and word not in special][:2]
    assert few.convert_ids_to_tokens(list(range(len(few)))) == special + kept
    known = sum(counts[word] for word in ["<eos>", *kept])
    assert few.counts == [counts["<eos>"], len(words) - known, 0, 0, *(counts[word] for word in kept)]


@pytest.mark.parametrize("split", ["moses", "spaces"])
def test_lines_end_with_eos(split: str):
    words = {"moses": reference_words, "spaces": str.split}[split]
    tokenizer = WordTokenizer.train_from_iterator([TEXT], split=split, progress=False)
    expected = [word for line in TEXT.splitlines() for word in [*words(line), "<eos>"]]
    assert tokenizer.tokenize(TEXT) == expected
    assert tokenizer.tokenize(TEXT.rstrip("\n")) == expected[:-1]  # a prompt can go on
    joined = WordTokenizer.train_from_iterator([TEXT], split=split, add_eos=False, progress=False)
    assert joined.tokenize(TEXT) == words(TEXT)


@pytest.mark.parametrize("split", ["moses", "spaces", "characters"])
def test_a_byte_order_mark_is_no_word(split: str, tmp_path: Path):
    for number in (0, 1):
        (tmp_path / f"{number}.txt").write_bytes(b"\xef\xbb\xbfhello world\r\nhello again\r\n")
    files = [tmp_path / f"{number}.txt" for number in (0, 1)]
    tokenizer = WordTokenizer.train_from_files(files, split=split, progress=False)
    assert not [word for word in tokenizer.get_vocab() if "\ufeff" in word]
    assert len(tokenizer("h" if split == "characters" else "hello")["input_ids"]) == 1


def test_the_same_character_inside_a_file_stays(tmp_path: Path):
    """Files are read in parts: here the second begins with it."""
    (tmp_path / "long.txt").write_bytes(b"\xef\xbb\xbf" + b"aa\n" * 21845 + b"\xef\xbb\xbfb\n")
    tokenizer = WordTokenizer.train_from_files([tmp_path / "long.txt"], split="spaces", progress=False)
    assert {"aa", "\ufeffb"} <= tokenizer.get_vocab().keys()


def test_spaces_keep_what_is_split_already():
    text = "He paid 1 @,@ 000 @.@ ; it 's <unk>-like , x<eos>y \u00a0\x1c end\n"
    tokenizer = WordTokenizer.train_from_iterator([text], split="spaces", progress=False)
    assert tokenizer.tokenize(text) == [*text.split(), "<eos>"]
    assert tokenizer.decode(tokenizer("1 @,@ 000 ; it 's").input_ids) == "1,000; it's"


def test_characters_of_lines():
    tokenizer = WordTokenizer.from_legacy({"sym2idx": {"<eos>": 0, "a": 1, " ": 2}, "delimiter": ""}, add_eos=True)
    assert tokenizer(" a a\n aa \n")["input_ids"] == [1, 2, 1, 0, 1, 1, 0]
    with pytest.raises(ValueError, match="not in the vocabulary"):
        tokenizer("ab")


def test_lower_case(trained: WordTokenizer):
    tokenizer = WordTokenizer.train_from_iterator([TEXT], lower_case=True, progress=False)
    assert tokenizer.tokenize("THE Boat <unk>\n") == ["the", "boat", "<unk>", "<eos>"]
    assert "The" not in tokenizer.get_vocab()
    assert "The" in trained.get_vocab()


@pytest.mark.parametrize("with_config", [True, False], ids=["model folder", "tokenizer folder"])
def test_round_trip_through_auto_tokenizer(trained: WordTokenizer, tmp_path: Path, with_config: bool):
    for folder, tokenizer in ((tmp_path / "a", trained), (tmp_path / "b", None)):
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(tmp_path / "a")
        tokenizer.save_pretrained(folder)
        if with_config:
            GTrXLConfig().save_pretrained(folder)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab"]
    assert {"tokenizer.json", "tokenizer_config.json", "word_counts.json"} <= set(files[0])
    assert files[0].keys() == files[1].keys()
    assert files[0]["tokenizer.json"] == files[1]["tokenizer.json"]
    loaded = AutoTokenizer.from_pretrained(tmp_path / "b")
    assert type(loaded) is WordTokenizer
    assert loaded.counts == trained.counts
    assert loaded(TEXT)["input_ids"] == trained(TEXT)["input_ids"]
    assert loaded.decode(loaded(TEXT)["input_ids"]) == trained.decode(trained(TEXT)["input_ids"])
    assert loaded(["The boat", "left"], padding=True)["input_ids"][1][0] == loaded.pad_token_id
    plain = PreTrainedTokenizerFast.from_pretrained(tmp_path / "a")  # no code of this package
    assert plain(TEXT)["input_ids"] == trained(TEXT)["input_ids"]
    ByteTokenizer().save_pretrained(tmp_path / "c")
    assert type(AutoTokenizer.from_pretrained(tmp_path / "c")) is ByteTokenizer


def test_counts_belong_to_their_vocabulary(trained: WordTokenizer, golden: dict, tmp_path: Path):
    trained.save_pretrained(tmp_path)
    (tmp_path / "word_counts.json").write_text("[1, 2, -3]")
    with pytest.raises(ValueError, match=r"word_counts\.json"):
        AutoTokenizer.from_pretrained(tmp_path).suggest_cutoffs(2)
    old = WordTokenizer.from_legacy({symbol: index for index, symbol in enumerate(golden["idx2sym"])})
    old.save_pretrained(tmp_path)
    assert not (tmp_path / "word_counts.json").exists()
    with pytest.raises(ValueError, match="not known"):
        old.suggest_cutoffs()


def test_a_file_is_read_in_chunks(trained: WordTokenizer, tmp_path: Path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    ids, size = read_ids([path], trained, chunk_bytes=20, progress=False)
    assert ids.tolist() == trained(TEXT)["input_ids"]
    assert size == len(TEXT)


def test_legacy_attributes():
    counter = Counter({"the": 5, "a": 3, "<unk>": 2})
    symbols = ["<S>", "the", "a", "<UNK>"]
    whole = {
        "idx2sym": symbols,
        "sym2idx": {symbol: index for index, symbol in enumerate(symbols)},
        "counter": counter,
        "lower_case": True,
        "delimiter": None,
        "_eos_token": "<S>",
        "special": ["<S>"],
    }
    tokenizer = WordTokenizer.from_legacy(whole, add_eos=True)
    assert tokenizer("The cat\na")["input_ids"] == [1, 3, 0, 2]
    assert (tokenizer.eos_token, tokenizer.unk_token) == ("<S>", "<UNK>")
    assert tokenizer.counts == [0, 5, 3, 2]  # a word that has no id was counted, too
    assert WordTokenizer.from_legacy(whole, lower_case=False)("The")["input_ids"] == [3]
    inert = {**whole, "_eos_token": object(), "_unk_token": object(), "_additional_special_tokens": [object()]}
    assert WordTokenizer.from_legacy(inert)("The a")["input_ids"] == [1, 2]  # what a safe reader could not build
    both = {"sym2idx": {"<unk>": 0, "<UNK>": 1}}
    assert WordTokenizer.from_legacy(both)("cat <unk>")["input_ids"] == [0, 0]
    assert WordTokenizer.from_legacy({**both, "unk_idx": 1})("cat <unk>")["input_ids"] == [1, 0]
    assert WordTokenizer.from_legacy(whole, split="spaces")("the,a")["input_ids"] == [3]
    assert WordTokenizer.from_legacy({"the": 0, "<unk>": 1}).eos_token is None


@pytest.mark.parametrize(
    ("vocabulary", "options", "message"),
    [
        ({}, {}, "no symbols"),
        (["a"], {}, "`vocabulary` is a list"),
        ({"sym2idx": {}}, {}, "no symbols"),
        ({"a": 0, "b": 2}, {}, "1 is next"),
        ({"a": 0, "b": 0}, {}, "1 is next"),
        ({"a": -1, "b": 0}, {}, "0 is next"),
        ({"a": 0, "b": "1"}, {}, "'1'"),
        ({"a": 0, "b": 1.0}, {}, "1.0"),
        ({b"a": 0}, {}, "b'a'"),
        ({"\ud800": 0}, {}, "UTF-8"),
        ({"sym2idx": {"a": 0, "b": 1}, "idx2sym": ["b", "a"]}, {}, "contradicts"),
        ({"sym2idx": {"a": 0}, "delimiter": ";"}, {}, "`delimiter`=';'"),
        ({"sym2idx": {"a": 0}, "counter": {"a": "x"}}, {}, "`counter` holds 'x'"),
        ({"sym2idx": {"a": 0}, "counter": {"b": -1}}, {}, "`counter` holds -1"),
        ({"a": 0}, {"unk_token": "<unk>"}, "`unk_token`='<unk>'"),
        ({"a": 0}, {"add_eos": True}, "`add_eos`"),
        ({"a": 0}, {"split": "words"}, "`split`='words'"),
    ],
)
def test_bad_vocabularies_are_refused(vocabulary: dict, options: dict, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        WordTokenizer.from_legacy(vocabulary, **options)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "no word"),
        (["\n \n", "<unk>"], {}, "no word"),
        ("a a b", {}, "`texts`='a a b' is one string"),
        (["a"], {"min_freq": 0}, "`min_freq`=0"),
        (["a a b"], {"min_freq": 3}, "`min_freq`=3"),
        (["a"], {"max_size": 4}, "`max_size`=4"),
        (["a"], {"split": "words"}, "`split`='words'"),
        (["a"], {"special_tokens": ["<unk>"]}, "<eos>"),
        (["a"], {"special_tokens": ["<eos>", "<unk>", "<unk>"]}, "twice"),
    ],
)
def test_bad_corpora_are_refused(texts: list[str] | str, options: dict, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        WordTokenizer.train_from_iterator(texts, progress=False, **options)


def test_bad_files_and_ids_are_refused(trained: WordTokenizer, tmp_path: Path):
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"a\xe9b\n")
    for files, message in (([], "`files` is empty"), ([tmp_path], "not a file"), (str(latin), "latin.txt.*not UTF-8")):
        with pytest.raises(ValueError, match=message):
            WordTokenizer.train_from_files(files, progress=False)
    with pytest.raises(ValueError, match=str(len(trained))):
        trained.decode([0, len(trained)])


def brute_force_cost(counts: list[int], cutoffs: tuple[int, ...], div_val: int) -> float:
    ends = [0, *cutoffs, len(counts)]
    cost = ends[1] + len(cutoffs)
    for tail in range(1, len(ends) - 1):
        share = sum(counts[ends[tail] : ends[tail + 1]]) / sum(counts)
        cost += share * (ends[tail + 1] - ends[tail]) / div_val**tail
    return cost


@pytest.mark.parametrize(("num_clusters", "div_val"), [(1, 1), (2, 1), (3, 1), (3, 4), (4, 2)])
def test_cutoffs_are_the_cheapest(num_clusters: int, div_val: int):
    counts = [int(1000 / rank**1.3) for rank in range(1, 26)]
    every = list(combinations(range(1, 25), num_clusters - 1))
    cheapest = min(brute_force_cost(counts, cutoffs, div_val) for cutoffs in every)
    found = cheapest_cutoffs(counts, num_clusters, div_val)
    assert len(found) == num_clusters - 1
    assert brute_force_cost(counts, tuple(found), div_val) == pytest.approx(cheapest)


def test_cutoffs_of_a_large_vocabulary(trained: WordTokenizer):
    counts = [int(1e7 / rank) for rank in range(1, 30001)]
    found = cheapest_cutoffs(counts, 4)
    cost = brute_force_cost(counts, tuple(found), 1)
    assert cost < brute_force_cost(counts, (), 1) / 5
    for index in range(3):  # no better place nearby
        for step in (-100, 100):
            moved = [cutoff + step * (place == index) for place, cutoff in enumerate(found)]
            assert brute_force_cost(counts, tuple(moved), 1) > cost * 0.999
    for num_clusters, message in ((0, "`num_clusters`=0"), (len(trained) + 1, "num_clusters")):
        with pytest.raises(ValueError, match=message):
            trained.suggest_cutoffs(num_clusters)
    with pytest.raises(ValueError, match="`div_val`=0"):
        trained.suggest_cutoffs(2, div_val=0)


def test_the_command(tmp_path: Path):
    text, out = tmp_path / "text.txt", tmp_path / "words"
    text.write_text(TEXT)
    arguments = [
        "tokenizer",
        "train",
        str(text),
        "--out",
        str(out),
        "--min-freq",
        "2",
        "--lower-case",
        "--clusters",
        "2",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert type(tokenizer) is WordTokenizer
    assert tokenizer.tokenize("The boat\n") == ["the", "boat", "<eos>"]
    assert f"{len(tokenizer)} tokens; {tokenizer.unknown_share:.3%} of the text is <unk>" in result.output
    assert str(tokenizer.suggest_cutoffs(2)) in result.output
    result = CliRunner().invoke(app, [*arguments, "--overwrite", "--json"])
    found = json.loads(result.stdout)
    assert (found["tokens"], found["cutoffs"]) == (len(tokenizer), tokenizer.suggest_cutoffs(2))

    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for options, message in (
        ([], "not empty"),
        (["--overwrite", "--min-freq", "100"], "min_freq"),
        (["--overwrite", "--max-size", "2"], "max_size"),
        (["--overwrite", "--clusters", "0"], "clusters"),
        (["--overwrite", "--clusters", "99"], "num_clusters"),
    ):
        result = CliRunner().invoke(app, [*arguments[:5], *options])
        assert result.exit_code == 2, result.output
        assert message in result.output
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "words"]
