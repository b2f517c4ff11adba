"""The choice of files to remove from a local copy. Each file has 10 bytes unless a test says otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from niels_cache_runtime.remote import fetcher
from niels_cache_runtime.remote.eviction import (
    TakeoverTimeout,
    blocks_slower,
    choose_evictions,
    files_over_limit,
    first_demands,
    pinned_bytes,
    unreleasable_bytes,
)
from niels_cache_runtime.remote.fetcher import Fetcher
from niels_cache_runtime.remote.ledger import FileDemand, LedgerEntry, LedgerState, Reader, failure_key

BUILD = f"{'0' * 64}/pretrain/x"


def shard(number: int) -> str:
    return FileDemand(0, 1, True, BUILD, "train", number, number + 1, 0).paths()[0]


def want(number: int, first: int) -> FileDemand:
    """A part of the run that needs one shard for ten samples."""
    return FileDemand(first, first + 10, True, BUILD, "train", number, number + 1, 0)


def reader(**values: Any) -> Reader:
    return Reader(**{"pid": 1, "limit": 1000, "group": "g", "run": "r", **values})


def state(shards: Sequence[int], *readers: Reader, sizes: dict[int, int] | None = None, owned: Sequence[int] = ()) -> LedgerState:
    """A copy with these shards. The first was used the longest time ago."""
    entries = {
        shard(number): LedgerEntry((sizes or {}).get(number, 10), "", owner="g" if number in owned else "", used=used)
        for used, number in enumerate(shards)
    }
    return LedgerState(
        entries=entries,
        builds={},
        addresses={},
        failed={},
        etags={},
        counts={},
        tick=0,
        readers={str(number): each for number, each in enumerate(readers)},
        overhead=5,
    )


def numbers(paths: list[str] | None) -> list[int] | None:
    return None if paths is None else [int(path[-9:-4]) for path in paths]


def test_the_file_that_was_used_the_longest_time_ago_goes_first_if_there_is_no_room() -> None:
    assert choose_evictions(state([1, 2]), 10, 35) == []
    assert numbers(choose_evictions(state([1, 2]), 10, 34)) == [1]
    assert numbers(choose_evictions(state([3, 1, 2]), 20, 35)) == [3, 1]
    assert numbers(choose_evictions(state([3, 1, 2]), 30, 35)) == [3, 1, 2]
    assert choose_evictions(state([3, 1, 2]), 31, 35) is None


def test_a_mapped_file_and_a_download_stay() -> None:
    held = state([1, 2, 3], reader(maps=[shard(1)]), owned=[2])
    assert numbers(choose_evictions(held, 10, 35)) == [3]
    assert choose_evictions(held, 11, 35) is None
    assert numbers(files_over_limit(held, 0)) == [3]


def test_files_that_are_needed_later_go_last_and_never_for_a_download_ahead_of_time() -> None:
    both = state([1, 2], reader(wants=[want(1, 50)], demand=[shard(9)]))
    assert numbers(choose_evictions(both, 10, 25, path=shard(9))) == [2]
    assert numbers(choose_evictions(both, 20, 25, path=shard(9))) == [2, 1]
    needed = state([1], reader(wants=[want(1, 50)]))
    assert choose_evictions(needed, 10, 15) is None
    later = state([1, 2, 3], reader(wants=[want(9, 0), want(2, 20), want(3, 60), want(1, 40)], demand=[shard(9)]))
    assert numbers(choose_evictions(later, 30, 35, path=shard(9))) == [3, 1, 2]


def test_a_slow_reader_of_the_same_run_keeps_what_it_needs_before() -> None:
    fast = reader(position=40, wants=[want(9, 40), want(8, 60)], demand=[shard(9)])
    slow = reader(position=10, wants=[want(1, 10), want(2, 20), want(9, 40), want(8, 60)])
    both = state([1, 2, 8], fast, slow)
    assert numbers(choose_evictions(both, 10, 35, path=shard(9))) == [8]
    assert choose_evictions(both, 20, 35, path=shard(9)) is None


def test_a_read_beside_the_batches_waits_for_no_reader_of_its_run() -> None:
    tracing = reader(position=10, wants=[want(1, 10), want(2, 20), want(9, 40)], demand=[shard(9)], maps=[shard(1)])
    both = state([1, 2], tracing, reader(position=10, wants=[want(1, 10), want(2, 20)], maps=[shard(1)]))
    assert choose_evictions(both, 10, 25, path=shard(9)) is None
    tracing.aside = True
    assert numbers(choose_evictions(both, 10, 25, path=shard(9))) == [2]
    assert choose_evictions(both, 20, 25, path=shard(9)) is None  # the others have mapped the first


def test_a_reader_that_has_waited_for_long_takes_also_what_a_slower_one_needs_but_not_what_it_waits_for() -> None:
    fast = reader(position=40, wants=[want(9, 40)], demand=[shard(9)], starved=True)
    slow = reader(position=10, wants=[want(1, 10), want(2, 20), want(9, 40)])
    assert numbers(choose_evictions(state([1, 2], fast, slow), 20, 25, path=shard(9))) == [2, 1]
    fast = reader(position=40, wants=[want(9, 40)], demand=[shard(9)], starved=True)
    slow = reader(position=10, wants=[want(1, 10)], demand=[shard(1)])
    assert choose_evictions(state([1], fast, slow), 10, 15, path=shard(9)) is None


def test_a_reader_is_impatient_only_while_a_slower_one_stands_still() -> None:
    patience, fast, slow = TakeoverTimeout(), reader(position=40), reader(position=10)
    both = state([1], fast, slow, reader(run="other"))
    assert not patience.is_over(both, fast, 59.0)
    assert patience.is_over(both, fast, 61.0)
    assert patience.is_over(both, fast, 2.0)
    fast.position += 1
    assert patience.is_over(both, fast, 2.0)
    slow.position += 1
    assert not patience.is_over(both, fast, 59.0)
    assert patience.is_over(both, fast, 61.0)


def test_files_that_are_mapped_for_no_part_of_a_run_are_held() -> None:
    run = reader(wants=[want(1, 0)], maps=[shard(1), shard(2)])
    tracing = reader(maps=[shard(4)], aside=True)
    copy = state([1, 2, 3, 4], run, reader(maps=[shard(2), shard(3)]), tracing)
    assert pinned_bytes(copy, []) == 20
    assert pinned_bytes(copy, [shard(3), shard(9)]) == 10


def test_files_of_readers_that_wait_for_room_stay() -> None:
    waiting, running = reader(wants=[want(1, 0)], maps=[shard(1)], demand=[shard(8)]), reader(wants=[want(2, 0)], maps=[shard(2)])
    copy = state([1, 2, 3, 9], waiting, running, reader(maps=[shard(3)]))
    assert unreleasable_bytes(copy) == 20
    running.demand = [shard(9)]  # it is there, so this reader goes on
    assert unreleasable_bytes(copy) == 20
    running.demand = [shard(7)]
    assert unreleasable_bytes(copy) == 30
    copy.failed[failure_key(running.group, shard(7))] = "it ends"
    assert unreleasable_bytes(copy) == 20


def test_another_run_keeps_what_it_reads_now_and_loses_what_it_needs_later() -> None:
    ours = reader(run="ours", wants=[want(9, 0)], demand=[shard(9)])
    other = reader(run="other", position=100, wants=[want(1, 95), want(2, 100), want(3, 110), want(4, 300)])
    both = state([1, 2, 3, 4], ours, other)
    assert numbers(choose_evictions(both, 20, 45, path=shard(9))) == [4, 3]
    assert choose_evictions(both, 30, 45, path=shard(9)) is None


def test_a_large_file_makes_the_others_stay() -> None:
    assert numbers(choose_evictions(state([1, 2, 3], sizes={1: 100}), 50, 125)) == [1]


def test_surplus_takes_needed_files_as_well_but_no_mapped_ones() -> None:
    full = state([1, 2, 3], reader(maps=[shard(1)], wants=[want(1, 0), want(2, 10)]))
    assert files_over_limit(full, 35) == []
    assert numbers(files_over_limit(full, 34)) == [3]
    assert numbers(files_over_limit(full, 1)) == [3, 2]


def test_a_file_counts_from_its_first_need() -> None:
    needs = first_demands(reader(wants=[want(1, 5), want(2, 10), want(1, 30)]))
    assert {path: each.first for path, each in needs.items()} == {shard(1): 5, shard(2): 10}


def test_of_readers_that_hold_and_wait_one_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = [0.0]
    monkeypatch.setattr(fetcher.time, "monotonic", lambda: clock[0])
    first, second = (reader(maps=[shard(number)], demand=[shard(number + 7)], limit=35) for number in (1, 2))
    running = reader(maps=[shard(3)], wants=[want(3, 0)], limit=35)
    copy, serving = state([1, 2, 3], first, second, running), Fetcher(tmp_path, "g")

    def fails_at(seconds: float) -> list[str]:
        clock[0] = seconds
        before, serving._hopeless = serving._hopeless, {}
        for number in (8, 9):
            if failure_key("g", shard(number)) not in copy.failed:
                since = before.get(shard(number))
                serving._fail_if_never_fits(copy, shard(number), 15, 35, stuck=unreleasable_bytes(copy), since=since)
        return [key.removeprefix("g/") for key in copy.failed]

    assert fails_at(0) == fails_at(4) == []
    assert fails_at(6) == [shard(8)]
    assert fails_at(60) == [shard(8)]  # its files go
    copy.failed.clear()
    first.limit = second.limit = 60
    running.demand = [shard(10)]
    assert fails_at(100) == fails_at(104) == []  # the limit is smaller only because of the third reader
    assert fails_at(106) == [] != fails_at(170)


@pytest.mark.parametrize("limit", range(0, 80, 7))
def test_what_is_chosen_is_enough_and_never_too_much(limit: int) -> None:
    tried = 0
    for order in itertools.permutations(range(4)):
        copy = state(order, reader(maps=[shard(2)]), sizes={0: 20})
        gone = choose_evictions(copy, 10, limit)
        free = sum(entry.size for path, entry in copy.entries.items() if path != shard(2))
        tried += 1
        if gone is None:
            assert copy.used_bytes() - free + 10 > limit
            continue
        after = copy.used_bytes() + 10 - sum(copy.entries[path].size for path in gone)
        assert after <= limit
        assert not gone or after + copy.entries[gone[-1]].size > limit
    assert tried == 24


def test_who_is_in_the_way_of_a_slower_reader() -> None:
    fast = reader(position=5)
    slower = [reader(position=4, demand=[shard(7)]), reader(position=4, demand=[shard(1)]), reader(position=4)]
    assert [blocks_slower(state([1], fast, each), fast) for each in slower] == [True, False, False]
    for other in (reader(position=5, demand=[shard(7)]), reader(position=4, demand=[shard(7)], run="another")):
        assert not blocks_slower(state([1], fast, other), fast)
    beside = reader(position=5, run="")
    assert not blocks_slower(state([1], beside, reader(position=4, demand=[shard(7)], run="")), beside)
    failed = state([1], fast, slower[0])
    failed.failed[failure_key("g", shard(7))] = "it ends"
    assert not blocks_slower(failed, fast)
