"""The sources of Python's library as one text, for a training that every machine can repeat (docs/recipes.md).

python examples/library_corpus.py library.txt
transformers-xl prepare enwik8 library.txt --no-check --line-feeds keep -o library
"""

import random
import sys
import sysconfig
from pathlib import Path

LEFT_OUT = {"site-packages", "test", "tests", "idle_test"}


def main(output: Path) -> None:
    """Write all modules outside of tests, in a random order that is always the same, each under its name."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(file for file in folder.rglob("*.py") if not LEFT_OUT & {*file.relative_to(folder).parts})
    random.Random(0).shuffle(files)
    with output.open("wb") as text:
        for file in files:
            text.write(f"# {file.relative_to(folder).as_posix()}\n".encode() + file.read_bytes() + b"\n")
    print(f"{output}: {len(files):,} modules of Python {sys.version.split()[0]}, {output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
