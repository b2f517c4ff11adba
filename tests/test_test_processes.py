"""The processes of pytest that are forks of one server (tests/workers.py)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import programs, workers


@pytest.mark.parametrize("profile", [None, "torture"])
def test_tests_are_collected_again_for_another_number_of_examples(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config, profile: str | None
) -> None:
    """A test takes its number of examples when its module is imported."""
    assert pytestconfig.getoption("hypothesis_profile", "unknown") != "unknown"
    shared: list[tuple[str, ...]] = []
    monkeypatch.setattr(programs, "share", lambda *servers: shared.extend(servers))
    config = SimpleNamespace(
        args_source=pytest.Config.ArgsSource.TESTPATHS,
        pluginmanager=SimpleNamespace(hasplugin=lambda name: False),
        getoption=lambda name, default: {"hypothesis_profile": profile}[name],
        rootpath=Path.cwd(),
    )
    workers.pytest_xdist_setupnodes(cast(Any, config), [])
    assert len(shared[0]) > 1
    assert ("tests.collected" in shared[0]) == (profile is None)
