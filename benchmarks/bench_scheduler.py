"""Sixteen sessions in one batch: tokens per second of processor time, the longest wait, and the memory of 10,000 requests.

    python benchmarks/bench_scheduler.py -o benchmarks/results/scheduler.json

Beside `generate()` one session after another, and `generate()` of one batch of sixteen prompts of one length. Weights are
random: they change no time. Prompts have many lengths. Two cases are measured: windows that are partly filled all the time,
where rows need a mask, and windows that fill at different times. Each way runs in turn with the others, several times; the
medians are given. One thread.
"""

import gc
import json
import random
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers.utils import logging

from transformers_xl import ByteTokenizer, Scheduler, TextRequest, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.files.processor import processor
from transformers_xl.serve.scheduler import generate_many

SIZES = {"3 x 128, memory 64": (3, 128, 64), "6 x 256, memory 256": (6, 256, 256)}
SESSIONS = 16


def language_model(layers: int, width: int, mem_len: int) -> TransformerXLForCausalLM:
    torch.manual_seed(0)
    config = TransformerXLConfig(
        vocab_size=259,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=8 * width,
        mem_len=mem_len,
    )
    return TransformerXLForCausalLM(config).eval()


def sessions(longest: int, new_tokens: int) -> list[TextRequest]:
    """Half of them greedy, with prompts of a few tokens up to the `longest`."""
    draw = random.Random(0)
    return [
        TextRequest(
            [draw.randrange(256) for _ in range(draw.randint(4, longest))],
            max_new_tokens=new_tokens,
            temperature=seed % 2,
            seed=seed,
            stop_token_ids=(),
        )
        for seed in range(SESSIONS)
    ]


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def throughput(model: TransformerXLForCausalLM, longest: int, new_tokens: int, repeats: int) -> dict[str, float]:
    """Tokens per second of processor time by each way, and their ratios."""
    requests = sessions(longest, new_tokens)
    tokenizer, same = ByteTokenizer(), statistics.median(len(each.input_ids) for each in requests)
    batch = torch.tensor([(each.input_ids * int(same))[: int(same)] for each in requests])
    settings = {"max_new_tokens": new_tokens, "eos_token_id": None, "pad_token_id": 0}

    def one_by_one() -> None:
        for each in requests:
            model.generate(torch.tensor([each.input_ids]), do_sample=each.temperature > 0, **settings)

    ways: dict[str, Callable[[], object]] = {
        "one after another": one_by_one,
        "scheduler": lambda: list(generate_many(model, requests)),
        "scheduler, with texts": lambda: list(generate_many(model, requests, tokenizer)),
        "one batch": lambda: model.generate(batch, do_sample=True, **settings),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, run in ways.items():
            taken[name].append(seconds(run))
    rate = {name: SESSIONS * new_tokens / statistics.median(times) for name, times in taken.items()}
    return (
        {"longest prompt": longest, "new tokens": new_tokens}
        | rate
        | {
            "scheduler / one after another": rate["scheduler"] / rate["one after another"],
            "with texts / one after another": rate["scheduler, with texts"] / rate["one after another"],
            "scheduler / one batch": rate["scheduler"] / rate["one batch"],
        }
    )


def waits(model: TransformerXLForCausalLM, length: int) -> dict[str, float]:
    """Milliseconds of a step of fifteen texts, and of one in which a long prompt is read beside them."""
    draw, found = random.Random(1), {}
    scheduler = Scheduler(model)
    for request in sessions(model.config.mem_len, 10**6)[1:]:
        scheduler.add(request)
    while scheduler.num_waiting + len(scheduler._reading):
        scheduler.step()
    for name in ("without", "with"):
        if name == "with":
            scheduler.add(TextRequest([draw.randrange(256) for _ in range(length)], max_new_tokens=1))
        times = [1000 * seconds(scheduler.step) for _ in range(length // scheduler.piece)]
        found |= {f"{name} a long prompt, median": statistics.median(times), f"{name}, longest": max(times)}
    return found | {"tokens of the prompt": length}


def many_requests(model: TransformerXLForCausalLM, count: int) -> dict[str, list[int]]:
    """Resident memory in KiB and living tensors after every tenth of `count` short requests, some of them cancelled."""
    draw, scheduler, added, ended = random.Random(2), Scheduler(model, ByteTokenizer()), 0, 0
    found: dict[str, list[int]] = {"requests": [], "resident KiB": [], "tensors": []}
    while ended < count:
        while added < count and scheduler.num_waiting + scheduler.num_running < 20:
            ids = [draw.randrange(256) for _ in range(draw.randint(1, 24))]
            sampled = {"temperature": draw.choice([0, 1]), "top_k": draw.choice([0, 9]), "seed": added}
            number = scheduler.add(TextRequest(ids, max_new_tokens=draw.randint(1, 12), stop=("ab",), **sampled))
            added += 1
            if draw.random() < 0.1:
                scheduler.cancel(number)
        ended_now = sum(each.finish_reason is not None for each in scheduler.step())
        if (ended + ended_now) * 10 // count > ended * 10 // count:
            gc.collect()
            found["requests"].append(ended + ended_now)
            found["resident KiB"].append(resident())
            found["tensors"].append(sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects()))
        ended += ended_now
    return found


def resident() -> int:
    """Of this process now; where Linux does not say it, the most so far."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(each for each in status.read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1])


def main(
    output: Annotated[Path | None, typer.Option("-o")] = None,
    new_tokens: int = 128,
    repeats: int = 3,
    requests: int = 10_000,
) -> None:
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    result: dict = {"device": str(processor()), "threads": 1, "sessions": SESSIONS}
    for name, size in SIZES.items():
        model = language_model(*size)
        mem_len = model.config.mem_len
        result[name] = {
            "parameters": model.num_parameters(),
            "partly filled windows": throughput(model, mem_len // 4, mem_len * 3 // 4, repeats),
            "windows that fill": throughput(model, mem_len, new_tokens, repeats),
            "milliseconds of a step": waits(model, 2048),
        }
        print(name, json.dumps(result[name], indent=1), flush=True)
    result["many requests"] = many_requests(language_model(*SIZES["3 x 128, memory 64"]), requests)
    print(json.dumps(result["many requests"]))
    if output is not None:
        output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
