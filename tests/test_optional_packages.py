"""Without the packages that only some tests want, these tests are skipped and all others run; in CI none may be missing."""

import ast
import re
import sys
from pathlib import Path

import pytest
from forked import run_processes
from optional_packages import needs

ROOT = Path(__file__).parents[1]
OPTIONAL = {
    "bsuite", "datasets", "evaluate", "faiss", "fastapi", "gradio", "gymnasium", "llguidance", "lm_eval", "minigrid",
    "onnx", "onnxruntime", "onnxscript", "openai", "optuna", "outlines", "peft", "popgym", "prometheus_client",
    "pytorch_optimizer", "sacrebleu", "sacremoses", "selenium", "tensorboardX", "torchao", "triton", "trl", "uvicorn",
    "zstandard",
}  # fmt: skip


def imported(tree: ast.AST) -> set[str]:
    """The packages that a file imports when it is imported itself."""
    names = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names |= imported(node)
    return names


def test_a_file_that_imports_one_asks_for_it_first():
    asking = set()
    for path in (ROOT / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text())
        wanted = imported(tree) & OPTIONAL
        asked = re.findall(r"^(?:\w.* = )?(?:list\()?(?:map\()?needs\b.*", path.read_text(), flags=re.MULTILINE)
        missing = {name for name in wanted if not any(f'"{name}' in line for line in asked)}
        assert not missing, path
        asking |= wanted
    assert {"gymnasium", "selenium", "torchao"} <= asking


# imports files of tests, as pytest does, where none of these packages is installed
IMPORT = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({sorted(OPTIONAL)}))
sys.path.insert(0, {str(ROOT / "tests" / "helpers")!r})
import pytest
for path in sys.argv[1:]:
    try:
        runpy.run_path(path)
    except (pytest.skip.Exception, ModuleNotFoundError) as error:
        print(type(error).__name__, error)
"""


def test_a_missing_package_is_an_error_in_ci(tmp_path: Path):
    (tmp_path / "import_files.py").write_text(IMPORT)
    files = [
        ROOT / "tests" / file for file in ("uses/test_peft.py", "uses/test_quantization.py", "examples/test_space.py")
    ]
    done = run_processes(tmp_path / "import_files.py", *files, processes=1, MAY_BE_MISSING="torchao gradio")
    assert done.succeeded, done.stderr
    assert re.findall(r"(\w+) .*?(peft|torchao|gradio|selenium)", done.stdout) == [
        ("ModuleNotFoundError", "peft"), ("Skipped", "torchao"), ("Skipped", "gradio"),
    ]  # fmt: skip


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
    assert OPTIONAL <= asked <= OPTIONAL | {"json", "vllm"}  # the latter in an environment of its own: .ci/try_vllm.sh
    packages = {"faiss_cpu" if name == "faiss" else name for name in OPTIONAL}
    for name in packages:
        assert f"\n{name.replace('_', '-')}==" in pins, name
    extras = re.search(r"^dev = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), flags=re.DOTALL | re.MULTILINE)[1]
    beside = {
        "gradio",
        "torchao",
    }  # `make setup` installs the extra `demo` too, and `.ci/run` has torchao in another place
    assert set(re.findall(r'"(\w+)', extras.replace("-", "_"))) & packages == packages - beside
