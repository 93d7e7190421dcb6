"""What the logits of a large vocabulary take: a step of training and an evaluation, with logits of all tokens at once, and
of a few at a time; each in a process of its own, whose peak of memory is read from /proc.

    python benchmarks/bench_logits.py BASE -o benchmarks/results/real_base/logits.json

BASE is the folder of a language model of transformers. One thread, processor time.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from transformers_xl import add_memory
from transformers_xl.evaluation.bits_per_byte import score_text
from transformers_xl.files.processor import processor
from transformers_xl.modeling.layers import token_loss

CASES = {
    "LoRA, 4 x 256": ("lora", 4, 256),
    "evaluate, 1 x 1,024": ("evaluate", 1, 1024),
}


def peak() -> int:
    """Bytes that this process has had at once, at the most."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def step(model, ids: torch.Tensor, is_sliced: bool) -> None:
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")).train()
    model(ids, shift_labels=ids.roll(-1, 1), logits_to_keep=int(is_sliced)).loss.backward()


def run_case(base: str, kind: str, rows: int, length: int, is_sliced: bool) -> dict[str, float]:
    """The peak above the loaded model, and the processor time of a token."""
    torch.set_num_threads(1)
    if not is_sliced:
        token_loss.LOGITS_AT_A_TIME = sys.maxsize
    dtype = torch.float32 if kind == "lora" else torch.bfloat16  # as they are trained, and as they are saved
    model = add_memory(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), mem_len=512)
    numbers = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (rows, length), generator=numbers)
    model(ids[:, :8])
    before, start = peak(), time.process_time()
    if kind == "lora":
        step(model, ids, is_sliced)
    else:
        score_text(model, ids.flatten().numpy(), length, lanes=rows)
    return {"peak": peak() - before, "milliseconds": 1000 * (time.process_time() - start) / ids.numel()}


def main(
    base: Annotated[Path, typer.Argument(exists=True, file_okay=False)],
    output: Annotated[Path | None, typer.Option("-o")] = None,
    case: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    if case is not None:
        name, form = case.split("|")
        print(json.dumps(run_case(str(base), *CASES[name], form == "in slices")))
        return
    result: dict = {"base": base.resolve().name, "device": str(processor()), "threads": 1, "cases": {}}
    for name in CASES:
        for form in ("all at once", "in slices"):
            words = [sys.executable, __file__, str(base), "--case", f"{name}|{form}"]
            printed = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
            result["cases"].setdefault(name, {})[form] = found = json.loads(printed.splitlines()[-1])
            print(f"{name:22} {form:12} {found['peak'] / 2**30:6.2f} GiB {found['milliseconds']:6.1f} ms a token")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
