"""What a step of an agent costs: GTrXL with its memory in a cache, without `reset`, with one that begins nothing, and with
one that begins an episode in one row at every step; and torch's LSTM, in turns. And what a training step costs of both:
forward and backward of a window of 16 steps.

2 layers of width 64, 4 heads, feed-forward of 256, 8 numbers observed, 4 actions, memory full, one thread; processor time
of all rows, the fastest of the turns. Writes `results/agents.json`.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch

from transformers_xl import GTrXLConfig, GTrXLForActorCritic
from transformers_xl.files.processor import processor

RESULT = Path(__file__).parent / "results" / "agents.json"
WIDTH, LAYERS, OBSERVED, ACTIONS = 64, 2, 8, 4
SIZES = ["16x64", "16x256", "16x1024", "64x64", "64x256", "64x1024"]
STEPS = 10  # of a turn
WINDOW = 16  # of a training step
KINDS = ("no reset", "reset, nothing begins", "reset, a row begins", "LSTM", "training", "training, LSTM")


def new_agent(mem_len: int) -> GTrXLForActorCritic:
    torch.manual_seed(0)
    config = GTrXLConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=4 * WIDTH, dropout=0.0,
        mem_len=mem_len, observation_size=OBSERVED, num_actions=ACTIONS,
    )  # fmt: skip
    return GTrXLForActorCritic(config).eval()


@torch.no_grad()
def gtrxl(rows: int, mem_len: int, reset: str) -> Callable[[int], None]:
    """A step of an agent whose memory is full; its argument counts steps."""
    agent = new_agent(mem_len)
    cache = agent(torch.randn(rows, mem_len, OBSERVED), use_cache=True).past_key_values
    observations = torch.randn(rows, 1, OBSERVED)

    @torch.no_grad()
    def step(number: int) -> None:
        begins = None if reset == "no reset" else torch.zeros(rows, dtype=torch.bool)
        if reset == "reset, a row begins":
            begins[number % rows] = True
        agent(observations, past_key_values=cache, reset=begins)

    return step


def lstm(rows: int) -> Callable[[int], None]:
    network = torch.nn.LSTM(OBSERVED, WIDTH, LAYERS, batch_first=True)
    policy, value = torch.nn.Linear(WIDTH, ACTIONS), torch.nn.Linear(WIDTH, 1)
    observations, state = torch.randn(rows, 1, OBSERVED), torch.zeros(2, LAYERS, rows, WIDTH)

    @torch.no_grad()
    def step(number: int) -> None:
        going_on = torch.ones(rows, 1)
        going_on[number % rows] = 0
        hidden, (new_hidden, new_cell) = network(observations, tuple(state * going_on))
        policy(hidden), value(hidden)
        state.copy_(torch.stack([new_hidden, new_cell]))

    return step


def training(rows: int, mem_len: int) -> Callable[[int], None]:
    """A training step of an agent from a full memory, without the optimizer."""
    agent = new_agent(mem_len)
    with torch.no_grad():
        mems = agent(torch.randn(rows, mem_len, OBSERVED)).mems
    observations, resets = torch.randn(rows, WINDOW, OBSERVED), torch.rand(rows, WINDOW) < 0.02

    def step(number: int) -> None:
        out = agent(observations, reset=resets, mems=mems)
        (out.logits.sum() + out.value.sum()).backward()

    return step


def lstm_training(rows: int) -> Callable[[int], None]:
    """Without a reset inside the window."""
    network = torch.nn.LSTM(OBSERVED, WIDTH, LAYERS, batch_first=True)
    policy, value, observations = (
        torch.nn.Linear(WIDTH, ACTIONS),
        torch.nn.Linear(WIDTH, 1),
        torch.randn(rows, WINDOW, OBSERVED),
    )

    def step(number: int) -> None:
        hidden, _ = network(observations)
        (policy(hidden).sum() + value(hidden).sum()).backward()

    return step


def step_of(kind: str, rows: int, mem_len: int) -> Callable[[int], None]:
    if kind.startswith("training"):
        return lstm_training(rows) if kind.endswith("LSTM") else training(rows, mem_len)
    return lstm(rows) if kind == "LSTM" else gtrxl(rows, mem_len, kind)


def measure(rows: int, mem_len: int, turns: int) -> dict:
    """Milliseconds of a step of all rows."""
    steps = {kind: step_of(kind, rows, mem_len) for kind in KINDS}
    best = dict.fromkeys(KINDS, float("inf"))
    for turn in range(turns):
        for kind, step in steps.items():
            count = 1 if kind.startswith("training") else STEPS
            start = time.process_time()
            for number in range(count):
                step(turn * count + number)
            best[kind] = min(best[kind], 1000 * (time.process_time() - start) / count)
    return {"rows": rows, "mem_len": mem_len} | best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="rows x memory")
    parser.add_argument("--turns", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = [measure(*map(int, size.split("x")), args.turns) for size in args.sizes]
    print(
        f"| rows x memory | {' | '.join(f'{kind}, ms' for kind in KINDS)} | ratio | steps a second | LSTM, steps a second |"
    )
    print("|---|" + "---:|" * (len(KINDS) + 3))
    for each in results:
        numbers = " | ".join(f"{each[kind]:.2f}" for kind in KINDS)
        ratio = each["reset, a row begins"] / min(each["no reset"], each["reset, nothing begins"])
        rates = " | ".join(f"{1000 * each['rows'] / each[kind]:,.0f}" for kind in ("reset, a row begins", "LSTM"))
        print(f"| {each['rows']} x {each['mem_len']} | {numbers} | {ratio:.2f} | {rates} |")
    result = {"processor": str(processor()), "torch": torch.__version__, "arguments": vars(args), "rows": results}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
