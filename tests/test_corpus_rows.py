"""Rows of a corpus's arrays by number: those of numpy's own reading, without keeping the file in memory."""

from pathlib import Path

import numpy as np
import pytest
import torch

from niels_cache_assets.corpus.order import ArrayRows
from niels_cache_runtime.errors import NielsCacheError


def test_rows_that_are_close_or_repeated_are_those_of_the_array(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    array = torch.randint(256, (700, 4_000), generator=generator, dtype=torch.uint8).numpy()
    np.save(tmp_path / "array.npy", array)
    ascending = np.sort(torch.randint(700, (300,), generator=generator).numpy())
    assert len(np.unique(ascending)) < len(ascending)
    with ArrayRows(tmp_path / "array.npy") as rows:
        assert (len(rows), rows.width) == (700, 4_000)
        for wanted in (
            ascending,
            ascending[::-1],
            ascending.astype(np.uint32)[[7, 3, 3, 290]],
            np.unique(ascending),
            np.arange(0, 700, 5),
            np.arange(0, 700, 6),
        ):
            assert np.array_equal(rows[wanted], array[wanted])


def test_a_file_that_holds_less_than_asked_for_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "signatures.npy"
    np.save(path, np.zeros((10, 4), dtype=np.uint32))
    with ArrayRows(path) as rows, pytest.raises(NielsCacheError, match=r"signatures\.npy: .*meta\.json"):
        rows[np.array([3, 10])]
    path.write_bytes(path.read_bytes()[:-8])
    with ArrayRows(path) as rows, pytest.raises(NielsCacheError, match=r"signatures\.npy: .*meta\.json"):
        rows[np.arange(10)]
    path.write_bytes(b"no array")
    with pytest.raises(NielsCacheError, match=r"signatures\.npy: .*meta\.json"):
        ArrayRows(path)
    path.unlink()
    with pytest.raises(NielsCacheError, match=r"signatures\.npy: cannot"):
        ArrayRows(path)
