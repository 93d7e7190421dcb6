"""Training with memory in a loop of your own: Accelerate without the Trainer, on one process or many, resumed exactly.

python examples/train_with_accelerate.py my.txt
accelerate launch --config_file examples/accelerate/ddp.yaml examples/train_with_accelerate.py my.txt

Run the same command again to resume. `--base FOLDER_OR_REPO` fine-tunes a model, `--push-to you/name` pushes it.
"""

import json
import math
import shutil
from pathlib import Path

import torch
import typer
from accelerate import Accelerator, PartialState, skip_first_batches
from accelerate.utils import GradientAccumulationPlugin, set_seed
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup

from transformers_xl import ByteTokenizer, Memory, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.data.files import read_held_out
from transformers_xl.data.identity import check_identity
from transformers_xl.data.text_beginning import beginning_of
from transformers_xl.data.text_stream import TextStream
from transformers_xl.hub.uploading import push_folder
from transformers_xl.modeling.evaluating import evaluating
from transformers_xl.modeling.layers.token_loss import token_cross_entropy


class CarriedMemory:
    """What the lanes of this process remember. Every process saves its own: `register_for_checkpointing` would write
    that of the first process only, as a pickle that is read without restriction."""

    def __init__(self):
        self.mems: Memory | None = None
        self.file = f"memory_{PartialState().process_index}.safetensors"

    def read(self, model, batch: dict[str, torch.Tensor]):
        reset = batch.pop("reset")
        if reset.all():  # an epoch begins
            self.mems = None
        outputs = model(**batch, reset=reset if reset.any() else None, mems=self.mems)
        self.mems = outputs.mems
        return outputs

    def save(self, models: list, weights: list, folder: str) -> None:
        tensors = {} if self.mems is None else self.mems.named_tensors()
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, Path(folder, self.file))

    def load(self, models: list, folder: str) -> None:
        tensors = load_file(Path(folder, self.file))
        self.mems = Memory.from_named_tensors(tensors).to(PartialState().device) if tensors else None


def save_checkpoint(accelerator: Accelerator, output: Path, progress: dict) -> None:
    """A checkpoint gets its name when all of it is written; then the one before goes."""
    new, folder = output / "unfinished", output / f"checkpoint-{progress['step']}"
    accelerator.save_state(new)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (new / "progress.json").write_text(json.dumps(progress))
        new.rename(folder)
        for old in set(output.glob("checkpoint-*")) - {folder}:
            shutil.rmtree(old)


@torch.no_grad()
def bits_per_byte(accelerator: Accelerator, model, loader: DataLoader, num_bytes: int) -> float:
    memory, sums = CarriedMemory(), torch.zeros((), dtype=torch.float64, device=accelerator.device)
    with evaluating(model):
        for batch in loader:
            targets = batch["shift_labels"]
            sums += token_cross_entropy(memory.read(model, batch).logits, targets).sum()
    return accelerator.reduce(sums).item() / math.log(2) / num_bytes


def train(
    text: Path,
    output: Path = Path("build/train_with_accelerate"),
    lanes: int = 16,
    segment_length: int = 64,
    hidden_size: int = 128,
    dropout: float = 0.1,
    steps: int = 300,
    accumulation: int = 1,
    save_every: int = 100,
    base: str | None = None,
    push_to: str | None = None,
) -> None:
    """`lanes` are the rows of a batch over all processes: the same lanes, the same run. Lengths are in tokens;
    `hidden_size` and `dropout` are those of a new model."""
    # every step has as many batches, also where they reach into the next epoch
    plugin = GradientAccumulationPlugin(num_steps=accumulation, sync_with_dataloader=False)
    # `cpu`: without a GPU Accelerate would take the processes of torchrun for so many runs of one process
    accelerator = Accelerator(gradient_accumulation_plugin=plugin, cpu=not torch.cuda.is_available())
    processes, tokenizer = accelerator.num_processes, AutoTokenizer.from_pretrained(base) if base else ByteTokenizer()
    saved = max(output.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]), default=None)
    if lanes % processes:
        raise ValueError(f"`lanes`={lanes} must be a multiple of the {processes} processes.")
    ids, held_out, counts = read_held_out([text], tokenizer, fraction=0.1, progress=False)
    beginning = beginning_of(tokenizer)  # what a base may expect where a text begins
    stream = TextStream(ids, segment_length, lanes, beginning=beginning)
    test = TextStream(held_out, segment_length, lanes, keep_tail=True, beginning=beginning)
    # with generators of their own: a loader that begins, also where a run is resumed, would draw from dropout's
    loaders = [DataLoader(data, lanes // processes, generator=torch.Generator()) for data in (stream, test)]
    set_seed(0)
    if base:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).train()
    else:
        sizes = {"hidden_size": hidden_size, "intermediate_size": 4 * hidden_size, "mem_len": 2 * segment_length}
        model = TransformerXLForCausalLM(TransformerXLConfig(vocab_size=len(tokenizer), dropout=dropout, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # a prepared schedule moves on by one for every process
    scheduler = get_cosine_schedule_with_warmup(optimizer, steps // 10 * processes, steps * processes)
    model, optimizer, scheduler, loader, test_loader = accelerator.prepare(model, optimizer, scheduler, *loaders)
    set_seed(0, device_specific=True)  # every process has its own dropout
    chosen = {"base": base or "", "hidden_size": hidden_size, "dropout": dropout, "accumulation": accumulation}
    memory, identity = CarriedMemory(), stream.identity | {"processes": processes} | chosen
    accelerator.register_save_state_pre_hook(memory.save)
    accelerator.register_load_state_pre_hook(memory.load)
    if saved:
        progress = json.loads((saved / "progress.json").read_text())
        check_identity(progress["identity"], identity)
        accelerator.load_state(saved)
    step, batches = (progress["step"], progress["batches"]) if saved else (0, 0)
    while step < steps:
        for batch in skip_first_batches(loader, batches % len(loader)):
            with accelerator.accumulate(model):
                loss = memory.read(model, batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.25)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            batches, step = batches + 1, step + accelerator.sync_gradients
            if accelerator.sync_gradients and (step == steps or step % save_every == 0):
                nats = accelerator.reduce(loss.detach(), "mean")
                bits = bits_per_byte(accelerator, model, test_loader, counts.bytes)
                accelerator.print(f"step {step}: loss {nats:.4f} nats, held out {bits:.4f} bits per byte", flush=True)
                save_checkpoint(accelerator, output, {"step": step, "batches": batches, "identity": identity})
            if step == steps:
                break
    weights = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(output / "model", state_dict=weights)
        tokenizer.save_pretrained(output / "model")
        if push_to:
            print(f"pushed to {push_folder(output / 'model', push_to).url}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    typer.run(train)
