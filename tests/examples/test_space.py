"""The demo page: what it computes, and that a browser in which the buttons are really pressed shows it."""

import functools
import importlib.metadata
import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from optional_packages import needs
from patience import PATIENCE
from programs import BROWSER, DRIVER
from tiny import tiny_model

from transformers_xl import ByteTokenizer, StreamingTransformerConfig, StreamingTransformerForCausalLM
from transformers_xl.evaluation.attention_maps import attention_atlas

if importlib.util.find_spec("gradio") is None:
    needs("gradio")
needs("selenium")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

FOLDER = Path(__file__).parents[2] / "examples/space"
MEM_LEN = 24
HIDDEN = """const box = document.querySelector('#text textarea');
return {above: box.scrollTop, below: box.scrollHeight - box.scrollTop - box.clientHeight}"""
WIDTH = "return document.querySelector('#attention img')?.naturalWidth ?? 0"


@functools.cache
def demo() -> ModuleType:
    """The program, run by the first test that asks for it: importing gradio takes longer than all other test files."""
    needs("gradio")
    spec = importlib.util.spec_from_file_location("space_app", FOLDER / "app.py")
    module = sys.modules["space_app"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def writer(tmp_path: Path):
    """A `Writer` of the demo."""
    tokenizer = ByteTokenizer()
    config = StreamingTransformerConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        mem_len=MEM_LEN, segment_length=16, initializer_range=0.2, dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = StreamingTransformerForCausalLM(config)
    model.lm_head.bias.data[: ord(" ")] = model.lm_head.bias.data[ord("~") + 1 :] = -1e4  # what it writes can be read
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return demo().Writer.load(str(tmp_path / "model"))


def last(stories: Iterator):
    """Where the text stands after the last piece."""
    return list(stories)[-1]


def test_pieces_are_one_text(writer):
    """Pressed twice, in pieces, past the memory: the text that one call of `generate` writes."""
    story = writer.begin("It was")
    for _ in range(2):
        story = last(writer.go_on(story, MEM_LEN, 45, temperature=0))
    ids = writer.tokenizer("It was", return_tensors="pt")["input_ids"]
    expected = writer.model.generate(ids, min_new_tokens=90, max_new_tokens=90, do_sample=False)
    assert story.ids == expected[0].tolist()
    assert story.written == 96
    assert writer.text(story) == writer.tokenizer.decode(expected[0])
    assert "**96** tokens" in writer.figures(story)


@pytest.mark.parametrize("mem_len", [0, 5, 4 * MEM_LEN])
def test_a_memory_of_another_length_is_that_of_the_text(writer, mem_len: int):
    """The next logits are those of a model with this memory that has read all of the text."""
    story = last(writer.go_on(writer.begin("It was"), MEM_LEN, 150, temperature=1.0))
    story = writer.remember(story, mem_len)
    ids = torch.tensor([story.ids])
    with torch.no_grad():
        found = writer.model(ids[:, -1:], mems=story.memory).logits[:, -1]
        expected = writer.model(ids).logits[:, -1]
    assert writer.model.config.mem_len == max(1, mem_len)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "model_type", ["r_transformer", "sha_rnn", "compressive_transformer", "segment_memory/tokens"]
)
def test_every_model_takes_the_lengths_that_the_page_offers(model_type: str):
    """It writes with each; a window is made anew, and what remembers more than tokens goes on from there."""
    model = tiny_model(model_type, "causal_lm", torch.float32, vocab_size=259)
    writer, trained = demo().Writer(model, ByteTokenizer()), model.config.mem_len
    assert writer.is_window is (model_type == "r_transformer")
    story = last(writer.go_on(writer.begin("It was"), trained, 60, temperature=1.0))
    for mem_len in (writer.shortest, writer.longest):
        told = torch.tensor([story.ids])
        with torch.no_grad():
            model.resize_memory(min(mem_len, writer.longest))
            expected = model(told).logits[:, -1]
            remembered = writer.remember(story, mem_len)
            found = model(told[:, -1:], mems=remembered.memory).logits[:, -1]
        if writer.is_window or mem_len == trained:
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        assert last(writer.go_on(remembered, mem_len, 20, temperature=1.0)).written == story.written + 20
    if model_type == "segment_memory/tokens":
        assert (writer.shortest, writer.longest) == (trained, trained)


def test_a_session_stays_small(writer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo(), "SHOWN", 40)
    story = last(writer.go_on(writer.begin("It was"), 4 * MEM_LEN, 300, temperature=1.0))
    assert story.written == 306
    assert len(story.ids) == writer.reach(4 * MEM_LEN) + 1 == 2 * (4 * MEM_LEN + 2 * 3) + 2 + 1
    assert story.memory.num_columns == 4 * MEM_LEN - 1  # a token brings its own keys
    assert writer.text(story).startswith("[...] ")
    assert len(writer.text(story)) == len("[...] ") + 40


def test_the_picture_is_the_attention_over_the_memory(writer):
    story = last(writer.go_on(writer.begin("It was"), MEM_LEN, 150, temperature=1.0))
    axes = writer.picture(story).axes[0]
    seen = axes.images[0].get_array()
    atlas = attention_atlas(writer.model, torch.tensor(story.ids[-MEM_LEN - 64 :]), skip=MEM_LEN)
    assert seen.shape == (4, MEM_LEN)
    torch.testing.assert_close(torch.tensor(seen.filled(0)), torch.tensor(atlas.mean_weight.reshape(4, -1)))
    assert axes.get_xlim() == (-0.5, MEM_LEN - 0.5)
    assert writer.picture(writer.begin("I")) is None


def test_what_cannot_write_is_refused(writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    with pytest.raises(ValueError, match="beginning is empty"):
        writer.begin("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL", raising=False)
    with pytest.raises(SystemExit, match="make quickstart"):
        demo().main([])
    StreamingTransformerConfig(mem_len=0, same_length=False).save_pretrained(tmp_path / "none")
    with pytest.raises(SystemExit, match="no text with memory"):
        demo().main(["--model", str(tmp_path / "none")])


def test_the_space_names_the_gradio_that_is_tested():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    pins = (FOLDER.parents[1] / "constraints.txt").read_text(encoding="utf-8")
    version = needs("gradio") and importlib.metadata.version("gradio")
    assert f"sdk_version: {version}\n" in text
    assert f"gradio=={version}\n" in pins


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1300,1000",
        "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # the page must need nothing else
    ):  # fmt: skip
        options.add_argument(argument)
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


class Visitor:
    """What a visitor does and sees."""

    def __init__(self, browser: webdriver.Chrome):
        self.browser = browser
        self.until = WebDriverWait(browser, PATIENCE).until

    def find(self, selector: str) -> WebElement:
        return self.until(lambda _: self.browser.find_element(By.CSS_SELECTOR, selector))

    def press(self, button: str) -> None:
        self.find(f"#{button}").click()

    def set(self, slider: str, value: int) -> None:
        number = self.find(f"#{slider} input[type=number]")
        number.send_keys(Keys.CONTROL, "a")
        number.send_keys(str(value), Keys.TAB)

    def wait_for(self, words: str) -> None:
        self.until(lambda _: words in self.find("#figures").text)

    def wait_for_another(self, picture: str) -> str:
        """The picture that takes the place of `picture`, whole and in its full size."""
        self.until(lambda _: self.picture not in ("", picture))
        self.until(lambda _: self.browser.execute_script(WIDTH) > 300)
        return self.picture

    @property
    def picture(self) -> str:
        return self.browser.execute_script("return document.querySelector('#attention img')?.src ?? ''")

    @property
    def text(self) -> str:
        return self.find("#text textarea").get_property("value")


def endless(writer, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let a press for 1,000 tokens write one piece and then wait to be stopped, which sets the event that is returned."""
    go_on, stopped = writer.go_on, threading.Event()

    def pieces(story, mem_len: int, tokens: int, temperature: float) -> Iterator:
        if tokens < 1000:
            yield from go_on(story, mem_len, tokens, temperature)
            return
        piece = next(go_on(story, mem_len, tokens, temperature))
        try:
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                yield piece
                time.sleep(0.05)
        except GeneratorExit:
            stopped.set()

    monkeypatch.setattr(writer, "go_on", pieces)
    return stopped


@pytest.mark.slow
@pytest.mark.skipif(not (BROWSER and DRIVER), reason="no browser: `apt-get install chromium chromium-driver`")
def test_a_browser_goes_on(writer, browser: webdriver.Chrome, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(demo(), "BEGINNING", "It was the best of times, " * 50)  # more than the box can show
    app = demo()
    stopped_by_visitor = endless(writer, monkeypatch)
    blocks, begun = app.page(writer, "a model"), len(app.BEGINNING)
    try:
        browser.get(app.launch(blocks, prevent_thread_lock=True, server_name="127.0.0.1", quiet=True))
        visitor = Visitor(browser)

        # the text begins as it was told to, and a picture appears
        visitor.press("go-on")
        visitor.wait_for(f"{begun + 200:,} tokens of text; attention sees the last {MEM_LEN};")
        picture, text = visitor.wait_for_another(""), visitor.text
        assert text.startswith(app.BEGINNING)
        assert len(text) == begun + 200

        # the same text goes on, and the picture is of what is new
        visitor.press("go-on")
        visitor.wait_for(f"{begun + 400:,} tokens")
        picture = visitor.wait_for_another(picture)
        assert visitor.text.startswith(text)
        assert len(visitor.text) == begun + 400
        hidden = browser.execute_script(HIDDEN)
        assert hidden["above"] > 100
        assert abs(hidden["below"]) < 2  # what is new is what is seen

        # a longer memory is seen at once
        visitor.set("memory", 4 * MEM_LEN)
        visitor.wait_for(f"sees the last {4 * MEM_LEN};")
        visitor.wait_for_another(picture)

        # it stops in the middle when it is told to, and goes on from there
        text = visitor.text
        visitor.set("tokens", 1000)
        visitor.press("go-on")
        visitor.until(lambda _: len(visitor.text) > len(text))
        visitor.press("stop")
        assert stopped_by_visitor.wait(PATIENCE)
        stopped = visitor.text
        assert len(stopped) == len(text) + app.PIECE
        visitor.set("tokens", 20)
        visitor.press("go-on")
        visitor.until(lambda _: len(visitor.text) >= len(stopped) + 20)  # the last piece may not have been shown
        assert visitor.text.startswith(stopped)
        visitor.set("tokens", 200)

        # and another text forgets this one
        visitor.press("anew")
        visitor.wait_for(f"{begun + 200:,} tokens")
        assert visitor.text != text
        logged = [row["message"] for row in browser.get_log("browser") if row["level"] == "SEVERE"]
        assert not logged
    finally:
        blocks.close()
