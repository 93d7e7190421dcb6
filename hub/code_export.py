"""The code that a saved model needs, as flat files beside its weights: what `trust_remote_code=True` runs."""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, NoReturn

PACKAGE = __name__.partition(".")[0]


class Source(NamedTuple):
    """A module as it is exported: its text, and the modules of this package that it imports."""

    text: str
    needs: tuple[str, ...]


def exported_files(modules: Iterable[str]) -> dict[str, str]:
    """The modules, and all of this package that they import: file name to text, in the order of the names.

    A folder on the Hub is flat, and transformers follows nothing but `from .name import ...` in it. So
    `from transformers_xl.a.b import c` becomes `from .b import c`.

    Raises:
        ValueError: an import that cannot be followed (`import transformers_xl.x`, a star, a package, a relative or a
            dynamic import), or two modules of one file name.
    """
    found: dict[str, str] = {}
    pending = sorted(set(modules))
    while pending:
        module = pending.pop()
        name = file_name(module)
        if found.setdefault(name, module) != module:
            raise ValueError(f"`{module}` and `{found[name]}` would both be exported as {name}: rename one of them.")
        pending += [needed for needed in exported_source(module).needs if needed not in found.values()]
    return {name: exported_source(found[name]).text for name in sorted(found)}


def write_code(folder: Path, modules: Iterable[str]) -> list[Path]:
    """Write what [`exported_files`] gives into `folder`, the same bytes every time."""
    written = []
    for name, text in exported_files(modules).items():
        path = folder / name
        path.write_bytes(text.encode("ascii"))  # bytes: the same on every system
        written.append(path)
    return written


def file_name(module: str) -> str:
    return f"{module.rpartition('.')[2]}.py"


@cache
def exported_source(module: str) -> Source:
    """One module with its imports rewritten, under a header that says where it comes from."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"`{module}` has no source file to export.")
    text = Path(spec.origin).read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    needs = []
    for node, needed in own_imports(ast.parse(text), module):
        needs.append(needed)
        pattern = rf"from\s+{re.escape(needed)}\s+import\b"
        line, count = re.subn(pattern, f"from .{needed.rpartition('.')[2]} import", lines[node.lineno - 1], count=1)
        if count != 1:
            _refuse(module, node, "write `from <module> import` on one line")
        lines[node.lineno - 1] = line
    source = module.removeprefix(f"{PACKAGE}.").replace(".", "/")
    header = (
        f"# From transformers-xl {sys.modules[PACKAGE].__version__} (Apache-2.0): {source}.py, with imports made flat.\n"
        "# Written by `save_pretrained`. Where the package is installed, its own file is used instead of this one.\n"
    )
    return Source(header + "".join(lines), tuple(dict.fromkeys(needs)))


def own_imports(tree: ast.Module, module: str) -> Iterator[tuple[ast.ImportFrom, str]]:
    """The imports of modules of this package, with the names of these, wherever they stand; what cannot be followed is
    refused."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == PACKAGE:
                    _refuse(module, node, f"write `from {alias.name} import ...`")
                if alias.name.partition(".")[0] == "importlib":
                    _refuse(module, node, "an export cannot follow dynamic imports")
        elif isinstance(node, ast.Name) and node.id == "__import__":
            _refuse(module, node, "an export cannot follow dynamic imports")
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            if node.level:
                _refuse(module, node, "write the whole name of the module")
            if any(alias.name == "*" for alias in node.names):
                _refuse(module, node, "name what is imported")
            if name.partition(".")[0] == "importlib":
                _refuse(module, node, "an export cannot follow dynamic imports")
            if name.partition(".")[0] == PACKAGE:
                spec = importlib.util.find_spec(name)
                if spec is None or spec.submodule_search_locations is not None:
                    _refuse(module, node, "import from the file that defines the name, not from a package")
                yield node, name


def _refuse(module: str, node: ast.expr | ast.stmt, remedy: str) -> NoReturn:
    raise ValueError(f"`{ast.unparse(node)}` in {module}, line {node.lineno}, cannot be exported: {remedy}.")


__all__ = ["Source", "exported_files", "exported_source", "file_name", "own_imports", "write_code"]
