"""Goes on from the memories in a folder; as a program, in a process that has made none of them."""

import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from transformers_xl import Memory
from transformers_xl.modeling.auto import VARIANTS


def loaded(folder: Path):
    """The language model of a folder, or the one without a head."""
    row = VARIANTS[transformers.AutoConfig.from_pretrained(folder).model_type]
    return (row.causal_lm_class or row.model_class).from_pretrained(folder).eval()


@torch.no_grad()
def going_on(model, path: Path) -> dict[str, torch.Tensor]:
    """What a model says after the memory `path` and the tokens that it has not read; and, greedily, a text."""
    memory, unread_ids = Memory.load(path, model)
    output = model(unread_ids, mems=memory, use_cache=True)
    said = {"said": output[0], **{name: each.contiguous() for name, each in output.mems.named_tensors().items()}}
    if model.can_generate():
        said["text"] = model.generate(unread_ids, mems=memory, do_sample=False, max_new_tokens=7)
    return {name: each.clone() for name, each in said.items()}


def main(folder: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    for saved in sorted(each for each in folder.iterdir() if each.is_dir()):
        model = loaded(saved)
        for use_cache in (None, True):
            name = f"{saved.name} {use_cache}"
            save_file(going_on(model, folder / name), folder / f"{name} went on")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
