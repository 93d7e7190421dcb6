"""A module of this package taken apart, so that its text can be gathered with that of others into one file."""

import ast
import importlib.util
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, NoReturn

PACKAGE = __name__.partition(".")[0]


class ModuleSource(NamedTuple):
    module: str  # the whole name
    docstring: str
    imports: tuple[ast.Import | ast.ImportFrom, ...]  # those of other packages, at the top level
    needs: dict[str, frozenset[str]]  # module of this package: the names that are imported from it
    defines: dict[str, str]  # name that is bound at the top level: the statement that binds it
    body: str  # the text without docstring, top-level imports and `__all__`

    @property
    def path(self) -> str:
        return self.module.removeprefix(f"{PACKAGE}.").replace(".", "/") + ".py"


@cache
def module_source(module: str) -> ModuleSource:
    """Read `module`.

    Raises:
        ValueError: the module has no file, or an import in it cannot be gathered (`import transformers_xl.x`, a star, a
            package, an alias, a relative or a dynamic import, an import of this package inside of a function or block).
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"`{module}` has no source file to export.")
    text = Path(spec.origin).read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports: list[ast.Import | ast.ImportFrom] = []
    needs: dict[str, set[str]] = defaultdict(set)
    defines: dict[str, str] = {}
    left_out = tree.body[:1] if ast.get_docstring(tree) is not None else []
    own = dict(_own_imports(tree, module))
    for node in tree.body:
        if node in own:
            needs[own[node]] |= {alias.name for alias in node.names}
            left_out.append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
            left_out.append(node)
        elif "__all__" in _bound(node):
            left_out.append(node)
        else:
            defines |= dict.fromkeys(_bound(node), ast.unparse(node))
    named = {each: frozenset(names) for each, names in needs.items()}
    return ModuleSource(
        module, ast.get_docstring(tree) or "", tuple(imports), named, defines, _without(text, left_out)
    )


def _own_imports(tree: ast.Module, module: str) -> Iterator[tuple[ast.ImportFrom, str]]:
    """The imports of modules of this package, with the names of these; what cannot be gathered is refused."""
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
                if node not in tree.body:
                    _refuse(module, node, "import at the top of the module")
                if any(alias.asname for alias in node.names):
                    _refuse(module, node, "import the name as it is, without `as`")
                yield node, name


def _refuse(module: str, node: ast.expr | ast.stmt, remedy: str) -> NoReturn:
    raise ValueError(f"`{ast.unparse(node)}` in {module}, line {node.lineno}, cannot be exported: {remedy}.")


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds, in its blocks too; not those inside of functions, classes and comprehensions."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def _without(text: str, nodes: list[ast.stmt]) -> str:
    """`text` without the lines of `nodes`, and with at most two empty lines where they were."""
    lines = text.splitlines()
    dropped = {line for node in nodes for line in range(node.lineno - 1, node.end_lineno or node.lineno)}
    kept: list[str] = []
    for number, line in enumerate(lines):
        if number not in dropped and (line or kept[-2:] != ["", ""]):
            kept.append(line)
    return "\n".join(kept).strip("\n")


__all__ = ["PACKAGE", "ModuleSource", "module_source"]
