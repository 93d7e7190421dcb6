"""Memory around a real, small language model, where one lies in the Hub's cache: nothing is downloaded."""

from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub.errors import CacheNotFound
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from transformers_xl import add_memory
from transformers_xl.evaluation.bits_per_byte import score_text
from transformers_xl.files.json_files import read_json
from transformers_xl.modeling.auto import VARIANTS

LARGEST = 1.5e9  # bytes of weights
NEEDED = ("config.json", "model.safetensors", "tokenizer_config.json")
TEXT = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


def in_the_cache() -> tuple[Path | None, str]:
    """The folder of the smallest base in the cache, or why there is none."""
    try:
        repos = huggingface_hub.scan_cache_dir().repos
    except CacheNotFound as error:
        return None, f"there is no cache of the Hub: {error.cache_dir}"
    sizes = {}
    for repo in repos:
        for revision in repo.revisions:
            folder = revision.snapshot_path
            if repo.repo_type == "model" and all((folder / name).is_file() for name in NEEDED) and is_base(folder):
                sizes[folder] = (folder / "model.safetensors").stat().st_size
    small = [folder for folder in sorted(sizes, key=sizes.__getitem__) if sizes[folder] <= LARGEST]
    if small:
        return small[0], ""
    return (
        None,
        f"none of the {len(repos)} repositories in the cache is a language model of at most {LARGEST:.1e} bytes",
    )


def is_base(folder: Path) -> bool:
    """Whether it is a language model of transformers whose windows are tested."""
    described = read_json(folder / "config.json")
    known = described.get("model_type") in {*CONFIG_MAPPING} - {*VARIANTS} and "auto_map" not in described
    return known and str(described.get("architectures")).endswith("ForCausalLM']")


@pytest.fixture(scope="module")
def folder() -> Path:
    found, reason = in_the_cache()
    if found is None:
        pytest.skip(reason)
    return found


def loaded(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.slow
@torch.no_grad()
def test_a_window_reads_on_as_the_base_reads_at_once(folder: Path):
    """As long as the window is longer than the text; and a text in segments is predicted better with it than without."""
    ids = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")["input_ids"][:, :192]
    base = loaded(folder)
    expected = base(ids).logits
    model = add_memory(base, mem_len=256, segment_length=32)
    memory, logits = None, []
    for segment in ids.split(32, dim=1):
        output = model(segment, mems=memory)
        memory = output.mems
        logits.append(output.logits)
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, atol=2e-3, rtol=1e-3)
    begun = loaded(folder).generate(ids[:, :48], max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(ids[:, :48], max_new_tokens=8, do_sample=False), begun)
    scores = [score_text(model, ids[0], memory=each).nats for each in (True, False)]
    assert scores[0] < scores[1]


@pytest.mark.slow
def test_memory_tokens_read_train_and_write(folder: Path):
    model = add_memory(loaded(folder), kind="tokens", num_memory_tokens=4, segment_length=32)
    ids = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")["input_ids"][:, :128]
    output = model.train()(ids, labels=ids)
    assert np.isfinite(output.loss.item())
    output.loss.backward()
    gradients = [parameter.grad for parameter in model.reader.parameters()]
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)
    more = model.eval().generate(ids[:, -1:], mems=output.mems, max_new_tokens=40, do_sample=False)
    assert more.shape[1] <= 41


def test_the_config_of_the_library_is_what_is_looked_for(tmp_path: Path):
    """What is looked for in the cache is found: a plain Llama is one, a model of ours is none."""
    AutoConfig.for_model("llama", architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "llama")
    AutoConfig.for_model("gtrxl", architectures=["GTrXLForCausalLM"]).save_pretrained(tmp_path / "gtrxl")
    assert [is_base(tmp_path / name) for name in ("llama", "gtrxl")] == [True, False]
