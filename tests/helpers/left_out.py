"""The tests that a run left out, with the reasons. A section at the end of the run lists them, and an option for CI limits their number.

Long tests are left out unless `-m` names one of their markers, so `-m "not browser"` leaves them out too.
"""

import re
from collections import Counter
from typing import Any

import pytest

LONG = {"torture": "make torture", "walk": "make walks", "cluster": "make cluster", "remote": "make remote"}  # markers, and how to run them
_DESELECTED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--may-skip", metavar="REGEX", help="fail where a test is skipped for a reason that does not match, as CI does")


def pytest_configure(config: pytest.Config) -> None:
    chosen: str = config.option.markexpr
    if not LONG.keys() & set(re.findall(r"\w+", chosen)):
        config.option.markexpr = " and ".join([*([f"({chosen})"] if chosen else []), *(f"not {marker}" for marker in LONG)])


def pytest_deselected(items: list[pytest.Item]) -> None:
    config = items[0].config
    output = getattr(config, "workeroutput", None)  # counts of a process of xdist, whose parent writes the summary
    if output is None:
        config.stash[_DESELECTED] = config.stash.get(_DESELECTED, 0) + len(items)
    else:
        output["deselected"] = output.get("deselected", 0) + len(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_DESELECTED] = getattr(node, "workeroutput", {}).get("deselected", 0)


def _skipped(config: pytest.Config) -> Counter[str]:
    """Return the number of skipped tests for each reason. A file that is skipped as a whole counts as one."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = [] if reporter is None else reporter.stats.get("skipped", [])
    return Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)


def _not_allowed(config: pytest.Config) -> list[str]:
    allowed = config.getoption("--may-skip")
    return [] if allowed is None else [reason for reason in _skipped(config) if not re.search(allowed, reason)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped, deselected = _skipped(config), config.stash.get(_DESELECTED, 0)
    if not skipped and not deselected:
        return
    terminalreporter.section("left out")
    for reason, number in skipped.most_common():
        terminalreporter.line(f"{number:5d}  {reason}")
    if deselected:
        terminalreporter.line(f"{deselected:5d}  deselected (-m {config.option.markexpr!r}); for long tests: {', '.join(LONG.values())}")
    for reason in _not_allowed(config):
        terminalreporter.line(f"failed: --may-skip does not allow {reason!r}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and _not_allowed(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
