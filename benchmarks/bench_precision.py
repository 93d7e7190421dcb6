"""Fewer bits on the CPU, and static memories with torch.compile: speed beside float32, and loss in bits per byte.

Trains a small Transformer-XL on bytes of a text in float32 and scores the held-out end in float32, in bfloat16 (weights,
or autocast) and with int8 weights (dynamic quantization of the linear layers). Then all of them, with weights of two
sizes that nobody trained, read segments through the cache and generate, in turns. Compiled generation must give the
tokens of plain generation. Writes `results/precision.json`.

    python benchmarks/bench_precision.py --text input.txt
"""

import argparse
import copy
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn
from transformers import CompileConfig

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.bits_per_byte import bits_per_byte

RESULTS = Path(__file__).parent / "results"
SEGMENT, LANES, MEM_LEN, TOKENS = 128, 8, 512, 32
SIZES = {
    "small": {"num_hidden_layers": 6, "hidden_size": 256, "intermediate_size": 1024},
    "big": {"num_hidden_layers": 12, "hidden_size": 512, "intermediate_size": 2048},
}
FORMS = ("float32", "bfloat16", "bfloat16 autocast", "int8 weights")


def build(size: str) -> TransformerXLForCausalLM:
    torch.manual_seed(0)
    config = TransformerXLConfig(
        vocab_size=256, num_attention_heads=8, mem_len=MEM_LEN, segment_length=SEGMENT, dropout=0.0, **SIZES[size]
    )
    return TransformerXLForCausalLM(config)


def train(model: TransformerXLForCausalLM, text: np.ndarray, seconds: float) -> int:
    """Train for so many seconds; the number of steps."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3)
    stream, mems, steps, start = TextStream(text, SEGMENT, LANES), None, 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        first = steps % stream.segments * LANES
        items = [stream[first + lane] for lane in range(LANES)]
        outputs = model(
            torch.stack([item["input_ids"] for item in items]), mems=mems if first else None,
            shift_labels=torch.stack([item["shift_labels"] for item in items]),
        )  # fmt: skip
        mems = outputs.mems
        optimizer.zero_grad()
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
    return steps


def in_form(model: TransformerXLForCausalLM, form: str) -> tuple[TransformerXLForCausalLM, AbstractContextManager]:
    """A copy of the model in this form, and what it runs under."""
    model = copy.deepcopy(model).eval()
    if form == "bfloat16":
        return model.bfloat16(), nullcontext()
    if form == "bfloat16 autocast":
        return model, torch.autocast("cpu", torch.bfloat16)
    if form == "int8 weights":
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # torch names torchao as its successor, which has no such kernels for the CPU
            return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8), nullcontext()
    return model, nullcontext()


@torch.no_grad()
def full_memory(model: TransformerXLForCausalLM, ids: torch.Tensor):
    """A memory that has read `ids`, more than it can hold."""
    cache = None
    for segment in ids.split(SEGMENT, dim=1):
        cache = model(segment, past_key_values=cache, use_cache=True).past_key_values
    return cache


def take_turns(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each run."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:  # the first warms up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(mine) for name, mine in times.items()}


@torch.no_grad()
def speed(size: str, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a segment of 128 tokens, and of a generated token, of each form."""
    model, ids = build(size), torch.randint(256, (1, MEM_LEN + 2 * SEGMENT))
    segments, tokens = {}, {}
    for form in FORMS:
        mine, context = in_form(model, form)
        with context:
            cache = full_memory(mine, ids)

        def read(mine=mine, context=context, cache=cache) -> None:
            with context:
                mine(ids[:, :SEGMENT], past_key_values=cache)

        def generate(mine=mine, context=context, cache=cache) -> None:
            with context:
                mine.generate(
                    ids[:, :1], mems=cache.memory, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False
                )

        segments[form], tokens[form] = read, generate
    segment_times, token_times = take_turns(segments, rounds), take_turns(tokens, rounds)
    return {
        form: {
            "segment_ms": 1000 * segment_times[form],
            "token_ms": 1000 * token_times[form] / TOKENS,
        }
        for form in FORMS
    }


@torch.no_grad()
def compiled(size: str, rounds: int) -> dict:
    """Generation with a static memory and torch.compile beside plain generation, from the same memory."""
    model = build(size).eval()
    ids = torch.randint(256, (1, MEM_LEN + SEGMENT))
    mems = None
    for segment in ids.split(SEGMENT, dim=1):
        mems = model(segment, mems=mems).mems
    common = {"mems": mems, "max_new_tokens": TOKENS, "do_sample": False}
    static = {"cache_implementation": "static", **common}
    compile_config = CompileConfig(fullgraph=True, dynamic=False, mode="default")
    compile_config._compile_all_devices = True  # transformers compiles on accelerators only, unless it is told
    runs = {
        "plain": partial(model.generate, ids[:, :1], **common),
        "static, not compiled": partial(model.generate, ids[:, :1], disable_compile=True, **static),
        "static, compiled": partial(model.generate, ids[:, :1], compile_config=compile_config, **static),
    }
    tokens = {name: run() for name, run in runs.items()}
    equal = all(torch.equal(tokens["plain"], mine) for mine in tokens.values())
    torch._dynamo.utils.counters.clear()
    times = take_turns(runs, rounds)
    return {
        "token_ms": {name: 1000 * seconds / TOKENS for name, seconds in times.items()},
        "equal_tokens": equal,
        "graphs_after_the_first_call": torch._dynamo.utils.counters["stats"].get("unique_graphs", 0),
    }


def options(description: str) -> argparse.ArgumentParser:
    """What a benchmark asks that trains on a text and scores its end."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a file, its last 5 %% held out; without it, what CPython ships")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of a training")
    parser.add_argument("--bytes", type=int, default=40_000, help="of the held-out text")
    parser.add_argument("--threads", type=int, default=2)
    return parser


def texts(args: argparse.Namespace) -> tuple[str, np.ndarray, np.ndarray]:
    """The name of the text, the bytes to train on, and those to score."""
    text = args.text.read_bytes() if args.text else "".join(topics.values()).encode()
    ids = np.frombuffer(text, dtype=np.uint8)
    split = int(0.95 * len(ids))
    return args.text.name if args.text else "pydoc_data.topics", ids[:split], ids[split:][: args.bytes]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    name, train_ids, held_out = texts(args)

    result: dict = {
        "machine": f"{platform.machine()}, {args.threads} threads, torch {torch.__version__}",
        "text": name,
        "mem_len": MEM_LEN,
        "segment": SEGMENT,
    }
    model = build("small")
    result["training"] = {"steps": train(model, train_ids, args.seconds), "seconds": args.seconds}
    result["bits_per_byte"] = {}
    for form in FORMS:
        mine, context = in_form(model, form)
        with context:
            result["bits_per_byte"][form] = bits_per_byte(mine, held_out, lanes=1)
        print(form, result["bits_per_byte"][form], flush=True)
    result["speed"] = {size: speed(size, args.rounds) for size in SIZES}
    result["compiled"] = {size: compiled(size, args.rounds) for size in SIZES}
    (RESULTS / "precision.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
