"""Directories that appear whole or not at all, partial directories that the next build resumes, and the lock for one build at a time."""

import errno
import fcntl
import json
import multiprocessing
import os
import signal
from pathlib import Path
from unittest import mock

import pytest

from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.disk import staging as directories
from niels_cache_assets.disk.journal import JOURNAL_NAME, SCRATCH_NAME, partial_directory
from niels_cache_assets.disk.staging import atomic_directory, sweep_leftovers
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format import commit
from niels_cache_runtime.format.commit import BusyError, LockOwner, hold_lock, lock_owner, lock_path
from tests.helpers import children
from tests.helpers.artifacts import Line
from tests.helpers.failing_disk import Disk
from tests.helpers.messages import missing


@pytest.fixture(autouse=True)
def no_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing need reach the disk, so nothing waits for it: each of the many builds would for a tenth of a second."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Stopped(BaseException):
    """An error that does not derive from Exception, as those of interrupts."""


def build(target: Path, content: str) -> None:
    """Make a resumable build with a file in a folder. It does not look at files of an earlier build."""
    with atomic_directory(target, resumable=True) as partial:
        for path in (partial / "train", partial / SCRATCH_NAME, partial / "meta.json"):
            commit.remove(path)
        (partial / "train").mkdir()
        (partial / SCRATCH_NAME).mkdir()
        write(partial / SCRATCH_NAME / "spool", content)
        write(partial / JOURNAL_NAME, "{}")
        write(partial / "train/shard_00000.bin", content)
        write(partial / "meta.json", content)


def write(path: Path, content: str) -> None:
    with open(path, "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def files(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def whole(content: str) -> dict[str, str]:
    return {"meta.json": content, "train/shard_00000.bin": content}


def begin(target: Path, error: BaseException, *, journal: bool) -> None:
    with atomic_directory(target, resumable=True) as partial:
        write(partial / "begun", "half")
        if journal:
            write(partial / JOURNAL_NAME, "{}")
        raise error


def leave(target: Path, error: BaseException, *, journal: bool) -> None:
    """A build that ends by `error`."""
    with pytest.raises(type(error)):
        begin(target, error, journal=journal)


@pytest.mark.parametrize("error", [NielsCacheError("no"), Stopped()])
def test_a_build_with_a_journal_is_kept_for_the_next_whatever_ended_it(tmp_path: Path, error: BaseException) -> None:
    leave(tmp_path / "x", error, journal=True)
    assert files(partial_directory(tmp_path / "x")) == {"begun": "half", JOURNAL_NAME: "{}"}
    with atomic_directory(tmp_path / "x", resumable=True) as partial:
        assert files(partial) == {"begun": "half", JOURNAL_NAME: "{}"}
        write(partial / f"{JOURNAL_NAME}.new", "half a record")
    assert files(tmp_path / "x") == {"begun": "half"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "x"]


def test_everything_is_on_the_disk_before_it_takes_its_place_whoever_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    before: list[set[int]] = []
    fsync, take_place = os.fsync, directories._replace_target
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.add(os.fstat(descriptor).st_ino), fsync(descriptor))[1])
    monkeypatch.setattr(directories, "_replace_target", lambda *paths: (before.append(set(synced)), take_place(*paths))[1])
    with atomic_directory(tmp_path / "x") as partial:
        (partial / "folder").mkdir()
        (partial / "folder/plain").write_bytes(b"not synced by whoever wrote it")
        (partial / "meta.json").write_text("{}")
    assert {path.stat().st_ino for path in (tmp_path / "x", *(tmp_path / "x").rglob("*"))} <= before[0]
    assert len(before[0]) == 4


def test_a_build_without_a_journal_or_that_none_goes_on_with_vanishes(tmp_path: Path) -> None:
    leave(tmp_path / "x", KeyboardInterrupt(), journal=False)
    assert not partial_directory(tmp_path / "x").exists()
    leave(tmp_path / "x", KeyboardInterrupt(), journal=True)
    with atomic_directory(tmp_path / "x") as partial:
        assert files(partial) == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "x"]


def test_a_first_build_that_the_disk_fails_says_that_nothing_is_there_and_what_of_it_is_kept(tmp_path: Path) -> None:
    def failing(target: Path, *, journal: bool) -> str:
        with pytest.raises(NielsCacheError) as caught:
            begin(target, OSError(errno.EIO, "Input/output error", str(target / "shard")), journal=journal)
        return str(caught.value).partition("system's log; ")[2]

    new, old = tmp_path / "new", tmp_path / "old"
    said = failing(new, journal=False)
    assert missing(said, "nothing", str(new)) == []
    assert "kept" not in said
    assert missing(failing(new, journal=True), "nothing", str(new), "6 bytes", "kept") == []
    build(old, "one")
    assert missing(failing(old, journal=False), "unchanged", str(old)) == []


def calls_of_a_rebuild(folder: Path) -> list[str]:
    build(folder / "x", "old")
    with Disk(folder).installed() as disk:
        build(folder / "x", "new")
    return disk.calls


def rebuild_or_die(folder: Path, at: int, aside: bool) -> None:
    with mock.patch.object(os, "fsync", return_value=None), Disk(folder, at=at).installed() as disk:
        if aside:
            commit.swap_paths = lambda first, second: disk.count("exchange", second) or False  # type: ignore[assignment]
        build(folder / "x", "new")


@pytest.mark.parametrize("aside", [False, True])
def test_killed_at_any_call_there_is_a_whole_cache_and_the_next_build_ends_well(tmp_path: Path, aside: bool) -> None:
    (tmp_path / "calls").mkdir()
    end = next(number for number, call in enumerate(calls_of_a_rebuild(tmp_path / "calls")) if call.endswith(".x.journal"))
    killed, without = 0, 0
    for number in range(end, end + 40):  # the end of the build, from when its journal goes
        folder = tmp_path / str(number)
        folder.mkdir()
        build(folder / "x", "old")
        code = children.run(rebuild_or_die, folder, number, aside)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
        if (folder / "x").exists():
            assert files(folder / "x") in (whole("old"), whole("new"))
        else:
            assert aside, "only a system that cannot exchange has an instant without"
            without += 1
            assert files(folder / ".x.old") == whole("old")
        sweep_leftovers(folder / "x")
        assert files(folder / "x") in (whole("old"), whole("new"))
        assert not list(folder.glob(".x.old")) + list(folder.glob(".x.journal"))
        build(folder / "x", "new")
        assert files(folder / "x") == whole("new")
        assert sorted(path.name for path in folder.iterdir()) == [".x.lock", "x"]
    assert code == 0
    assert killed >= 8
    assert without == aside


def test_leftovers_are_swept_only_where_nobody_builds(tmp_path: Path) -> None:
    build(tmp_path / "x", "one")
    partial = partial_directory(tmp_path / "x")
    partial.mkdir()
    with hold_lock(tmp_path / "x"):
        sweep_leftovers(tmp_path / "x")
        assert partial.exists()
    sweep_leftovers(tmp_path / "x")
    assert not partial.exists()
    leave(tmp_path / "x", KeyboardInterrupt(), journal=True)
    sweep_leftovers(tmp_path / "x")
    assert files(partial) == {"begun": "half", JOURNAL_NAME: "{}"}


def test_what_cannot_be_swept_is_told_and_no_cache_hit_fails_for_it(tmp_path: Path) -> None:
    materialize(Line(folder=tmp_path / "x"))
    partial_directory(tmp_path / "x").mkdir()
    told: list[str] = []
    with Disk(tmp_path, at=0, fault=errno.EROFS).installed():
        assert materialize(Line(folder=tmp_path / "x"), log=told.append).state == "cache_hit"
    assert len(told) == 1
    assert os.strerror(errno.EROFS) in told[0]


def hold(target: Path, ready: "multiprocessing.synchronize.Event", end: "multiprocessing.synchronize.Event") -> None:
    with hold_lock(target):
        ready.set()
        end.wait()


def test_a_second_build_says_who_holds_the_lock_and_a_killed_owner_holds_it_no_more(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    ready, end = context.Event(), context.Event()
    child = context.Process(target=hold, args=(tmp_path / "x", ready, end))
    child.start()
    assert ready.wait(60)
    writer = lock_owner(tmp_path / "x")
    assert writer is not None
    assert (writer.pid, writer.host) == (child.pid, os.uname().nodename)
    with pytest.raises(BusyError, match=rf"/x: another build .* process {child.pid} on \S+ since \d+-\S+Z \(.+\); wait"):
        build(tmp_path / "x", "one")
    child.kill()
    child.join()
    assert lock_path(tmp_path / "x").read_bytes()  # it could not take its name away
    assert lock_owner(tmp_path / "x") is None
    build(tmp_path / "x", "one")
    assert lock_path(tmp_path / "x").read_bytes() == b""


@pytest.mark.parametrize(
    "stale",
    [
        b"not JSON",
        b"[" * 4000,
        b'{"pid": 1}',
        json.dumps({"pid": 2**40, "host": os.uname().nodename, "since": "then", "command": "niels-cache"}).encode(),
        json.dumps({"pid": 1, "host": "\x1b[31m", "since": "", "command": ""}).encode(),
    ],
)
def test_what_the_lock_of_another_says_is_not_believed_where_it_cannot_be(tmp_path: Path, stale: bytes) -> None:
    lock_path(tmp_path / "x").write_bytes(stale)
    assert lock_owner(tmp_path / "x") is None
    with open(lock_path(tmp_path / "x")) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert lock_owner(tmp_path / "x") == commit.UNKNOWN
        with pytest.raises(BusyError, match="unknown process"):
            build(tmp_path / "x", "one")
    build(tmp_path / "x", "one")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused_with_advice(tmp_path: Path, code: int) -> None:
    build(tmp_path / "x", "one")
    refused = mock.patch.object(commit.fcntl, "flock", side_effect=OSError(code, os.strerror(code)))
    with refused, pytest.raises(NielsCacheError, match=rf"{tmp_path}: .* no locks .* local disk"):
        build(tmp_path / "x", "two")
    assert files(tmp_path / "x") == whole("one")


def test_a_lock_that_someone_deleted_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def deleted_once(path: Path) -> int:
        descriptor = open_lock(path)
        if not opened:
            path.unlink()
        opened.append(path)
        return descriptor

    open_lock = commit._open
    monkeypatch.setattr(commit, "_open", deleted_once)
    with hold_lock(tmp_path / "x"):
        assert len(opened) == 2
        assert lock_owner(tmp_path / "x") == LockOwner(**json.loads(lock_path(tmp_path / "x").read_bytes()))
