"""The code that a saved model needs, in a few flat files beside its weights: what `trust_remote_code=True` runs.

A folder on the Hub is flat, and transformers follows nothing but `from .name import ...` in it. So modules are gathered,
each with its text as it stands and the imports of all of them at the top:

    configuration_gtrxl.py     the config, below the modules that it needs
    modeling_gtrxl_core.py     what the model is built from: operations, memory, layers, backbone, heads
    modeling_gtrxl.py          the model: its own module alone
    tokenization_bytes.py      the tokenizer, below the modules that it needs

The model's module stays alone because it is the one to read. Transformers reads it too: it searches the file of the class
for attention layers to tell whether `set_attn_implementation` works.
"""

import ast
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from transformers_xl.hub.module_source import PACKAGE, ModuleSource, module_source

WIDTH = 119
Calls = Mapping[str, Sequence[tuple[str, type]]]


def exported_files(modules: Iterable[str], calls: Calls | None = None) -> dict[str, str]:
    """The modules with all of this package that they import, gathered: file name to text, in the order of the names.

    `calls`: of a module, functions that it calls at its end, each with a class: what the package registers elsewhere.

    Raises:
        ValueError: an import that cannot be gathered ([`module_source`] says which), a name with two meanings in one file,
            or two files of one name.
    """
    return dict(_exported(tuple(modules), tuple((module, tuple(named)) for module, named in (calls or {}).items())))


@cache
def _exported(modules: tuple[str, ...], calls: tuple[tuple[str, tuple], ...]) -> dict[str, str]:
    files: dict[str, str] = {}
    placed: dict[str, str] = {}  # module: the file that has it
    sources = {module: _calling(module_source(module), named) for module, named in calls}
    needed = {module: _with_needs(module, sources) for module in modules}
    for module in sorted(needed, key=lambda each: (len(needed[each]), each)):  # what others need comes before them
        for name, gathered in _split(module, [each for each in needed[module] if each not in placed]):
            if name in files:
                raise ValueError(
                    f"`{module}` and another module would both be exported as {name}: rename one of them."
                )
            files[name] = _gather(name, [sources.get(each) or module_source(each) for each in gathered], placed)
            placed |= dict.fromkeys(gathered, name)
    return dict(sorted(files.items()))


def write_code(folder: Path, modules: Iterable[str], calls: Calls | None = None) -> list[Path]:
    """Write what [`exported_files`] gives into `folder`, the same bytes every time."""
    written = []
    for name, text in exported_files(modules, calls).items():
        path = folder / name
        path.write_bytes(text.encode("ascii"))  # bytes: the same on every system
        written.append(path)
    return written


def _calling(source: ModuleSource, named: Sequence[tuple[str, type]]) -> ModuleSource:
    """A module that calls these functions of its own at its end, each with a class of another module."""
    needs = dict(source.needs)
    for _, cls in named:
        needs[cls.__module__] = needs.get(cls.__module__, frozenset()) | {cls.__name__}
    lines = "\n".join(f"{function}({cls.__name__})" for function, cls in named)
    return source._replace(needs=needs, body=f"{source.body}\n\n\n{lines}")


def _with_needs(module: str, sources: Mapping[str, ModuleSource]) -> list[str]:
    """All modules of this package that `module` imports, each below what it needs, and `module` itself at the end."""
    found: dict[str, None] = {}

    def visit(each: str) -> None:
        for needed in (sources.get(each) or module_source(each)).needs:
            if needed not in found:
                visit(needed)
        found[each] = None

    visit(module)
    return list(found)


def _split(module: str, gathered: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The files for `module`, which is the last of those to be `gathered`, and the modules of each."""
    name = module.rpartition(".")[2]
    if name.startswith("modeling_") and len(gathered) > 1:
        yield f"{name}_core.py", gathered[:-1]
        gathered = gathered[-1:]
    if gathered:
        yield f"{name}.py", gathered


def _gather(name: str, sources: list[ModuleSource], placed: Mapping[str, str]) -> str:
    """The text of the file `name`: `sources` in their order, below what they import from elsewhere."""
    elsewhere: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        for module, names in source.needs.items():
            if module in placed:
                elsewhere[placed[module].removesuffix(".py")] |= names
    imports = [node for source in sources for node in source.imports]
    _check_meanings(name, sources, imports)
    parts = [_header(name, sources), *_import_groups(imports, elsewhere)]
    parts += [
        f"\n{source.body}" if len(sources) == 1 else f"\n{_title(source, name)}\n\n{source.body}" for source in sources
    ]
    return "\n\n".join(parts) + "\n"


def _check_meanings(file: str, sources: list[ModuleSource], imports: list[ast.Import | ast.ImportFrom]) -> None:
    """A name may be bound twice in one file only by the same statement."""
    meanings: dict[str, tuple[str, str]] = {}
    bound = [
        (alias.asname or alias.name, ast.unparse(_alone(node, alias)), "an import")
        for node in imports
        for alias in node.names
    ]
    bound += [(name, text, source.path) for source in sources for name, text in source.defines.items()]
    for name, text, where in bound:
        known, known_where = meanings.setdefault(name, (text, where))
        if known != text:
            raise ValueError(f"`{name}` of {where} and of {known_where} would meet in {file}: rename one of them.")


def _alone(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.Import | ast.ImportFrom:
    return ast.Import([alias]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [alias], 0)


def _import_groups(imports: list[ast.Import | ast.ImportFrom], elsewhere: Mapping[str, set[str]]) -> Iterator[str]:
    """The imports of the standard library, of other packages, and of other files of the folder, each name once."""
    plain: set[str] = set()
    names: dict[str, set[str]] = defaultdict(set)
    for node in imports:
        for alias in node.names:
            if isinstance(node, ast.Import):
                plain.add(ast.unparse(alias))
            else:
                names[node.module or ""].add(ast.unparse(alias))
    for standard in (True, False):
        lines = [f"import {each}" for each in sorted(plain) if _is_standard(each) == standard]
        lines += [_from(each, names[each]) for each in sorted(names) if _is_standard(each) == standard]
        if lines:
            yield "\n".join(lines)
    if elsewhere:
        yield "\n".join(_from(f".{each}", elsewhere[each]) for each in sorted(elsewhere))


def _is_standard(module: str) -> bool:
    return module.replace(" ", ".").partition(".")[0] in sys.stdlib_module_names


def _from(module: str, names: set[str]) -> str:
    line = f"from {module} import {', '.join(sorted(names))}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {each}," for each in sorted(names)), ")"])


def _header(name: str, sources: list[ModuleSource]) -> str:
    main = sources[-1]
    what = main.path if len(sources) == 1 else f"{len(sources)} modules"
    about = main.docstring
    if name.endswith("_core.py"):
        about = f"What `{name.replace('_core', '')}` builds on, module by module, each below those that it needs."
    return (
        f"# From transformers-xl {sys.modules[PACKAGE].__version__} (Apache-2.0): {what}, with flat imports.\n"
        "# Written by `save_pretrained`. Where the package is installed, its own modules are used instead of this file.\n"
        f'"""{about}{chr(10) if chr(10) in about else ""}"""'
    )


def _title(source: ModuleSource, file: str) -> str:
    """The name and the words of a module, as comments: only the first docstring of a file is one."""
    rule = "# " + "-" * (WIDTH - 2)
    words = "" if Path(source.path).name == file else f"\n\n{source.docstring}"
    return f"{rule}\n{textwrap.indent(source.path + words, '# ', lambda line: True)}\n{rule}".replace("# \n", "#\n")


__all__ = ["exported_files", "write_code"]
