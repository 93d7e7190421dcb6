"""From text to models that remember, in a few minutes on two cores: what a memory is worth, and a model to keep.

The text is that of every CPython: the sources of its library. A Streaming Transformer is trained with a memory, the same
model without, and a Transformer-XL of as many parameters with a memory, on the same bytes in the same order at the same
rates. Whole modules, which none has read, are predicted by all, and by the first with its memory taken away: the short ones
of the test that all measurements share (`library_corpus.py`). Everything goes to `build/quickstart/`.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

# threads that wait sleep, as in the commands (runs/threads.py); before torch is imported
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import numpy as np
import torch
from library_corpus import ids_of, library_split
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, set_seed

from transformers_xl import ByteTokenizer
from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.data.streamers import ByteStreamer
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.bits_per_byte import TextScore, score_stream
from transformers_xl.evaluation.plots import figure, line, save
from transformers_xl.files.processor import processor
from transformers_xl.hub.measurements import library_versions
from transformers_xl.training.trainer import MemoryTrainer, MemoryTrainingArguments

OUTPUT = Path("build/quickstart")
STEPS, LANES = 400, 32
# inner widths with which both have as many parameters
INNER_WIDTHS = {"streaming_transformer": 296, "transformer_xl": 892}
SEGMENT, MEMORY, FIRST_MEMORY = 16, 64, 16  # bytes
LONGEST, HELD_OUT_LANES = 8_000, 17  # bytes of a module that is predicted, and how many are read side by side
WITH, WITHOUT, PLAIN = "trained with memory", "trained without", "Transformer-XL, trained with memory"
TAKEN_AWAY = "trained with, memory taken away"
LOAD_AGAIN = """
import sys
import numpy as np, torch, transformers_xl
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.evaluation.bits_per_byte import score_stream
folder, held_out, segment, lanes, expected = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder)
documents = np.load(held_out).values()
found = score_stream(model, DocumentStream(documents, int(segment), int(lanes), keep_tail=True)).bits_per_byte
assert abs(found - float(expected)) < 1e-4, (found, expected)
print(f"a fresh process loads a {type(model).__name__} with its {type(AutoTokenizer.from_pretrained(folder)).__name__}: "
      f"{found:.3f} bits per byte again")
"""

Curve = list[tuple[int, float]]  # of a training: steps, and bits per byte


class Training(NamedTuple):
    """A trained model, its losses on the way, and seconds of the processor."""

    model: PreTrainedModel
    curve: Curve
    seconds: float


def train(ids: np.ndarray, model_type: str, mem_len: int) -> Training:
    """A model that was trained with a memory of so many bytes, or, with 0, without."""
    set_seed(0)
    config = AutoConfig.for_model(
        model_type,
        vocab_size=len(ByteTokenizer()),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=INNER_WIDTHS[model_type],
        mem_len=mem_len,
        segment_length=SEGMENT,
        same_length=mem_len > 0,
        dropout=0.0,
    )
    model, grows = AutoModelForCausalLM.from_config(config), model_type == "transformer_xl" and mem_len > 0
    arguments = MemoryTrainingArguments(
        output_dir=str(OUTPUT / "trainer"),
        per_device_train_batch_size=LANES,
        max_steps=STEPS,
        learning_rate=2e-3,
        warmup_steps=30,
        lr_scheduler_type="cosine",
        # Transformer-XL learns more slowly with a long memory at first (docs/memory_worth.md)
        initial_mem_len=FIRST_MEMORY if grows else None,
        mem_len_warmup_steps=0.4 if grows else 0,
        logging_steps=25,
        save_strategy="no",
        report_to="none",
        disable_tqdm=not sys.stderr.isatty(),  # a log keeps the losses, not every tick of a bar
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    start, spent = time.perf_counter(), time.process_time()
    trainer = MemoryTrainer(model, arguments, train_dataset=TextStream(ids, SEGMENT, LANES))
    trainer.train()
    took, spent = time.perf_counter() - start, time.process_time() - spent
    size = f"{model.num_parameters():,} parameters, memory {mem_len}"
    print(f"{model_type}, {size}: {took:.0f} s, {spent:.0f} s of processor time")
    log = trainer.state.log_history
    curve = [(row["step"], row["loss"] / math.log(2)) for row in log if "loss" in row]
    return Training(model, curve, round(spent, 1))


def draw(curves: dict[str, Curve], scores: dict[str, TextScore], path: Path) -> None:
    """What was learned on the way, and the held-out text by the position in a segment."""
    picture, ((left, right),) = figure(columns=2, width=5, sharey=True)
    for index, (name, score) in enumerate(scores.items()):
        style = line(index, len(scores)) | {"marker": None}
        if name in curves:
            left.plot(*zip(*curves[name], strict=True), **style)
        bits = score.bits_per_byte_by_position
        right.plot(range(1, len(bits) + 1), bits, label=f"{name}: {score.bits_per_byte:.2f}", **style)
    left.set(xlabel="training step", ylabel="bits per byte", title="Training text, one seed")
    right.set(xlabel="position in the segment (bytes)", title="Held-out modules (means below)")
    right.yaxis.set_tick_params(labelleft=True)
    left.set_ylim(0, None)
    picture.legend(loc="outside lower center", ncols=2)
    save(picture, path)


def write(model: PreTrainedModel, tokenizer: ByteTokenizer, prompt: str) -> None:
    print(f"\n--- 300 bytes, generated with memory ---\n{prompt}", end="", flush=True)

    def show(data: bytes) -> None:
        print(data.decode("utf-8", errors="replace"), end="", flush=True)

    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    streamer = ByteStreamer(tokenizer, show)
    model.eval().generate(**inputs, max_new_tokens=300, do_sample=True, temperature=0.7, streamer=streamer)
    print("\n---\n")


def keep(trainings: dict[str, Training], held_out: dict[str, bytes], scores: dict[str, TextScore]) -> None:
    """The model that has a memory, the held-out modules, the picture, and the figures."""
    model = trainings[WITH].model
    model.save_pretrained(OUTPUT / "model")
    ByteTokenizer().save_pretrained(OUTPUT / "model")
    np.savez(OUTPUT / "held_out.npz", *ids_of(held_out))
    (OUTPUT / "held_out.txt").write_bytes(b"".join(held_out.values()))
    draw({name: each.curve for name, each in trainings.items()}, scores, OUTPUT / "quickstart.png")
    by_position = {name: score.bits_per_byte_by_position for name, score in scores.items()}
    figures = {
        "python": platform.python_version(),
        "machine": library_versions() | {"processor": str(processor()), "threads": str(torch.get_num_threads())},
        "parameters": {name: each.model.num_parameters() for name, each in trainings.items()},
        "training_bytes": LANES * SEGMENT * STEPS,
        "held_out": {"modules": len(held_out), "bytes": sum(map(len, held_out.values()))},
        "bits_per_byte": {name: score.bits_per_byte for name, score in scores.items()},
        "at_the_first_4_bytes": {name: float(bits[:4].mean()) for name, bits in by_position.items()},
        "at_the_other_bytes": {name: float(bits[4:].mean()) for name, bits in by_position.items()},
        "processor_seconds": {name: each.seconds for name, each in trainings.items()},
    }
    (OUTPUT / "quickstart.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {OUTPUT}: quickstart.png, quickstart.json and model")


def main() -> None:
    OUTPUT.mkdir(parents=True, exist_ok=True)
    split = library_split()
    ids = split.training_ids()
    held_out = {name: text for name, text in split.test.items() if len(text) <= LONGEST}
    size = sum(map(len, held_out.values()))
    print(
        f"{LANES * SEGMENT * STEPS:,} of {len(ids):,} bytes for training; held out: {len(held_out)} modules, {size:,} bytes"
    )
    trainings = {
        WITH: train(ids, "streaming_transformer", MEMORY),
        WITHOUT: train(ids, "streaming_transformer", 0),
        PLAIN: train(ids, "transformer_xl", MEMORY),
    }
    stream = DocumentStream(ids_of(held_out), SEGMENT, min(HELD_OUT_LANES, len(held_out)), keep_tail=True)
    scores = {name: score_stream(each.model, stream, memory=name != WITHOUT) for name, each in trainings.items()}
    scores[TAKEN_AWAY] = score_stream(trainings[WITH].model, stream, memory=False)
    print(f"held-out text, in segments of {SEGMENT} bytes, with a memory of {MEMORY}:")
    for name, score in scores.items():
        print(f"  {score.bits_per_byte:.3f} bits per byte, {name}")
    write(trainings[WITH].model, ByteTokenizer(), "class ")
    keep(trainings, held_out, scores)

    with_memory, without = scores[WITH].bits_per_byte, scores[WITHOUT].bits_per_byte
    arguments = map(str, (OUTPUT / "model", OUTPUT / "held_out.npz", SEGMENT, stream.lanes, with_memory))
    subprocess.run([sys.executable, "-c", LOAD_AGAIN, *arguments], check=True)
    if with_memory > without - 0.02:
        sys.exit("The memory was of no use: something is wrong.")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
