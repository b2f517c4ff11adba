"""The blocks that a local copy fetches ahead of the batches, below tight limits and beside other reads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.publish.push import open_local_build, push
from niels_cache_runtime import Blocks, Copy, NielsCacheError, TokenLoader
from niels_cache_runtime.loader.trace import BatchTrace
from niels_cache_runtime.loader.windows import PretrainWindows
from niels_cache_runtime.remote import eviction as room_of_copy
from niels_cache_runtime.remote import fetcher, local_copy
from niels_cache_runtime.remote.copied_build import CopiedBuild
from niels_cache_runtime.remote.ledger import Ledger
from niels_cache_runtime.remote.local_copy import LocalCopy
from tests.helpers.copied_caches import ADDRESS, OVERHEAD, Published, Watch, copied, rows, wait_until, write_notes
from tests.helpers.loopback_s3 import BUCKET, LoopbackS3

pytestmark = pytest.mark.usefixtures("fetching_thread")

OTHER = f"s3://{BUCKET}/at/other"
SHARDS_OF_BLOCK = 2
SHARD_TOKENS = 1 << 15  # so that the bytes of the ledger are fewer than those of a shard
T = 256


@pytest.fixture(scope="module")
def large_notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_notes(tmp_path_factory.mktemp("published") / "pretrain/notes", shard_tokens=SHARD_TOKENS)


@pytest.fixture
def published(s3: LoopbackS3, large_notes: Path, tmp_path: Path) -> Published:
    push(open_local_build(large_notes), ADDRESS)
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
    batches = iter(published.remote(T=T, limit=room(blocks)))
    next(batches)
    expected = shards_of_run(published.local(T=T), 3)
    wait_until(lambda: len(shards_there(published)) >= fetched)
    assert shards_there(published) == set(expected[:fetched])


@pytest.mark.parametrize(("lanes", "B", "beside"), [(1, 4, 0.5), (1, 6, 0), (2, 4, 1), (2, 6, 0)])  # with B=6, blocks end within a batch
def test_tight_limits_change_no_batch_and_fetch_nothing_twice(published: Published, lanes: int, B: int, beside: float) -> None:
    limit, settings = room(lanes + 1 + beside), {"T": T, "B": B, "lanes": lanes, "epochs": 1}
    local, remote = published.local(**settings), published.remote(**settings, limit=limit)
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


def test_a_process_that_needs_no_block_now_lends_its_room_to_a_slower_one(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both lanes change their block at sample 512. A faster process has the next two blocks, and room for one is left."""
    monkeypatch.setattr(local_copy, "GIVE_UP_SECONDS", 20.0)
    settings = {"T": T, "B": 4, "lanes": 2, "epochs": 1}
    local, states = published.local(**settings), []
    for count in (127, 1):
        rows(local, count)
        states.append(local.state_dict())
    before, after = (TokenLoader.from_state(state, f"{ADDRESS}/train", remote=Copy(dir=published.copy, limit=room(3))) for state in states)
    expected = rows(TokenLoader.from_state(states[0], str(published.folder / "train")), 5)
    with Watch(published.copy) as watch:
        fast = iter(after)
        assert rows(islice(fast, 1)) == expected[4:8]
        slow = iter(before)
        assert rows(islice(slow, 2)) == expected[:8]
        assert rows(islice(fast, 3)) == expected[8:]
    assert watch.most <= room(3)


def test_of_two_processes_that_wait_for_room_the_slower_one_goes_first(published: Published) -> None:
    settings = {"T": T, "B": 4, "lanes": 2, "epochs": 1}
    local, states = published.local(**settings), []
    for count in (126, 1, 1):
        rows(local, count)
        states.append(local.state_dict())
    loaders = [TokenLoader.from_state(state, f"{ADDRESS}/train", remote=Copy(dir=published.copy, limit=room(3))) for state in states]
    expected = rows(TokenLoader.from_state(states[0], str(published.folder / "train")), 6)
    with ThreadPoolExecutor(3) as executor:
        found = list(executor.map(lambda loader: rows(loader, 4), reversed(loaders)))
    assert found == [expected[start : start + 16] for start in (8, 4, 0)]


@pytest.mark.parametrize("B", [6, 600])
def test_a_batch_of_two_sources_finds_room_for_a_block_of_each_and_one_more(published: Published, B: int) -> None:
    """A batch of 600 rows reads more than two blocks."""
    settings: dict[str, Any] = {"T": T, "B": B, "seed": 3, "order": Blocks(shards=SHARDS_OF_BLOCK), "weights": {"a": 1, "b": 2}}
    places: dict[str, Any] = {"remote": Copy(dir=published.copy, limit=room(3))}
    local = TokenLoader(dict.fromkeys("ab", str(published.folder / "train")), **settings)
    remote = TokenLoader(dict.fromkeys("ab", f"{ADDRESS}/train"), **settings, **places)
    count = 4 * local.samples_per_epoch["b"] // B  # epochs end within batches
    assert rows(remote, count) == rows(local, count)


def test_what_others_hold_counts_before_the_first_batch(published: Published, tmp_path: Path) -> None:
    push(open_local_build(write_notes(tmp_path / "pretrain/other", first=7, shard_tokens=SHARD_TOKENS)), OTHER)
    held = LocalCopy(published.copy, limit=room(9))
    held.fetch_split(f"{OTHER}/train")  # 6 blocks
    assert rows(published.remote(T=T, limit=room(8)), 1) == rows(published.local(T=T), 1)
    with pytest.raises(NielsCacheError, match="held"):
        published.remote(T=T, limit=room(7))
    held.close()
    published.remote(T=T, limit=room(7))


def test_a_reader_fails_soon_if_others_hold_the_room(published: Published, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fetcher, "_HOPELESS_SECONDS", 0.5)
    push(open_local_build(write_notes(tmp_path / "pretrain/other", first=7, shard_tokens=SHARD_TOKENS)), OTHER)
    copies = [LocalCopy(published.copy, limit=room(9)) for _ in range(2)]
    builds = [copy.open(address)[0] for copy, address in zip(copies, (ADDRESS, OTHER), strict=True)]
    both, found, are_waiting = threading.Barrier(2), list[str](), threading.Event()

    def decide(method: str, key: str) -> str | None:
        if "/train/shard_" in key:
            are_waiting.wait(60)  # otherwise both may have some shards, and then neither gets the others
        return None

    def fetch(copy: LocalCopy, build: CopiedBuild) -> None:
        require = copy.require
        monkeypatch.setattr(copy, "require", lambda *given, **named: (require(*given, **named), both.wait(20)))
        found.append(said(lambda: copy.fetch_build(build, "train")))

    published.s3.decide = decide
    threads = [threading.Thread(target=fetch, args=given, daemon=True) for given in zip(copies, builds, strict=True)]
    for thread in threads:
        thread.start()
    wait_until(lambda: demands(published) == 2)
    are_waiting.set()
    join(threads)
    assert sorted("limit" in each for each in found) == [False, True]
    assert "" in found


def demands(published: Published) -> int:
    """Return how many readers wait for files."""
    with Ledger(published.copy).changing() as state:
        return sum(bool(reader.demand) for reader in state.readers.values())


def said(call: Callable[[], object]) -> str:
    """Return the message of the error that a call raises, or an empty string."""
    try:
        call()
    except NielsCacheError as error:
        return str(error)
    return ""


def join(threads: Iterable[threading.Thread]) -> None:
    started = [*threads]
    for thread in started:
        if thread.ident is None:
            thread.start()
    for thread in started:
        thread.join(300)
        assert not thread.is_alive()


def test_a_trace_finds_room_while_blocks_are_fetched_ahead(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_of_copy, "TAKEOVER_SECONDS", 1e9)  # so it never takes files by waiting for long
    local, remote = published.local(T=T), published.remote(T=T, limit=room(2))
    expected, found = rows(local, 24), []
    for number, batch in enumerate(islice(remote, 24)):
        found += rows([batch])
        if number % 4 == 0:
            ours, theirs = remote.trace(number + 100), local.trace(number + 100)
            assert isinstance(ours, BatchTrace)
            assert isinstance(theirs, BatchTrace)
            assert (ours.tokens == theirs.tokens).all()
    assert found == expected


def test_a_window_is_read_after_one_that_held_its_next_block(published: Published) -> None:
    """The last window of a block finds the next shard mapped, gives it back, and needs the tail instead."""
    (local,) = published.local(T=T)._sources.values()
    assert isinstance(local, PretrainWindows)
    source = copied(published.remote(T=T, limit=room(3)))
    per_block = int(source.blocks(SHARDS_OF_BLOCK).samples[1])
    for number in (per_block, per_block - 1):  # in the second block, and across its begin
        start = np.array([number * T], dtype=np.int64)
        assert source._read_tokens(start).tolist() == local._read_tokens(start).tolist()
