"""Compiled loops: the bytes that numpy gives, with numba, without it, and where numba cannot keep what it compiled."""

import errno
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from niels_cache_runtime.megatron import kernels
from niels_cache_runtime.megatron.blend_indices import build_blending_indices, build_exhaustive_blending_indices, normalized
from niels_cache_runtime.megatron.gpt_indices import build_gpt_indices, build_sample_index, place_samples
from tests import programs

ROOT = Path(kernels.__file__).parents[2]


@pytest.fixture
def numba() -> Any:
    return pytest.importorskip("numba", reason="compiled loops need numba")


def hashes() -> list[str]:
    """Of large indices of every kind, as the builders make them by themselves."""
    lengths = torch.randint(0, 40, (600_000,), generator=torch.Generator().manual_seed(0), dtype=torch.int32).numpy()
    gpt = [
        build_gpt_indices(lengths, range(len(lengths)), num_samples=num_samples, sequence_length=512, seed=1, add_extra_token=extra)
        for num_samples, extra in ((None, True), (30_000, False))
    ]
    arrays: list[np.ndarray] = [array for made in gpt for array in (made.document_index, made.sample_index, made.shuffle_index)]
    arrays += [*build_blending_indices(normalized([5.0, 0.3, 2.0, 1e-4]), 300_001), *build_blending_indices([1.0], 1_000_000)]
    arrays += build_exhaustive_blending_indices([400_000, 3, 99_999])
    return [f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}" for array in arrays]


def count_calls(patch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each compiled loop is called from now on."""
    calls: dict[str, int] = {}

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return function(*arguments)

        return call

    for name in ("advance_lanes", "place_samples"):
        patch.setattr(kernels, name, counting(name, getattr(kernels, name)))
    return calls


def test_large_indices_are_the_same_bytes_compiled_by_numpy_and_where_numba_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, numba: Any
) -> None:
    calls = count_calls(monkeypatch)
    compiled = hashes()
    assert len(set(compiled)) == len(compiled) == 12
    assert calls.keys() == {"advance_lanes", "place_samples"}
    calls.clear()
    monkeypatch.setattr(kernels, "is_available", lambda: False)
    assert hashes() == compiled
    assert calls == {}
    blocked = "import sys; sys.modules['numba'] = None; from tests.test_megatron_kernels import hashes; print(*hashes(), sep='\\n')"
    done = programs.run("-c", blocked, cwd=ROOT)
    assert done.stdout.splitlines() == compiled, done.stderr


def test_numpy_does_it_where_numba_is_missing_broken_or_switched_off(monkeypatch: pytest.MonkeyPatch, numba: Any) -> None:
    def asked() -> tuple[bool, bool, bool]:
        kernels.is_available.cache_clear()
        advance, place = kernels.advance_for(datasets=2, samples=10**6), kernels.place_for(documents=10**6, samples=10)
        return kernels.is_available(), advance is not None, place is not None

    class Broken:
        def __init__(self, error: type[Exception]) -> None:
            self.error = error

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "numba":
                raise self.error("Numba needs NumPy 2.3 or less")

    try:
        assert asked() == (True, True, True)
        with monkeypatch.context() as patch:
            patch.setattr(numba.config, "DISABLE_JIT", 1)
            assert asked() == (False, False, False)
        for error in (ModuleNotFoundError, ImportError, OSError, SystemError):
            with monkeypatch.context() as patch:
                patch.delitem(sys.modules, "numba")
                patch.setattr(sys, "meta_path", [Broken(error), *sys.meta_path])
                assert asked() == (False, False, False)
    finally:
        kernels.is_available.cache_clear()
    assert kernels.is_available()


def test_small_indices_and_dense_ones_do_not_load_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_available", lambda: pytest.fail("asked for numba"))
    assert kernels.advance_for(datasets=2, samples=499_999) is None
    assert kernels.place_for(documents=900_000, samples=99_999) is None
    assert kernels.place_for(documents=2_000_000, samples=1_000_001) is None


def kept_in(folder: Path, patch: pytest.MonkeyPatch) -> Callable[[], np.ndarray]:
    """Build a sample index by a loop of its own, which numba keeps in `folder`."""
    patch.setenv("NUMBA_CACHE_DIR", str(folder))  # numba reads it again now and then
    patch.setattr("numba.config.CACHE_DIR", str(folder))
    loop = kernels._Compiled(kernels._place_loop)
    lengths, order = np.arange(50, dtype=np.int32), np.arange(50, dtype=np.int32)
    return lambda: build_sample_index(lengths, order, samples=70, sequence_length=16, place=loop)


def test_compiled_code_is_kept_and_what_is_damaged_or_cannot_be_written_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numba: Any
) -> None:
    from numba.core import caching

    lengths = np.arange(50, dtype=np.int32)
    expected = build_sample_index(lengths, lengths, samples=70, sequence_length=16, place=place_samples)

    def holds() -> None:
        build = kept_in(tmp_path / "kept", monkeypatch)
        for _ in range(2):
            assert np.array_equal(build(), expected)

    holds()
    kept = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert {path.suffix for path in kept} == {".nbi", ".nbc"}
    stamps = [path.stat().st_mtime_ns for path in kept]
    holds()
    assert [path.stat().st_mtime_ns for path in kept] == stamps
    for suffix in (".nbi", ".nbc"):  # cut off: the disk was full, or the machine went down
        for path in kept:
            if path.suffix == suffix:
                os.truncate(path, 3)
        holds()

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(caching.IndexDataCacheFile, "save", full)
        patch.setattr(caching.IndexDataCacheFile, "load", lambda *arguments: None)
        holds()
    with monkeypatch.context() as patch:  # a read-only installation, and no home
        patch.setattr(caching.CacheImpl, "_locator_classes", [])
        with pytest.raises(RuntimeError, match="no locator available"):
            numba.njit(cache=True)(kernels._place_loop)
        kernels._Compiled(kernels._place_loop).load()
        holds()


class BuildsInAWorker(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(build_blending_indices([0.3, 0.7], 600_000)[1])


def test_a_forked_worker_builds_after_its_parent_did(monkeypatch: pytest.MonkeyPatch, numba: Any) -> None:
    monkeypatch.setattr(kernels, "available_threads", lambda: 2)
    calls = count_calls(monkeypatch)
    here = build_blending_indices([0.3, 0.7], 600_000)[1]
    assert calls == {"advance_lanes": calls["advance_lanes"]}
    loader = DataLoader(BuildsInAWorker(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
    made = list(loader)
    assert len(made) == 2
    assert all(np.array_equal(samples.numpy(), here) for samples in made)
