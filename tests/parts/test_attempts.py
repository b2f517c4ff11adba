"""Attempts at a part. Any process may continue from any record: the bytes are those of an undisturbed build."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.disk import staging
from niels_cache_assets.disk.attempts import recorded_attempts
from niels_cache_assets.disk.journal import BYTES_VARIABLE, partial_directory, read_journal
from niels_cache_assets.parts.lease import LeaseLostError, StopRequested, request_stop
from niels_cache_runtime.errors import NielsCacheError
from tests.build_cache.test_determinism import digests
from tests.helpers.failing_disk import Disk
from tests.helpers.parts_project import NAME, PartsProject, build

KEY = f"part/{NAME}/part-00001"
VAL = f"val_part/{NAME}"
SETTINGS = "train_tokens = 30000\nval_tokens = 600\nshuffle_buffer = 50"
SLOW = "[cluster]\nrenew_seconds = 1000\nlease_seconds = 3000"  # a process that never renews while the test runs
QUICK = "[cluster]\nrenew_seconds = 0.02\nlease_seconds = 0.1"


class Attempts:
    """A project whose part KEY is built in several attempts. `expected`: the digests of an undisturbed build of all parts."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.project = PartsProject(folder, model)
        self.project.write([9, 2, 700, 14, 7, 1, 21, 900, 800])
        found = self.graph("sound")
        order = found.order()
        for key in (VAL, KEY):
            build(found, order[: order.index(VAL) + (key == KEY)])
            shutil.copytree(found.root, folder / f"before {key.partition('/')[0]}")
        build(found, [KEY])
        self.expected = {key: digests(found[key].directory) for key in (KEY, VAL)}

    def root(self, name: str, key: str = KEY) -> Path:
        """Return a new root with everything that the artifact needs first."""
        folder = self.project.folder
        return Path(shutil.copytree(folder / f"before {key.partition('/')[0]}", folder / name))

    def graph(self, root: str, times: str = QUICK) -> Graph:
        return self.project.graph(3, SETTINGS, root=root, build=times)


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Attempts:
    return Attempts(tmp_path_factory.mktemp("attempts"), tiny_model)


@pytest.fixture(autouse=True)
def _many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BYTES_VARIABLE, "1")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The name of a root that no other test uses."""
    return f"root-{abs(hash(request.node.name))}"


class Killed(Exception):
    pass


def unfinished(found: Graph, key: str = KEY, *, steps: int = 2) -> None:
    """Leave an attempt that stops in the middle."""
    with pytest.raises(Killed):
        materialize(found[key], on_progress=stopping(steps))


def stopping(steps: int) -> Callable[[object], None]:
    """Return a function that raises after so many calls."""
    left = iter(range(steps))

    def stop(progress: object) -> None:
        if next(left, None) is None:
            raise Killed

    return stop


class Frozen:
    """A build in a thread that stands still in the middle, with all of its files open, until `wake`."""

    def __init__(self, found: Graph, key: str = KEY, *, steps: int = 1) -> None:
        self._found, self._key, self._left = found, key, iter(range(steps))
        self._asleep, self._awake = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._result = self._pool.submit(self._build)
        deadline = time.monotonic() + 60
        while not self._asleep.is_set() or read_journal(partial_directory(found[key].directory)) is None:
            assert not self._result.done(), self._result.result()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _build(self) -> Outcome:
        return materialize(self._found[self._key], on_progress=self._freeze)

    def _freeze(self, progress: object) -> None:
        if next(self._left, None) is None and not self._awake.is_set():
            self._asleep.set()
            assert self._awake.wait(60)

    def wake(self) -> Outcome:
        self._awake.set()
        try:
            return self._result.result(60)
        finally:
            self._pool.shutdown()


def clean(found: Graph, key: str = KEY) -> None:
    """Assert that beside the part lie only its lock and its lease."""
    target = found[key].directory
    left = {path.name for path in target.parent.glob(f".{target.name}.*")}
    assert left == {f".{target.name}.lock", f".{target.name}.lease"}
    assert len(recorded_attempts(target)) == 1


@pytest.mark.parametrize("key", [KEY, VAL])
def test_a_frozen_process_that_wakes_up_does_no_harm(attempts: Attempts, name: str, key: str) -> None:
    attempts.root(name, key)
    frozen = Frozen(attempts.graph(name, SLOW), key)
    found = attempts.graph(name)
    outcome = materialize(found[key], wait=True)
    assert outcome.state == "built"
    assert outcome.resumed > 0
    assert digests(outcome.directory) == attempts.expected[key]
    with pytest.raises(LeaseLostError, match=outcome.directory.name):
        frozen.wake()
    assert digests(outcome.directory) == attempts.expected[key]
    assert materialize(found[key]).state == "cache_hit"
    clean(found, key)


@pytest.mark.parametrize("at", ["link", "rename"])
def test_a_process_that_wakes_up_during_the_takeover_does_no_harm(
    attempts: Attempts, name: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts.root(name)
    frozen = Frozen(attempts.graph(name, SLOW), steps=2)
    call, woken = getattr(os, at), []

    def waking(*args: Any) -> None:
        if ".partial" in str(args[0]) and not woken:
            woken.append(None)
            with pytest.raises(LeaseLostError):
                frozen.wake()
        call(*args)

    monkeypatch.setattr(os, at, waking)
    outcome = materialize(attempts.graph(name)[KEY], wait=True)
    assert woken
    assert digests(outcome.directory) == attempts.expected[KEY]


def test_a_process_that_was_frozen_just_before_its_commit_cannot_commit(
    attempts: Attempts, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its check has passed already. The next attempt has moved its directory away, and then there is nothing to commit."""
    attempts.root(name)
    entered: list[Path] = []
    taken: list[Outcome] = []
    commit = staging._replace_target

    def frozen(partial: Path, target: Path) -> None:
        if not entered:
            entered.append(partial)
            taken.append(materialize(attempts.graph(name)[KEY], wait=True))
            assert digests(target) == attempts.expected[KEY]
        commit(partial, target)

    monkeypatch.setattr(staging, "_replace_target", frozen)
    with pytest.raises(LeaseLostError):
        materialize(attempts.graph(name, SLOW)[KEY])
    assert taken[0].resumed > 0
    assert digests(taken[0].directory) == attempts.expected[KEY]
    clean(attempts.graph(name))


def test_a_folder_without_links_gets_copies(attempts: Attempts, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts.root(name)
    found = attempts.graph(name)
    unfinished(found)

    def refused(*args: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    outcome = materialize(found[KEY])
    assert outcome.resumed > 0
    assert digests(outcome.directory) == attempts.expected[KEY]


def test_a_full_disk_during_the_takeover_leaves_the_older_attempt(attempts: Attempts, name: str) -> None:
    root = attempts.root(name)
    found = attempts.graph(name)
    unfinished(found)
    target = found[KEY].directory
    failed = resumed = 0
    for at in range(0, 60, 5):
        with Disk(root, at=at, fault=errno.ENOSPC, lasting=True).installed():
            with pytest.raises((Killed, NielsCacheError)) as caught:
                materialize(found[KEY], on_progress=stopping(0))
            assert "\n" not in str(caught.value)
            failed += caught.type is not Killed
        if not target.exists():
            assert read_journal(partial_directory(target)) is not None, f"call {at}"
    outcome = materialize(found[KEY])
    resumed += outcome.resumed
    assert failed > 5
    assert resumed > 0
    assert digests(target) == attempts.expected[KEY]
    clean(found)


def test_stop_ends_a_build_that_a_retry_resumes(attempts: Attempts, name: str) -> None:
    attempts.root(name)
    found = attempts.graph(name)
    target = found[KEY].directory
    calls = itertools.count()

    def stop(progress: object) -> None:
        if next(calls) == 2:  # the first record is written
            request_stop(target)
        threading.Event().wait(0.1)

    with pytest.raises(StopRequested, match="stop"):
        materialize(found[KEY], on_progress=stop)
    outcome = materialize(found[KEY])
    assert outcome.resumed > 0
    assert digests(target) == attempts.expected[KEY]
    clean(found)
