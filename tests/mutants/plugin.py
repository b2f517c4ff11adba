"""A plugin of pytest. With --measured FOLDER, it tells `measuring` which test runs, and records the time of each test. With --chosen FILE,
it runs the tests in this file in their order, and writes the running test to FILE.now.

A fixture of a wider scope runs in one of several tests. It is a context of its own, and FOLDER/tests lists the tests that use it.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

try:
    import measuring  # type: ignore[import-not-found]  # of this environment: `trees` put it there
except ImportError:
    measuring = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measured", type=Path, metavar="FOLDER")
    parser.addoption("--chosen", type=Path, metavar="FILE")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--measured") and measuring is not None:
        config.pluginmanager.register(_Measured(config.getoption("--measured")))
    if config.getoption("--chosen"):
        config.pluginmanager.register(_Chosen(config.getoption("--chosen")))


class _Measured:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contexts = [""]
        self._shared_seconds = 0.0

    @contextmanager
    def _context(self, name: str) -> Iterator[None]:
        self._contexts.append(name)
        measuring.switch(self._folder, name)
        try:
            yield
        finally:
            self._contexts.pop()
            measuring.switch(self._folder, self._contexts[-1])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        begin, self._shared_seconds = time.monotonic(), 0.0
        with self._context(item.nodeid):
            yield
        seconds = time.monotonic() - begin - self._shared_seconds
        self._tell(test=item.nodeid, seconds=seconds, uses=sorted(_shared(item)))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        begin, before = time.monotonic(), self._shared_seconds
        with self._context(_name(fixturedef)):
            try:
                return (yield)
            finally:
                seconds = time.monotonic() - begin
                self._tell(shared=_name(fixturedef), seconds=seconds - (self._shared_seconds - before))
                self._shared_seconds = before + seconds

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self._tell(test=report.nodeid, outcome=report.outcome)

    def pytest_sessionfinish(self) -> None:
        measuring.save()  # before processes of xdist are ended

    def _tell(self, **said: Any) -> None:
        with open(self._folder / "tests" / f"{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")


def _name(fixture: pytest.FixtureDef[Any]) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


def _shared(item: pytest.Item) -> set[str]:
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009  (pytest has no public name for it)
    return {_name(fixture) for each in definitions for fixture in each if fixture.scope != "function"}


class _Chosen:
    def __init__(self, file: Path) -> None:
        self._now = file.with_suffix(".now")
        self._order = {test: place for place, test in enumerate(json.loads(file.read_text(encoding="utf-8")))}
        self._began = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        others = [item for item in items if item.nodeid not in self._order]
        if others:
            config.hook.pytest_deselected(items=others)
        items[:] = sorted((item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began += 1
        self._say(nodeid, failed=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._say(report.nodeid, failed=True)

    def _say(self, test: str, *, failed: bool) -> None:
        written = self._now.with_suffix(".new")
        written.write_text(json.dumps({"test": test, "failed": failed, "began": self._began}), encoding="utf-8")
        written.replace(self._now)
