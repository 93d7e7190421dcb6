"""Without the packages that only some tests want, these tests are skipped and all others run; in CI none may be missing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from optional_packages import needs
from patience import PATIENCE

ROOT = Path(__file__).parents[1]
OPTIONAL = {
    "datasets", "evaluate", "fastapi", "gradio", "gymnasium", "onnx", "onnxruntime",
    "onnxscript", "openai", "optuna", "peft", "pytorch_optimizer", "sacremoses", "selenium",
    "tensorboardX", "torchao", "trl", "uvicorn", "zstandard",
}  # fmt: skip


def collect(folder: Path, *paths: str, **environment: str) -> subprocess.CompletedProcess:
    """The tests as pytest finds them where none of these packages is installed."""
    (folder / "blocked.py").write_text(f"import sys\n\nsys.modules.update(dict.fromkeys({sorted(OPTIONAL)}))\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "blocked",
        "-p",
        "no:cacheprovider",
        *paths,
    ]
    path = os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "MAY_BE"))}
    return subprocess.run(
        command,
        cwd=ROOT,
        env=inherited | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.slow
def test_all_tests_are_found_without_them(tmp_path: Path):
    found = collect(tmp_path)
    assert found.returncode == 0, found.stdout[-3000:]
    files = {line.partition("::")[0] for line in found.stdout.splitlines() if "::" in line}
    missing = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")} - files
    for path in missing:  # these are skipped as a whole
        assert re.search(r"^(\w.* = )?(map\()?needs", (ROOT / path).read_text(), flags=re.MULTILINE), path
    assert "tests/tokenization/test_tokenization_words.py" in files


def test_a_missing_package_is_an_error_in_ci(tmp_path: Path):
    found = collect(tmp_path, "tests/uses", "tests/examples/test_space.py", MAY_BE_MISSING="torchao gradio")
    assert found.returncode != 0
    assert "import of peft halted" in found.stdout
    failed = set(re.findall(r"^ERROR (\S+)", found.stdout, flags=re.MULTILINE))
    assert {"tests/uses/test_peft.py", "tests/uses/test_trl.py", "tests/uses/test_serve.py"} <= failed
    assert not {"tests/uses/test_quantization.py", "tests/examples/test_space.py"} & failed


def test_what_may_be_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    for value in (None, "peft optuna"):
        monkeypatch.setenv("MAY_BE_MISSING", value) if value else monkeypatch.delenv("MAY_BE_MISSING", raising=False)
        with pytest.raises(pytest.skip.Exception, match="optuna is not installed"):
            needs("optuna")
    for value in ("", "peft"):
        monkeypatch.setenv("MAY_BE_MISSING", value)
        with pytest.raises(ModuleNotFoundError, match="optuna"):
            needs("optuna")
    assert needs("json").dumps([]) == "[]"


def test_every_optional_package_is_asked_for():
    """By `needs`, which knows what may be missing; and CI installs and pins them all."""
    asked, pins = set(), (ROOT / "constraints.txt").read_text()
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        assert path.name == "optional_packages.py" or "pytest.importor" + "skip(" not in text, path
        for call in re.findall(r"\bneeds\((\".*?\")\)|map\(needs, \((.*?)\)\)|for name in \((.*?)\):\n +needs", text):
            asked |= set(re.findall(r'"(\w+)"', "".join(call)))
    assert OPTIONAL <= asked <= OPTIONAL | {"json"}
    for name in OPTIONAL:
        assert f"\n{name.replace('_', '-')}==" in pins, name
    extras = re.search(r"^dev = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), flags=re.DOTALL | re.MULTILINE)[1]
    beside = {
        "gradio",
        "torchao",
    }  # `make setup` installs the extra `demo` too, and `.ci/run` has torchao in another place
    assert set(re.findall(r'"(\w+)', extras.replace("-", "_"))) & OPTIONAL == OPTIONAL - beside
