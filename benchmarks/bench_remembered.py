"""What does a token cost behind 10^3 .. 10^6 remembered tokens? Milliseconds of one token, for each kind of memory.

All models have the same width and depth. A memory that grows with what it remembers - the window of Transformer-XL, the
window and compressed vectors of the Compressive Transformer, the cache of GPT-2 - is not filled by reading: a fresh row of
`initial_memory="zeros"` remembers zeros in every place, and GPT-2's cache is made of random keys and values. Time does not
depend on the numbers. They end at 10^5 here: keys, values and positions of 10^6 tokens are 12 GB in Transformer-XL.

A state of constant size is read in: 1,000 and 10,000 tokens of random text. What comes behind has the same tensors, and is
drawn as a dotted line, not measured. Processor time of one thread, all models in turns, medians and quartiles. Writes
`results/remembered.json` and `results/remembered.png`; `--draw` draws the latter again.
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

import transformers_xl as xl
from transformers_xl.evaluation.plots import figure, line, save

RESULTS = Path(__file__).parent / "results"
SIZE = {"vocab_size": 256, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
WINDOW, BLOCK = 512, 128
GROWING = {"gpt2": "GPT-2, with its cache", "transformer_xl": "Transformer-XL",
           "compressive_transformer": "Compressive Transformer, rate 4"}  # fmt: skip
BOUNDED = {"block_recurrent": "Block-Recurrent Transformer", "infini_transformer": "Infini-Transformer",
           "recurrent_memory_transformer": "Recurrent Memory Transformer", "sha_rnn": "SHA-RNN"}  # fmt: skip
READ = (1_000, 10_000)
LAST = 1_000_000


def growing(name: str, remembered: int) -> Callable[[], None]:
    """One token behind so many."""
    if name == "gpt2":
        return gpt2(remembered)
    fields: dict[str, Any] = {"mem_len": remembered, "initial_memory": "zeros", "intermediate_size": 1024}
    model: Any
    if name == "transformer_xl":
        model = xl.TransformerXLForCausalLM(xl.TransformerXLConfig(**SIZE, **fields))
    else:
        fields["mem_len"] = min(WINDOW, remembered // 2)
        far = {"compression_rate": 4, "compressed_mem_len": (remembered - fields["mem_len"]) // 4}
        model = xl.CompressiveTransformerForCausalLM(xl.CompressiveTransformerConfig(**SIZE, **fields, **far))
    return stepping(model.eval(), None)


def gpt2(remembered: int) -> Callable[[], None]:
    config = GPT2Config(vocab_size=256, n_embd=256, n_layer=4, n_head=4, n_positions=remembered + 1000)
    cache = DynamicCache(config=config)
    for layer in range(4):
        cache.update(torch.randn(1, 4, remembered, 64), torch.randn(1, 4, remembered, 64), layer)
    return stepping(GPT2LMHeadModel(config).eval(), cache)


def bounded(name: str) -> Iterator[tuple[int, Callable[[], None]]]:
    """One token behind the tokens of `READ`, which it reads first."""
    fields: dict[str, dict[str, Any]] = {
        "block_recurrent": {"mem_len": WINDOW, "block_length": BLOCK, "num_states": BLOCK},
        "infini_transformer": {"mem_len": BLOCK},
        "recurrent_memory_transformer": {"segment_length": BLOCK},
        "sha_rnn": {"mem_len": WINDOW, "num_attention_heads": 1},
    }
    config = AutoConfig.for_model(name, **SIZE | fields[name] | {"intermediate_size": 1024})
    model = AutoModelForCausalLM.from_config(config).eval()
    ids, cache, before = torch.randint(0, 256, (1, READ[-1])), None, 0
    for count in READ:
        for start in range(before, count, WINDOW):
            piece = ids[:, start : min(start + WINDOW, count)]
            cache = model(piece, past_key_values=cache, use_cache=True, logits_to_keep=1).past_key_values
        before = count
        yield count, stepping(model, cache.copy())


def stepping(model: Any, cache: Any) -> Callable[[], None]:
    """A call that generates one token more."""
    held = [cache]

    def step() -> None:
        with torch.inference_mode():
            held[0] = model(torch.tensor([[7]]), past_key_values=held[0], use_cache=True).past_key_values

    return step


def measure(counts: list[int], turns: int) -> dict[str, dict[int, list[float]]]:
    """Milliseconds of every turn, by model and remembered tokens."""
    steps = {(name, count): growing(name, count) for name in GROWING for count in counts}
    with torch.inference_mode():
        steps |= {(name, count): step for name in BOUNDED for count, step in bounded(name)}
    for step in steps.values():  # projects what was remembered, once
        step()
        step()
    taken: dict[str, dict[int, list[float]]] = {name: {} for name in (*GROWING, *BOUNDED)}
    for _ in range(turns):
        for (name, count), step in steps.items():
            start = time.process_time()
            step()
            taken[name].setdefault(count, []).append(1000 * (time.process_time() - start))
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
        if name in BOUNDED:
            axis.plot([counts[-1], LAST], [median[-1]] * 2, ":", color=style["color"], linewidth=1)
    axis.set(
        xscale="log", yscale="log", xlabel="remembered tokens", ylabel="milliseconds of one token, processor time"
    )
    axis.set_title("Dotted: a state of constant size, not measured there")
    picture.legend(loc="outside right center")
    save(picture, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 3_000, 10_000, 30_000, 100_000])
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--draw", action="store_true", help="draw results/remembered.json, and measure nothing")
    args = parser.parse_args()
    file = RESULTS / "remembered.json"
    if not args.draw:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        taken = measure(args.counts, args.turns)
        rows = {name: {count: row(values) for count, values in by.items()} for name, by in taken.items()}
        result = {"size": SIZE, "window": WINDOW, "block": BLOCK, "turns": args.turns, "torch": torch.__version__,
                  "machine": platform.machine(), "load": [round(each, 1) for each in os.getloadavg()],
                  "models": rows}  # fmt: skip
        file.write_text(json.dumps(result, indent=1) + "\n")
    result = json.loads(file.read_text())
    for name, rows in result["models"].items():
        print(name, {count: each["median_ms"] for count, each in rows.items()})
    draw(result, file.with_suffix(".png"))


if __name__ == "__main__":
    main()
