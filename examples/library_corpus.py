"""The sources of Python's library, a text that every machine has, and the one split of it that all measurements share.

    python examples/library_corpus.py library                   # train.jsonl, valid.jsonl and test.jsonl, a module a line
    python examples/library_corpus.py library.txt --one-text    # all of it, for figures from before the split

Whole modules are held out, spread over the library; `library_split.json` names them. Settings (learning rates, starts of
weights) are chosen on the modules for validation, figures are those of the modules for the test. All stand in CPython
3.11 to 3.14, in the parts that no distribution packs separately. None is a table, or shares more than an eighth of its
lines, by characters, with other modules of 3.11.7.
"""

import argparse
import hashlib
import json
import random
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import numpy as np

FOLDER = Path(sysconfig.get_path("stdlib"))
HELD_OUT = Path(__file__).with_name("library_split.json")
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
TABLES = (
    "encodings/",
    "pydoc_data/",
    "html/entities.py",
    "_sysconfigdata",
)  # lines that only one machine has, or all share


class Split(NamedTuple):
    """Modules by name, each as [`source`] gives it. Those for training stand in an order that is random and the same
    for all versions of Python; the others in that of their names."""

    training: dict[str, bytes]
    validation: dict[str, bytes]
    test: dict[str, bytes]

    def training_ids(self) -> np.ndarray:
        """All modules for training as one text of bytes `(tokens,)`."""
        return np.frombuffer(b"".join(self.training.values()), np.uint8).astype(np.int64)


def modules() -> list[Path]:
    """All modules outside of tests, in a random order that is always the same."""
    files = sorted(file for file in FOLDER.rglob("*.py") if not LEFT_OUT & {*file.relative_to(FOLDER).parts})
    random.Random(0).shuffle(files)
    return files


def name_of(file: Path) -> str:
    return file.relative_to(FOLDER).as_posix()


def source(file: Path) -> bytes:
    """A module under its name."""
    return f"# {name_of(file)}\n".encode() + file.read_bytes() + b"\n"


def library_split() -> Split:
    """The library of the Python that runs this. A module for validation or the test that it lacks is left out, and stderr
    says so."""
    found = {name_of(file): file for file in modules()}
    names = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    missing = sorted({*names["validation"], *names["test"]} - {*found})
    if missing:
        print(f"{FOLDER} has no {', '.join(missing)}: left out, and figures differ.", file=sys.stderr)
    validation, test = ({name: source(found[name]) for name in names[part] if name in found} for part in names)
    rest = [name for name in found if name not in {*validation, *test} and not name.startswith(TABLES)]
    rest.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    return Split({name: source(found[name]) for name in rest}, validation, test)


def ids_of(documents: dict[str, bytes]) -> list[np.ndarray]:
    """Each module as bytes `(tokens,)`, for a `DocumentStream`."""
    return [np.frombuffer(text, np.uint8).astype(np.int64) for text in documents.values()]


def write_parts(output: Path) -> None:
    """Write the three parts into a folder, as `transformers-xl train` reads them."""
    # only here: whoever reads the split needs no package
    from transformers_xl.files.output_folder import output_folder

    with output_folder(output) as folder:
        for name, part in zip(("train", "valid", "test"), library_split(), strict=True):
            lines = (json.dumps({"name": module, "text": text.decode()}) for module, text in part.items())
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
            print(f"{output / name}.jsonl: {len(part):,} modules, {sum(map(len, part.values())):,} bytes")


def write_one_text(output: Path) -> None:
    """Write all modules to one file, tables too."""
    files = modules()
    output.write_bytes(b"".join(map(source, files)))
    print(f"{output}: {len(files):,} modules, {output.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="a folder to write; with --one-text, a file")
    parser.add_argument("--one-text", action="store_true", help="one file of all modules, tables too, without a split")
    args = parser.parse_args()
    if not args.output.absolute().parent.is_dir():
        parser.error(f"output: there is no folder {str(args.output.parent)!r}")
    if args.output.exists() and args.output.is_dir() == args.one_text:
        parser.error(f"output: {str(args.output)!r} is {'a folder' if args.one_text else 'a file'}: give another name")
    (write_one_text if args.one_text else write_parts)(args.output)
    print(f"of Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
