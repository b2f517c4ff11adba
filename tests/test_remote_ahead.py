"""The blocks that a local copy fetches ahead of the batches, below tight limits and beside other reads."""

from __future__ import annotations

from collections import Counter
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.publish.push import local_build, push
from niels_cache_runtime import TokenLoader
from niels_cache_runtime.loader.trace import BatchTrace
from niels_cache_runtime.loader.windows import PretrainWindows
from niels_cache_runtime.remote import local_copy
from niels_cache_runtime.remote.ledger import Ledger
from tests.copied_caches import ADDRESS, OVERHEAD, Published, Watch, copied, rows, wait_until, write_notes
from tests.loopback_s3 import LoopbackS3

pytestmark = pytest.mark.usefixtures("fetching_thread")

SHARDS_OF_BLOCK = 2
SHARD_TOKENS = 1 << 15  # so that the bytes of the ledger are fewer than those of a shard
T = 256


@pytest.fixture(scope="module")
def large_notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_notes(tmp_path_factory.mktemp("published") / "pretrain/notes", shard_tokens=SHARD_TOKENS)


@pytest.fixture
def published(s3: LoopbackS3, large_notes: Path, tmp_path: Path) -> Published:
    push(local_build(large_notes), ADDRESS)
    s3.requests.clear()
    return Published(s3, large_notes, tmp_path / "copy")


def room(blocks: float) -> int:
    return int(blocks * SHARDS_OF_BLOCK * 2 * SHARD_TOKENS) + OVERHEAD


def shards_there(published: Published) -> set[str]:
    with Ledger(published.copy).changing() as state:
        return {path.rsplit("/", 1)[1] for path in state.entries if "/train/shard_" in path and state.is_ready(path)}


def shards_of_run(loader: TokenLoader, blocks: int) -> list[str]:
    """Return the shards of the first blocks of the run, in the order of their blocks."""
    return [f"shard_{index:05d}.bin" for visit in islice(loader.block_visits(), blocks) for index in visit.files]


@pytest.mark.parametrize(("blocks", "fetched"), [(2, 4), (2.5, 5), (3, 6), (5, 6)])
def test_two_blocks_are_fetched_ahead_as_far_as_they_fit(published: Published, blocks: float, fetched: int) -> None:
    batches = iter(published.remote(T=T, limit_bytes=room(blocks)))
    next(batches)
    expected = shards_of_run(published.local(T=T), 3)
    wait_until(lambda: len(shards_there(published)) >= fetched)
    assert shards_there(published) == set(expected[:fetched])


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("B", [4, 6])  # blocks end between two batches, or within a batch
@pytest.mark.parametrize("beside", [0, 0.5, 1])
def test_tight_limits_change_no_batch_and_fetch_nothing_twice(published: Published, lanes: int, B: int, beside: float) -> None:
    limit, settings = room(lanes + 1 + beside), {"T": T, "B": B, "lanes": lanes, "epochs": 1}
    local, remote = published.local(**settings), published.remote(**settings, limit_bytes=limit)
    needed = Counter(
        f"shard_{index:05d}.bin"
        for visit in takewhile(lambda visit: visit.first < local.samples_per_epoch["notes"], local.block_visits())
        for index in visit.files
    )
    with Watch(published.copy) as watch:
        assert rows(remote) == rows(local)
    assert watch.most <= limit
    sent = published.whole_shards_sent()
    assert len(needed) > 2 * SHARDS_OF_BLOCK
    assert sum(sent.values()) > 2 * SHARDS_OF_BLOCK
    assert {name: count for name, count in sent.items() if count > needed[name] + 1} == {}  # one more for the begin of the next epoch


@pytest.mark.parametrize("B", [6, 600])
def test_a_batch_of_two_sources_finds_room_for_a_block_of_each_and_one_more(published: Published, B: int) -> None:
    """A batch of 600 rows reads more than two blocks."""
    settings: dict[str, Any] = {"T": T, "B": B, "seed": 3, "order": "blocks", "block_shards": SHARDS_OF_BLOCK, "weights": {"a": 1, "b": 2}}
    places: dict[str, Any] = {"local_dir": published.copy, "limit_bytes": room(3)}
    local = TokenLoader(dict.fromkeys("ab", str(published.folder / "train")), **settings)
    remote = TokenLoader(dict.fromkeys("ab", f"{ADDRESS}/train"), **settings, **places)
    count = 4 * local.samples_per_epoch["b"] // B  # epochs end within batches
    assert rows(remote, count) == rows(local, count)


@pytest.mark.parametrize("blocks", [2, 2.5, 3])
def test_a_trace_finds_room_while_blocks_are_fetched_ahead(published: Published, monkeypatch: pytest.MonkeyPatch, blocks: float) -> None:
    monkeypatch.setattr(local_copy, "PATIENCE_SECONDS", 1e9)  # so it never takes files by waiting for long
    local, remote = published.local(T=T), published.remote(T=T, limit_bytes=room(blocks))
    expected, found = rows(local, 24), []
    for number, batch in enumerate(islice(remote, 24)):
        found += rows([batch])
        if number % 4 == 0:
            ours, theirs = remote.trace(number + 100), local.trace(number + 100)
            assert isinstance(ours, BatchTrace)
            assert isinstance(theirs, BatchTrace)
            assert (ours.tokens == theirs.tokens).all()
    assert found == expected


def test_traces_hold_no_more_than_the_last_one_needs(published: Published) -> None:
    remote = published.remote(T=T, limit_bytes=room(4))
    batches = iter(remote)
    next(batches)
    block = set(shards_of_run(published.local(T=T), 1))
    for step in (100, 150, 210, 280):
        remote.trace(step)
    shards = {path.rsplit("/", 1)[1] for path in copied(remote)._in_use if "/train/shard_" in path}
    assert block <= shards
    assert len(shards - block) <= SHARDS_OF_BLOCK


def test_a_window_is_read_after_one_that_held_its_next_block(published: Published) -> None:
    """The last window of a block finds the next shard mapped, gives it back, and needs the tail instead."""
    (local,) = published.local(T=T)._sources
    assert isinstance(local, PretrainWindows)
    source = copied(published.remote(T=T, limit_bytes=room(3)))
    per_block = int(source.blocks(SHARDS_OF_BLOCK).samples[1])
    for number in (per_block, per_block - 1):  # in the second block, and across its begin
        start = np.array([number * T], dtype=np.int64)
        assert source._read_tokens(start).tolist() == local._read_tokens(start).tolist()
