"""Rows of a corpus's arrays by number: those of numpy's own reading, without keeping the file in memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from niels_cache_assets.corpus.order import ArrayRows
from niels_cache_runtime.errors import NielsCacheError
from tests.depth import sized


@given(sized(st.integers(0, 49), 80), st.sampled_from(["|u1", "<u4"]))
@example([40, 40, 42], "|u1")  # three rows from 40 to 42, and not 40, 41, 42
def test_rows_are_those_of_the_array_in_the_order_asked_for(tmp_path_factory: pytest.TempPathFactory, rows: list[int], dtype: str) -> None:
    array = torch.arange(50 * 7).reshape(50, 7).numpy().astype(dtype)
    path = tmp_path_factory.mktemp("rows") / "array.npy"
    np.save(path, array)
    with ArrayRows(path) as opened:
        assert (len(opened), opened.width) == (50, 7)
        assert np.array_equal(opened[np.array(rows, dtype=np.uint32)], array[rows])
        assert np.array_equal(opened[np.arange(50)], array)


def test_rows_that_are_close_or_repeated_are_those_of_the_array(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    array = torch.randint(256, (700, 4_000), generator=generator, dtype=torch.uint8).numpy()
    np.save(tmp_path / "array.npy", array)
    ascending = np.sort(torch.randint(700, (300,), generator=generator).numpy())
    assert len(np.unique(ascending)) < len(ascending)
    with ArrayRows(tmp_path / "array.npy") as rows:
        for wanted in (ascending, ascending[::-1], np.unique(ascending), np.arange(0, 700, 5), np.arange(0, 700, 6)):
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


_SCATTERED = """
import sys
from pathlib import Path
import numpy as np
from niels_cache_assets.corpus.order import Input
folder, documents = Path(sys.argv[1]), 150_000
np.lib.format.open_memmap(folder / "digests.npy", "w+", np.uint8, (documents, 20)).flush()
slots = np.lib.format.open_memmap(folder / "signatures.npy", "w+", np.uint32, (documents, 128))
slots[:] = np.arange(documents, dtype=np.uint32)[:, None]
slots.flush()
del slots
def resident(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024
order = np.argsort(np.arange(documents) % 20 != 0, kind="stable").astype(np.uint32)
corpus = Input(name="notes", directory=folder, meta={}, splits=np.zeros(documents, np.int8), order=order)
next(corpus.signatures())
Path("/proc/self/clear_refs").write_text("5")
before, seen = resident("VmRSS"), 0
for block in corpus.signatures():
    assert (block.slots == order[seen : seen + len(block)][:, None]).all()
    seen += len(block)
assert seen == documents
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of resident memory is measured where Linux tells it")
def test_signatures_of_scattered_documents_take_the_memory_of_a_block(tmp_path: Path) -> None:
    """75 MB of them, one document in twenty is val: a map would keep most of it."""
    done = subprocess.run([sys.executable, "-c", _SCATTERED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 40
