"""What a window saves as texts get longer: Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, figure 1.

Times one layer of attention with relative positions, forward and in training (forward and backward), against the length of
the text: dense, and with a window, without gaps and with gaps in half of the heads. The forms take turns. Peaks of memory
are those of a process of their own. Writes `results/longformer.json` and `.png`.
"""

import argparse
import json
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from transformers_xl import CausalLongformerConfig, TransformerXLConfig
from transformers_xl.evaluation.plots import figure, save, styled
from transformers_xl.modeling.layers.attention import RelativeAttention, RelativePositions
from transformers_xl.modeling.layers.banded_attention import BandedAttention
from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment

RESULTS = Path(__file__).parent / "results"
SIZE = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 1}
WINDOW, DILATION = 256, 4
FORMS = ("dense", f"window of {WINDOW}", f"window of {WINDOW}, a head dilated by {DILATION}")
TASKS = ("forward", "training")


class Attention(nn.Module):
    """One layer of attention of one of the forms, with its positions."""

    def __init__(self, form: str):
        super().__init__()
        if form == "dense":
            config = TransformerXLConfig(same_length=False, **SIZE)
            self.attention = RelativeAttention(config, layer_idx=0)
        else:
            dilation = [1, DILATION] if "dilated" in form else 1
            config = CausalLongformerConfig(
                attention_window=WINDOW, attention_dilation=[dilation], mem_len=WINDOW * DILATION, **SIZE
            )
            self.attention = BandedAttention(config, layer_idx=0)
        config._attn_implementation = "sdpa"
        self.positions = RelativePositions(config)
        self.reach = None if form == "dense" else config.sliding_window

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        length = hidden_states.shape[1]
        table = self.positions(min(length, self.reach or length), hidden_states)
        none = torch.zeros(len(hidden_states), dtype=torch.long)
        segment = Segment.of(0, none, none, length, Call()).seen_by(0, 0, self.reach)
        context = LayerContext(segment, self.reach, keep=0, positions=table, bias=self.positions.bias())
        return self.attention(hidden_states, *self.attention.project(hidden_states), context)[0]


def task(form: str, kind: str) -> Callable[[int], None]:
    attention = Attention(form)

    def run(length: int) -> None:
        hidden_states = torch.randn(1, length, SIZE["hidden_size"])
        with torch.set_grad_enabled(kind == "training"):
            output = attention(hidden_states)
        if kind == "training":
            output.square().mean().backward()

    return run


def peak(form: str, kind: str, length: int) -> int:
    """Bytes that a first call takes beyond what the process had before it."""
    run = task(form, kind)
    run(64)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    run(length)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def peaks(lengths: list[int]) -> dict[int, dict[str, float]]:
    """MiB of every form and task, each in a process that has done nothing before."""
    rows: dict[int, dict[str, float]] = {}
    for length in lengths:
        rows[length] = {}
        for form in FORMS:
            for kind in TASKS:
                with multiprocessing.get_context("fork").Pool(1) as pool:
                    rows[length][f"{kind}, {form}"] = round(pool.apply(peak, (form, kind, length)) / 2**20, 1)
    return rows


def times(lengths: list[int], seconds: float) -> dict[int, dict[str, float]]:
    """Median milliseconds of the processor, all forms and tasks in turn: about so many seconds per length, at least twice.

    Processor time is that of all threads, and the same on a machine that others use too.
    """
    runs = {f"{kind}, {form}": task(form, kind) for form in FORMS for kind in TASKS}
    for run in runs.values():
        run(256)
    rows: dict[int, dict[str, float]] = {}
    for length in lengths:
        taken: dict[str, list[float]] = {name: [] for name in runs}
        begin = time.process_time()
        while len(taken[next(iter(runs))]) < 2 or time.process_time() - begin < seconds:
            for name, run in runs.items():
                start = time.process_time()
                run(length)
                taken[name].append(time.process_time() - start)
        rows[length] = {name: 1000 * statistics.median(values) for name, values in taken.items()}
    return rows


@styled
def draw(rows: list[dict], path: Path) -> None:
    picture, (axes,) = figure(columns=2, height=4.5)
    for axis, quantity in zip(axes, ("milliseconds", "MiB"), strict=True):
        for form, color in zip(FORMS, ("tab:red", "tab:blue", "tab:green"), strict=True):
            for kind, style in zip(TASKS, ("--o", "-o"), strict=True):
                values = [row[quantity][f"{kind}, {form}"] for row in rows]
                axis.plot([row["length"] for row in rows], values, style, color=color, label=f"{form}, {kind}")
        axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel=quantity)
        axis.set_xticks([row["length"] for row in rows], [f"{row['length'] // 1024}k" for row in rows], minor=False)
        axis.minorticks_off()
    axes[0].set_title("processor time")
    axes[1].set_title("peak memory")
    axes[0].legend()
    save(picture, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each length, and at least two rounds")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    args = parser.parse_args()
    # first the peaks: a process that has computed on several threads cannot be forked
    memory = peaks(args.lengths)
    torch.manual_seed(0)
    duration = times(args.lengths, args.seconds)
    rows = [{"length": n, "milliseconds": duration[n], "MiB": memory[n]} for n in args.lengths]
    print("| tokens | " + " | ".join(f"{kind}, {form}" for kind in TASKS for form in FORMS) + " |")
    print("|---:" * (1 + len(FORMS) * len(TASKS)) + "|")
    for row in rows:
        cells = [
            f"{row['milliseconds'][f'{kind}, {form}']:.3g} ms, {row['MiB'][f'{kind}, {form}']:.3g} MiB"
            for kind in TASKS for form in FORMS
        ]  # fmt: skip
        print(f"| {row['length']} | {' | '.join(cells)} |")
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    result = {"size": SIZE, "window": WINDOW, "dilation": DILATION, "torch": torch.__version__, "machine": machine,
              "rows": rows}  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "longformer.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(rows, RESULTS / "longformer.png")


if __name__ == "__main__":
    main()
