"""Cards of values that somebody chose to become code, Markdown or HTML: each is shown as the value that it is."""

import ast
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from carded import evaluation, saved
from huggingface_hub import ModelCard, ModelCardData
from markdown_it import MarkdownIt

from transformers_xl.hub.cards import Choices, model_card, write_card
from transformers_xl.hub.measurements import FILE, measurements_of, write_measurements
from transformers_xl.hub.memory_text import memory_text
from transformers_xl.hub.quoting import as_block, as_code, as_link, as_python, as_text

HOSTILE = (
    '"); import os; os.system("touch run"); ("',
    "<script>alert(1)</script>",
    "a\n\n# Heading\n- item",
    "```\n<script>alert(1)</script>\n```python\nimport os",
    "`` ` ``` <b>bold</b> &amp; **x** _y_ ![z](http://z) [l](javascript:x)",
    "a | b\\| c",
    "--- \nlicense: mit\n---",
    "1. one\\",
    'x\' "y" \\',
    "{{ 7 * 7 }} $(touch run) {% raw %}",
)


class Seen(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(markdown: str) -> Seen:
    return Seen(MarkdownIt("commonmark").enable("table").render(markdown))


def plain(value: str) -> str:
    return " ".join(value.split())


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_is_shown_as_itself(value: str):
    assert seen(as_text(value)).text.strip() == plain(value)
    assert seen(as_text(value)).tags == {"p"}
    assert seen(f"# {as_text(value)}").tags == {"h1"}
    code = seen(as_code(value))
    assert code.tags == {"p", "code"}
    assert code.text.strip() == plain(value).replace("|", "\\|")
    for quoted in (as_text(value), as_code(value)):
        cells = seen(f"| a | b |\n|---|---|\n| {quoted} | c |").tags
        assert cells <= {"table", "thead", "tbody", "tr", "th", "td", "code"}
    block = seen(f"{as_block(value)}\n\nbehind")
    assert block.tags == {"pre", "code", "p"}
    assert value.rstrip() in block.text
    assert ast.literal_eval(as_python(value)) == value


def test_links_lead_to_the_web_alone():
    for address in ("javascript:alert(1)", "data:text/html,x", "//x", "file:///etc/passwd", ""):
        assert as_link("a name", address) == "a name"
    link = seen(as_link("a](x", "https://x.org/a) <b> \n c(d"))
    assert link.tags == {"p", "a"}
    assert link.text.strip() == "a](x"


@pytest.mark.parametrize("value", HOSTILE)
def test_a_card_of_hostile_values(value: str, tmp_path: Path):
    """Names, licence, tags, versions, files and devices: the code of the card parses, and calls what it called before."""
    folder = tmp_path / "model"
    model = saved(folder)
    found = measurements_of(model, folder, evaluations=(evaluation(model, name=value),))
    write_measurements(folder, found)
    record = json.loads((folder / FILE).read_text())
    record["versions"] = {value: value}
    record["evaluations"][0] |= {"command": value, "device": value, "dtype": value}
    record["evaluations"][0]["data"] |= {"dataset": value, "revision": value, "sha256_of": value}
    (folder / FILE).write_text(json.dumps(record))
    choices = Choices(value, value, value, (value,), (value,), value, value)
    card = model_card(folder, value, choices)
    page = seen(card.text)
    assert page.tags <= {"h1", "h2", "p", "code", "pre", "table", "thead", "tbody", "tr", "th", "td", "a", "strong"}
    assert plain(value) in page.text
    (code,) = [token.content for token in MarkdownIt().parse(card.text) if token.info == "python"]
    calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)}
    assert calls == {"AutoModelForCausalLM.from_pretrained", "AutoTokenizer.from_pretrained", "model", "tokenizer"} | {
        "model.generate"
    }
    again = ModelCard(str(card))
    assert again.data.license == value
    assert again.data.license_name == value
    assert again.text.strip() == card.text.strip()


@pytest.mark.parametrize("value", HOSTILE)
def test_what_was_added_to_a_hostile_base(value: str):
    fields = {"kind": "window", "mem_len": 3, "num_sinks": 1}
    config = {"text_config": {"architectures": [value]}, **fields}
    text = memory_text(config, ModelCardData(base_model=[value], license=value))
    assert seen(text).tags <= {"p", "code", "a", "table", "thead", "tbody", "tr", "th", "td"}
    with pytest.raises(ValueError, match="must be a list of names"):
        memory_text(config | {"text_config": {"architectures": {value: 1}}}, ModelCardData())


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "head", [BOMB, "a: &a [*a]", "a: " + "[" * 500, "a: !!python/object/apply:os.system ['touch run']", "license: [1"]
)
def test_a_readme_whose_metadata_is_hostile(head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text(f"---\n{head}\n---\n\n# Mine\n")
    with pytest.raises(ValueError, match=r"README.md' is not a valid card"):
        write_card(tmp_path / "model")
    assert not (tmp_path / "run").exists()
    shutil.rmtree(tmp_path / "model")
