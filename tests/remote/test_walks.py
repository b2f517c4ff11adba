"""Training from a bucket with several ranks and workers, with kills and faults. `make remote` runs these."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.publish.push import open_local_build, push
from niels_cache_runtime.remote.ledger import Ledger
from tests.helpers import programs
from tests.helpers.copied_caches import ADDRESS, OVERHEAD, SHARDS, Published, Watch, wait_until, write_notes
from tests.helpers.copied_ranks import hashed
from tests.helpers.loopback_s3 import PASSING, LoopbackS3

pytestmark = pytest.mark.remote

REPOSITORY = Path(__file__).parents[2]
RANKS = 4
SHARD_TOKENS = 1 << 15  # so that the bytes of the ledger are few beside a block
LIMIT = 3 * 2 * 2 * SHARD_TOKENS + 2 * OVERHEAD
SAME: dict[str, Any] = {"T": 256, "B": 4, "seed": 3, "shards": 2}


@pytest.fixture
def published(s3: LoopbackS3, tmp_path: Path) -> Published:
    push(open_local_build(write_notes(tmp_path / "root/pretrain/notes", shard_tokens=SHARD_TOKENS)), ADDRESS)
    s3.requests.clear()
    return Published(s3, tmp_path / "root/pretrain/notes", tmp_path / "copy")


class Run:
    """The ranks of a run from number `first` on, as programs. outs, errors: the files of their batches and their messages."""

    def __init__(self, published: Published, folder: Path, *, ranks: int = RANKS, first: int = 0, **settings: Any) -> None:
        folder.mkdir(parents=True)
        self.outs, self.errors = ([folder / f"{rank}{end}" for rank in range(ranks)] for end in ("", ".err"))
        given = {"sources": f"{ADDRESS}/train", "workers": 2, "batches": None, "passes": 1, "state": None, "pause": 0.0, "context": "fork"}
        given |= {**SAME, "world_size": ranks, "dir": str(published.copy), "limit": LIMIT} | settings
        self.programs = []
        for rank, (out, errors) in enumerate(zip(self.outs, self.errors, strict=True)):
            arguments = "-m", "tests.helpers.copied_ranks", json.dumps({**given, "rank": first + rank, "out": str(out)})
            with errors.open("wb") as stream:
                self.programs.append(programs.Program(*arguments, cwd=REPOSITORY, env=dict(os.environ), streams=(0, 1, stream.fileno())))

    def wait(self) -> list[int]:
        return [program.wait(300) for program in self.programs]

    def wait_for(self, batches: int) -> None:
        """Wait until each rank has taken so many batches."""
        began = time.monotonic()
        while min(len(lines(out)) for out in self.outs) < batches:
            assert time.monotonic() - began < 200
            assert all(program.poll() is None for program in self.programs)
            time.sleep(0.02)


def lines(out: Path) -> list[str]:
    return [line.split()[1] for line in out.read_text().splitlines()] if out.exists() else []


def expected(published: Published, rank: int, *, passes: int = 1, **settings: Any) -> list[str]:
    loader = published.local(**{**SAME, "rank": rank, "world_size": RANKS, "epochs": 1} | settings)
    return [hashed(batch) for _ in range(passes) for batch in loader]


def visits(published: Published, *, passes: int, **settings: Any) -> tuple[Counter[str], int]:
    """Return how often the machine of a rank needs each shard, and how many tails it needs."""
    loader = published.local(**{**SAME, "epochs": 1} | settings)
    end, found, tails = passes * loader.samples_per_epoch["notes"], Counter[str](), 0
    for visit in loader.block_visits():
        if visit.first >= end:
            break
        found.update(f"shard_{index:05d}.bin" for index in visit.files)
        tails += visit.tail_tokens > 0
    return found, tails


def test_four_ranks_with_two_workers_read_epochs_below_the_limit(published: Published, tmp_path: Path) -> None:
    lanes, B = 2, 3  # blocks end within a batch
    with Watch(published.copy) as watch:
        run = Run(published, tmp_path / "run", epochs=1, passes=4, lanes=lanes, B=B)
        assert run.wait() == [0] * RANKS
    for rank, out in enumerate(run.outs):
        assert lines(out) == expected(published, rank, passes=4, lanes=lanes, B=B)
    assert watch.looks > 20
    assert 0 < watch.most <= LIMIT
    needed, tails = visits(published, passes=4, lanes=lanes)
    assert published.tails() <= 2 * tails
    sent = published.whole_shards_sent()
    assert {name: count for name, count in sent.items() if count > needed[name]} == {}
    assert sum(sent.values()) > SHARDS


def slow_shards(method: str, key: str) -> None:
    """Take so long for a shard that a download can be seen."""
    if "/train/shard_" in key:
        time.sleep(0.05)


def wait_for_download(published: Published) -> None:
    wait_until(lambda: any(published.copy.rglob("shard_*.part")))


@pytest.mark.parametrize("killed", [[1], [0, 1, 2, 3]])
def test_killed_ranks_leave_a_copy_that_the_next_ranks_use(published: Published, tmp_path: Path, killed: Sequence[int]) -> None:
    published.s3.decide = slow_shards
    run = Run(published, tmp_path / "run", epochs=1, passes=4, pause=0.01)
    run.wait_for(5)
    wait_for_download(published)
    for rank in killed:
        run.programs[rank].kill()
    if len(killed) < RANKS:  # the other ranks do not need it
        assert [code for rank, code in enumerate(run.wait()) if rank not in killed] == [0] * (RANKS - len(killed))
        for rank in set(range(RANKS)) - set(killed):
            assert lines(run.outs[rank]) == expected(published, rank, passes=4)
        return
    assert run.wait() == [-signal.SIGKILL] * RANKS
    state = published.local(**SAME, world_size=RANKS, epochs=1).state_dict(steps=5)
    with Watch(published.copy) as watch:
        again = Run(published, tmp_path / "again", ranks=2, state=state, world_size=2, B=8)
        assert again.wait() == [0, 0]
    assert 0 < watch.most <= LIMIT
    for rank, out in enumerate(again.outs):
        local = published.local(**{**SAME, "rank": rank, "world_size": 2, "B": 8, "epochs": 1})
        local.load_state_dict(state)
        assert lines(out) == [hashed(batch) for batch in local]
    with Ledger(published.copy).changing() as state_of_copy:
        assert not [path for path, entry in state_of_copy.entries.items() if entry.owner]
    assert list(published.copy.rglob("*.part")) == []


def test_workers_that_are_spawned_share_the_copy(published: Published, tmp_path: Path) -> None:
    run = Run(published, tmp_path / "run", ranks=1, epochs=1, context="spawn")
    assert run.wait() == [0]
    assert lines(run.outs[0]) == expected(published, 0, world_size=1)
    assert sum(published.shards_sent().values()) - published.tails() == SHARDS


def test_a_rank_survives_the_end_of_the_process_that_downloads(published: Published, tmp_path: Path) -> None:
    run = Run(published, tmp_path / "run", ranks=1, epochs=1, passes=4, pause=0.005)
    run.wait_for(5)
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"niels_cache_runtime.remote.fetcher" in words and os.fsencode(published.copy) in words:
            os.kill(int(process.name), signal.SIGKILL)
            found += 1
    assert found == 1
    assert run.wait() == [0]
    assert lines(run.outs[0]) == expected(published, 0, passes=4, world_size=1)


def test_failing_slow_and_cut_requests_change_no_batch(published: Published, tmp_path: Path) -> None:
    dice, lock = random.Random(1), threading.Lock()
    made: Counter[str] = Counter()

    def decide(method: str, key: str) -> str | None:
        with lock:
            chance = dice.random()
            fault = dice.choice([*PASSING, "slow"]) if chance < 0.1 and "/train/" in key else None
            made[str(fault)] += 1
        if fault == "slow":
            time.sleep(1)
            return None
        return fault

    published.s3.decide = decide
    run = Run(published, tmp_path / "run", ranks=2, epochs=1, passes=5)
    assert run.wait() == [0, 0]
    assert sum(made.values()) - made["None"] > 2
    for rank, out in enumerate(run.outs):
        assert lines(out) == expected(published, rank, passes=5, world_size=2)


def test_two_machines_fetch_the_cache_about_once_together(published: Published, tmp_path: Path) -> None:
    """The second of three blocks is at the cut between the lanes, and both machines need it."""
    settings: dict[str, Any] = {"lanes": 2, "machines": 2, "world_size": 4, "epochs": 1, "shards": 4}
    machines = [replace(published, copy=tmp_path / f"copy{number}") for number in range(2)]
    runs = [
        Run(each, tmp_path / f"run{number}", ranks=2, first=2 * number, limit=2 * LIMIT, **settings) for number, each in enumerate(machines)
    ]
    assert [run.wait() for run in runs] == [[0, 0], [0, 0]]
    for number, run in enumerate(runs):
        for rank, out in enumerate(run.outs):
            assert lines(out) == expected(published, 2 * number + rank, **settings)
    alone, _ = visits(published, passes=1, lanes=2, shards=4)
    tails = sum(visits(published, passes=1, **settings, rank=2 * number)[1] for number in range(2))
    sent, ranges = sum(published.shards_sent().values()), sum(each.tails() for each in machines)
    assert 0 < ranges <= 2 * tails
    assert SHARDS < sent - ranges <= sum(alone.values()) + settings["shards"]
