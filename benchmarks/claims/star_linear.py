"""Processor time of a forward and backward pass against the length of the text: a Star-Transformer and a
Transformer-XL of two layers of width 64 that reads all of it in one segment. A seed is a measurement of its own, the
median of four."""

import statistics
import time
from typing import Any

import numpy as np
import torch
from claim_runs import Claim, Record, Records, Session, Verdict, main, ruled
from matplotlib.figure import Figure
from transformers import PreTrainedModel, set_seed

from transformers_xl import StarTransformerConfig, StarTransformerModel, TransformerXLConfig, TransformerXLModel
from transformers_xl.evaluation.plots import figure, line

SHORT, LONG = [256, 512, 1024, 2048, 4096], [8192, 16384]
SIZES = {"vocab_size": 259, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "dropout": 0.0}
RUNS = {
    "Star-Transformer": {"model": "star", "lengths": SHORT + LONG},
    "Transformer-XL": {"model": "dense", "lengths": SHORT},
}
REPEATS = 5


def build(kind: str) -> PreTrainedModel:
    if kind == "star":
        return StarTransformerModel(StarTransformerConfig(**SIZES, max_position_embeddings=None))
    fields = {"mem_len": 0, "same_length": False, "intermediate_size": 256, "segment_length": SHORT[-1]}
    return TransformerXLModel(TransformerXLConfig(**SIZES, **fields))


def measure(session: Session, settings: dict[str, Any], seed: int) -> Record:
    """`milliseconds` at each of `lengths`, and the power of the length by which the last three grow."""
    set_seed(seed)
    model = build(settings["model"])
    ids = torch.from_numpy(session.held_out()[None].astype(np.int64))
    lengths, found = [length for length in settings["lengths"] if length <= ids.shape[1]], []
    for length in lengths:
        times = []
        for _ in range(REPEATS):
            start = time.process_time()
            model(ids[:, :length]).last_hidden_state.square().mean().backward()
            times.append(time.process_time() - start)
        found.append(round(1000 * statistics.median(times[1:]), 2))
    exponent = np.polyfit(np.log(lengths[-3:]), np.log(found[-3:]), 1)[0]
    return {"lengths": lengths, "milliseconds": found, "exponent": round(float(exponent), 3)}


def verdict(records: Records) -> Verdict:
    held = max(records.of("Star-Transformer", "exponent")) < 1.2 < min(records.of("Transformer-XL", "exponent"))
    opposite = records.below("Transformer-XL", "Star-Transformer", "exponent")
    shown = []
    for run, rows in records.items():
        place = min(len(SHORT), len(rows[0]["lengths"])) - 1
        milliseconds = statistics.mean(row["milliseconds"][place] for row in rows)
        shown.append(
            f"{run} n^{records.shown(run, 'exponent', 2)} up to {rows[0]['lengths'][-1]:,} tokens, "
            f"{milliseconds:.0f} ms at {SHORT[place]:,}"
        )
    return Verdict(ruled(held, opposite), "time grows as " + "; ".join(shown))


def draw(records: Records) -> Figure:
    picture, ((axes,),) = figure()
    for index, (run, rows) in enumerate(records.items()):
        means = np.mean([row["milliseconds"] for row in rows], axis=0)
        style = line(index, len(records))
        axes.plot(rows[0]["lengths"], means, label=run, **style)
        low, high = (limit([row["milliseconds"] for row in rows], axis=0) for limit in (np.min, np.max))
        axes.fill_between(rows[0]["lengths"], low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="milliseconds, forward and backward (log scale)")
    lengths = records["Star-Transformer"][0]["lengths"]
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.legend()
    return picture


CLAIM = Claim(
    name="star_linear",
    says="A Star-Transformer is linear in the length",
    source="[Guo et al., 2019](https://arxiv.org/abs/1902.09113), section 3",
    held_if="every seed grows with a power below 1.2, Transformer-XL with one above it",
    runs=RUNS,
    measure=measure,
    verdict=verdict,
    draw=draw,
    beyond="Time alone; the paper's accuracy on long texts was not tried.",
)

if __name__ == "__main__":
    main(CLAIM)
