"""What does a token cost behind 10^3 .. 10^6 remembered tokens? Milliseconds of one token, for each kind of memory.

All models have the same width and depth. None reads 10^6 tokens: time depends on how much is remembered, not on which
numbers. A short text is read, to the same place in a block. What grows with a text - the window of Transformer-XL, the
compressed vectors of the Compressive Transformer, the keys of the Memorizing Transformer - is then handed in as `mems` of
random numbers, as many as there would be (`filled`); GPT-2's cache is made of random keys and values. A state of constant
size has the same tensors behind any text, and is measured behind each number of tokens all the same.

Processor time of one thread; medians and quartiles. Up to 10^5 tokens all models take turns. Those that grow are measured
one by one behind more: together they would not fit into memory. 10^6 take 10 GB. Writes `results/remembered.json` and
`results/remembered.png`; `--draw` draws the latter again.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, GPT2Config, GPT2LMHeadModel

from transformers_xl import Memory, MemoryCache
from transformers_xl.evaluation.plots import figure, line, save
from transformers_xl.modeling.memory.memory_value import LayerMemory

RESULTS = Path(__file__).parent / "results"
SIZE = {"vocab_size": 256, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
WINDOW, BLOCK, RATE = 512, 128, 4
GROWING = {"gpt2": "GPT-2, with its cache", "transformer_xl": "Transformer-XL",
           "memorizing_transformer": "Memorizing Transformer, one layer",
           "compressive_transformer": f"Compressive Transformer, rate {RATE}"}  # fmt: skip
BOUNDED = {"block_recurrent": "Block-Recurrent Transformer", "infini_transformer": "Infini-Transformer",
           "recurrent_memory_transformer": "Recurrent Memory Transformer", "sha_rnn": "SHA-RNN"}  # fmt: skip
COUNTS = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
TOGETHER = 100_000  # up to so many remembered tokens, the memories of all models fit side by side
READ = 1_000  # at least: it fills every window


def fields_of(name: str, remembered: int) -> dict[str, Any]:
    """What a model is told beside its size."""
    if name == "transformer_xl":
        return {"mem_len": remembered}
    return {
        "compressive_transformer": {
            "mem_len": WINDOW, "compression_rate": RATE, "compressed_mem_len": (remembered - WINDOW) // RATE,
        },
        "memorizing_transformer": {"mem_len": WINDOW, "block_length": BLOCK, "num_memory_keys": remembered},
        "block_recurrent": {"mem_len": WINDOW, "block_length": BLOCK, "num_states": BLOCK},
        "infini_transformer": {"mem_len": BLOCK},
        "recurrent_memory_transformer": {"segment_length": BLOCK},
        "sha_rnn": {"mem_len": WINDOW, "num_attention_heads": 1},
    }[name]  # fmt: skip


def grown(name: str, remembered: int) -> tuple[str | None, int]:
    """Which columns of a layer grow with a text, and how many there are after so many tokens."""
    if name == "transformer_xl":
        return "columns", remembered
    if name == "memorizing_transformer":
        return "older", remembered
    if name == "compressive_transformer":
        return "older", (remembered - WINDOW) // RATE
    return None, 0


def step_of(name: str, remembered: int) -> Callable[[], None]:
    """One token behind so many."""
    if name == "gpt2":
        return gpt2(remembered)
    fields = SIZE | {"intermediate_size": 1024} | fields_of(name, remembered)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **fields)).eval()
    with torch.inference_mode():
        return stepping(model, filled(model, name, remembered))


def filled(model: Any, name: str, remembered: int) -> Any:
    """A cache of so many tokens, of which the model has read the first 1,000, and what is missing in its last block."""
    mems = model(torch.randint(0, 256, (1, READ + (remembered - READ) % BLOCK))).mems
    field, size = grown(name, remembered)
    made: dict[tuple, torch.Tensor] = {}  # the same in all layers: time does not depend on numbers

    def random(like: torch.Tensor) -> torch.Tensor:
        shape = (*like.shape[:-2], size, like.shape[-1])
        if shape not in made:
            made[shape] = torch.randn(shape)
        return made[shape]

    def full(layer: LayerMemory) -> LayerMemory:
        return layer if field is None else layer._replace(**{field: tuple(map(random, getattr(layer, field)))})

    lengths = torch.full_like(mems.lengths, size) if field == "columns" else mems.lengths
    counts = tuple(torch.full_like(each, size) for each in mems.state) if field == "older" else mems.state
    read = torch.full_like(mems.tokens_read, remembered)
    return MemoryCache(Memory(tuple(map(full, mems.layers)), lengths, read, counts))


def gpt2(remembered: int) -> Callable[[], None]:
    layers = SIZE["num_hidden_layers"]
    config = GPT2Config(
        vocab_size=256,
        bos_token_id=None,
        eos_token_id=None,
        n_embd=256,
        n_layer=layers,
        n_head=4,
        n_positions=remembered + 1000,
    )
    cache = DynamicCache(config=config)
    for layer in range(layers):
        cache.update(torch.randn(1, 4, remembered, 64), torch.randn(1, 4, remembered, 64), layer)
    return stepping(GPT2LMHeadModel(config).eval(), cache)


def stepping(model: Any, cache: Any) -> Callable[[], None]:
    """A call that generates one token more."""
    held = [cache]

    def step() -> None:
        with torch.inference_mode():
            held[0] = model(torch.tensor([[7]]), past_key_values=held[0], use_cache=True).past_key_values

    return step


def measure(counts: list[int], turns: int) -> Iterator[dict[str, dict[int, list[float]]]]:
    """Milliseconds of every turn, by model and remembered tokens: again and again, as there are more."""
    cases = [(name, count) for count in counts for name in (*GROWING, *BOUNDED)]
    together = [(name, count) for name, count in cases if count <= TOGETHER or name in BOUNDED]
    groups = [together, *([case] for case in cases if case not in together)]
    taken: dict[str, dict[int, list[float]]] = {name: {} for name in (*GROWING, *BOUNDED)}
    for group in filter(None, groups):
        for (name, count), values in in_turns({case: step_of(*case) for case in group}, turns).items():
            taken[name][count] = values
            print(name, count, round(statistics.median(values), 2), flush=True)
        yield taken


def in_turns(steps: dict[tuple[str, int], Callable[[], None]], turns: int) -> dict[tuple[str, int], list[float]]:
    taken: dict[tuple[str, int], list[float]] = {case: [] for case in steps}
    for step in steps.values():  # projects what was remembered, once, and lets buffers grow
        step()
        step()
    for _ in range(turns):
        for case, step in steps.items():
            start = time.process_time()
            step()
            taken[case].append(1000 * (time.process_time() - start))
    return taken


def row(values: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return {"median_ms": round(median, 3), "quartile_1_ms": round(low, 3), "quartile_3_ms": round(high, 3)}


def draw(result: dict[str, Any], path: Path) -> None:
    picture, axes = figure(width=9.5, height=4.6)
    axis, labels = axes[0, 0], GROWING | BOUNDED
    for index, (name, rows) in enumerate(result["models"].items()):
        counts = [int(count) for count in rows]
        median, low, high = ([each[key] for each in rows.values()] for key in
                             ("median_ms", "quartile_1_ms", "quartile_3_ms"))  # fmt: skip
        style = line(index, len(labels))
        axis.plot(counts, median, **style, label=labels[name])
        axis.fill_between(counts, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axis.set(
        xscale="log", yscale="log", xlabel="remembered tokens", ylabel="milliseconds of one token, processor time"
    )
    picture.legend(loc="outside right center")
    save(picture, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--draw", action="store_true", help="draw results/remembered.json, and measure nothing")
    args = parser.parse_args()
    file = RESULTS / "remembered.json"
    if not args.draw:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        about = {"size": SIZE, "window": WINDOW, "block": BLOCK, "rate": RATE, "turns": args.turns,
                 "torch": torch.__version__, "machine": platform.machine()}  # fmt: skip
        for taken in measure(args.counts, args.turns):
            load = [round(each, 1) for each in os.getloadavg()]
            models = {name: {count: row(values) for count, values in by.items()} for name, by in taken.items()}
            file.write_text(json.dumps(about | {"load": load, "models": models}, indent=1) + "\n")
    result = json.loads(file.read_text())
    for name, rows in result["models"].items():
        print(name, {count: each["median_ms"] for count, each in rows.items()})
    draw(result, file.with_suffix(".png"))


if __name__ == "__main__":
    main()
