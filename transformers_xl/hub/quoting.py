"""Values of others in a card, each quoted for where it stands: a name is a name, and never Markdown, HTML or code."""

import json
import re
from urllib.parse import quote, urlsplit

_SPECIAL = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)|(?<![^\s])[#>+=-]|^\d+(?=[.)](\s|$))")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def one_line(value: object) -> str:
    """The text in one line, without characters that cannot be seen."""
    text = " ".join(str(value).split())
    return "".join(each for each in text if each.isprintable()).encode("utf-8", "replace").decode()


def as_text(value: object) -> str:
    """In Markdown, also in the cell of a table: what a reader sees is the value."""
    escaped = _SPECIAL.sub(
        lambda match: f"\\{match[0]}" if not match[0].isdigit() else f"{match[0]}\\", one_line(value)
    )
    return "".join(_ENTITIES.get(each, each) for each in escaped)


def as_code(value: object) -> str:
    """In Markdown, as code in a line, also in the cell of a table."""
    text = one_line(value).replace("|", r"\|")
    longest = max(map(len, re.findall("`+", text)), default=0)
    if not longest:
        return f"`{text}`"
    marks = "`" * (longest + 1)
    return f"{marks} {text} {marks}"


def as_block(text: str, language: str = "") -> str:
    """In Markdown, as lines of code; nothing in `text` ends them."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{text}\n{marks}"


def as_python(value: str) -> str:
    """As a string in Python."""
    return json.dumps(value, ensure_ascii=False)


def as_link(name: str, address: str) -> str:
    """In Markdown, as a link; the name alone, where the address is none of the web."""
    if urlsplit(address).scheme not in ("http", "https"):
        return as_text(name)
    return f"[{as_text(name)}]({quote(one_line(address), safe=':/?#@!$&*+,;=%~')})"


__all__ = ["as_block", "as_code", "as_link", "as_python", "as_text", "one_line"]
