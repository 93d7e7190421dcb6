"""The one split of Python's library: whole modules, no tables, the same for every Python."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from transformers_xl import ByteTokenizer
from transformers_xl.runs.run_config import DataSection
from transformers_xl.runs.run_data import read_data

PATH = Path(__file__).parents[2] / "examples/library_corpus.py"
spec = importlib.util.spec_from_file_location("library_corpus", PATH)
corpus = sys.modules["library_corpus"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(corpus)


@pytest.fixture(scope="module")
def split():
    return corpus.library_split()


def test_no_module_is_in_two_parts(split):
    names = [name for part in split for name in part]
    assert len(names) == len(set(names))
    assert len(split.validation) == 20
    assert len(split.test) == 40


def test_modules_are_whole_and_under_their_names(split):
    name, text = next(iter(split.test.items()))
    assert text == f"# {name}\n".encode() + (corpus.FOLDER / name).read_bytes() + b"\n"
    assert np.array_equal(split.training_ids(), np.concatenate(corpus.ids_of(split.training)))


def test_no_part_holds_tables_or_tests(split):
    names = [name for part in split for name in part]
    assert any(name.startswith("encodings/") for name in map(corpus.name_of, corpus.modules()))
    assert not [name for name in names if name.startswith(corpus.TABLES) or "test" in name.split("/")]


def test_what_is_held_out_is_spread_over_the_library(split):
    """No package, and no letter, has more than a fifth of it."""
    for part in (split.validation, split.test):
        for where in ([name.split("/")[0] for name in part], [name[0] for name in part]):
            assert max(map(where.count, where)) <= len(where) / 5


def test_the_order_follows_from_names_alone(monkeypatch, split):
    """A module less, or another order of files, changes nothing else."""
    files = corpus.modules()
    monkeypatch.setattr(
        corpus, "modules", lambda: [file for file in reversed(files) if corpus.name_of(file) != "this.py"]
    )
    assert [*corpus.library_split().training] == [name for name in split.training if name != "this.py"]


def test_a_module_that_this_python_lacks_is_left_out_with_a_message(monkeypatch, split, capsys):
    first = next(iter(split.test))
    files = corpus.modules()
    monkeypatch.setattr(corpus, "modules", lambda: [file for file in files if corpus.name_of(file) != first])
    assert [*corpus.library_split().test] == [*split.test][1:]
    assert f"has no {first}: left out" in capsys.readouterr().err


def test_the_folder_is_one_that_train_reads(monkeypatch, split, tmp_path):
    few = corpus.Split(*(dict([*part.items()][:3]) for part in split))
    monkeypatch.setattr(corpus, "library_split", lambda: few)
    corpus.write_parts(tmp_path / "library")
    data = read_data(DataSection(path=[str(tmp_path / "library")], documents=True), ByteTokenizer(), progress=False)
    for rows, part in ((data.rows, few.training), (data.held_out.rows, few.validation)):
        assert [bytes(row.astype(np.uint8)) for row in rows] == [*part.values()]
    lines = (tmp_path / "library/test.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["name"] for line in lines] == [*few.test]


def test_one_text_is_all_modules(monkeypatch, tmp_path):
    files = corpus.modules()[:3]
    monkeypatch.setattr(corpus, "modules", lambda: files)
    monkeypatch.setattr(sys, "argv", ["library_corpus.py", str(tmp_path / "library.txt"), "--one-text"])
    corpus.main()
    assert (tmp_path / "library.txt").read_bytes() == b"".join(map(corpus.source, files))
