"""The recipes: each builds the model whose parameters were counted, trains when small, and stands in docs/recipes.md."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
import yaml
from optional_packages import needs
from stand_ins import stand_in
from transformers import AutoTokenizer

from transformers_xl.cli.main import app
from transformers_xl.data.preparing import prepare
from transformers_xl.data.text_stream import TextStream
from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer
from transformers_xl.training.trainer import MemoryTrainer, MemoryTrainingArguments

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "transformers_xl" / "runs" / "recipes"
OWN = {"small-bytes", "streaming-30m", "small-translation", "add-memory-window", "add-memory-tokens"}  # no paper's
PAPERS = sorted({path.stem for path in FOLDER.glob("*.yaml")} - OWN)
SECTIONS = {"model", "tokenizer", "data", "training"}

# u and v of each layer, of the layers after the first: the authors' TensorFlow scripts untie them
UNTIED_16_10_41 = (16 - 1) * 2 * 10 * 41
UNTIED_18_16_64 = (18 - 1) * 2 * 16 * 64
UNTIED_20_8_128 = (20 - 1) * 2 * 8 * 128
UNTIED_24_16_80 = (24 - 1) * 2 * 16 * 80
# an attention in three more blocks: two norms before it, its projection of queries and their norm, three gates, and the
# matrix that makes the gate of the values
ATTENTIONS_OF_SHA_RNN = 3 * (4 * 1024 + 1024 * (1024 + 1) + 2 * 1024 + 3 * 1024 + 2 * 1024 * (1024 + 1))
# the package's counts of the settings in the notes; what a recipe has otherwise is added
PARAMETERS = {
    "enwik8-12l": 41_055_436,
    "text8-12l": 40_964_635,
    "enwik8-24l": 277_231_820,
    "text8-24l": 277_050_395,
    "wikitext-103-standard": 151_107_538 + UNTIED_16_10_41,
    "wikitext-103-large": 285_170_506 + UNTIED_18_16_64,
    # `proj_same_dim: false`: neither the embedding nor the head projects the first cluster
    "lm1b-base": 469_020_530 + UNTIED_20_8_128 - 2 * 1024**2,
    "lm1b-large": 841_295_982 + UNTIED_24_16_80 - 2 * 1280**2,
    "nvidia-wikitext-103-base": 191_950_298,
    "nvidia-wikitext-103-large": 285_167_482,
    "adaptive-span-enwik8": 38_538_541,
    "adaptive-span-enwik8-large": 208_910_221,
    "adaptive-span-text8": 38_357_116,
    "adaptive-span-text8-large": 208_638_172,
    "sha-rnn-enwik8": 53_773_517,
    "sha-rnn-enwik8-four-attentions": 53_773_517 + ATTENTIONS_OF_SHA_RNN,
    "r-transformer-ptb": 2_281_872,
    "r-transformer-ptb-char": 14_213_169,
    "tensorized-ptb": 6_715_252,
    "tensorized-wikitext-103": 85_356_626,
    "tensorized-lm1b": 200_481_442,
    "al-rfou-enwik8-12l": 43_474_744,
    "al-rfou-enwik8-64l": 231_860_864,
    # 27 symbols, not 205: a row of the embedding, a bias of the head, and two classifiers at each layer but the last,
    # and the second of the last
    "al-rfou-text8-12l": 43_474_744 - 178 * (512 + 1) - 178 * (512 + 1) * 23,
    "al-rfou-text8-64l": 231_860_864 - 178 * (512 + 1) - 178 * (512 + 1) * 127,
    "longformer-enwik8-small": 41_056_460,
    "longformer-enwik8-large": 102_481_100,
    "longformer-text8-small": 41_056_460 - 177 * (512 + 1),
}


def read(name: str) -> dict:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


def header(name: str) -> str:
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.startswith("#"))


def config_of(model: dict, **changed):
    fields = model | changed
    return VARIANTS[fields.pop("variant")].config_class(**fields)


def test_every_recipe_has_a_number_of_parameters():
    assert sorted(PARAMETERS) == PAPERS


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_model_has_the_parameters_that_were_counted(name: str):
    values = read(name)
    assert set(values) == SECTIONS
    config = config_of(values["model"])
    with torch.device("meta"):
        model = VARIANTS[config.model_type].causal_lm_class(config)
    assert model.num_parameters() == PARAMETERS[name]
    assert re.search(r"^# parameters: ([\d,]+\d)", header(name), flags=re.MULTILINE)[1] == f"{PARAMETERS[name]:,}"


def test_the_recipe_for_a_gpu_has_the_parameters_that_it_names():
    config = config_of(read("streaming-30m")["model"], vocab_size=len(ByteTokenizer()))
    with torch.device("meta"):
        model = VARIANTS[config.model_type].causal_lm_class(config)
    assert f"{model.num_parameters():,} parameters" in header("streaming-30m")


def test_what_rests_on_memory_alone_says_so_first():
    unconfirmed = [name for name in PAPERS if header(name).startswith("# unconfirmed\n")]
    assert unconfirmed == [name for name in PAPERS if name.startswith(("al-rfou", "longformer", "tensorized"))]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory):
    """What `prepare` makes of a stand-in as the recipe says, made once: its tokens, and the size of its vocabulary."""
    made: dict[str, tuple[np.ndarray, int]] = {}

    def corpus_of(name: str) -> tuple[np.ndarray, int]:
        command = re.search(r"^# prepare: transformers-xl prepare (.*)$", header(name), flags=re.MULTILINE)[1]
        if command not in made:
            corpus, _, _, output, *line_feeds = command.split()
            assert read(name)["data"]["path"] == [output]
            assert read(name)["tokenizer"]["path"] == f"{output}/tokenizer"
            folder = tmp_path_factory.mktemp("corpus")
            source = stand_in(corpus, folder)
            prepare(corpus, source, folder / output, *line_feeds[1:], check=False, progress=False)
            tokenizer = AutoTokenizer.from_pretrained(folder / output / "tokenizer")
            ids = tokenizer((folder / output / "train.txt").read_text())["input_ids"]
            made[command] = np.array(ids * 20), len(tokenizer)
        return made[command]

    return corpus_of


def small(model: dict, vocab_size: int) -> dict:
    """The same model, two layers deep (four, where blocks are named) and narrow, with short segments."""
    layers = model["num_hidden_layers"] if "attention_layers" in model else 2
    fields = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": min(2, model["num_attention_heads"]),
        "head_dim": 32,
        "intermediate_size": 64,
        "segment_length": 8,
        "mem_len": 8,
        "max_span": 8,
        "local_window": 3,
        "cutoffs": [1, 2, 3],
        "attention_window": [4, 8],
    }
    if not isinstance(model.get("attention_window"), list):
        fields |= {"attention_window": 8}
    return model | {name: value for name, value in fields.items() if model.get(name)}


@pytest.mark.parametrize("name", PAPERS)
def test_it_trains_when_it_is_small(name: str, corpora, tmp_path: Path):
    values = read(name)
    ids, vocab_size = corpora(name)
    if "optimizer" in values["training"]:
        needs("pytorch_optimizer")
    config = config_of(small(values["model"], vocab_size))
    torch.manual_seed(0)
    model = VARIANTS[config.model_type].causal_lm_class(config)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    cut = {name: value for name, value in values["data"].items() if name not in ("path", "batch_size")}
    stream = TextStream(ids, config.segment_length, lanes=2, **(cut | {"overlap": 4 if "overlap" in cut else 0}))
    fields = values["training"] | {"max_steps": 3, "warmup_steps": min(2, values["training"].get("warmup_steps", 0))}
    arguments = MemoryTrainingArguments(
        str(tmp_path), use_cpu=True, per_device_train_batch_size=2, per_device_eval_batch_size=2, logging_steps=1,
        report_to="none", save_strategy="no", disable_tqdm=True, **fields,
    )  # fmt: skip
    trainer = MemoryTrainer(model, arguments, train_dataset=stream, eval_dataset=stream)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3
    assert np.isfinite(losses).all()
    after = dict(model.named_parameters())
    assert not [name for name in before if not after[name].isfinite().all()]
    assert [name for name in before if not torch.equal(before[name], after[name])]


def test_the_page_is_that_of_the_files(request: pytest.FixtureRequest):
    script = runpy.run_path(str(ROOT / ".ci" / "write_recipes.py"))
    page = ROOT / "docs" / "recipes.md"
    if request.config.getoption("--write-readme"):
        script["write"]()
    assert page.read_text(encoding="utf-8") == script["page"](), "run `python .ci/write_recipes.py`"


@pytest.mark.parametrize("name", PAPERS)
def test_its_commands_have_the_options_that_they_are_given(name: str):
    known = typer.main.get_command(app).commands
    for command, *words in re.findall(r"^# \w+: transformers-xl (\w+) (.*)$", header(name), flags=re.MULTILINE):
        options = {option for parameter in known[command].params for option in parameter.opts}
        assert {word for word in " ".join(words).split() if word.startswith("-")} <= options
    assert len(re.findall(r"^# (prepare|evaluate): ", header(name), flags=re.MULTILINE)) == 2
