"""The index cache. One process builds, and all processes map. An index is never stale or half built, and no process waits for a dead
process.
"""

import errno
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.cache import index_cache
from niels_cache_runtime.errors import NotWrittenError
from niels_cache_runtime.megatron import IndexCache, IndexedDataset, MegatronGPTDataset
from tests.helpers import megatron_core, programs

SETTINGS: dict[str, Any] = {"num_samples": 50, "sequence_length": 16, "seed": 1}


def fill(allocate: Any, *, value: int = 7) -> None:
    allocate("numbers", (4,), np.dtype(np.int64))[:] = value
    allocate("none", (0, 2), np.dtype(np.int32))


def test_an_index_is_built_once_and_mapped_by_all(tmp_path: Path) -> None:
    cache, built = IndexCache(tmp_path / "index"), []
    for _ in range(3):
        arrays = cache.open("test", {"a": 1}, lambda allocate: (fill(allocate), built.append(1)))
        assert arrays["numbers"].tolist() == [7] * 4
        assert arrays["none"].shape == (0, 2)
        assert not arrays["numbers"].flags.writeable
    assert built == [1]
    [folder] = [path for path in (tmp_path / "index").iterdir() if path.is_dir()]
    assert folder == cache.directory("test", {"a": 1})
    assert sorted(path.name for path in folder.iterdir()) == ["meta.json", "none.npy", "numbers.npy"]


def test_changed_settings_and_rebuilt_data_never_meet_a_stale_index(tmp_path: Path) -> None:
    cache, prefix = IndexCache(tmp_path / "index"), tmp_path / "data"
    megatron_core.write_documents(prefix, [20] * 30)

    def directory(**changed: Any) -> str:
        dataset = MegatronGPTDataset(IndexedDataset(prefix), **{**SETTINGS, "index_cache": cache, **changed})
        assert dataset.index_directory is not None
        return dataset.index_directory

    changes: list[dict[str, Any]] = [
        {"seed": 2},
        {"num_samples": 51},
        {"sequence_length": 15},
        {"add_extra_token": False},
        {"drop_last": False},
        {"indices": range(29)},
        {"indices": np.array([1, 0, 2])},
    ]
    first = directory()
    assert first == directory(pad_token=3) == directory(indices=np.arange(30))
    found = {directory(**changed) for changed in changes}
    assert len(found | {first}) == len(changes) + 1
    for path in (f"{prefix}.bin", f"{prefix}.idx"):
        os.unlink(path)
    megatron_core.write_documents(prefix, [20] * 29 + [30])
    assert directory() != first


def test_a_failed_build_leaves_nothing_and_a_damaged_index_is_built_again(tmp_path: Path) -> None:
    cache = IndexCache(tmp_path / "index")

    def fail(allocate: Any) -> None:
        fill(allocate)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        cache.open("test", {}, fail)
    assert [path.name for path in (tmp_path / "index").iterdir() if path.is_dir()] == []
    cache.open("test", {}, fill)
    with open(cache.directory("test", {}) / "numbers.npy", "ab") as file:
        file.write(b"more")
    assert cache.open("test", {}, lambda allocate: fill(allocate, value=8))["numbers"].tolist() == [8] * 4


def test_an_index_whose_header_cannot_be_read_is_built_again_and_never_put_in_place(tmp_path: Path) -> None:
    cache = IndexCache(tmp_path / "index")
    cache.open("test", {}, fill)
    path = cache.directory("test", {}) / "numbers.npy"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"(4,)", b"(4?)"))
    assert len(path.read_bytes()) == len(content)
    assert cache.open("test", {}, lambda allocate: fill(allocate, value=8))["numbers"].tolist() == [8] * 4
    assert [path.name for path in (tmp_path / "index").iterdir() if path.is_dir()] == [cache.directory("test", {}).name]

    with pytest.raises(NielsCacheError, match="index cannot be"):
        cache.open("test", {"spoiled": True}, lambda allocate: spoil(tmp_path / "index", allocate))
    assert not cache.directory("test", {"spoiled": True}).exists()


def spoil(folder: Path, allocate: Any) -> None:
    fill(allocate)
    [path] = folder.glob(".*.partial/numbers.npy")
    path.write_bytes(b"x" * path.stat().st_size)


def test_room_on_the_disk_is_taken_before_an_array_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(os, "posix_fallocate"):
        pytest.skip("this system reserves no room")
    cache, blocks = IndexCache(tmp_path / "index"), []

    def build(allocate: Any) -> None:
        allocate("numbers", (1 << 20,), np.dtype(np.int64))
        [path] = (tmp_path / "index").glob(".*.partial/numbers.npy")
        blocks.append(path.stat().st_blocks * 512)

    cache.open("test", {}, build)
    assert blocks[0] >= 8 << 20

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NotWrittenError, match=r"No space left .* 8,388,736 bytes: .*written"):
        cache.open("test", {"more": True}, build)
    assert len([path for path in (tmp_path / "index").iterdir() if path.is_dir()]) == 1

    def unknown(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unknown)
    assert len(cache.open("test", {"more": True}, build)["numbers"]) == 1 << 20


def test_a_finished_index_opens_where_nothing_can_be_written(tmp_path: Path) -> None:
    cache = IndexCache(tmp_path / "index")
    cache.open("test", {}, fill)
    shutil.copytree(tmp_path / "index", tmp_path / "copy", ignore=shutil.ignore_patterns(".*"))
    assert IndexCache(tmp_path / "copy").open("test", {}, fill)["numbers"].tolist() == [7] * 4
    assert [path.name for path in (tmp_path / "copy").iterdir() if path.name.startswith(".")] == []
    (tmp_path / "file").write_text("")
    with pytest.raises(NielsCacheError, match="written"):
        IndexCache(tmp_path / "file" / "index").open("test", {}, fill)


def build_slowly(folder: str, results: Any) -> None:
    def build(allocate: Any) -> None:
        results.put("built")
        time.sleep(0.5)
        fill(allocate)

    arrays = IndexCache(folder, notify=lambda message: None).open("test", {"many": True}, build)
    results.put(arrays["numbers"].tolist())


def test_of_many_processes_one_builds(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=build_slowly, args=(str(tmp_path / "index"), results)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    found = [results.get(timeout=60) for _ in range(5)]
    for rank in ranks:
        rank.join(timeout=60)
    assert [rank.exitcode for rank in ranks] == [0] * 4
    assert sorted(map(str, found)) == ["[7, 7, 7, 7]"] * 4 + ["built"]


BUILD_FOREVER = """
import sys, time
from niels_cache_runtime.megatron import IndexCache
def build(allocate):
    print("building", flush=True)
    time.sleep(600)
IndexCache(sys.argv[1]).open("test", {}, build)
"""


def test_who_waits_is_told_and_gives_up_in_time_and_a_dead_builder_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_cache, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(index_cache, "_POLL_SECONDS", 0.01)
    folder = str(tmp_path / "index")
    reads, writes = os.pipe()
    builder = programs.Program("-c", BUILD_FOREVER, folder, streams=(0, writes, 2))
    os.close(writes)
    try:
        with open(reads, encoding="utf-8") as printed:
            assert printed.readline() == "building\n"
        told: list[str] = []
        with pytest.raises(NielsCacheError, match=f"process {builder.pid} on .* 0 s"):
            IndexCache(folder, wait_seconds=0.1, notify=told.append).open("test", {}, fill)
        assert len(told) == 1
        assert told[0].startswith(f"waiting for process {builder.pid}")
    finally:
        builder.kill()
        builder.wait()
    assert IndexCache(folder).open("test", {}, fill)["numbers"].tolist() == [7] * 4
    assert [path.name for path in Path(folder).iterdir() if path.name.endswith(".partial")] == []
