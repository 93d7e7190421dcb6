"""What memory around a base costs: a generated token and a training step, beside the base without it.

The base is a small Mistral, whose own cache slides. A window sees the same keys. Memory tokens read a segment from memory,
which the base reads from nothing: its generated tokens see a sliding window as long as a segment, its training step reads
the same segments as rows. All have the same weights, in one process and one thread; two take turns, and processor time is
what counts, so that ratios hold on a machine that is not quiet.

    python benchmarks/bench_add_memory.py            # 13 minutes on one core
    python benchmarks/bench_add_memory.py --kinds tokens
    python benchmarks/bench_add_memory.py --kinds mixed       # bytes alone, of layers as those of Gemma 3 270M

Writes `results/add_memory.json`.
"""

import argparse
import copy
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from transformers_xl import add_memory
from transformers_xl.files.processor import processor
from transformers_xl.modeling.modeling_segment_memory import SegmentMemoryForCausalLM

RESULTS = Path(__file__).parent / "results" / "add_memory.json"
SIZES = {
    "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
WINDOW, SINKS, PROMPT, NEW, REPEATS = 512, 4, 640, 48, 9
SEGMENT, BATCH = 256, 2
MEMORY_TOKENS = {"num_memory_tokens": 16, "segment_length": SEGMENT, "bptt_segments": 2}


def models(window: int, **memory: Any) -> tuple[MistralForCausalLM, SegmentMemoryForCausalLM]:
    """A base with a window of its own, and one without that has a memory around it."""
    torch.manual_seed(0)
    base = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window, pad_token_id=0, eos_token_id=None))
    plain = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None, pad_token_id=0, eos_token_id=None))
    plain.load_state_dict(base.state_dict())
    return base.eval(), add_memory(plain.eval(), **memory)


def interleaved(tasks: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Processor seconds of each task, which take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(REPEATS + 1):
        order = list(tasks) if repeat % 2 else list(reversed(tasks))
        for name in order:
            start = time.process_time()
            tasks[name]()
            if repeat:  # the first warms up
                seconds[name].append(time.process_time() - start)
    return seconds


def token(model: PreTrainedModel, prompt: torch.Tensor, new: int) -> Callable[[], object]:
    return lambda: model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False)


def generation(
    base: MistralForCausalLM, model: SegmentMemoryForCausalLM, prompt: torch.Tensor, new: int
) -> dict[str, float]:
    """Milliseconds of one token, the mean of the last `new - 1` of `new` behind a prompt."""
    tasks = {
        f"{name} {count}": token(each, prompt, count)
        for name, each in (("base", base), ("memory", model))
        for count in (1, new)
    }
    seconds = interleaved(tasks)
    return ratios(
        {
            name: [
                (long - short) / (new - 1)
                for long, short in zip(seconds[f"{name} {new}"], seconds[f"{name} 1"], strict=True)
            ]
            for name in ("base", "memory")
        }
    )


def training(base: MistralForCausalLM, model: SegmentMemoryForCausalLM) -> dict[str, float]:
    """Milliseconds of forward and backward over a segment behind a full window."""
    ids, before = torch.randint(1, 4096, (BATCH, SEGMENT)), torch.randint(1, 4096, (BATCH, WINDOW))
    base.train()
    model.train()
    with torch.no_grad():
        layers = base(before, use_cache=True).past_key_values.layers
        mems = model(before).mems
    kept = [(layer.keys.clone(), layer.values.clone()) for layer in layers]

    def step_of_base() -> None:
        cache = DynamicCache(config=base.config)
        for index, (keys, values) in enumerate(kept):
            cache.update(keys, values, index)
        base(ids, labels=ids, past_key_values=cache, use_cache=True).loss.backward()
        base.zero_grad()

    def step_with_memory() -> None:
        model(ids, labels=ids, mems=mems).loss.backward()
        model.zero_grad()

    seconds = ratios(interleaved({"base": step_of_base, "memory": step_with_memory}))
    base.eval()
    model.eval()
    return seconds


def training_in_segments(base: MistralForCausalLM, model: SegmentMemoryForCausalLM) -> dict[str, float]:
    """Milliseconds of forward and backward over segments that gradients go through, and over the same ones alone."""
    ids = torch.randint(1, 4096, (1, model.config.bptt_segments * SEGMENT))
    rows = ids.view(-1, SEGMENT)

    def step_of_base() -> None:
        base(rows, labels=rows, use_cache=False).loss.backward()
        base.zero_grad()

    def step_with_memory() -> None:
        model(ids, labels=ids).loss.backward()
        model.zero_grad()

    base.train()
    model.train()
    return ratios(interleaved({"base": step_of_base, "memory": step_with_memory}))


def ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    """The medians in milliseconds, and that of the ratios of neighbours in time."""
    each = [ours / theirs for ours, theirs in zip(seconds["memory"], seconds["base"], strict=True)]
    medians = {f"{name}_ms": 1000 * statistics.median(values) for name, values in seconds.items()}
    return medians | {"ratio": statistics.median(each), "least": min(each), "most": max(each)}


@torch.no_grad()
def bytes_kept(model: SegmentMemoryForCausalLM) -> dict[int, int]:
    """Bytes of what a cache holds, its free space included, behind so many tokens."""
    cache, held = copy.deepcopy(model(torch.ones(1, 1, dtype=torch.long), use_cache=True).past_key_values), {}
    for length in (1024, 4096, 16384):
        while cache.get_seq_length() < length:
            model(torch.ones(1, 256, dtype=torch.long), past_key_values=cache, logits_to_keep=1)
        model(torch.ones(1, 1, dtype=torch.long), past_key_values=cache)
        held[length] = sum(each.nbytes for layer_cache in cache.layer_caches for each in layer_cache.storages)
    return held


def cost_of_window() -> dict[str, Any]:
    """Behind a prompt that fills the window, and a segment behind a full window."""
    base, model = models(WINDOW, mem_len=WINDOW, num_sinks=0)
    prompt = torch.randint(1, 4096, (1, PROMPT))
    assert torch.equal(token(base, prompt, 8)(), token(model, prompt, 8)())
    return {
        "mem_len": WINDOW,
        "generated_token": generation(base, model, prompt, NEW),
        "training_step": {"segment": SEGMENT, "batch": BATCH} | training(base, model),
        "bytes_kept_after": bytes_kept(model),
    }


def cost_of_sinks() -> dict[str, Any]:
    """The same with attention sinks, of which a segment has a copy for every 32 tokens; the base has none."""
    base, model = models(WINDOW, mem_len=WINDOW, num_sinks=SINKS)
    prompt = torch.randint(1, 4096, (1, PROMPT))
    return {
        "mem_len": WINDOW,
        "num_sinks": SINKS,
        "generated_token": generation(base, model, prompt, NEW),
        "training_step": {"segment": SEGMENT, "batch": BATCH} | training(base, model),
        "bytes_kept_after": bytes_kept(model),
    }


def cost_of_tokens() -> dict[str, Any]:
    """As many new tokens as a segment has, so that memory is written once and read once."""
    base, model = models(SEGMENT, kind="tokens", **MEMORY_TOKENS)
    prompt = torch.randint(1, 4096, (1, SEGMENT // 2))
    generated = generation(base, model, prompt, SEGMENT + 1)
    return MEMORY_TOKENS | {"generated_token": generated, "training_step": training_in_segments(base, model)}


@torch.no_grad()
def cost_of_mixed_layers() -> dict[str, Any]:
    """Bytes of `mems` behind a full memory, of layers as those of Gemma 3 270M, 15 of 18 with a window of 512; and if all
    had none. Keys and values have the model's sizes, what else there is does not matter."""
    layers = {"num_hidden_layers": 18, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512}
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 1} | layers
    found: dict[str, Any] = {"model": sizes, "dtype": "bfloat16"}
    for mem_len in (1024, 8192):
        for name, types in (("kept", {}), ("if_all_were_full", {"layer_types": ["full_attention"] * 18})):
            config = Gemma3TextConfig(**sizes, **types)
            base = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
            model, mems = add_memory(base, mem_len=mem_len, num_sinks=SINKS), None
            for _ in range(mem_len // 512):
                mems = model(torch.ones(1, 512, dtype=torch.long), mems=mems, logits_to_keep=1).mems
            found[f"bytes_{name}_{mem_len}"] = mems.num_bytes
    return found


COSTS = {"window": cost_of_window, "sinks": cost_of_sinks, "tokens": cost_of_tokens, "mixed": cost_of_mixed_layers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(COSTS), default=list(COSTS))
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for kind in parser.parse_args().kinds:
        machine = {"processor": str(processor()), "torch": torch.__version__, "load": os.getloadavg()[0]}
        results[kind] = machine | COSTS[kind]()
        RESULTS.write_text(json.dumps({"model": SIZES} | results, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
