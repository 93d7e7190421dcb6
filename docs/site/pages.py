"""The hook of mkdocs.yml: pages made of files that lie elsewhere, and links that work on the site as in the repository.

README.md is the start page, CONTRIBUTING.md and the cards are pages, and the command's help is written from `cli/`. A link
between files of the repository becomes one between pages; a file that is no page is copied beside them.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s:#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```$)", flags=re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \|", flags=re.MULTILINE)  # of the README's table of models
TABLE = re.compile(r"<!-- table of variants: .*?<!-- end of table -->", flags=re.DOTALL)
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "model_cards": "models/index.md"}
COMMAND = "reference/command.md"


def variants() -> dict[str, str]:
    """The prefix of the classes of each model type, in the order of the README's table."""
    return {name: prefix for prefix, name in ROW.findall((ROOT / "README.md").read_text(encoding="utf-8"))}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    pages = ["models/index.md", *(f"models/{name}.md" for name in variants())]
    for entry in config.nav:
        if "Models" in entry:
            entry["Models"] = pages
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {
        "index.md": (ROOT / "README.md").read_text(encoding="utf-8"),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
        "models/index.md": models_page(),
        COMMAND: command_page(),
    }
    pages |= {f"models/{name}.md": model_page(name, prefix) for name, prefix in variants().items()}
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    for page in list(files.documentation_pages()):
        for _, target, _ in LINK.findall(FENCE.sub("", page.content_string)):
            path = in_repository(page.src_uri, target)
            if (
                site_path(path) == f"repository/{path}"
                and (ROOT / path).is_file()
                and site_path(path) not in files.src_uris
            ):
                files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    parts = FENCE.split(markdown.replace("```python notest", "```python"))
    return "".join(
        part if part.startswith("```") else LINK.sub(lambda found: link(uri, found), part) for part in parts
    )


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Names as docstrings of transformers write them: [`Name`], and [`~a.b.Name`] for the last part alone."""
    return re.sub(r"\[<code>(?:~(?:\w+\.)*)?([^<~]+)</code>\](?!\()", r"<code>\1</code>", html)


def origin(uri: str) -> str:
    """The file of the repository that a page is made of."""
    moved = {page: path for path, page in MOVED.items()}
    if uri.startswith("models/") and uri not in moved:
        return f"model_cards/{PurePosixPath(uri).name}"
    if uri.startswith("repository/"):
        return uri.removeprefix("repository/")
    return moved.get(uri, f"docs/{uri}")


def in_repository(uri: str, target: str) -> str:
    """The path from the root of what a page links to."""
    folder = (ROOT / origin(uri)).parent
    path = (folder / target).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else target


def site_path(path: str) -> str:
    """Where a file of the repository stands on the site."""
    if path in MOVED:
        return MOVED[path]
    if path.startswith("model_cards/"):
        return f"models/{PurePosixPath(path).name}"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def link(uri: str, found: re.Match) -> str:
    text, target, anchor = found.groups()
    path = in_repository(uri, target)
    if (ROOT / path).is_dir() and path not in MOVED:
        return text.strip("[]")  # a folder is no page
    relative = Path(site_path(path)).as_posix()
    up = "../" * uri.count("/")
    return f"{text}({up}{relative}{anchor or ''})"


def models_page() -> str:
    table = TABLE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert table is not None
    rows = re.sub(r"^\| (`\w+`) \| `(\w+)` \|", r"| [\1](model_cards/\2.md) | `\2` |", table[0], flags=re.MULTILINE)
    first = "Each page has the paper, the equations, what differs, how it was checked, and the classes."
    return f"# Models\n\n{first}\n\n{rows}\n"


def model_page(name: str, prefix: str) -> str:
    """A card, then what the docstrings say."""
    card = (ROOT / "model_cards" / f"{name}.md").read_text(encoding="utf-8")
    modeling = f"transformers_xl.modeling.modeling_{name}"
    source = (ROOT / "modeling" / f"modeling_{name}.py").read_text(encoding="utf-8")
    lines = [card, "## Classes", "", f"::: transformers_xl.configuration.configuration_{name}.{prefix}Config"]
    lines += ["    options: {inherited_members: false}", ""]
    for class_name in re.findall(rf"^class ({prefix}\w*)\(", source, flags=re.MULTILINE):
        if not class_name.endswith(("PreTrainedModel", "Layer")):
            lines += [f"::: {modeling}.{class_name}", ""]
    return "\n".join(lines + encoder_lines(name, prefix, source)) + "\n"


def encoder_lines(name: str, prefix: str, source: str) -> list[str]:
    """The classes of a variant's encoder, which are made when it is imported."""
    forms = [f"`{form}`" for form in re.findall(rf"^    ({prefix}Encoder\w+),$", source, flags=re.MULTILINE)]
    if not forms:
        return []
    says = (
        "a token sees what comes after it too, and nothing is remembered. See [encoders](../docs/using.md#encoders)."
    )
    config = f"::: transformers_xl.configuration.configuration_{name}.{prefix}EncoderConfig"
    return [
        "## As an encoder",
        "",
        f"{', '.join(forms)}: {says}",
        "",
        config,
        "    options: {inherited_members: false}",
    ]


def command_page() -> str:
    """`transformers-xl --help` of each command, as Markdown."""
    sys.path.insert(0, str(ROOT))
    from transformers_xl.cli.main import app

    lines = ["# The command", "", "`transformers-xl COMMAND --help` prints the same.", ""]
    for name, command in commands(typer.main.get_command(app), ""):
        lines += [f"## {name}", "", prose(command.help or ""), ""]
        rows = [row for parameter in command.params if (row := parameter_row(parameter))]
        lines += ["| option | default | meaning |", "|---|---|---|", *rows, ""] if rows else []
        lines += [prose(command.epilog), ""] if command.epilog else []
    return "\n".join(lines)


def commands(group, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def parameter_row(parameter) -> str:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return ""
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    default = parameter.default
    shown = f"`{default}`" if isinstance(default, (str, int, float)) and default is not False else ""
    return f"| {names} | {shown} | {prose(getattr(parameter, 'help', None) or '').replace('|', '&#124;')} |"


def prose(text: str) -> str:
    """One paragraph per blank line, without marks of the terminal."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text.replace("\b", "").replace("<", "&lt;")).strip()
