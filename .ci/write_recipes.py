"""Write the recipes' part of docs/recipes.md from the first lines and settings of transformers_xl/runs/recipes/*.yaml.

`tests/runs/test_recipes.py` checks that the page is what this writes.
"""

import re
import textwrap
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "recipes.md"
PART = re.compile(r"(<!-- recipes: .*? -->\n).*?(<!-- end of recipes -->)", flags=re.DOTALL)
FIELD = re.compile(r"^# ([a-z ]+): (.*(?:\n#   .*)*)", flags=re.MULTILINE)
OWN = {"small-bytes", "streaming-30m", "small-translation", "add-memory-window", "add-memory-tokens"}  # no paper's
LABELS = {
    "reported": "Reported",
    "source": "Source",
    "parameters": "Parameters",
    "compare": "Compare with care",
    "left out": "Left out",
    "devices": "Devices",
}


def recipes() -> list[Path]:
    """Those of papers."""
    return sorted(
        path for path in (ROOT / "transformers_xl" / "runs" / "recipes").glob("*.yaml") if path.stem not in OWN
    )


def first_lines(text: str) -> tuple[str, dict[str, str]]:
    """The title, and the fields of the comments before the first section."""
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    title = next(line for line in comments.splitlines() if line != "# unconfirmed").removeprefix("# ")
    return title, {name: " ".join(value.replace("\n#  ", "").split()) for name, value in FIELD.findall(comments)}


def bullet(label: str, text: str) -> str:
    if "/" not in text.split()[0]:  # the name of a repository stays as it is
        text = text[0].upper() + text[1:]
    text = re.sub(r"(<\w+>)", r"`\1`", text)  # no HTML
    return textwrap.fill(
        f"- **{label}.** {text}.", 119, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def entry(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    title, fields = first_lines(text)
    variant = yaml.safe_load(text)["model"]["variant"]
    lines = [f"### `{path.stem}`", "", f"{title} ([`{variant}`](../model_cards/{variant}.md))."]
    if text.startswith("# unconfirmed\n"):
        lines[-1] += " **Unconfirmed**: figures are from memory of the paper; check them before use."
    lines += ["", *(bullet(label, fields[name]) for name, label in LABELS.items() if name in fields)]
    train = f"transformers-xl train --recipe {path.stem} -o OUTPUT"
    return "\n".join([*lines, "", "```sh", fields["prepare"], train, fields["evaluate"], "```", ""])


def page() -> str:
    """The page, with this part of it written again."""
    entries = "\n".join(map(entry, recipes()))
    return PART.sub(lambda match: f"{match[1]}\n{entries}\n{match[2]}", PAGE.read_text(encoding="utf-8"))


def write() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()
