"""The corpora that the papers report on: which file is meant, what it is cut into, and the numbers that must come out.

Where a number comes from stands beside it. XL: kimiyoung/transformer-xl (`getdata.sh`, `data_utils.py`, and
`prep_enwik8.py` and `prep_text8.py`, which it downloads). AS: facebookresearch/adaptive-span (`data.py`).
RT: DSE-MSU/R-transformer.
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

PARTS = ("train", "valid", "test")
LineFeeds = Literal["drop", "keep"]


@dataclass(frozen=True)
class Corpus:
    """A corpus of words, split at spaces, whose lines are sentences or paragraphs and end with `eos_token`.

    Attributes:
        files: what to give as its source.
        url: where it was published.
        members: patterns of the names of its files, and the parts that each becomes.
        archive_digest: checksum of the archive, where one was published, as `"md5:..."` or `"sha256:..."`.
        md5: checksums of its files by name.
        counts: what must come out: `vocabulary`, and `train lines`, `test tokens` and the like.
        vocabulary_of: the parts whose words make the vocabulary.
        special_tokens: the first ids, `eos_token` and `unk_token` among them.
        min_freq: words that occur less often are `unk_token`.
    """

    files: str
    url: str
    members: dict[str, tuple[str, ...]]
    archive_digest: str | None = None
    md5: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    vocabulary_of: tuple[str, ...] = PARTS
    special_tokens: tuple[str, ...] = ("<eos>", "<unk>")
    eos_token: str = "<eos>"
    unk_token: str = "<unk>"
    min_freq: int = 1

    def parts_of(self, name: str) -> tuple[str, ...]:
        """The parts that a file of this name becomes: none, if it is not one of the corpus."""
        return next((parts for pattern, parts in self.members.items() if re.fullmatch(pattern, name)), ())

    def texts(self, name: str, data: bytes) -> list[tuple[str, bytes]]:
        """What a file adds to each part, with its line feeds."""
        return [(part, data) for part in self.parts_of(name)]

    def expected(self, line_feeds: LineFeeds) -> dict[str, int]:
        """`counts`, as they are with the line feeds dropped or kept."""
        return self.counts


@dataclass(frozen=True)
class SymbolCorpus(Corpus):
    """A corpus of single bytes: one file, of which the first 90 % are for training, and 5 % each for the other parts.

    Papers differ in whether a line feed is a symbol: it is not for Transformer-XL, and it is, as `<eos>`, for adaptive span
    and SHA-RNN. `counts` are those without it.
    """

    strips_parts: bool = False

    def texts(self, name: str, data: bytes) -> list[tuple[str, bytes]]:
        bounds = [0, len(data) * 90 // 100, len(data) * 95 // 100, len(data)]
        pieces = [data[start:stop] for start, stop in pairwise(bounds)]
        if self.strips_parts:  # each is one line, which the authors' scripts strip
            pieces = [piece.strip() + b"\n" for piece in pieces]
        return list(zip(PARTS, pieces, strict=True))

    def expected(self, line_feeds: LineFeeds) -> dict[str, int]:
        return self.counts | {"vocabulary": self.counts["vocabulary"] + (line_feeds == "keep")}


@dataclass(frozen=True)
class SpelledCorpus(SymbolCorpus):
    """A corpus whose files spell the words of each line: `a _ b a n k`."""

    def texts(self, name: str, data: bytes) -> list[tuple[str, bytes]]:
        symbols = data.split()
        wrong = next((symbol for symbol in symbols if len(symbol) > 1), None)
        if wrong is not None:
            raise ValueError(
                f"`source`: {name!r} holds {wrong.decode('utf-8', 'replace')!r}, where characters between spaces are "
                "expected: a file of words is for 'ptb'."
            )
        text = b"".join(b"".join(line.split()).replace(b"_", b" ") + b"\n" for line in data.splitlines())
        return [(part, text) for part in self.parts_of(name)]


def _wikitext(name: str, md5: str, counts: dict[str, int], vocabulary_of: tuple[str, ...]) -> Corpus:
    return Corpus(
        files=f"{name}-v1.zip, its folder, or the folder of parquet files {name}-v1 of Salesforce/wikitext (not -raw)",
        url="https://huggingface.co/datasets/Salesforce/wikitext",
        members={
            rf"wiki\.{part}\.tokens|{split}-\d+-of-\d+\.parquet": (part,)
            for part, split in zip(PARTS, ("train", "validation", "test"), strict=True)
        },
        archive_digest=f"md5:{md5}",
        counts=counts,
        vocabulary_of=vocabulary_of,
    )


CORPORA: dict[str, Corpus] = {
    "enwik8": SymbolCorpus(
        files="enwik8.zip, or the file 'enwik8' in it",
        url="http://mattmahoney.net/dc/textdata.html",
        members={"enwik8": PARTS},
        md5={"enwik8": "a1fa5ffddb56f4953e226637dabbb36a"},  # the page above
        counts={"vocabulary": 204},  # XL; AS: 205
    ),
    "text8": SymbolCorpus(
        files="text8.zip, or the file 'text8' in it",
        url="http://mattmahoney.net/dc/textdata.html",
        members={"text8": PARTS},
        md5={"text8": "3bea1919949baf155f99411df5fada7e"},
        counts={"vocabulary": 27},  # XL; AS: 28
        strips_parts=True,
    ),
    "wikitext-2": _wikitext(
        "wikitext-2",
        "542ccefacc6c27f945fb54453812b3cd",  # torchtext
        {
            "train lines": 36_718,
            "valid lines": 3_760,
            "test lines": 4_358,
            "valid tokens": 217_646,  # counted in the official files; as of WikiText-103, whose articles they are
            "test tokens": 245_569,
            "vocabulary": 33_278,
        },
        PARTS,
    ),
    "wikitext-103": _wikitext(
        "wikitext-103",
        "9ddaacaf6af0710eda8c456decff7832",  # torchtext
        {
            "train lines": 1_801_350,
            "valid lines": 3_760,
            "test lines": 4_358,
            "train tokens": 103_227_021,
            "valid tokens": 217_646,
            "test tokens": 245_569,
            "vocabulary": 267_735,  # NVIDIA's README
        },
        ("train",),  # XL
    ),
    "ptb": Corpus(
        files="simple-examples.tgz, or a folder with ptb.train.txt, ptb.valid.txt and ptb.test.txt",
        url="http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
        members={rf"ptb\.{part}\.txt": (part,) for part in PARTS},
        md5={  # torchtext
            "ptb.train.txt": "f26c4b92c5fdc7b3f8c7cdcb991d8420",
            "ptb.valid.txt": "aa0affc06ff7c36e977d7cd49e3839bf",
            "ptb.test.txt": "8b80168b89c18661a38ef683c0dc3721",
        },
        counts={"train lines": 42_068, "valid lines": 3_370, "test lines": 3_761, "vocabulary": 10_000},
    ),
    "ptb-char": SpelledCorpus(
        files="simple-examples.tgz, or a folder with ptb.char.train.txt, ptb.char.valid.txt and ptb.char.test.txt",
        url="http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
        members={rf"ptb\.char\.{part}\.txt": (part,) for part in PARTS},
        archive_digest="md5:30177ea32e27c525793142b6bf2c8e2d",
        counts={"train lines": 42_068, "valid lines": 3_370, "test lines": 3_761, "vocabulary": 49},  # RT; others: 50
    ),
    "lm1b": Corpus(
        files="1-billion-word-language-modeling-benchmark-r13output.tar.gz, or its folder",
        url="http://www.statmt.org/lm-benchmark/",
        # XL takes one of 50 held-out shards, for validation and test alike
        members={
            r"news\.en-000\d\d-of-00100": ("train",),
            r"news\.en\.heldout-00000-of-00050": ("valid", "test"),
        },
        # tensorflow/datasets, url_checksums/lm1b.txt, and others
        archive_digest="sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
        counts={
            "train lines": 30_301_028,  # the Hub's card
            "vocabulary": 793_471,  # of the corpus as papers on it describe it (Shazeer et al., 2017, 5.1)
        },
        vocabulary_of=("train",),
        special_tokens=("<S>", "</S>", "<UNK>"),
        # between two sentences stands one <S>: what XL's PyTorch code predicts; its TensorFlow code has two
        eos_token="<S>",
        unk_token="<UNK>",
        min_freq=3,
    ),
}

__all__ = ["CORPORA", "PARTS", "Corpus", "LineFeeds", "SpelledCorpus", "SymbolCorpus"]
