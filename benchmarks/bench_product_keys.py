"""What a product-key memory costs as its slots grow: Lample et al., 2019, https://arxiv.org/abs/1907.05242, section 3.2.

Times one layer, forward and backward, against the number of slots, beside a flat memory that compares each query with every
slot's key. The half keys cost sqrt(slots); what grows with the slots themselves is the dense gradient of the values and
the step of the optimizer, so each is timed on its own, and with sparse gradients. Writes `results/product_keys.json` and
`.png`.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from transformers_xl import PKMTransformerConfig
from transformers_xl.evaluation.plots import figure, save, styled
from transformers_xl.modeling.layers.product_key_memory import ProductKeyMemory

RESULTS = Path(__file__).parent / "results"
TOKENS, WIDTH, HEADS, TOPK, KEY_DIM = 512, 256, 4, 32, 128


class FlatMemory(nn.Module):
    """The same memory with one whole key per slot: every score is computed."""

    def __init__(self, slots: int):
        super().__init__()
        self.query = nn.Linear(WIDTH, HEADS * KEY_DIM)
        self.keys = nn.Parameter(torch.randn(HEADS, slots, KEY_DIM) * KEY_DIM**-0.5)
        self.values = nn.EmbeddingBag(slots, WIDTH, mode="sum")

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        query = self.query(hidden_states.flatten(0, 1)).unflatten(-1, (HEADS, -1))
        best, slots = torch.einsum("nhd,hkd->nhk", query, self.keys).topk(TOPK, dim=-1)
        read = self.values(slots.flatten(1), per_sample_weights=best.softmax(-1).flatten(1))
        return read.view_as(hidden_states)


def product_memory(keys: int, sparse: bool = False) -> ProductKeyMemory:
    config = PKMTransformerConfig(
        hidden_size=WIDTH, num_memory_keys=keys, memory_key_dim=KEY_DIM, memory_heads=HEADS, memory_topk=TOPK,
        sparse_values=sparse, dropout=0.0,
    )  # fmt: skip
    memory = ProductKeyMemory(config)
    memory.init_weights(config)
    return memory


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def measure(keys: int, repeats: int, flat_up_to: int) -> dict[str, float]:
    """Milliseconds of the parts, for `keys` squared slots."""
    hidden_states = torch.randn(4, TOKENS // 4, WIDTH)
    dense, sparse = product_memory(keys), product_memory(keys, sparse=True)
    optimizer = torch.optim.AdamW(dense.parameters(), fused=True)
    sparse_optimizer = torch.optim.SparseAdam([sparse.values.weight])

    def forward(memory: nn.Module) -> torch.Tensor:
        output = memory(hidden_states)
        return output[0] if isinstance(output, tuple) else output

    def train(memory: nn.Module) -> None:
        memory.zero_grad()
        forward(memory).square().mean().backward()

    row = {"slots": keys**2}
    with torch.no_grad():
        row["forward"] = milliseconds(lambda: forward(dense), repeats)
    row["forward and backward, sparse values"] = milliseconds(lambda: train(sparse), repeats)
    row["forward and backward, dense values"] = milliseconds(lambda: train(dense), repeats)
    row["AdamW on dense values"] = milliseconds(optimizer.step, repeats)
    row["SparseAdam on sparse values"] = milliseconds(sparse_optimizer.step, repeats)
    if keys**2 <= flat_up_to:
        flat = FlatMemory(keys**2)
        with torch.no_grad():
            row["forward, flat keys"] = milliseconds(lambda: forward(flat), max(3, repeats // 3))
    return row


@styled
def draw(rows: list[dict[str, float]], path: Path) -> None:
    picture, ((axes,),) = figure(width=8.0, height=5.0)
    styles = {
        "forward": ("black", "-o"), "forward, flat keys": ("tab:red", "--s"),
        "forward and backward, sparse values": ("tab:blue", "-o"),
        "forward and backward, dense values": ("tab:orange", "-o"), "AdamW on dense values": ("tab:orange", ":^"),
        "SparseAdam on sparse values": ("tab:blue", ":^"),
    }  # fmt: skip
    for name, (color, style) in styles.items():
        points = [(row["slots"], row[name]) for row in rows if name in row]
        axes.plot(*zip(*points, strict=True), style, color=color, label=name)
    slots = [row["slots"] for row in rows]
    axes.plot(
        slots, [rows[0]["forward"] * (s / slots[0]) ** 0.5 for s in slots], color="gray", lw=0.8, label="sqrt(slots)"
    )
    axes.set(xscale="log", yscale="log", xlabel="slots", ylabel=f"milliseconds, {TOKENS} tokens, width {WIDTH}")
    axes.set_xticks(slots, [f"2^{s.bit_length() - 1}" for s in slots], minor=False)
    axes.minorticks_off()
    axes.legend()
    save(picture, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--bits", type=int, nargs="+", default=[10, 12, 14, 16, 18], help="log2 of the slots, even")
    args = parser.parse_args()
    torch.manual_seed(0)
    rows = [measure(2 ** (bits // 2), args.repeats, flat_up_to=2**16) for bits in args.bits]
    names = [name for name in rows[0] if name != "slots"]
    print("slots  " + "  ".join(names))
    for row in rows:
        print(f"{row['slots']:>6}  " + "  ".join(f"{row[n]:.2f}" if n in row else "-" for n in names))
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    result = {"tokens": TOKENS, "width": WIDTH, "heads": HEADS, "topk": TOPK, "key_dim": KEY_DIM, "rows": rows,
              "torch": torch.__version__, "machine": machine, "repeats": args.repeats}  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "product_keys.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(rows, RESULTS / "product_keys.png")


if __name__ == "__main__":
    main()
