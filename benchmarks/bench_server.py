"""What `transformers-xl serve` costs, as a process of its own that the official client of OpenAI asks.

`turns`: processor time of the server for a turn of a conversation at its 10th, 1,000th and 10,000th turn.
`load`: many clients for minutes, each of which waits for its answer and asks again: what was lost, and percentiles of
the wall clock, which depend on what else the machine does.
`end`: how long a server lives after SIGTERM while so many clients wait for long answers, and what they get.
`clients`: tokens that the server writes per second of its processor time, for one client and for sixteen.

The model has 3 layers of width 128, a memory of 64 tokens and random weights, and reads bytes; `clients` also has one
of 6 layers of width 256 and a memory of 256. Writes `results/server_{turns,load,end,clients}.json`.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # before torch is imported

import httpx2
import numpy as np
import openai
import psutil
import torch

from transformers_xl import ByteTokenizer, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.files.processor import processor

RESULTS = Path(__file__).parent / "results"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
KINDS = ("completion", "chat", "chat, streamed", "turn", "turn, streamed")
SIZES = {"3 x 128": (3, 128, 64), "6 x 256": (6, 256, 256)}  # layers, width, memory
ANSWERS, LENGTH = 32, 128
AFTER = 50  # turns that are measured after the one that is named


def save_model(folder: Path, layers: int = 3, width: int = 128, mem_len: int = 64) -> None:
    torch.manual_seed(0)
    config = TransformerXLConfig(
        vocab_size=259, hidden_size=width, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=4 * width,
        mem_len=mem_len, segment_length=64, eos_token_id=None, bos_token_id=None, pad_token_id=256,
    )  # fmt: skip
    TransformerXLForCausalLM(config).save_pretrained(folder, include_code=False)
    ByteTokenizer(chat_template=TEMPLATE).save_pretrained(folder, include_code=False)


@contextmanager
def server(folder: Path, *words: object) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a server of the model in a folder, and its process."""
    log = folder.parent / "server.log"
    command = [sys.executable, "-m", "transformers_xl.cli.main", "serve", folder, "--port", 0, *words]
    with log.open("w") as output:
        process = subprocess.Popen([*map(str, command)], stdout=output, stderr=output)
    try:
        while not (found := re.search(r"running on (http://\S+)", log.read_text())):
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.2)
        yield f"{found[1]}/v1", psutil.Process(process.pid)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        if "Traceback" in log.read_text():
            print(log.read_text()[-3000:])


def processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measure_turns(url: str, process: psutil.Process, model: str, at: list[int], sessions: Path) -> dict:
    """Milliseconds of processor time of the server for a turn, the mean of the turns after each of `at`: the clock of
    another process counts hundredths of a second."""
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)
    asked = {"model": model, "max_output_tokens": 4, "temperature": 1.0}
    name, spent = client.conversations.create().id, {}
    for number in range(1, max(at) + AFTER + 1):
        answer = client.responses.create(**asked, input=f"This is {number:6}", conversation=name)
        for each in at:
            if number - each in (0, AFTER):
                spent[each] = processor_seconds(process) - spent.get(each, 0.0)
        if number == 3:  # tokens of the first turns are others
            tokens = answer.usage.input_tokens
    assert answer.usage.input_tokens == tokens
    sizes = {path.suffix: path.stat().st_size for path in sessions.glob(f"{answer.id}.*")}
    return {
        "input_tokens": tokens,
        "output_tokens": asked["max_output_tokens"],
        "milliseconds": {str(number): 1000 * seconds / AFTER for number, seconds in spent.items()},
        "bytes_on_disk": sizes,
        "answers_on_disk": len([*sessions.glob("resp_*.json")]),
        "resident_bytes": process.memory_info().rss,
    }


async def ask(client: openai.AsyncOpenAI, model: str, kind: str, last: str | None) -> tuple[int, float, str | None]:
    """Tokens of an answer, seconds until its first event, and its id where it can be continued."""
    begun, first = time.monotonic(), 0.0
    text = f"I am {random.randrange(10**6)}. " * random.randrange(1, 8)
    sampled = {"model": model, "temperature": 1.0, "top_p": 0.95}
    count = random.randrange(4, 33)
    if kind == "completion":
        answer = await client.completions.create(**sampled, prompt=text, max_tokens=count)
        assert answer.choices[0].finish_reason == "length"
        return answer.usage.completion_tokens, time.monotonic() - begun, None
    messages = [{"role": "user", "content": text}]
    if kind == "chat":
        answer = await client.chat.completions.create(**sampled, messages=messages, max_tokens=count)
        assert answer.choices[0].finish_reason == "length"
        return answer.usage.completion_tokens, time.monotonic() - begun, None
    if kind == "chat, streamed":
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = []
        async for chunk in await client.chat.completions.create(
            **sampled, messages=messages, max_tokens=count, **options
        ):
            first = first or time.monotonic() - begun
            chunks.append(chunk)
        return chunks[-1].usage.completion_tokens, first, None
    settings = {**sampled, "input": text, "max_output_tokens": count, "previous_response_id": last}
    if kind == "turn":
        answer = await client.responses.create(**settings)
        first = time.monotonic() - begun
    else:
        events = []
        async for event in await client.responses.create(**settings, stream=True):
            first = first or time.monotonic() - begun
            events.append(event)
        answer = events[-1].response
    assert answer.status == "incomplete", answer
    assert answer.usage.output_tokens == count
    return count, first, answer.id


async def load(url: str, model: str, clients: int, seconds: float) -> dict:
    until, lost = time.monotonic() + seconds, Counter()
    whole: dict[str, list[float]] = {kind: [] for kind in KINDS}
    firsts: dict[str, list[float]] = {kind: [] for kind in KINDS}
    tokens = 0

    async def talk(number: int) -> None:
        nonlocal tokens
        last = None
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
            while time.monotonic() < until:
                kind = random.choice(KINDS)
                begun = time.monotonic()
                try:
                    count, first, answered = await ask(client, model, kind, last)
                except Exception as error:
                    lost[f"{type(error).__name__}: {error}"[:200]] += 1
                    continue
                whole[kind].append(time.monotonic() - begun)
                firsts[kind].append(first)
                tokens += count
                last = answered or last

    await asyncio.gather(*(talk(number) for number in range(clients)))

    def described(values: list[float]) -> dict[str, float]:
        points = np.percentile(values, (50, 90, 99, 100)).round(3).tolist() if values else [0.0] * 4
        return dict(zip(("p50", "p90", "p99", "most"), points, strict=True))

    everything = [value for each in whole.values() for value in each]
    return {
        "clients": clients, "seconds": seconds, "answers": len(everything), "lost": sum(lost.values()),
        "errors": dict(lost), "tokens": tokens, "latency": described(everything),
        "kinds": {
            kind: {"answers": len(whole[kind]), "latency": described(whole[kind]), "first_event": described(firsts[kind])}
            for kind in KINDS
        },
    }  # fmt: skip


async def end(url: str, process: psutil.Process, model: str, clients: int) -> dict:
    """SIGTERM while so many clients wait for more than can be written; what each of them got."""

    async def wait(client: openai.AsyncOpenAI, number: int) -> str:
        settings = {"model": model, "max_output_tokens": 4096, "input": "Go on. " * (1 + number % 40)}
        try:
            if number % 2:
                answer = await client.responses.create(**settings)
                return answer.status
            async for event in await client.responses.create(**settings, stream=True):
                last = event
            if last.type == "error":
                return f"streamed, {last.message}"
            return f"streamed, {last.response.status}"
        except openai.APIStatusError as error:
            return f"status {error.status_code}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:100]

    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
        waiting = [asyncio.create_task(wait(client, number)) for number in range(clients)]
        while texts_of(url) < clients:
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 60)
        seconds = time.monotonic() - begun
        got = Counter(await asyncio.gather(*waiting))
    return {"clients": clients, "seconds": round(seconds, 2), "got": dict(sorted(got.items()))}


def texts_of(url: str) -> int:
    """How many texts the server writes, or has waiting."""
    text = httpx2.get(f"{url.removesuffix('/v1')}/metrics").text
    return sum(
        int(float(found)) for found in re.findall(r"^transformers_xl_(?:running|waiting)_texts (\S+)$", text, re.M)
    )


async def tokens_per_second(url: str, process: psutil.Process, model: str, clients: int) -> float:
    """Tokens that the server writes in a second of its processor time, for so many clients that ask one after another."""
    waiting = list(range(ANSWERS))

    async def talk() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
            while waiting:
                prompt = "A text of its own. " * (1 + waiting.pop() % 4)
                answer = await client.completions.create(
                    model=model, prompt=prompt, max_tokens=LENGTH, temperature=1.0
                )
                assert answer.usage.completion_tokens == LENGTH

    begun = processor_seconds(process)
    await asyncio.gather(*(talk() for _ in range(clients)))
    return ANSWERS * LENGTH / (processor_seconds(process) - begun)


def measure_clients(work: Path) -> dict:
    """One client and sixteen, for two sizes of a model."""
    found = {}
    for name, (layers, width, mem_len) in SIZES.items():
        model = work / name.replace(" ", "")
        save_model(model, layers, width, mem_len)
        with server(model) as (url, process):
            asyncio.run(tokens_per_second(url, process, str(model), 16))  # what is imported and made once
            rates = {count: asyncio.run(tokens_per_second(url, process, str(model), count)) for count in (1, 16)}
        found[name] = {"one client": rates[1], "sixteen clients": rates[16], "times": rates[16] / rates[1]}
    return {"answers": ANSWERS, "tokens_each": LENGTH, "tokens_per_processor_second": found}


def measure(work: Path, arguments: argparse.Namespace) -> dict:
    """Turns, a load, or the end of one server."""
    model, sessions = work / "model", work / "sessions"
    save_model(model)
    with server(model, "--sessions", sessions, "--max-sessions", 1000) as (url, process):
        if arguments.what == "turns":
            measure_turns(url, process, str(model), [20], sessions)  # what is imported and made once
            return measure_turns(url, process, str(model), arguments.at, sessions)
        if arguments.what == "end":
            ended = asyncio.run(end(url, process, str(model), arguments.clients))
            return ended | {"load_average": os.getloadavg()}
        begun, resident = processor_seconds(process), process.memory_info().rss
        result = asyncio.run(load(url, str(model), arguments.clients, arguments.seconds))
        return result | {
            "server_processor_seconds": round(processor_seconds(process) - begun, 1),
            "resident_bytes": [resident, process.memory_info().rss],
            "load_average": os.getloadavg(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["turns", "load", "end", "clients"])
    parser.add_argument("--at", nargs="+", type=int, default=[10, 1000, 10_000], help="turns whose cost is measured")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--out", type=Path, help="file of the result")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        result = measure_clients(Path(work)) if arguments.what == "clients" else measure(Path(work), arguments)
    result = {
        "command": " ".join(["python", "benchmarks/bench_server.py", *sys.argv[1:]]),
        "processor": processor(),
    } | result
    print(json.dumps(result, indent=1))
    out = arguments.out or RESULTS / f"server_{arguments.what}.json"
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
