"""Text as words: the tokenizer of the Transformer-XL on WikiText-103 and other corpora of words (Dai et al., 2019,
https://arxiv.org/abs/1901.02860; original code: https://github.com/kimiyoung/transformer-xl, `vocabulary.py`)."""

import json
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer, Replace
from tqdm.auto import tqdm

from transformers_xl.configuration.saved_with_code import TokenizerWithCode
from transformers_xl.tokenization.cutoffs import cheapest_cutoffs
from transformers_xl.tokenization.moses import detokenize, literal, moses_normalizer, moses_pre_tokenizer

SPECIAL_TOKENS = ("<eos>", "<unk>", "<formula>", "<pad>")
_COUNTS_FILE = "word_counts.json"
_SPACE = r"\s\x1c-\x1f"  # what `str.split` takes for spaces
Split = Literal["moses", "spaces", "characters"]


class WordTokenizer(TokenizerWithCode):
    r"""
    Words as tokens. What is not in the vocabulary is `<unk>`.

    Text is split in one of three ways:

    - `"moses"`: as the Transformer-XL of transformers 4.x split it, by the rules of Moses, with `"1,000"` as
      `1 @,@ 000`, `"3.5"` as `3 @.@ 5` and `"well-known"` as `well @-@ known`. For text as people write it.
    - `"spaces"`: at spaces, as the authors' code did. For text that is split already, as that of WikiText is.
    - `"characters"`: every character of a line.

    With `add_eos` the end of a line is the token `<eos>`, as in the authors' code; the end of the text alone is not, so
    that a prompt can be continued. Without it, the end of a line is a space.

    Decoding joins words as the old tokenizers did: punctuation without the space before it, numbers and dashes whole.

    Made by [`~WordTokenizer.train_from_files`], [`~WordTokenizer.train_from_iterator`] or, with the ids of an old
    vocabulary, by [`~WordTokenizer.from_legacy`]. Its `tokenizer.json` gives the same ids without this package.

    Example:

    ```python
    >>> from transformers_xl import WordTokenizer

    >>> tokenizer = WordTokenizer.train_from_iterator(["A boat of 1,000 tons.\n"], progress=False)
    >>> tokenizer.tokenize("1,000 boats.\n")
    ['1', '@,@', '000', '<unk>', '.', '<eos>']
    ```
    """

    vocab_files_names = {"tokenizer_file": "tokenizer.json", "counts_file": _COUNTS_FILE}
    model_input_names = ["input_ids", "attention_mask"]

    @classmethod
    def train_from_files(
        cls, files: Iterable[str | PathLike] | str | PathLike, progress: bool = True, **options: Any
    ) -> "WordTokenizer":
        """Make a vocabulary of the words of text files in UTF-8.

        Args:
            files: the files, or one.
            progress: show a bar on stderr.
            options: as for [`~WordTokenizer.train_from_iterator`].

        Raises:
            ValueError: no file is given, one does not exist or is not UTF-8, or as for `train_from_iterator`.
        """
        paths = [Path(file) for file in ([files] if isinstance(files, str | PathLike) else files)]
        if not paths:
            raise ValueError("`files` is empty: give at least one text file.")
        for path in paths:
            if not path.is_file():
                raise ValueError(f"`files`: {str(path)!r} is not a file that can be read.")
        size = sum(path.stat().st_size for path in paths)
        if not size:
            raise ValueError(f"`files`: {', '.join(map(str, paths))} are empty: give files with text in them.")
        bar = tqdm(total=size, unit="B", unit_scale=True, disable=None if progress else True)
        with bar:
            return cls.train_from_iterator(_read_lines(paths, bar), progress=False, **options)

    @classmethod
    def train_from_iterator(
        cls,
        texts: Iterable[str],
        min_freq: int = 1,
        max_size: int | None = None,
        lower_case: bool = False,
        split: Split = "moses",
        add_eos: bool = True,
        special_tokens: Sequence[str] = SPECIAL_TOKENS,
        eos_token: str = "<eos>",
        unk_token: str = "<unk>",
        progress: bool = True,
    ) -> "WordTokenizer":
        """Make a vocabulary of the words of texts: the special tokens, then words by falling frequency.

        Args:
            texts: the corpus; with `add_eos`, the lines of a text end with a line feed.
            min_freq: words that occur less often are left out.
            max_size: the most tokens the vocabulary may have, special ones included.
            lower_case: put all letters in lower case, here and in all texts to come.
            split: `"moses"`, `"spaces"` or `"characters"`.
            add_eos: the end of a line is the `eos_token`.
            special_tokens: the first ids. `eos_token` and `unk_token` must be among them; `<pad>` is set as the padding.
            eos_token: stands for the end of a line.
            unk_token: stands for words that are left out.
            progress: show a bar on stderr.

        Raises:
            ValueError: the corpus is empty, or one string; `min_freq` is below 1, `max_size` leaves no place for a word, or
                a special token is missing or there twice.
        """
        special_tokens = list(special_tokens)
        if isinstance(texts, str):
            raise ValueError(f"`texts`={texts[:20]!r} is one string: give a list of texts, such as its lines.")
        if min_freq < 1:
            raise ValueError(f"`min_freq`={min_freq} must be 1 or more.")
        if max_size is not None and max_size <= len(special_tokens):
            raise ValueError(
                f"`max_size`={max_size} leaves no place for words beside the {len(special_tokens)} special tokens."
            )
        if len(set(special_tokens)) < len(special_tokens) or not {eos_token, unk_token} <= set(special_tokens):
            raise ValueError(
                f"`special_tokens`={special_tokens} must hold {eos_token} and {unk_token}, and no token twice."
            )
        normalizer, pre_tokenizer = _rules(split, lower_case, eos_token if add_eos else None, special_tokens)
        counted: Counter[str] = Counter()
        for text in tqdm(texts, unit=" texts", disable=None if progress else True):
            words = pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))
            counted.update(word for word, _ in words)
        most = max((count for word, count in counted.items() if word not in special_tokens), default=0)
        if most == 0:
            raise ValueError("`texts` hold no word: give a corpus with text in it.")

        candidates = [
            word for word, count in counted.most_common() if count >= min_freq and word not in special_tokens
        ]
        room = None if max_size is None else max_size - len(special_tokens)
        if not candidates:
            raise ValueError(f"`min_freq`={min_freq} leaves no word: the most frequent occurs {most} times.")
        symbols = [*special_tokens, *candidates[:room]]
        named = {"eos_token": eos_token, "unk_token": unk_token} | (
            {"pad_token": "<pad>"} if "<pad>" in symbols else {}
        )
        others = [token for token in special_tokens if token not in named.values()]
        vocabulary = {word: index for index, word in enumerate(symbols)}
        counts = _counts_by_id(vocabulary, counted, unk_token)
        return cls._build(vocabulary, counts, split, lower_case, add_eos, named, others)

    @classmethod
    def from_legacy(
        cls,
        vocabulary: Mapping[str, Any],
        lower_case: bool | None = None,
        split: Split | None = None,
        add_eos: bool = False,
        unk_token: str | None = None,
        eos_token: str | None = None,
        additional_special_tokens: Sequence[str] | None = None,
    ) -> "WordTokenizer":
        r"""Make a tokenizer with exactly the ids of an old vocabulary, given as plain data.

        Old vocabularies were pickles; reading those safely is the converter's part. What is not given here is taken from
        `vocabulary`, and then from the old defaults. (TransfoXLTokenizer took its own arguments, as in a folder's
        `tokenizer_config.json`, and then their defaults before what was pickled: hand them in where there are any.)

        Special tokens get the ids that they have in the vocabulary, whatever an old `tokenizer_config.json` says:
        tokenizers that transformers 4.35 built from scratch gave them the ids of other words. Words that are not in the
        vocabulary become `unk_token`, or what the vocabulary holds of `<unk>` and `<UNK>`. An `eos_token` that is not in
        the vocabulary is left out.

        `<formula>` and other additional special tokens that the vocabulary lacks get the ids after its last one, as they
        did. No embedding has such a row: a model refuses them until
        `model.resize_token_embeddings(len(tokenizer))` gives it one.

        Args:
            vocabulary: the attributes of an old tokenizer (of transformers 4.x or of the authors' code), of which
                `sym2idx`, `idx2sym`, `counter`, `unk_idx`, `lower_case`, `delimiter` and the names of special tokens are
                read; or a plain mapping of symbols to ids.
            lower_case: letters in lower case; by default what the vocabulary says.
            split: `"moses"` for what transformers 4.x encoded, `"spaces"` for the authors' code; by default `"characters"`
                where `delimiter` is empty, else `"moses"`.
            add_eos: the end of a line is `<eos>`, as in the authors' code. transformers 4.35 took no notice of it.
            unk_token: stands for unknown words.
            eos_token: the end of a line or text; `<eos>` by default.
            additional_special_tokens: `["<formula>"]` by default.

        Raises:
            ValueError: the vocabulary is empty, its symbols are no texts, its ids are not 0 .. size - 1, `idx2sym` and
                `sym2idx` contradict each other, `unk_token` is not in it, or `delimiter` is one that nobody used.
        """
        if not isinstance(vocabulary, Mapping):
            raise ValueError(f"`vocabulary` is a {type(vocabulary).__name__}: give a mapping of symbols to ids.")
        held: Mapping[str, Any] = vocabulary
        if not isinstance(held.get("sym2idx"), Mapping):
            held = {"sym2idx": vocabulary}
        ids = _checked_ids(held["sym2idx"], held.get("idx2sym"))
        delimiter = held.get("delimiter")
        if delimiter not in (None, "", " "):
            raise ValueError(f"`delimiter`={delimiter!r} is not supported: None and '' are.")
        if unk_token is not None and unk_token not in ids:
            raise ValueError(f"`unk_token`={unk_token!r} is not in the vocabulary: name the symbol of unknown words.")

        at_unk_idx = next((symbol for symbol, index in ids.items() if index == held.get("unk_idx")), None)
        candidates = {
            "unk_token": [unk_token, at_unk_idx, held.get("_unk_token"), "<unk>", "<UNK>"],
            "eos_token": [eos_token, held.get("_eos_token"), "<eos>"],
        }
        named: dict[str, str] = {}
        for name, tokens in candidates.items():
            # what a safe reader of pickles could not build is no text
            found = next((token for token in tokens if isinstance(token, str) and token in ids), None)
            named |= {} if found is None else {name: found}
        additional = additional_special_tokens or held.get("_additional_special_tokens")
        if not isinstance(additional, list | tuple) or not additional:
            additional = ["<formula>"]
        return cls._build(
            ids,
            _counts_by_id(ids, held.get("counter"), named.get("unk_token")),
            split or ("characters" if delimiter == "" else "moses"),
            bool(held.get("lower_case")) if lower_case is None else lower_case,
            add_eos,
            named,
            [token for token in additional if isinstance(token, str) and token and token not in named.values()],
        )

    @classmethod
    def _build(
        cls,
        vocabulary: Mapping[str, int],
        counts: list[int] | None,
        split: Split,
        lower_case: bool,
        add_eos: bool,
        named: Mapping[str, str],
        others: Sequence[str],
    ) -> "WordTokenizer":
        if add_eos and "eos_token" not in named:
            raise ValueError(f"`add_eos`={add_eos} needs an end of lines in the vocabulary: name its `eos_token`.")
        special_tokens = [*named.values(), *others]
        line_end = named["eos_token"] if add_eos else None
        unknown = {"unk_token": named["unk_token"]} if "unk_token" in named else {}
        tokenizer = Tokenizer(models.WordLevel(dict(vocabulary), **unknown))
        tokenizer.normalizer, tokenizer.pre_tokenizer = _rules(split, lower_case, line_end, special_tokens)
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
        built = cls(
            tokenizer_object=tokenizer,
            **named,
            extra_special_tokens=list(others),
            padding_side="left",
            clean_up_tokenization_spaces=True,
            # the authors' code knew words only: a special token inside a word is a part of it
            split_special_tokens=split == "spaces",
        )
        built._counts = counts
        return built

    @property
    def counts(self) -> list[int] | None:
        """How often each id of the vocabulary occurred in the corpus it was made of; None where nobody knows.

        `<unk>` has the count of all words that were left out.

        Raises:
            ValueError: the file of counts does not belong to the vocabulary.
        """
        if not hasattr(self, "_counts"):
            file = self.init_kwargs.get("counts_file")
            self._counts = None if file is None else _read_counts(Path(file), self.vocab_size)
        return self._counts

    @property
    def unknown_share(self) -> float:
        """The share of the corpus, between 0 and 1, that is `<unk>`.

        Raises:
            ValueError: nobody knows the counts.
        """
        counts = self._known_counts()
        return counts[self.unk_token_id] / sum(counts) if self.unk_token_id is not None else 0.0

    def suggest_cutoffs(self, num_clusters: int = 4, div_val: int = 1) -> list[int]:
        """Where to cut the vocabulary for an adaptive softmax, so that its expected cost on the corpus is least.

        See [`~transformers_xl.tokenization.cutoffs.cheapest_cutoffs`] for the cost; Grave et al., 2017,
        https://arxiv.org/abs/1609.04309, section 4.

        Args:
            num_clusters: the head and the tails.
            div_val: as in the model's config: every tail is narrower than the one before by this factor.

        Returns:
            `num_clusters - 1` ids, for the model's `cutoffs`.

        Raises:
            ValueError: there are fewer words than clusters, or nobody knows the counts.
        """
        return cheapest_cutoffs(self._known_counts(), num_clusters, div_val)

    def _known_counts(self) -> list[int]:
        if self.counts is None:
            raise ValueError(f"`counts` are not known: {_COUNTS_FILE} is missing, or the old vocabulary held none.")
        return self.counts

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The words as a text."""
        return detokenize(tokens)

    def _decode(
        self,
        token_ids: int | list[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **kwargs,
    ) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else [int(token_id) for token_id in token_ids]
        past = [token_id for token_id in ids if not 0 <= token_id < len(self)]
        if past:
            raise ValueError(f"`token_ids` holds {past[0]}: the vocabulary has {len(self)} tokens.")
        # as in transformers 4.x: a token after the vocabulary stands by itself, and what it parts is joined separately
        texts: list[str] = []
        for is_word, group in groupby(ids, key=lambda token_id: token_id < self.vocab_size):
            words = self.convert_ids_to_tokens(list(group), skip_special_tokens=skip_special_tokens)
            texts += [detokenize(words)] if is_word else words
        text = " ".join(text for text in texts if text)
        clean = (
            self.clean_up_tokenization_spaces if clean_up_tokenization_spaces is None else clean_up_tokenization_spaces
        )
        return self.clean_up_tokenization(text) if clean else text

    def _encode_plus(self, *args, **kwargs):
        try:
            return super()._encode_plus(*args, **kwargs)
        except Exception as error:  # `tokenizers` raises nothing narrower
            if "[UNK]" not in str(error):
                raise
            raise ValueError(
                "`text` holds a word that is not in the vocabulary, which has no token for unknown words: leave it out."
            ) from error

    def _save_pretrained(
        self,
        save_directory: str | PathLike,
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        counts = self.counts  # read before anything is written: it may be the same folder
        file_names = super()._save_pretrained(save_directory, file_names, legacy_format, filename_prefix)
        path = Path(save_directory, (f"{filename_prefix}-" if filename_prefix else "") + _COUNTS_FILE)
        if counts is None:
            path.unlink(missing_ok=True)  # of another vocabulary
            return file_names
        path.write_text(json.dumps(counts, separators=(",", ":")) + "\n")
        return (*file_names, str(path))


def _rules(split: str, lower_case: bool, line_end: str | None, special_tokens: Sequence[str]) -> tuple:
    """The normalizer and the pre-tokenizer of a way to split."""
    if split == "moses":
        return moses_normalizer(lower_case, line_end), moses_pre_tokenizer(special_tokens)
    steps: list[Normalizer] = [normalizers.Lowercase()] if lower_case else []
    if split == "spaces":
        steps += [] if line_end is None else [Replace("\n", f" {line_end} ")]
        words = Regex(f"[^{_SPACE}]+")
    elif split == "characters":
        steps.append(Replace(Regex(rf"^[{_SPACE}&&[^\n]]+|[{_SPACE}&&[^\n]]+$"), ""))
        steps += [] if line_end is None else [Replace("\n", f"\n{line_end}\n")]
        words = Regex("|".join([*map(literal, special_tokens), r"[^\n]" if line_end else r"[\s\S]"]))
    else:
        raise ValueError(f"`split`={split!r} is not a way to split: choose 'moses', 'spaces' or 'characters'.")
    return normalizers.Sequence(steps), pre_tokenizers.Split(words, "removed", invert=True)


def _read_lines(paths: Iterable[Path], bar: tqdm) -> Iterator[str]:
    for path in paths:
        encoding = "utf-8-sig"  # a byte order mark is no part of the text
        with path.open("rb") as stream:
            while lines := stream.readlines(1 << 16):
                data = b"".join(lines)
                try:
                    yield data.decode(encoding)
                except UnicodeDecodeError as error:
                    raise ValueError(f"`files`: {str(path)!r} is not UTF-8 ({error.reason}): convert it.") from error
                encoding = "utf-8"
                bar.update(len(data))


def _checked_ids(sym2idx: Mapping[str, int], idx2sym: Sequence[str] | None) -> dict[str, int]:
    """The vocabulary in the order of its ids, or a `ValueError`. An empty `idx2sym` is what transformers 4.35 left."""
    if not sym2idx:
        raise ValueError("`vocabulary` holds no symbols.")
    ids: dict[str, int] = {}
    for symbol, index in sym2idx.items():
        try:
            symbol.encode("utf-8")
            ids[symbol] = operator.index(index)
        except (AttributeError, UnicodeEncodeError) as error:
            raise ValueError(f"`vocabulary` holds the symbol {symbol!r}, which is not UTF-8 text.") from error
        except TypeError as error:
            raise ValueError(
                f"`vocabulary` gives the symbol {symbol!r} the id {index!r}, which is not a number."
            ) from error
    ordered = dict(sorted(ids.items(), key=lambda item: item[1]))
    for position, (symbol, index) in enumerate(ordered.items()):
        if index != position:
            raise ValueError(
                f"`vocabulary` gives {symbol!r} the id {index}: {position} is next, each must be there once."
            )
    if isinstance(idx2sym, Sequence) and len(idx2sym) and list(idx2sym) != list(ordered):
        raise ValueError("`vocabulary` contradicts itself: `idx2sym` is not the inverse of `sym2idx`.")
    return ordered


def _counts_by_id(ids: Mapping[str, int], counted: Any, unknown: str | None) -> list[int] | None:
    """Counts in the order of the ids; `unknown` stands for all words that were counted and have no id."""
    if not isinstance(counted, Mapping) or not counted:
        return None
    wrong = next((count for count in counted.values() if not isinstance(count, int) or count < 0), None)
    if wrong is not None:
        raise ValueError(f"`counter` holds {wrong!r}: counts are whole numbers from 0 on; leave it out.")
    counts = [counted.get(symbol, 0) for symbol in ids]
    if unknown is not None:
        counts[ids[unknown]] += sum(counted.values()) - sum(counts)
    return counts


def _read_counts(path: Path, size: int) -> list[int]:
    counts = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(counts, list) or len(counts) != size or not all(type(n) is int and n >= 0 for n in counts):
        raise ValueError(
            f"`counts`: {str(path)!r} must be a list of {size} numbers, one for each id: delete the file."
        )
    return counts


__all__ = ["SPECIAL_TOKENS", "WordTokenizer"]
