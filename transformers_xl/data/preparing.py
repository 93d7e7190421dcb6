"""A corpus of the papers, from its official file to texts, a vocabulary without further ids, and the counts of both."""

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tqdm.auto import tqdm

from transformers_xl.data.official_files import file_digest, is_archive, md5, members
from transformers_xl.data.paper_corpora import CORPORA, PARTS, Corpus, LineFeeds, SymbolCorpus
from transformers_xl.files.output_folder import output_folder
from transformers_xl.files.plain_files import check_regular
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer
from transformers_xl.tokenization.tokenization_words import WordTokenizer

_CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class Preparation:
    """What came out of a corpus, as `preparation.json` holds it.

    Attributes:
        corpus: its name.
        line_feeds: whether they were dropped or kept; None for words, where the end of a line is a token.
        checksums: of what was read, by name, as `"md5:..."` or `"sha256:..."`.
        counts: `vocabulary`, and `lines`, `tokens` and `bytes` of each part.
        checked: the counts and names of files that were compared with what was published; empty without checks.
    """

    corpus: str
    line_feeds: str | None
    checksums: dict[str, str]
    counts: dict[str, int]
    checked: list[str]


def prepare(
    name: str,
    source: Path,
    output: Path,
    line_feeds: LineFeeds | None = None,
    check: bool = True,
    progress: bool = True,
) -> Preparation:
    """Write the folder `output`: `train.txt`, `valid.txt` and `test.txt`, their tokenizer (`tokenizer/`) and
    `preparation.json`.

    Args:
        name: a corpus of `CORPORA`.
        source: its official file, or the folder of its files.
        output: the folder.
        line_feeds: of a corpus of symbols: whether the line feed is one. `"drop"` by default.
        check: compare checksums and counts with those that were published. With `False` a text that is cut into its parts
            here (enwik8, text8) may have any name.
        progress: show bars on stderr.

    Raises:
        ValueError: `line_feeds` is given for words, the source is another file, or a checksum or a count is not the
            published one. Nothing is written then.
    """
    check_regular(source)
    corpus = CORPORA[name]
    is_symbols = isinstance(corpus, SymbolCorpus)
    if line_feeds is not None and not is_symbols:
        raise ValueError(f"`line_feeds`={line_feeds!r} is for symbols: in {name!r} the end of a line is a token.")
    line_feeds = line_feeds or "drop"
    if not check and len(corpus.members) == 1 and source.is_file() and not is_archive(source):
        corpus = replace(corpus, members={re.escape(source.name): PARTS})  # whatever it is called
    digests = {}
    if corpus.archive_digest is not None and is_archive(source):
        algorithm = corpus.archive_digest.partition(":")[0]
        digests[source.name] = f"{algorithm}:{file_digest(source, algorithm)}"
        if check and digests[source.name] != corpus.archive_digest:
            raise _wrong(corpus, source, f"{digests[source.name]}, not {corpus.archive_digest}")
    with output_folder(output) as folder:
        drops = is_symbols and line_feeds == "drop"
        lines, files_digests = _write_texts(corpus, source, folder, drops, check, progress)
        tokenizer = _tokenizer(corpus, folder, progress)
        tokenizer.save_pretrained(folder / "tokenizer")
        counts = lines | _counts(folder, is_symbols) | {"vocabulary": len(tokenizer)}
        expected = corpus.expected(line_feeds) if check else {}
        wrong = [
            f"{what} {counts[what]:,}, not {number:,}" for what, number in expected.items() if counts[what] != number
        ]
        if wrong:
            raise _wrong(corpus, source, "; ".join(wrong))
        compared = (
            [file for file in digests | files_digests if file in corpus.md5 or file == source.name] if check else []
        )
        preparation = Preparation(
            name, line_feeds if is_symbols else None, digests | files_digests, counts, [*compared, *expected]
        )
        text = json.dumps(asdict(preparation), indent=2) + "\n"
        (folder / "preparation.json").write_text(text, encoding="utf-8", newline="\n")
    return preparation


def _write_texts(
    corpus: Corpus, source: Path, folder: Path, drops_line_feeds: bool, check: bool, progress: bool
) -> tuple[dict[str, int], dict[str, str]]:
    """Write the texts. The lines of each part before line feeds were dropped, and the checksums of the files read."""
    lines, digests = Counter[str](), {}
    bar = tqdm(unit="B", unit_scale=True, desc=f"reading {source.name}", disable=not progress)
    with bar:
        for name, data in members(source, lambda name: bool(corpus.parts_of(name))):
            found = md5(data)
            digests[name] = f"md5:{found}"
            if check and found != corpus.md5.get(name, found):
                raise _wrong(corpus, source, f"md5 {found} of {name!r}, not {corpus.md5[name]}")
            for part, text in corpus.texts(name, data):
                lines[f"{part} lines"] += text.count(b"\n")
                with (folder / f"{part}.txt").open("ab") as stream:
                    stream.write(text.replace(b"\n", b"") if drops_line_feeds else text)
            bar.update(len(data))
    missing = [part for part in PARTS if not _size(folder / f"{part}.txt")]
    if missing:
        raise _wrong(corpus, source, f"it has no file for {', '.join(missing)}")
    return dict(lines), digests


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _wrong(corpus: Corpus, source: Path, what: str) -> ValueError:
    return ValueError(
        f"`source`={str(source)!r} is not the official corpus ({what}): give {corpus.files}, from "
        f"{corpus.url}; for another corpus in this format pass `check=False` (--no-check)."
    )


def _tokenizer(corpus: Corpus, folder: Path, progress: bool) -> ByteTokenizer | WordTokenizer:
    files = [folder / f"{part}.txt" for part in corpus.vocabulary_of]
    if isinstance(corpus, SymbolCorpus):
        return ByteTokenizer(symbols={symbol for file in files for chunk in _chunks(file) for symbol in set(chunk)})
    return WordTokenizer.train_from_files(
        files,
        split="spaces",
        min_freq=corpus.min_freq,
        special_tokens=corpus.special_tokens,
        eos_token=corpus.eos_token,
        unk_token=corpus.unk_token,
        progress=progress,
    )


def _counts(folder: Path, is_symbols: bool) -> dict[str, int]:
    """Tokens and bytes of each part. Every line of words has its end as a token."""
    counts = {}
    for part in PARTS:
        file = folder / f"{part}.txt"
        counts[f"{part} bytes"] = _size(file)
        counts[f"{part} tokens"] = _size(file) if is_symbols else sum(map(_words, _chunks(file)))
    return counts


def _words(lines: bytes) -> int:
    return len(lines.decode().split()) + lines.count(b"\n")


def _chunks(file: Path):
    with file.open("rb") as stream:
        while lines := stream.readlines(_CHUNK):
            yield b"".join(lines)


__all__ = ["Preparation", "prepare"]
