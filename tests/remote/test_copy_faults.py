"""A local copy after rare events: a collection of garbage at a bad time, kills, a folder that was removed, a full disk, a repair."""

from __future__ import annotations

import gc
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.format.meta import read_meta, sha256_file
from niels_cache_runtime.remote import ledger, local_copy
from niels_cache_runtime.remote.ledger import Ledger, LedgerState
from niels_cache_runtime.remote.local_copy import LocalCopy
from niels_cache_runtime.remote.maintenance import trim
from niels_cache_runtime.remote.store import RemoteError
from tests.helpers.copied_caches import ADDRESS, Published, only_shards, room, rows

pytestmark = pytest.mark.usefixtures("fetching_thread")


def test_a_dropped_loader_may_be_collected_while_the_ledger_is_locked(published: Published) -> None:
    remote = published.remote()
    iterator = iter(remote)
    next(iterator)
    dropped: list[Any] = [remote, iterator]
    dropped.append(dropped)  # a cycle, so that only the collector frees it
    del remote, iterator
    record, done = Ledger(published.copy), threading.Event()

    def collect() -> None:
        with record.changing() as state:
            assert len(state.readers) == 1
            dropped.clear()
            gc.collect()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(20)
    published.wait_until_unread()


def test_a_meta_json_that_a_killed_process_left_is_used(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Ledger._save

    def killed(self: Ledger, state: LedgerState, before: str) -> None:
        if any(path.endswith("/meta.json") for path in state.entries):
            raise KeyboardInterrupt
        save(self, state, before)

    monkeypatch.setattr(Ledger, "_save", killed)
    with pytest.raises(KeyboardInterrupt):
        LocalCopy(published.copy, limit=room(3)).open(ADDRESS)
    monkeypatch.setattr(Ledger, "_save", save)
    (left,) = published.copy.rglob("meta.json")
    build, _ = LocalCopy(published.copy, limit=room(3)).open(ADDRESS)
    assert build.published.meta_content == left.read_bytes()
    left.write_bytes(b"{}")
    shutil.rmtree(published.copy / "readers")
    (published.copy / "manifest.json").unlink()
    with pytest.raises(NielsCacheError, match="has not downloaded"):
        LocalCopy(published.copy, limit=room(3)).open(ADDRESS)
    assert left.read_bytes() == b"{}"


def test_an_open_waits_only_for_a_while_for_another_process_that_describes_the_build(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = read_meta(published.folder / "meta.json")["content_sha256"]
    (ledger := Ledger(published.copy)).make()
    monkeypatch.setattr(local_copy, "_DESCRIBED_SECONDS", 0.2)
    with ledger.locked(f"describing-{content}"):
        began = time.monotonic()
        LocalCopy(published.copy, limit=room(3)).open(ADDRESS)
        assert time.monotonic() - began >= 0.2
    assert not [*published.copy.glob("describing*")]
    monkeypatch.setattr(local_copy, "_DESCRIBED_SECONDS", 60)
    shutil.rmtree(published.copy)
    ledger.make()
    with ledger.locked("describing-another"):
        assert LocalCopy(published.copy, limit=room(3)).open(ADDRESS)[0].id.startswith(content)


def test_a_download_for_a_folder_that_was_removed_is_dropped(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()

    def decide(method: str, key: str) -> str | None:
        if key.endswith("doc_ends.npy") and not began.is_set():
            began.set()
            go_on.wait(20)
        return None

    published.s3.decide = decide
    first = threading.Thread(target=_fetch_or_fail, args=(published.copy,), daemon=True)
    first.start()
    assert began.wait(20)
    older = [thread for thread in threading.enumerate() if "(run)" in thread.name]
    assert len(older) == 1
    with monkeypatch.context() as patch:
        patch.setattr(local_copy, "GIVE_UP_SECONDS", 0.1)
        first.join(20)
    published.copy.rename(published.copy.with_name("removed"))  # at once: the older fetcher may write into it
    copy = LocalCopy(published.copy, limit=room(3))
    copy.open(ADDRESS)
    go_on.set()
    older[0].join(20)
    folder = copy.fetch_of(copy.open(ADDRESS)[0], ["train_doc_ends.npy"])
    assert (folder / "train_doc_ends.npy").read_bytes() == (published.folder / "train_doc_ends.npy").read_bytes()


def _fetch_or_fail(folder: Path) -> None:
    copy = LocalCopy(folder, limit=room(3))
    with pytest.raises(NielsCacheError, match="nothing has changed"):
        copy.fetch_of(copy.open(ADDRESS)[0], ["train_doc_ends.npy"])


def test_a_repaired_object_may_have_another_etag(published: Published) -> None:
    settings: dict[str, Any] = {"epochs": 1, "shuffle": False}
    expected = rows(published.local(**settings))
    assert rows(published.remote(**settings)) == expected
    gc.collect()
    assert trim(published.copy, 0) > 0
    with Ledger(published.copy).changing() as state:
        assert len(state.etags) > 0
        state.etags = dict.fromkeys(state.etags, '"of the damaged object"')
    assert rows(published.remote(**settings)) == expected


@pytest.mark.parametrize("damaged", ["shard_00003.bin", "00002-*.bin", ""])
def test_after_a_boot_each_file_is_hashed_before_its_use(published: Published, monkeypatch: pytest.MonkeyPatch, damaged: str) -> None:
    expected, limit = rows(published.local(epochs=1)), room(8)
    assert rows(published.remote(epochs=1, limit=limit)) == expected
    published.wait_until_unread()
    files = list(published.copy.rglob(damaged)) if damaged else []
    assert len(files) == bool(damaged)
    for path in files:
        path.write_bytes(bytes(path.stat().st_size))
    monkeypatch.setattr(ledger, "boot", lambda: "another")
    published.s3.requests.clear()
    assert rows(published.remote(epochs=1, limit=limit)) == expected
    # A tail comes from its shard if the shard is there. The tail of a damaged shard may come before the shard is there again.
    assert sum(published.shards_sent().values()) in ((1, 2) if damaged.startswith("shard") else (0,))
    with Ledger(published.copy).changing() as state:
        assert state.counts["again"] == len(files)
        assert state.unchecked == set()


def test_a_damaged_meta_json_is_read_again(published: Published) -> None:
    build, _ = LocalCopy(published.copy, limit=room(3)).open(ADDRESS)
    place = published.copy / build.path_in_copy("meta.json")
    place.write_bytes(bytes(place.stat().st_size))
    LocalCopy(published.copy, limit=room(3)).open(ADDRESS)
    assert place.read_bytes() == build.published.meta_content


def test_a_tail_of_a_damaged_object_does_not_outlive_its_repair(published: Published) -> None:
    expected = rows(published.local(epochs=1, shuffle=False))
    published.s3.decide = only_shards("flip", name="/train/shard_00002")
    with pytest.raises(RemoteError, match=r"shard_00002\.bin.*sha256"):
        rows(published.remote(epochs=1, shuffle=False))
    gc.collect()
    published.s3.decide = lambda method, key: None
    assert rows(published.remote(epochs=1, shuffle=False)) == expected


def test_a_tail_that_differs_from_its_shard_is_told_and_fetched_again(published: Published, capfd: pytest.CaptureFixture[str]) -> None:
    expected = rows(published.local(epochs=1, shuffle=False))
    remote = published.remote(epochs=1, shuffle=False, limit=room(8))
    assert rows(remote) == expected
    (tail,) = published.copy.rglob("00002-*.bin")
    place = str(tail.relative_to(published.copy))
    del remote
    gc.collect()
    tail.write_bytes(bytes(tail.stat().st_size))
    with Ledger(published.copy).changing() as state:
        state.entries[place].sha256 = sha256_file(str(tail))
        Ledger(published.copy).remove(state, next(path for path in state.entries if path.endswith("/shard_00002.bin")))
    found = rows(published.remote(epochs=1, shuffle=False, limit=room(8)))
    assert sum(ours != theirs for ours, theirs in zip(found, expected, strict=True)) == 1
    assert "00002-" in capfd.readouterr().err
    assert rows(published.remote(epochs=1, shuffle=False, limit=room(8))) == expected
