"""Relative attention on a GPU: Triton kernels, SDPA with an additive mask, and SDPA without positions.

    python benchmarks/bench_gpu.py              on a GPU: results/gpu_DEVICE.json and .png
    python benchmarks/bench_gpu.py --dry-run    every step at a tiny size on a CPU: shows that it runs, and no speed

Parts (`--parts`). `attention`: milliseconds forward and with gradients, and peak memory, of T queries and K keys. SDPA
without positions is the floor: it does less. `training`: steps of the standard model of WikiText-103 (its recipe), in
bfloat16 by autocast. `generation`: milliseconds of a token behind a full memory, against the sliding window of a
Mistral of the same size, plain and with static memory, which transformers compiles. `tiles`: other tiles for each
kernel (`--tune`); copy the fastest into the tables of `modeling/ops/triton_attention.py`. Medians of `--turns` turns
after two that are not counted.
"""

import argparse
import gc
import itertools
import json
import re
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import yaml
from matplotlib.ticker import NullLocator
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from transformers import MistralConfig, MistralForCausalLM
from triton.runtime.errors import OutOfResources

import transformers_xl as xl
from transformers_xl.evaluation.plots import figure, line, save
from transformers_xl.modeling.ops import triton_attention
from transformers_xl.modeling.ops.relative_attention import BACKENDS, position_scores
from transformers_xl.modeling.ops.triton_tiles import Tile
from transformers_xl.modeling.ops.wide_attention import wide_attention

RESULTS = Path(__file__).parent / "results"
RECIPE = Path(__file__).parent.parent / "transformers_xl" / "runs" / "recipes" / "wikitext-103-standard.yaml"
CANDIDATES = [(32, 32, 4), (64, 32, 4), (64, 64, 4), (64, 64, 8), (128, 64, 4), (128, 64, 8), (128, 128, 8)]


def by_mask(query, key, value, positions, content_bias, position_bias, visible, window, scaling) -> torch.Tensor:
    """The way of the models where there is no backend."""
    length, num_keys = query.shape[2], key.shape[2]
    future = torch.ones(length, num_keys, dtype=torch.bool, device=query.device).triu_(num_keys - length + 1)
    bias = position_scores((query + position_bias[:, None]) * scaling, positions).masked_fill(future, -torch.inf)
    return F.scaled_dot_product_attention(query + content_bias[:, None], key, value, bias, scale=scaling)


def without_positions(query, key, value, positions, content_bias, position_bias, visible, window, scaling):
    mask = causal_lower_right(query.shape[2], key.shape[2])
    return F.scaled_dot_product_attention(query, key, value, mask, scale=scaling)


def forms(device: str) -> dict[str, Callable[..., torch.Tensor]]:
    """Names as in the table. A CPU has other backends: there the names say what would be measured."""
    on_gpu = device == "cuda"
    return {
        "Triton kernels": triton_attention.triton_relative_attention if on_gpu else wide_attention,
        "SDPA, additive mask": by_mask,
        "SDPA without positions": without_positions,
    }


def milliseconds(run: Callable[[], Any], turns: int) -> float:
    taken = []
    for turn in range(turns + 2):
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        if turn >= 2:
            taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measured(run: Callable[[], Any], turns: int) -> dict[str, float | None]:
    """Milliseconds, and bytes at the peak beyond what was there before; None where memory does not suffice."""
    if not torch.cuda.is_available():
        return {"ms": milliseconds(run, turns), "peak_bytes": None}
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    try:
        taken = milliseconds(run, turns)
    except torch.OutOfMemoryError:
        return {"ms": None, "peak_bytes": None}
    return {"ms": taken, "peak_bytes": torch.cuda.max_memory_allocated() - before}


def attention(args: argparse.Namespace) -> dict[str, list[dict]]:
    """By form, and by T = K or fewer queries: one row for each width, T and K, forward and with gradients; 16 x 1024
    numbers wide in all."""
    rows: dict[str, list[dict]] = {}
    shapes = sorted({(size, size) for size in args.sizes} | {(min(args.sizes), size) for size in args.sizes})
    for width, (length, num_keys) in itertools.product(args.widths, shapes):
        heads, batch = max(1, args.hidden_size // width), max(1, args.tokens // num_keys)
        sizes = [(batch, heads, length, width), *[(batch, heads, num_keys, width)] * 2, (heads, num_keys + 1, width)]
        given = [
            torch.randn(size, device=args.device, dtype=torch.bfloat16 if args.device == "cuda" else torch.float32)
            for size in (*sizes, *[(heads, width)] * 2)
        ]
        for (name, form), learns in itertools.product(forms(args.device).items(), (False, True)):
            tensors = [each.detach().requires_grad_(learns) for each in given]
            run = step_of(form, tensors, width**-0.5, learns)
            row = {"width": width, "T": length, "K": num_keys, "batch": batch, "gradients": learns}
            row |= measured(run, args.turns)
            rows.setdefault(name if length == num_keys else f"{name}, fewer queries", []).append(row)
            print(name, *row.values(), flush=True)
    return rows


def step_of(form: Callable, tensors: list[torch.Tensor], scaling: float, learns: bool) -> Callable[[], None]:
    read = tensors if form is not without_positions else tensors[:3]

    def run() -> None:
        with torch.set_grad_enabled(learns):
            output = form(*tensors, None, None, scaling)
            if learns:
                torch.autograd.grad(output, read, torch.ones_like(output))

    return run


def in_turn(run: Callable[[], list[dict]]) -> list[dict]:
    """With the kernels and without them."""
    rows, kept = [], dict(BACKENDS)
    for name in ("Triton kernels", "SDPA, additive mask"):
        rows += [{"form": name} | row for row in run()]
        print(*rows[-1].values(), flush=True)
        BACKENDS.pop("triton", None)
    BACKENDS.update(kept)
    return rows


def training(args: argparse.Namespace) -> list[dict]:
    """Steps of a segment behind a full memory, with AdamW."""
    fields = yaml.safe_load(RECIPE.read_text())["model"] | args.small
    fields.pop("variant")
    model = xl.TransformerXLForCausalLM(xl.TransformerXLConfig(**fields)).to(args.device)
    ids = torch.randint(fields["vocab_size"], (args.batch, fields["segment_length"]), device=args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2.5e-4)

    def step() -> None:
        with torch.autocast(args.device, torch.bfloat16):
            loss = model(ids, mems=mems, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with torch.no_grad(), torch.autocast(args.device, torch.bfloat16):
        mems = model(ids).mems

    def rows() -> list[dict]:
        found = measured(step, args.turns)
        return [found | {"tokens_per_second": found["ms"] and 1000 * ids.numel() / found["ms"]}]

    return in_turn(rows)


@torch.inference_mode()
def generation(args: argparse.Namespace) -> list[dict]:
    """Models of the same size behind as many tokens as they remember."""
    size = {"vocab_size": 32_000, "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16}
    size |= {key: value for key, value in args.small.items() if key in size}
    common = {"max_new_tokens": args.new_tokens, "min_new_tokens": args.new_tokens, "do_sample": False}
    rows = []
    for memory, static in itertools.product(args.memories, (False, True)):
        fields = size | {"intermediate_size": 4 * size["hidden_size"]}
        ours = xl.TransformerXLForCausalLM(xl.TransformerXLConfig(**fields, mem_len=memory))
        window = {"num_key_value_heads": size["num_attention_heads"], "sliding_window": memory}
        theirs = MistralForCausalLM(MistralConfig(**fields, **window))
        for name, model in (("Transformer-XL", ours), ("Mistral", theirs)):
            model = model.to(args.device, torch.bfloat16 if args.device == "cuda" else torch.float32).eval()
            ids = torch.randint(size["vocab_size"], (1, memory), device=args.device)
            more = {"cache_implementation": "static"} if static else {}
            long, short = (
                common | {"max_new_tokens": count, "min_new_tokens": count} for count in (args.new_tokens, 1)
            )
            both = [measured(partial(model.generate, ids, **each, **more), args.turns) for each in (long, short)]
            per_token = (both[0]["ms"] - both[1]["ms"]) / (args.new_tokens - 1)
            row = {"model": name, "memory": memory, "static": static, "ms": per_token}
            rows.append(row | {"peak_bytes": both[0]["peak_bytes"]})
            print(*rows[-1].values(), flush=True)
    return rows


def tiles(args: argparse.Namespace) -> list[dict]:
    """Each kernel with the tiles of CANDIDATES, the others as they are; None where a tile does not fit on the GPU."""
    rows, tiles_of_kernels = [], triton_attention.tiles_of(torch.device(args.device))
    for (kernel, width, size), stages in itertools.product(list(tiles_of_kernels), (1, 2, 3)):
        length, kept = 1 if kernel == "attend_part" else max(args.sizes), tiles_of_kernels[kernel, width, size]
        dtype = torch.float32 if size == 4 or args.device == "cpu" else torch.bfloat16
        heads = (1, max(1, args.hidden_size // width))
        shapes = [(*heads, length, width), *[(*heads, max(args.sizes), width)] * 2]
        shapes += [(heads[1], max(args.sizes) + 1, width), *[(heads[1], width)] * 2]
        learns = kernel.startswith("grad")
        given = [torch.randn(each, device=args.device, dtype=dtype).requires_grad_(learns) for each in shapes]
        run = step_of(forms(args.device)["Triton kernels"], given, width**-0.5, learns)
        for tall, wide, warps in CANDIDATES:
            if kernel != "attend_part" and tall != wide and (learns or tall != 2 * wide):
                continue
            tiles_of_kernels[kernel, width, size] = tile = Tile(tall, wide, warps, stages)
            try:
                taken = milliseconds(run, args.turns)
            except OutOfResources:
                taken = None
            rows.append({"kernel": kernel, "width": width, "bytes": size, "tile": tile, "ms": taken})
            print(*rows[-1].values(), flush=True)
        tiles_of_kernels[kernel, width, size] = kept
    return rows


PARTS = {"attention": attention, "training": training, "generation": generation}


def draw(result: dict[str, Any], path: Path) -> None:
    """Milliseconds and peak memory of T = K, forward and with gradients, each width a row."""
    forms = {name: rows for name, rows in result["attention"].items() if rows[0]["T"] == rows[0]["K"]}
    widths, lengths = (sorted({row[field] for rows in forms.values() for row in rows}) for field in ("width", "T"))
    picture, axes = figure(columns=3, rows=len(widths), width=4.2, height=3.4)
    kinds = [("forward", "ms", False), ("with gradients", "ms", True), ("memory, with gradients", "peak_bytes", True)]
    for (row_of_axes, width), (column, kind) in itertools.product(enumerate(widths), enumerate(kinds)):
        axis, (title, value, learns) = axes[row_of_axes, column], kind
        for index, (name, rows) in enumerate(forms.items()):
            wanted = {"width": width, "gradients": learns}
            points = [(row["T"], row[value]) for row in rows if wanted.items() <= row.items() and row[value]]
            if points:  # a CPU tells no peak
                axis.loglog(*zip(*points, strict=True), **line(index, len(forms)), label=name)
        axis.set_xticks(lengths, map(str, lengths))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set(xlabel="T = K", ylabel="bytes" if value == "peak_bytes" else "ms")
        axis.set_title(f"{title}, heads of width {width}")
    axes[0, 0].legend(fontsize="small")
    picture.suptitle(result["device"])
    save(picture, path)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192], help="T and K")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128], help="of a head")
    parser.add_argument("--hidden-size", type=int, default=1024, help="of all heads of a row")
    parser.add_argument("--tokens", type=int, default=8192, help="of a batch, over its rows")
    parser.add_argument("--batch", type=int, default=60, help="rows of the training")
    parser.add_argument("--memories", type=int, nargs="+", default=[1600, 3200])
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tune", action="store_true", help="measure tiles alone")
    parser.add_argument("--dry-run", action="store_true", help="on a CPU, at a tiny size")
    parser.add_argument("--output", type=Path, default=RESULTS, help="a folder")
    args = parser.parse_args()
    args.device, args.small = "cpu" if args.dry_run else "cuda", {}
    if args.dry_run:
        args.sizes, args.widths, args.hidden_size, args.tokens, args.turns = [4, 8], [8], 16, 8, 1
        args.batch, args.memories, args.new_tokens = 2, [8], 3
        args.small = {"vocab_size": 37, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        args.small |= {"head_dim": 8, "intermediate_size": 16, "cutoffs": [], "segment_length": 4, "mem_len": 4}
    elif not torch.cuda.is_available():
        parser.error("CUDA is not there: `--dry-run` goes through all steps on a CPU.")
    return args


def main() -> None:
    args = options()
    torch.manual_seed(0)
    device = "CPU, dry run" if args.dry_run else torch.cuda.get_device_name()
    result = {"device": device, "torch": torch.__version__, "triton": triton.__version__, "turns": args.turns}
    name = re.sub(r"\W+", "_", f"gpu_tiles_{device}" if args.tune else f"gpu_{device}").strip("_").lower()
    file = args.output / f"{name}.json"
    held = json.loads(file.read_text()) if file.is_file() else {}
    if result.items() <= held.items():
        result = held  # parts that are not measured now stay
    for part in (tiles,) if args.tune else [PARTS[each] for each in args.parts]:
        result[part.__name__] = part(args)
        file.write_text(json.dumps(result, indent=1) + "\n")  # a lent GPU may go at any time
    if "attention" in result:
        draw(result, args.output / f"{name}.png")


if __name__ == "__main__":
    main()
