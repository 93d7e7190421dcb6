"""`transformers-xl report`: the page of every variant, and one of them in a real browser."""

import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from patience import PATIENCE
from programs import BROWSER, run
from transformers import AutoConfig

from transformers_xl import ByteTokenizer
from transformers_xl.evaluation import html_report
from transformers_xl.modeling.auto import VARIANTS

TEXT = "It was the best of times, it was the worst of times: $5 & <b>\u00e9t\u00e9</b>.\n" * 3

# what each page must show, beside the fields of all
LEARNED = {
    "adaptive_span": "spans",
    "universal_transformer": "halting",
    "depth_adaptive_transformer": "exits",
    "pkm_transformer": "key_usage",
    "gtrxl": "gates",
    "star_transformer": "ring",
    "tensorized_transformer": "pairs",
}
FIELDS = {
    "universal_transformer": {"halting_threshold": 0.8},
    "depth_adaptive_transformer": {"confidence_thresholds": 0.01},
    "pkm_transformer": {"num_memory_keys": 4, "memory_topk": 2, "memory_key_dim": 8},
    "tensorized_transformer": {"attention_window": 4},
}


class Page(HTMLParser):
    """What a page holds: its sections, its pictures, and everything that it would load."""

    def __init__(self, text: str):
        super().__init__()
        self.sections: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        attributes = dict(attrs)
        self.tags.add(tag)
        self.sections += [attributes["id"]] if tag == "section" else []
        self.loads += [attributes[name] for name in ("src", "href", "srcset", "data") if name in attributes]


def save(model_type: str, folder: Path) -> Path:
    tokenizer, row = ByteTokenizer(), VARIANTS[model_type]
    config = AutoConfig.for_model(
        model_type, vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        segment_length=16, initializer_range=0.2, **({} if model_type == "star_transformer" else {"intermediate_size": 16}),
        **({} if row.memory == "none" else {"mem_len": 24}), **FIELDS.get(model_type, {}),
    )  # fmt: skip
    torch.manual_seed(0)
    (row.causal_lm_class or row.model_class)(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def _empty_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Painting takes most of a report's time: it is done where the command is asked for files, and in a browser."""
    monkeypatch.setattr("transformers_xl.evaluation.html_report.png_bytes", lambda picture: b"a picture")


# those with a section of their own, with fewer than others, and one that stands for the rest
PAGES = sorted({*LEARNED, "transformer_xl", "vanilla_transformer", "star_transformer", "tensorized_transformer"})


@pytest.mark.usefixtures("_empty_pictures")
@pytest.mark.parametrize("model_type", PAGES)
def test_a_page_shows_all_that_a_variant_has(model_type: str, text_file: Path, tmp_path: Path):
    out = tmp_path / "pages" / "report.html"
    # the folder's name is text to the page, whatever it is
    result = run("report", save(model_type, tmp_path / "a<b>"), "--text", text_file, "--out", out)
    assert result.exit_code == 0, result.output
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    expected = ["bits_per_byte"] if VARIANTS[model_type].causal else []
    if model_type not in ("star_transformer", "tensorized_transformer", "recurrent_memory_transformer"):
        expected += ["attention", "heads", "tokens"]
    if model_type in ("transformer_xl", "gtrxl", "macaron", "pkm_transformer"):
        expected += ["terms"]
    expected += [LEARNED[model_type]] if model_type in LEARNED else []
    assert page.sections == expected
    # it loads nothing: every picture is in it
    assert len(page.loads) == len(expected)
    assert all(source.startswith("data:image/png;base64,") for source in page.loads)
    assert not {"script", "link", "iframe", "b"} & page.tags
    assert "a&lt;b&gt;" in text
    assert VARIANTS[model_type].authors in text
    if VARIANTS[model_type].causal:
        assert ("with memory" in text) == bool(VARIANTS[model_type].memory != "none")
        assert f"{len(TEXT.encode()) - 1:,}" in text  # bytes


@pytest.mark.usefixtures("_empty_pictures")
def test_gates_that_are_none_are_no_picture(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FIELDS, "gtrxl", {"gate_type": "none"})
    result = run("report", save("gtrxl", tmp_path / "model"), "--text", text_file, "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    page = Page((tmp_path / "page.html").read_text())
    assert page.sections[-1] == "gates"
    assert len(page.loads) == len(page.sections) - 1


@pytest.mark.usefixtures("_empty_pictures")
def test_fewer_tokens_of_the_text(text_file: Path, tmp_path: Path):
    model = save("vanilla_transformer", tmp_path / "model")
    result = run(
        "report",
        model,
        "--text",
        text_file,
        "-o",
        tmp_path / "page.html",
        "--tokens",
        40,
        "--segment-length",
        8,
        "--json",
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["out"] == str(tmp_path / "page.html")
    assert [each["name"] for each in told["sections"]] == Page((tmp_path / "page.html").read_text()).sections
    text = (tmp_path / "page.html").read_text()
    assert "40 tokens read" in text
    assert "39" in re.findall(r"<td>([\d,]+)</td>", text)


def test_what_cannot_be_written_is_refused_before_any_work(text_file: Path, tmp_path: Path):
    # a model of few pictures, which are painted here three times: that of many is in a browser below
    model, taken, folder = (
        save("tensorized_transformer", tmp_path / "model"),
        tmp_path / "taken.html",
        tmp_path / "folder",
    )
    taken.write_text("mine")
    short = text_file.parent / "short.txt"
    short.write_text("a")
    folder.mkdir()
    (folder / "mine.png").write_text("mine")
    for arguments, word in (
        (("--out", taken), "`out`"),
        (("--out", tmp_path / "page.html", "--text", short), "`text`"),
        (("--out", folder), "`out`"),
        (("--out", tmp_path / "page.html", "--pictures", taken), "`pictures`"),
        (("--out", tmp_path / "page.html", "--pictures", folder), "`pictures`"),
    ):
        text = () if "--text" in arguments else ("--text", text_file)
        result = run("report", model, *text, *arguments)
        assert result.exit_code == 2, result.output
        assert word in result.output
        assert "Traceback" not in result.output
    assert taken.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "model", "taken.html"]
    result = run("report", model, "--text", text_file, "--out", taken, "--pictures", folder, "--overwrite")
    assert result.exit_code == 0, result.output
    assert taken.read_text().startswith("<!doctype html>")
    assert (folder / "mine.png").read_text() == "mine"
    written = {f"{name}.{kind}" for name in Page(taken.read_text()).sections for kind in ("png", "svg")}
    assert {path.name for path in folder.iterdir()} == {"mine.png", *written}


def test_tokens_are_spelled_so_that_they_can_be_read():
    ids = np.array([*b"a \n", 0xE9, 257])
    assert html_report.spelled(ByteTokenizer(), ids) == ["a", "\u2423", "\\n", "\u00e9", "?"]


PROBE = """<script>
const pictures = [...document.images].map(each => each.complete ? each.naturalWidth : 0);
const wide = Math.max(...pictures.map((_, i) => document.images[i].getBoundingClientRect().right));
document.title = JSON.stringify({pictures, height: document.body.scrollHeight, wide, page: innerWidth});
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium here: `apt-get install chromium`, as .ci/run does")
def test_a_browser_shows_the_page(text_file: Path, tmp_path: Path):
    """All pictures are decoded and inside of the page, and what is painted is no blank sheet."""
    path = tmp_path / "report.html"
    result = run("report", save("transformer_xl", tmp_path / "model"), "--text", text_file, "--out", path)
    assert result.exit_code == 0, result.output
    text = path.read_text(encoding="utf-8")
    probed = tmp_path / "probed.html"
    without_policy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    assert without_policy != text
    probed.write_text(without_policy.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")

    def browse(*arguments: str) -> str:
        # nothing outside is there: what the page does not hold it cannot show
        command = [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND",
        ]  # fmt: skip
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=True
        ).stdout

    title = re.search(r"<title>(.*?)</title>", browse("--dump-dom", "--window-size=1000,800", probed.as_uri()))
    assert title is not None
    seen = json.loads(title[1])
    assert len(seen["pictures"]) == len(Page(text).loads) == 5
    assert all(width > 300 for width in seen["pictures"])
    assert seen["wide"] <= seen["page"] == 1000

    screenshot = tmp_path / "page.png"
    browse(f"--screenshot={screenshot}", f"--window-size=1000,{seen['height']}", path.as_uri())
    painted = (matplotlib.image.imread(screenshot)[..., :3] * 255).astype(np.int64)
    assert painted.shape[0] >= seen["height"]
    # the yellow and the blue of the heat maps, and the black of the text, are on it
    shades = painted.reshape(-1, 3)
    for name, colour in (("yellow", (254, 232, 56)), ("blue", (0, 34, 78)), ("text", (17, 17, 17))):
        near = (np.abs(shades - np.array(colour)).max(-1) < 12).sum()
        assert near > 200, f"{name}: {near} pixels"
