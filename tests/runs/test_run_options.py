"""A run from a recipe, YAML files and options: every field in all three, the later over the earlier, no name unknown."""

import dataclasses
import json
from pathlib import Path
from typing import Optional, Union

import pytest
import yaml
from programs import run
from transformers import PreTrainedConfig, SchedulerType

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.runs.run_config import (
    RunConfig,
    config_fields,
    memory_fields,
    model_section,
    recipe_names,
    recipe_path,
)
from transformers_xl.runs.run_options import read_config, read_run, split_options
from transformers_xl.runs.section_fields import SECTIONS, section_classes, section_help, type_name
from transformers_xl.training.arguments import MemoryTrainingArguments

BASE = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
CAUSAL = [name for name, row in VARIANTS.items() if row.causal]


def written(folder: Path, text: str, name: str = "run.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("variant", CAUSAL)
def test_every_field_of_a_variant_is_a_field_of_its_section(variant: str):
    config_class = VARIANTS[variant].config_class
    own = {each.name for each in dataclasses.fields(config_class)} - dataclasses.asdict(PreTrainedConfig()).keys()
    classes = section_classes(config_class)
    sections = {each.name for name in ("model", "memory") for each in dataclasses.fields(classes[name])}
    assert own <= sections | {"vocab_size", "text_config"}


def kind_of(recipe: str) -> tuple:
    sections = yaml.safe_load(recipe_path(recipe).read_text())
    return sections.get("model", {}).get("variant"), sections.get("memory", {}).get("kind")


KINDS = {kind_of(name): name for name in recipe_names()}


# those of recipes are read below
@pytest.mark.parametrize("variant", [each for each in CAUSAL if (each, None) not in KINDS])
def test_the_defaults_of_a_section_make_a_config(variant: str):
    given = read_config(["--model.variant=" + variant])
    fields = memory_fields(given.memory) or config_fields(given.model) | {"vocab_size": 11}
    assert VARIANTS[variant].config_class(**fields).model_type == variant


def test_every_training_argument_can_be_given():
    given = read_config().to_dict()["training"]
    names = {each.name for each in dataclasses.fields(MemoryTrainingArguments) if each.init}
    assert names - given.keys() == {"output_dir", "resume_from_checkpoint", "hub_token"}


# every other kind: how a file is read does not hang on the fields
@pytest.mark.parametrize("recipe", [*KINDS.values()][::2])
def test_the_whole_file_of_a_recipe_gives_the_same_run(tmp_path: Path, recipe: str):
    first = read_config(recipe=recipe)
    again = read_config(files=[written(tmp_path, first.to_yaml())])
    assert again.to_dict() == first.to_dict()
    assert list(first.to_dict()) == list(SECTIONS)


def test_options_are_over_files_and_files_over_the_recipe(tmp_path: Path):
    early = written(tmp_path, "training: {learning_rate: 1e-4, seed: 3}\nmodel: {mem_len: 5}\n", "a.yaml")
    late = written(tmp_path, "training: {seed: 4}\n", "b.yaml")
    found = read_config(["--model.hidden_size=48", "--training.lr_scheduler_kwargs={num_cycles: 2}"], [early, late])
    assert (found.training.learning_rate, found.training.seed, found.training.warmup_steps) == (1e-4, 4, 0.1)
    assert (found.model.mem_len, found.model.hidden_size, found.model.num_hidden_layers) == (5, 48, 4)
    assert found.training.lr_scheduler_kwargs == {"num_cycles": 2}


def test_python_says_the_same():
    run_config = RunConfig(
        model=model_section(TransformerXLConfig)(hidden_size=48, mem_len=5), training=MemoryTrainingArguments(seed=4)
    )
    values = run_config.to_dict()
    assert (values["model"]["hidden_size"], values["model"]["variant"]) == (48, "transformer_xl")
    assert values["training"]["seed"] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model.hiden_size 3", "Did you mean `model.hidden_size`"),
        ("--model.mem_lenght 3", "Did you mean `model.mem_len`"),
        ("--training.seeed 3", "Did you mean `training.seed`"),
        ("--trainin.seed 3", "Did you mean `training`"),
        ("--learning-rate 3", "Did you mean `training.learning_rate`"),
        ("--steps 3", "Did you mean `training.max_steps`"),
        ("--training.learning_rate abc", "^`training.learning_rate`=abc must be of type float"),
        ("--model.mem_len 1.5", "^`model.mem_len`=1.5 must be of type int"),
        ("--data.batch_size a", r"^`data.batch_size`=a must be of type int \| None"),
        ("--data other.yaml", "`--data` is a section"),
        ("--model.base no/where", "^`model.base`='no/where' is not a local folder"),
        ("--model.variant transformer_xxl", "known are transformer_xl"),
        ("--model.variant star_transformer", "known are transformer_xl"),
        ("--training.output_dir x", "--output"),
        ("--training.seed", "has no value"),
        ("--training.num_train_epochs 1 --training.max_steps 3", "give one of them"),
        ("a.txt --data.path b.txt", "given twice"),
        ("--training.max_steps 1:00", "^`training.max_steps`=1:00 must be of type int"),
        ("--training.learning_rate=-1:30.5", "^`training.learning_rate`=-1:30.5 must be of type float"),
        ("--model.cutoffs [2,1:00]", r"^`model.cutoffs`=1:00 must be of type list\[int\]"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: str, message: str):
    with pytest.raises(ValueError, match=message):
        read_run(words.split(), [], None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {hiden_size: 3}", "run.yaml.*Did you mean `model.hidden_size`"),
        ("xmodel: {hidden_size: 3}", "run.yaml.*Did you mean `model`"),
        ("training: 5", "is not a section"),
        ("- 5", "is not a section"),
        ("training: {learning_rate: fast}", "run.yaml: `training.learning_rate`=fast must be"),
        ("training: {eval_strategy: no}", "training.eval_strategy"),  # a boolean in YAML
        ("training: !!python/object/apply:os.getcwd []", "run.yaml"),
        ("model: [", "run.yaml"),
        ("training: {seed: 1, max_steps: 2, seed: 3}", "run.yaml.*'seed' is given twice"),
        ("model: {<<: {mem_len: 5}, mem_len: 6, mem_len: 7}", "'mem_len' is given twice"),
        ("training: {seed: 1}\ntraining: {max_steps: 2}", "run.yaml.*'training' is given twice"),
        ("training: {max_steps: 1:00}", r"run.yaml: `training.max_steps`=1:00 must be of type int"),
        ("training: {learning_rate: 1:00.5}", r"run.yaml: `training.learning_rate`=1:00.5 must be of type float"),
        ("model: {cutoffs: [1:00, 2:00]}", r"run.yaml: `model.cutoffs`=1:00 must be of type list\[int\]"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(ValueError, match=message):
        read_config(files=[written(tmp_path, text)])


def test_what_looks_like_a_time_or_a_date_is_text(tmp_path: Path):
    """In YAML 1.1 it is a number in sixties, or a date; a leading zero would mean octal."""
    text = "data: {separator: 1:00, revision: 2024-01-01, dataset: a}\ntraining: {max_steps: 010}\n"
    run = read_config(files=[written(tmp_path, text)])
    assert (run.data.separator, run.data.revision, run.training.max_steps) == ("1:00", "2024-01-01", 10)
    again = read_config(files=[written(tmp_path, run.to_yaml(), "again.yaml")])
    assert again.to_dict() == run.to_dict()
    options = ["--data.separator=1:00", "--training.lr_scheduler_kwargs={power: 1:00}"]
    run = read_config(options)
    assert (run.data.separator, run.training.lr_scheduler_kwargs) == ("1:00", {"power": "1:00"})


def test_the_later_of_two_fields_that_exclude_each_other_counts(tmp_path: Path):
    """The recipe has `max_steps` and `batch_size`, which would leave these without effect."""
    epochs = read_config(["--training.num_train_epochs=2", "--training.per_device_train_batch_size=3"])
    assert (epochs.training.max_steps, epochs.training.num_train_epochs) == (-1, 2)
    assert (epochs.data.batch_size, epochs.training.per_device_train_batch_size) == (None, 3)
    steps = read_config(["--training.max_steps=7"], [written(tmp_path, "training: {num_train_epochs: 2}\n")])
    assert steps.training.max_steps == 7


def test_without_a_recipe_it_is_the_model_that_the_comparison_prefers():
    """docs/comparison.md; its memory has its whole length from the first step on."""
    run = read_config()
    assert (run.model.variant, run.training.initial_mem_len) == ("streaming_transformer", None)


def test_a_recipe_gives_another_variant_its_sizes_but_not_what_is_its_own():
    vanilla = read_config(["--model.variant=vanilla_transformer"]).model
    assert (vanilla.hidden_size, vanilla.mem_len, vanilla.same_length) == (256, 0, False)
    assert read_config(["--model.variant=sha_rnn"]).model.num_attention_heads == 1


def test_a_base_says_what_the_model_is(tmp_path: Path):
    config = TransformerXLConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, mem_len=9
    )
    TransformerXLForCausalLM(config).save_pretrained(tmp_path, include_code=False)
    found = read_config([f"--model.base={tmp_path}", "--model.dropout=0.3"]).model
    assert (found.hidden_size, found.mem_len, found.vocab_size, found.dropout) == (16, 9, 11, 0.3)
    assert read_config().model.vocab_size is None  # what one run says of its model stays with it
    with pytest.raises(ValueError, match="leave it out"):
        read_config([f"--model.base={tmp_path}", "--model.variant=gtrxl"])


def test_words_are_options_and_texts_in_any_order():
    options, texts = split_options(["a.txt", "--training.learning-rate", "1e-4", "b.txt", "--model.mem_len=3"])
    assert (options, texts) == (["--training.learning_rate=1e-4", "--model.mem_len=3"], ["a.txt", "b.txt"])
    assert read_run(["a b.txt", "c.txt"], [], None).data.path == ["a b.txt", "c.txt"]
    assert read_run(["--data.path", "c.txt"], [], None).data.path == ["c.txt"]


def test_the_command_prints_the_whole_run(tmp_path: Path):
    shown = run("config", "small-bytes", "--training.seed", 5)
    assert shown.exit_code == 0, shown.output
    assert yaml.safe_load(shown.output) == read_config(["--training.seed=5"]).to_dict()
    again = run("config", written(tmp_path, shown.output))
    assert again.output == shown.output
    assert run("config", "--recipes").output.split() == recipe_names()
    assert json.loads(run("config", "--recipes", "--json").output) == recipe_names()
    values = json.loads(run("config", "small-bytes", "--training.seed", 5, "--json").output)
    assert values == yaml.safe_load(shown.output)
    assert json.loads(run("config", "--fields", "data", "--json").output) == values["data"]
    assert "is not a section" in run("config", "--fields", "dat", "--json").output
    assert "--model.same_length" in run("config", "--fields", "model").output
    assert "--training.learning_rate" in run("config", "--fields", "training").output
    unknown = run("config", "enwik9")
    assert unknown.exit_code == 2
    assert "small-bytes" in unknown.output


@pytest.mark.parametrize("variant", CAUSAL)
def test_the_meaning_of_every_field_of_this_package_is_shown(variant: str):
    library = ("--model.pad_token_id", "--model.bos_token_id", "--model.eos_token_id", "--training")
    for section in SECTIONS:
        lines = section_help(section, VARIANTS[variant].config_class).splitlines()
        heads = [line for line, below in zip(lines, [*lines[1:], "--"], strict=True) if below.startswith("--")]
        assert [line for line in heads if line.startswith("--") and not line.startswith(library)] == []


def test_fields_have_their_types_defaults_and_meanings():
    data, training = (section_help(name, TransformerXLConfig) for name in ("data", "training"))
    assert "--data.path  (list[str] | str, default [])\n    files, or folders of them: text" in data
    assert "--data.eval_split  (str | None, default null)\n    its splits for training" in data
    assert "--training.lr_scheduler_type  (SchedulerType | str, default linear)\n    The learning rate" in training
    assert "--training.early_stopping_patience  (int | None, default null)\n    stop after" in training
    assert "training.output_dir" not in training


def test_a_type_is_written_the_same_however_it_is_made():
    """`HfArgumentParser` puts `typing.Union` into the fields of a dataclass."""
    assert type_name(SchedulerType | str) == type_name(Union[SchedulerType, str]) == "SchedulerType | str"  # noqa: UP007
    assert type_name(Optional[list[str]]) == type_name(list[str] | None) == "list[str] | None"  # noqa: UP045


def test_no_token_is_written():
    assert "secret" not in read_config(["--training.hub_token=secret"]).to_yaml()


def test_recipes_are_in_the_package():
    assert recipe_path("small-bytes").is_file()


@pytest.mark.parametrize("separator", ["###", "\n## ", "# "])
def test_a_value_that_begins_as_a_comment_is_a_text(separator):
    assert read_config(["--data.documents=true", f"--data.separator={separator}"]).data.separator == separator
    assert read_config(["--data.separator=null"]).data.separator is None
