"""A disk that is really full or read-only: a clear error, the last good cache as it was, a build that goes on when there is room.

On a tmpfs of a few kilobytes; skipped where this process may not mount one.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_runtime import NielsCacheError
from tests.faults.rebuilds import TARGETS, Rebuilds, in_root, make_rebuilds, visible
from tests.small_project import STAGES

_PAGE = 4096
_LARGE = "64m"
_ROOMS_IN_CI = (1, 6)  # pages that are left for the build
_ROOMS = range(24)


class SmallDisk:
    """A tmpfs whose size and mode can be changed while files lie on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def change(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.folder)], check=True, capture_output=True)

    def leave_room(self, pages: int) -> None:
        used = int(subprocess.run(["df", "-k", "--output=used", str(self.folder)], check=True, capture_output=True).stdout.split()[-1])
        self.change(f"size={used * 1024 + pages * _PAGE}")


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Rebuilds:
    return make_rebuilds(tmp_path_factory.mktemp("builds"), tiny_model)


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
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # what a failed test still has open goes with it


def build_where_there_is_little_room(builds: Rebuilds, stage: str, disk: SmallDisk, *, pages: int) -> bool:
    """Whether there was too little."""
    project = builds.before(stage, disk.folder / str(pages))
    before, expected = visible(project.root), in_root(builds.new.root, stage)
    disk.leave_room(pages)
    said = None
    try:
        STAGES[stage](project)
    except NielsCacheError as error:
        said = str(error)
    if said is not None:
        assert "No space left on device" in said or "are free; make room" in said, said  # it failed, or was refused before it began
        assert f"{project.root}/{TARGETS[stage]}" in said.replace("/.", "/"), said
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


@pytest.mark.torture
@pytest.mark.parametrize("stage", STAGES)
def test_a_build_on_a_disk_with_any_little_room_does(
    builds: Rebuilds, stage: str, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIELS_CACHE_JOURNAL_BYTES", "3000")
    assert any([build_where_there_is_little_room(builds, stage, disk, pages=pages) for pages in _ROOMS])


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
