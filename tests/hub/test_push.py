"""Pushes through the real client to a stand-in server: what arrives, what does not, and what is said of it."""

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from transformers_xl import ByteTokenizer, TransformerXLConfig
from transformers_xl.cli.main import app
from transformers_xl.hub.uploading import PushError, push_folder

stand_in = sys.modules["stand_in_server"]
Fault, OWNER, READER = stand_in.Fault, stand_in.OWNER, stand_in.READER
REPO = "owner/my-model"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle")


def push_command(*arguments):
    return CliRunner().invoke(app, ["push", *map(str, arguments)])


@pytest.fixture(scope="module")
def model():
    return tiny_model("transformer_xl", "causal_lm")


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pushed") / "model"
    model.save_pretrained(path)
    ByteTokenizer().save_pretrained(path)
    return path


def test_model_and_tokenizer_are_pushed_and_load_from_there(hub, model, tmp_path: Path):
    model.push_to_hub(REPO, commit_message="Transformer-XL on my text", private=True, tags=["memory"])
    ByteTokenizer().push_to_hub(REPO, commit_message="Its tokenizer")
    files = hub.files(REPO)
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= set(files)
    assert {"modeling_transformer_xl.py", "tokenization_bytes.py"} <= set(files)
    assert not [name for name in files if name.endswith(PICKLES)]
    assert hub.repos[REPO].private
    assert hub.messages(REPO)[1:] == ["Transformer-XL on my text", "Its tokenizer"]
    loaded = AutoModelForCausalLM.from_pretrained(REPO)
    assert type(loaded) is type(model)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), atol=0, rtol=0)
    assert type(AutoTokenizer.from_pretrained(REPO)) is ByteTokenizer

    commits = len(hub.messages(REPO))
    hub.requests.clear()
    model.push_to_hub(REPO)
    assert len(hub.messages(REPO)) == commits  # a second push with nothing changed: no commit, nothing sent
    assert not hub.count("^PUT")
    assert not hub.count("/commit/")


def test_save_pretrained_pushes_the_code_too(hub, model, tmp_path: Path):
    model.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id=REPO)
    assert {"model.safetensors", "modeling_transformer_xl.py", "config.json"} <= set(hub.files(REPO))
    ByteTokenizer().save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id=REPO)
    assert "tokenization_bytes.py" in hub.files(REPO)


def test_include_code_false_pushes_no_code(hub, model):
    model.push_to_hub(REPO, include_code=False)
    ByteTokenizer().push_to_hub(REPO, include_code=False)
    model.config.push_to_hub("owner/config", include_code=False)
    for repo in (REPO, "owner/config"):
        assert not [name for name in hub.files(repo) if name.endswith(".py")]
        assert b"auto_map" not in b"".join(hub.files(repo).values())
    TransformerXLConfig().push_to_hub("owner/config")
    assert "configuration_transformer_xl.py" in hub.files("owner/config")


def test_branches_and_pull_requests(hub, model):
    model.push_to_hub(REPO, revision="big")
    assert "model.safetensors" in hub.files(REPO, "big")
    assert "model.safetensors" not in hub.files(REPO)
    model.push_to_hub(REPO, create_pr=True)
    assert "model.safetensors" in hub.files(REPO, "refs/pr/1")
    assert "model.safetensors" not in hub.files(REPO)
    assert AutoModelForCausalLM.from_pretrained(REPO, revision="big").config.model_type == "transformer_xl"


def test_the_command(hub, folder: Path, tmp_path: Path):
    folder = shutil.copytree(folder, tmp_path / "model")
    (folder / "training_args.bin").write_bytes(b"a pickle")
    (folder / "memory-0.safetensors").write_bytes(b"of a training")
    for name in ("runs/1/events.1", "runs/2/events.2"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("")
    for name in ("trainer_state.json", "checkpoint.json"):
        (folder / name).write_text("{}")
    private = ("second/run.yaml", "second/checkpoint-2/training_args.json", "second/.env.json")
    for name in ("checkpoint-2/model.safetensors", ".eval_results/score.yaml", "_push/config.json", *private):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    result = push_command(folder, "my-model", "--private", "-m", "first", "--description", "why")
    assert result.exit_code == 0, result.output
    assert re.search(r"\d+ files are at http://127.0.0.1:\d+/owner/my-model/commit/[0-9a-f]{40}", result.output)
    left_out = (
        "_push/config.json, checkpoint-2/model.safetensors, checkpoint.json, memory-0.safetensors, runs/ (2 files), "
        "second/ (3 files), trainer_state.json, training_args.bin"
    )
    assert f"left out: {left_out}" in result.output
    files = {path.name for path in folder.iterdir() if path.suffix in (".json", ".py")}
    files -= {"trainer_state.json", "checkpoint.json"}
    assert set(hub.files(REPO)) == files | {"model.safetensors", ".eval_results/score.yaml", ".gitattributes"}
    assert hub.repos[REPO].private
    assert hub.messages(REPO) == ["initial commit", "first"]

    again = push_command(folder, REPO, "--json")
    assert again.exit_code == 0
    assert "model.safetensors" in json.loads(again.stdout)["files"]
    assert hub.messages(REPO) == ["initial commit", "first"]  # nothing has changed
    result = push_command(folder, REPO, "--revision", "")
    assert result.exit_code == 2
    assert "`revision`='' names no branch" in result.output
    result = push_command(folder, REPO, "--revision", "v2", "--create-pr", "-m", "please")
    assert result.exit_code == 0, result.output
    result = push_command(folder, "owner/other", "--revision", "v2", "-m", "on a branch")
    assert result.exit_code == 0, result.output
    assert "model.safetensors" in hub.files("owner/other", "v2")
    result = push_command(folder, "owner/other", "--create-pr", "-m", "please")
    assert result.exit_code == 0, result.output
    assert "/owner/other/discussions/1" in result.output
    assert "model.safetensors" in hub.files("owner/other", "refs/pr/1")
    assert list(hub.files("owner/other")) == [".gitattributes"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "no config.json"),
        (lambda path: (path / "model.safetensors").rename(path / "pytorch_model.bin"), "no model.safetensors"),
        (lambda path: (path / "modeling_transformer_xl.py").unlink(), "no modeling_transformer_xl.py"),
    ],
)
def test_a_folder_of_no_saved_model_is_refused_before_anything_is_asked(
    hub, model, tmp_path: Path, change, message: str
):
    model.save_pretrained(tmp_path / "saved")
    change(tmp_path / "saved")
    result = push_command(tmp_path / "saved", REPO)
    assert result.exit_code == 2
    assert message in result.output
    assert not hub.requests
    assert push_command(tmp_path / "saved", REPO, "-m", " ").exit_code == 2


@pytest.mark.parametrize(
    ("token", "repo", "said"),
    [
        ("hf_unknown", REPO, "does not know your token"),
        (READER, REPO, "may not write there"),
        (OWNER, "foreign/model", "may not write there"),
    ],
)
def test_a_token_that_may_not(hub, model, folder: Path, monkeypatch, token: str, repo: str, said: str):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(PushError, match=f"{said}.*Not on the server: .*model.safetensors"):
        push_folder(folder, repo)
    with pytest.raises(PushError, match=f"{said}.*Nothing was sent"):
        model.push_to_hub(repo)
    assert not hub.repos
    result = push_command(folder, repo)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_token_that_may_only_read_what_is_there(hub, model, folder: Path, monkeypatch):
    push_folder(folder, REPO)
    before = hub.files(REPO)
    monkeypatch.setenv("HF_TOKEN", READER)
    there = "On the server: config.json, .*Not on the server: nothing"
    with pytest.raises(PushError, match=f"may not write there.*{there}"):
        push_folder(folder, REPO)
    with pytest.raises(PushError, match="may not write there.*Not on the server: README.md"):
        model.push_to_hub(REPO)
    assert hub.files(REPO) == before
    other = push_command(folder, REPO, "--create-pr")  # whoever may read may propose
    assert other.exit_code == 0, other.output


def test_a_branch_that_is_not_there(hub, folder: Path):
    with pytest.raises(PushError, match="no such repository or branch"):
        push_folder(folder, REPO, revision="refs/pr/7")


@pytest.mark.parametrize("status", [409, 412])
def test_a_change_at_the_same_time(hub, folder: Path, status: int):
    hub.faults.append(Fault("POST", "/commit/", status))
    with pytest.raises(PushError, match="changed at the same time: push again.*On the server: nothing"):
        push_folder(folder, REPO)
    push_folder(folder, REPO)
    assert "model.safetensors" in hub.files(REPO)


@pytest.mark.parametrize("status", [500, 503, None])
def test_passing_faults_are_waited_out(hub, folder: Path, status: int | None):
    """The client tries again: before it sends, for a large file, and when that is verified."""
    for path in ("/preupload/", "/objects/batch"):
        hub.faults.append(Fault("POST", path, status, times=2))
    hub.faults.append(Fault("PUT", "/lfs/", status, times=2))
    hub.faults.append(Fault("POST", "/verify", status))
    push_folder(folder, REPO)
    assert hub.count("^PUT") == 3
    assert hub.files(REPO)["model.safetensors"] == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("status", [500, None])
def test_a_push_that_was_interrupted_goes_on(hub, model, folder: Path, status: int | None):
    """The commit is lost after the large files have arrived. All or nothing: the branch is as it was."""
    hub.faults.append(Fault("POST", "/commit/", status))
    reason = "the server has a fault" if status else "the connection was lost"
    with pytest.raises(
        PushError, match=f"{reason}.*On the server: nothing.*Not on the server: .*config.json.*push again"
    ):
        push_folder(folder, REPO)
    assert list(hub.files(REPO)) == [".gitattributes"]
    hub.requests.clear()
    push_folder(folder, REPO)
    assert not hub.count("^PUT")  # the weights are not sent twice
    assert "model.safetensors" in hub.files(REPO)


def test_of_many_large_files_only_those_that_were_missing_are_sent(hub, model, tmp_path: Path):
    model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    shards = {path.name for path in (tmp_path / "shards").glob("*.safetensors")}
    assert len(shards) > 3
    path = max((tmp_path / "shards").glob("*.safetensors"))
    oid = hashlib.sha256(path.read_bytes()).hexdigest()
    hub.faults.append(Fault("PUT", oid, None, times=99))
    with pytest.raises(PushError, match="the connection was lost"):
        push_folder(tmp_path / "shards", REPO)
    arrived = len(hub.large)
    assert arrived > 0
    hub.faults.clear()
    hub.requests.clear()
    push_folder(tmp_path / "shards", REPO)
    assert hub.count("^PUT") == len(shards) - arrived < len(shards)
    assert shards <= set(hub.files(REPO))


@pytest.mark.parametrize("sizes", [("1GB", "40KB"), ("40KB", "1GB")], ids=["into shards", "out of shards"])
def test_weights_and_figures_of_an_earlier_push_are_deleted(hub, tmp_path: Path, sizes: tuple[str, str]):
    first, second = (tiny_model("transformer_xl", "causal_lm") for _ in sizes)
    second.lm_head.bias.data += 1.0
    for name, model, size in zip(("first", "second"), (first, second), sizes, strict=True):
        model.save_pretrained(tmp_path / name, max_shard_size=size)
    push_folder(tmp_path / "first", REPO)
    figures = ("training_metrics.json", "translation_metrics.json")
    outdated = dict.fromkeys((*figures, "adapter_config.json", "adapter_model.safetensors"), b"{}")
    others = dict.fromkeys(("notes.txt", "onnx/model.safetensors", "config_of_mine.json"), b"{}")
    hub.repos[REPO].commit("main", hub.files(REPO) | outdated | others, "by hand")
    commits = len(hub.messages(REPO))
    push_folder(tmp_path / "second", REPO)
    assert len(hub.messages(REPO)) == commits + 1
    names = {path.name for path in (tmp_path / "second").iterdir()}
    assert set(hub.files(REPO)) == names | {".gitattributes", *others}
    loaded = AutoModelForCausalLM.from_pretrained(REPO)
    torch.testing.assert_close(loaded.state_dict(), second.state_dict(), atol=0, rtol=0)


def test_a_push_of_transformers_is_refused_where_older_weights_would_be_loaded(hub, model):
    """It deletes nothing, and one file of weights, or an adapter, goes before shards."""
    model.push_to_hub(REPO, max_shard_size="40KB")
    model.push_to_hub(REPO)  # one file, which is loaded before the shards that stay there
    state = hub.files(REPO)
    with pytest.raises(ValueError, match=r"has model\.safetensors of an earlier push.*`transformers-xl push`"):
        model.push_to_hub(REPO, max_shard_size="40KB")
    with pytest.raises(ValueError, match=r"has model\.safetensors of an earlier push"):  # a branch begins with them
        model.push_to_hub(REPO, max_shard_size="40KB", revision="new")
    assert hub.files(REPO) == state
    assert set(hub.repos[REPO].branches) == {"main"}
    model.config.push_to_hub(REPO)  # no weights
    hub.repos[REPO].commit("main", hub.files(REPO) | {"adapter_config.json": b"{}"}, "by hand")
    with pytest.raises(ValueError, match=r"has adapter_config\.json of an earlier push"):
        model.push_to_hub(REPO)


def test_an_adapter_leaves_the_model_that_it_adapts(hub, folder: Path, tmp_path: Path):
    push_folder(folder, REPO)
    weights = hub.files(REPO)["model.safetensors"]
    (tmp_path / "adapter").mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": REPO, "r": 2, "target_modules": ["q_proj"]}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    save_file({"base_model.model.a.weight": torch.zeros(2)}, tmp_path / "adapter" / "adapter_model.safetensors")
    push_folder(tmp_path / "adapter", REPO)
    assert hub.files(REPO)["model.safetensors"] == weights
    assert "adapter_model.safetensors" in hub.files(REPO)


def test_a_commit_whose_answer_is_lost_is_told_to_be_there(hub, folder: Path):
    hub.faults.append(Fault("POST", "/commit/", None, after=True))
    with pytest.raises(PushError, match="Not on the server: nothing") as error:
        push_folder(folder, REPO)
    assert re.search(r"On the server: [^:]*model.safetensors", str(error.value))
    messages = hub.messages(REPO)
    push_folder(folder, REPO)
    assert hub.messages(REPO) == messages  # nothing was left to do


def test_a_large_file_that_never_arrives(hub, model, folder: Path):
    push_folder(folder, REPO)
    other = tiny_model("transformer_xl", "causal_lm", hidden_size=16)
    hub.faults.append(Fault("PUT", "/lfs/", 500, times=99))
    with pytest.raises(PushError) as error:
        other.push_to_hub(REPO)
    assert "There in another form: config.json, model.safetensors." in str(error.value)
    assert re.search(r"On the server: generation_config.json, \d+ files of code.", str(error.value))
    assert "Not on the server: README.md" in str(error.value)
    assert hub.files(REPO)["model.safetensors"] == (folder / "model.safetensors").read_bytes()


def test_how_things_stand_is_told_of_a_repository_without_its_owner(hub, folder: Path):
    push_folder(folder, "my-model")
    hub.faults.append(Fault("POST", "/preupload/", 400))
    with pytest.raises(PushError, match="`owner/my-model` failed: the server refused it.*Not on the server: nothing"):
        push_folder(folder, "my-model")


def test_the_requests_of_a_push_are_those_of_the_document(hub, folder: Path):
    push_folder(folder, REPO, revision="v1")
    lfs = f"/lfs/{REPO}/{next(iter(hub.large))}"
    assert hub.requests == [
        "POST /api/repos/create",
        f"POST /api/models/{REPO}/branch/v1",
        f"GET /api/models/{REPO}/tree/v1",
        f"POST /api/models/{REPO}/preupload/v1",
        f"POST /{REPO}.git/info/lfs/objects/batch",
        f"PUT {lfs}",
        f"POST {lfs}/verify",
        f"POST /api/models/{REPO}/commit/v1",
    ]


def test_a_server_that_goes_away_is_said_to_be_silent(hub, folder: Path):
    hub.faults += [Fault("POST", "/commit/", None), Fault("GET", "/tree/", None, times=99)]
    with pytest.raises(PushError, match="What is on the server cannot be told"):
        push_folder(folder, REPO)
