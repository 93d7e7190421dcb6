"""Push a folder to the Hub in one commit, and say what is there when that fails."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.sha import git_hash, sha_fileobj

from transformers_xl.files.json_files import read_json
from transformers_xl.files.written import RECORD
from transformers_xl.hub.adapter_folders import ADAPTER, read_adapter
from transformers_xl.hub.measurements import FILE
from transformers_xl.hub.translator_card import TRANSLATION_SCORES

# What may go, not what may not: a pickle can have any name, and a checkpoint also holds the memory of its training.
UPLOADED = (
    "model*.safetensors", "adapter_model*.safetensors", "*.json", "*.py", "*.md", "*.txt", "*.jinja", "*.yaml", "*.model",
    "*.png", "*.svg",
)  # fmt: skip

# What belongs to one state of the weights: beside the weights of another one it would be loaded, or believed.
OF_ADAPTERS = ("adapter_model.safetensors", FILE, TRANSLATION_SCORES)
OF_WEIGHTS = (
    "model.safetensors", "model-?????-of-?????.safetensors", "model.safetensors.index.json", ADAPTER, *OF_ADAPTERS,
)  # fmt: skip

# of a training: they say where files lie
OF_TRAININGS = ("run.yaml", "trainer_state.json", "checkpoint.json")

REASONS = {
    401: "the server does not know your token: log in with `hf auth login`, or set HF_TOKEN",
    403: "your token may not write there: take a token with write access, or a repository of your own",
    404: "there is no such repository or branch, or your token may not see it",
    409: "it was changed at the same time: push again",
    412: "it was changed at the same time: push again",
}


class PushError(OSError):
    """A push failed. The message says why, what is on the server and what is not, and what to do."""


class Pushed(NamedTuple):
    """The commit of a push, the files of the model, and what was left out as no file of it."""

    commit: CommitInfo
    files: list[str]
    left_out: list[str]

    @property
    def url(self) -> str:
        """The page of the pull request, or of the commit."""
        return self.commit.pr_url or self.commit.commit_url


def push_folder(
    folder: Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    commit_message: str | None = None,
    commit_description: str | None = None,
    token: str | None = None,
) -> Pushed:
    """Push the files of a saved model in one commit: all of them are there afterwards, or none has changed.

    The same commit deletes weights and figures of an earlier state that the folder lacks. Other files stay, and the weights
    of a model beside an adapter, which may be its base.

    The repository, and the branch `revision`, are made if need be. What the server already has is not sent again: after a
    failure, or an interruption, the same call resumes it, since large files are kept by their content.

    Raises:
        ValueError: the folder is not that of a saved model, or `revision` is empty.
        PushError: the server refused, failed or went away.
    """
    if revision == "":
        raise ValueError("`revision`='' names no branch: leave it out for `main`.")
    files, left_out = _files_to_push(Path(folder))
    api = HfApi(token=token, library_name="transformers-xl")
    with explained(repo_id, files, revision, token, create_pr):
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    with explained(repo_id, files, revision, token, create_pr):  # with the name of its owner
        if revision is not None and not revision.startswith("refs/"):
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        outdated = _outdated(api.list_repo_files(repo_id, revision=revision), files)
        added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in files.items()]
        commit = api.create_commit(
            repo_id,
            [*added, *(CommitOperationDelete(path_in_repo=name, is_folder=False) for name in outdated)],
            commit_message=commit_message or "Upload model",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )
    return Pushed(commit, list(files), left_out)


def _outdated(there: Iterable[str], files: Mapping[str, Path]) -> list[str]:
    """The weights and figures in a repository that are not those of `files`. What lies in its folders is not looked at."""
    patterns = OF_ADAPTERS if ADAPTER in files else OF_WEIGHTS
    return [
        name
        for name in there
        if name not in files and "/" not in name and any(fnmatchcase(name, pattern) for pattern in patterns)
    ]


def check_nothing_older_is_loaded(
    repo_id: str, files: Mapping[str, Path], revision: str | None, token: str | bool | None
) -> None:
    """Check that weights which transformers' own push would leave there are not loaded in the place of those in `files`.

    Raises:
        ValueError: they are.
    """
    if not any(fnmatchcase(name, "model*.safetensors") for name in files):
        return
    there: list[str] = []
    for branch in dict.fromkeys((revision, None)):  # a new branch begins with what is in `main`
        try:
            there = HfApi(token=token).list_repo_files(repo_id, revision=branch)
            break
        except HfHubHTTPError as error:
            if error.response.status_code != 404:
                raise
    if loaded := [name for name in _outdated(there, files) if name in (OF_WEIGHTS[0], ADAPTER)]:
        raise ValueError(
            f"`{repo_id}` has {' and '.join(loaded)} of an earlier push, which would stay there and be loaded: save the "
            "model, and push its folder by `transformers-xl push`, which deletes what it replaces in the same commit."
        )


def files_below(folder: Path) -> dict[str, Path]:
    """All files of a folder and its sub-folders, by their names in a repository."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {".git", ".cache"} & set(path.relative_to(folder).parts)
    }


def _files_to_push(folder: Path) -> tuple[dict[str, Path], list[str]]:
    everything = files_below(folder)
    files = {name: path for name, path in everything.items() if _belongs_to_a_model(name)}
    left_out = [name for name in everything if name not in files and name != RECORD]
    if (adapter := read_adapter(folder)) is not None:
        if adapter.base_repository is None:
            raise ValueError(
                f"{str(folder / ADAPTER)!r}: `base_model_name_or_path`={adapter.base!r} is a local folder: push "
                "that model, and write the name of its repository there."
            )
        return files, left_out
    if "config.json" not in files:
        raise ValueError(f"`folder`={str(folder)!r} has no config.json: give a folder that `save_pretrained` wrote.")
    if not any(name.endswith(".safetensors") for name in files):
        raise ValueError(
            f"`folder`={str(folder)!r} has no model.safetensors: load the model and save it again; pickles are not pushed."
        )
    auto_map = read_json(files["config.json"]).get("auto_map", {})
    if not isinstance(auto_map, dict):
        raise ValueError(f"{str(files['config.json'])!r}: `auto_map`={auto_map!r} must be an object.")
    missing = sorted({f"{reference.partition('.')[0]}.py" for reference in map(str, auto_map.values())} - set(files))
    if missing:
        raise ValueError(
            f"`folder`={str(folder)!r} has no {', '.join(missing)}, which its config.json names: load the model "
            "and save it again."
        )
    return files, left_out


def _belongs_to_a_model(name: str) -> bool:
    *folders, file = name.split("/")
    inner = any(part.startswith((".", "_", "checkpoint-")) for part in (*folders, file))
    inner = inner and not (folders == [".eval_results"] and not file.startswith((".", "_")))
    inner = inner or file in OF_TRAININGS
    return not inner and any(fnmatchcase(name, pattern) for pattern in UPLOADED)


@contextmanager
def explained(
    repo_id: str,
    files: Mapping[str, Path],
    revision: str | None = None,
    token: str | bool | None = None,
    create_pr: bool = False,
) -> Iterator[None]:
    """Turn an error of the client in the body into a [`PushError`] that tells how things stand."""
    try:
        yield
    except PushError:
        raise
    except (HTTPError, RuntimeError) as error:
        # the client wraps what happens to a large file into a RuntimeError
        cause = error if isinstance(error, HTTPError) else error.__cause__
        if not isinstance(cause, HTTPError):
            raise
        where = f"`{repo_id}`" if revision is None else f"`{repo_id}`, branch `{revision}`,"
        lines = [
            f"The push to {where} failed: {_reason(cause)}.",
            _standing(repo_id, files, revision, token),
        ]
        if create_pr:
            lines.append("No pull request is known to be open.")
        lines.append("To resume, push again: large files that had arrived are not sent twice.")
        raise PushError(" ".join(lines)) from error


def _reason(error: HTTPError) -> str:
    if not isinstance(error, HfHubHTTPError):
        return f"the connection was lost ({' '.join(str(error).split()) or type(error).__name__})"
    status = error.response.status_code
    reason = REASONS.get(status, "the server has a fault" if status >= 500 else "the server refused it")
    said = " ".join((error.server_message or "").split())
    return f"{reason} ({status}{f': {said}' if said else ''})"


def _standing(repo_id: str, files: Mapping[str, Path], revision: str | None, token: str | bool | None) -> str:
    """Which of the files the server has in their present form, by asking it."""
    if not files:
        return "Nothing was sent."
    try:
        tree = HfApi(token=token).list_repo_tree(repo_id, revision=revision, recursive=True)
        remote = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    except HfHubHTTPError as error:
        if error.response.status_code not in (401, 403, 404):
            return "What is on the server cannot be told: it does not answer."
        remote = {}
    except HTTPError:
        return "What is on the server cannot be told: it does not answer."
    states: dict[str, list[str]] = {"On the server": [], "There in another form": [], "Not on the server": []}
    for name, path in files.items():
        if name not in remote:
            states["Not on the server"].append(name)
        else:
            states["On the server" if _same(path, remote[name]) else "There in another form"].append(name)
    return " ".join(
        f"{state}: {_named(names)}." for state, names in states.items() if names or state != "There in another form"
    )


def _named(names: list[str]) -> str:
    """Names in a row, those of code files by their number: a model has some thirty."""
    code = [name for name in names if name.endswith(".py")]
    told = [name for name in names if name not in code] + ([f"{len(code)} files of code"] if code else [])
    return ", ".join(told) or "nothing"


def _same(path: Path, remote: RepoFile) -> bool:
    if remote.lfs is None:
        return git_hash(path.read_bytes()) == remote.blob_id
    with path.open("rb") as file:
        return sha_fileobj(file).hex() == remote.lfs.sha256


__all__ = [
    "UPLOADED",
    "PushError",
    "Pushed",
    "check_nothing_older_is_loaded",
    "explained",
    "files_below",
    "push_folder",
]
