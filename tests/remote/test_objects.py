"""A build whose files have keys of their own in a store: objects.json maps the names in meta.json to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from niels_cache_assets.cli import main
from niels_cache_assets.publish.check import check
from niels_cache_assets.publish.pull import pull
from niels_cache_assets.publish.push import LocalBuild
from niels_cache_runtime import Blocks, Copy, TokenLoader
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import canonical_json, sha256_text
from niels_cache_runtime.remote.record import OBJECTS_NAME, TOKENIZER, Record, encode_objects
from niels_cache_runtime.remote.store import RemoteError, open_store
from tests.helpers.loopback_s3 import BUCKET, LoopbackS3
from tests.helpers.remote_caches import ADDRESS, Caches, letters


def seal_in_place(s3: LoopbackS3, build: LocalBuild, change: Callable[[dict[str, Any]], None] = lambda record: None) -> Record:
    """Store a build as machines without a common disk leave it. `change` edits objects.json, whose own hash is then corrected."""
    files = [file._replace(key=f"parts/part-0000{number % 3}/00001-ab/{file.path}") for number, file in enumerate(build.files)]
    data = [file for file in files if not file.path.startswith(TOKENIZER) and file.path != META_NAME]
    objects = json.loads(encode_objects(data))
    change(objects)
    objects["objects_sha256"] = sha256_text(canonical_json({**objects, "objects_sha256": ""}))
    content = canonical_json(objects).encode()
    store, beside = open_store(ADDRESS), dict[str, dict[str, Any]]()
    for file in files:
        headers = {"x-amz-meta-sha256": file.sha256}
        s3.ask("PUT", f"/{BUCKET}/at/letters/{file.key}", build.paths[file.path].read_bytes(), headers)
        if file not in data:
            beside[file.path] = {"bytes": file.size, "key": file.key, "sha256": file.sha256}
    sha256 = hashlib.sha256(content).hexdigest()
    s3.ask("PUT", f"/{BUCKET}/at/letters/parts/seal/{OBJECTS_NAME}", content, {"x-amz-meta-sha256": sha256})
    beside[OBJECTS_NAME] = {"bytes": len(content), "key": f"parts/seal/{OBJECTS_NAME}", "sha256": sha256}
    record = replace(build.record, beside=beside)
    store.write_if(META_NAME, record.content(), state=None)
    return record


def batches(source: str | Path, **settings: Any) -> list[torch.Tensor]:
    loader = TokenLoader(str(source), T=32, B=4, seed=3, order=Blocks(shards=2, lanes=1), **settings)
    return [batch.x for batch in islice(loader, 6)]


def test_pull_verify_show_and_the_loader_follow_the_keys(s3: LoopbackS3, caches: Caches, tmp_path: Path) -> None:
    build = letters(caches)
    seal_in_place(s3, build)
    assert check(ADDRESS, download=True).findings == []
    pulled = pull(ADDRESS, tmp_path / "root").directory
    assert {path.relative_to(pulled): path.read_bytes() for path in pulled.rglob("*") if path.is_file()} == {
        path.relative_to(caches.letters): path.read_bytes() for path in caches.letters.rglob("*") if path.is_file()
    }
    assert [main([command, ADDRESS]) for command in ("show", "verify")] == [0, 0]
    expected = batches(caches.letters / "train")
    for copy in (Copy(dir=tmp_path / "copy", limit=50e6), Copy(fetch="windows")):
        assert all(map(torch.equal, batches(f"{ADDRESS}/train", remote=copy), expected))
    s3.decide = lambda method, key: "denied"
    with pytest.warns(RuntimeWarning, match="access is denied"):  # what describes the build is in the copy
        assert all(map(torch.equal, batches(f"{ADDRESS}/train", remote=Copy(dir=tmp_path / "copy", limit=50e6)), expected))


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["objects"].pop("train/shard_00000.bin"),
        lambda record: record["objects"]["train/shard_00000.bin"].update(sha256="0" * 64),
        lambda record: record["objects"]["train/shard_00000.bin"].update(key="../other/shard"),
        lambda record: record.update(schema_version=99),
        lambda record: record["objects"].update({"train/extra.bin": {"bytes": 1, "key": "a", "sha256": "0" * 64}}),
    ],
)
def test_an_objects_json_that_does_not_fit_is_refused(change: Callable[[dict[str, Any]], None], s3: LoopbackS3, caches: Caches) -> None:
    seal_in_place(s3, letters(caches), change)
    with pytest.raises(NielsCacheError, match=r"objects\.json|newer|where the files"):
        check(ADDRESS)


def test_a_small_object_is_asked_for_again_if_obstore_gives_up_its_body(s3: LoopbackS3) -> None:
    """A process that is frozen while a body comes finds a broken connection when it wakes up, and must not end."""
    store = open_store(ADDRESS)
    store.write_if("lease.json", b'{"attempt": 1}', state=None)
    faults = ["cut"] * 4  # one more than obstore repeats
    s3.decide = lambda method, key: faults.pop() if method == "GET" and faults else None
    assert store.get("lease.json", most_bytes=1 << 10).content == b'{"attempt": 1}'
    assert not faults
    s3.decide = lambda method, key: "cut"
    with pytest.raises(RemoteError, match=r"lease\.json: the store refused, or the connection broke"):
        store.get("lease.json", most_bytes=1 << 10)


def test_an_edited_objects_json_is_refused(s3: LoopbackS3, caches: Caches) -> None:
    record = seal_in_place(s3, letters(caches))
    entry = record.beside[OBJECTS_NAME]
    content = (s3.content(f"at/letters/{entry['key']}") or b"").replace(b"part-00001", b"part-00002")
    s3.ask("PUT", f"/{BUCKET}/at/letters/{entry['key']}", content)
    with pytest.raises(NielsCacheError, match="is not the one in the record"):
        check(ADDRESS)
