"""The trainings that test_processes.py runs in one process and in two, and the script of the two:

torchrun --nproc_per_node 2 tests/helpers/in_processes.py FOLDER [NAME ...]
"""

import functools
import gc
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from patience import PATIENCE
from tiny_bases import tiny_base
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from trained import SEGMENT, Bare, Flowing, arguments, flat, losses, segments, small_model, text

from transformers_xl import MemoryTrainer, add_memory
from transformers_xl.data.text_stream import TextStream
from transformers_xl.files.output_lock import LOCK
from transformers_xl.modeling.memory.memory_value import Memory

ROWS = 4  # of a batch, over all processes
WORLD = int(os.environ.get("WORLD_SIZE", 1))
RANK = int(os.environ.get("RANK", 0))
IDS, HELD_OUT = text(ROWS * SEGMENT * 5 + 1), text(77, seed=1)

# what is set beyond `build`, by the name of the training
TRAININGS: dict[str, dict] = {
    "plain": {},
    "bf16": {"bf16": True},
    "dispatched": {"accelerator_config": {"dispatch_batches": True}},
    "checkpointed": {
        "activation_checkpointing": True,
        "ddp_find_unused_parameters": False,
        "ddp_bucket_cap_mb": 1,
        "ddp_broadcast_buffers": False,
        "ddp_timeout": round(PATIENCE),
    },
    "static": {"ddp_static_graph": True, "gradient_accumulation_steps": 1},
    "clipped": {"max_grad_norm": 0.1, "label_smoothing_factor": 0.1},
    "muon": {"optimizer": "muon", "weight_decay": 0.1, "learning_rate": 5e-3},
    "padded": {},
    "flowing": {"max_steps": 3, "num_train_epochs": 1},
    "window": {"kind": "window"},
    "tokens": {"kind": "tokens"},
}


# memory around a base, by its kind; a segment of the stream ends in the middle of one between memory tokens
AROUND_BASES: dict[str, dict] = {
    "window": {"mem_len": 8},
    "tokens": {"num_memory_tokens": 2, "segment_length": SEGMENT - 2, "bptt_segments": 2},
}


def model_of(kind: str | None) -> nn.Module:
    """A model of this package, or a Llama around which a memory of this kind was put."""
    if kind is None:
        return small_model()
    base = tiny_base("llama").float()
    torch.manual_seed(0)
    return add_memory(base, kind=kind, **AROUND_BASES[kind]).train()


def rows_of(memory: Memory) -> torch.Tensor:
    """All that each row remembers, in one row of a matrix."""
    return torch.cat(
        [tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None] for tensor in memory.named_tensors().values()],
        dim=1,
    )


def build(folder: Path, train_dataset, eval_dataset=None, kind: str | None = None, **fields) -> MemoryTrainer:
    defaults = {
        "use_cpu": True, "per_device_train_batch_size": ROWS // WORLD, "per_device_eval_batch_size": ROWS // WORLD,
        "num_train_epochs": 2, "gradient_accumulation_steps": 2, "ddp_backend": "gloo" if WORLD > 1 else None,
    }  # fmt: skip
    args = arguments(folder, **(defaults | fields))
    return MemoryTrainer(model_of(kind), args, train_dataset=train_dataset, eval_dataset=eval_dataset)


def train(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """A training with evaluation in between; what it ends with, and the evaluation and prediction of a ragged text."""
    stream = (
        TextStream(text(101), SEGMENT, ROWS, keep_tail=True) if name == "padded" else TextStream(IDS, SEGMENT, ROWS)
    )
    held_out = TextStream(HELD_OUT, SEGMENT, ROWS, keep_tail=True)
    dataset = Flowing(stream) if name == "flowing" else stream
    trainer = build(folder, dataset, held_out, eval_strategy="epoch", **TRAININGS[name])
    trainer.train()
    evaluations = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    output = trainer.predict(held_out)
    return {
        "losses": losses(trainer),
        "evaluations": torch.tensor(evaluations),
        "weights": flat(trainer.accelerator.unwrap_model(trainer.model)),
        "memory": rows_of(trainer.memory["train"]),
        # what stands at padding says nothing
        "predictions": torch.from_numpy(output.predictions[output.label_ids != -100]),
    }


def run_out(folder: Path) -> dict[str, torch.Tensor]:
    """Five batches for two processes: the second has no third. Training drops the odd batch, evaluation refuses it."""
    five = Bare(TextStream(IDS, SEGMENT, ROWS), count=5 * (ROWS // WORLD))
    found = {}
    for name, dataset in (("map", five), ("iterable", Flowing(five))):
        fields = {"num_train_epochs": 1, "gradient_accumulation_steps": 1}
        trainer = build(folder, dataset, **fields, **({"max_steps": 2} if name == "iterable" else {}))
        trainer.train()
        found[f"{name} steps"] = torch.tensor(trainer.state.global_step)
        try:
            trainer.evaluate(dataset)
        except ValueError as error:
            found[f"{name} refused"] = torch.tensor("multiple" in str(error))
    try:
        build(folder, TextStream(IDS, SEGMENT, ROWS - 1))
    except ValueError as error:
        found["lanes refused"] = torch.tensor(f"`lanes`={ROWS - 1}" in str(error))
    return found


def damage(folder: Path) -> dict[str, torch.Tensor]:
    """Checkpoints of two processes, of which the second's memory is damaged, and a lock: what each process does."""
    stream = TextStream(IDS, SEGMENT, ROWS)
    saving = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 1}
    found = {}

    def resume(name: str, asked: Path | bool, message: str) -> None:
        trainer = build(folder, stream, **saving)
        try:
            trainer.train(resume_from_checkpoint=asked)
        except ValueError as error:
            found[name] = torch.tensor(message in str(error))
        else:
            found[name] = torch.tensor(trainer._initial_global_step)
        trainer.accelerator.wait_for_everyone()

    trainer = build(folder, stream, **saving)
    trainer.train()
    last, lock = folder / "checkpoint-3", folder / LOCK
    if RANK == 0:
        content = (last / "memory-1.safetensors").read_bytes()
        (last / "memory-1.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        lock.write_text("1\nanother-host\n")
    trainer.accelerator.wait_for_everyone()
    resume("locked", True, "process 1 on host 'another-host'")
    if RANK == 0:
        lock.unlink()
    trainer.accelerator.wait_for_everyone()
    resume("named", last, "checkpoint-3' is not a complete checkpoint (`memory-1.safetensors` is damaged")
    resume("last", True, "")
    resume("again", True, "")  # the last one has been written anew
    found["released"] = torch.tensor(not lock.exists())
    return found


SHARDED = {"shard": None} | {f"shard {kind}": kind for kind in AROUND_BASES}


def shard(folder: Path, kind: str | None = None) -> dict[str, torch.Tensor]:
    """FSDP2 in a loop of one's own: weights are sharded, every process keeps the memory of its own rows."""
    model = model_of(kind)
    if WORLD > 1:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD,))
        for layer in model.model.layers if kind is None else model.backbone.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = slice(RANK * ROWS // WORLD, (RANK + 1) * ROWS // WORLD)
    mems, found = None, []
    for inputs, targets in segments(IDS, lanes=ROWS):
        outputs = model(inputs[rows], mems=mems)
        mems = outputs.mems
        loss = F.cross_entropy(outputs.logits.transpose(1, 2), targets[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        if WORLD > 1:
            dist.all_reduce(total)
        found.append(total / WORLD)
    parameters = [parameter.full_tensor() if WORLD > 1 else parameter for parameter in model.parameters()]
    return {
        "losses": torch.stack(found),
        "weights": torch.cat([parameter.detach().flatten() for parameter in parameters]),
        "memory": rows_of(mems),
    }


def train_with_fsdp2(folder: Path) -> dict[str, torch.Tensor]:
    """FSDP2 through Accelerate, on CUDA devices: a training, and the same resumed in its middle."""
    found = {}
    for name, resumed in (("whole", None), ("resumed", str(folder / "checkpoint-2"))):
        trainer = build(
            folder, TextStream(IDS, SEGMENT, ROWS), TextStream(HELD_OUT, SEGMENT, ROWS, keep_tail=True), use_cpu=False,
            ddp_backend=None, fsdp=True, fsdp_config={"version": 2}, save_strategy="steps", save_steps=1,
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resumed)
        parameters = [parameter.full_tensor().detach().flatten().cpu() for parameter in trainer.model.parameters()]
        found[name] = torch.cat(parameters)
        found[f"{name} losses"] = losses(trainer)
        found[f"{name} evaluation"] = torch.tensor(trainer.evaluate()["eval_loss"])
    return found


def train_with_nccl(folder: Path) -> dict[str, torch.Tensor]:
    """A training on the devices that there are, by DistributedDataParallel where they are several."""
    backend = "nccl" if WORLD > 1 else None
    trainer = build(folder, TextStream(IDS, SEGMENT, ROWS), use_cpu=False, ddp_backend=backend)
    trainer.train()
    return {"losses": losses(trainer)}


def main() -> None:
    folder, *names = sys.argv[1:]
    gc.freeze()  # as in conftest.py
    others = {"run_out": run_out, "damage": damage, "fsdp2": train_with_fsdp2, "nccl": train_with_nccl}
    others |= {name: functools.partial(shard, kind=kind) for name, kind in SHARDED.items()}
    for name in names or [*TRAININGS, "run_out", "damage", *SHARDED]:
        work = Path(folder) / name
        found = others[name](work) if name in others else train(work, name)
        torch.save(found, Path(folder) / f"{name}-{RANK}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
