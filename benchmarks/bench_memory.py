"""Does memory stay flat on a long text? Scores 1,000,000 bytes and generates 100,000 tokens, in a process each.

The resident set is read after the first full window, and its largest value from there on is compared with it. Prompts of
4,096 to 262,144 tokens are read by `generate()` one after another, and the peak of the process is read after each. Writes
`results/memory.json`.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from transformers.generation import BaseStreamer

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.data.text_stream import TextStream

RESULTS = Path(__file__).parent / "results"
MEM_LEN, SEGMENT = 512, 128
PROMPTS = (4096, 16384, 65536, 262144)


def resident() -> int:
    """Bytes of the process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def model() -> TransformerXLForCausalLM:
    torch.manual_seed(0)
    config = TransformerXLConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        mem_len=MEM_LEN, segment_length=SEGMENT,
    )  # fmt: skip
    return TransformerXLForCausalLM(config).eval()


class Watch(BaseStreamer):
    """Notes the resident set while tokens come."""

    def __init__(self):
        self.sizes, self.tokens = [], 0

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.numel()
        if self.tokens % 256 == 0:
            self.sizes.append((self.tokens, resident()))

    def end(self) -> None:
        pass


@torch.inference_mode()
def score(count: int) -> list[tuple[int, int]]:
    ids = np.random.default_rng(0).integers(0, 256, count + 1)
    reader, cache, sizes = model(), None, []
    stream = TextStream(ids, SEGMENT, lanes=1)
    for index in range(stream.segments):
        batch = stream[index]["input_ids"][None]
        cache = reader(batch, past_key_values=cache, use_cache=True).past_key_values
        sizes.append(((index + 1) * SEGMENT, resident()))
    return sizes


def generate(count: int) -> list[tuple[int, int]]:
    """In calls of 2,000 tokens, each with the memory of the one before: the ids of a call are held by `generate` itself."""
    writer, watch, mems = model(), Watch(), None
    ids = torch.zeros(1, 1, dtype=torch.long)
    while watch.tokens < count:
        result = writer.generate(
            ids, mems=mems, max_new_tokens=2000, do_sample=True, streamer=watch, return_dict_in_generate=True
        )
        mems, ids = result.mems, result.sequences[:, -1:]
    return watch.sizes


def prompts() -> list[tuple[int, int]]:
    """Tokens of a prompt, and the most that the process ever had in memory after it was read."""
    writer, sizes = model(), []
    for length in PROMPTS:
        writer.generate(torch.randint(0, 256, (1, length)), max_new_tokens=2, do_sample=False)
        sizes.append((length, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=["score", "generate", "prompts"], help="run one of them and print its sizes")
    parser.add_argument("--bytes", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=100_000)
    args = parser.parse_args()
    if args.task:
        tasks = {"score": lambda: score(args.bytes), "generate": lambda: generate(args.tokens), "prompts": prompts}
        print(json.dumps(tasks[args.task]()))
        return
    results = {}
    for task in ("score", "generate"):
        command = [sys.executable, __file__, "--task", task, "--bytes", str(args.bytes), "--tokens", str(args.tokens)]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        sizes = json.loads(run.stdout.splitlines()[-1])
        first = next(size for tokens, size in sizes if tokens >= 2 * MEM_LEN)
        largest = max(size for tokens, size in sizes if tokens >= 2 * MEM_LEN)
        results[task] = {
            "tokens": sizes[-1][0], "mib_after_the_first_full_window": round(first / 2**20, 1),
            "largest_mib_from_there_on": round(largest / 2**20, 1), "growth": round(largest / first - 1, 4),
        }  # fmt: skip
        print(task, results[task])
    run = subprocess.run([sys.executable, __file__, "--task", "prompts"], check=True, capture_output=True, text=True)
    peaks = json.loads(run.stdout.splitlines()[-1])
    results["prompts"] = {f"peak_mib_after_{tokens}_tokens": round(peak / 2**20, 1) for tokens, peak in peaks}
    print("prompts", results["prompts"])
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "memory.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
