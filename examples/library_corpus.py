"""The sources of Python's library as one text, for a training that every machine can repeat (docs/recipes.md).

python examples/library_corpus.py library.txt
transformers-xl prepare enwik8 library.txt --no-check --line-feeds keep -o library
"""

import random
import sys
import sysconfig
from pathlib import Path

FOLDER = Path(sysconfig.get_path("stdlib"))
LEFT_OUT = {"site-packages", "test", "tests", "idle_test"}


def modules() -> list[Path]:
    """All modules outside of tests, in a random order that is always the same."""
    files = sorted(file for file in FOLDER.rglob("*.py") if not LEFT_OUT & {*file.relative_to(FOLDER).parts})
    random.Random(0).shuffle(files)
    return files


def source(file: Path) -> bytes:
    """A module under its name."""
    return f"# {file.relative_to(FOLDER).as_posix()}\n".encode() + file.read_bytes() + b"\n"


def main(output: Path) -> None:
    """Write all modules to one file."""
    files = modules()
    with output.open("wb") as text:
        for file in files:
            text.write(source(file))
    print(f"{output}: {len(files):,} modules of Python {sys.version.split()[0]}, {output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
