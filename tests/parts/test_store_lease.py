"""Leases in a store: conditional writes, the store's time, and what the loser of a lease notices."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.parts.lease import LeaseLostError, StopRequested, StopRequests, request_stop
from niels_cache_assets.parts.store import read_small
from niels_cache_assets.parts.store_lease import StoreLease, hold_store_lease
from niels_cache_assets.project.running import ClusterSettings
from niels_cache_runtime.format.commit import BusyError
from niels_cache_runtime.remote import store as store_module
from niels_cache_runtime.remote.store import RemoteError, Store, open_store
from tests.helpers.loopback_s3 import BUCKET, LoopbackS3

ADDRESS = f"s3://{BUCKET}/web"
KEY = "leases/part-00001.json"
STILL = ClusterSettings(renew_seconds=1_000, lease_seconds=3_000)  # never renewed in a test
LIVELY = ClusterSettings(renew_seconds=0.2, lease_seconds=30)


@pytest.fixture
def store(s3: LoopbackS3) -> Store:
    return open_store(ADDRESS)


@pytest.fixture
def hold(store: Store, tmp_path: Path) -> Callable[..., AbstractContextManager[StoreLease]]:
    def hold(times: ClusterSettings = STILL, *, wait: bool = False, **settings: Any) -> AbstractContextManager[StoreLease]:
        return hold_store_lease(store, KEY, tmp_path / "part-00001", times=times, wait=wait, **{"log": lambda line: None, **settings})

    return hold


Hold = Callable[..., AbstractContextManager[StoreLease]]


def body(store: Store) -> dict[str, Any]:
    found = read_small(store, KEY)
    assert found is not None
    return dict(json.loads(found.content))


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the clock of the store. The lease of this test was written just before."""
    now = Store.now
    monkeypatch.setattr(Store, "now", lambda store, key: now(store, key) + timedelta(seconds=seconds))


def test_a_lease_is_given_back_by_a_swap_and_the_next_has_another_epoch(store: Store, s3: LoopbackS3, hold: Hold) -> None:
    with hold() as first:
        first.check()
        assert (body(store)["ended"], body(store)["token"], first.attempt) == (None, first.folder.partition("-")[2], 1)
    assert body(store)["ended"] == "done"
    with hold() as second:
        assert second.attempt == 2
        assert second.folder != first.folder
    assert not any(method == "DELETE" for method, _ in s3.requests)


def test_a_silent_holder_is_overtaken_by_the_time_of_the_store(store: Store, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with ExitStack() as stack:
        frozen = stack.enter_context(hold())
        later(monkeypatch, 3_002)
        with hold(log=said.append) as lease:
            assert lease.attempt == 2
            with pytest.raises(LeaseLostError, match=r"part-00001\.json: process"):
                frozen.check()
            stack.close()  # the end of the loser does not free the lease
            lease.check()
            assert body(store)["attempt"] == lease.attempt
    assert ["taking over" in line for line in said] == [True]


def test_a_lease_is_not_over_before_its_time_and_renewals_show_that_its_holder_lives(
    store: Store, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hold(LIVELY):
        later(monkeypatch, 29)
        with pytest.raises(BusyError), hold(LIVELY):
            raise AssertionError
        assert body(store)["seconds"] > 0


def test_a_lost_answer_is_read_back_and_counts_as_success(store: Store, s3: LoopbackS3, hold: Hold) -> None:
    lost: list[str] = []

    def decide(method: str, key: str) -> str | None:
        if method == "PUT" and "/leases/" in key and len(lost) < 2:
            lost.append(key)
            return "lost"
        return None

    s3.decide = decide
    with hold() as lease:
        assert (lease.attempt, len(lost)) == (1, 1)
        lease._write()
        lease.check()
        assert (body(store)["seconds"] > 0, len(lost)) == (True, 2)


def test_a_renewal_whose_answer_and_reading_were_lost_does_not_lose_the_lease(
    store: Store, s3: LoopbackS3, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_WAITS", ())
    with hold() as lease:
        s3.decide = lambda method, key: "lost" if method == "PUT" else "denied"
        with pytest.raises(RemoteError):
            lease._write()
        s3.decide = lambda method, key: None
        seconds = body(store)["seconds"]
        lease._write()
        lease.check()
        assert body(store)["seconds"] > seconds > 0
    assert body(store)["ended"] == "done"


def test_a_store_that_does_not_answer_is_asked_again_soon(s3: LoopbackS3, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "QUICK_SECONDS", 1)
    silent = {"PUT", "GET"}

    def decide(method: str, key: str) -> str | None:
        if KEY in key and method in silent:
            silent.remove(method)
            time.sleep(4)
        return None

    s3.decide = decide
    began = time.monotonic()
    with hold_store_lease(open_store(ADDRESS), KEY, Path("part-00001"), times=STILL, wait=False, log=print):
        assert (silent, time.monotonic() - began < 3.9) == (set(), True)


def test_a_request_to_stop_ends_the_holder_and_those_who_wait(hold: Hold, tmp_path: Path) -> None:
    stopped: list[bool] = []
    with hold(LIVELY, stops=StopRequests(on_stop=lambda: stopped.append(True))) as lease:
        request_stop(tmp_path / "part-00001")
        deadline = time.monotonic() + 10
        while not stopped and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(StopRequested):
            lease.check_quickly()
        with pytest.raises(StopRequested), hold(wait=True, stops=StopRequests()):
            raise AssertionError


@pytest.mark.parametrize(
    ("fault", "named"),
    [("unconditional", "If-None-Match"), ("unconditional if-none-match", "If-None-Match"), ("unconditional if-match", "If-Match")],
)
def test_a_store_that_ignores_a_condition_is_refused_with_its_name(fault: str, named: str, s3: LoopbackS3, store: Store) -> None:
    s3.decide = lambda method, key: fault if method == "PUT" else None
    with pytest.raises(RemoteError, match=f"ignores {named}"):
        store.require_conditional_put()
    s3.decide = lambda method, key: None
    store.require_conditional_put()
    store.require_conditional_put()
    assert store_module._PROBE in {each.key for each in store.list()}
