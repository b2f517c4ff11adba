"""Push and pull of a gs:// address: its conditional PUT compares generations, not ETags."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_assets.publish.check import check
from niels_cache_assets.publish.pull import pull
from niels_cache_assets.publish.push import local_build, prune, push
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.remote.record import read_record
from niels_cache_runtime.remote.store import ConflictError, RemoteError, open_store
from niels_cache_runtime.verify import verify_cache
from tests.loopback_gcs import BUCKET, LoopbackGcs
from tests.remote_caches import Caches, keys_of, letters, record_at

ADDRESS = f"gs://{BUCKET}/at/letters"
RECORD = "at/letters/meta.json"


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackGcs]:
    """An empty bucket. The environment of the test has its endpoint."""
    server = LoopbackGcs()
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()


def test_a_cache_travels_through_google(gcs: LoopbackGcs, caches: Caches, tmp_path: Path) -> None:
    build = letters(caches)
    pushed = push(build, ADDRESS)
    assert (pushed.state, pushed.sent) == ("published", len(build.files))
    assert keys_of(build) | {RECORD} <= gcs.objects.keys()
    assert push(build, ADDRESS).sent == 0
    assert check(ADDRESS, download=True).findings == []
    pulled = pull(ADDRESS, tmp_path)
    assert pulled.meta == build.meta
    assert verify_cache(tmp_path) == []


def test_replace_exchanges_the_generation_that_was_read(gcs: LoopbackGcs, caches: Caches) -> None:
    old, new = letters(caches), local_build(caches.other)
    push(old, ADDRESS)
    generation = gcs.objects[RECORD].generation
    gcs.requests.clear()
    assert push(new, ADDRESS, replace_other=True).state == "replaced"
    assert [condition for method, key, condition in gcs.requests if (method, key) == ("PUT", RECORD)] == [str(generation)]
    assert record_at(ADDRESS).previous == (old.record.content_sha256,)
    assert list(prune(ADDRESS).builds) == [old.record.content_sha256]
    assert not keys_of(old) & gcs.objects.keys()
    assert check(ADDRESS, download=True).findings == []


def test_a_record_is_created_once_and_replaced_only_as_it_was_read(gcs: LoopbackGcs, caches: Caches) -> None:
    store, build = open_store(ADDRESS), letters(caches)
    push(build, ADDRESS)
    with pytest.raises(ConflictError):
        store.create(META_NAME, b"{}")
    _, read = read_record(store)
    push(local_build(caches.other), ADDRESS, replace_other=True)
    with pytest.raises(ConflictError):
        store.exchange(META_NAME, build.record.content(), state=read)
    assert record_at(ADDRESS).previous == (build.record.content_sha256,)


def test_a_store_that_ignores_generations_is_refused(gcs: LoopbackGcs, caches: Caches) -> None:
    gcs.is_conditional = False
    with pytest.raises(RemoteError, match="conditional PUT"):
        push(letters(caches), ADDRESS)
    assert RECORD not in gcs.objects
