"""A small published cache, loaders over its folder and over its address, and the files of a local copy."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_runtime import Blocks, Copy, TokenLoader
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.loader.remote.windows import CopiedWindows
from niels_cache_runtime.remote import local_copy
from niels_cache_runtime.remote.fetcher import Fetcher
from niels_cache_runtime.remote.ledger import Ledger
from tests.helpers.grouped import grouped
from tests.helpers.hand_made import write_meta_of, write_stream
from tests.helpers.loopback_s3 import BUCKET, LoopbackS3

T = 32
SHARD_TOKENS = 2048
SHARD_BYTES = SHARD_TOKENS * 2
SHARDS = 12
ADDRESS = f"s3://{BUCKET}/at/notes"
OVERHEAD = 24_000  # bytes of the ledger of a few processes, of meta.json, document ends and tails
SETTINGS: dict[str, Any] = {"T": T, "B": 4, "seed": 3, "order": Blocks(shards=2)}  # with `grouped`, a test changes one of them


def room(blocks: float, *, block_shards: int = 2) -> int:
    """Return a limit with room for so many blocks."""
    return int(blocks * block_shards * SHARD_BYTES) + OVERHEAD


def write_notes(folder: Path, *, shards: int = SHARDS, first: int = 0, shard_tokens: int = SHARD_TOKENS) -> Path:
    """Write a data set of `shards` full shards and one token more. Return its folder."""
    count = shards * shard_tokens + 1
    write_stream(folder, (np.arange(count) + first) % 60_000, shard_tokens=shard_tokens, doc_ends=[100, count // 2, count])
    numbers = {"train_tokens": count, "val_tokens": 0, "documents": {"train": 3, "val": 0}, "tokenizer_sha256": None}
    write_meta_of(folder, kind="pretrain", append_eot=True, shard_bytes=shard_tokens * 2, **numbers)
    return folder


@dataclass
class Published:
    """A data set in a folder and in a bucket. copy: the folder for local copies."""

    s3: LoopbackS3
    folder: Path
    copy: Path

    def local(self, **settings: Any) -> TokenLoader:
        return TokenLoader(str(self.folder / "train"), **grouped(SETTINGS | settings))

    def remote(self, **settings: Any) -> TokenLoader:
        return TokenLoader(f"{ADDRESS}/train", **grouped(SETTINGS | {"remote": Copy(dir=self.copy, limit=room(3))} | settings))

    def wait_until_unread(self) -> None:
        """Free the loaders that no code refers to, and wait until the copy has no reader. A thread of it may hold a loader for a moment."""

        def is_unread() -> bool:
            gc.collect()
            with Ledger(self.copy).changing() as state:
                return state.readers == {}

        wait_until(is_unread)

    def shards_sent(self) -> Counter[str]:
        """Count the requests for whole shards and for ranges of them, by name."""
        return Counter(key.rsplit("/", 1)[1] for method, key in self.s3.requests if "/train/shard_" in key and method == "GET")

    def whole_shards_sent(self) -> Counter[str]:
        """Count the requests for whole shards, by name."""
        return Counter(key.rsplit("/", 1)[1] for key in self.s3.whole if "/train/shard_" in key)

    def tails(self) -> int:
        with Ledger(self.copy).changing() as state:
            return state.counts["tails"]


@pytest.fixture(scope="session")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_notes(tmp_path_factory.mktemp("published") / "pretrain/notes")


@pytest.fixture
def published(s3: LoopbackS3, notes: Path, tmp_path: Path) -> Published:
    from niels_cache_assets.publish.push import open_local_build, push

    push(open_local_build(notes), ADDRESS)
    s3.requests.clear()
    return Published(s3, notes, tmp_path / "copy")


@pytest.fixture
def fetching_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Download on a thread instead of a process of its own, which takes a second to start."""
    threads: list[threading.Thread] = []
    lock = threading.Lock()

    def start(ledger: Ledger, group: str) -> None:
        with lock, ledger.changing():
            if ledger.is_alive("fetchers", group):
                return
        threads.append(threading.Thread(target=Fetcher(ledger.folder, group).run, daemon=True))
        threads[-1].start()

    monkeypatch.setattr(local_copy, "start_fetcher", start)
    monkeypatch.setattr("niels_cache_runtime.remote.fetcher._LEAVE_SECONDS", 0.05)
    yield
    for copy in list(local_copy._copies):
        copy.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def copied(loader: TokenLoader) -> CopiedWindows:
    """Return the only source of a loader."""
    (source,) = loader._sources.values()
    assert isinstance(source, CopiedWindows)
    return source


def rows(batches: Iterable[Batch], count: int | None = None) -> list[list[int]]:
    """Return the rows of x and the last column of y, which are all tokens of the windows."""
    found = []
    for number, batch in enumerate(batches):
        found += [[*x, y[-1]] for x, y in zip(batch.x.tolist(), batch.y.tolist(), strict=True)]
        if count is not None and number + 1 == count:
            break
    return found


def bytes_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for parent, _, names in os.walk(folder):  # it leaves out a folder that is removed meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


class Watch:
    """The most bytes that a folder had, in looks 50 ms apart."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._end, self.most, self.looks = folder, threading.Event(), 0, 0
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._end.wait(0.05):
            self.most, self.looks = max(self.most, bytes_of(self._folder)), self.looks + 1

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def only_shards(fault: str, *, times: int | None = None, name: str = "/train/shard_") -> Callable[[str, str], str | None]:
    """Return a `decide` of LoopbackS3 that makes a fault for requests of shards, as often as `times`."""
    left = [times]

    def decide(method: str, key: str) -> str | None:
        if name not in key or left[0] == 0:
            return None
        left[0] = None if left[0] is None else left[0] - 1
        return fault

    return decide
