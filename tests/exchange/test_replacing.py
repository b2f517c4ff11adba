"""The replacement of an older export. All of its files are replaced, and no other file. A list has its files. A reader sees the renames as
one step.
"""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from niels_cache_assets.base.processes import InterruptRequested, stop_on_signals
from niels_cache_assets.exchange import FORMATS
from niels_cache_assets.exchange import replacing as placing
from niels_cache_assets.exchange.writing import write_export
from niels_cache_runtime import NielsCacheError
from tests.helpers.exports import contents, export, planned, random_documents, write_documents_cache
from tests.helpers.messages import missing

DOCUMENTS = {"train": random_documents(100, seed=1), "val": random_documents(20, seed=2)}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return write_documents_cache(tmp_path / "cache" / "notes", DOCUMENTS, shard_tokens=500)


@pytest.mark.parametrize("format", FORMATS)
def test_an_older_export_is_replaced_by_force_alone_and_leaves_nothing(cache: Path, tmp_path: Path, format: str) -> None:
    out = tmp_path / "data" / "out"
    smaller = {} if format == "nanogpt" else {"max_bytes": 400}
    first = export(cache, format, out, **smaller)
    other = (tmp_path / "data" if format == "megatron" else out) / "prepare.py"
    other.write_text("theirs")
    with pytest.raises(NielsCacheError, match=r"already and \d+ more; .*--force"):
        export(cache, format, out, **smaller)
    second = export(cache, format, out, force=True)
    assert len(second.files) < len(first.files) or format == "nanogpt"
    kept = {(second.folder / file.name).relative_to(tmp_path / "data").as_posix() for file in second.files}
    assert set(contents(tmp_path / "data")) == kept | {other.relative_to(tmp_path / "data").as_posix()}


def test_splits_and_data_sets_share_a_folder_without_meeting(cache: Path, tmp_path: Path) -> None:
    more = write_documents_cache(tmp_path / "cache" / "notes.more", DOCUMENTS)
    for source in (cache, more):
        for split in ("train", "val"):
            export(source, "llmc", tmp_path / "data", splits=(split,))
    export(cache, "llmc", tmp_path / "data", force=True)
    stems = [f"{name}_{split}" for name in ("notes", "notes.more") for split in ("train", "val")]
    assert set(contents(tmp_path / "data")) == {f"{stem}{ending}" for stem in stems for ending in ("_000000.bin", ".llmc.files")}


def test_parts_are_known_by_their_list_and_not_by_their_names(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "m" / "c4"
    export(cache, "megatron", tmp_path / "m" / "c4_20240", splits=("train",))
    other = contents(tmp_path / "m")
    assert set(other) == {"c4_20240.bin", "c4_20240.idx", "c4_20240.megatron.files"}
    parts = export(cache, "megatron", out, splits=("train",), max_bytes=2_000)
    assert "c4_00001.bin" in {file.name for file in parts.files}
    export(cache, "megatron", out, splits=("train",), key="text", max_bytes=2_000)
    keyed = {name: content for name, content in contents(tmp_path / "m").items() if "_text_document" in name}
    assert len(keyed) >= 5
    export(cache, "megatron", out, splits=("train",), force=True)
    found = contents(tmp_path / "m")
    assert found.items() >= {**other, **keyed}.items()
    assert set(found) - set(other) - set(keyed) == {"c4.bin", "c4.idx", "c4.megatron.files"}


@pytest.mark.parametrize("format", FORMATS)
def test_a_split_that_has_become_empty_leaves_nothing_of_the_older_export(cache: Path, tmp_path: Path, format: str) -> None:
    out = tmp_path / "data" / "out"
    first = export(cache, format, out)
    assert any("val" in file.name for file in first.files)
    (first.folder / "prepare.py").write_text("theirs")
    train = write_documents_cache(tmp_path / "later" / "notes", {"train": DOCUMENTS["train"]})
    for file in first.files:  # a file that only val has is in the way, too
        if "train" in file.name:
            (first.folder / file.name).rename(tmp_path / file.name.replace("/", "-"))
    with pytest.raises(NielsCacheError, match=r"val\S*: is there"):
        export(train, format, out)
    plan = planned(train, format, out)
    assert plan.deleted() == sorted(file.name for file in first.files if "val" in file.name)
    write_export(plan, force=True)
    assert {path.relative_to(plan.folder).as_posix() for path in plan.folder.rglob("*") if path.is_file()} == {
        "prepare.py",
        *(file.name for file in plan.files),
    }


@pytest.mark.parametrize("content", [b"../outside\n", b"/etc/hosts\n", b"a/b/c\n", b"\n", b"\xff", b"a/.b\n"])
def test_what_is_no_list_of_files_deletes_nothing(cache: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "outside").write_text("theirs")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes_val.npy.files").write_bytes(content)
    with pytest.raises(NielsCacheError, match=r"notes_val\.npy\.files: .*list"):
        export(cache, "npy", tmp_path / "data", force=True)
    assert (tmp_path / "outside").read_text() == "theirs"
    assert set(contents(tmp_path / "data")) == {"notes_val.npy.files"}


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("theirs.txt")], ids=["folder", "pipe", "link"])
def test_a_list_that_names_what_is_no_file_deletes_nothing(cache: Path, tmp_path: Path, make: Callable[[Path], object]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "theirs.txt").write_text("theirs")
    make(tmp_path / "data" / "theirs")
    (tmp_path / "data" / "notes_val.npy.files").write_text("theirs\n")
    with pytest.raises(NielsCacheError, match=r"data/theirs: .*regular file.* notes_val\.npy\.files"):
        export(cache, "npy", tmp_path / "data", force=True)
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"theirs", "theirs.txt", "notes_val.npy.files"}


def test_a_list_that_names_a_file_below_a_link_deletes_nothing(cache: Path, tmp_path: Path) -> None:
    for folder in ("data", "theirs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "theirs" / "file").touch()
    (tmp_path / "data" / "below").symlink_to(tmp_path / "theirs")
    (tmp_path / "data" / "notes_val.npy.files").write_text("below/file\n")
    with pytest.raises(NielsCacheError, match=r"data/below: .*link"):
        export(cache, "npy", tmp_path / "data", force=True)
    assert (tmp_path / "theirs" / "file").exists()


def test_a_pipe_for_a_list_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.files")
    with pytest.raises(NielsCacheError, match=r"a\.files: .*list"):
        placing.ExportTarget(list_name="a.files").older(tmp_path)


def test_a_list_alone_is_no_older_export_and_a_folder_in_the_way_is_not_deleted(cache: Path, tmp_path: Path) -> None:
    plan = export(cache, "llmc", tmp_path / "data")
    for file in plan.files:
        if not file.name.endswith(".files"):
            (tmp_path / "data" / file.name).unlink()
    export(cache, "llmc", tmp_path / "data")
    place = tmp_path / "data" / "notes_val_000000.bin"
    place.unlink()
    place.mkdir()
    (place / "theirs").touch()
    with pytest.raises(NielsCacheError, match=r"notes_val_000000\.bin: .*regular file"):
        export(cache, "llmc", tmp_path / "data", force=True)
    assert (place / "theirs").exists()


# the renames at the end


class Renames:
    """Stands in for the system's rename, and does `then` instead of number `stop`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stop: int, then: Callable[[], None]) -> None:
        self._rename, self._stop, self._then, self.count = os.rename, stop, then, 0
        monkeypatch.setattr(placing.os, "rename", self)

    def __call__(self, source: Path, target: Path) -> None:
        self.count += 1
        if self.count == self._stop:
            self._then()
        self._rename(source, target)


def killed_at(stop: int, write: Callable[[], object]) -> None:
    """Write in a child process, which is killed in place of the rename number `stop`."""
    child = os.fork()
    if child == 0:
        Renames(pytest.MonkeyPatch(), stop, lambda: os._exit(9))
        with suppress(BaseException):
            write()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def refuse() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("format", ["llmc", "megatron"])
def test_an_error_during_the_renames_puts_everything_back(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    out = tmp_path / "data" / "out"
    smaller = {} if format == "nanogpt" else {"max_bytes": 1_000}
    larger = write_documents_cache(tmp_path / "later" / "notes", {split: DOCUMENTS[split][::-1] for split in DOCUMENTS})
    for first in (False, True):  # into an empty place, over an older export
        if first:
            export(cache, format, out, **smaller)
        before = contents(tmp_path)
        stop, count = 1, 0
        while True:
            with monkeypatch.context() as patch:
                renames = Renames(patch, stop, refuse)
                failure: NielsCacheError | None = None
                try:
                    write_export(planned(larger, format, out), force=True)
                except NielsCacheError as error:
                    failure = error
            if failure is None:
                break
            assert missing(failure, "Input/output error", "disk") == []
            assert contents(tmp_path) == before
            stop, count = stop + 1, count + 1
        assert renames.count == count == len(planned(larger, format, out).files) + first * len([n for n in before if n.startswith("data")])
        assert contents(tmp_path) != before
        if not first:
            shutil.rmtree(tmp_path / "data")


@pytest.mark.parametrize(("number", "stop"), [(signal.SIGINT, 1), (signal.SIGTERM, 8)])
def test_a_signal_during_the_renames_waits_for_their_end(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, stop: int
) -> None:
    export(cache, "llmc", tmp_path / "data")
    plan = planned(write_documents_cache(tmp_path / "later" / "notes", {"train": DOCUMENTS["val"]}), "llmc", tmp_path / "data")
    stops = min(stop, len(plan.files) + 4)
    renames = Renames(monkeypatch, stops, lambda: os.kill(os.getpid(), number))
    with pytest.raises(InterruptRequested), stop_on_signals():
        write_export(plan, force=True)
    assert renames.count == len(plan.files) + 4
    assert set(contents(tmp_path / "data")) == {file.name for file in plan.files}


def test_a_kill_during_the_renames_leaves_no_mixture_and_what_was_there_in_the_hidden_folder(cache: Path, tmp_path: Path) -> None:
    older = export(cache, "llmc", tmp_path / "data", max_bytes=2_000)
    before = contents(tmp_path / "data")
    later = write_documents_cache(tmp_path / "later" / "notes", {"train": DOCUMENTS["val"]})
    export(later, "llmc", tmp_path / "after")
    after = contents(tmp_path / "after")
    stops = range(1, len(older.files) + len(after) + 1)
    assert len(stops) > 5
    for stop in stops:
        place = tmp_path / str(stop)
        shutil.copytree(tmp_path / "data", place)
        killed_at(stop, lambda place=place: write_export(planned(later, "llmc", place), force=True))
        stage = place / ".notes.llmc.partial"
        kept = contents(stage / "old")
        visible = {name: content for name, content in contents(place).items() if not name.startswith(".")}
        assert visible.items() <= before.items() or visible.items() <= after.items()
        assert kept.items() <= before.items()
        assert visible.keys() | kept.keys() >= before.keys()
        if kept:
            with pytest.raises(NielsCacheError, match=r"is there already|put them back"):
                export(later, "llmc", place)
            assert contents(stage / "old") == kept
        plan = export(later, "llmc", place, force=True)
        assert set(contents(place)) == {file.name for file in plan.files}


@pytest.mark.parametrize("format", ["datatrove", "megatron"])
def test_a_kill_while_the_first_files_are_placed_is_made_good_by_the_same_export_again(cache: Path, tmp_path: Path, format: str) -> None:
    export(cache, format, tmp_path / "whole" / "out")
    expected = contents(tmp_path / "whole")
    assert len(expected) >= 2
    for stop in range(1, len(expected) + 1):
        out = tmp_path / str(stop) / "out"
        plan = planned(cache, format, out)
        killed_at(stop, lambda plan=plan: write_export(plan))
        assert len(list(plan.folder.rglob("*"))) >= len(expected)
        assert plan.existing() == []
        export(cache, format, out)
        assert contents(tmp_path / str(stop)) == expected


def test_of_what_a_killed_export_left_only_its_own_files_go(cache: Path, tmp_path: Path) -> None:
    place = tmp_path / "data"
    killed_at(2, lambda: write_export(planned(cache, "nanogpt", place)))
    (place / "train.bin").unlink()
    (place / "train.bin").write_text("theirs")
    with pytest.raises(NielsCacheError, match=r"train\.bin: is there"):
        export(cache, "nanogpt", place)
    assert (place / "train.bin").read_text() == "theirs"
    (place / ".nanogpt.partial" / "placed").write_text('["../theirs", 1, 2, 3]\nnot JSON')
    with pytest.raises(NielsCacheError, match=r"train\.bin: is there"):
        export(cache, "nanogpt", place)
