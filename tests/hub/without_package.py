"""Run by test_code_export.py in a process that cannot import `transformers_xl`: load, compare, generate, save again.

Argument: a folder with one sub-folder per head, in it one per variant, each with the results that are expected.
"""

import json
import shutil
import sys
from pathlib import Path

sys.modules["transformers_xl"] = None  # type: ignore[assignment]  # importing it fails from here on
sys.modules["triton"] = None  # type: ignore[assignment]  # it, too, may be absent

import pytest  # noqa: E402  after the block above
import torch  # noqa: E402  after the block above
import transformers  # noqa: E402  after the block above
from safetensors.torch import load_file  # noqa: E402  after the block above

AUTO_CLASSES = {
    "model": transformers.AutoModel,
    "causal_lm": transformers.AutoModelForCausalLM,
    "sequence_classification": transformers.AutoModelForSequenceClassification,
    "token_classification": transformers.AutoModelForTokenClassification,
    "masked_lm": transformers.AutoModelForMaskedLM,
}
ROUNDING = {"atol": 1e-10, "rtol": 1e-10}  # float64, in two processes


def check(folder: Path, head: str) -> None:
    expected = load_file(folder / "expected.safetensors")
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert config.model_type == folder.name
    model = AUTO_CLASSES[head].from_pretrained(folder, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    with torch.no_grad():
        output = model(expected["ids"])
    torch.testing.assert_close(output[0], expected["result"], **ROUNDING, msg=lambda text: f"{head} {folder}: {text}")
    model.set_attn_implementation("eager")  # transformers looks into the file of the class to tell whether it can
    assert model.config._attn_implementation == "eager", folder
    model.set_attn_implementation("sdpa")
    if head == "causal_lm":
        generated = model.generate(expected["ids"][:, -1:], mems=output.mems, max_new_tokens=4, do_sample=False)
        assert torch.equal(generated, expected["generated"]), folder.name
        if output.mems is not None:
            check_memory_file(model, folder / "text.memory", type(output.mems), expected["generated"])
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        assert type(tokenizer).__module__.startswith("transformers_modules."), type(tokenizer)
        assert tokenizer.encode_bytes(b"\xff\x00") == [255, 0]
        assert tokenizer("a\u00e9")["input_ids"] == [97, 195, 169]

        again = folder.parent.parent / "again" / folder.name
        model.save_pretrained(again)
        tokenizer.save_pretrained(again)
        for file in folder.glob("*.py"):
            assert (again / file.name).read_bytes() == file.read_bytes(), file
        reloaded = AUTO_CLASSES[head].from_pretrained(again, trust_remote_code=True)
        with torch.no_grad():
            torch.testing.assert_close(reloaded(expected["ids"])[0], expected["result"], **ROUNDING)
        assert (
            type(transformers.AutoTokenizer.from_pretrained(again, trust_remote_code=True)).__name__ == "ByteTokenizer"
        )


def check_memory_file(model, path: Path, memory_class: type, generated: torch.Tensor) -> None:
    """That of the package, and one that is written here."""
    for _ in range(2):
        memory, unread_ids = memory_class.load(path, model)
        assert torch.equal(model.generate(unread_ids, mems=memory, max_new_tokens=4, do_sample=False), generated), path
        path = path.with_name("again.memory")
        memory.save(path, model, unread_ids)


def check_foreign_fields(folder: Path) -> None:
    """Another program's field stays where it is, and a misspelled one is refused, as where the package is installed."""
    folder = shutil.copytree(folder, folder.parent.parent / "foreign")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"num_layers": 7}))
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert config.num_layers == 7
    assert config.num_hidden_layers == fields["num_hidden_layers"]
    with pytest.raises(ValueError, match="did you mean `n_layer`"):
        type(config)(num_layers=7)
    with pytest.raises(ValueError, match="did you mean `mem_len`"):
        transformers.AutoModel.from_pretrained(folder, trust_remote_code=True, mem_lenn=3)
    assert type(config)(untie_r=True).share_relative_bias is False


def check_tokenizer_without_code(folder: Path) -> None:
    ids = transformers.AutoTokenizer.from_pretrained(folder)("<|eos|>\u00e9")["input_ids"]
    assert ids == list("<|eos|>\u00e9".encode()), ids


def main(root: Path) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folders = [(head, folder) for head in AUTO_CLASSES for folder in sorted((root / head).iterdir())]
    for head, folder in folders:
        check(folder, head)
    check_tokenizer_without_code(root / "without code")
    check_foreign_fields(next(root.glob("*/transformer_xl")))
    print(len(folders), "models")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
