"""What held-out ends of Python's library are made of: what docs/comparison.md, memory_worth.md and
recipes.md say of them.

    python benchmarks/bench_held_out.py

For each end: its modules by their share of the bytes, the share of tables (`encodings/`), and how many of the lines of
these (of 20 bytes or more) stand word for word in the training text. Writes `results/held_out.json`.
"""

import json
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "held_out.json"
sys.path.append(str(ROOT / "examples"))
from library_corpus import FOLDER, modules, source  # noqa: E402

TRAINED, VALID, TEST, QUICKSTART, COMPARED = 10_922_037, 606_780, 200_000, 60_000, 60_678  # bytes
LEAST = 20  # bytes of a line


def made_of(parts: list[tuple[str, bytes]], first: int, last: int, trained_until: int) -> dict:
    """The bytes from `first` to `last` of the text, of which training reads those up to `trained_until`."""
    place, found, known = 0, {}, set()
    for name, text in parts:
        inside = text[max(first - place, 0) : max(last - place, 0)]
        if inside:
            found[name] = inside
        known |= set(text[: max(trained_until - place, 0)].splitlines())
        place += len(text)
    size = sum(map(len, found.values()))
    tables = [line for name, text in found.items() if name.startswith("encodings/") for line in text.splitlines()]
    tables = [line for line in tables if len(line) >= LEAST]
    known_lines = sum(line in known for line in tables)
    shares = sorted(((name, round(len(text) / size, 4)) for name, text in found.items()), key=lambda row: -row[1])
    return {
        "bytes": size,
        "modules": len(found),
        "share of tables": round(sum(len(text) for name, text in found.items() if name.startswith("encodings/")) / size, 4),
        "share of their lines that training has": round(known_lines / len(tables), 4) if tables else None,
        "largest": dict(shares[:3]),
    }  # fmt: skip


def main() -> None:
    parts = [(file.relative_to(FOLDER).as_posix(), source(file)) for file in modules()]
    end = sum(len(text) for _, text in parts)
    ends = {
        "quickstart": made_of(parts, end - QUICKSTART, end, end - QUICKSTART),
        "comparison": made_of(parts, end - COMPARED, end, end - COMPARED),
        "long run, validation": made_of(parts, TRAINED, TRAINED + VALID, TRAINED),
        "long run, test": made_of(parts, TRAINED + VALID, TRAINED + VALID + TEST, TRAINED),
    }
    result = {"python": platform.python_version(), "bytes": end, "ends": ends}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
