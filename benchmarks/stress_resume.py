"""Kills trainings with SIGKILL at random moments, resumes them, and compares all they end with, bit for bit.

A training of some steps runs once without interruption, for reference. Then it runs again and again, in fresh folders; each
run is killed several times, every other time while it writes a checkpoint, and resumed from the last complete checkpoint.
What it ends with - weights, averaged weights, optimizer, scheduler, random numbers, memory, log - must be the reference's.
The processes are forked from one that has imported everything, so that a run takes a second or two.

    python benchmarks/stress_resume.py --kills 200
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a thread of the parent would be missing in its forked children
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import torch.distributed as dist
from transformers import set_seed
from transformers.trainer_utils import get_last_checkpoint

from transformers_xl.data.text_stream import TextStream
from transformers_xl.modeling.modeling_transformer_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.training.checkpoints import UNFINISHED, checkpoints_of, incompleteness
from transformers_xl.training.trainer import MemoryTrainer, MemoryTrainingArguments

VOCAB, SEGMENT, LANES = 23, 6, 4
TIMED = ("runtime", "per_second", "preparation_time")


def build_trainer(folder: Path, processes: int) -> MemoryTrainer:
    set_seed(0)
    ids = np.random.default_rng(0).integers(0, VOCAB, LANES * SEGMENT * 11 + 1)
    config = TransformerXLConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, mem_len=8,
        dropout=0.2, attention_dropout=0.1,
    )  # fmt: skip
    args = MemoryTrainingArguments(
        str(folder), use_cpu=True, report_to="none", disable_tqdm=True, dataloader_pin_memory=False, log_level="error",
        per_device_train_batch_size=LANES // processes, per_device_eval_batch_size=LANES // processes,
        gradient_accumulation_steps=2, num_train_epochs=2, learning_rate=0.01, lr_scheduler_type="cosine", warmup_steps=2,
        logging_steps=4, eval_strategy="epoch", save_steps=1, save_total_limit=2,
        average_weights="ema", average_decay=0.9, average_in_the_end=False, ddp_backend="gloo" if processes > 1 else None,
    )  # fmt: skip
    stream, held_out = TextStream(ids, SEGMENT, LANES), TextStream(ids[:60], SEGMENT, LANES, keep_tail=True)
    model = TransformerXLForCausalLM(config)
    return MemoryTrainer(model, args, train_dataset=stream, eval_dataset=held_out)


def digest(value) -> str:
    """A hash of nested tensors, arrays and numbers, with their types and shapes."""
    hashed = hashlib.sha256()

    def add(part) -> None:
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu().numpy()
        if isinstance(part, np.ndarray):
            hashed.update(f"{part.dtype}{part.shape}".encode())
            hashed.update(np.ascontiguousarray(part).tobytes())
        elif isinstance(part, dict):
            for name in sorted(part, key=str):
                hashed.update(str(name).encode())
                add(part[name])
        elif isinstance(part, list | tuple):
            hashed.update(str(len(part)).encode())
            for item in part:
                add(item)
        else:
            hashed.update(repr(part).encode())

    add(value)
    return hashed.hexdigest()


def run_training(folder: Path, processes: int) -> None:
    """Train to the end, from the last complete checkpoint if there is one, and write what the training ends with."""
    trainer = build_trainer(folder, processes)
    trainer.train(resume_from_checkpoint=bool(checkpoints_of(folder)))
    log = [
        {name: value for name, value in row.items() if not any(word in name for word in TIMED)}
        for row in trainer.state.log_history
        if "train_loss" not in row
    ]
    ends = {
        "weights": trainer.model.state_dict(),
        "average": trainer.weight_average.tensors,
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.lr_scheduler.state_dict(),
        "random": [random.getstate(), np.random.get_state(), torch.get_rng_state()],
        "memory": trainer.memory["train"],
        "steps": trainer.state.global_step,
        "log": log,
    }
    written = folder / f"_end-{trainer.args.process_index}"
    written.write_text(json.dumps({name: digest(value) for name, value in ends.items()}))
    written.rename(folder / f"end-{trainer.args.process_index}.json")


def start(folder: Path, processes: int) -> list[int]:
    """Fork the processes of a training; their ids."""
    meeting = tempfile.mktemp(dir=folder.parent)  # a file that the processes make: no port can be taken meanwhile
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            try:
                if processes > 1:
                    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
                    os.environ.update(
                        {name: str(value) for name, value in ranks.items()} | {"MASTER_ADDR": "127.0.0.1"}
                    )
                    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=processes)
                with (folder / f"output-{rank}.txt").open("a") as output:
                    os.dup2(output.fileno(), 1)
                    os.dup2(output.fileno(), 2)
                run_training(folder, processes)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        children.append(child)
    return children


def wait(children: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def is_over(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill(children: list[int], folder: Path, moment: float, while_writing: bool) -> bool:
    """Kill the processes after `moment` seconds, or while they write the next checkpoint; whether one was being written."""
    end = time.monotonic() + moment
    while time.monotonic() < end and not is_over(children[0]):
        time.sleep(0.001)
    if while_writing:
        while not any(folder.glob(f"{UNFINISHED}*")) and not is_over(children[0]):
            time.sleep(0.0002)
        time.sleep(random.random() * 0.01)
    for child in random.sample(children, len(children)):
        os.kill(child, signal.SIGKILL)
    return any(folder.glob(f"{UNFINISHED}*"))


def ends_of(folder: Path, processes: int) -> list[dict[str, str]]:
    return [json.loads((folder / f"end-{rank}.json").read_text()) for rank in range(processes)]


def check_last(folder: Path) -> None:
    """What transformers takes for the last checkpoint must be complete: it knows nothing of ours."""
    last = get_last_checkpoint(str(folder))
    wrong = None if last is None else incompleteness(Path(last))
    if wrong:
        raise AssertionError(f"{last} is not complete: {wrong}")


def stress(kills: int, processes: int, kills_per_run: int = 5) -> dict[str, float]:
    """Kill and compare until `kills` processes groups were killed.

    Raises:
        AssertionError: a resumed training failed, ended otherwise than the reference, or left a broken last checkpoint.
    """
    base = Path(tempfile.mkdtemp(prefix="stress-resume-"))
    reference = base / "reference"
    reference.mkdir()
    began = time.monotonic()
    if any(wait(start(reference, processes))):
        raise AssertionError((reference / "output-0.txt").read_text())
    seconds = time.monotonic() - began
    expected = ends_of(reference, processes)
    done = writing = runs = 0
    while done < kills:
        folder = base / f"run-{runs}"
        folder.mkdir()
        for _ in range(min(kills_per_run, kills - done)):
            children = start(folder, processes)
            writing += kill(children, folder, random.random() * seconds * 0.8, while_writing=done % 2 == 0)
            killed = [code == -signal.SIGKILL for code in wait(children)]
            check_last(folder)
            if not all(killed):  # it was over first: the machine is faster now
                seconds *= 0.8
                break
            done += 1
        if any(wait(start(folder, processes))):
            raise AssertionError((folder / "output-0.txt").read_text())
        for rank, (ours, theirs) in enumerate(zip(ends_of(folder, processes), expected, strict=True)):
            differing = [name for name in theirs if ours[name] != theirs[name]]
            if differing:
                raise AssertionError(
                    f"process {rank} of run {runs} in {folder} ends with other {', '.join(differing)}"
                )
        shutil.rmtree(folder)
        runs += 1
    shutil.rmtree(base)
    return {
        "processes": processes, "kills": done, "while_writing": writing, "runs": runs,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="kills in all, shared by the numbers of processes")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="numbers of processes to try")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    options = parser.parse_args()
    random.seed(options.seed)
    for index, processes in enumerate(options.processes):
        share = (options.kills + index) // len(options.processes)
        print(json.dumps(stress(share, processes)), flush=True)


if __name__ == "__main__":
    main()
