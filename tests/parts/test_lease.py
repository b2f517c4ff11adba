"""Leases: one process builds a part, and another one takes over if it dies or stands still. Time is a fake clock, so nothing waits."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.base.processes import Process
from niels_cache_assets.disk.attempts import attempt_record, lease_path, recorded_attempts
from niels_cache_assets.parts import lease as module
from niels_cache_assets.parts.lease import (
    Lease,
    LeaseLostError,
    StopRequested,
    StopRequests,
    hold_lease,
    lease_owner,
    request_stop,
    stop_stamp,
)
from niels_cache_assets.project.running import ClusterSettings
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import BusyError, lock_path
from tests.helpers.failing_disk import Disk

TIMES = ClusterSettings(renew_seconds=15, lease_seconds=120)


class Clock:
    """The clock of the processes under test. `meanwhile` is called in each pause, with the seconds so far."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.began = self.now
        self.pauses = 0
        self.meanwhile: Callable[[float], None] = lambda seconds: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses += 1
        assert self.pauses < 5_000, "waits for ever"
        self.now += seconds
        self.meanwhile(self.now - self.began)

    @property
    def waited(self) -> float:
        return self.now - self.began


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "part-00017"


@contextmanager
def held(target: Path, *, wait: bool = False, log: Callable[[str], None] = lambda line: None, **settings: Any) -> Iterator[Lease]:
    with hold_lease(target, times=TIMES, wait=wait, log=log, **settings) as lease:
        yield lease


@pytest.fixture
def frozen(target: Path) -> Iterator[Lease]:
    """A lease without renewals, whose holder still has its locks."""
    with held(target) as lease:
        yield lease


def renew(lease: Lease) -> None:
    lease._write()


def die(lease: Lease) -> None:
    """Do what the system does when the holder is killed: its locks are gone, and its record stays."""
    lease._ended.set()
    fcntl.flock(lease._descriptor, fcntl.LOCK_UN)


@contextmanager
def dead(target: Path) -> Iterator[Lease]:
    with ExitStack() as stack:
        holder = stack.enter_context(held(target))
        die(holder)
        with open(target.parent / f".{target.name}.lock") as lock:  # another descriptor: the lock of the target is not free
            lock.read()
        yield holder


def test_a_frozen_holder_is_overtaken_and_learns_of_it(target: Path, frozen: Lease, clock: Clock) -> None:
    said: list[str] = []
    frozen.check()
    with held(target, wait=True, log=said.append) as lease:
        assert clock.waited == pytest.approx(120, abs=3)
        assert (lease.attempt, lease.waited) == (2, True)
        lease.check()
        with pytest.raises(LeaseLostError, match=f"part-00017: process {os.getpid()}"):
            frozen.check()
        assert frozen.is_lost()
    assert ["waiting for" in said[0], "taking over" in said[1], len(said)] == [True, True, 2]
    with pytest.raises(LeaseLostError):
        frozen.check()
    waited = clock.waited
    with held(target):  # the frozen process keeps its lock, and blocks only once
        pass
    assert (clock.waited, recorded_attempts(target)) == (waited, [3])


def test_a_holder_that_renews_is_never_overtaken(target: Path, frozen: Lease, clock: Clock) -> None:
    def meanwhile(seconds: float) -> None:
        if seconds > 1_000:
            raise KeyboardInterrupt
        if seconds % 100 < 1:  # late, but in time
            renew(frozen)

    clock.meanwhile = meanwhile
    with pytest.raises(KeyboardInterrupt), held(target, wait=True):
        raise AssertionError
    frozen.check()
    assert recorded_attempts(target) == [1]


def test_without_waiting_a_live_holder_is_reported_after_its_first_renewal(
    target: Path, frozen: Lease, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_another_machine(monkeypatch)
    clock.meanwhile = lambda seconds: renew(frozen) if 15 <= seconds < 16 else None
    with pytest.raises(BusyError) as caught, held(target):
        raise AssertionError
    assert caught.value.writer.pid == os.getpid()
    assert 15 <= clock.waited < 18


def test_without_waiting_an_abandoned_lease_of_another_machine_is_taken_over(
    target: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dead(target):
        on_another_machine(monkeypatch)
        with held(target) as lease:
            assert lease.attempt == 2
            assert clock.waited >= 119


def on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be on another machine from now on, which shares no locks with the holder."""
    here = Process.current()
    monkeypatch.setattr(Process, "current", lambda: replace(here, boot="another kernel"))
    monkeypatch.setattr(module, "holds_lock", lambda target, attempt: False)


def test_a_holder_that_died_on_this_machine_is_noticed_at_once(target: Path, clock: Clock) -> None:
    said: list[str] = []
    with dead(target), held(target, log=said.append) as lease:
        assert lease.attempt == 2
        assert clock.waited == 0
    assert ["has ended" in line for line in said] == [True]


def test_an_attempt_that_has_ended_is_followed_at_once(target: Path, clock: Clock) -> None:
    (target.parent / f".{target.name}.partial.7").mkdir()  # a directory without a lease
    with held(target) as lease:
        assert lease.attempt == 8
    with pytest.raises(ZeroDivisionError), held(target):
        raise ZeroDivisionError
    with held(target) as lease:
        assert lease.attempt == 10
    assert clock.waited == 0
    assert recorded_attempts(target) == [10]
    assert lease_owner(target) is None


def test_without_locks_the_lease_alone_decides(target: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with held(target) as first:
        with held(target, wait=True) as second:
            assert second.attempt == 2
            assert clock.waited >= 119
            with pytest.raises(LeaseLostError):
                first.check()
        with held(target) as third:
            assert third.attempt == 3
    assert lock_path(target).exists()
    assert lease_owner(target) is None


def test_clocks_of_two_machines_are_never_compared(target: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder's wall clock, its monotonic clock and the times of its files are an hour away."""
    shift, now = 3600, time.time()
    monkeypatch.setattr(time, "time", lambda: now + shift)
    clock.now += shift
    with held(target) as holder:
        clock.now -= shift
        path = attempt_record(target, 1)
        os.utime(path, (now + shift, now + shift))

        def meanwhile(seconds: float) -> None:
            if seconds < 200 and seconds % 15 < 1:
                renew(holder)
                os.utime(path, (now + shift, now + shift))

        clock.meanwhile = meanwhile
        with held(target, wait=True) as lease:
            assert lease.attempt == 2
            assert 310 < clock.waited < 330


@pytest.mark.parametrize("content", [b"", b"[]", b'{"attempt": 1}', b"\xff" * 50])
def test_a_record_that_cannot_be_read_is_overtaken_too(target: Path, clock: Clock, content: bytes) -> None:
    lease_path(target).mkdir()
    attempt_record(target, 4).write_bytes(content)
    with held(target, wait=True) as lease:
        assert lease.attempt == 5
        assert clock.waited >= 119


def test_a_full_disk_leaves_no_lease(target: Path) -> None:
    with Disk(target.parent).installed() as disk, held(target):
        calls = len(disk.calls)
    assert calls > 5
    failed = 0
    for at in range(calls):
        with Disk(target.parent, at=at, fault=errno.ENOSPC, lasting=True).installed():
            try:
                with held(target):
                    pass
            except (OSError, NielsCacheError):
                failed += 1
        with held(target) as lease:
            lease.check()
    assert failed > 2


def test_stop_reaches_the_holder_and_those_who_wait(target: Path, clock: Clock) -> None:
    clock.meanwhile = lambda seconds: request_stop(target)
    told: list[str] = []
    quick = ClusterSettings(renew_seconds=0.01, lease_seconds=100)
    with hold_lease(
        target, times=quick, wait=False, log=lambda line: None, stops=StopRequests(on_stop=lambda: told.append("stop"))
    ) as lease:
        with pytest.raises(StopRequested, match="stop"), held(target, wait=True):
            raise AssertionError
        deadline = time.monotonic() + 30
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
        assert told == ["stop"]
        with pytest.raises(StopRequested):
            lease.check_quickly()
        with pytest.raises(StopRequested):
            lease.check()
    assert (lease_path(target) / "stop").exists()
    with held(target) as lease:
        assert not (lease_path(target) / "stop").exists(), "an older stop is ignored and removed"
        lease.check()
    stops = StopRequests(stale=stop_stamp(target))
    request_stop(target)
    with pytest.raises(StopRequested), held(target, stops=stops):  # this process is older than the stop
        raise AssertionError


def test_a_stop_of_one_launch_reaches_only_its_processes(target: Path, clock: Clock) -> None:
    def obeys(launch: str | None, wait: bool) -> bool:
        try:
            with held(target, wait=wait, stops=StopRequests(launch=launch)):
                return False
        except StopRequested:
            return True
        except BusyError:
            return False

    quick = ClusterSettings(renew_seconds=0.01, lease_seconds=100)
    with hold_lease(target, times=quick, wait=False, log=lambda line: None, stops=StopRequests(launch="aa")) as lease:
        clock.meanwhile = lambda seconds: request_stop(target, "bb")
        assert obeys("bb", wait=True)
        assert not obeys(None, wait=False)
        time.sleep(0.05)
        lease.check()
    assert obeys("bb", wait=False), "also a process that begins later"
    assert not obeys("aa", wait=False)
    with hold_lease(target, times=quick, wait=False, log=lambda line: None, stops=StopRequests(launch="aa")) as lease:
        request_stop(target, "aa")
        deadline = time.monotonic() + 30
        while lease._stop is None and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(StopRequested, match="stop-aa"):
            lease.check()


def test_a_lease_that_is_removed_is_lost(target: Path, frozen: Lease) -> None:
    """Even if another process then uses the same number."""
    record = attempt_record(target, 1)
    content = record.read_bytes()
    record.rename(target.parent / "kept")
    assert frozen.is_lost()
    record.write_bytes(content)
    with pytest.raises(LeaseLostError):
        frozen.check()
