"""Cards: every figure is in the file that it names, the client's validators take them, and no other figure is taken."""

import hashlib
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from carded import evaluation, saved
from huggingface_hub import HfApi, ModelCard, parse_eval_result_entries
from huggingface_hub.repocard_data import ModelCardData, eval_results_to_model_index, model_index_to_eval_results
from tiny import tiny_model
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from transformers_xl import ByteTokenizer, MemoryTrainer
from transformers_xl.cli.main import app
from transformers_xl.data.text_stream import TextStream
from transformers_xl.hub.cards import Choices, model_card, result_entries, write_card
from transformers_xl.hub.measurements import (
    FILE,
    measurements_of,
    read_measurements,
    weights_digest,
    write_measurements,
)
from transformers_xl.hub.uploading import push_folder
from transformers_xl.training.trainer import MemoryTrainingArguments

REPO = "owner/carded"
SMALL = (
    "--model.hidden_size 32 --model.num_hidden_layers 2 --model.num_attention_heads 2 --model.mem_len 16 "
    "--model.segment_length 8 --data.batch_size 4 --training.max_steps 3 --training.warmup_steps 1"
)
BENCHMARK = ("owner/text", "5503434d", "bytes")


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model with two figures."""
    model = saved(tmp_path / "model")
    found = (evaluation(model), evaluation(model, memory=False, bits=2.75))
    write_measurements(tmp_path / "model", measurements_of(model, tmp_path / "model", evaluations=found))
    return tmp_path / "model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained")
    (root / "text.txt").write_text("It was the best of times, it was the worst of times.\n" * 30)
    result = run("train", root / "text.txt", "-o", root / "my model", *SMALL.split(), "--data.dataset", "owner/text")
    assert result.exit_code == 0, result.output
    return root / "my model"


def value_of(folder: Path, source: str):
    """What the file says under the key that the last cell of a row names."""
    file, path = re.fullmatch(r"`([\w.]+)`: `([\w.\[\]]+)`", source).groups()
    value = json.loads((folder / file).read_text())
    for key in re.findall(r"\w+", path):
        value = value[int(key)] if key.isdigit() else value[key]
    return value


def numbers(text: str) -> set[float]:
    return {float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?", text)}


def leaves(value) -> list:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]


def test_every_figure_is_in_the_file_that_it_names(trained: Path):
    text = (trained / "README.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| --- ")]
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    figures = [row for row in rows if row[-1] != "Source"]
    columns = [(row[0], row[1 + i], row[-1].replace("[i]", f"[{i}]")) for row in figures for i in range(len(row) - 2)]
    assert (len(figures), len(columns)) == (6 + 2 * 6 + 17 + 19, 6 + 2 * 6 + 17 + 19 + 17)
    for *cells, source in columns:
        found = leaves([value_of(trained, source)])
        known = {float(value) for value in found if isinstance(value, int | float)}
        # as they are printed
        known |= {float(f"{value:{form}}") for value in known for form in (".4f", ".1f", ".0f", ".3g")}
        known |= set().union(*(numbers(value) for value in found if isinstance(value, str)))
        for cell in cells:
            if cell.startswith(("Training: ", "Evaluation: ", "sha256")):
                continue  # the label
            digest = re.match(r"`([0-9a-f]{64})`", cell)
            assert digest is None or digest[1] in found
            assert digest is not None or numbers(cell) <= known, (cell, source, known)
    # and no figure stands in the prose
    prose = re.sub(r"(?ms)^```.*?^```|^---.*?^---|^\|.*?$|<!--.*?-->|\(http.*?\)", "", text)
    assert numbers(prose.replace("Apache-2.0", "")) <= {2019.0, 0.1, 0.0} | numbers(
        " ".join(json.loads((trained / FILE).read_text())["versions"].values())
    )


def test_train_measures_what_the_card_says(trained: Path):
    measured = read_measurements(trained)
    assert [each.memory for each in measured.evaluations] == [True, False]
    training, (with_memory, without) = measured.training, measured.evaluations
    text = (trained.parent / "text.txt").read_bytes()
    kept = training.data.bytes
    assert training.data.sha256 == hashlib.sha256(text[:kept]).hexdigest()
    assert with_memory.data.sha256 == hashlib.sha256(text[kept:]).hexdigest()
    assert (with_memory.bytes, with_memory.data.bytes) == (len(text) - kept - 1, len(text) - kept)
    assert training.tokens == 3 * 4 * 8
    assert (training.steps, training.seed, training.lengths.lanes) == (3, 0, 4)
    assert (with_memory.lengths.mem_len, without.lengths.mem_len) == (16, 0)
    assert with_memory.bits_per_byte != without.bits_per_byte
    assert with_memory.seconds > 0
    assert training.data.dataset == with_memory.data.dataset == "owner/text"
    assert str(trained.parent) not in (trained / FILE).read_text()
    assert "--model.mem_len 16" in training.command
    assert training.command.startswith("transformers-xl train text.txt -o 'my model'")
    assert training.command in (trained / "README.md").read_text()


def test_the_command_on_the_card_gives_the_same_figures(trained: Path, tmp_path: Path, monkeypatch):
    (tmp_path / "text.txt").write_bytes((trained.parent / "text.txt").read_bytes())
    monkeypatch.chdir(tmp_path)
    words = shlex.split(read_measurements(trained).training.command)
    assert run(*words[1:]).exit_code == 0
    again, before = read_measurements(tmp_path / "my model"), read_measurements(trained)
    assert again.weights_sha256 == before.weights_sha256
    assert [each.nats for each in again.evaluations] == [each.nats for each in before.evaluations]


def test_the_clients_validators_take_the_metadata(hub, folder: Path):
    card = model_card(folder, REPO, Choices("apache-2.0", "en", "owner/base", ("owner/more",), ("mine",)))
    card.validate()
    assert hub.count("POST /api/validate-yaml") == 1
    again = ModelCard(str(card))
    assert again.data.to_dict() == card.data.to_dict()
    assert ModelCardData(**yaml.safe_load(card.data.to_yaml())).to_dict() == card.data.to_dict()
    index = card.data.to_dict()["model-index"]
    name, results = model_index_to_eval_results(index)
    assert name == REPO
    assert eval_results_to_model_index(name, results) == index
    metrics = ["bits_per_byte", "bits_per_character", "perplexity", "word_perplexity"]
    assert [each.metric_type for each in results] == metrics * 2
    assert [each.metric_value for each in results] == [2.5, 3.125, 2**2.5, 2**12.5, 2.75, 3.4375, 2**2.75, 2**13.75]
    assert results[3].metric_name == "Perplexity per whitespace word, with a memory of 8, segments of 6, 3 lanes"
    assert [each.metric_args["mem_len"] for each in results] == [8] * 4 + [0] * 4
    assert all(each.metric_args["lanes"] == 3 and each.metric_args["segment_length"] == 6 for each in results)
    assert results[0].dataset_revision.startswith("sha256:")
    data = card.data
    assert (data.license, data.language, data.base_model) == ("apache-2.0", "en", "owner/base")
    assert (data.library_name, data.pipeline_tag, data.metrics) == ("transformers", "text-generation", metrics)
    assert data.datasets == ["owner/more"]
    assert {"transformers-xl", "transformer_xl", "segment-memory", "custom_code", "mine"} == set(data.tags)


def test_results_on_a_benchmark_of_the_hub(hub, folder: Path):
    assert write_card(folder) == [folder / "README.md"]  # a text that is nowhere on the Hub has no such result
    model = AutoModelForCausalLM.from_pretrained(folder)
    measured = read_measurements(folder)
    texts = [evaluation(model, memory, claims=BENCHMARK, name="hub.txt") for memory in (True, False)]
    other = evaluation(model, name="validation.txt", claims=(*BENCHMARK[:2], None))
    write_measurements(folder, measured.with_evaluations([*texts, other]))
    write_card(folder)
    files = sorted((folder / ".eval_results").glob("*.yaml"))
    assert len(files) == 2  # the Hub wants a file for each way
    entries = [entry for file in files for entry in parse_eval_result_entries(yaml.safe_load(file.read_text()))]
    assert sorted(entries, key=str) == sorted(result_entries(folder), key=str)
    assert {(each.dataset_id, each.dataset_revision, each.task_id, each.value) for each in entries} == {
        (*BENCHMARK, 2.5)
    }
    assert {each.notes for each in entries} == {
        "with a memory of 8, segments of 6, 3 lanes",
        "memory taken away, segments of 6, 3 lanes",
    }
    # texts of one data set are kept apart in the metadata
    index = ModelCard.load(folder / "README.md").data.to_dict()["model-index"][0]["results"]
    assert [each["dataset"]["args"]["file"] for each in index] == ["test.txt", "hub.txt", "validation.txt"]
    push_folder(folder, REPO)
    assert {f".eval_results/{file.name}" for file in files} | {"README.md", FILE} <= set(hub.files(REPO))
    write_measurements(folder, replace(measured, evaluations=()))
    (folder / ".eval_results/bits_per_byte_mine.yaml").write_text("- value: 1")
    write_card(folder)
    assert len(list(folder.glob(".eval_results/*"))) == 1  # no figure outlives its source; the file of the user stays


def test_a_compressed_memory_is_among_the_lengths(tmp_path: Path):
    model = saved(tmp_path, model_type="compressive_transformer")
    found = (evaluation(model), evaluation(model, memory=False, bits=2.75))
    write_measurements(tmp_path, measurements_of(model, tmp_path, evaluations=found))
    card = model_card(tmp_path, REPO)
    assert "| compressed_mem_len | 3 | 0 | `training_metrics.json`: `evaluations[i].lengths.compressed" in card.text
    results = card.data.eval_results
    assert [each.metric_args["compressed_mem_len"] for each in results] == [3] * 4 + [0] * 4
    assert "with a memory of 8 and 3 compressed, segments" in results[0].metric_name


@pytest.mark.parametrize(
    ("model_type", "head", "task"),
    [
        ("transformer_xl", "causal_lm", "text-generation"),
        ("vanilla_transformer", "causal_lm", "text-generation"),
        ("star_transformer", "sequence_classification", "text-classification"),
        ("gtrxl", "token_classification", "token-classification"),
        ("longformer_encoder", "masked_lm", "fill-mask"),
        ("macaron", "model", "feature-extraction"),
    ],
)
def test_without_measurements_nothing_is_claimed(tmp_path: Path, model_type: str, head: str, task: str):
    model = saved(tmp_path, head, model_type)
    card = model_card(tmp_path, "you/model")
    assert card.data.pipeline_tag == task
    assert "segment-memory" in card.data.tags or model_type in ("vanilla_transformer", "longformer_encoder")
    assert not {"model-index", "metrics", "license", "base_model", "datasets"} & set(card.data.to_dict())
    assert "Not measured." in card.text
    assert "| Parameters | not measured |" in card.text
    assert "Weights: not stated." in card.text
    assert type(model).__name__ in card.text
    # the code on it is Python
    compile(re.search(r"```python\n(.*?)```", card.text, re.DOTALL)[1], "card", "exec")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("evaluations.0.bits_per_byte", float("nan"), r"evaluations\[0\].bits_per_byte`=nan"),
        ("evaluations.0.bits_per_byte", -1.0, r"evaluations\[0\].bits_per_byte`=-1.0"),
        ("evaluations.0.bits_per_byte", 1.0, "nats / ln 2 / bytes"),
        ("evaluations.0.perplexity", 0.0, r"exp\(nats / tokens\)"),
        ("evaluations.0.word_perplexity", 9.0, r"exp\(nats / words\)"),
        ("evaluations.0.bits_per_byte", "2.5", "of type float"),
        ("evaluations.0.bits_per_byte", None, "of type float"),
        ("evaluations.1.seconds", ..., r"evaluations\[1\].seconds` is missing"),
        ("evaluations.1.bytes", 0, r"evaluations\[1\].bytes`=0 must be above 0"),
        ("evaluations.1.tokens", True, r"evaluations\[1\].tokens`=True must be of type int"),
        ("evaluations.0.lengths.mem_len", ..., r"evaluations\[0\].lengths.mem_len` is missing"),
        ("evaluations.0.lengths.layer_mem_lens", [8, -1], r"layer_mem_lens\[1\]`=-1"),
        ("evaluations.0.data", "text", r"evaluations\[0\].data`='text' must be an object"),
        ("evaluations", {}, "must be a list"),
        ("evaluations.0.accuracy", 0.9, "no such key"),
        ("parameters", float("inf"), "parameters`=inf"),
        ("log", [{"loss": float("nan")}], r"log\[0\].loss`=nan"),
        ("training", {}, "training.data` is missing"),
        ("weights_sha256", "0" * 64, "the results belong to other weights"),
        ("variant", "gtrxl", "variant`='gtrxl'"),
    ],
)
def test_what_is_no_figure_is_refused(folder: Path, key: str, value, message: str):
    content = json.loads((folder / FILE).read_text())
    place = content
    *path, last = [int(name) if name.isdigit() else name for name in key.split(".")]
    for name in path:
        place = place[name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    (folder / FILE).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        write_card(folder)
    assert not (folder / "README.md").exists()
    result = run("card", folder)
    assert result.exit_code == 2
    assert re.search(message, result.output)


def test_a_figure_that_is_none_is_not_written(folder: Path):
    before = (folder / FILE).read_bytes()
    measured = read_measurements(folder)
    broken = replace(measured, evaluations=(replace(measured.evaluations[0], nats=float("nan")),))
    with pytest.raises(ValueError, match=r"evaluations\[0\].nats`=nan"):
        write_measurements(folder, broken)
    assert (folder / FILE).read_bytes() == before
    write_measurements(folder, replace(measured, log=({"grad_norm": float("inf"), "step": 1},)))
    assert read_measurements(folder).log == ({"grad_norm": None, "step": 1},)


def test_figures_do_not_outlive_the_weights(folder: Path):
    write_card(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.bias += 1
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match="evaluate --record"):
        write_card(folder)
    text = folder.parent / "text.txt"
    text.write_text("What is measured again is measured. " * 5)
    assert run("evaluate", folder, "--text", text, "--record").exit_code == 0
    measured = read_measurements(folder)
    assert [each.data.name for each in measured.evaluations] == ["text.txt", "text.txt"]
    assert measured.weights_sha256 == weights_digest(folder)
    assert f"{measured.evaluations[0].bits_per_byte:.4f}" in (folder / "README.md").read_text()


def test_evaluate_records_beside_what_is_known(trained: Path, tmp_path: Path):
    folder = shutil.copytree(trained, tmp_path / "model")
    text = tmp_path / "new.txt"
    text.write_text("A text that it has not seen. " * 4)
    options = (
        "--batch-size",
        2,
        "--segment-length",
        4,
        "--dataset",
        "owner/new",
        "--task-id",
        "bytes",
        "--record",
        "--json",
    )
    result = run("evaluate", folder, "--text", text, *options)
    assert result.exit_code == 0, result.output
    scores = json.loads(result.output)
    measured = read_measurements(folder)
    assert measured.training == read_measurements(trained).training
    assert len(measured.evaluations) == 4
    new = measured.evaluations[2]
    assert new.bits_per_byte == scores["with_memory"]["bits_per_byte"]
    assert (new.lengths.segment_length, new.lengths.lanes, new.data.dataset) == (4, 2, "owner/new")
    command = (
        "evaluate MODEL --text new.txt --batch-size 2 --segment-length 4 --dataset owner/new --task-id bytes --record"
    )
    assert command in (folder / "README.md").read_text()
    assert len(list((folder / ".eval_results").iterdir())) == 2
    run("evaluate", folder, "--text", text, *options)
    assert len(read_measurements(folder).evaluations) == 4  # the same text in the same way: one figure

    for wrong, message in ((("--dataset", "a/b"), "add --record"), (("--record", "--task-id", "x"), "add --dataset")):
        result = run("evaluate", folder, "--text", text, *wrong)
        assert result.exit_code == 2
        assert message in result.output


def test_what_was_written_by_hand_is_kept(folder: Path):
    readme = folder / "README.md"
    result = run("card", folder, "--write", "--name", REPO, "--license", "mit", "--language", "en", "--base-model", "a/b",
                 "--tag", "mine")  # fmt: skip
    assert result.exit_code == 0, result.output
    first = readme.read_text()
    assert "Weights: mit." in first
    assert "The training began with a/b." in first
    assert run("card", folder, "--write", "--name", REPO).exit_code == 0
    assert readme.read_text() == first  # what the author said is kept, and nothing depends on the day
    readme.write_text(first.replace("license: mit", "license: mit\nwidget:\n- text: What came before"))
    assert run("card", folder, "--write", "--name", REPO).exit_code == 0
    assert ModelCard.load(readme).data.widget == [{"text": "What came before"}]  # metadata that was added is kept
    assert ModelCard.load(readme).text == ModelCard(first).text
    first = readme.read_text()
    for text in ("# My own card\n", first.replace("2.5000", "1.5000")):
        readme.write_text(text)
        result = run("card", folder, "--write", "--name", REPO)
        assert result.exit_code == 2
        assert "--overwrite" in result.output
        assert readme.read_text() == text
    assert run("card", folder, "--write", "--name", REPO, "--overwrite").exit_code == 0
    assert readme.read_text() == first


def test_the_card_is_shown_in_the_terminal(folder: Path, tmp_path: Path):
    before = sorted(path.name for path in folder.iterdir())
    result = run("card", folder)
    assert result.exit_code == 0, result.output
    for part in ("library_name: transformers", "Bits per byte", "2.5000", "2.7500", "training_met", "Sizes"):
        assert part in result.output
    assert sorted(path.name for path in folder.iterdir()) == before
    (tmp_path / "empty").mkdir()
    result = run("card", tmp_path / "empty")
    assert result.exit_code == 2
    assert "config.json" in result.output
    (tmp_path / "empty/config.json").write_text('{"model_type": "gpt2"}')
    said = " ".join(run("card", tmp_path / "empty").output.split())
    assert "`model_type`='gpt2' is not a model of this package" in said


def test_a_model_that_is_pushed_brings_its_card(hub, folder: Path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.push_to_hub(REPO, tags=["mine"])
    card = ModelCard(hub.files(REPO)["README.md"].decode())
    assert "2.5000" in card.text
    assert "[More Information Needed]" not in card.text
    assert "mine" in card.data.tags
    assert json.loads(hub.files(REPO)[FILE]) == json.loads((folder / FILE).read_text())
    commits = len(hub.messages(REPO))
    AutoModelForCausalLM.from_pretrained(REPO).push_to_hub(REPO)  # the figures are those of the repository
    assert len(hub.messages(REPO)) == commits
    with torch.no_grad():
        model.lm_head.bias += 1
    model.push_to_hub(REPO)  # other weights: the card no longer shows the figures of those before
    card = ModelCard(hub.files(REPO)["README.md"].decode())
    assert "Not measured." in card.text
    assert "model-index" not in card.data.to_dict()
    HfApi().upload_file(path_or_fileobj=b"# My own\n", path_in_repo="README.md", repo_id=REPO)
    model.push_to_hub(REPO)
    assert b"# My own" in hub.files(REPO)["README.md"]


def trainer(tmp_path: Path, model=None, **arguments) -> MemoryTrainer:
    ids = np.random.default_rng(0).integers(0, 256, 2 * 6 * 4 + 1)
    defaults = {"per_device_train_batch_size": 2, "max_steps": 4, "save_strategy": "no", "report_to": "none",
                "disable_tqdm": True, "seed": 3, "dataloader_pin_memory": False}  # fmt: skip
    return MemoryTrainer(
        model or tiny_model("transformer_xl", "causal_lm", torch.float32, vocab_size=259),
        MemoryTrainingArguments(str(tmp_path / "run"), **(defaults | arguments)),
        train_dataset=TextStream(ids, 6, 2),
        processing_class=ByteTokenizer(),
    )


def test_the_trainer_pushes_what_its_run_measured(hub, tmp_path: Path):
    training = trainer(tmp_path, push_to_hub=True, hub_model_id=REPO, hub_strategy="end")
    training.save_model()
    assert read_measurements(tmp_path / "run") is None  # nothing has been measured yet
    training.train()
    training.push_to_hub(language="en", license="mit", tags="memory", dataset_tags="owner/text")
    files = hub.files(REPO)
    card = ModelCard(files["README.md"].decode())
    assert (card.data.license, card.data.language, card.data.datasets) == ("mit", "en", ["owner/text"])
    assert "memory" in card.data.tags
    assert "base_model" not in card.data.to_dict()
    found = json.loads(files[FILE])["training"]
    assert (found["steps"], found["tokens"], found["seed"], found["lengths"]["lanes"]) == (4, 48, 3, 2)
    assert found["data"]["sha256"] == training.train_dataset.identity["text"]
    assert found["loss"] == training.state.log_history[-1]["train_loss"]
    assert f"| loss | {found['loss']:.4f} nats, mean over the steps |" in card.text
    assert "Not measured." in card.text  # bits per byte
    assert "`training_args.json`" in card.text

    text = tmp_path / "text.txt"
    text.write_text("Measured after the training. " * 4)
    assert run("evaluate", tmp_path / "run", "--text", text, "--record").exit_code == 0
    training.push_to_hub()
    assert len(json.loads(hub.files(REPO)[FILE])["evaluations"]) == 2  # saved again, the weights are the same
    assert ModelCard(hub.files(REPO)["README.md"].decode()).data.license == "mit"
    commits = len(hub.messages(REPO))
    training.push_to_hub()
    assert len(hub.messages(REPO)) == commits

    tuned = trainer(tmp_path / "tuned", AutoModelForCausalLM.from_pretrained(REPO))
    tuned.train()
    tuned.create_model_card()
    assert ModelCard.load(tmp_path / "tuned/run/README.md").data.base_model == REPO


def test_the_trainer_keeps_a_card_and_refuses_what_it_cannot_check(tmp_path: Path):
    training = trainer(tmp_path)
    training.save_model()
    (tmp_path / "run/README.md").write_text("# My own\n")
    training.create_model_card()
    assert (tmp_path / "run/README.md").read_text() == "# My own\n"
    for name in ("tasks", "dataset", "dataset_args"):
        with pytest.raises(ValueError, match=f"`{name}`='x'"):
            training.create_model_card(**{name: "x"})


def test_a_resumed_training_counts_its_own_steps(tmp_path: Path):
    trainer(tmp_path, save_strategy="steps", save_steps=2).train()
    resumed = trainer(tmp_path, save_strategy="steps", save_steps=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-2"))
    record = resumed.training_record()
    assert (record.first_step, record.steps, record.tokens) == (2, 4, 24)
    resumed.save_model()
    known = read_measurements(tmp_path / "run").training
    over = trainer(tmp_path)
    over.train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-4"))
    over.save_model()
    assert read_measurements(tmp_path / "run").training == known == record


@pytest.mark.parametrize("vary_lengths", [False, True])
def test_the_tokens_of_a_training_are_those_that_it_read(tmp_path: Path, vary_lengths: bool):
    """Four segments, three of which make an update: the last update of an epoch has one."""
    training = trainer(tmp_path, num_train_epochs=2, max_steps=-1, gradient_accumulation_steps=3)
    ids = np.random.default_rng(0).integers(0, 256, 2 * 6 * 4 + 1)
    training.train_dataset = TextStream(ids, 6, 2, vary_lengths=vary_lengths)
    training.train()
    record = training.training_record()
    assert record.steps == 4
    assert record.tokens == 2 * sum(len(segment["input_ids"]) for segment in training.train_dataset)
