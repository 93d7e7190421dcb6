"""`transformers-xl generate`: a model writes on for as long as you like at constant memory."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from transformers_xl.cli.common import (
    DEFAULT_TEMPERATURE,
    AsJson,
    Greedy,
    MinP,
    NoRepeatNgramSize,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    TypicalP,
    generation_options,
    greedy_temperature,
    refuse_others,
    streamer_of,
)
from transformers_xl.files.plain_files import read_text
from transformers_xl.runs.loading import MAX_BEAMS, check_generation, is_translator, load_model

MAX_PROMPT = 1 << 24  # bytes


def generate(
    ctx: typer.Context,
    model_dir: Annotated[Path, Argument(exists=True, file_okay=False, help="Folder of a model.")],
    prompt: Annotated[
        list[str] | None, Option("--prompt", "-p", help="Text to continue; may be given more than once.")
    ] = None,
    prompt_file: Annotated[
        list[Path] | None, Option(exists=True, dir_okay=False, help="File with a text to continue.")
    ] = None,
    num_samples: Annotated[int, Option(min=1, help="Number of continuations of each prompt.")] = 1,
    max_new_tokens: Annotated[int, Option(min=1, help="Number of tokens to generate.")] = 300,
    temperature: Temperature = DEFAULT_TEMPERATURE,
    top_k: TopK = 0,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    repetition_penalty: RepetitionPenalty = None,
    no_repeat_ngram_size: NoRepeatNgramSize = None,
    greedy: Greedy = False,
    num_beams: Annotated[int | None, Option(min=1, max=MAX_BEAMS, help="Number of beams of beam search.")] = None,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="Seed of sampling.")] = 0,
    stream: Annotated[
        bool | None,
        Option("--stream/--no-stream", help="Print tokens as they are generated.", show_default="one text"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Continue prompts. One text is streamed to standard output; several are printed one below the other.

    An encoder-decoder translates each prompt and each line of a prompt file, by beam search (4 beams, or --num-beams) or
    with --greedy.
    """
    prompts = [*(prompt or []), *(read_text(file, MAX_PROMPT) for file in prompt_file or [])]
    if is_translator(model_dir):
        _translate(ctx, model_dir, prompts)
        return
    temperature = greedy_temperature(temperature, greedy)
    single = _is_single(prompts, num_samples, num_beams, temperature, as_json)
    if stream and not single:
        raise ValueError("`stream`=True prints one text of one prompt, without beams or JSON: leave it out.")
    options = generation_options(
        temperature,
        top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        num_beams=num_beams,
        max_new_tokens=max_new_tokens,
    )
    model, tokenizer = load_model(model_dir)
    check_generation(model, model_dir)
    import transformers

    transformers.set_seed(seed)
    if single and stream is not False:
        inputs = _encoded(model, tokenizer, prompts[0])  # first: a tokenizer may refuse the prompt
        typer.echo(prompts[0], nl=False)
        model.generate(**inputs, **options, streamer=streamer_of(tokenizer, continues=True))
        typer.echo()
        return
    options |= {"num_return_sequences": num_samples}
    results = [model.generate(**_encoded(model, tokenizer, each), **options) for each in prompts]
    texts = [tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in results]
    if as_json:
        written = [{"prompt": each, "texts": found} for each, found in zip(prompts, texts, strict=True)]
        typer.echo(json.dumps(written, indent=1))
        return
    typer.echo("\n---\n".join(text for found in texts for text in found))


def _translate(ctx: typer.Context, model_dir: Path, prompts: list[str]) -> None:
    """Print the translation of each line."""
    from transformers_xl.data.pairs import lines_of

    lines = [line for text in prompts for line in lines_of(text)]
    if not any(line.strip() for line in lines):
        raise ValueError("`prompt`='' is empty: give a line to translate.")
    refuse_others(
        ctx,
        {"model_dir", "prompt", "prompt_file", "num_beams", "max_new_tokens", "greedy", "as_json"},
        "a translation",
    )
    typer.echo("starting ...", err=True)  # the imports take seconds
    from transformers_xl.evaluation.translations import translate
    from transformers_xl.runs.translation_run import load_translator

    given = ctx.get_parameter_source("max_new_tokens")
    options = (
        {"max_new_tokens": ctx.params["max_new_tokens"]} if given is not None and given.name == "COMMANDLINE" else {}
    )
    beams = ctx.params["num_beams"] or (1 if ctx.params["greedy"] else 4)
    found = translate(*load_translator(model_dir), lines, beams, **options)
    if ctx.params["as_json"]:
        written = [{"prompt": line, "texts": [text]} for line, text in zip(lines, found, strict=True)]
        typer.echo(json.dumps(written, indent=1))
    else:
        typer.echo("\n".join(found))


def _is_single(prompts: list[str], num_samples: int, num_beams: int | None, temperature: float, as_json: bool) -> bool:
    """Whether one text is printed, which can be streamed.

    Raises:
        ValueError: there is nothing to continue, or all texts would be the same.
    """
    if not prompts or "" in prompts:
        raise ValueError("`prompt`='' is empty: give at least one character to continue.")
    if num_samples > 1 and temperature == 0 and (num_beams or 1) < num_samples:
        raise ValueError(
            f"`num_samples`={num_samples} with `temperature`=0 would write one text {num_samples} times: set a temperature "
            f"above 0, or `num_beams` to at least {num_samples}."
        )
    if num_beams not in (None, 1) and num_samples > num_beams:
        raise ValueError(
            f"`num_samples`={num_samples} is more than the `num_beams`={num_beams} that end with a text: take more beams."
        )
    return len(prompts) == num_samples == 1 and not as_json and num_beams in (None, 1)


def _encoded(model: Any, tokenizer: Any, prompt: str) -> Any:
    import torch

    from transformers_xl.data.text_beginning import beginning_of, begun

    ids = begun(tokenizer(prompt, add_special_tokens=False)["input_ids"], beginning_of(tokenizer))
    inputs = torch.tensor([ids], device=model.device)
    return {"input_ids": inputs, "attention_mask": torch.ones_like(inputs)}


__all__ = ["generate"]
