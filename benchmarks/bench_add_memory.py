"""What a window around a base costs: a generated token and a training step, beside the base's own sliding window.

The base is a small Mistral, whose own cache slides. Both have the same weights and see the same keys, in one process and
one thread; they take turns, and processor time is what counts, so that ratios hold on a machine that is not quiet.

    python benchmarks/bench_add_memory.py            # 4 minutes on one core

Writes `results/add_memory.json`.
"""

import copy
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM, PreTrainedModel

from transformers_xl import add_memory
from transformers_xl.modeling.modeling_segment_memory import SegmentMemoryForCausalLM

RESULTS = Path(__file__).parent / "results" / "add_memory.json"
SIZES = {
    "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
WINDOW, PROMPT, NEW, REPEATS = 512, 640, 48, 9
SEGMENT, BATCH = 256, 2


def models() -> tuple[MistralForCausalLM, SegmentMemoryForCausalLM]:
    """A base with a window of its own, and one without that has a memory around it."""
    torch.manual_seed(0)
    base = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW, pad_token_id=0, eos_token_id=None))
    plain = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None, pad_token_id=0, eos_token_id=None))
    plain.load_state_dict(base.state_dict())
    return base.eval(), add_memory(plain.eval(), mem_len=WINDOW)


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


def generation(base: MistralForCausalLM, model: SegmentMemoryForCausalLM) -> dict[str, float]:
    """Milliseconds of one token, behind a prompt that fills the window."""
    prompt = torch.randint(1, 4096, (1, PROMPT))
    assert torch.equal(token(base, prompt, 8)(), token(model, prompt, 8)())
    tasks = {
        f"{name} {new}": token(each, prompt, new)
        for name, each in (("base", base), ("memory", model))
        for new in (1, NEW)
    }
    seconds = interleaved(tasks)
    return ratios(
        {
            name: [
                (long - short) / (NEW - 1)
                for long, short in zip(seconds[f"{name} {NEW}"], seconds[f"{name} 1"], strict=True)
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


def ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    """The medians in milliseconds, and that of the ratios of neighbours in time."""
    each = [ours / theirs for ours, theirs in zip(seconds["memory"], seconds["base"], strict=True)]
    medians = {f"{name}_ms": 1000 * statistics.median(values) for name, values in seconds.items()}
    return medians | {"ratio": statistics.median(each), "least": min(each), "most": max(each)}


@torch.no_grad()
def bytes_kept(model: SegmentMemoryForCausalLM) -> dict[int, int]:
    """Bytes of what a cache holds, its free room included, behind so many tokens."""
    cache, held = copy.deepcopy(model(torch.ones(1, 1, dtype=torch.long), use_cache=True).past_key_values), {}
    for length in (1024, 4096, 16384):
        while cache.get_seq_length() < length:
            model(torch.ones(1, 256, dtype=torch.long), past_key_values=cache, logits_to_keep=1)
        model(torch.ones(1, 1, dtype=torch.long), past_key_values=cache)
        buffers = [layer.window.buffer for layer in cache.memory.layers]
        held[length] = sum(each.untyped_storage().nbytes() for buffer in buffers for each in buffer.storage)
    return held


def processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return names[0] if names else platform.processor()


def main() -> None:
    torch.set_num_threads(1)
    base, model = models()
    results = {
        "processor": processor(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "model": SIZES | {"mem_len": WINDOW},
        "generated_token": generation(base, model),
        "training_step": {"segment": SEGMENT, "batch": BATCH} | training(base, model),
        "bytes_kept_after": bytes_kept(model),
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
