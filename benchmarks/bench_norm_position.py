"""Does post-norm need warm-up, and pre-norm not? Xiong et al., 2020, https://arxiv.org/abs/2002.04745, at small scale.

Trains the same Transformer-XL four times on the text that every CPython ships: pre- and post-norm, with and without a
linear warm-up of the learning rate, over several seeds. Before training, it takes the gradient norm of each layer's last
feed-forward matrix, which the paper derives to fall with depth for pre-norm and to be large near the output for post-norm.
`claims/pre_norm.py` scores held-out text at a smaller size, where the difference is not seen; this is the size at which it
is, and the gradients. Writes `results/norm_position.json` (losses in nats) and `.png` (in bits); `--draw` draws the latter
again.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
import transformers

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.plots import figure, save, styled

RESULTS = Path(__file__).parent / "results"
SEGMENT, LANES = 64, 16


def build(norm_position: str, layers: int, seed: int) -> TransformerXLForCausalLM:
    transformers.set_seed(seed)
    config = TransformerXLConfig(
        vocab_size=256, hidden_size=96, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=384,
        mem_len=SEGMENT, segment_length=SEGMENT, dropout=0.0, norm_position=norm_position,
        initializer_range=(2 / (96 + 96)) ** 0.5,  # Xavier for square matrices, as in the paper
    )  # fmt: skip
    return TransformerXLForCausalLM(config).train()


def batches(steps: int) -> list[dict[str, torch.Tensor]]:
    text = "\n".join(topics[name] for name in sorted(topics)).encode("utf-8")
    stream = TextStream(np.frombuffer(text, dtype=np.uint8), SEGMENT, LANES)
    items = [[stream[step * LANES + lane] for lane in range(LANES)] for step in range(min(steps, stream.segments))]
    return [{name: torch.stack([item[name] for item in step]) for name in step[0]} for step in items]


def gradients_by_layer(norm_position: str, layers: int, seed: int, batch: dict[str, torch.Tensor]) -> list[float]:
    model = build(norm_position, layers, seed)
    model(batch["input_ids"], shift_labels=batch["shift_labels"]).loss.backward()
    return [layer.mlp.fc2.weight.grad.norm().item() for layer in model.model.layers]


def train(norm_position: str, warmup: int, args: argparse.Namespace, seed: int, data: list[dict]) -> list[float]:
    model = build(norm_position, args.layers, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(1, warmup)))
    mems, losses = None, []
    for batch in data:
        outputs = model(batch["input_ids"], shift_labels=batch["shift_labels"], mems=mems)
        mems = outputs.mems
        optimizer.zero_grad()
        outputs.loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(outputs.loss.item())
    return losses


@styled
def draw(result: dict, path: Path) -> None:
    picture, ((left, right),) = figure(columns=2)
    styles = {"pre": ("black", "-"), "post": ("dimgray", "--")}
    for run in result["runs"]:
        color, style = styles[run["norm_position"]]
        losses = np.convolve(np.mean(run["losses"], axis=0), np.ones(10) / 10, mode="valid") / np.log(2)
        label = f"{run['norm_position']}-norm, " + (
            f"warm-up {run['warmup']} steps" if run["warmup"] else "no warm-up"
        )
        left.plot(losses, style, color=color, linewidth=1 if run["warmup"] else 2.5, label=label)
    left.set(xlabel="training step", ylabel="bits per byte, mean of 10 steps and all seeds", title="Training")
    left.set_ylim(0, None)
    left.legend()
    for position, norms in result["gradient_norms"].items():
        color, style = styles[position]
        right.plot(range(1, len(norms) + 1), norms, style, marker="o", color=color, label=f"{position}-norm")
    right.set(xlabel="layer (1 is next to the input)", ylabel="gradient norm of fc2, before training", yscale="log")
    right.set_title("Gradients by layer")
    right.legend()
    save(picture, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--draw", action="store_true", help="draw results/norm_position.json, and measure nothing")
    args = parser.parse_args()
    if args.draw:
        return draw(json.loads((RESULTS / "norm_position.json").read_text()), RESULTS / "norm_position.png")
    data, seeds = batches(args.steps), range(args.seeds)
    start = time.perf_counter()
    runs = []
    for position in ("pre", "post"):
        for warmup in (0, args.warmup):
            losses = [train(position, warmup, args, seed, data) for seed in seeds]
            final = [float(np.mean(run[-20:])) for run in losses]
            runs.append({"norm_position": position, "warmup": warmup, "final_loss": final, "losses": losses})
            means = ", ".join(f"{value:.3f}" for value in final)
            print(f"{position}-norm, warm-up {warmup:3d}: loss of the last 20 steps {means} nats per byte", flush=True)
    norms = {
        position: np.mean(
            [gradients_by_layer(position, args.layers, seed, data[0]) for seed in seeds], axis=0
        ).tolist()
        for position in ("pre", "post")
    }
    result = {
        "arguments": vars(args),
        "segment_length": SEGMENT,
        "lanes": LANES,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "seconds": round(time.perf_counter() - start),
        "gradient_norms": norms,
        "runs": runs,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "norm_position.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result, RESULTS / "norm_position.png")


if __name__ == "__main__":
    main()
