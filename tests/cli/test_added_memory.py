"""`transformers-xl add-memory`, and the training of what it writes: a model of others with a memory around it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from optional_packages import needs
from programs import run
from safetensors.torch import load_file
from stand_in_base import TEXT, save_base
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

from transformers_xl import ByteTokenizer, SegmentMemoryForCausalLM, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.runs.loading import load_weights
from transformers_xl.runs.run_config import memory_fields
from transformers_xl.runs.run_options import read_config

OPTIONS = {
    "window": {"mem_len": 24, "num_sinks": 0, "segment_length": 8},
    "tokens": {"num_memory_tokens": 3, "segment_length": 8, "bptt_segments": 2},
}
STEPS = (
    *("--data.batch_size=2", "--data.eval_batch_size=2", "--training.max_steps=4"),
    *("--training.save_steps=2", "--training.save_total_limit=2"),
)


def options(kind: str, prefix: str = "--memory.") -> list[str]:
    """The memory as options of a command."""
    fields = {"kind": kind} | OPTIONS[kind]
    shown = {name if prefix != "--" else name.replace("_", "-"): value for name, value in fields.items()}
    return [f"{prefix}{name}={value}" for name, value in shown.items()]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_base(tmp_path_factory.mktemp("bases") / "base")
    (folder.parent / "text.txt").write_text(TEXT)
    (folder.parent / "short.txt").write_text(TEXT[:250])
    return folder


@pytest.fixture(scope="module", params=OPTIONS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def added(base: Path, kind: str) -> Path:
    """The base with a memory."""
    folder = base.parent / kind
    done(run("add-memory", base, "-o", folder, *options(kind, "--")))
    return folder


@pytest.fixture(scope="module")
def trained(base: Path, added: Path) -> Path:
    return train(base, added.parent / f"{added.name}-trained", "--model.base", added)


def train(base: Path, output: Path, *words: object) -> Path:
    done(run("train", base.parent / "text.txt", "-o", output, *STEPS, *words))
    return output


def done(result) -> None:
    assert result.exit_code == 0, (result.output, result.exception)


def refused(*words: object) -> str:
    result = run(*words)
    assert result.exit_code == 2, (result.output, result.exception)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return line


def load(folder: Path) -> SegmentMemoryForCausalLM:
    return AutoModelForCausalLM.from_pretrained(folder)


def same_weights(one: Path, other: Path) -> bool:
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_everything_of_the_base_is_taken_along(base: Path, added: Path, kind: str):
    model, plain = load(added), LlamaForCausalLM.from_pretrained(base)
    assert {name: getattr(model.config, name) for name in ("kind", *OPTIONS[kind])} == {"kind": kind} | OPTIONS[kind]
    weights = model.backbone.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in plain.state_dict().items())
    ours, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (added, base))
    assert ours("It was")["input_ids"] == theirs("It was")["input_ids"]
    assert ours.chat_template == theirs.chat_template is not None
    assert GenerationConfig.from_pretrained(added).repetition_penalty == 1.1
    card = ModelCard.load(added / "README.md")
    assert (card.data.license, card.data.language) == ("apache-2.0", "en")
    assert "The base is a `LlamaForCausalLM`. Its licence: apache-2.0." in card.text
    assert all(f"| `{name}` | {value} |" in card.text for name, value in OPTIONS[kind].items())
    assert str(base.parent) not in (added / "config.json").read_text() + card.content


def test_training_changes_the_memory_and_the_base(added: Path, trained: Path, kind: str):
    before, after = (load_file(folder / "model.safetensors") for folder in (added, trained))
    same = [name for name in before if torch.equal(before[name], after[name])]
    assert same == []
    run_file = yaml.safe_load((trained / "run.yaml").read_text())
    assert run_file["memory"].items() >= ({"kind": kind} | OPTIONS[kind]).items()
    measured = json.loads((trained / "training_metrics.json").read_text())
    assert {each["memory"] for each in measured["evaluations"]} == {True, False}
    card = ModelCard.load(trained / "README.md")
    assert card.data.license == "apache-2.0"
    assert f"**{measured['evaluations'][0]['bits_per_byte']:.4f}**" in card.text
    per_step = 2 * 8 * (OPTIONS[kind].get("bptt_segments") or 1)  # rows, tokens of a segment, segments of a call
    assert measured["training"]["tokens"] == 4 * per_step


def test_the_file_of_the_run_gives_the_same_run_and_a_killed_one_goes_on(base: Path, trained: Path, tmp_path: Path):
    again = tmp_path / "again"
    done(run("train", "-o", again, "--config", trained / "run.yaml"))
    assert same_weights(again, trained)
    for file in (
        *again.glob("checkpoint-4/*"),
        *again.glob("*.safetensors"),
    ):  # as if it had been killed before step 4
        file.unlink()
    done(run("train", "-o", again, "--resume"))
    assert json.loads((again / "training_metrics.json").read_text())["training"]["first_step"] == 2
    assert same_weights(again, trained)


def test_a_plain_base_gets_its_memory_in_the_training(base: Path, trained: Path, kind: str, tmp_path: Path):
    folder = train(base, tmp_path / "direct", "--model.base", base, *options(kind))
    config = load(folder).config
    assert {name: getattr(config, name) for name in ("kind", *OPTIONS[kind])} == {"kind": kind} | OPTIONS[kind]
    measured = ("memory_initializer_range", "memory_scale")  # of the embeddings, as by `add-memory`
    assert all(getattr(config, name) == getattr(load(trained).config, name) for name in measured)
    if kind == "window":  # without weights of its own
        assert same_weights(folder, trained)
    assert str(base.parent) not in (folder / "config.json").read_text() + (folder / "README.md").read_text()


def test_adapters_take_the_memory_along(base: Path, added: Path, kind: str, tmp_path: Path):
    needs("peft")
    adapters = train(
        base, tmp_path / "adapters", "--model.base", added, "--lora.r", 2, "--training.learning_rate", 0.1
    )
    saved = load_file(adapters / "adapter_model.safetensors")
    assert any("lora_A" in name for name in saved)
    own = {name.rpartition(".")[2] for name in saved if "memory_tokens" in name}
    assert own == ({"start", "scale"} if kind == "tokens" else set())
    words = ("--model.base", added, "--lora.r", 2, "--training.learning_rate", 0.1, "--lora.merge", "true")
    merged = train(base, tmp_path / "merged", *words)
    scores = [evaluated(folder, base) for folder in (adapters, merged, added)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    assert scores[0] != pytest.approx(scores[2], rel=1e-3)
    line = refused(
        "train", base.parent / "text.txt", "-o", tmp_path / "no", "--model.base", base, "--lora.r=2", *options(kind)
    )
    assert "add-memory" in line
    assert not (tmp_path / "no").exists()


def evaluated(folder: Path, base: Path) -> list[float]:
    result = run("evaluate", folder, "--text", base.parent / "short.txt", "--json")
    done(result)
    return [score["nats"] for score in json.loads(result.stdout).values()]


def test_training_in_bf16(base: Path, added: Path, trained: Path, tmp_path: Path):
    words = ("--model.base", added, "--training.bf16=true", "--training.use_cpu=true")
    ours, theirs = load(train(base, tmp_path / "bf16", *words)), load(trained)
    assert {weight.dtype for weight in ours.parameters()} == {torch.float32}
    assert not same_weights(tmp_path / "bf16", trained)
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(
            ours.state_dict()[name], weight, atol=5e-4, rtol=0
        )  # four steps of 1e-4 at the most


def test_a_base_in_bfloat16_is_trained_in_float32(tmp_path: Path):
    """All of it, or adapters alone around it as it is; both are read again in float32."""
    needs("peft")
    base = save_base(tmp_path / "base")
    LlamaForCausalLM.from_pretrained(base).bfloat16().save_pretrained(base)
    (tmp_path / "text.txt").write_text(TEXT)
    added = tmp_path / "added"
    done(run("add-memory", base, "-o", added, *options("tokens", "--")))
    assert types_of(added) == {"backbone": {torch.bfloat16}, "reader": {torch.float32}}
    outputs = {
        "whole": train(base, tmp_path / "whole", "--model.base", added),
        "direct": train(base, tmp_path / "direct", "--model.base", base, *options("window")),
        "merged": train(base, tmp_path / "merged", "--model.base", added, "--lora.r=2", "--lora.merge=true"),
    }
    for folder in outputs.values():
        assert {dtype for types in types_of(folder).values() for dtype in types} == {torch.float32}
    before, after = (load_file(folder / "model.safetensors") for folder in (added, outputs["whole"]))
    for name in ("reader.memory_tokens.start", "reader.memory_tokens.scale"):
        assert (before[name] != after[name]).all()
    assert all((before[name].float() != after[name]).float().mean() > 0.9 for name in before if "proj" in name)
    adapters = train(base, tmp_path / "adapters", "--model.base", added, "--lora.r=2")
    assert {weight.dtype for weight in load_file(adapters / "adapter_model.safetensors").values()} == {torch.float32}
    loaded = load_weights(adapters)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    changed = loaded.backbone.model.layers[0].self_attn.q_proj.weight
    assert (changed != before["backbone.model.layers.0.self_attn.q_proj.weight"].float()).float().mean() > 0.9


def types_of(folder: Path) -> dict[str, set[torch.dtype]]:
    """Those of the weights in a folder, of the base and of what the memory adds."""
    types: dict[str, set[torch.dtype]] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        types.setdefault(name.partition(".")[0], set()).add(weight.dtype)
    return types


def test_a_window_has_sinks_by_default_and_a_folder_keeps_its_own(base: Path, tmp_path: Path):
    done(run("add-memory", base, "-o", tmp_path / "window", "--mem-len=16"))
    config = json.loads((tmp_path / "window" / "config.json").read_text())
    assert config["num_sinks"] == 4
    assert "and the first 4 of the text" in (tmp_path / "window" / "README.md").read_text()
    words = [f"--model.base={base}", "--memory.kind=window", "--memory.mem_len=16"]
    assert memory_fields(read_config(words).memory)["num_sinks"] == 4
    assert memory_fields(read_config([*words, "--memory.num_sinks=0"]).memory)["num_sinks"] == 0
    for saved in ({"num_sinks": 0}, {"num_sinks": None}):  # as by default, once
        change_config(tmp_path / "window", **saved)
        of_folder = read_config([f"--model.base={tmp_path / 'window'}"]).memory
        assert memory_fields(of_folder)["num_sinks"] == load(tmp_path / "window").config.num_sinks == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model.base={base}"], "choose one with `memory.kind`"),
        (["--memory.kind=window"], "give its folder or repository"),
        (["--model.variant=segment_memory"], "give its folder or repository"),
        (["--memory.kind=window", "--model.variant=gtrxl"], "is for a model of transformers"),
        (["--model.base={base}", "--memory.kind=tokens", "--memory.mem_len=4"], "`mem_len`=4 has no meaning"),
        (
            ["--model.base={base}", "--memory.kind=window", "--memory.num_memory_tokens=4"],
            "belongs to `kind`='tokens'",
        ),
        (["--model.base={base}", "--memory.kind=windows"], "`kind`='windows' must be one of"),
        (["--model.base={base}", "--memory.kind=window", "--memory.mem_lenn=4"], "Did you mean `memory.mem_len`?"),
        (["--model.base={base}", "--memory.kind=window", "--model.dropout=0.1"], "there is no field `model.dropout`"),
        (["--model.base={base}", "--memory.kind=window", "--model.vocab_size=9"], "is that of `model.base`"),
        (["--model.base={window}", "--memory.kind=tokens"], "is for a new memory"),
        (["--model.base={ours}", "--memory.kind=tokens"], "a 'transformer_xl' of this package"),
        (["--model.base={coded}", "--memory.kind=window"], "--trust-remote-code"),
        (["--model.base={encoder}", "--memory.kind=window"], "is not a language model"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(words: list[str], said: str, places: dict[str, Path], tmp_path: Path):
    given = [word.format(**places) for word in words]
    assert said in refused("train", places["text"], "-o", tmp_path / "out", *given)
    assert not any(tmp_path.iterdir())


@pytest.fixture(scope="module")
def places(base: Path, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of every kind that a base may be."""
    root = tmp_path_factory.mktemp("places")
    encoder = save_base(root / "encoder")
    change_config(encoder, architectures=["LlamaForSequenceClassification"])
    coded = save_base(root / "coded")
    change_config(
        coded, model_type="mine", auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    )
    (coded / "mine.py").write_text("raise RuntimeError('it was run')\n")
    text = base.parent / "text.txt"
    return {
        **{"base": base, "window": folders["window"], "ours": folders["bytes"], "text": text},
        **{"encoder": encoder, "coded": coded},
    }


def change_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_base_that_brings_code_is_taken_when_the_command_says_so(places: dict[str, Path], tmp_path: Path):
    """It is refused otherwise, whatever a file says. Its model is that of transformers, or none that commands read."""
    coded, out = shutil.copytree(places["coded"], tmp_path / "coded"), tmp_path / "out"
    change_config(coded, trust_remote_code=True)
    assert "--trust-remote-code" in refused("add-memory", coded, "-o", out)
    options = ("--model.base", coded, "--memory.kind=window", "--trust-remote-code")
    for words in (("add-memory", coded, "--trust-remote-code"), ("train", places["text"], *options)):
        line = refused(*words, "-o", out)
        assert "a 'mine', which transformers has no code for" in line
        assert "`add_memory(..., trust_remote_code=True)`" in line
    assert not out.exists()
    change_config(coded, model_type="llama")
    (coded / "mine.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM as Model\nclass Config(LlamaConfig):\n    pass\n"
    )
    done(run("add-memory", coded, "-o", out, "--mem-len=16", "--trust-remote-code"))
    assert load(out).config.mem_len == 16


def test_memory_around_unknown_code_is_refused_in_one_sentence(places: dict[str, Path], tmp_path: Path):
    folder = shutil.copytree(places["window"], tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())["text_config"]
    change_config(folder, text_config=fields | {"model_type": "nobodys"})
    line = refused("evaluate", folder, "--text", places["text"])
    assert "a 'nobodys', which transformers has no code for" in line


def test_the_recipe_of_the_kind(base: Path):
    """It is that of the kind where none is named, and says nothing of the memory of a base that has one."""
    for kind in OPTIONS:
        run_config = read_config([f"--model.base={base}", *options(kind)])
        assert run_config.training.learning_rate == 1e-4
        assert memory_fields(run_config.memory).items() >= ({"kind": kind} | OPTIONS[kind]).items()
    shown = read_config(recipe="add-memory-window")
    assert (shown.model.base, shown.memory.kind) == (None, "window")


def test_a_field_of_the_memory_is_also_one_of_the_model(base: Path, tmp_path: Path):
    """As it is for every other model of this package: on the command line, in a file, for a memory that is there or new."""
    done(run("add-memory", base, "-o", tmp_path / "window", *options("window", "--")))
    read = read_config([f"--model.base={tmp_path / 'window'}", "--model.mem_len=12", "--model.num_sinks=2"])
    assert (read.memory.mem_len, read.memory.num_sinks) == (12, 2)
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"model": {"base": str(base), "mem_len": 20}, "memory": {"kind": "window"}}))
    assert read_config(files=[file]).memory.mem_len == 20
    tuned = train(base, tmp_path / "tuned", "--model.base", tmp_path / "window", "--model.mem_len", "12")
    assert load(tuned).config.mem_len == 12
    with pytest.raises(ValueError, match="`model.mem_len` is `memory.mem_len` of a base with memory"):
        read_config([f"--model.base={tmp_path / 'window'}", "--model.mem_len=12", "--memory.mem_len=13"])
    done(run("add-memory", base, "-o", tmp_path / "tokens", *options("tokens", "--")))
    with pytest.raises(ValueError, match="`memory.num_memory_tokens`=9 is for a new memory"):
        read_config([f"--model.base={tmp_path / 'tokens'}", "--model.num_memory_tokens=9"])


def test_the_card_names_the_class_of_the_base(added: Path):
    card = (added / "README.md").read_text()
    assert "A `LlamaForCausalLM` keeps the keys and values" in card
    assert "SmolLM" not in card


def test_a_base_is_compared_with_itself(base: Path, kind: str, added: Path, tmp_path: Path):
    """One command, one table, one picture: of what add-memory wrote, and of the plain base."""
    words = ("--text", base.parent / "short.txt", "--compare-base", "--segment-length", 8)
    result = run("evaluate", added, *words, "--picture", tmp_path / "ways.png", "--json")
    done(result)
    found = json.loads(result.stdout)
    ways = ["base, segments of 8", "base, its own cache"]
    ways += ["window of 24, no sinks", "window of 24, 4 sinks"] if kind == "window" else ["3 memory tokens"]
    assert {*ways} < {*found["ways"]}
    assert found["base"] == "LlamaForCausalLM"
    assert all(way["perplexity"] > 1 and way["milliseconds_per_token"] > 0 for way in found["ways"].values())
    assert (tmp_path / "ways.png").stat().st_size > 1000
    if kind == "window":
        plain = run("evaluate", base, *words, "--mem-len", 24, "--markdown")
        done(plain)
        assert "| window of 24, 4 sinks |" in plain.stdout
        shown = f"| {found['ways']['window of 24, 4 sinks']['perplexity']:,.2f} |"
        assert shown in plain.stdout


def test_what_says_nothing_in_a_comparison_is_refused(base: Path, added: Path, tmp_path: Path):
    words = ("evaluate", added, "--text", base.parent / "short.txt")
    assert "`record`=True has no effect with --compare-base" in refused(*words, "--compare-base", "--record")
    assert "`overlap`=4 has no effect" in refused(*words, "--compare-base", "--overlap", 4)
    assert "add --compare-base" in refused(*words, "--picture", tmp_path / "ways.png")
    assert "must end in .png or .svg" in refused(*words, "--compare-base", "--picture", tmp_path / "ways.gif")
    assert not [*tmp_path.iterdir()]


def test_a_model_with_a_memory_of_its_own_has_no_base_to_compare(base: Path, tmp_path: Path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = TransformerXLForCausalLM(TransformerXLConfig(vocab_size=259, **sizes))
    model.save_pretrained(tmp_path / "own", include_code=False)
    ByteTokenizer().save_pretrained(tmp_path / "own")
    said = refused("evaluate", tmp_path / "own", "--text", base.parent / "short.txt", "--compare-base")
    assert "whose memory is its own" in said
