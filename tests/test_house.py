"""The house of the project: packages, the direction of imports, names, and what every file promises."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# what stands in the root, for a model is made of it; everything else stands in the folder of the package
ROOT_PACKAGES = ("configuration", "modeling", "tokenization")
PACKAGES = (*ROOT_PACKAGES, "cli", "data", "evaluation", "files", "hub", "runs", "serve", "training")

# who may import whom, by room; `ops` and `layers` are rooms of their own. A room may always import itself.
MAY_IMPORT = {
    "files": set(),
    "configuration": set(),  # it, `tokenization` and `modeling` are exported: they write by `save_pretrained`
    "tokenization": {"configuration"},
    "modeling.ops": {"configuration", "modeling.memory"},  # masks follow from where tokens stand
    "modeling.memory": {"modeling.ops", "files"},  # and, a memory, by `atomic_write`, which goes along
    "modeling.layers": {"configuration", "modeling.ops", "modeling.memory"},
    "modeling.pretrained": {"configuration", "modeling.layers", "modeling.ops", "modeling.memory"},
    "modeling": {"configuration", "modeling.layers", "modeling.ops", "modeling.pretrained", "modeling.memory"},
    "modeling.conversion": {"configuration", "modeling", "tokenization"},
    "data": {"files", "hub", "modeling.memory", "tokenization"},
    "training": {"files", "data", "modeling", "modeling.layers", "modeling.memory", "configuration", "hub"},
    "evaluation": {
        "files",
        "data",
        "modeling",
        "modeling.layers",
        "modeling.ops",
        "modeling.pretrained",
        "modeling.memory",
        "configuration",
    },
    "hub": {"files", "configuration", "modeling", "modeling.memory", "tokenization"},
    "serve": {
        "files",
        "configuration",
        "data",
        "modeling",
        "modeling.layers",
        "modeling.ops",
        "modeling.memory",
        "modeling.pretrained",
        "tokenization",
    },
    "runs": set(PACKAGES) - {"cli"} | {"modeling.conversion", "modeling.layers", "modeling.memory"},
    "cli": set(PACKAGES),
}
# inside of `modeling`: the backbone and the variants import the backbone, never a variant; only `auto` knows them all
BACKBONE = {
    "actor_critic", "adapters", "base_trial", "checks", "encoder", "evaluating", "generation_memory", "heads",
    "modeling_memory", "outputs", "saved_memory_checks", "segment_parts",
}  # fmt: skip
# packages of others that benchmarks and examples import
OF_OTHERS = {
    "accelerate", "bsuite", "faiss", "gradio", "gymnasium", "httpx2", "huggingface_hub", "matplotlib", "minigrid", "numpy",
    "openai", "peft", "popgym", "psutil", "rich", "sacrebleu", "sacremoses", "safetensors", "tokenizers", "torch",
    "torchao", "transformers", "transformers_xl", "triton", "typer", "vllm", "x_transformers", "yaml",
}  # fmt: skip
# files above 500 lines, each with its reason
LONG_FILES: dict[str, str] = {"tests/modeling/test_common_model.py": "what every model has to do, over one table"}


def source_files() -> list[Path]:
    folders = ["transformers_xl", *ROOT_PACKAGES]
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def all_files() -> list[Path]:
    return [
        *source_files(),
        *(path for name in ("tests", "benchmarks", "examples") for path in (ROOT / name).rglob("*.py")),
    ]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """`modeling.layers.attention`, `data.files`: its name in the package."""
    return relative(path).removeprefix("transformers_xl/").removesuffix(".py").replace("/", ".")


def room(module: str) -> str:
    """`modeling.layers.attention` lives in `modeling.layers`, `modeling.heads` in `modeling`."""
    return max((name for name in MAY_IMPORT if module == name or module.startswith(f"{name}.")), key=len)


def imported_modules(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, also inside of functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}: relative imports hide where a name lives"
            names.add(node.module)
    return names


def own_imports(path: Path) -> set[str]:
    names = imported_modules(path)
    assert "transformers_xl" not in names, f"{relative(path)}: import the module itself, not the public name"
    return {name.removeprefix("transformers_xl.") for name in names if name.startswith("transformers_xl.")}


def test_every_dependency_says_from_which_version_on():
    """`.ci/try_minimums.sh` installs the lowest: without one, the oldest that was ever uploaded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [name for name in project["dependencies"] if ">=" not in name] == []


def test_the_version_is_one():
    from transformers_xl import __version__

    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {__version__} - " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_package_list_is_the_folders():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.findall(r'^    "(transformers_xl[\w.]*)",$', text, flags=re.MULTILINE)
    mapping = dict(re.findall(r'^"(transformers_xl[\w.]*)" = "([\w/]+)"$', text, flags=re.MULTILINE))
    folders = {path.parent for path in source_files()}
    inside = {path for path in folders if path.is_relative_to(ROOT / "transformers_xl")}
    in_root = {f"transformers_xl.{module_of(path)}": relative(path) for path in folders - inside}
    inside = {relative(path).replace("/", ".") for path in inside}
    assert sorted(listed) == sorted({*in_root, *inside})
    assert mapping == in_root
    assert all((folder / "__init__.py").is_file() for folder in folders)


def test_imports_point_downward():
    for path in source_files():
        if path.parent != ROOT / "transformers_xl":  # what registers knows the models and the hub
            assert_imports_point_downward(path)


def assert_imports_point_downward(path: Path) -> None:
    here = room(module_of(path))
    for module in own_imports(path):
        target = room(module)
        if here == "modeling" and path.name == "auto.py":
            known = MAY_IMPORT["modeling"] | {"modeling", "modeling.conversion", "tokenization"}
            assert target in known, f"auto imports {module}"
            continue
        assert target == here or target in MAY_IMPORT[here], f"{relative(path)} imports {module}"
        variant = re.fullmatch(r"modeling_(\w+)", path.stem)
        if here == target == "modeling":
            assert module.removeprefix("modeling.") in BACKBONE, f"{relative(path)} imports {module}, not the backbone"
        if variant and path.stem not in BACKBONE and target == "configuration":
            own = {f"configuration.configuration_{variant[1]}", "configuration.configuration_memory"}
            assert module in own, f"{relative(path)} imports {module}, the configuration of another variant"


def test_one_mechanism_puts_a_file_in_the_place_of_another():
    """One for files and one for folders: a failed write leaves what was there before."""
    mechanisms = ("transformers_xl/files/atomic_write.py", "transformers_xl/files/output_folder.py")
    forbidden = re.compile(r"os\.replace|\.rename\(|shutil\.move|fsync|mkstemp|NamedTemporaryFile")
    others = [path for path in source_files() if relative(path) not in mechanisms]
    assert [relative(path) for path in others if forbidden.search(path.read_text(encoding="utf-8"))] == []


def test_file_names_are_unique():
    """A repository on the Hub is flat: two files of one name would overwrite each other there."""
    names = [path.name for path in source_files() if path.name != "__init__.py"]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)


@pytest.mark.parametrize("package", ["configuration", "tokenization"])
def test_configuration_and_tokenization_import_no_torch(package: str):
    """Read in the source: transformers itself imports torch with `PreTrainedConfig`, so a process cannot tell."""
    for path in (ROOT / package).rglob("*.py"):
        heavy = {name for name in imported_modules(path) if name.split(".")[0] in ("torch", "accelerate")}
        assert not heavy, f"{relative(path)} imports {heavy}"
        assert {room(name) for name in own_imports(path)} <= {package} | MAY_IMPORT[package]


def test_every_file_is_ascii_and_of_one_sitting():
    texts = {relative(path): path.read_text(encoding="utf-8") for path in all_files()}
    assert [name for name, text in texts.items() if not text.isascii()] == []
    assert [name for name, text in texts.items() if len(text.splitlines()) > 500 and name not in LONG_FILES] == []


def test_no_function_is_long_and_few_have_many_arguments():
    """40 lines after its signature and docstring; 8 arguments in `modeling`, but of `forward` and of kernels (`ops`)."""
    long, wide = [], []
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
            name = f"{relative(path)}: {node.name}"
            if node.end_lineno - first.lineno >= 40:
                long.append(name)
            arguments = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            is_kernel = node.name == "forward" or "modeling/ops" in relative(path)
            if len({*arguments} - {"self", "cls"}) > 8 and path.is_relative_to(ROOT / "modeling") and not is_kernel:
                wide.append(name)
    assert (long, wide) == ([], [])


def test_every_module_says_what_it_is():
    modules = [path for path in all_files() if path.name != "__init__.py"]
    texts = {relative(path): path.read_text(encoding="utf-8") for path in modules}
    assert [name for name, text in texts.items() if not ast.get_docstring(ast.parse(text))] == []


def test_an_unknown_name_is_an_attribute_error():
    import transformers_xl

    with pytest.raises(AttributeError, match="TransformerXXL"):
        _ = transformers_xl.TransformerXXL


def test_no_class_is_changed_from_outside():
    """What a class is stands where it is defined: other files register, inherit and call."""
    for path in source_files():
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        ours = {alias.name for node in imports if node.module.startswith("transformers_xl") for alias in node.names}
        stores = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
        changed = [ast.unparse(node) for node in stores if node.attr == "__bases__" or ast.unparse(node.value) in ours]
        assert changed == [], relative(path)


def test_the_script_of_the_lowest_versions_names_tests_that_are_there():
    """It runs before a release alone, and would find out then."""
    script = (ROOT / ".ci" / "try_minimums.sh").read_text()
    (command,) = re.findall(r"-m pytest (.*?[^\\])\n", script, re.DOTALL)
    words = subprocess.run(["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
    tests = [word for word in words.stdout.split() if word.startswith("tests/")]
    assert len(tests) > 10
    for test in tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert f"def {name}(" in (ROOT / file).read_text() if name else True, test


def test_scripts_import_files_that_are_there():
    """Benchmarks and examples import files beside them by their names, which no type checker and few tests follow."""
    folders = [ROOT / name for name in ("benchmarks", "benchmarks/claims", "benchmarks/peers", "examples")]
    folders += [path for path in (ROOT / "examples").iterdir() if path.is_dir()]
    known = {path.stem for folder in folders for path in folder.glob("*.py")} | set(sys.stdlib_module_names)
    missing = []
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            names = [module] if module else [each.name for each in node.names] if isinstance(node, ast.Import) else []
            tops = {name.partition(".")[0] for name in names} - known
            missing += [f"{path.relative_to(ROOT)}: {top}" for top in tops if top not in OF_OTHERS]
    assert missing == []
