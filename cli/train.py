"""`transformers-xl train`: text files in, a folder for the Hub out."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import check_output, import_models, is_main_process
from transformers_xl.files.atomic_write import output_folder

MODEL, DATA, TRAINING = "Model", "Data", "Training"


def train(
    texts: Annotated[
        list[Path], Argument(exists=True, dir_okay=False, readable=True, help="Text files, read in this order.")
    ],
    output: Annotated[
        Path, Option("--output", "-o", help="Folder to write: config, weights, tokenizer, metrics, card.")
    ],
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output folder if it exists.")] = False,
    variant: Annotated[
        str, Option(help="Model type, a row of the table of variants.", rich_help_panel=MODEL)
    ] = "transformer_xl",
    hidden_size: Annotated[int, Option(help="Width of the model.", rich_help_panel=MODEL)] = 256,
    layers: Annotated[int, Option(help="Number of layers.", rich_help_panel=MODEL)] = 4,
    heads: Annotated[int, Option(help="Attention heads per layer.", rich_help_panel=MODEL)] = 4,
    intermediate_size: Annotated[
        int | None,
        Option(help="Inner width of the feed-forward.", show_default="4 x hidden size", rich_help_panel=MODEL),
    ] = None,
    mem_len: Annotated[int, Option(help="Length of the memory, in tokens.", rich_help_panel=MODEL)] = 256,
    dropout: Annotated[float, Option(help="Probability of dropout.", rich_help_panel=MODEL)] = 0.1,
    eval_text: Annotated[
        list[Path] | None,
        Option(exists=True, dir_okay=False, help="Held-out text; may be given more than once.", rich_help_panel=DATA),
    ] = None,
    eval_fraction: Annotated[
        float, Option(help="Share of the text to hold out at its end, without --eval-text.", rich_help_panel=DATA)
    ] = 0.1,
    dataset: Annotated[
        str | None, Option(help="Data set on the Hub that the text is; for the card.", rich_help_panel=DATA)
    ] = None,
    dataset_revision: Annotated[str | None, Option(help="Its commit.", rich_help_panel=DATA)] = None,
    task_id: Annotated[
        str | None, Option(help="The held-out text's task in its eval.yaml, of a benchmark.", rich_help_panel=DATA)
    ] = None,
    segment_length: Annotated[int, Option(help="Tokens per segment.", rich_help_panel=DATA)] = 128,
    batch_size: Annotated[int, Option(help="Lanes of text that are read side by side.", rich_help_panel=DATA)] = 16,
    steps: Annotated[int | None, Option(help="Training steps.", show_default="1000", rich_help_panel=TRAINING)] = None,
    epochs: Annotated[
        float | None, Option(help="Passes over the text, instead of --steps.", rich_help_panel=TRAINING)
    ] = None,
    learning_rate: Annotated[float, Option(help="Peak learning rate of AdamW.", rich_help_panel=TRAINING)] = 1e-3,
    warmup_steps: Annotated[
        int, Option(help="Steps of linear warm-up, before a cosine to 0.", rich_help_panel=TRAINING)
    ] = 100,
    seed: Annotated[int, Option(help="Seed of the weights and of dropout.", rich_help_panel=TRAINING)] = 0,
) -> None:
    """Train a byte-level model on text files and write a folder that is ready for the Hub.

    The end of the text is held out, and scored with and without the model's memory. On several devices:
    torchrun --nproc_per_node N -m transformers_xl.cli train ..., which shares the lanes.
    """
    arguments = {
        name: value for name, value in locals().items() if name not in ("texts", "output", "overwrite", "eval_text")
    }
    check_output(output, overwrite)
    if steps is not None and epochs is not None:
        raise ValueError(f"`steps`={steps} and `epochs`={epochs} exclude each other: give one of them.")
    for name in ("steps", "epochs", "learning_rate"):
        if arguments[name] is not None and arguments[name] <= 0:
            raise ValueError(f"`{name}`={arguments[name]} must be above 0.")
    if is_main_process():
        typer.echo("starting ...", err=True)  # the imports take seconds
    variants = import_models()
    if variant not in variants or not variants[variant].causal:
        known = ", ".join(name for name, row in variants.items() if row.causal)
        raise ValueError(f"`variant`={variant!r} is not a language model of this package: known are {known}.")
    _train(variants[variant], texts, output, eval_text, arguments)


def _train(row, texts: list[Path], output: Path, eval_text: list[Path] | None, arguments: dict) -> None:
    from transformers_xl.cli.fitting import build_model, fit, processes, read_texts, score
    from transformers_xl.cli.recording import check_claims, evaluation_of, text_of_bytes
    from transformers_xl.hub.cards import write_card
    from transformers_xl.hub.measurements import measurements_of, write_measurements
    from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer

    claims = check_claims(arguments["dataset"], arguments["dataset_revision"], arguments["task_id"])
    lanes, state = arguments["batch_size"], processes()
    if lanes % state.num_processes:
        raise ValueError(
            f"`batch_size`={lanes} lanes cannot be shared by {state.num_processes} processes: make it a multiple of "
            f"{state.num_processes}."
        )
    stream, held_out, eval_lanes = read_texts(texts, eval_text, arguments, progress=state.is_main_process)
    model = build_model(row, arguments)
    if not state.is_main_process:  # the main one writes for all
        fit(model, stream, arguments, output)
        return
    typer.echo(
        f"{model.config.model_type}: {model.num_parameters():,} parameters, {len(stream.ids):,} bytes to learn from, "
        f"{len(held_out):,} held out"
    )
    with output_folder(output) as folder:
        trainer = fit(model, stream, arguments, folder)
        scores = score(model, held_out, eval_lanes)
        model.save_pretrained(folder)
        ByteTokenizer().save_pretrained(folder)
        command = _command(texts, output, eval_text, arguments)
        parts = ("", "") if eval_text else ("first", "last")
        read = text_of_bytes(texts, parts[0], stream.ids, (*claims[:2], None))
        unseen = text_of_bytes(eval_text or texts, parts[1], held_out, claims)
        measured = measurements_of(
            model,
            folder,
            training=trainer.training_record(data=read, command=command, arguments=arguments),
            evaluations=tuple(
                evaluation_of(model, result, unseen, eval_lanes, name == "with_memory", command)
                for name, result in scores.items()
            ),
            log=tuple(trainer.state.log_history),
        )
        write_measurements(folder, measured)
        write_card(folder, output.resolve().name)
    for name, result in scores.items():
        typer.echo(f"{result.bits_per_byte:.3f} bits per byte of held-out text {name.replace('_', ' ')}")
    typer.echo(f"wrote {output}")


def _command(texts: list[Path], output: Path, eval_text: list[Path] | None, arguments: dict) -> str:
    """The command with all its options spelled out, and files by their names: where they lie is nobody's business."""
    words = ["transformers-xl", "train", *(path.name for path in texts), "-o", output.resolve().name]
    words += [word for path in eval_text or () for word in ("--eval-text", path.name)]
    for name, value in arguments.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


__all__ = ["train"]
