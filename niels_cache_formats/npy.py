"""Plain .npy files: SPLIT/NAME_SPLIT_000000.npy, ..., one-dimensional, with the cache's dtype, uint16 or uint32.

`numpy.load`, build-nanogpt and our DatasetLoader read these files. Each split has its own folder, because DatasetLoader reads all files of
a folder. The split is also in the file name, because build-nanogpt has both splits in one folder and finds the split in the file name. EOT
stays after each document (build-nanogpt's own shards have EOT before each document).
"""

import io

import numpy as np

from niels_cache_assets.exchange.formats import ExportFormat
from niels_cache_assets.exchange.splits import ExportSplit
from niels_cache_assets.exchange.writing import Unit, even_units

SHARD_TOKENS = 100_000_000
READERS_NOTE = (
    "read by numpy.load (mmap_mode too), build-nanogpt and our DatasetLoader; not by OLMo-core, whose .npy have no header "
    "(niels-cache export olmo), nor by nanoGPT, llm.c, modded-nanogpt or Megatron-LM"
)


def units(split: ExportSplit, max_bytes: int, *_: object) -> list[Unit]:
    """Return the arrays of a split in order. Each has `max_bytes` of tokens; the last one may be shorter."""
    return even_units(split, ".npy", _header, max_bytes=max_bytes, folder=f"{split.split}/")


def _header(tokens: int, dtype: np.dtype) -> bytes:
    """Return the header that `numpy.save` writes for an array of this many tokens of this dtype."""
    file = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (tokens,)}
    np.lib.format.write_array_header_1_0(file, description)
    return file.getvalue()


FORMAT = ExportFormat(units=units, max_tokens=SHARD_TOKENS, notes_and_lines=lambda splits, settings: ([READERS_NOTE], []))
