"""What memory is worth to a pretrained model: a small Llama, fine-tuned with and without it on the same tokens.

    python benchmarks/bench_pretrained_memory.py pretrain BASE       once, on windows of 128 bytes drawn by chance
    python benchmarks/bench_pretrained_memory.py finetune BASE /var/log/dpkg.log --seeds 0 1 2
    python benchmarks/bench_pretrained_memory.py cuts BASE           what sinks hang on, without fine-tuning

The base learns from the source of Python's standard library, one byte a token. It is fine-tuned on the log of a package
manager, whose last lines are held out: times, actions, names and versions come back after several lines, long after they
have left 128 bytes. All arms start from the same weights and read the same number of tokens in steps of the same size; the
score after the same seconds of processor time stands beside. What is scored is an average of the weights, so that one
constant learning rate serves all.

Writes `results/pretrained_memory.json` and `docs/images/pretrained_memory.png`, or `results/sinks_and_cuts.json`.
"""

import argparse
import copy
import json
import math
import random
import statistics
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from transformers_xl import add_memory
from transformers_xl.evaluation.plots import figure, line, save
from transformers_xl.files.processor import processor

RESULT = Path(__file__).parent / "results" / "pretrained_memory.json"
CUTS_RESULT = RESULT.with_name("sinks_and_cuts.json")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "pretrained_memory.png"
CONTEXT = 128  # bytes the base was trained on
TOKENS_PER_STEP = 8 * CONTEXT
HELD_OUT = 40_000  # last bytes of the log
SCORED_LANES, SKIPPED = 4, 512  # scores begin where every memory is full
CUT_BYTES = 4096  # of each lane, where cuts are compared
SIZE = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": CONTEXT, "initializer_range": 0.06,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def standard_library() -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes of the files of Python's library, in an order drawn once, and of the first files, which are held out."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "test", "tests", "idle_test", "__pycache__"}
    files = sorted(path for path in root.rglob("*.py") if not left_out & set(path.relative_to(root).parts))
    random.Random(0).shuffle(files)
    held_out, learned = (to_ids(b"".join(path.read_bytes() for path in part)) for part in (files[:24], files[24:]))
    return learned, held_out


def to_ids(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def pretrain(folder: Path, steps: int) -> None:
    """A Llama that has seen nothing longer than `CONTEXT`."""
    torch.manual_seed(0)
    text, _ = standard_library()
    model = LlamaForCausalLM(LlamaConfig(**SIZE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps + 1, pct_start=0.05)
    columns = torch.arange(CONTEXT + 1)
    for step in range(steps):
        starts = torch.randint(len(text) - CONTEXT - 1, (TOKENS_PER_STEP // CONTEXT, 1))
        rows = text[starts + columns]
        logits = model(rows[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.transpose(1, 2), rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            print(f"step {step} {loss.item() / math.log(2):.3f} bits {time.process_time():.0f} s", flush=True)
    model.save_pretrained(folder)
    (folder / "pretraining.json").write_text(json.dumps({"steps": steps, "seconds": time.process_time()}))


@dataclass
class Arm:
    """One way to fine-tune.

    Attributes:
        call: tokens of a row in one call, in training.
        memory: what `add_memory` is told; None: the base as it is, every call from nothing.
        grows_to: the length that the window has after half of the tokens, to which it grows step by step.
    """

    call: int = CONTEXT
    memory: dict | None = None
    grows_to: int | None = None


WINDOW = {"kind": "window", "num_sinks": 0}
TOKEN_MEMORY = {"kind": "tokens", "num_memory_tokens": 8, "segment_length": CONTEXT}
ARMS = {
    "no memory, segments of 128": Arm(),
    "no memory, segments of 512": Arm(call=512),
    "window of 128": Arm(memory=WINDOW | {"mem_len": 128}),
    "window of 256": Arm(memory=WINDOW | {"mem_len": 256}),
    "window growing to 512": Arm(memory=WINDOW | {"mem_len": 128}, grows_to=512),
    "8 tokens, through 1 segment": Arm(memory=TOKEN_MEMORY | {"bptt_segments": 1}),
    "8 tokens, through 4 segments": Arm(call=512, memory=TOKEN_MEMORY | {"bptt_segments": 4}),
}


def build(base: Path, arm: Arm) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(base)
    return model if arm.memory is None else add_memory(model, **arm.memory)


def reader(model: PreTrainedModel, arm: Arm) -> Callable[[torch.Tensor], torch.Tensor]:
    """Logits of a segment after those read before, by memory or from nothing."""
    carried: dict = {}

    def read(ids: torch.Tensor) -> torch.Tensor:
        if arm.memory is None:
            return model(ids, use_cache=False).logits
        outputs = model(ids, **carried)
        carried.update(mems=outputs.mems)
        return outputs.logits

    return read


@torch.no_grad()
def score(model: PreTrainedModel, arm: Arm, text: torch.Tensor) -> dict[str, float]:
    """Bits per byte, of the same bytes for all arms; without memory also by a window that moves half its length."""
    model.eval()
    if arm.memory is not None:
        return {"with memory": _score(model, arm, text, CONTEXT, context=0)}
    ways = {"segments": 0, "moving window": arm.call // 2}
    return {way: _score(model, arm, text, arm.call - context, context) for way, context in ways.items()}


def _score(model: PreTrainedModel, arm: Arm, text: torch.Tensor, step: int, context: int) -> float:
    length = (len(text) - 1) // SCORED_LANES
    rows = torch.stack([text[lane * length : (lane + 1) * length + 1] for lane in range(SCORED_LANES)])
    read, nats, count = reader(model, arm), 0.0, 0
    last = SKIPPED + (length - SKIPPED) // 512 * 512  # every way scores the bytes from SKIPPED to here
    for start in range(0, last, step):
        first = max(0, start - context)
        logits = read(rows[:, first : start + step])[:, start - first :]
        if start >= SKIPPED:
            targets = rows[:, start + 1 : start + step + 1]
            nats += cross_entropy(logits.transpose(1, 2), targets, reduction="sum").item()
            count += targets.numel()
    return nats / count / math.log(2)


def grown(arm: Arm, share: float) -> int:
    """The length of a growing window after this share of the tokens."""
    first, last = arm.memory["mem_len"], arm.grows_to
    return first + int(min(1.0, 2 * share) * (last - first))


def as_long_as(average: PreTrainedModel, model: PreTrainedModel) -> PreTrainedModel:
    """`average`, with the memory length that `model` has."""
    if hasattr(model, "resize_memory") and model.config.kind == "window":
        average.resize_memory(model.config.mem_len)
    return average


def finetune(base: Path, log: bytes, arm: Arm, seed: int, tokens: int, seconds: float, learning_rate: float) -> dict:
    """Bits per byte after `tokens`, and after `seconds` of processor time."""
    torch.manual_seed(seed)
    learned, held_out = to_ids(log[:-HELD_OUT]), to_ids(log[-HELD_OUT:])
    learned = learned.roll(-random.Random(seed).randrange(len(learned)))  # every seed begins at another place
    model = build(base, arm).train()
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    lanes = TOKENS_PER_STEP // arm.call
    length = len(learned) // lanes
    rows = learned[: lanes * length].view(lanes, length)
    read, spent, num_read, start = reader(model, arm), 0.0, 0, 0
    result: dict = {}
    model.train()
    while len(result) < 3:
        began = time.process_time()
        if start + arm.call >= length:
            read, start = reader(model, arm), 0
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (num_read + TOKENS_PER_STEP) / (50 * TOKENS_PER_STEP))
        if arm.grows_to is not None:
            model.resize_memory(grown(arm, num_read / tokens))
        logits = read(rows[:, start : start + arm.call])
        loss = cross_entropy(logits.transpose(1, 2), rows[:, start + 1 : start + arm.call + 1])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        start, num_read = start + arm.call, num_read + TOKENS_PER_STEP
        with torch.no_grad():
            kept = min(0.99, num_read / (num_read + 10 * TOKENS_PER_STEP))
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 1 - kept)
        spent += time.process_time() - began
        if "same tokens" not in result and num_read >= tokens:
            result |= {"same tokens": score(as_long_as(average, model), arm, held_out), "seconds": spent}
        if "same time" not in result and spent >= seconds:
            result["same time"] = score(as_long_as(average, model), arm, held_out)
    return result


def ways_of(rows: list[dict], moment: str) -> dict[tuple[str, str], list[float]]:
    """The scores of all seeds, of each arm and way to read."""
    scores: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        for way, bits in row.get(moment, {}).items():
            scores.setdefault((row["arm"], way), []).append(bits)
    return scores


def show(result: dict) -> None:
    """Print the table, and draw the scores after the same tokens."""
    before, tokens, seconds = (ways_of(result["rows"], moment) for moment in ("before", "same tokens", "same time"))
    print("| fine-tuned | read with | before | same tokens | same time |\n|---|---|---:|---:|---:|")
    for key in before:
        cells = [f"{before[key][0]:.2f}"]
        for scores in (tokens[key], seconds[key]):
            cells.append(f"{statistics.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})")
        print(f"| {' | '.join((*key, *cells))} |")
    picture, ((axes,),) = figure(width=7, height=3.5)
    for index, (label, scores) in enumerate((("same tokens", tokens), ("same processor time", seconds))):
        places = [place + 0.15 * (2 * index - 1) for place, key in enumerate(scores) for _ in scores[key]]
        values = [bits for each in scores.values() for bits in each]
        axes.plot(values, places, label=label, **(line(index, 2) | {"linestyle": ""}))
    axes.set_yticks(range(len(tokens)), [f"{arm}: {way}" for arm, way in tokens])
    axes.invert_yaxis()
    axes.set(xlabel="bits per byte (axis not from 0)", title="A Llama fine-tuned on a log, a mark a seed")
    picture.legend(loc="outside lower center", ncols=2)
    save(picture, PICTURE)


@torch.no_grad()
def cuts(base: Path, mem_len: int, num_sinks: int, calls: list[int]) -> dict:
    """Bits per byte of held-out files by calls of so many bytes, and how far each byte's bits are from those of the first
    of the `calls`: where every call is of one byte, sinks stand in front of every byte's own window."""
    _, text = standard_library()
    rows = text[: SCORED_LANES * (CUT_BYTES + 1)].view(SCORED_LANES, -1)
    memory = {"kind": "window", "mem_len": mem_len, "num_sinks": num_sinks}
    model, found = build(base, Arm(memory=memory)).eval(), {}
    for call in calls:
        read = reader(model, Arm(memory=memory))
        pieces = [read(piece) for piece in rows[:, :-1].split(call, dim=1)]
        nats = cross_entropy(torch.cat(pieces, dim=1).transpose(1, 2), rows[:, 1:], reduction="none")
        found[call] = nats[:, SKIPPED:] / math.log(2)
    scores = [
        {
            "call": call,
            "bits": bits.mean().item(),
            "mean_change": (bits - found[calls[0]]).abs().mean().item(),
            "largest_change": (bits - found[calls[0]]).abs().max().item(),
        }
        for call, bits in found.items()
    ]
    return memory | {"scores": scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    first = tasks.add_parser("pretrain")
    first.add_argument("base", type=Path)
    first.add_argument("--steps", type=int, default=5000)
    second = tasks.add_parser("finetune")
    second.add_argument("base", type=Path)
    second.add_argument("log", type=Path)
    second.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    second.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    second.add_argument("--tokens", type=int, default=200_000)
    second.add_argument("--seconds", type=float, default=30)
    second.add_argument("--learning-rate", type=float, default=5e-4)
    third = tasks.add_parser("cuts")
    third.add_argument("base", type=Path)
    third.add_argument("--windows", type=int, nargs="+", default=[64, 128])
    third.add_argument("--calls", type=int, nargs="+", default=[1, 16, 64, 256, 1024])
    tasks.add_parser("show", help="the table and the picture of what was measured")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.task == "pretrain":
        return pretrain(args.base, args.steps)
    if args.task == "finetune":
        RESULT.write_text(json.dumps(measure(args), indent=1) + "\n", encoding="utf-8")
    if args.task == "cuts":
        pairs = [(mem_len, sinks) for mem_len in args.windows for sinks in (0, 4)]
        found = [cuts(args.base, mem_len, sinks, args.calls) for mem_len, sinks in pairs]
        terms = {"pretraining": json.loads((args.base / "pretraining.json").read_text(encoding="utf-8"))}
        terms |= {"torch": torch.__version__, "processor": str(processor()), "rows": found}
        CUTS_RESULT.write_text(json.dumps(terms, indent=1) + "\n", encoding="utf-8")
        return print(json.dumps(found, indent=1))
    return show(json.loads(RESULT.read_text(encoding="utf-8")))


def measure(args: argparse.Namespace) -> dict:
    """The scores of all arms and seeds, and under what they were measured."""
    log = args.log.read_bytes()
    held_out = to_ids(log[-HELD_OUT:])
    rows = []
    for name in args.arms:
        rows.append({"arm": name, "before": score(build(args.base, ARMS[name]), ARMS[name], held_out)})
        print(json.dumps(rows[-1]), flush=True)
    for seed in args.seeds:
        for name in args.arms:
            result = finetune(args.base, log, ARMS[name], seed, args.tokens, args.seconds, args.learning_rate)
            rows.append({"arm": name, "seed": seed} | result)
            print(json.dumps(rows[-1]), flush=True)
    terms = {name: getattr(args, name) for name in ("tokens", "seconds", "learning_rate")}
    pretraining = json.loads((args.base / "pretraining.json").read_text(encoding="utf-8"))
    return terms | {
        "size": SIZE,
        "pretraining": pretraining,
        "log_bytes": len(log),
        "torch": torch.__version__,
        "processor": str(processor()),
        "rows": rows,
    }


if __name__ == "__main__":
    main()
