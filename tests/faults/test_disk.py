"""A disk that fails at one call of a build. The error names the path, the last good cache stays as it was, and a second run ends well.

A failure names stage, call and errno: `fail_at(stage, number, code, ...)` replays it.
"""

import errno
import os
import shutil
from pathlib import Path

import pytest

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.verify import verify_cache
from tests.faults.disk import Disk
from tests.faults.rebuilds import TARGETS, Rebuilds, in_root, make_rebuilds, visible
from tests.small_project import STAGES

ERRORS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO]
_JOURNAL_BYTES = "3000"  # several records in a small build
_CALLS_IN_CI = 6  # of each stage; all under torture


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Rebuilds:
    return make_rebuilds(tmp_path_factory.mktemp("builds"), tiny_model)


def calls_of(builds: Rebuilds, stage: str, root: Path) -> list[str]:
    project = builds.before(stage, root)
    with Disk(root).installed() as disk:
        STAGES[stage](project)
    assert in_root(root, stage) == in_root(builds.new.root, stage)
    return disk.calls


def fail_at(builds: Rebuilds, stage: str, root: Path, *, number: int, code: int) -> bool:
    """Return whether the build failed because of the failed call. Some calls only remove files, so the build succeeds without them."""
    project = builds.before(stage, root)
    before = visible(root)
    before_others = {name: content for name, content in before.items() if not name.startswith(f"{TARGETS[stage]}/")}
    disk = Disk(root, at=number, fault=code)
    said = None
    with disk.installed():
        try:
            STAGES[stage](project)
        except NielsCacheError as error:
            said = str(error)
    what = f"{stage}, call {number}, {errno.errorcode[code]} ({disk.calls[number]}): {said}"
    if said is not None:
        assert "\n" not in said, what
        assert str(root) in said, what
        assert os.strerror(code) in said, what
    expected, found = in_root(builds.new.root, stage), visible(root)
    changed = {name: content for name, content in found.items() if before.get(name) != content}
    if stage == "index":  # each index by itself is all or nothing
        assert changed.items() <= expected.items(), what
        assert verify_cache(root, quick=True) == [], what
    else:
        assert not changed or found == before_others | expected, what
    STAGES[stage](project)
    assert visible(root) == before_others | expected, what
    left = {path.relative_to(root).as_posix() for path in root.rglob(".*") if not path.name.endswith(".lock")}
    assert not left, f"{what} left {left}"
    return said is not None


@pytest.mark.parametrize("stage", STAGES)
def test_a_disk_that_fails_at_some_call_harms_no_cache(
    builds: Rebuilds, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIELS_CACHE_JOURNAL_BYTES", _JOURNAL_BYTES)
    calls = calls_of(builds, stage, tmp_path / "counted")
    step = max(1, len(calls) // _CALLS_IN_CI)
    failed = 0
    for turn, number in enumerate(range(0, len(calls), step)):
        failed += fail_at(builds, stage, tmp_path / str(number), number=number, code=ERRORS[turn % len(ERRORS)])
    assert failed


@pytest.mark.torture
@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("stage", STAGES)
def test_a_disk_that_fails_at_any_call_harms_no_cache(
    builds: Rebuilds, stage: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIELS_CACHE_JOURNAL_BYTES", _JOURNAL_BYTES)
    calls = calls_of(builds, stage, tmp_path / "counted")
    failed = 0
    for number in range(len(calls)):
        failed += fail_at(builds, stage, tmp_path / "root", number=number, code=code)
        shutil.rmtree(tmp_path / "root")
    assert failed > len(calls) / 3
