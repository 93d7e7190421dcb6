"""Evaluation by a moving window against segments with memory: Dai et al., 2019, https://arxiv.org/abs/1901.02860, table 9.

To predict one token with such a context, the vanilla Transformer reads the whole window again; Transformer-XL reads
segments of 128 with a memory of that length. Times both per token, the vanilla model with attention in plain steps and by
SDPA. `transformers-xl speed` does the same with a model of your own.
Writes `results/moving_window.json`.
"""

import argparse
import json
import platform
import statistics
from pathlib import Path

import torch

from transformers_xl import (
    TransformerXLConfig,
    TransformerXLForCausalLM,
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
)
from transformers_xl.evaluation.speed import segment_reader, take_turns, window_reader

RESULTS = Path(__file__).parent / "results"
SEGMENT = 128
SIZE = {
    "vocab_size": 256, "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 1024,
}  # fmt: skip


def measure(attention: int, repeats: int) -> dict[str, float]:
    """Seconds per predicted token with a context of `attention` tokens, taken in turns."""
    window, segment = torch.randint(256, (1, attention)), torch.randint(256, (1, SEGMENT))
    runs = {}
    for implementation in ("eager", "sdpa"):
        config = VanillaTransformerConfig(segment_length=attention, **SIZE)
        vanilla = VanillaTransformerForCausalLM._from_config(config, attn_implementation=implementation).eval()
        runs[f"moving window, {implementation}"] = window_reader(vanilla, window)
    reader = TransformerXLForCausalLM(TransformerXLConfig(mem_len=attention, **SIZE)).eval()
    runs["segments with memory"] = segment_reader(reader, window, segment)
    row = {"attention": attention} | {name: statistics.median(run) for name, run in take_turns(runs, repeats).items()}
    row["segments with memory"] /= SEGMENT
    for implementation in ("eager", "sdpa"):
        row[f"ratio, {implementation}"] = row[f"moving window, {implementation}"] / row["segments with memory"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--attention", type=int, nargs="+", default=[800, 1800, 2800, 3800])
    args = parser.parse_args()
    torch.manual_seed(0)
    rows = [measure(attention, args.repeats) for attention in args.attention]
    print(
        "| context | moving window, plain | moving window, SDPA | segments with memory | ratio, plain | ratio, SDPA |"
    )
    print("|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        times = [f"{1000 * row[name]:.3g} ms" for name in
                 ("moving window, eager", "moving window, sdpa", "segments with memory")]  # fmt: skip
        print(f"| {row['attention']} | {' | '.join(times)} | {row['ratio, eager']:.0f} | {row['ratio, sdpa']:.0f} |")
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    RESULTS.mkdir(exist_ok=True)
    result = {"size": SIZE, "segment": SEGMENT, "torch": torch.__version__, "machine": machine, "rows": rows}
    (RESULTS / "moving_window.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
