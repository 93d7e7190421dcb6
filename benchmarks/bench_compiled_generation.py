"""What a compiled step of generation is worth: `generate()` as it is, and with `compile_generation`, in turns.

Models with 6 layers of width 256, 4 heads, greedy, one thread; processor time of the whole process per new token, the
fastest of the turns. Writes `results/compiled_generation.json`.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from transformers_xl import compile_generation
from transformers_xl.files.processor import processor

RESULT = Path(__file__).parent / "results" / "compiled_generation.json"
SIZE = {
    "vocab_size": 259, "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 1024,
}  # fmt: skip
KINDS = ("as it is", "compiled")


def seconds(model: PreTrainedModel, prompt: torch.Tensor, new: int, kind: str) -> float:
    """Processor time of a new token."""
    options = {} if kind == "compiled" else {"cache_implementation": "dynamic", "disable_compile": True}
    start = time.process_time()
    model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0, **options)
    return (time.process_time() - start) / new


def measure(model_type: str, batch: int, mem_len: int, new: int, repeats: int, folder: str) -> dict:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, mem_len=mem_len, **SIZE)).eval()
    start = time.perf_counter()
    compile_generation(model, batch, folder)
    row = {"model": model_type, "batch": batch, "mem_len": mem_len, "seconds to compile": time.perf_counter() - start}
    start = time.perf_counter()
    compile_generation(model, batch, folder)
    row["seconds where it was compiled before"] = time.perf_counter() - start
    prompt = torch.randint(1, 259, (batch, mem_len + 1))
    times = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind in KINDS:
            times[kind].append(seconds(model, prompt, new, kind))
    return row | {kind: 1000 * min(each) for kind, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["1x128", "1x512", "1x1600", "8x128"], help="batch x memory")
    parser.add_argument("--models", nargs="+", default=["transformer_xl", "streaming_transformer"])
    parser.add_argument("--new", type=int, default=1500, help="tokens of a turn: the prompt is a small part of them")
    parser.add_argument("--repeats", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(model, *map(int, size.split("x")), args.new, args.repeats, folder)
            for model in args.models
            for size in args.sizes
        ]
    print("| model, batch x memory | ms a token | compiled | ratio | seconds to compile | from the folder |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in rows:
        before, after = (row[kind] for kind in KINDS)
        print(
            f"| {row['model']}, {row['batch']} x {row['mem_len']} | {before:.2f} | {after:.2f} | {before / after:.2f} | "
            f"{row['seconds to compile']:.0f} | {row['seconds where it was compiled before']:.0f} |"
        )
    result = {"processor": str(processor()), "torch": torch.__version__, "arguments": vars(args), "rows": rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
