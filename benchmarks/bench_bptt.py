"""Memory of a training step against the number of segments that gradients go back through: Bulatov et al., 2022,
https://arxiv.org/abs/2207.06881.

A Recurrent Memory Transformer of 4 layers of width 256, with 10 memory tokens and segments of 128 tokens, reads
`bptt_segments` segments of 4 rows in one call, with and without activation checkpointing. Each step runs in a process of
its own, on one thread; its figure is the largest resident set of the process beyond that before the step. Writes
`results/bptt.json` and prints the table of the model's card.
"""

import argparse
import json
import multiprocessing
import platform
import resource
import time
from pathlib import Path

import torch
import transformers

from transformers_xl import RecurrentMemoryTransformerConfig, RecurrentMemoryTransformerForCausalLM
from transformers_xl.hub.measurements import device_name

RESULTS = Path(__file__).parent / "results"
LAYERS, WIDTH, TOKENS, SEGMENT, ROWS = 4, 256, 10, 128, 4
SEGMENTS = (1, 2, 4, 8)


def step(segments: int, checkpointing: bool) -> dict[str, float]:
    """One training step: MiB beyond what the process held before it, and seconds of processor time."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = RecurrentMemoryTransformerConfig(
        vocab_size=256, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=4 * WIDTH,
        mem_len=SEGMENT, segment_length=SEGMENT, num_memory_tokens=TOKENS, bptt_segments=segments, dropout=0.0,
    )  # fmt: skip
    model = RecurrentMemoryTransformerForCausalLM(config).train()
    if checkpointing:
        model.activation_checkpointing_enable()
    ids = torch.randint(0, 256, (ROWS, segments * SEGMENT))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    model(ids, labels=ids).loss.backward()
    seconds = time.process_time() - start
    return {
        "mib": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1),
        "seconds": round(seconds, 2),
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    steps = []
    print("| `bptt_segments` | MiB | with activation checkpointing |\n|---|---|---|", flush=True)
    for segments in SEGMENTS:
        found = []
        for checkpointing in (False, True):
            with multiprocessing.get_context("fork").Pool(1) as pool:
                found.append(pool.apply(step, (segments, checkpointing)))
            steps.append({"bptt_segments": segments, "activation_checkpointing": checkpointing, **found[-1]})
        print(f"| {segments} | {found[0]['mib']:.0f} | {found[1]['mib']:.0f} |", flush=True)
    results = {
        "layers": LAYERS, "hidden_size": WIDTH, "num_memory_tokens": TOKENS, "segment_length": SEGMENT, "rows": ROWS,
        "steps": steps, "device": device_name(torch.device("cpu")), "python": platform.python_version(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "bptt.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
