"""What the Streaming Transformer costs beside a Transformer-XL of as many parameters: a token of `generate()` with a full
memory, plain and by a compiled step, and a step of training, in turns.

4 layers, memory 128, bytes, float32, one thread; processor time, the fastest of the turns. Writes
`results/streaming.json`, whose rows of other widths stay.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from transformers_xl import compile_generation
from transformers_xl.files.processor import processor

RESULT = Path(__file__).parent / "results" / "streaming.json"
MEM_LEN, SEGMENT, LANES, VOCAB = 128, 64, 16, 259
# heads, and inner widths with which both have as many parameters
SIZES = {
    128: (4, {"streaming_transformer": 296, "transformer_xl": 892}),
    512: (8, {"streaming_transformer": 1408, "transformer_xl": 2368}),
}
TOKENS = 50  # of a turn


def model_of(model_type: str, width: int) -> PreTrainedModel:
    heads, inner = SIZES[width]
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        model_type, vocab_size=VOCAB, hidden_size=width, num_hidden_layers=4, num_attention_heads=heads,
        intermediate_size=inner[model_type], mem_len=MEM_LEN, segment_length=SEGMENT, dropout=0.0,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def generation(model: PreTrainedModel) -> Callable[[], None]:
    """Generate tokens after a text that fills the memory."""
    before = torch.randint(3, VOCAB, (1, 2 * MEM_LEN))
    mems = model.eval()(before, use_cache=True).mems

    def run() -> None:
        options = {"mems": mems, "max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
        model.generate(before[:, -1:], pad_token_id=0, **options)

    return run


def compiled_generation(model: PreTrainedModel) -> Callable[[], None]:
    """The same by a compiled step."""
    compile_generation(model.eval())
    return generation(model)


def training(model: PreTrainedModel) -> Callable[[], None]:
    """A step with a full memory: forward, backward, clipping, AdamW."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    ids, kept = torch.randint(3, VOCAB, (LANES, 4 * SEGMENT + 1)), {}
    with torch.no_grad():
        kept["mems"] = model(ids[:, : 3 * SEGMENT]).mems

    def run() -> None:
        output = model(ids[:, -SEGMENT - 1 : -1], shift_labels=ids[:, -SEGMENT:], **kept)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        kept["mems"] = output.mems

    return run


def measure(width: int, turns: int) -> dict:
    """Milliseconds, of both models in turns."""
    row: dict = {"width": width, "parameters": {}, "token": {}, "compiled token": {}, "step": {}}
    for what, of, count in (
        ("token", generation, TOKENS),
        ("compiled token", compiled_generation, TOKENS),
        ("step", training, 1),
    ):
        models = {name: model_of(name, width) for name in SIZES[width][1]}
        runs = {name: of(model) for name, model in models.items()}
        best = dict.fromkeys(runs, float("inf"))
        for turn in range(turns + 1):
            for name, run in runs.items():
                start = time.process_time()
                run()
                elapsed = 1000 * (time.process_time() - start) / count
                best[name] = min(best[name], elapsed) if turn else best[name]  # the first one warms up
        row[what] = {name: round(best[name], 3) for name in best}
        row["parameters"] = {name: model.num_parameters() for name, model in models.items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("-o", "--output", type=Path, default=RESULT, help="rows of other widths in it stay")
    args = parser.parse_args()
    torch.set_num_threads(1)
    where = {"processor": str(processor()), "torch": torch.__version__, "turns": args.turns}
    rows = {width: measure(width, args.turns) | where for width in args.widths}
    held = json.loads(args.output.read_text(encoding="utf-8"))["rows"] if args.output.is_file() else []
    rows = {row["width"]: row for row in held} | rows  # of widths that were not measured now
    found = {"rows": [rows[width] for width in sorted(rows)]}
    args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
