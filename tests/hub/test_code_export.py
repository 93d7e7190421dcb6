"""A saved model brings its code: flat, of the same bytes, and enough for a process without this package."""

import ast
import functools
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny import MADE_OF, VARIANTS, tiny_config, tiny_model, tokens
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.dynamic_module_utils import check_imports, get_relative_imports

import transformers_xl
from transformers_xl import ByteTokenizer, GTrXLForActorCritic, TransformerXLConfig
from transformers_xl.configuration.saved_with_code import TokenizerWithCode
from transformers_xl.hub import code_export
from transformers_xl.hub.code_export import exported_files
from transformers_xl.hub.module_source import module_source

ROOT = Path(__file__).parent.parent.parent
TOKENIZERS = [
    value
    for path in sorted((ROOT / "tokenization").glob("tokenization_*.py"))
    for value in vars(importlib.import_module(f"transformers_xl.tokenization.{path.stem}")).values()
    if isinstance(value, type) and issubclass(value, PreTrainedTokenizerBase) and value.__module__.endswith(path.stem)
]
HEADS = ("model", "causal_lm", "sequence_classification", "token_classification", "masked_lm")
# every variant once, with its heads in turn, for they are one code (`modeling/heads.py`), or with what few have
SAVED = [
    (model_type, "masked_lm" if "masked_lm" in heads else heads[turn % len(heads)])
    for turn, (model_type, row) in enumerate(VARIANTS.items())
    if (heads := [head for head in HEADS if getattr(row, f"{head}_class") is not None])
]
# classes that a call has made, in files of a variant
SAVED += [("shaw_transformer_encoder", "masked_lm"), ("universal_transformer_encoder", "sequence_classification")]


def code_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}


@pytest.fixture(scope="module")
def exported() -> dict[str, dict[str, str]]:
    """The files of every variant."""
    return {
        model_type: exported_files({row.config_class.__module__, row.model_class.__module__})
        for model_type, row in VARIANTS.items()
    }


@pytest.mark.parametrize("model_type", VARIANTS)
def test_the_code_of_every_variant_can_be_exported(model_type: str, exported: dict[str, dict[str, str]]):
    """The test that keeps stars, clashes, dynamic imports and the like out of the models."""
    files = exported[model_type]
    name = file_of(VARIANTS[model_type].model_class).stem
    assert list(files) == [f"{name.replace('modeling', 'configuration')}.py", f"{name}.py", f"{name}_core.py"]
    for text in files.values():
        # what transformers finds with its regular expressions is what is imported, and it is all there
        assert {f"{needed}.py" for needed in get_relative_imports_of(text)} <= set(files)
        assert "from transformers_xl" not in re.sub(r'""".*?"""|#.*', "", text, flags=re.DOTALL)
        # of a local folder transformers loads the config's file twice, and the classes in it are not the same
        assert not re.search(r"isinstance\(\w+, \w*(?<!PreTrained)Config\b", text)
        first, second = text.splitlines()[:2]
        assert first.startswith(f"# From transformers-xl {transformers_xl.__version__} (Apache-2.0): ")
        assert second.startswith("# ")


@pytest.mark.parametrize("model_type", VARIANTS)
def test_what_is_exported_are_the_modules_as_they_stand(model_type: str, exported: dict[str, dict[str, str]]):
    """The model's own file has its module; the others have every definition of theirs once, each with the same text."""
    row = VARIANTS[model_type]
    definitions = [each for text in exported[model_type].values() for each in definitions_in(text)]
    assert len({name for name, _ in definitions}) == len(definitions)
    own = exported[model_type][f"{file_of(row.model_class).stem}.py"]
    assert definitions_in(own) == definitions_in(file_of(row.model_class).read_text())
    assert set(definitions) >= set(definitions_in(file_of(row.config_class).read_text()))


def file_of(cls: type) -> Path:
    return ROOT / f"{cls.__module__.removeprefix('transformers_xl.').replace('.', '/')}.py"


tree_of = functools.cache(ast.parse)  # several tests look at each file


def definitions_in(text: str) -> list[tuple[str, str]]:
    """Name and text of every function and class at the top level."""
    lines = text.splitlines()
    nodes = [node for node in tree_of(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [(node.name, "\n".join(lines[node.lineno - 1 : node.end_lineno])) for node in nodes]


def test_no_exported_file_uses_a_name_that_it_lacks(exported: dict[str, dict[str, str]], tmp_path: Path):
    for model_type, files in exported.items():
        (tmp_path / model_type).mkdir()
        for name, text in files.items():
            (tmp_path / model_type / name).write_text(text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821,F822,F811,F401"]
    result = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:]


def get_relative_imports_of(text: str) -> set[str]:
    return {node.module for node in tree_of(text).body if getattr(node, "level", 0) == 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "import transformers_xl.modeling.memory.memory_cache",
            "from transformers_xl.modeling.memory.memory_cache import",
        ),
        ("import transformers_xl", "cannot be exported"),
        ("from transformers_xl.modeling.memory.memory_cache import *", "name what is imported"),
        ("from torch import *", "name what is imported"),
        ("from transformers_xl.modeling import memory", "not from a package"),
        ("from transformers_xl import MemoryCache", "not from a package"),
        ("from .memory import MemoryCache", "whole name of the module"),
        ("from . import memory", "whole name of the module"),
        ("import importlib.util", "dynamic imports"),
        ("from importlib import import_module", "dynamic imports"),
        ("def f():\n    return __import__('torch')", "dynamic imports"),
        ("def f():\n    from transformers_xl.absent import x", "not from a package"),
        (
            "def f():\n    from transformers_xl.modeling.memory.memory_cache import MemoryCache",
            "at the top of the module",
        ),
        ("from transformers_xl.modeling.memory.memory_cache import MemoryCache as Cache", "without `as`"),
    ],
)
def test_what_an_export_cannot_follow_is_refused(line: str, message: str, tmp_path: Path, monkeypatch):
    (tmp_path / "bad_module.py").write_text(f'"""Bad."""\n{line}\n')
    monkeypatch.syspath_prepend(tmp_path)
    module_source.cache_clear()
    with pytest.raises(ValueError, match="bad_module, line") as error:
        exported_files(["bad_module"])
    assert message in str(error.value)


def test_two_files_of_one_name_are_refused(tmp_path: Path, monkeypatch):
    for package in ("first_package", "second_package"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "same_name.py").write_text('"""Same."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="would both be exported as same_name.py"):
        exported_files(["first_package.same_name", "second_package.same_name"])


@pytest.mark.parametrize(
    "clash",
    [
        "def keep_last():\n    return 1\n",
        "from textwrap import indent as keep_last\n",
        "if True:\n    keep_last = 1\n",
    ],
)
def test_one_name_with_two_meanings_is_refused(clash: str, tmp_path: Path, monkeypatch):
    """In one file the second would take the place of the first."""
    line = "from transformers_xl.modeling.ops.columns import PackedRows\n"
    (tmp_path / "clashing_module.py").write_text(f'"""Clashing."""\n{line}{clash}')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="`keep_last` of .* would meet in clashing_module.py: rename one of them"):
        exported_files(["clashing_module"])


def test_modules_are_gathered_below_what_they_need(tmp_path: Path, monkeypatch):
    (tmp_path / "modeling_mine.py").write_text(
        '"""Mine: `from transformers_xl.modeling.auto import VARIANTS` in a text is no import."""\n\n'
        "import torch\nfrom transformers_xl.modeling.ops.columns import (\n    PackedRows,\n    keep_last,\n)\n\n"
        '# about f\ndef f():\n    return keep_last, PackedRows, torch\n\n\n__all__ = ["f"]\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    files = exported_files(["modeling_mine"])
    assert list(files) == ["modeling_mine.py", "modeling_mine_core.py"]
    assert files["modeling_mine.py"].partition("\n\nimport")[2] == (
        " torch\n\nfrom .modeling_mine_core import PackedRows, keep_last\n\n\n"
        "# about f\ndef f():\n    return keep_last, PackedRows, torch\n"
    )
    assert "(Apache-2.0): modeling/ops/columns.py, with flat imports.\n" in files["modeling_mine_core.py"]


@pytest.mark.parametrize("tokenizer_class", TOKENIZERS)
def test_every_tokenizer_brings_its_code(tokenizer_class: type):
    assert TokenizerWithCode in tokenizer_class.__mro__
    files = exported_files([tokenizer_class.__module__])
    name = file_of(tokenizer_class).name
    assert list(files) == [name]
    assert f"class {tokenizer_class.__name__}(" in files[name]


def test_the_tokenizers_are_found():
    assert ByteTokenizer in TOKENIZERS


def test_two_saves_are_equal_and_include_code_false_leaves_it_out(tmp_path: Path):
    model, tokenizer = tiny_model("gtrxl", "causal_lm"), ByteTokenizer()
    for name in ("first", "second"):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("first", "second")
    )
    assert first == second
    code = {"configuration_gtrxl.py", "modeling_gtrxl.py", "modeling_gtrxl_core.py", "tokenization_bytes.py"}
    assert {name for name in first if name.endswith(".py")} == code
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    for saved in (loaded, AutoTokenizer.from_pretrained(tmp_path / "first"), loaded.config):
        saved.save_pretrained(tmp_path / "plain", include_code=False)
    assert not code_in(tmp_path / "plain")
    for name in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in json.loads((tmp_path / "plain" / name).read_text())
        assert "auto_map" in json.loads(first[name])
    assert "auto_map" not in loaded.config.to_dict()  # what is printed is what describes the model
    loaded.save_pretrained(tmp_path / "third")
    assert (tmp_path / "third/config.json").read_bytes() == first["config.json"]


def test_a_config_alone_and_a_tokenizer_alone_bring_their_code(tmp_path: Path):
    tiny_config("sha_rnn").save_pretrained(tmp_path / "config")
    code = ["configuration_sha_rnn.py", "modeling_sha_rnn.py", "modeling_sha_rnn_core.py"]
    assert list(code_in(tmp_path / "config")) == code
    names = ByteTokenizer().save_pretrained(tmp_path / "tokenizer")
    assert list(code_in(tmp_path / "tokenizer")) == ["tokenization_bytes.py"]
    assert str(tmp_path / "tokenizer/tokenization_bytes.py") in names


def test_a_head_without_an_auto_class_brings_the_code_of_its_variant(tmp_path: Path):
    config = tiny_config("gtrxl", num_actions=2, observation_size=3)
    GTrXLForActorCritic(config).save_pretrained(tmp_path)
    assert b"class MemoryForActorCritic(" in code_in(tmp_path)["modeling_gtrxl_core.py"]


def test_a_class_of_yours_is_not_exported(tmp_path: Path):
    class Mine(TransformerXLConfig):
        pass

    Mine(vocab_size=10).save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert "auto_map" not in (tmp_path / "config.json").read_text()


def test_a_save_that_fails_in_the_export_writes_nothing(tmp_path: Path, monkeypatch):
    def fail(*modules: object):
        raise ValueError("no source")

    monkeypatch.setattr(code_export, "exported_files", fail)
    with pytest.raises(ValueError, match="no source"):
        tiny_model("transformer_xl", "causal_lm").save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert tiny_config("transformer_xl").to_dict().get("auto_map") is None  # the save is over


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of [`SAVED`], with what they say of some ids."""
    root = tmp_path_factory.mktemp("saved")
    for model_type, head in SAVED:
        folder = root / head / model_type
        # what follows from a field, too: clusters of words, with the head for them
        has_clusters = head == "causal_lm" and hasattr(MADE_OF[model_type].config_class, "is_adaptive")
        fields = {"cutoffs": [8, 14], "div_val": 2} if has_clusters else {}
        tiny_model(model_type, head, **fields).save_pretrained(folder)
        # loaded, too: where weights lie in memory decides about the last bit of a product
        model = getattr(MADE_OF[model_type], f"{head}_class").from_pretrained(folder)
        expected = {"ids": tokens(2, 6)}
        with torch.no_grad():
            output = model(expected["ids"])
        expected["result"] = output[0].contiguous()
        if head == "causal_lm":
            ByteTokenizer().save_pretrained(folder)
            expected["generated"] = model.generate(
                expected["ids"][:, -1:], mems=output.mems, max_new_tokens=4, do_sample=False
            )
            if output.mems is not None:
                output.mems.save(folder / "text.memory", model, expected["ids"][:, -1:])
        save_file(expected, folder / "expected.safetensors")
    ByteTokenizer().save_pretrained(root / "without code", include_code=False)
    return root


@pytest.mark.slow
def test_every_model_runs_where_the_package_is_not_installed(saved: Path, tmp_path: Path):
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("without_package.py")
    result = subprocess.run(
        [sys.executable, "-I", str(script), str(saved)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip() == f"{len(SAVED)} models"


@pytest.fixture
def own_code_cache(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """An empty cache of code. A test before may have loaded a folder's: its cache is on the path, its package imported."""

    def forget_code():
        for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
            del sys.modules[name]

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not Path(place, "transformers_modules").exists()])
    forget_code()
    yield tmp_path
    forget_code()


@pytest.mark.parametrize("trust_remote_code", [None, False, True])
def test_where_it_is_installed_no_code_of_the_folder_runs(
    saved: Path, own_code_cache: Path, monkeypatch, trust_remote_code
):
    def asked(prompt: str):
        raise AssertionError(prompt)

    monkeypatch.setattr("builtins.input", asked)
    for model_type, head in SAVED:
        folder, row = saved / head / model_type, MADE_OF[model_type]
        assert type(AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)) is row.config_class
        model = AutoModel.from_pretrained(folder, trust_remote_code=trust_remote_code)
        assert type(model) is row.model_class
    assert list(own_code_cache.iterdir()) == []
    with_tokenizer = next(model_type for model_type, head in SAVED if head == "causal_lm")
    tokenizer = AutoTokenizer.from_pretrained(
        saved / "causal_lm" / with_tokenizer, trust_remote_code=trust_remote_code
    )
    # transformers prefers a tokenizer's remote code where it is trusted, as docs/hub.md says
    assert (type(tokenizer) is ByteTokenizer) == (not trust_remote_code)


def test_transformers_finds_the_same_imports(saved: Path):
    """It reads the text with regular expressions; a line of a docstring that looks like an import would lead it astray."""
    files = [path for model_type, head in SAVED for path in (saved / head / model_type).glob("*.py")]
    assert len([path for path in files if not path.name.startswith("tokenization_")]) == 3 * len(SAVED)
    for path in files:
        found = set(get_relative_imports(path))
        assert found == get_relative_imports_of(path.read_text())
        assert all(path.with_name(f"{name}.py").is_file() for name in found)
    for path in (saved / dict(SAVED)["star_transformer"] / "star_transformer").glob("*.py"):
        assert set(check_imports(path)) == set(get_relative_imports(path))  # what else is imported is installed
