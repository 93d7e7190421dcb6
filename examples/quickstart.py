"""From text to a model that remembers, in a few minutes on two cores: train, measure, write, save, load again.

The text is real English that every CPython ships: the help topics of `pydoc`. Everything goes to `build/quickstart/`.
"""

import subprocess
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

import matplotlib
import numpy as np
import torch
from transformers import set_seed

from transformers_xl import ByteTokenizer, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.evaluation.bits_per_byte import TextScore, score_text
from transformers_xl.streams.files import split_held_out
from transformers_xl.streams.streamers import ByteStreamer
from transformers_xl.streams.text_stream import TextStream
from transformers_xl.training.trainer import MemoryTrainer, MemoryTrainingArguments

matplotlib.use("Agg")
from matplotlib import pyplot as plt

OUTPUT = Path("build/quickstart")
STEPS, LANES = 450, 32

LOAD_AGAIN = """
import sys
import numpy as np, torch, transformers_xl
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers_xl.evaluation.bits_per_byte import bits_per_byte
folder, held_out, expected = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder)
found = bits_per_byte(model, np.load(held_out), lanes=4)
assert abs(found - float(expected)) < 1e-4, (found, expected)
print(f"a fresh process loads a {type(model).__name__} with its {type(AutoTokenizer.from_pretrained(folder)).__name__}: "
      f"{found:.3f} bits per byte again")
"""


def draw(losses: list[tuple[int, float]], with_memory: TextScore, without: TextScore, path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    left.plot(*zip(*losses, strict=True), color="black")
    left.set(xlabel="training step", ylabel="training loss (nats per byte)", title="Training")
    positions = range(1, len(without.bits_per_byte_by_position) + 1)
    for score, label, style in ((without, "without memory", "--"), (with_memory, "with memory", "-")):
        label = f"{label}: {score.bits_per_byte:.2f} in the mean"
        right.plot(positions, score.bits_per_byte_by_position, style, color="black", label=label)
    right.set(xlabel="position in the segment (bytes)", ylabel="bits per byte, held-out text", ylim=(0, None))
    right.set_title("What memory is worth")
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    OUTPUT.mkdir(parents=True, exist_ok=True)
    set_seed(0)
    tokenizer = ByteTokenizer()
    text = "\n".join(topics[name] for name in sorted(topics))
    ids, held_out = split_held_out(np.array(tokenizer.encode_bytes(text.encode("utf-8"))), fraction=0.05)

    config = TransformerXLConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=768,
        mem_len=128,
        segment_length=32,
        dropout=0.0,
    )
    model = TransformerXLForCausalLM(config)
    print(f"{model.num_parameters():,} parameters; {len(ids):,} bytes to learn from, {len(held_out):,} held out")
    arguments = MemoryTrainingArguments(
        output_dir=str(OUTPUT / "trainer"),
        per_device_train_batch_size=LANES,
        max_steps=STEPS,
        learning_rate=2e-3,
        warmup_steps=30,
        lr_scheduler_type="cosine",
        logging_steps=25,
        save_strategy="no",
        report_to="none",
        disable_tqdm=not sys.stderr.isatty(),  # a log keeps the losses, not every tick of a bar
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    start = time.perf_counter()
    trainer = MemoryTrainer(model, arguments, train_dataset=TextStream(ids, config.segment_length, LANES))
    trainer.train()
    print(f"{STEPS} steps in {time.perf_counter() - start:.0f} s")

    with_memory = score_text(model, held_out, lanes=4)
    without = score_text(model, held_out, lanes=4, memory=False)
    print(f"held-out text, in segments of {config.segment_length} bytes:")
    print(f"  {with_memory.bits_per_byte:.3f} bits per byte with a memory of {config.mem_len} bytes")
    print(f"  {without.bits_per_byte:.3f} bits per byte without")

    prompt = "The import statement"
    print(f"\n--- 300 bytes, generated with memory ---\n{prompt}", end="", flush=True)

    def write(data: bytes) -> None:
        print(data.decode("utf-8", errors="replace"), end="", flush=True)

    streamer = ByteStreamer(tokenizer, write)
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    model.eval().generate(**inputs, max_new_tokens=300, do_sample=True, temperature=0.7, streamer=streamer)
    print("\n---\n")

    picture = OUTPUT / "quickstart.png"
    draw(
        [(row["step"], row["loss"]) for row in trainer.state.log_history if "loss" in row],
        with_memory,
        without,
        picture,
    )
    model.save_pretrained(OUTPUT / "model")
    tokenizer.save_pretrained(OUTPUT / "model")
    print(f"wrote {picture} and {OUTPUT / 'model'}")

    np.save(OUTPUT / "held_out.npy", held_out)
    expected = str(with_memory.bits_per_byte)
    command = [sys.executable, "-c", LOAD_AGAIN, str(OUTPUT / "model"), str(OUTPUT / "held_out.npy"), expected]
    subprocess.run(command, check=True)
    if with_memory.bits_per_byte > without.bits_per_byte - 0.05:
        sys.exit("The memory was of no use: something is wrong.")


if __name__ == "__main__":
    main()
