"""A disk that fails at one call of a build, or is full or read-only: a clear error, the last good cache stays, and a second run ends well.

A failure of one call names stage, call and errno: `fail_at(stage, number, code, ...)` replays it. The full disk is a tmpfs of a few
kilobytes; its tests are skipped if this process may not mount a tmpfs.
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_assets.cli import main
from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.verify import verify_cache
from tests.helpers.dagster_tools import Project
from tests.helpers.failing_disk import Disk
from tests.helpers.messages import missing
from tests.helpers.rebuilds import TARGETS, Rebuilds, in_root, make_rebuilds, visible
from tests.helpers.small_project import STAGES

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


_PAGE = 4096
_LARGE = "64m"
_ROOMS_IN_CI = (1, 6)  # pages that are left for the build
_HOME_ROOMS_IN_CI = (0, 30)


class SmallDisk:
    """A tmpfs whose size and mode can be changed while files lie on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def change(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.folder)], check=True, capture_output=True)

    def leave_room(self, pages: int) -> None:
        used = int(subprocess.run(["df", "-k", "--output=used", str(self.folder)], check=True, capture_output=True).stdout.split()[-1])
        self.change(f"size={used * 1024 + pages * _PAGE}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "small disk"
    folder.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_LARGE}", "tmpfs", str(folder)], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if mounted.returncode:
        pytest.skip(f"this process may not mount a tmpfs: {mounted.stderr.strip()}")
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # files that a failed test still has open are closed


def build_where_there_is_little_room(builds: Rebuilds, stage: str, disk: SmallDisk, *, pages: int) -> bool:
    """Return whether there was too little room."""
    project = builds.before(stage, disk.folder / str(pages))
    before, expected = visible(project.root), in_root(builds.new.root, stage)
    disk.leave_room(pages)
    said = None
    try:
        STAGES[stage](project)
    except NielsCacheError as error:
        said = str(error)
    if said is not None:
        assert "No space" in said or "make room" in said, said  # it failed, or was refused before it began
        folder = "corpus/.parts/.ranges" if stage == "duplicates" else TARGETS[stage]  # of the hashes, which come first
        assert f"{project.root}/{folder}" in said or f"{project.root}/{TARGETS[stage]}" in said.replace("/.", "/"), said
        changed = {name: content for name, content in visible(project.root).items() if before.get(name) != content}
        assert not changed or (stage == "index" and changed.items() <= expected.items()), said
    disk.change(f"size={_LARGE}")
    STAGES[stage](project)
    assert in_root(project.root, stage) == expected, f"{stage}, {pages} pages: {said}"
    return said is not None


@pytest.mark.parametrize("stage", STAGES)
def test_a_build_on_a_full_disk_fails_clearly_and_goes_on_when_there_is_room(
    builds: Rebuilds, stage: str, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIELS_CACHE_JOURNAL_BYTES", "3000")
    assert any([build_where_there_is_little_room(builds, stage, disk, pages=pages) for pages in _ROOMS_IN_CI])


@pytest.mark.parametrize("stage", STAGES)
def test_a_disk_that_is_mounted_read_only_is_named(builds: Rebuilds, stage: str, disk: SmallDisk) -> None:
    project = builds.before(stage, disk.folder / "root")
    before = visible(disk.folder)
    disk.change("ro")
    with pytest.raises(NielsCacheError, match="Read-only file system") as caught:
        STAGES[stage](project)
    assert str(project.root) in str(caught.value)
    assert "\n" not in str(caught.value)
    disk.change("rw")
    assert visible(disk.folder) == before
    STAGES[stage](project)
    assert in_root(project.root, stage) == in_root(builds.new.root, stage)


def build_all(project: Project, *options: str) -> int:
    config = str(project.folder / "niels_cache.toml")
    return main(["build-all", "--profile", "quickstart", "--config", config, "--cache-dir", str(project.root), "--only", "notes", *options])


def require_one_line_where_there_is_no_room(project: Project, disk: SmallDisk, capfd: pytest.CaptureFixture[str], *, pages: int) -> int:
    """Return the exit code of a build on the same disk as its Dagster home."""
    before = visible(project.root)
    disk.leave_room(pages)
    capfd.readouterr()
    code = build_all(project, "--force")
    disk.change(f"size={_LARGE}")
    said = capfd.readouterr()
    assert "Traceback" not in said.err, said.err
    assert "Exception" not in said.err, said.err
    errors = [line for line in said.err.splitlines() if line.startswith("niels-cache: error: ")]
    assert len(errors) == (code == 1 and "failed" not in said.out), said.err
    for error in errors:
        home = f"niels-cache: error: {project.folder / '.dagster'}"
        assert error.startswith((f"{home}: the database", f"{home}/.runs/")), error
        assert missing(error, "make room", "DAGSTER_HOME") == []
        assert visible(project.root) == before
    assert code in (0, 1), (code, said.err)
    assert verify_cache(project.root) == []
    return code


def disk_with_a_home_and_a_cache(disk: SmallDisk, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DAGSTER_HOME", str(disk.folder / "project/.dagster"))
    project = Project(disk.folder / "project", tiny_model)
    assert build_all(project) == 0
    return project


def test_a_full_disk_that_holds_the_dagster_home_too_is_one_line(
    disk: SmallDisk, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    project = disk_with_a_home_and_a_cache(disk, tiny_model, monkeypatch)
    before = visible(project.root)
    for pages in _HOME_ROOMS_IN_CI:
        assert require_one_line_where_there_is_no_room(project, disk, capfd, pages=pages) == 1, pages
    assert build_all(project, "--force") == 0
    assert visible(project.root) == before


def test_a_first_start_on_a_full_disk_is_one_line_and_the_next_one_works(
    disk: SmallDisk, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(disk.folder / "project/.dagster"))
    project = Project(disk.folder / "project", tiny_model)
    disk.leave_room(20)
    assert build_all(project) == 1
    started, error = capfd.readouterr().err.splitlines()
    assert started == "tokenizer: started"
    assert error.startswith(f"niels-cache: error: {project.folder / '.dagster'}: the database"), error
    disk.change(f"size={_LARGE}")
    assert build_all(project) == 0
