"""What do positions that run on cost complex-order embeddings? The same text, with rows that begin anew more or less often.

Trains small models on the text that every CPython ships, 16 rows of segments of 64 bytes with memory. A row begins anew
(`reset`) every so many segments, each row at its own time, or never. The held-out end of the text is read in the same way.
Writes `results/complex_order.json`.
"""

import argparse
import json
import math
import platform
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

import transformers_xl  # noqa: F401  registers the variants
from transformers_xl.streams.text_stream import TextStream

RESULTS = Path(__file__).parent / "results"
SEGMENT, LANES, HELD_OUT_SEGMENTS = 64, 16, 16
MODELS = {
    "transformer_xl": {"intermediate_size": 256},
    # complex maps of equal width have half the parameters
    "complex_order_transformer": {"intermediate_size": 512},
}


def read(model, stream: TextStream, steps: int, every: int, optimizer=None, schedule=None) -> float:
    """Bits per byte of the last `HELD_OUT_SEGMENTS` segments of each row; with an optimizer, it trains."""
    memory, losses = {}, []
    for step in range(steps):
        items = [stream[step * LANES + lane] for lane in range(LANES)]
        batch = {name: torch.stack([item[name] for item in items]) for name in ("input_ids", "shift_labels")}
        reset = torch.tensor([every > 0 and (step + lane) % every == 0 for lane in range(LANES)])
        outputs = model(**batch, reset=reset, **memory)
        memory = {"mems": outputs.mems, "mems_mask": outputs.mems_mask}
        losses.append(outputs.loss.item())
        if optimizer is not None:
            optimizer.zero_grad()
            outputs.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return float(np.mean(losses[-HELD_OUT_SEGMENTS:])) / math.log(2)


def run(model_type: str, every: int, steps: int, seed: int, texts: tuple[TextStream, TextStream], **fields) -> dict:
    transformers.set_seed(seed)
    config = AutoConfig.for_model(
        model_type, vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, mem_len=SEGMENT,
        dropout=0.0, **MODELS[model_type], **fields,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 15) * (1 - step / steps)
    )
    read(model, texts[0], steps, every, optimizer, schedule)
    with torch.no_grad():
        held_out = read(model.eval(), texts[1], HELD_OUT_SEGMENTS, every)
    return {"model": model_type, **fields, "segments_per_text": every or None, "seed": seed, "bits_per_byte": held_out}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode("utf-8"), dtype=np.uint8)
    held_out = LANES * SEGMENT * HELD_OUT_SEGMENTS + 1
    texts = TextStream(text[:-held_out], SEGMENT, LANES), TextStream(text[-held_out:], SEGMENT, LANES)
    settings = [(model, every, {}) for every in (1, 4, 16, 0) for model in MODELS]
    settings += [
        ("complex_order_transformer", every, {"frequency_per": "dimension", "phase_per": "none"}) for every in (4, 0)
    ]
    runs = []
    for model_type, every, fields in settings:
        for seed in range(args.seeds):
            runs.append(run(model_type, every, args.steps, seed, texts, **fields))
            print(json.dumps(runs[-1]), flush=True)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "complex_order.json").write_text(
        json.dumps({"steps": args.steps, "versions": versions, "runs": runs}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
