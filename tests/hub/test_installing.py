"""What documents, messages and cards say of installing this package is what works."""

import re
from pathlib import Path

from transformers_xl.hub import installing

ROOT = Path(__file__).parent.parent.parent
OURS = re.compile(r"pip install (?:-\S+ (?:constraints\.txt )?)*'?(\.|transformers-xl)(?=[\[\s'`\"),.:;]|$)")
SUFFIXES = (".py", ".md", ".toml", ".txt", ".yaml")


def test_every_command_that_installs_the_package_is_of_one_form():
    files = [path for path in ROOT.rglob("*") if path.suffix in SUFFIXES and path.is_file()]
    parts = {path: path.relative_to(ROOT).parts for path in files}
    hidden = [path for path in files if parts[path][0] == "build" or any(part.startswith(".") for part in parts[path])]
    said = {
        f"{path.relative_to(ROOT)}: {match[0]}": match[1]
        for path in {*files} - {*hidden, Path(__file__)}
        for match in OURS.finditer(path.read_text(encoding="utf-8"))
    }
    assert len(said) >= 4  # README.md and docs at least
    assert {place for place, source in said.items() if source != installing.SOURCE} == set()


def test_the_form_is_one_constant(monkeypatch):
    assert installing.pip_install("serve") == "pip install '.[serve]' in a checkout of transformers-xl"
    monkeypatch.setattr(installing, "SOURCE", "transformers-xl")
    assert installing.pip_install("serve") == "pip install 'transformers-xl[serve]'"
    assert installing.pip_install() == "pip install transformers-xl"
