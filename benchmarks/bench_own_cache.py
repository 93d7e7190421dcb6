"""From which length on a window is faster than a base's own cache: the processor time of a token behind so many others.

    python benchmarks/bench_own_cache.py BASE -o benchmarks/results/real_base/own_cache.json

BASE is the folder of a language model of transformers. What stands before is not read: the cache is filled with random keys
and values, which take as long as any. One thread.
"""

import json
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import AutoModelForCausalLM, DynamicCache

from transformers_xl import add_memory
from transformers_xl.files.processor import processor
from transformers_xl.modeling.pretrained.backbone_cache import written_by

LENGTHS = (1024, 4096, 8192, 16384, 32512)
SEGMENT, MEM_LEN = 128, 1024


def filled(base, length: int) -> DynamicCache:
    """A cache of the base that has seen so many tokens."""
    cache = DynamicCache(config=base.config)
    for layer, tensors in enumerate(written_by(base, 1, [0])):
        keys, values = (torch.randn(1, each.shape[1], length, each.shape[3]).to(each) for each in tensors[:2])
        cache.update(keys, values, layer)
    return cache


@torch.inference_mode()
def milliseconds(read, repeats: int = 2) -> float:
    """Of a token, the smallest of several readings of a segment."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        read()
        times.append(1000 * (time.process_time() - start) / SEGMENT)
    return min(times)


def main(
    base: Annotated[Path, typer.Argument(exists=True, file_okay=False)],
    output: Annotated[Path | None, typer.Option("-o")] = None,
) -> None:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).eval()
    ids = torch.randint(3, 1000, (1, MEM_LEN), generator=torch.Generator().manual_seed(0))
    window = add_memory(model, mem_len=MEM_LEN)
    with torch.inference_mode():
        cache = window(ids, use_cache=True, logits_to_keep=1).past_key_values
    found = milliseconds(lambda: window(ids[:, :SEGMENT], past_key_values=cache, logits_to_keep=1))
    result = {"base": base.resolve().name, "device": str(processor()), "threads": 1, "segment": SEGMENT}
    result |= {f"window of {MEM_LEN}, {window.config.num_sinks} sinks": found, "own cache": {}}
    print(f"window of {MEM_LEN}: {found:.2f} ms a token")
    for length in LENGTHS:
        own = filled(model, length)
        read = {"past_key_values": own, "use_cache": True, "logits_to_keep": 1}
        result["own cache"][str(length)] = milliseconds(lambda read=read: model(ids[:, :SEGMENT], **read))
        print(f"own cache, behind {length:,} tokens: {result['own cache'][str(length)]:.2f} ms a token")
    if output is not None:
        output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
