"""A plugin of pytest. With --measured FOLDER, it tells `measuring` which test runs, and records the time of each test. With --chosen FILE,
it runs the tests in this file in their order, ends a test that hangs, and writes the running test to FILE.now.

A fixture of a wider scope runs in one of several tests. It is a context of its own, and FOLDER/tests lists the tests that use it.
"""

import faulthandler
import json
import os
import time
from collections import defaultdict
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
        self._context, self._since = "", time.monotonic()
        self._seconds: dict[str, float] = defaultdict(float)
        self._uses: dict[str, list[str]] = {}
        self._not_passed: dict[str, list[str]] = {"failed": [], "skipped": []}

    def _switch(self, context: str) -> None:
        now = time.monotonic()
        self._seconds[self._context] += now - self._since
        self._context, self._since = context, now
        measuring.switch(self._folder, context)

    @contextmanager
    def _inside(self, context: str) -> Iterator[None]:
        before = self._context
        self._switch(context)
        try:
            yield
        finally:
            self._switch(before)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009  (pytest has no public name for it)
        self._uses[item.nodeid] = sorted({_name(each) for some in definitions for each in some if each.scope != "function"})
        with self._inside(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        with self._inside(_name(fixturedef)):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._not_passed[report.outcome].append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        measuring.save()  # before processes of xdist are ended
        said = {"seconds": self._seconds, "uses": self._uses, **self._not_passed}
        (self._folder / "tests" / f"{os.getpid()}.json").write_text(json.dumps(said), encoding="utf-8")


def _name(fixture: pytest.FixtureDef[Any]) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


class _Chosen:
    def __init__(self, file: Path) -> None:
        said = json.loads(file.read_text(encoding="utf-8"))
        self._now = file.with_suffix(".now")
        self._seconds: dict[str, float] = said["seconds"]
        self._log = open(said["log"], "a", encoding="utf-8")  # noqa: SIM115  (it stays open)
        self._began = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        order = {test: place for place, test in enumerate(self._seconds)}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began += 1
        written = self._now.with_suffix(".new")
        written.write_text(json.dumps({"test": nodeid, "began": self._began}), encoding="utf-8")
        written.replace(self._now)
        faulthandler.dump_traceback_later(self._seconds[nodeid], exit=True, file=self._log)
