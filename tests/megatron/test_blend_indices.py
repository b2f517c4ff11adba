"""Compiled blends: the bytes that numpy gives, with numba and without it."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from niels_cache_runtime.megatron import blend_indices
from niels_cache_runtime.megatron.blend_indices import build_blending_indices, build_exhaustive_blending_indices, normalize_weights
from tests.helpers import programs

ROOT = Path(blend_indices.__file__).parents[2]


@pytest.fixture
def numba() -> Any:
    return pytest.importorskip("numba", reason="compiled loops need numba")


def hashes() -> list[str]:
    """Of large blends, as the builders make them by themselves."""
    arrays = [*build_blending_indices(normalize_weights([5.0, 0.3, 2.0, 1e-4]), 110_001), *build_blending_indices([1.0], 100_000)]
    arrays += build_exhaustive_blending_indices([90_000, 3, 19_999])
    return [f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}" for array in arrays]


def test_large_blends_are_the_same_bytes_compiled_by_numpy_and_where_numba_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, numba: Any
) -> None:
    monkeypatch.setattr(blend_indices, "_BLOCK", 7_777)
    assert blend_indices.compiled_blend() is not None
    compiled = hashes()
    assert len(set(compiled)) == len(compiled) == 6
    monkeypatch.undo()
    monkeypatch.setattr(blend_indices, "compiled_blend", lambda: None)
    assert hashes() == compiled
    blocked = "import sys; sys.modules['numba'] = None; from tests.megatron.test_blend_indices import hashes; print(*hashes(), sep='\\n')"
    done = programs.run("-c", blocked, cwd=ROOT)
    assert done.stdout.splitlines() == compiled, done.stderr


def test_numpy_does_it_where_numba_is_missing_broken_or_switched_off(monkeypatch: pytest.MonkeyPatch, numba: Any) -> None:
    def is_available() -> bool:
        blend_indices.compiled_blend.cache_clear()
        return blend_indices.compiled_blend() is not None

    class Broken:
        def __init__(self, error: type[Exception]) -> None:
            self.error = error

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "numba":
                raise self.error("Numba needs NumPy 2.3 or less")

    try:
        assert is_available()
        with monkeypatch.context() as patch:
            patch.setattr(numba.config, "DISABLE_JIT", 1)
            assert not is_available()
        for error in (ModuleNotFoundError, ImportError, OSError, SystemError):
            with monkeypatch.context() as patch:
                patch.delitem(sys.modules, "numba")
                patch.setattr(sys, "meta_path", [Broken(error), *sys.meta_path])
                assert not is_available()
    finally:
        blend_indices.compiled_blend.cache_clear()
