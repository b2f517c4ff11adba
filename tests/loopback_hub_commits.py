"""Commits on the loopback hub: the part of the hub's HTTP API that an upload needs. A commit replaces the files of a repository at once.

`refuse` lists the HTTP statuses of the next commits that fail.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from tests.loopback_hub import LoopbackHub, _Handler

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
