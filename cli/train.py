"""`transformers-xl train`: text files in, a folder for the Hub out."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import check_output, clean_errors, import_models, written_whole

MODEL, DATA, TRAINING = "Model", "Data", "Training"


def train(
    texts: Annotated[
        list[Path], Argument(exists=True, dir_okay=False, readable=True, help="Text files, read in this order.")
    ],
    output: Annotated[Path, Option("--output", "-o", help="Folder to write: config, weights, tokenizer, metrics.")],
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

    The end of the text is held out, and scored with and without the model's memory.
    """
    arguments = {
        name: value for name, value in locals().items() if name not in ("texts", "output", "overwrite", "eval_text")
    }
    with clean_errors():
        check_output(output, overwrite)
        if steps is not None and epochs is not None:
            raise ValueError(f"`steps`={steps} and `epochs`={epochs} exclude each other: give one of them.")
        for name in ("steps", "epochs", "learning_rate"):
            if arguments[name] is not None and arguments[name] <= 0:
                raise ValueError(f"`{name}`={arguments[name]} must be above 0.")
        typer.echo("starting ...", err=True)  # the imports take seconds
        variants = import_models()
        if variant not in variants or not variants[variant].causal:
            known = ", ".join(name for name, row in variants.items() if row.causal)
            raise ValueError(f"`variant`={variant!r} is not a language model of this package: known are {known}.")
        _train(variants[variant], texts, output, eval_text, arguments)


def _train(row, texts: list[Path], output: Path, eval_text: list[Path] | None, arguments: dict) -> None:
    import torch
    import transformers

    from transformers_xl.evaluation.bits_per_byte import score_text
    from transformers_xl.streams.files import read_ids, split_held_out
    from transformers_xl.streams.text_stream import TextStream
    from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer
    from transformers_xl.training.trainer import MemoryTrainer, MemoryTrainingArguments

    tokenizer = ByteTokenizer()
    segment_length, lanes = arguments["segment_length"], arguments["batch_size"]
    config = row.config_class(
        vocab_size=len(tokenizer),
        hidden_size=arguments["hidden_size"],
        num_hidden_layers=arguments["layers"],
        num_attention_heads=arguments["heads"],
        intermediate_size=arguments["intermediate_size"] or 4 * arguments["hidden_size"],
        mem_len=arguments["mem_len"],
        same_length=arguments["mem_len"] > 0,
        segment_length=segment_length,
        dropout=arguments["dropout"],
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    ids, _ = read_ids(texts, tokenizer)
    if eval_text:
        held_out, _ = read_ids(eval_text, tokenizer)
    else:
        ids, held_out = split_held_out(ids, arguments["eval_fraction"])
    stream = TextStream(ids, segment_length, lanes)
    eval_lanes = max(1, min(lanes, len(held_out) // segment_length))
    TextStream(held_out, segment_length, eval_lanes, keep_tail=True)  # raises now, not after the training

    transformers.set_seed(arguments["seed"])
    model = row.causal_lm_class(config)
    typer.echo(
        f"{row.config_class.model_type}: {model.num_parameters():,} parameters, {len(ids):,} bytes to learn from, "
        f"{len(held_out):,} held out"
    )
    with written_whole(output) as folder:
        trainer = MemoryTrainer(
            model,
            MemoryTrainingArguments(
                output_dir=str(folder),
                per_device_train_batch_size=lanes,
                max_steps=-1 if arguments["epochs"] else arguments["steps"] or 1000,
                num_train_epochs=arguments["epochs"] or 1,
                learning_rate=arguments["learning_rate"],
                warmup_steps=arguments["warmup_steps"],
                lr_scheduler_type="cosine",
                seed=arguments["seed"],
                logging_steps=20,
                save_strategy="no",
                report_to="none",
                dataloader_pin_memory=torch.cuda.is_available(),
            ),
            train_dataset=stream,
        )
        seconds = trainer.train().metrics["train_runtime"]
        scores = {
            name: score_text(model, held_out, lanes=eval_lanes, memory=memory, progress=True)
            for name, memory in (("with_memory", True), ("without_memory", False))
        }
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        metrics = {
            "variant": config.model_type,
            "arguments": arguments,
            "parameters": model.num_parameters(),
            "train_bytes": len(ids),
            "held_out_bytes": len(held_out),
            "train_seconds": seconds,
            "held_out_bits_per_byte": {name: score.bits_per_byte for name, score in scores.items()},
            "log": trainer.state.log_history,
        }
        (folder / "training_metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    for name, score in scores.items():
        typer.echo(f"{score.bits_per_byte:.3f} bits per byte of held-out text {name.replace('_', ' ')}")
    typer.echo(f"wrote {output}")


__all__ = ["train"]
