"""What leaving early saves and costs: Elbayad et al., 2020, https://arxiv.org/abs/1910.10073, section 4.

Trains a small Depth-adaptive Transformer on bytes of a text, then lets tokens leave at several confidence thresholds:
layers used per token, bits per byte on the held-out end of the text, and milliseconds per generated token, beside the
same model cut after a fixed layer. All on one thread and in processor time, generation in turns, so that what else the
machine does counts little. Writes `results/depth.json` and `.png`; `--draw` draws the latter again.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
import transformers

from transformers_xl import DepthAdaptiveTransformerConfig, DepthAdaptiveTransformerForCausalLM
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.bits_per_byte import bits_per_byte
from transformers_xl.evaluation.plots import figure, save, styled

RESULTS = Path(__file__).parent / "results"
SEGMENT, LANES, WARMUP, NEVER = 64, 8, 50, 2.0
THRESHOLDS = [None, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]


def train(text: np.ndarray, args: argparse.Namespace) -> tuple[DepthAdaptiveTransformerForCausalLM, int]:
    """A model trained for `args.seconds`, and the number of its steps."""
    config = DepthAdaptiveTransformerConfig(
        vocab_size=256, hidden_size=args.width, num_hidden_layers=args.layers, num_attention_heads=4,
        intermediate_size=4 * args.width, mem_len=2 * SEGMENT, segment_length=SEGMENT, dropout=0.0,
    )  # fmt: skip
    model = DepthAdaptiveTransformerForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP))
    stream, mems, steps, start = TextStream(text, SEGMENT, LANES), None, 0, time.process_time()
    while time.process_time() - start < args.seconds:
        first = steps % stream.segments * LANES
        items = [stream[first + lane] for lane in range(LANES)]
        batch = {name: torch.stack([item[name] for item in items]) for name in ("input_ids", "shift_labels")}
        outputs = model(**batch, mems=mems if first else None)
        mems = outputs.mems
        optimizer.zero_grad()
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        steps += 1
        if steps % 50 == 0:
            print(f"step {steps}: {outputs.loss.item():.3f} nats, mean of all layers", flush=True)
    return model.eval(), steps


class Depth:
    """Layers used per token, while it listens."""

    def __init__(self, model: DepthAdaptiveTransformerForCausalLM):
        self.layers: list[torch.Tensor] = []
        model.register_forward_hook(lambda module, arguments, output: self.layers.append(output.exit_layers.flatten()))

    def mean(self) -> float:
        layers = torch.cat(self.layers)
        self.layers.clear()
        return layers[layers > 0].double().mean().item()


def measure(model: DepthAdaptiveTransformerForCausalLM, text: np.ndarray, args: argparse.Namespace) -> list[dict]:
    """A row for every threshold, and for every layer that all tokens leave after."""
    depth, layers = Depth(model), model.config.num_hidden_layers
    rows = [{"kind": "adaptive", "thresholds": threshold} for threshold in THRESHOLDS]
    rows += [{"kind": "fixed", "thresholds": [NEVER] * (n - 1) + [0.0] * (layers - n)} for n in range(1, layers)]
    held_out = text[: args.bytes]
    for row in rows:
        model.config.confidence_thresholds = row["thresholds"]
        row["bits_per_byte"] = bits_per_byte(model, held_out, lanes=4)
        row["layers_per_token"] = depth.mean()
    prompt = torch.from_numpy(held_out[None, :SEGMENT].astype(np.int64))
    times, used = [[] for _ in rows], [[] for _ in rows]
    for turn in range(args.turns):
        for row, its_times, its_layers in zip(rows, times, used, strict=True):
            model.config.confidence_thresholds = row["thresholds"]
            transformers.set_seed(turn)
            start = time.process_time()
            model.generate(prompt, max_new_tokens=args.tokens, do_sample=True, top_k=0, pad_token_id=0)
            its_times.append(1000 * (time.process_time() - start) / args.tokens)
            its_layers.append(torch.cat(depth.layers[1:]).double().mean().item())  # without the prompt
            depth.layers.clear()
    for row, its_times, its_layers in zip(rows, times, used, strict=True):
        row["generate_ms_per_token"] = statistics.median(its_times)
        row["generate_layers_per_token"] = statistics.mean(its_layers)
    return rows


@styled
def draw(rows: list[dict], path: Path) -> None:
    picture, ((left, right),) = figure(columns=2)
    for kind, style, label in (
        ("fixed", "--s", "all tokens exit after the same layer"),
        ("adaptive", "-o", "thresholds"),
    ):
        mine = [row for row in rows if row["kind"] == kind or row["thresholds"] is None]
        mine.sort(key=lambda row: row["layers_per_token"])
        color = {"fixed": "dimgray", "adaptive": "tab:blue"}[kind]
        left.plot(
            [row["layers_per_token"] for row in mine], [row["bits_per_byte"] for row in mine], style, color=color,
            label=label,
        )  # fmt: skip
        mine.sort(key=lambda row: row["generate_layers_per_token"])
        right.plot(
            [row["generate_layers_per_token"] for row in mine], [row["generate_ms_per_token"] for row in mine], style,
            color=color, label=label,
        )  # fmt: skip
    for row in rows:
        if row["kind"] == "adaptive":
            place = (row["layers_per_token"], row["bits_per_byte"])
            name, offset = ("never", (-10, -14)) if row["thresholds"] is None else (str(row["thresholds"]), (4, 4))
            left.annotate(name, place, textcoords="offset points", xytext=offset, fontsize="small")
    left.set(
        xlabel="layers per token",
        ylabel="bits per byte, held-out text (axis not from 0)",
        title="Prediction, one seed",
    )
    right.set(xlabel="layers per generated token", ylabel="generate(), ms of one thread per token", ylim=(0, None))
    right.set_title("Generation")
    left.legend()
    right.legend()
    save(picture, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--text", type=Path, help="a file, its last 5 %% held out; without it, what every CPython ships"
    )
    parser.add_argument("--seconds", type=float, default=110.0, help="processor time of the training")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--bytes", type=int, default=16384, help="held-out bytes that are scored")
    parser.add_argument("--tokens", type=int, default=100, help="tokens that each generation makes")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--draw", action="store_true", help="draw results/depth.json, and measure nothing")
    args = parser.parse_args()
    if args.draw:
        return draw(json.loads((RESULTS / "depth.json").read_text())["rows"], RESULTS / "depth.png")
    transformers.set_seed(0)
    torch.set_num_threads(1)
    shipped = "\n".join(topics[name] for name in sorted(topics)).encode("utf-8")
    text = np.frombuffer(args.text.read_bytes() if args.text else shipped, dtype=np.uint8)
    end = len(text) - len(text) // 20
    model, steps = train(text[:end], args)
    rows = measure(model, text[end:], args)
    full = rows[0]["generate_ms_per_token"]
    print(f"{steps} steps\nthreshold  layers  bits per byte  generate(): layers  ms/token       speed-up")
    for row in rows:
        name = row["thresholds"] if row["kind"] == "adaptive" else f"layer {row['layers_per_token']:.0f}"
        print(
            f"{name!s:>9}  {row['layers_per_token']:6.2f}  {row['bits_per_byte']:13.3f}  "
            f"{row['generate_layers_per_token']:18.2f}  {row['generate_ms_per_token']:8.2f}  "
            f"{full / row['generate_ms_per_token']:13.2f}"
        )
    name = args.text.name if args.text else "pydoc topics"
    result = {
        "arguments": vars(args) | {"text": name}, "steps": steps, "parameters": model.num_parameters(),
        "segment_length": SEGMENT, "lanes": LANES, "rows": rows, "torch": torch.__version__,
        "transformers": transformers.__version__, "machine": f"{platform.machine()}, 1 thread",
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "depth.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(rows, RESULTS / "depth.png")


if __name__ == "__main__":
    main()
