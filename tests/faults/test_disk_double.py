"""Tests of the tools of these tests. A broken call does not happen, and a killed child is noticed."""

import errno
import os
import signal
from pathlib import Path

import pytest

from niels_cache_assets.disk.staging import atomic_directory
from tests.faults import children
from tests.faults.disk import Disk


def write(folder: Path) -> None:
    with atomic_directory(folder / "target") as partial, open(partial / "meta.json", "w") as file:
        file.write("{}")
        file.flush()
        os.fsync(file.fileno())


def write_or_die(folder: Path, at: int) -> None:
    with Disk(folder, at=at).installed():
        write(folder)


def calls_of(folder: Path) -> list[str]:
    with Disk(folder).installed() as disk:
        write(folder)
    return disk.calls


def test_what_changes_files_is_counted_in_order_and_what_reads_or_lies_elsewhere_is_not(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    with Disk(inside).installed() as disk:
        outside.write_text("elsewhere")
        outside.read_text()
        write(inside)
    partial = ".target.partial"
    kinds = [f"mkdir {partial}", f"open {partial}/meta.json", f"write {partial}/meta.json", f"fsync {partial}/meta.json", "rename target"]
    assert list(dict.fromkeys(call for call in disk.calls if call in kinds)) == kinds  # synced once more at the end
    assert not any("outside" in call for call in disk.calls)
    assert disk.calls == calls_of_a_fresh(tmp_path / "again")


def calls_of_a_fresh(folder: Path) -> list[str]:
    folder.mkdir()
    return calls_of(folder)


def test_a_second_build_takes_the_place_by_an_exchange(tmp_path: Path) -> None:
    write(tmp_path)
    assert "exchange target" in calls_of(tmp_path)


def test_each_call_can_be_made_to_fail(tmp_path: Path) -> None:
    failed = 0
    for number, call in enumerate(calls_of(tmp_path)):
        folder = tmp_path / str(number)
        folder.mkdir()
        disk = Disk(folder, at=number, fault=errno.ENOSPC)
        with disk.installed():
            if call in ("mkdir .", "ftruncate .target.lock", "pwrite .target.lock"):  # it is there; a lock needs no name in it
                write(folder)
                continue
            with pytest.raises(Exception, match="No space left"):
                write(folder)
        assert disk.calls[number] == call
        failed += 1
    assert failed > 5


def test_a_process_can_be_killed_at_each_call(tmp_path: Path) -> None:
    calls = calls_of(tmp_path)
    for number in range(0, len(calls), 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert children.run(write_or_die, folder, number) == -signal.SIGKILL
    assert children.run(write_or_die, tmp_path, 10_000) == 0
