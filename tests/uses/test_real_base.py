"""Memory around a real, small language model, where one is at hand: nothing is downloaded.

    TRANSFORMERS_XL_REAL_BASE=folder python -m pytest -n 0 tests/uses/test_real_base.py

The folder is that of a language model of transformers with its tokenizer. Without the variable, the smallest one in the
Hub's cache is taken. What a Gemma 3 of 270 million parameters gave: benchmarks/results/real_base.
"""

import os
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub.errors import CacheNotFound
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from transformers_xl import add_memory
from transformers_xl.data.text_beginning import beginning_of
from transformers_xl.evaluation.base_ways import score_base_ways
from transformers_xl.evaluation.bits_per_byte import score_text
from transformers_xl.files.json_files import read_json
from transformers_xl.modeling.auto import VARIANTS

FOLDER = "TRANSFORMERS_XL_REAL_BASE"
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
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])  # what is not there is an error, not a skip
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


@pytest.mark.slow
def test_losses_are_those_of_whole_logits(folder: Path):
    """Of a head with a large vocabulary, whatever else it has; and so are the gradients of what stands before it."""
    model = add_memory(loaded(folder), mem_len=64)
    ids = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")["input_ids"][:, :160]
    found = []
    for kept in (0, 1):  # in one slice, or in several of a vocabulary of 2**18
        embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
        loss = model(inputs_embeds=embeds, shift_labels=ids.roll(-1, 1), logits_to_keep=kept).loss
        found.append((loss, *torch.autograd.grad(loss, embeds)))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_sinks_are_what_an_untrained_window_needs(folder: Path):
    """The window with sinks is nearly as good as the base's own cache, and keeps less; one without is not."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"][:900]
    scores = score_base_ways(loaded(folder), np.array(ids), beginning_of(tokenizer), 128, 256)
    segments, again, own, without, with_sinks = (score.late_perplexity for score in scores.values())
    assert own < again < segments
    assert own < with_sinks < without
    assert with_sinks < 1.15 * own
    kept = [score.kept_bytes for score in scores.values()]
    assert kept[4] < kept[2] / 2


def test_the_config_of_the_library_is_what_is_looked_for(tmp_path: Path):
    """What is looked for in the cache is found: a plain Llama is one, a model of ours is none."""
    AutoConfig.for_model("llama", architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "llama")
    AutoConfig.for_model("gtrxl", architectures=["GTrXLForCausalLM"]).save_pretrained(tmp_path / "gtrxl")
    assert [is_base(tmp_path / name) for name in ("llama", "gtrxl")] == [True, False]
