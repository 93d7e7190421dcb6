"""`transformers-xl compare`: variants at about equal parameters, on the same text, for the same tokens."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import check_output, clean_errors, import_models, written_whole

# fields of a variant beside the shared ones: a memory of about the size of the feed-forward that it stands for; one head,
# as the authors' code has, where every head would add a map of all pairs of positions
FIELDS = {
    "pkm_transformer": {"num_memory_keys": 32, "memory_topk": 16},
    "tensorized_transformer": {"num_attention_heads": 1},
}


def compare(
    texts: Annotated[list[Path], Argument(exists=True, dir_okay=False, readable=True, help="Text files.")],
    output: Annotated[Path, Option("--output", "-o", help="Folder to write: compare.json, compare.md, compare.png.")],
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output folder if it exists.")] = False,
    variant: Annotated[
        list[str] | None, Option(help="Model type; may be given more than once.", show_default="all language models")
    ] = None,
    hidden_size: Annotated[int, Option(help="Width of the models.")] = 128,
    layers: Annotated[int, Option(help="Number of layers.")] = 4,
    heads: Annotated[int, Option(help="Attention heads per layer.")] = 4,
    mem_len: Annotated[int, Option(help="Length of the memory, in tokens.")] = 128,
    dropout: Annotated[float, Option(help="Probability of dropout.")] = 0.0,
    eval_fraction: Annotated[float, Option(help="Share of the text to hold out at its end.")] = 0.05,
    segment_length: Annotated[int, Option(help="Tokens per segment.")] = 64,
    batch_size: Annotated[int, Option(help="Lanes of text that are read side by side.")] = 16,
    steps: Annotated[int, Option(min=1, help="Training steps.")] = 500,
    learning_rate: Annotated[float, Option(help="Peak learning rate of AdamW.")] = 2e-3,
    warmup_steps: Annotated[int, Option(help="Steps of linear warm-up, before a cosine to 0.")] = 50,
    seed: Annotated[int, Option(help="Seed of the weights and of dropout.")] = 0,
) -> None:
    """Train variants on equal terms and write a table and a picture.

    All have the same width, depth, text, batches and steps; the inner width of the feed-forward is chosen so that they have
    about the same number of parameters.
    """
    arguments = {
        name: value for name, value in locals().items() if name not in ("texts", "output", "overwrite", "variant")
    }
    arguments |= {"epochs": None, "intermediate_size": 4 * hidden_size}
    with clean_errors():
        check_output(output, overwrite)
        if learning_rate <= 0:
            raise ValueError(f"`learning_rate`={learning_rate} must be above 0.")
        typer.echo("starting ...", err=True)  # the imports take seconds
        variants = {name: row for name, row in import_models().items() if row.causal_lm_class is not None}
        chosen = list(dict.fromkeys(variant or variants))
        for name in chosen:
            if name not in variants:
                known = ", ".join(variants)
                raise ValueError(f"`variant`={name!r} is not a language model of this package: known are {known}.")
        _compare(variants, chosen, texts, output, arguments)


def _compare(variants: dict, chosen: list[str], texts: list[Path], output: Path, arguments: dict) -> None:
    from transformers_xl.cli.fitting import build_model, fit, read_texts, score, seconds_per_token

    stream, held_out, eval_lanes = read_texts(texts, None, arguments)
    # a Transformer-XL of the usual shape; more where a variant needs it for a feed-forward of at least its width
    target = max(
        _count(variants["transformer_xl"], arguments, 4 * arguments["hidden_size"]),
        *(_count(variants[name], arguments, arguments["hidden_size"]) for name in chosen),
    )
    tokens_per_step = stream.lanes * stream.segment_length
    runs = []
    with written_whole(output) as folder:
        for name in chosen:
            intermediate_size = _matching_width(variants[name], arguments, target)
            model = build_model(variants[name], arguments, intermediate_size, **FIELDS.get(name, {}))
            typer.echo(
                f"{name}: {model.num_parameters():,} parameters in training, feed-forward of {intermediate_size}"
            )
            summed = getattr(model, "auxiliary", None) is not None
            log = fit(model, stream, arguments, folder).state.log_history
            seconds = next(row["train_runtime"] for row in log if "train_runtime" in row)
            scores = score(model, held_out, eval_lanes)
            runs.append(
                {
                    "variant": name,
                    "training_loss_is_a_sum": summed,
                    "parameters": model.num_parameters(),
                    "intermediate_size": intermediate_size,
                    "bits_per_byte": {kind: result.bits_per_byte for kind, result in scores.items()},
                    "tokens_per_second": arguments["steps"] * tokens_per_step / seconds,
                    "seconds_per_generated_token": seconds_per_token(model, held_out),
                    "train_seconds": seconds,
                    "log": log,
                }
            )
        result = {
            "arguments": arguments,
            "texts": [path.name for path in texts],
            "train_bytes": len(stream.ids),
            "held_out_bytes": len(held_out),
            "tokens_per_step": tokens_per_step,
            "versions": _versions(),
            "runs": runs,
        }
        (folder / "compare.json").write_text(json.dumps(result, indent=1) + "\n")
        (folder / "compare.md").write_text(table(result))
        draw(result, folder / "compare.png")
    typer.echo(table(result))
    typer.echo(f"wrote {output}")


def _count(variant, arguments: dict, intermediate_size: int) -> int:
    from transformers_xl.cli.fitting import build_model

    model = build_model(variant, arguments, intermediate_size, **FIELDS.get(variant.config_class.model_type, {}))
    model.finish_training()
    return model.num_parameters()


def _matching_width(variant, arguments: dict, target: int) -> int:
    """The inner width of the feed-forward with which `variant` comes nearest to `target` parameters."""
    width = arguments["hidden_size"]  # no variant refuses it; parameters grow linearly with it
    at_width, at_twice = (_count(variant, arguments, times * width) for times in (1, 2))
    # even, because a complex one has real and imaginary parts
    return 2 * round((width + width * (target - at_width) / (at_twice - at_width)) / 2)


def _versions() -> dict[str, str]:
    import platform
    import sys

    import torch
    import transformers

    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "transformers_xl": sys.modules["transformers_xl"].__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": device,
        "machine": machine,
    }


def _held_out_bits(run: dict) -> float:
    """Bits per byte of the held-out text, with memory where the model has one."""
    scores = run["bits_per_byte"]
    return scores.get("with_memory", scores["without_memory"])


def table(result: dict) -> str:
    """The runs as a Markdown table, best first."""
    lines = [
        "| model | bits per byte | without memory | parameters | training, tokens/s | `generate()`, ms per token |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for run in sorted(result["runs"], key=_held_out_bits):
        bits, without = _held_out_bits(run), run["bits_per_byte"]["without_memory"]
        speed = f"{run['tokens_per_second']:,.0f} | {1000 * run['seconds_per_generated_token']:.2f}"
        lines.append(f"| `{run['variant']}` | {bits:.3f} | {without:.3f} | {run['parameters']:,} | {speed} |")
    return "\n".join(lines) + "\n"


def draw(result: dict, path: Path) -> None:
    """Bits per byte of the training text against tokens read, with the held-out figure as a mark at the end."""
    import math

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(11, 5), layout="constrained")
    styles, colors = ["-", "--", "-.", ":"], plt.get_cmap("tab20").colors
    for index, run in enumerate(sorted(result["runs"], key=_held_out_bits)):
        # with auxiliary predictions the training loss is that of many, and no figure per byte
        rows = [] if run["training_loss_is_a_sum"] else run["log"]
        points = [(row["step"], row["loss"]) for row in rows if "loss" in row]
        tokens = [step * result["tokens_per_step"] for step, _ in points]
        label = f"{run['variant']}: {_held_out_bits(run):.3f} held out, {run['tokens_per_second']:,.0f} tokens/s"
        losses = [loss / math.log(2) for _, loss in points]
        (line,) = axes.plot(
            tokens, losses, styles[index % len(styles)], color=colors[index % len(colors)], label=label
        )
        end = result["arguments"]["steps"] * result["tokens_per_step"]
        axes.plot([end], [_held_out_bits(run)], "o", color=line.get_color())
    best = min(_held_out_bits(run) for run in result["runs"])
    axes.set(xlabel="tokens read", ylabel="bits per byte", ylim=(best - 0.4, best + 3))
    axes.set_title(
        "Lines: training text, mean of 20 steps. Dots: held-out text, with memory if there is one.", fontsize="medium"
    )
    figure.legend(fontsize="small", loc="outside right upper")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


__all__ = ["compare"]
