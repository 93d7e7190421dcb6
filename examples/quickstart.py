"""From text to models that remember, in a few minutes on two cores: what a memory is worth, and a model to keep.

The text is that of every CPython: the sources of its library. One model is trained with a memory, the same one without, on
the same bytes in the same order at the same rates. Modules at the end of the text, which neither has read, are predicted
by both, and by the first with its memory taken away. Everything goes to `build/quickstart/`.
"""

import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

# threads that wait sleep, as in the commands (runs/threads.py); before torch is imported
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import numpy as np
import torch
from library_corpus import modules, source
from transformers import set_seed

from transformers_xl import ByteTokenizer, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.data.files import split_held_out
from transformers_xl.data.streamers import ByteStreamer
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.bits_per_byte import TextScore, score_text
from transformers_xl.evaluation.plots import figure, line, save
from transformers_xl.files.processor import processor
from transformers_xl.training.trainer import MemoryTrainer, MemoryTrainingArguments

OUTPUT = Path("build/quickstart")
STEPS, LANES = 400, 32
SEGMENT, MEMORY, FIRST_MEMORY = 16, 64, 16  # bytes
HELD_OUT = 60_000  # bytes
LOAD_AGAIN = """
import sys
import numpy as np, torch, transformers_xl
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers_xl.evaluation.bits_per_byte import bits_per_byte
folder, held_out, expected = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder)
found = bits_per_byte(model, np.load(held_out), lanes=8)
assert abs(found - float(expected)) < 1e-4, (found, expected)
print(f"a fresh process loads a {type(model).__name__} with its {type(AutoTokenizer.from_pretrained(folder)).__name__}: "
      f"{found:.3f} bits per byte again")
"""

Curve = list[tuple[int, float]]  # of a training: steps, and bits per byte


def train(ids: np.ndarray, mem_len: int) -> tuple[TransformerXLForCausalLM, Curve, float]:
    """A model that was trained with a memory of so many bytes, or, with 0, without; its losses on the way; seconds of
    the processor."""
    set_seed(0)
    config = TransformerXLConfig(
        vocab_size=len(ByteTokenizer()),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        mem_len=mem_len,
        segment_length=SEGMENT,
        same_length=mem_len > 0,
        dropout=0.0,
    )
    model = TransformerXLForCausalLM(config)
    arguments = MemoryTrainingArguments(
        output_dir=str(OUTPUT / "trainer"),
        per_device_train_batch_size=LANES,
        max_steps=STEPS,
        learning_rate=2e-3,
        warmup_steps=30,
        lr_scheduler_type="cosine",
        # a long memory from the first step on is learned more slowly (docs/memory_worth.md)
        initial_mem_len=FIRST_MEMORY if mem_len else None,
        mem_len_warmup_steps=0.4 if mem_len else 0,
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
    print(f"{model.num_parameters():,} parameters, memory {mem_len}: {took:.0f} s, {spent:.0f} s of processor time")
    log = trainer.state.log_history
    return model, [(row["step"], row["loss"] / math.log(2)) for row in log if "loss" in row], spent


def record(scores: dict[str, TextScore], seconds: dict[str, float], path: Path) -> None:
    """The figures that README.md and docs/memory_worth.md give, with where they come from."""
    machine = {"processor": str(processor()), "threads": torch.get_num_threads(), "torch": torch.__version__}
    result = {
        "text": f"sources of the library of Python {platform.python_version()}",
        "machine": machine,
        "bits_per_byte": {name: score.bits_per_byte for name, score in scores.items()},
        "at_the_first_4_bytes": {
            name: float(score.bits_per_byte_by_position[:4].mean()) for name, score in scores.items()
        },
        "at_the_other_bytes": {
            name: float(score.bits_per_byte_by_position[4:].mean()) for name, score in scores.items()
        },
        "processor_seconds": seconds,
    }
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


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
    picture.legend(loc="outside lower center", ncols=len(scores))
    save(picture, path)


def write(model: TransformerXLForCausalLM, tokenizer: ByteTokenizer, prompt: str) -> None:
    print(f"\n--- 300 bytes, generated with memory ---\n{prompt}", end="", flush=True)

    def show(data: bytes) -> None:
        print(data.decode("utf-8", errors="replace"), end="", flush=True)

    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    streamer = ByteStreamer(tokenizer, show)
    model.eval().generate(**inputs, max_new_tokens=300, do_sample=True, temperature=0.7, streamer=streamer)
    print("\n---\n")


def main() -> None:
    OUTPUT.mkdir(parents=True, exist_ok=True)
    tokenizer = ByteTokenizer()
    text = b"".join(map(source, modules()))
    ids, held_out = split_held_out(np.array(tokenizer.encode_bytes(text)), fraction=0.05)
    held_out = held_out[-HELD_OUT:]
    print(f"{LANES * SEGMENT * STEPS:,} of {len(ids):,} bytes for training, {len(held_out):,} held out")
    model, curve, seconds = train(ids, MEMORY)
    other, other_curve, other_seconds = train(ids, 0)
    scores = {
        "trained with memory": score_text(model, held_out, lanes=8),
        "trained without": score_text(other, held_out, lanes=8, memory=False),
        "trained with, memory taken away": score_text(model, held_out, lanes=8, memory=False),
    }
    print(f"held-out text, in segments of {SEGMENT} bytes, with a memory of {MEMORY}:")
    for name, score in scores.items():
        print(f"  {score.bits_per_byte:.3f} bits per byte, {name}")
    record(scores, {"with memory": seconds, "without": other_seconds}, OUTPUT / "quickstart.json")
    write(model, tokenizer, "class ")

    picture = OUTPUT / "quickstart.png"
    draw({"trained with memory": curve, "trained without": other_curve}, scores, picture)
    model.save_pretrained(OUTPUT / "model")
    tokenizer.save_pretrained(OUTPUT / "model")
    print(f"wrote {picture} and {OUTPUT / 'model'}")

    np.save(OUTPUT / "held_out.npy", held_out)
    with_memory, without, _ = (score.bits_per_byte for score in scores.values())
    command = [sys.executable, "-c", LOAD_AGAIN, str(OUTPUT / "model"), str(OUTPUT / "held_out.npy"), str(with_memory)]
    subprocess.run(command, check=True)
    if with_memory > without - 0.02:
        sys.exit("The memory was of no use: something is wrong.")


if __name__ == "__main__":
    main()
