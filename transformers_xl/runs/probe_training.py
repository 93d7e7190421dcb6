"""Training of the models of the memory probe: `transformers-xl train-probe`."""

import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from transformers_xl.evaluation.context_curve import remembers
from transformers_xl.evaluation.probe import context_of
from transformers_xl.evaluation.probe_options import ProbeOptions
from transformers_xl.evaluation.probe_tasks import NO_ANSWER, ProbeText, find_task, generate_text
from transformers_xl.files.output_folder import output_folder
from transformers_xl.hub.measurements import library_versions
from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.runs.fitting import prepare_for_inference, processes
from transformers_xl.runs.onednn_linear import accelerate_linear_layers
from transformers_xl.runs.probe_models import build_probe_model
from transformers_xl.runs.probe_terms import DECAY_SHARE, LANES, PROBE_FILE, WARMUP_STEPS, ProbeTerms
from transformers_xl.training.trainer import MemoryTrainer, MemoryTrainingArguments


class ProbeSegments(Dataset):
    """Streams in segments, step-major as a [`~transformers_xl.data.text_stream.TextStream`]; questions have targets.

    Args:
        text: the streams.
        segment_length: tokens per segment.
        context: tokens to read again before each segment, for models without memory; fewer at the start.
    """

    def __init__(self, text: ProbeText, segment_length: int, context: int):
        self.text, self.segment_length, self.context = text, segment_length, context
        self.lanes = len(text.tokens)

    def __len__(self) -> int:
        return self.text.tokens.shape[1] // self.segment_length * self.lanes

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        segment, lane = divmod(index, self.lanes)
        start = segment * self.segment_length
        here = slice(max(0, start - self.context), start + self.segment_length)
        answers = torch.from_numpy(self.text.answers[lane, here].copy())
        answers[: start - here.start] = NO_ANSWER
        return {"input_ids": torch.from_numpy(self.text.tokens[lane, here]), "answers": answers}


class MemorySegments(ProbeSegments):
    """Segments as a model with memory reads them."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        item = super().__getitem__(index)
        return {
            "input_ids": item["input_ids"],
            "shift_labels": item["answers"],
            "reset": torch.tensor(index < self.lanes),
        }


class WindowSegments(ProbeSegments):
    """Segments as a model without memory reads them, each target beside its question."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        item = super().__getitem__(index)
        return {"input_ids": item["input_ids"], "labels": item["answers"]}


def answer_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | None = None) -> torch.Tensor:
    """Mean nats of the answers `labels` `(batch, length)`, each beside its question: nothing is shifted."""
    answers = labels.flatten()
    nats = F.cross_entropy(outputs.logits.flatten(0, 1).float(), answers, ignore_index=NO_ANSWER, reduction="sum")
    return nats / (answers != NO_ANSWER).sum().clamp(min=1)


def trained_options(model: PreTrainedModel, terms: ProbeTerms) -> ProbeOptions:
    """How a model is asked as it was trained: with the memory that it has, or with what it read before each segment."""
    own = remembers(model) or model.config.model_type in VARIANTS
    return ProbeOptions(
        length=None if own else terms.mem_len, segment_length=terms.segment_length, max_distance=terms.max_distance
    )


def fit_probe(model: PreTrainedModel, terms: ProbeTerms, folder: Path) -> transformers.Trainer:
    """Train a model on the streams of its task; `folder` is for what the trainer writes."""
    length = terms.steps * terms.segment_length
    text = generate_text(find_task(terms.task), LANES, length, terms.max_distance, terms.seed)
    arguments = MemoryTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=LANES,
        use_cpu=processes().device.type == "cpu",
        max_steps=terms.steps,
        learning_rate=terms.learning_rate,
        adam_beta2=0.98,
        warmup_steps=min(WARMUP_STEPS, terms.steps // 2),
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": int(DECAY_SHARE * terms.steps), "decay_type": "linear"},
        seed=terms.seed,
        logging_steps=max(1, terms.steps // 20),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    if remembers(model):
        stream = MemorySegments(text, terms.segment_length, 0)
        trainer: transformers.Trainer = MemoryTrainer(model, arguments, train_dataset=stream)
    else:
        windows = WindowSegments(text, terms.segment_length, context_of(model, trained_options(model, terms)))
        trainer = transformers.Trainer(model, arguments, train_dataset=windows, compute_loss_func=answer_loss)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    prepare_for_inference(model)
    return trainer


def train_probe(terms: ProbeTerms, output: Path) -> dict[str, Any]:
    """Train a model of the probe, and save it with how it was trained (`probe.json`), which is returned.

    Raises:
        ValueError: the task or the model type is not known, or the model cannot be built.
    """
    model = accelerate_linear_layers(build_probe_model(terms))
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trainer = fit_probe(model, terms, Path(folder))
    record = {
        "terms": asdict(terms),
        "parameters": model.num_parameters(),
        "processor_seconds": round(time.process_time() - start, 1),
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
        "versions": library_versions(),
    }
    with output_folder(output) as new:
        model.save_pretrained(new)
        (new / PROBE_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


__all__ = ["MemorySegments", "WindowSegments", "answer_loss", "fit_probe", "train_probe"]
