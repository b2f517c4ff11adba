"""Push to a repository of the hub, and pull from there: one commit, a data card, and nothing half visible."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from niels_cache_assets.publish.hub import data_card, push_to_hub, repository_of
from niels_cache_assets.publish.push import open_local_build
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.verify import verify_cache
from tests.helpers import programs
from tests.helpers.loopback_hub import LoopbackHub, _Handler
from tests.helpers.remote_caches import Caches

ADDRESS = "hf://datasets/ours/letters"
TOKEN = "hf_planted0004"


COMMANDS = """
import contextlib, io, json, sys
from niels_cache_assets.cli import main
for line in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(json.loads(line))
    print(json.dumps([code, out.getvalue(), errors.getvalue()]), flush=True)
"""
Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(hub: LoopbackHub) -> Iterator[Cli]:
    """Run commands one after the other in a process with the environment of the hub."""
    asked, answered = os.pipe(), os.pipe()
    environment = {**hub.env, "HF_TOKEN": TOKEN, "NO_COLOR": "1"}
    program = programs.Program("-c", COMMANDS, env=environment, streams=(asked[0], answered[1], 2))
    os.close(asked[0])
    os.close(answered[1])
    with open(asked[1], "w", encoding="utf-8") as asks, open(answered[0], encoding="utf-8") as answers:

        def run(*arguments: object) -> subprocess.CompletedProcess[str]:
            print(json.dumps(list(map(str, arguments))), file=asks, flush=True)
            return subprocess.CompletedProcess(arguments, *json.loads(answers.readline()))

        yield run
    program.wait(60)


def test_a_cache_on_the_hub_has_a_card_and_comes_back(hub: LoopbackHub, cli: Cli, caches: Caches, tmp_path: Path) -> None:
    def push(cache: Path, *options: str) -> subprocess.CompletedProcess[str]:
        return cli("push", cache.name, ADDRESS, "--cache-dir", cache.parents[1], *options)

    stored, refuse = take_commits(hub)
    refuse.append(403)
    refused = push(caches.letters)
    assert (refused.returncode, refused.stderr.count("error:")) == (1, 1)
    assert "HF_TOKEN" in refused.stderr
    assert hub.repositories["ours/letters"] == {".gitattributes": b"private"}

    pushed = push(caches.letters)
    assert pushed.returncode == 0, pushed.stderr
    files = hub.repositories["ours/letters"]
    card = files["README.md"].decode()
    meta = json.loads((caches.letters / META_NAME).read_text(encoding="utf-8"))
    for fact in (f"{meta['train_tokens']:,}", meta["content_sha256"], meta["dataset_revision"], ADDRESS, "TokenLoader"):
        assert fact in card
    assert files["train/shard_00000.bin"] == (caches.letters / "train/shard_00000.bin").read_bytes()

    pulled = cli("pull", ADDRESS, "--out", tmp_path / "root")
    assert pulled.returncode == 0, pulled.stderr
    assert verify_cache(tmp_path / "root") == []
    assert (tmp_path / "root/pretrain/letters" / META_NAME).read_bytes() == (caches.letters / META_NAME).read_bytes()

    again = push(caches.letters)
    assert "already there" in again.stdout
    hub.repositories["ours/letters"] = files = {**files, "notes.txt": b"ours"}
    other = push(caches.other)
    assert (other.returncode, "--replace" in other.stderr) == (2, True)
    first = hub.commit("ours/letters")
    assert push(caches.other, "--replace").returncode == 0
    assert hub.commits["ours/letters", first] == files  # the older build stays in the history
    changed = (caches.other / META_NAME).read_bytes()
    assert hub.repositories["ours/letters"][META_NAME] == changed
    assert hub.repositories["ours/letters"]["notes.txt"] == b"ours"
    assert len(stored) > 4
    assert not any(TOKEN in each.stdout + each.stderr for each in (refused, pushed, pulled, again, other))


class Api:
    """A hub whose repository has these files. Nothing may be committed."""

    there: tuple[str, ...] = ()

    def create_repo(self, *arguments: object, **settings: object) -> None: ...

    def dataset_info(self, repository: str) -> SimpleNamespace:
        return SimpleNamespace(sha="0" * 40, siblings=[SimpleNamespace(rfilename=name) for name in self.there])

    def create_commit(self, *arguments: object, **settings: object) -> None:
        raise AssertionError("committed")


def test_a_repository_with_other_files_is_refused(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", type("Full", (Api,), {"there": (".gitattributes", "train/shard_00000.bin")}))
    with pytest.raises(NielsCacheError, match="shard_00000"):
        push_to_hub(open_local_build(caches.letters), ADDRESS)


@pytest.mark.parametrize("address", ["hf://datasets/letters", "hf://models/a/b", "hf://datasets/a/b@main", "hf://datasets/a/b/train"])
def test_another_form_of_address_is_refused(address: str) -> None:
    with pytest.raises(NielsCacheError, match="hf://datasets/OWNER/NAME"):
        repository_of(address)


def test_a_card_names_a_licence_and_escapes_what_a_source_says() -> None:
    meta = {"source": {"kind": "jsonl", "files": ["a|b", "<script>"]}, "train_tokens": 1234, "val_tokens": 0}
    card = data_card(ADDRESS, "pretrain", "letters", meta, license="odc-by")
    assert card.startswith('---\nlicense: "odc-by"\n')
    assert "1,234" in card
    assert "a\\|b" in card
    assert "<script>" not in card
    assert "license:" not in data_card(ADDRESS, "sft", "chats", meta)


# Commits on the loopback hub: the part of the hub's HTTP API that an upload needs. A commit replaces the files of a repository at once.


_PREUPLOAD = re.compile(r"/api/datasets/([^/]+/[^/]+)/preupload/[^/]+")
_COMMIT = re.compile(r"/api/datasets/([^/]+/[^/]+)/commit/[^/]+")
_BATCH = re.compile(r"/datasets/([^/]+/[^/]+)\.git/info/lfs/objects/batch")


class CommittingHandler(_Handler):
    """A handler that also takes commits. `stored`: the large files of all repositories, by their sha256."""

    stored: dict[str, bytes]
    refuse: list[int]

    def do_POST(self) -> None:
        self.hub.tokens.add((self.path, self.headers.get("Authorization")))
        self.hub.requests.append((self.command, self.path, None))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/api/repos/create":
            said = json.loads(body)
            repository = f"{said['organization']}/{said['name']}"
            if repository in self.hub.repositories:
                return self._send(409, json.dumps({"url": f"{self.hub.url}/datasets/{repository}"}).encode())
            self.hub.repositories[repository] = {
                ".gitattributes": b"private" if said.get("private") or said.get("visibility") == "private" else b"public"
            }
            return self._json({"url": f"{self.hub.url}/datasets/{repository}"})
        if self.path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if _PREUPLOAD.fullmatch(self.path):
            files = [
                {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith((".bin", ".npy")) else "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self._json({"files": files})
        if _BATCH.fullmatch(self.path):
            return self._json({"transfer": "basic", "objects": [self._action(each) for each in json.loads(body)["objects"]]})
        if match := _COMMIT.fullmatch(self.path):
            return self._commit(match[1], [json.loads(line) for line in body.splitlines() if line])
        return self._error(404, "EntryNotFound")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append((self.command, self.path, None))
        self.stored[hashlib.sha256(body).hexdigest()] = body
        self._send(200, b"")

    def _action(self, asked: dict[str, Any]) -> dict[str, Any]:
        found = {"oid": asked["oid"], "size": asked["size"]}
        return found if asked["oid"] in self.stored else {**found, "actions": {"upload": {"href": f"{self.hub.url}/put/{asked['oid']}"}}}

    def _commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
        if self.refuse:
            return self._error(self.refuse.pop(0), None, "refused")
        head = self.hub.commit(repository)
        files = dict(self.hub.repositories[repository])
        for line in lines:
            value = line["value"]
            if line["key"] == "header" and value.get("parentCommit") not in (None, head):
                return self._error(412, None, "another commit")
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        self.hub.repositories[repository] = files
        commit = self.hub.commit(repository)
        return self._json({"success": True, "commitOid": commit, "commitUrl": f"{self.hub.url}/datasets/{repository}/commit/{commit}"})


def take_commits(hub: LoopbackHub) -> tuple[dict[str, bytes], list[int]]:
    """Let a hub take commits. Return its large files by sha256, and the list of statuses with which it refuses the next commits."""
    stored: dict[str, bytes] = {}
    refuse: list[int] = []
    hub._server.RequestHandlerClass = type("Handler", (CommittingHandler,), {"hub": hub, "stored": stored, "refuse": refuse})
    return stored, refuse
