"""Every measured number of the README, docs/ and the cards has a result file and a command, and stands in the file.

How a document says where its numbers come from: `tests/helpers/measured_numbers.py`.
"""

import functools
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from measured_numbers import NOT_MEASURED, ROOT, Block, Known, Source, blocks_of, known_of, numbers_of

from transformers_xl.cli.main import app
from transformers_xl.runs.comparison import read_comparison, table

RESULTS = ROOT / "benchmarks" / "results"
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "peers")]
PAGES = [
    "README.md",
    *(
        path.relative_to(ROOT).as_posix()
        for folder in ("docs", "model_cards")
        for path in sorted((ROOT / folder).rglob("*.md"))
    ),
]


@functools.cache
def page(name: str) -> list[Block]:
    return list(blocks_of((ROOT / name).read_text(encoding="utf-8")))


def result(name: str) -> dict:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


@functools.cache
def written_rows() -> frozenset[str]:
    """The rows of tables that programs write from result files: whole rows are compared, not numbers."""
    import bench_cpu
    import bench_memory_pays
    import bench_peers

    tables = [
        bench_peers.table(result("peers.json")["rows"]),
        *bench_memory_pays.table(result("memory_pays.json")["records"]),
    ]
    for name in ("cpu_intel_1_thread.json", "cpu_amd_1_thread.json"):
        (run,) = result(name)["runs"]
        tables += [bench_cpu.product_table(run["products"]), bench_cpu.step_table(run["steps"], list(bench_cpu.FORMS))]
    if (RESULTS / "comparison/speeds.json").exists():
        tables.append(table(read_comparison(RESULTS / "comparison")))
    return frozenset(line for each in tables for line in each.splitlines())


def shown_beside(block: Block, blocks: list[Block]) -> list[str]:
    """The numbers of its section."""
    return [number for other in blocks if other.section == block.section for number in other.numbers]


def unexplained(block: Block, shown: list[str], written: frozenset[str] = frozenset()) -> list[str]:
    """The numbers of a block that its result files do not explain, nor numbers that are `shown` beside them."""
    source = block.source
    if source is None or not source.is_measured:
        return []
    lines = block.text.strip().splitlines()
    rest = "\n".join("| written |" if line in written and "---" not in line else line for line in lines)
    known, said = known_of(source.files), source.given | source.worked_out
    return [each for each in numbers_of(rest) if each not in said and not known.explains(each, shown)]


@pytest.mark.parametrize("name", PAGES)
def test_every_number_has_a_source(name: str):
    without = {f"{name}:{block.line}": block.numbers for block in page(name) if block.numbers and block.source is None}
    assert not without, "say where these were measured, in a comment above them (tests/helpers/measured_numbers.py)"


@pytest.mark.parametrize("name", PAGES)
def test_every_drawn_picture_has_a_source(name: str):
    """Those of concepts are drawn by hand, and a screenshot shows no result."""
    pictures = {
        match[0]: block.source
        for block in page(name)
        for match in re.finditer(r"!\[[^]]*\]\([^)]*\.png\)", block.text)
        if "space.png" not in match[0]
    }
    assert not [picture for picture, source in pictures.items() if source is None or not source.is_measured]


@pytest.mark.parametrize("name", PAGES)
def test_numbers_stand_in_their_files(name: str):
    written = written_rows() if any("|---" in block.text for block in page(name)) else frozenset()
    wrong = {}
    for block in page(name):
        if found := unexplained(block, shown_beside(block, page(name)), written):
            wrong[f"{name}:{block.line}"] = found
    assert not wrong, "not in the result files: correct them, or list them as `worked out` or `given`"


def test_nothing_is_listed_that_need_not_be():
    """A number among `given` or `worked out` that nobody writes any more, or that its files explain, hides the next one."""
    left: dict[str, set[str]] = {}
    for name in PAGES:
        for source in {block.source for block in page(name) if block.source is not None}:
            bare = replace(source, given=frozenset(), worked_out=frozenset())
            blocks = [block for block in page(name) if block.source == source]
            needed = {
                number
                for block in blocks
                for number in unexplained(replace(block, source=bare), shown_beside(block, page(name)), written_rows())
            }
            there = {number for block in blocks for number in block.numbers}
            left[f"{name}: {source.files[0]}"] = (source.worked_out - needed) | (source.given - there)
    assert {place: numbers for place, numbers in left.items() if numbers} == {}


def missing(source: Source) -> list[str]:
    """What a source names that is not there."""
    if not source.is_measured:
        return [] if len(source.files) == 1 else ["one of paper, settings, or result files"]
    files = [file for file in source.files if not file.startswith("benchmarks/results/") or not (ROOT / file).exists()]
    return [*files, *([] if source.commands else ["a command"]), *filter(None, map(wrong_command, source.commands))]


def wrong_command(command: str) -> str | None:
    """What is wrong with a command: a program, a subcommand, a target or an option that is not there."""
    program, *words = command.split()
    name = words[0] if words else ""
    if program == "make":
        return None if re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE) else command
    if program == "transformers-xl":
        return (
            None
            if name in {each.name or each.callback.__name__.replace("_", "-") for each in app.registered_commands}
            else command
        )
    script = ROOT / name
    if program != "python" or not script.is_file():
        return command
    known = "".join(path.read_text(encoding="utf-8") for path in script.parent.glob("*.py"))
    return next((word for word in words if word.startswith("--") and f'"{word}"' not in known), None)


def test_sources_are_there():
    sources = {
        block.source: f"{name}:{block.line}" for name in PAGES for block in page(name) if block.source is not None
    }
    assert {place: found for source, place in sources.items() if (found := missing(source))} == {}


def test_a_result_file_is_of_use():
    """A file that no document names is left over."""
    named = {file for name in PAGES for block in page(name) if block.source is not None for file in block.source.files}
    files = {path.relative_to(ROOT).as_posix() for path in RESULTS.rglob("*.json")}
    assert {file for file in files if not any(file == each or file.startswith(f"{each}/") for each in named)} == set()


MADE = "<!-- source: benchmarks/results/held_out.json\n     command: python benchmarks/bench_held_out.py -->\n\n"


def test_what_is_a_measured_number():
    assert numbers_of("It takes 1.5 times as long: 20 ms, 3 % of 1,024 bytes, at 2e-3 with torch 2.13 (section 3.2).") == [
        "1.5", "20", "3",
    ]  # fmt: skip
    assert numbers_of("| a | b |\n|---|---:|\n| 1 | 2.5 +- 0.1 |\n| 2 | **7** ms |\n| 3 | in 4 layers |") == [
        "2.5",
        "0.1",
        "7",
    ]
    assert numbers_of("`0.02`, [a page](docs/0.5.md), https://arxiv.org/abs/1901.02860, Apache-2.0, 4 layers") == []


def test_a_source_holds_to_the_end_of_its_section():
    blocks = list(
        blocks_of(f"1.5 s\n\n# A\n\n{MADE}2.5 s\n\n## B\n\n3.5 s\n\n<!-- source: paper -->\n\n4.5 s\n\n# C\n\n5.5 s\n")
    )
    kinds = [block.source and block.source.is_measured for block in blocks]
    assert [(block.numbers, kind) for block, kind in zip(blocks, kinds, strict=True)] == [
        (["1.5"], None), (["2.5"], True), (["3.5"], True), (["4.5"], False), (["5.5"], None),
    ]  # fmt: skip
    assert [block.line for block in blocks] == [1, 8, 12, 16, 20]
    assert set(blocks[3].source.files) <= NOT_MEASURED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("89.2 % of 60,000 bytes", []),
        ("88.1 % of it", ["88.1"]),
        ("12.3 and 6.2 %, a difference of 6.1", []),
        ("```sh\n0.777 s\n```", []),
        ("| a | b |\n|---|---:|\n| c | 0.777 |", ["0.777"]),
    ],
)
def test_a_number_that_is_not_in_its_file_is_found(text: str, expected: list[str]):
    blocks = list(blocks_of(MADE + text))
    assert [number for block in blocks for number in unexplained(block, shown_beside(block, blocks))] == expected


def test_means_of_seeds_and_what_goes_by_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("measured_numbers.ROOT", tmp_path)
    for seed, bits in enumerate((2.1234, 2.2468)):
        (tmp_path / f"run-{seed}.json").write_text(
            json.dumps({"bits": {"ours": bits, "theirs": bits + 0.31}, "log": [*range(100, 200)]})
        )
    known = Known(["."])
    assert known.explains("2.185")  # the mean
    assert known.explains("2.247")
    assert known.explains("0.087")  # the deviation
    assert not known.explains("2.186")
    assert not known.explains("123")  # a place in a log
    assert known.explains("0.31", shown=["2.185", "2.495"])
    assert not known.explains("0.32", shown=["2.185", "2.495"])


def test_a_source_that_is_not_there_is_found():
    def of(files: str, command: str) -> list[str]:
        return missing(Source(tuple(files.split()), tuple(filter(None, [command]))))

    there = "benchmarks/results/held_out.json"
    assert of(there, "python benchmarks/bench_held_out.py") == of(there, "make quickstart") == []
    assert of(there, "transformers-xl compare") == of("paper", "") == []
    assert of(there, "") == ["a command"]
    assert of("benchmarks/results/none.json", "make quickstart") == ["benchmarks/results/none.json"]
    for command in ("python benchmarks/none.py", "make none", "transformers-xl none", "none"):
        assert of(there, command) == [command]
    assert of(there, "python benchmarks/bench_cpu.py --none") == ["--none"]
    assert of("paper benchmarks/results/held_out.json", "") == ["one of paper, settings, or result files"]
