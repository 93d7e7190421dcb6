"""What learned spans save: Sukhbaatar et al., 2019, https://arxiv.org/abs/1905.07799, section 3.

Trains a small model whose heads learn their spans on the text that every CPython ships, and draws them by layer and head.
Then the same spans, in models of different bounds, are read twice: with a fixed span, every layer reading `max_span`
positions behind its masks, and trimmed to the longest span of each layer, which gives the same result. Times are taken in
turns. Writes `results/adaptive_span.json` and `.png`; `--draw` draws the latter again.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
import transformers
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from transformers_xl import AdaptiveSpanConfig, AdaptiveSpanForCausalLM, Memory, MemoryCache
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.plots import figure, save, styled
from transformers_xl.modeling.memory.memory_value import LayerMemory

RESULTS = Path(__file__).parent / "results"
SEGMENT, LANES = 64, 8


def build(max_span: int, **fields) -> AdaptiveSpanForCausalLM:
    transformers.set_seed(0)
    config = AdaptiveSpanConfig(
        vocab_size=256, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512,
        mem_len=max_span, segment_length=SEGMENT, dropout=0.0,
        initializer_range=0.02, **fields,  # not the default of this width, which is younger than the figures
    )  # fmt: skip
    return AdaptiveSpanForCausalLM(config)


def train(model: AdaptiveSpanForCausalLM, steps: int) -> list[float]:
    """The spans are trimmed after every step. The loss of each step, that of the spans included."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode("utf-8")
    stream = TextStream(np.frombuffer(text, dtype=np.uint8), SEGMENT, LANES)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-3)
    mems, losses = None, []
    for step in range(steps):
        items = [stream[step % stream.segments * LANES + lane] for lane in range(LANES)]
        ids, targets = (torch.stack([item[name] for item in items]) for name in ("input_ids", "shift_labels"))
        output = model(ids, shift_labels=targets, mems=mems)
        mems = output.mems
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        model.trim_spans()
        losses.append(output.loss.item())
    return losses


def with_spans(max_span: int, lengths: torch.Tensor, trimmed: bool) -> AdaptiveSpanForCausalLM:
    """A model whose heads have spans of `lengths` positions, `(layers, heads)`."""
    model = build(max_span)
    for layer, spans in zip(model.model.layers, lengths, strict=True):
        layer.self_attn.span_mask.span.data = spans / max_span
    if trimmed:
        model.trim_spans()
    return model


def full_memory(model: AdaptiveSpanForCausalLM, rows: int) -> Memory:
    generator = torch.Generator().manual_seed(0)
    config = model.config
    states = torch.randn(config.num_hidden_layers, rows, config.max_span, config.hidden_size, generator=generator)
    lengths = torch.full((rows,), max(config.layer_mem_lens))
    return Memory(tuple(LayerMemory((each,)) for each in states), lengths, lengths).newest(config.layer_mem_lens)


def bytes_for_backward(run: Callable[[], torch.Tensor], model: torch.nn.Module) -> int:
    """Bytes that the forward pass keeps for the backward pass, weights aside."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = run()
    del loss
    return sum(size for size, _ in kept.values())


class Subject:
    """One model with a full memory, and what is measured of it."""

    def __init__(self, max_span: int, lengths: torch.Tensor, trimmed: bool):
        self.model = with_spans(max_span, lengths, trimmed)
        self.ids = torch.randint(0, 256, (LANES, SEGMENT), generator=torch.Generator().manual_seed(0))
        self.mems = full_memory(self.model, LANES)
        with torch.no_grad():
            self.cache = MemoryCache(self.mems.rows(slice(1)))
        self.times: dict[str, list[float]] = {"training step": [], "generated token": []}

    def loss(self) -> torch.Tensor:
        return self.model.train()(self.ids, labels=self.ids, mems=self.mems).loss

    def train_once(self) -> None:
        self.model.zero_grad()
        self.loss().backward()

    @torch.inference_mode()
    def generate_once(self) -> None:
        for token in self.ids[0, :16]:
            self.model.eval()(token.view(1, 1), past_key_values=self.cache)

    def time(self) -> None:
        for name, run, count in (("training step", self.train_once, 1), ("generated token", self.generate_once, 16)):
            start = time.perf_counter()
            run()
            self.times[name].append(1000 * (time.perf_counter() - start) / count)

    def row(self) -> dict[str, float]:
        cache = sum(states.nbytes for window in self.cache.memory.windows for states in window.buffer.tensors)
        return {
            **{f"ms per {name}": statistics.median(times[1:]) for name, times in self.times.items()},
            "MiB for the backward pass": bytes_for_backward(self.loss, self.model) / 2**20,
            "KiB of keys and values per row": cache / 2**10,
        }


def measure(max_span: int, lengths: torch.Tensor, repeats: int) -> dict:
    lengths = lengths.clamp(max=max_span)
    subjects = {
        "fixed": Subject(max_span, lengths, trimmed=False),
        "trimmed": Subject(max_span, lengths, trimmed=True),
    }
    with torch.no_grad():
        fixed, trimmed = (each.model.eval()(each.ids, mems=each.mems).logits for each in subjects.values())
    for _ in range(repeats + 1):
        for subject in subjects.values():
            subject.time()
    return {
        "max_span": max_span,
        "layer_spans": subjects["trimmed"].model.config.layer_spans,
        "largest difference of logits": (fixed - trimmed).abs().max().item(),
        **{name: subject.row() for name, subject in subjects.items()},
    }


def draw_spans(spans: torch.Tensor, axes: Axes) -> None:
    """How many positions each head sees, `(layers, heads)` integers, as `model.spans()` says."""
    axes.grid(visible=False)
    axes.imshow(spans, cmap="Greys", vmin=0, vmax=1.5 * int(spans.max()))
    for layer, row in enumerate(spans.tolist()):
        for head, span in enumerate(row):
            axes.text(head, layer, str(span), ha="center", va="center")
    axes.set(xlabel="head", ylabel="layer", title="learned spans, in positions")
    axes.set_xticks(range(spans.shape[1]))
    axes.set_yticks(range(spans.shape[0]))


@styled
def draw(result: dict, path: Path) -> None:
    picture, (axes,) = figure(columns=5, width=3.6, height=3.6)
    draw_spans(torch.tensor(result["spans"]), axes[0])
    rows = result["rows"]
    bounds = [row["max_span"] for row in rows]
    for name, panel in zip(rows[0]["fixed"], axes[1:], strict=True):
        for kind, style, color in (("fixed", "--s", "dimgray"), ("trimmed", "-o", "black")):
            values = [row[kind][name] for row in rows]
            panel.plot(bounds, values, style, color=color, label=f"{kind} span")
            for bound, value in zip(bounds, values, strict=True):
                panel.annotate(f"{value:,.3g}" if value < 100 else f"{value:,.0f}", (bound, value), (0, 6), ha="center",
                               textcoords="offset points", fontsize="small")  # fmt: skip
        panel.set(xscale="log", yscale="log", xlabel="max_span", title=f"{name} (log scale)")
        panel.set_xticks(bounds, bounds)
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:,.0f}")
        panel.minorticks_off()
        panel.margins(0.15)
    axes[1].legend()
    save(picture, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--span-loss-coef", type=float, default=2e-5)
    parser.add_argument("--initial-span", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bounds", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--draw", action="store_true", help="draw results/adaptive_span.json, and measure nothing")
    args = parser.parse_args()
    if args.draw:
        return draw(json.loads((RESULTS / "adaptive_span.json").read_text()), RESULTS / "adaptive_span.png")
    model = build(1024, span_loss_coef=args.span_loss_coef, initial_span=args.initial_span)
    losses = train(model, args.steps)
    print(f"loss {losses[0]:.2f} to {np.mean(losses[-20:]):.2f}, spans {model.spans().tolist()}", flush=True)
    with torch.no_grad():
        lengths = torch.stack([layer.self_attn.span_mask.lengths() for layer in model.model.layers])
    rows = []
    for bound in args.bounds:
        rows.append(measure(bound, lengths, args.repeats))
        print(json.dumps(rows[-1]), flush=True)
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    result = {
        **{name: getattr(args, name) for name in ("steps", "span_loss_coef", "initial_span", "repeats")},
        "trained_max_span": 1024, "segment": SEGMENT, "lanes": LANES, "torch": torch.__version__, "machine": machine,
        "losses": [round(loss, 4) for loss in losses], "spans": model.spans().tolist(), "rows": rows,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "adaptive_span.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result, RESULTS / "adaptive_span.png")


if __name__ == "__main__":
    main()
