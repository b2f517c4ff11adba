"""A signal ends a command with its own exit code, at whatever moment it comes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest

from niels_cache_assets.base import processes
from niels_cache_assets.base.processes import InterruptRequested, delay_signals, stop_on_signals
from niels_cache_assets.sources.net import retries as network

TERMINATED = 128 + signal.SIGTERM


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def terminated_after(call: int) -> SimpleNamespace:
    """Return the module `signal`, which sends SIGTERM after so many calls that set a handler or a descriptor."""
    calls = [0]

    def then(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **settings: Any) -> Any:
            found = function(*args, **settings)
            calls[0] += 1
            if calls[0] == call:
                signal.raise_signal(signal.SIGTERM)
            return found

        return called

    return SimpleNamespace(**{**vars(signal), "signal": then(signal.signal), "set_wakeup_fd": then(signal.set_wakeup_fd)})


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("call", range(5))
@pytest.mark.parametrize(("module", "block"), [(processes, delay_signals), (network, lambda: network.retry_for(1.0))])
def test_no_signal_is_lost_while_others_handle_signals(
    monkeypatch: pytest.MonkeyPatch, module: Any, block: Callable[[], AbstractContextManager[Any]], call: int
) -> None:
    def handled() -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Dagster does while a step runs
        with monkeypatch.context() as patch:
            patch.setattr(module, "signal", terminated_after(call))
            with block():
                pass
        signal.raise_signal(signal.SIGTERM)  # if nothing was called so often

    with pytest.raises(InterruptRequested) as raised, stop_on_signals():
        handled()
    assert raised.value.exit_code == TERMINATED


def test_a_block_that_holds_signals_back_is_not_ended_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(processes, "STOP_SECONDS", 0)
    monkeypatch.setattr(processes.os, "_exit", ended.append)

    def held() -> None:
        signal.raise_signal(signal.SIGTERM)
        with delay_signals():
            pass
        assert not processes._may_end.wait(0.1)
        assert ended == []

    with pytest.raises(InterruptRequested), stop_on_signals(), delay_signals():
        held()
