"""Prose that every machine can get: six novels by Jane Austen, from a package of Debian; whole novels are held out.

    apt-get download r-cran-janeaustenr
    python benchmarks/novels_corpus.py r-cran-janeaustenr_*.deb novels    # train.jsonl, valid.jsonl and test.jsonl

Documents for validation and the test are chapters. `--beginnings 85000` takes so many characters of each training novel, to
the end of a paragraph: a small text. A .deb needs no Debian to be read: it is an `ar` archive of tar files,
and the novels are vectors of lines as R writes them (R Internals, section 1.8).
"""

import argparse
import io
import json
import re
import struct
import tarfile
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from transformers_xl.files.output_folder import output_folder

NOVELS = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
VALIDATION, TEST = ("SENSE AND SENSIBILITY",), ("NORTHANGER ABBEY", "PERSUASION")
CHAPTER = re.compile(r"^chapter\b.*$", flags=re.IGNORECASE | re.MULTILINE)
LEAST = 2_000  # bytes of a chapter; what is shorter is a heading or a note


def members(deb: bytes) -> Iterator[tuple[str, bytes]]:
    """Files of an `ar` archive, each after a header of 60 bytes, from an even place on."""
    at = len(b"!<arch>\n")
    while at + 60 <= len(deb):
        name, size = deb[at : at + 16].decode().strip(" /"), int(deb[at + 48 : at + 58])
        yield name, deb[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def novels(package: Path) -> dict[str, str]:
    """The novels by title, in capitals.

    Raises:
        ValueError: the file is no such package.
    """
    data = next((inside for name, inside in members(package.read_bytes()) if name.startswith("data.tar")), None)
    if data is None:
        raise ValueError(f"`package`={str(package)!r} is no package of Debian: `apt-get download r-cran-janeaustenr`.")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        held = archive.extractfile(f"./{NOVELS}")
        assert held is not None
        objects = held.read()
    texts = {}
    while objects:  # each is its size before it was compressed, and the compressed bytes
        stream = zlib.decompressobj()
        lines = strings(stream.decompress(objects[4:]))
        objects = stream.unused_data
        title = next(line for line in lines if line.strip()).strip().upper()
        texts[title] = "\n".join(lines) + "\n"
    return texts


def strings(serialized: bytes) -> list[str]:
    """A vector of strings in R's binary form."""
    (encoding,) = struct.unpack_from(">i", serialized, 14)  # the length of its name, after the versions
    at = 18 + encoding
    kind, count = struct.unpack_from(">ii", serialized, at)
    if kind & 255 != 16:
        raise ValueError(f"an object of kind {kind & 255} is no vector of strings: the package has another form.")
    at, found = at + 8, []
    for _ in range(count):
        (size,) = struct.unpack_from(">i", serialized, at + 4)  # after the flags
        found.append(serialized[at + 8 : at + 8 + size].decode())
        at += 8 + size
    return found


def chapters(title: str, text: str) -> dict[str, str]:
    """The chapters of a novel by name, each from its heading on."""
    starts = [match.start() for match in CHAPTER.finditer(text)] + [len(text)]
    parts = [text[start:end] for start, end in pairwise(starts)]
    return {f"{title}, {number}": part for number, part in enumerate(parts, 1) if len(part.encode()) >= LEAST}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="r-cran-janeaustenr_*.deb")
    parser.add_argument("output", type=Path, help="a folder to write")
    parser.add_argument("--beginnings", type=int, help="characters of each training novel; all when not given")
    args = parser.parse_args()
    texts = novels(args.package)
    parts = {
        "train": {
            title: text if args.beginnings is None else text[: text.rindex("\n\n", 0, args.beginnings)]
            for title, text in texts.items()
            if title not in (*VALIDATION, *TEST)
        },
        "valid": {name: text for title in VALIDATION for name, text in chapters(title, texts[title]).items()},
        "test": {name: text for title in TEST for name, text in chapters(title, texts[title]).items()},
    }
    with output_folder(args.output) as folder:
        for name, part in parts.items():
            lines = (json.dumps({"name": title, "text": text}) for title, text in part.items())
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
            print(f"{name}.jsonl: {len(part)} documents, {sum(len(text.encode()) for text in part.values()):,} bytes")


if __name__ == "__main__":
    main()
