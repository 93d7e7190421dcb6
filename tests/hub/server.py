"""A stand-in for the Hub on 127.0.0.1, of the standard library: what the real client needs for pushes and for loading.

Repositories with branches, commits, pull requests and large files; tokens that may write or only read; and faults on order.
A client comes here with HF_ENDPOINT=<url>, HF_TOKEN=<token> and HF_HUB_DISABLE_XET=1 (large files then go the LFS way).
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

OWNER, READER = "hf_owner", "hf_reader"
LARGE = (".safetensors", ".bin", ".pt", ".png")  # what goes the LFS way, as .gitattributes says on the Hub


@dataclass
class Fault:
    """Answer the next `times` requests that match with `status`, or cut the connection; `after`: when they have acted."""

    method: str
    path: str  # a regular expression
    status: int | None = None
    times: int = 1
    after: bool = False


@dataclass
class Repo:
    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # sha to the files of that state
    messages: dict[str, str] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)  # branch, or refs/pr/N, to sha

    def commit(self, ref: str, files: dict[str, bytes], message: str) -> str:
        text = json.dumps([ref, len(self.commits), message, {name: git_oid(data) for name, data in files.items()}])
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha], self.messages[sha], self.branches[ref] = files, message, sha
        return sha

    def sha(self, revision: str) -> str:
        sha = self.branches.get(revision, revision)
        if sha not in self.commits:
            raise Refused(404, "RevisionNotFound", f"no revision {revision}")
        return sha


class Refused(Exception):
    def __init__(self, status: int, code: str | None = None, message: str = ""):
        self.status, self.code, self.message = status, code, message


def git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def describe(name: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": git_oid(data)}
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return entry


class HubServer:
    """`with HubServer() as hub:` serves until the block ends. `hub.requests` counts what was asked."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.lock = Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "HubServer":
        Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        repo = self.repos[repo_id]
        return repo.commits[repo.sha(revision)]

    def messages(self, repo_id: str) -> list[str]:
        return list(self.repos[repo_id].messages.values())

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, line)) for line in self.requests)

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None


class Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.handle_request()

    do_HEAD = do_POST = do_PUT = do_GET

    def handle_request(self) -> None:
        url = urlsplit(self.path)
        self.route, self.query = unquote(url.path), parse_qs(url.query)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.hub.requests.append(f"{self.command} {self.route}")
        fault = self.hub.fault(self.command, self.route)
        if fault is not None and not fault.after:
            return self.fail(fault)
        try:
            status, headers, answer = self.answer()
        except Refused as refused:
            headers = {"X-Error-Message": refused.message} | ({"X-Error-Code": refused.code} if refused.code else {})
            status, answer = refused.status, {"error": refused.message}
        if fault is not None:
            return self.fail(fault)
        self.reply(status, headers, answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def fail(self, fault: Fault) -> None:
        if fault.status is None:
            self.close_connection = True
            self.connection.close()
        else:
            self.reply(fault.status, {}, b'{"error": "a fault on order"}')

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json", "Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def may(self, write: bool, repo: Repo | None = None) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in (OWNER, READER, ""):
            raise Refused(401, None, "Invalid credentials in Authorization header")
        if write and token != OWNER:
            raise Refused(403 if token else 401, None, "You are not allowed to write here")
        if repo is not None and repo.private and token != OWNER:
            raise Refused(401, "RepoNotFound", "Repository not found")

    def repo(self, repo_id: str, write: bool = False) -> Repo:
        if repo_id not in self.hub.repos:
            raise Refused(404, "RepoNotFound", "Repository not found")
        self.may(write, self.hub.repos[repo_id])
        return self.hub.repos[repo_id]

    def answer(self) -> tuple[int, dict[str, str], Any]:
        for method, pattern, act in ROUTES:
            match = re.fullmatch(pattern, self.route)
            if match and self.command in method.split():
                result = act(self, **match.groupdict())
                return result if isinstance(result, tuple) else (200, {}, result)
        raise Refused(404, None, f"no such page: {self.command} {self.route}")

    def create(self) -> Any:
        self.may(write=True)
        asked = json.loads(self.body)
        repo_id = f"{asked.get('organization') or 'owner'}/{asked['name']}"
        if repo_id.startswith("foreign/"):
            raise Refused(403, None, "You may not create a repository there")
        answer = {"url": f"{self.hub.url}/{repo_id}", "id": repo_id, "name": repo_id}
        if repo_id in self.hub.repos:
            return 409, {}, answer | {"error": "You already created this model repo"}
        repo = self.hub.repos[repo_id] = Repo(
            private=asked.get("visibility") == "private" or bool(asked.get("private"))
        )
        repo.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        return answer

    def info(self, repo: str, revision: str = "main") -> Any:
        found = self.repo(repo)
        sha = found.sha(revision)
        siblings = [{"rfilename": name} for name in found.commits[sha]]
        return {"id": repo, "modelId": repo, "sha": sha, "private": found.private, "siblings": siblings, "tags": []}

    def refs(self, repo: str) -> Any:
        branches = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": sha}
            for name, sha in self.repo(repo).branches.items()
        ]
        return {"branches": branches, "tags": [], "converts": [], "pullRequests": []}

    def branch(self, repo: str, branch: str) -> Any:
        found = self.repo(repo, write=True)
        if branch in found.branches:
            raise Refused(409, None, "Reference already exists")
        start = json.loads(self.body or b"{}").get("startingPoint") or "main"
        found.branches[branch] = found.sha(start)
        return {}

    def preupload(self, repo: str, revision: str) -> Any:
        found = self.repo(repo, write="create_pr" not in self.query)
        there = found.commits[found.sha(revision)]
        answer = []
        for file in json.loads(self.body)["files"]:
            name, oid = file["path"], None
            if name in there:
                known = describe(name, there[name])
                oid = known["lfs"]["oid"] if "lfs" in known else known["oid"]
            mode = "lfs" if name.endswith(LARGE) else "regular"
            answer.append({"path": name, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": answer}

    def lfs_batch(self, repo: str) -> Any:
        self.repo(repo)
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            href = f"{self.hub.url}/lfs/{repo}/{wanted['oid']}"
            known = wanted["oid"] in self.hub.large
            actions = {"upload": {"href": href}, "verify": {"href": f"{href}/verify"}}
            objects.append(wanted | ({} if known else {"actions": actions}))
        return {"transfer": "basic", "objects": objects}

    def lfs_put(self, repo: str, oid: str) -> Any:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, None, "content does not match its hash")
        self.hub.large[oid] = self.body
        return {}

    def lfs_verify(self, repo: str, oid: str) -> Any:
        self.repo(repo)
        if len(self.hub.large.get(oid, b"")) != json.loads(self.body)["size"]:
            raise Refused(404, None, "not uploaded")
        return {}

    def commit(self, repo: str, revision: str) -> Any:
        as_pr = "create_pr" in self.query
        found = self.repo(repo, write=not as_pr)
        files, message = dict(found.commits[found.sha(revision)]), ""
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
                if value.get("parentCommit") not in (None, found.sha(revision)):
                    raise Refused(412, None, "A commit has happened since. Please refresh and try again.")
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                if value["oid"] not in self.hub.large:
                    raise Refused(400, None, f"large file {value['path']} was not uploaded")
                files[value["path"]] = self.hub.large[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        number = sum(name.startswith("refs/pr/") for name in found.branches) + 1
        sha = found.commit(f"refs/pr/{number}" if as_pr else revision, files, message)
        url = f"{self.hub.url}/{repo}"
        pull_request = f"{url}/discussions/{number}" if as_pr else None
        return {"success": True, "commitOid": sha, "commitUrl": f"{url}/commit/{sha}", "pullRequestUrl": pull_request}

    def tree(self, repo: str, revision: str) -> Any:
        found = self.repo(repo)
        return [describe(name, data) for name, data in found.commits[found.sha(revision)].items()]

    def paths_info(self, repo: str, revision: str) -> Any:
        wanted = json.loads(self.body)["paths"]
        return [entry for entry in self.tree(repo, revision) if entry["path"] in wanted]

    def resolve(self, repo: str, revision: str, path: str) -> Any:
        found = self.repo(repo)
        sha = found.sha(revision)
        if path not in found.commits[sha]:
            raise Refused(404, "EntryNotFound", "Entry not found")
        data = found.commits[sha][path]
        entry = describe(path, data)
        headers = {"X-Repo-Commit": sha, "ETag": f'"{entry["oid"]}"', "Content-Type": "application/octet-stream"}
        if "lfs" in entry:
            headers |= {"X-Linked-ETag": f'"{entry["lfs"]["oid"]}"', "X-Linked-Size": str(len(data))}
        return 200, headers, data

    def valid(self) -> Any:
        return {"errors": [], "warnings": []}

    def whoami(self) -> Any:
        self.may(write=True)
        return {"name": "owner", "type": "user", "auth": {"accessToken": {"role": "write"}}}


REPO, REVISION = r"(?P<repo>[\w.-]+/[\w.-]+)", r"(?P<revision>refs/pr/\d+|[\w.-]+)"
ROUTES = (
    ("POST", "/api/repos/create", Handler.create),
    ("POST", "/api/validate-yaml", Handler.valid),
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("GET", f"/api/models/{REPO}", Handler.info),
    ("GET", f"/api/models/{REPO}/revision/{REVISION}", Handler.info),
    ("GET", f"/api/models/{REPO}/refs", Handler.refs),
    ("POST", rf"/api/models/{REPO}/branch/(?P<branch>[\w./-]+)", Handler.branch),
    ("POST", f"/api/models/{REPO}/preupload/{REVISION}", Handler.preupload),
    ("POST", f"/api/models/{REPO}/commit/{REVISION}", Handler.commit),
    ("GET", f"/api/models/{REPO}/tree/{REVISION}", Handler.tree),
    ("POST", f"/api/models/{REPO}/paths-info/{REVISION}", Handler.paths_info),
    ("POST", f"/{REPO}.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", rf"/lfs/{REPO}/(?P<oid>\w+)", Handler.lfs_put),
    ("POST", rf"/lfs/{REPO}/(?P<oid>\w+)/verify", Handler.lfs_verify),
    ("GET HEAD", f"/{REPO}/resolve/{REVISION}/(?P<path>.+)", Handler.resolve),
)
