"""A page on which a model writes without end, and shows what it reads of its memory.

    python examples/space/app.py --model DIR_OR_REPO

Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 3.2: the memory has a fixed size, so every piece of the text
costs the same, however long the text has become.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import gradio as gr
import torch
from matplotlib.figure import Figure
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from transformers_xl.data.text_beginning import beginning_of, begun
from transformers_xl.evaluation.attention_maps import attention_atlas, attention_rows
from transformers_xl.evaluation.attention_plots import draw_atlas
from transformers_xl.modeling.auto import VARIANTS, register
from transformers_xl.modeling.memory.memory_value import Memory

QUICKSTART = Path("build/quickstart/model")  # where `make quickstart` leaves it
BEGINNING = "The import statement"
PIECE = 10  # tokens between two updates of the page
SHOWN = 4000  # tokens of the text that the page shows, and that a session keeps
ABOUT = """# Text that remembers
Press **Go on**, as often as you like: the model continues its own text, without reading it again. All that it knows of the
past is a **memory of fixed size**, so a token costs the same after a hundred tokens as after a million."""
PICTURE = """### What it reads of its memory
Each row is an attention head, each column a distance: at the left the token itself, at the right the oldest memory.
**Dark** means much attention, **yellow** little. Right of a dashed line the memory is longer than it was in training. The
picture is drawn anew after every press, and when the memory changes."""
# what they remember depends on more of the text than a number of tokens before: so do the states of recurrent variants
NOT_OF_A_WINDOW = ("absolute_transformer_xl", "complex_order_transformer", "compressive_transformer")
SCROLL = "() => { const box = document.querySelector('#text textarea'); box.scrollTop = box.scrollHeight; }"


@dataclass(frozen=True)
class Story:
    """A text and the memory of it; nothing in it grows without end.

    Attributes:
        ids: the last tokens of the text, as many as are shown or as the memory can depend on.
        written: tokens in all, the beginning included.
        memory: what the model remembers: all but the last token. None before anything was read.
        mem_len: the length that the memory was made with.
        pace: milliseconds per token at the latest press of the button, and at the first.
    """

    ids: list[int] = field(default_factory=list)
    written: int = 0
    memory: Memory | None = None
    mem_len: int = 0
    pace: tuple[float, float] | None = None


class Writer:
    """A model and its tokenizer, which continue stories. One call at a time: the length of the memory is the model's.

    Raises:
        ValueError: the model is no language model with a memory.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.model, self.tokenizer = model.eval(), tokenizer
        self.trained = model.config.mem_len
        self.longest = 4 * self.trained if self.has_length(4 * self.trained) else self.trained
        self.shortest = next((each for each in range(1, self.trained) if self.has_length(each)), self.trained)
        has_states = VARIANTS[model.config.model_type].recurrent or getattr(model.config, "kind", None) == "tokens"
        self.is_window = not has_states and model.config.model_type not in NOT_OF_A_WINDOW
        self.first = beginning_of(tokenizer)  # what a model that has read nothing expects
        try:
            attention_rows(model)
            self.no_picture = ""
        except ValueError as error:  # the paper's attention has no weights to show
            self.no_picture = str(error)

    def has_length(self, mem_len: int) -> bool:
        """Whether the model runs with so long a memory."""
        try:
            self.model.config.with_mem_len(mem_len)
        except ValueError:
            return False
        return True

    @classmethod
    def load(cls, name: str) -> "Writer":
        """The model in a folder or a repository, on the GPU where there is one."""
        register()
        config = AutoConfig.from_pretrained(name)
        row = VARIANTS.get(config.model_type)
        if row is None or row.causal_lm_class is None or row.memory == "none" or not config.mem_len:
            raise ValueError(
                f"`model`={name!r} is a {config.model_type!r} that writes no text with memory: give a folder that "
                "`make quickstart` or `transformers-xl train` wrote."
            )
        model = AutoModelForCausalLM.from_pretrained(name, config=config)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(model.to(device), AutoTokenizer.from_pretrained(name))

    def begin(self, beginning: str) -> Story:
        """A story of which nothing is remembered yet."""
        ids = self.tokenizer(beginning, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ValueError("The beginning is empty: write at least one character.")
        ids = begun(ids, self.first)
        return Story(ids, len(ids))

    def remember(self, story: Story, mem_len: int) -> Story:
        """The story with a memory of `mem_len` positions, or of the nearest number that the model can have: a token sees
        itself at least.

        One of another length is made anew from the tokens it can know. That of a model which also remembers states,
        compressed vectors or places in the text goes on: it is cut, or grows with what is written.
        """
        mem_len = min(max(self.shortest, mem_len), self.longest)
        self.model.resize_memory(mem_len)
        if story.memory is not None and (story.mem_len == mem_len or not self.is_window):
            return replace(story, mem_len=mem_len)
        known = story.ids[-1 - self.reach(mem_len) : -1] if self.is_window else story.ids[:-1]
        past = torch.tensor([begun(known, self.first)], device=self.model.device)
        memory = None
        with torch.no_grad():
            for segment in past.split(self.model.config.segment_length, dim=1) if past.numel() else ():
                memory = self.model(segment, mems=memory, use_cache=True, logits_to_keep=1).mems
        return replace(story, memory=memory, mem_len=mem_len)

    def reach(self, mem_len: int) -> int:
        """Positions that a window can depend on: `mem_len` more with every layer, what its two convolutions or its local
        RNNs read of tokens before, and what the longest n-gram does."""
        config = self.model.config
        before = 2 * (getattr(config, "conv_kernel_size", 1) - 1)
        before += getattr(config, "num_local_rnns", 0) * (getattr(config, "local_window", 1) - 1)
        ngram = max(getattr(config, "ngram_orders", None) or [1]) - 1
        return (mem_len + before) * config.num_hidden_layers + ngram

    def go_on(self, story: Story, mem_len: int, tokens: int, temperature: float) -> Iterator[Story]:
        """The story after every few of the next `tokens`."""
        story = self.remember(story, mem_len)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        kept = max(SHOWN, self.reach(self.longest) + 1)
        first, seconds = story.pace, 0.0
        for done in range(0, tokens, PIECE):
            count = min(PIECE, tokens - done)
            start = time.perf_counter()
            last = torch.tensor([story.ids[-1:]], device=self.model.device)
            result = self.model.generate(
                last,
                mems=story.memory,
                min_new_tokens=count,
                max_new_tokens=count,
                return_dict_in_generate=True,
                **sampling,
            )
            seconds += time.perf_counter() - start
            pace = 1000 * seconds / (done + count)
            story = replace(
                story,
                ids=(story.ids + result.sequences[0, 1:].tolist())[-kept:],
                written=story.written + count,
                memory=result.mems,
                pace=(pace, first[1] if first else pace),
            )
            yield story

    def text(self, story: Story) -> str:
        """What the page shows: the end of the text."""
        before = "[...] " if story.written > len(story.ids[-SHOWN:]) else ""
        return before + self.tokenizer.decode(story.ids[-SHOWN:], skip_special_tokens=True)

    def figures(self, story: Story) -> str:
        """One line of figures."""
        seen = min(self.model.config.sliding_window, story.written)
        line = f"**{story.written:,}** tokens of text; attention sees the last **{seen:,}**"
        if story.pace:
            line += f"; **{story.pace[0]:.1f} ms** per token (at the first press {story.pace[1]:.1f} ms)"
        return line

    def picture(self, story: Story) -> Figure | None:
        """Mean attention of every head by distance, over the last tokens that a full memory stands behind."""
        mem_len = max(self.shortest, story.mem_len)
        ids = torch.tensor(story.ids[-mem_len - max(mem_len, 64) :])
        if self.no_picture or len(ids) < 2:
            return None
        figure = draw_atlas(attention_atlas(self.model, ids, skip=min(mem_len, len(ids) // 2)))
        axes = figure.axes[0]
        axes.axvline(self.trained - 0.5, color="black", linestyle="--")
        axes.set_xlim(-0.5, max(mem_len, 2) - 0.5)
        axes.locator_params("x", integer=True)
        return figure


def page(writer: Writer, name: str) -> gr.Blocks:
    """The page; its visitors take turns, for there is one model."""

    def go_on(
        story: Story | None, beginning: str, mem_len: int, tokens: int, temperature: float
    ) -> Iterator[tuple[Story, str, str, object]]:
        try:
            story = story or writer.begin(beginning)
        except ValueError as error:
            raise gr.Error(str(error)) from None
        for new in writer.go_on(story, mem_len, tokens, temperature):
            story = new
            yield story, writer.text(story), writer.figures(story), gr.skip()
        yield story, writer.text(story), writer.figures(story), writer.picture(story)

    def begin_anew(*inputs):
        yield from go_on(None, *inputs[1:])

    def resize(story: Story | None, mem_len: int) -> tuple[Story | None, object, object]:
        if story is None:
            return None, gr.skip(), gr.skip()
        story = writer.remember(story, mem_len)
        return story, writer.figures(story), writer.picture(story)

    with gr.Blocks(title="Text that remembers", analytics_enabled=False) as blocks:
        story = gr.State(None)
        gr.Markdown(ABOUT)
        with gr.Row():
            with gr.Column(scale=5):
                beginning = gr.Textbox(BEGINNING, label="How the text begins", lines=1)
                text = gr.Textbox(
                    label="The text", lines=16, max_lines=16, interactive=False, elem_id="text",
                    placeholder="Press Go on.",
                )  # fmt: skip
                with gr.Row():
                    more = gr.Button("Go on", variant="primary", elem_id="go-on")
                    stop = gr.Button("Stop", elem_id="stop")
                    anew = gr.Button("Begin anew", elem_id="anew")
                figures = gr.Markdown("Nothing written yet.", elem_id="figures")
            with gr.Column(scale=6):
                mem_len = gr.Slider(
                    writer.shortest, max(writer.longest, writer.shortest + 1), writer.trained, step=1, elem_id="memory",
                    label="Length of the memory (tokens)", interactive=writer.shortest < writer.longest,
                    info=f"{writer.trained} in training; longer works too; at 1 it sees little more than the last token",
                )  # fmt: skip
                with gr.Row():
                    tokens = gr.Slider(PIECE, 1000, 200, step=PIECE, elem_id="tokens", label="Tokens per press")
                    temperature = gr.Slider(0, 1.5, 0.7, step=0.1, label="Temperature")
                gr.Markdown(writer.no_picture or PICTURE)
                plot = gr.Plot(show_label=False, visible=not writer.no_picture, elem_id="attention")
        kind = type(writer.model).__name__
        gr.Markdown(f"Model: `{name}`, a {kind} with {writer.model.num_parameters():,} parameters.")

        turns = {"concurrency_id": "model", "concurrency_limit": 1}
        inputs, outputs = [story, beginning, mem_len, tokens, temperature], [story, text, figures, plot]
        writing = [
            button.click(function, inputs, outputs, show_progress="hidden", **turns)
            for button, function in ((more, go_on), (anew, begin_anew))
        ]
        stop.click(None, cancels=writing)
        text.change(None, js=SCROLL)  # what is new is at the end
        turns["trigger_mode"] = "always_last"  # of a slider that is drawn only the end counts
        mem_len.change(resize, [story, mem_len], [story, figures, plot], show_progress="hidden", **turns)
    return blocks


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=os.environ.get("MODEL"), help="folder or repository; else variable MODEL")
    parser.add_argument("--port", type=int, help="of the page; the first free one from 7860 on when not given")
    given = parser.parse_args(arguments)
    name = given.model or (str(QUICKSTART) if QUICKSTART.is_dir() else None)
    if name is None:
        sys.exit(
            "No model: `make quickstart` trains one in a few minutes; or give `--model DIR_OR_REPO`, or set MODEL."
        )
    try:
        writer = Writer.load(name)
    except (ValueError, OSError) as error:
        sys.exit(f"Error: {error}")
    launch(page(writer, name), server_port=given.port)


def launch(blocks: gr.Blocks, **options) -> str:
    """Serve the page and return its address. It is written in the fonts of the visitor's system, and loads nothing
    from elsewhere."""
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    return blocks.launch(theme=gr.themes.Soft(primary_hue="blue", **fonts), footer_links=[], **options)[1]


if __name__ == "__main__":
    main()
