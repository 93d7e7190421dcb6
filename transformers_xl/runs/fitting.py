"""A byte-level model of a variant, and its training on a text: what `compare` and the runs of claims share.

Imported by the commands when they run: it costs the import of torch and transformers.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import torch
import transformers
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from transformers import PreTrainedTokenizerBase

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.data.files import read_ids, split_held_out
from transformers_xl.data.text_stream import TextStream
from transformers_xl.modeling.auto import Variant
from transformers_xl.runs.comparison_terms import ComparisonTerms
from transformers_xl.runs.onednn_linear import accelerate_linear_layers
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer
from transformers_xl.training.trainer import MemoryTrainer, MemoryTrainingArguments

BYTES_OF_WEIGHT, BYTES_WITH_GRADIENT, BYTES_WITH_ADAM = 4, 8, 16  # float32, with its gradient, and with two averages


def processes() -> PartialState:
    """The processes that a launcher started for this command, or the one that there is."""
    # without an accelerator, Accelerate silently turns several processes into separate runs of one
    return PartialState(cpu=not torch.accelerator.is_available() or parse_flag_from_env("ACCELERATE_USE_CPU"))


def read_texts(texts: list[Path], terms: ComparisonTerms) -> tuple[TextStream, np.ndarray, int]:
    """The stream to train on, the held-out bytes, and the lanes to score them in.

    Raises:
        ValueError: a text is too short for the segments and lanes, before anything is trained.
    """
    ids, _ = read_ids(texts, ByteTokenizer(), progress=False)
    ids, held_out = split_held_out(ids, terms.eval_fraction)
    segment_length, lanes = terms.segment_length, terms.batch_size
    eval_lanes = max(1, min(lanes, len(held_out) // segment_length))
    TextStream(held_out, segment_length, eval_lanes, keep_tail=True)
    return TextStream(ids, segment_length, lanes), held_out, eval_lanes


def build_model(
    variant: Variant, terms: ComparisonTerms, seed: int, intermediate_size: int, **fields
) -> transformers.PreTrainedModel:
    """A causal language model, of bytes where `fields`, more of its config, do not say otherwise, with weights from the
    seed. `mem_len` is that of variants that have a memory.

    Raises:
        ValueError: the arguments do not go together, or the model is larger than the machine's memory.
    """
    mem_len = terms.mem_len
    memory: dict[str, Any] = {} if variant.memory == "none" else {"mem_len": mem_len}
    memory |= {"same_length": False} if memory and mem_len == 0 else {}
    sizes = {"num_attention_heads": terms.heads, "segment_length": terms.segment_length} | memory
    config = cast(type[MemoryConfig], variant.config_class)(
        hidden_size=terms.hidden_size,
        num_hidden_layers=terms.layers,
        intermediate_size=intermediate_size,
        dropout=terms.dropout,
        **(token_fields(ByteTokenizer()) | sizes | fields),
    )
    model_class = cast(type[transformers.PreTrainedModel], variant.causal_lm_class)
    check_memory(lambda: model_class(config))
    transformers.set_seed(seed)
    return model_class(config)


def token_fields(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """The fields of a config that say which tokens a model reads."""
    return {"vocab_size": len(tokenizer)} | {
        name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")
    }


def check_memory(build: Callable[[], transformers.PreTrainedModel], bytes_each: int = BYTES_WITH_ADAM) -> None:
    """Raise a `ValueError` where the free memory of the machine does not hold the model that `build` makes, before it is
    made: `bytes_each` parameter on the CPU, and for an accelerator the weights, which are made on the CPU."""
    with torch.device("meta"):
        parameters = build().num_parameters()
    if processes().device.type != "cpu":
        bytes_each = BYTES_OF_WEIGHT
    needed = parameters * bytes_each * int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    free = psutil.virtual_memory().available
    if needed > free:
        raise ValueError(
            f"A model of {parameters:,} parameters needs {needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB "
            "are free: choose a smaller `hidden_size`, `intermediate_size` or number of layers."
        )


def fit(
    model,
    stream: TextStream,
    terms: ComparisonTerms,
    seed: int,
    folder: Path,
    initial_mem_len: int | None = None,
    max_grad_norm: float = 1.0,
) -> transformers.Trainer:
    """Train on a stream, with memory carried along; what trained it. A memory that begins with
    `initial_mem_len` positions grows to its length in the first half of the steps; gradients are clipped at
    `max_grad_norm`, or at 0 not."""
    state = processes()
    trainer = MemoryTrainer(
        accelerate_linear_layers(model),
        MemoryTrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=stream.lanes // state.num_processes,
            use_cpu=state.device.type == "cpu",
            max_steps=terms.steps,
            learning_rate=terms.learning_rate,
            warmup_steps=terms.warmup_steps,
            initial_mem_len=initial_mem_len,
            mem_len_warmup_steps=0.0 if initial_mem_len is None else 0.5,
            max_grad_norm=max_grad_norm,
            lr_scheduler_type="cosine",
            seed=seed,
            logging_steps=20,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=stream,
        data_collator=transformers.default_data_collator,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    prepare_for_inference(model)
    return trainer


def prepare_for_inference(model) -> None:
    """Drop what exists in training only; models of transformers have nothing of the kind."""
    if hasattr(model, "prepare_for_inference"):
        model.prepare_for_inference()


__all__ = [
    "BYTES_OF_WEIGHT",
    "BYTES_WITH_ADAM",
    "BYTES_WITH_GRADIENT",
    "build_model",
    "check_memory",
    "fit",
    "prepare_for_inference",
    "processes",
    "read_texts",
]
