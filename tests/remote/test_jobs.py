"""Jobs that share a local copy with other credentials or addresses, stores that stop to answer, and windows by one request each."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from niels_cache_assets.publish.push import open_local_build, push
from niels_cache_runtime import Copy, NielsCacheError, TokenLoader, open_cache
from niels_cache_runtime.remote import download, local_copy
from niels_cache_runtime.remote.ledger import Ledger
from niels_cache_runtime.remote.local_copy import LocalCopy
from niels_cache_runtime.remote.maintenance import trim
from niels_cache_runtime.remote.store import ObjectRange, RemoteError, Store, open_store
from tests.helpers.copied_caches import ADDRESS, Published, T, room, rows, wait_until, write_notes

pytestmark = pytest.mark.usefixtures("fetching_thread")


def test_expired_credentials_of_another_job_end_no_job(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other job downloads a shard that both wait for."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "old")
    began, go_on = threading.Event(), threading.Event()

    def expire(method: str, key: str) -> str | None:
        if "/train/shard_" not in key:
            return None
        began.set()
        go_on.wait(60)
        return "expired"

    published.s3.decide_of["old"] = expire
    other, said = published.remote(epochs=1), list[str]()

    def run_other() -> None:
        with pytest.raises(RemoteError, match="expired") as raised:
            rows(other)
        said.append(str(raised.value))

    threads = [threading.Thread(target=run_other, daemon=True)]
    threads[0].start()
    assert began.wait(60)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "good")
    job, found = published.remote(epochs=1), list[list[int]]()
    threads.append(threading.Thread(target=lambda: found.extend(rows(job)), daemon=True))
    threads[1].start()
    wait_until(lambda: waiting(published) == 2)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert found == rows(published.local(epochs=1))
    assert len(said) == 1


def waiting(published: Published) -> int:
    """Return how many readers wait for a file."""
    with Ledger(published.copy).changing() as state:
        return sum(bool(reader.demand) for reader in state.readers.values())


def test_a_catalog_keeps_its_meta_json_and_its_build(published: Published, tmp_path: Path) -> None:
    family = open_cache(ADDRESS, remote=Copy(dir=str(published.copy), limit=1e9)).pretrain
    gc.collect()
    trim(published.copy, 0)
    split = family["notes"].train
    push(open_local_build(write_notes(tmp_path / "other/pretrain/notes", first=5)), ADDRESS, replace_other=True)
    expected = open_cache(published.folder.parents[1]).pretrain.notes.train
    assert split[0].tolist() == expected[0].tolist()
    assert len(split) == len(expected) == 3
    with pytest.raises(NielsCacheError, match="rebuilt since"):
        split.sampler(T=T)


def test_meta_json_may_go_while_a_job_opens_it(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalCopy(published.copy, limit=room(3)).open(ADDRESS)
    gc.collect()

    def removed(address: str, *, is_hasty: bool) -> object:
        trim(published.copy, 0)
        return open_store(address, is_hasty=is_hasty)

    monkeypatch.setattr("niels_cache_runtime.remote.local_copy.open_store", removed)
    assert rows(published.remote(epochs=1)) == rows(published.local(epochs=1))
    published.wait_until_unread()
    published.s3.decide = lambda method, key: "expired"
    with pytest.warns(RuntimeWarning, match="expired"), pytest.raises(NielsCacheError, match=r"meta\.json.*run again"):
        published.remote(epochs=1)


def test_one_process_of_a_machine_downloads_meta_json(published: Published) -> None:
    ranks, record = 4, f"{ADDRESS.partition('://')[2].partition('/')[2]}/meta.json"
    all_ask = threading.Barrier(ranks)

    def decide(method: str, key: str) -> None:
        if key == record:
            all_ask.wait(60)

    published.s3.decide = decide
    published.s3.requests.clear()
    program = "import sys; from niels_cache_runtime.remote.local_copy import LocalCopy; LocalCopy(sys.argv[1]).open(sys.argv[2])"
    processes = [subprocess.Popen([sys.executable, "-c", program, str(published.copy), ADDRESS]) for _ in range(ranks)]
    assert [process.wait(60) for process in processes] == [0] * ranks
    assert [key == record for _, key in published.s3.requests].count(False) == 1
    assert len(published.s3.requests) == ranks + 1


def test_no_download_goes_on_without_a_reader(published: Published) -> None:
    """A store that does not answer would keep the process that downloads, and the room of the file."""
    began, go_on = threading.Event(), threading.Event()

    def decide(method: str, key: str) -> str | None:
        if "/train/shard_" in key:
            began.set()
            go_on.wait(60)
        return None

    published.s3.decide = decide
    with ThreadPoolExecutor(1) as executor:
        gives_up = executor.submit(give_up, published)
        assert began.wait(60)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_copy, "GIVE_UP_SECONDS", 0.1)
            gives_up.result(60)
    gc.collect()
    wait_until(lambda: list((published.copy / "fetchers").iterdir()) == [])
    assert list(published.copy.rglob("*.part")) == []
    with Ledger(published.copy).changing() as state:
        assert [path for path in state.entries if "/train/shard_" in path] == []
    go_on.set()
    assert rows(published.remote(epochs=1)) == rows(published.local(epochs=1))


def give_up(published: Published) -> None:
    with pytest.raises(NielsCacheError, match="nothing has changed"):
        rows(published.remote(), 1)


def windows(published: Published) -> TokenLoader:
    return published.remote(order="split", remote=Copy(fetch="windows"), epochs=1)


def test_a_window_is_requested_again_after_the_last_try_of_obstore(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    read, failures = Store.read_range, [3]

    def failing(self: Store, key: str, length: int, *, start: int = 0) -> ObjectRange:
        if "/train/shard_" in key and failures[0]:
            failures[0] -= 1
            raise RemoteError("the connection broke", is_transient=True)
        return read(self, key, length, start=start)

    monkeypatch.setattr(Store, "read_range", failing)
    monkeypatch.setattr(download, "_FIRST_WAIT_SECONDS", 0.001)
    assert rows(windows(published), 3) == rows(published.local(order="split"), 3)
    assert failures == [0]


def test_forked_workers_of_windows_are_refused(published: Published) -> None:
    """After the fork, a request through the connections of the parent would wait for ever."""
    with pytest.raises(NielsCacheError, match="spawn"):
        rows(DataLoader(windows(published), batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60), 1)
