"""What an attention atlas costs: 16 layers of 10 heads, as in the paper's figures, over texts of growing length.

The peak memory of a process is read after each text; the shortest one fills the memory once. Beside it stands what the
weights of all layers and tokens would take, had they been kept.
Writes `results/atlas.json`.
"""

import json
import multiprocessing
import platform
import resource
import time
from pathlib import Path

import torch

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.evaluation.attention_maps import attention_atlas

RESULTS = Path(__file__).parent / "results"
LAYERS, HEADS, SEGMENT = 16, 10, 64
TEXTS = {640: [768, 1920, 5760], 4000: [4800, 8000]}  # lengths in tokens, for each length of the memory
MIB = 2**20


def measure(mem_len: int, lengths: list[int]) -> list[dict[str, float]]:
    """Seconds and peak memory of an atlas over a random text of each length, in tokens."""
    config = TransformerXLConfig(
        vocab_size=256, hidden_size=160, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=320,
        mem_len=mem_len, segment_length=SEGMENT,
    )  # fmt: skip
    model, rows = TransformerXLForCausalLM(config).eval(), []
    for length in lengths:
        start = time.perf_counter()
        attention_atlas(model, torch.randint(256, (length,)))
        rows.append(
            {
                "mem_len": mem_len,
                "tokens": length,
                "seconds": time.perf_counter() - start,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB,
                "weights_mib": LAYERS * HEADS * length * (mem_len + SEGMENT) * 4 / MIB,
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    rows = []
    for mem_len, lengths in TEXTS.items():
        # a process of its own: a peak never falls
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows += pool.apply(measure, (mem_len, lengths))
    result = {
        "layers": LAYERS,
        "heads": HEADS,
        "segment": SEGMENT,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "rows": rows,
    }
    (RESULTS / "atlas.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
