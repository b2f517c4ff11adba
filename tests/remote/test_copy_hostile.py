"""A local copy in bad places, beside other readers, and after ends at bad times."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.errors import NotWrittenError
from niels_cache_runtime.format.safe_open import OwnedFolder
from niels_cache_runtime.remote import fetcher, ledger
from niels_cache_runtime.remote.ledger import Ledger, ProcessFile, Reader
from niels_cache_runtime.remote.maintenance import check, trim
from niels_cache_runtime.remote.store import RemoteError, Store
from tests.helpers.copied_caches import (
    SHARDS,
    Published,
    Watch,
    bytes_of,
    room,
    rows,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("fetching_thread")


def shard_of(published: Published, number: int) -> Path:
    (path,) = published.copy.rglob(f"shard_{number:05d}.bin")
    return path


def test_several_shards_are_fetched_at_a_time_and_the_next_block_ahead(published: Published) -> None:
    two, left = threading.Barrier(2), [2]

    def decide(method: str, key: str) -> str | None:
        if "/train/shard_" in key and left[0] > 0:
            left[0] -= 1
            two.wait(60)  # until another request of a shard is here
        return None

    published.s3.decide = decide
    remote = published.remote(limit=room(4))
    iterator = iter(remote)
    next(iterator)
    assert not two.broken
    ahead = [visit.files for visit in islice(remote.block_visits(), 2)]
    assert len(set(ahead)) == 2
    wait_until(lambda: all(any(published.copy.rglob(f"shard_{number:05d}.bin")) for files in ahead for number in files))


def test_a_tail_of_another_object_is_refused(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store without the recorded hash has only the ETag."""
    read_range = Store.read_range
    monkeypatch.setattr(Store, "read_range", lambda self, *given, **more: read_range(self, *given, **more)._replace(sha256=None))
    settings: dict[str, Any] = {"epochs": 1, "shuffle": False}
    assert rows(published.remote(**settings)) == rows(published.local(**settings))
    gc.collect()
    assert trim(published.copy, 0) > 0
    with Ledger(published.copy).changing() as state:
        assert len(state.etags) > 0
        state.etags = dict.fromkeys(state.etags, '"another"')
    with pytest.raises(RemoteError, match="another object"):
        rows(published.remote(**settings))


def test_two_loaders_of_one_process_share_a_folder(published: Published) -> None:
    seeds, limit = (3, 4), room(6)
    remotes = [iter(published.remote(seed=seed, limit=limit)) for seed in seeds]
    locals_ = [iter(published.local(seed=seed)) for seed in seeds]
    with Watch(published.copy) as watch:
        for turn in range(40):
            for remote, local in zip(remotes, locals_, strict=True):
                assert rows(islice(remote, 5)) == rows(islice(local, 5))
            if turn % 8 == 0:
                assert mapped_files(published) > 0
                watch.most = max(watch.most, bytes_of(published.copy))
    assert 0 < watch.most <= limit


def mapped_files(published: Published) -> int:
    """Return how many files live readers have mapped. Each of them must be there."""
    with Ledger(published.copy).changing() as state:
        paths = {path for reader in state.readers.values() for path in reader.maps}
        assert [path for path in paths if not (published.copy / path).is_file()] == []
    return len(paths)


@pytest.mark.parametrize("name", ["lock", "readers"])
def test_a_folder_that_cannot_be_written_is_named_in_one_line(published: Published, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = os.open

    def refusing(path: Any, flags: int, *others: Any, dir_fd: int | None = None) -> int:
        whole = path if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        if name in Path(whole).parts and flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *others, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(NotWrittenError, match="Read-only") as raised:
        published.remote()
    assert str(published.copy) in str(raised.value)
    assert "\n" not in str(raised.value)


# ends at bad times


def test_a_kill_between_the_new_name_and_the_record_fetches_the_file_again(published: Published) -> None:
    expected, limit = rows(published.local(epochs=1)), room(8)
    assert rows(published.remote(epochs=1, limit=limit)) == expected
    gc.collect()
    place = shard_of(published, 5)
    with Ledger(published.copy).changing() as state:
        state.entries[str(place.relative_to(published.copy))].owner = "a fetcher that was killed"
    published.s3.requests.clear()
    assert rows(published.remote(epochs=1, limit=limit)) == expected
    assert published.shards_sent() == {"shard_00005.bin": 1}


@pytest.mark.parametrize("content", [b"", b"{", b'{"pid": 1}'])
def test_a_record_of_a_reader_that_was_cut_protects_every_file(published: Published, content: bytes) -> None:
    loader = published.remote(epochs=1)
    assert rows(loader) == rows(published.local(epochs=1))
    record = Ledger(published.copy)
    presence = ProcessFile(record, "readers")
    os.pwrite(presence.descriptor, content, 0)
    with record.changing() as state:
        assert len(state.entries) > 1
        protected = state.mapped() == set(state.entries)
        assert protected is bool(content)
        presence.end()


def test_a_record_that_a_full_disk_cuts_is_an_error(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Ledger(published.copy)
    record.make()
    presence, write = ProcessFile(record, "readers"), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, offset: write(descriptor, content[:-1], offset))
    with pytest.raises(NotWrittenError, match="No space"):
        presence.write(Reader(pid=1, limit=1, group="g"))
    presence.end()


# files of strangers in a shared folder


def shard_place(published: Published, number: int = 0) -> Path:
    """Return the place of a shard in the copy, with its folder."""
    content = json.loads((published.folder / "meta.json").read_text())["content_sha256"]
    place = published.copy / f"builds/{content}/pretrain/notes/train/shard_{number:05d}.bin"
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def plant(kind: str, place: Path, victim: Path) -> None:
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "link to nothing":
        place.symlink_to(victim.with_name("made by the link"))
    elif kind == "hard link":
        os.link(victim, place)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()


PLANTED = ["link", "link to nothing", "hard link", "pipe", "folder"]


@pytest.mark.parametrize(("kind", "ending"), [*((kind, "") for kind in PLANTED), ("link", ".part"), ("hard link", ".part")])
def test_what_is_planted_in_the_place_of_a_shard_is_neither_written_nor_read(
    published: Published, tmp_path: Path, kind: str, ending: str
) -> None:
    (outside := tmp_path / "outside").mkdir()
    victim = outside / "precious"
    victim.write_bytes(b"precious")
    place = shard_place(published)
    plant(kind, place.with_name(place.name + ending), victim)
    with pytest.raises(NielsCacheError, match=place.name):
        rows(published.remote(epochs=1, limit=room(8)))
    assert [path.name for path in outside.iterdir()] == [victim.name]
    assert victim.read_bytes() == b"precious"
    assert os.path.lexists(place.with_name(place.name + ending))  # a copy never removes what is not its own


@pytest.mark.parametrize("above", [0, 4])
def test_a_folder_of_the_copy_that_is_a_link_is_not_entered(published: Published, tmp_path: Path, above: int) -> None:
    (outside := tmp_path / "outside").mkdir()
    folder = [*shard_place(published).parents][above]  # train/ or builds/
    shutil.rmtree(folder)
    folder.symlink_to(outside)
    with pytest.raises(NielsCacheError, match=f"{folder.name}.*link"):
        rows(published.remote(epochs=1, limit=room(8)))
    assert list(outside.iterdir()) == []


RECORDS = ["lock", "describing-ID", "wake", "manifest.json", "manifest.json.new", "readers", "fetchers"]


@pytest.mark.parametrize(("name", "kind"), [*((name, "link") for name in RECORDS), *(("manifest.json", kind) for kind in PLANTED[1:])])
def test_what_is_planted_in_the_place_of_a_record_is_refused(published: Published, tmp_path: Path, name: str, kind: str) -> None:
    (outside := tmp_path / "outside").mkdir()
    victim = outside / "precious"
    victim.write_bytes(b"precious")
    os.utime(victim, ns=(5, 5))
    published.copy.mkdir()
    name = name.replace("ID", shard_place(published).parts[-5])
    plant(kind, published.copy / name, victim)
    with pytest.raises(NielsCacheError, match=name):
        rows(published.remote(epochs=1))
    assert [path.name for path in outside.iterdir()] == [victim.name]
    assert (victim.read_bytes(), victim.stat().st_mtime_ns) == (b"precious", 5)


@pytest.mark.parametrize("folder", ["train", "tails"])
def test_a_complete_file_that_was_exchanged_for_a_link_is_not_read(published: Published, tmp_path: Path, folder: str) -> None:
    expected, limit = rows(published.local(epochs=1)), room(8)
    assert rows(published.remote(epochs=1, limit=limit)) == expected
    published.wait_until_unread()
    places = [shard_place(published)] if folder == "train" else [*(published.copy / "tails").rglob("*.bin")]
    for place in places:
        other = tmp_path / f"other {place.name}"
        other.write_bytes(bytes(place.stat().st_size))  # of the same size
        place.unlink()
        place.symlink_to(other)
    with pytest.raises(NielsCacheError, match="|".join(place.name for place in places)):
        rows(published.remote(epochs=1, limit=limit if folder == "train" else room(3)))  # with all shards, no tail is read
    assert all(place.is_symlink() for place in places)
    assert len(places) > 0
    if folder == "train":
        assert check(published.copy) == [str(places[0].relative_to(published.copy))]


def test_a_file_or_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    files = OwnedFolder(tmp_path)
    assert files.read("file") == b"text"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NielsCacheError, match=r"file.*another user"):
        files.read("file")
    with pytest.raises(NielsCacheError, match=r"folder.*another user"):
        files.write("folder/file", b"text")
    files.remove("file")
    assert (tmp_path / "file").exists()


def test_a_part_that_is_our_own_is_continued(published: Published) -> None:
    expected = rows(published.local(epochs=1))
    place = shard_place(published)
    content = (published.folder / "train" / place.name).read_bytes()
    place.with_name(f"{place.name}.part").write_bytes(content[:1000])
    assert rows(published.remote(epochs=1, limit=room(8))) == expected
    assert published.whole_shards_sent() == {f"shard_{number:05d}.bin": 1 for number in range(1, SHARDS)}
    assert published.shards_sent()[place.name] > 0
    wrong = shard_place(published, 1)
    published.wait_until_unread()
    assert trim(published.copy, 0) > 0
    wrong.parent.mkdir(parents=True, exist_ok=True)
    wrong.with_name(f"{wrong.name}.part").write_bytes(bytes(1000))
    assert rows(published.remote(epochs=1, limit=room(8))) == expected


# a fetcher that is killed before it is ready


def process(code: str) -> int:
    return os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)


@pytest.mark.parametrize("killed", ["before it forks", "after it forks"])
def test_a_fetcher_that_was_killed_at_its_start_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str) -> None:
    (record := Ledger(tmp_path / "copy")).make()
    monkeypatch.setattr(fetcher, "_START_SECONDS", 0.2)
    started: list[ProcessFile] = []
    codes = ["import os; os.kill(os.getpid(), 9)" if killed == "before it forks" else "", ""]

    def spawn(folder: Path, group: str) -> int:
        if len(codes) == 1:
            started.append(ProcessFile(record, "fetchers", group))
        return process(codes.pop(0))

    monkeypatch.setattr(fetcher, "_spawn", spawn)
    fetcher.start_fetcher(record, "a group")
    assert (len(started), codes) == (1, [])
    assert not record.is_alive("fetchers", "a group.starting")
    started[0].end()


def test_a_fetcher_that_is_always_killed_and_one_that_fails_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (record := Ledger(tmp_path / "copy")).make()
    for code, times, status in (("import os; os.kill(os.getpid(), 9)", fetcher._STARTS, "-9"), ("raise SystemExit(3)", 1, "3")):
        found: list[str] = []
        monkeypatch.setattr(fetcher, "_spawn", lambda folder, group, code=code, found=found: found.append(code) or process(code))
        with pytest.raises(NielsCacheError, match=rf"did not start \(exit status {status}\)"):
            fetcher.start_fetcher(record, "a group")
        assert len(found) == times


# `pull --copy --check` after a boot


def test_a_check_by_hand_after_a_boot_saves_the_next_reader_its_own(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, limit = rows(published.local(epochs=1)), room(8)
    assert rows(published.remote(epochs=1, limit=limit)) == expected
    published.wait_until_unread()
    damaged = shard_of(published, 5)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    monkeypatch.setattr(ledger, "boot", lambda: "another")
    with Ledger(published.copy).changing() as state:
        assert len(state.unchecked) > SHARDS
    assert check(published.copy) == [str(damaged.relative_to(published.copy))]
    with Ledger(published.copy).changing() as state:
        assert state.unchecked == set()
    hashed: list[str] = []
    monkeypatch.setattr(OwnedFolder, "sha256", lambda self, name: hashed.append(name))
    published.s3.requests.clear()
    assert rows(published.remote(epochs=1, limit=limit)) == expected
    assert hashed == []
    assert published.shards_sent() == {"shard_00005.bin": 1}


@pytest.mark.parametrize("make", [lambda copy: None, lambda copy: copy.mkdir(), lambda copy: copy.write_text("")])
def test_a_check_of_another_folder_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "copy")
    with pytest.raises(NielsCacheError, match="local copy"):
        check(tmp_path / "copy")
