"""The files of llm.c: NAME_train_000000.bin, ... with a header of 256 int32 (magic, version, tokens), then tokens.

uint16 tokens have the header that all programs of llm.c read. uint32 tokens have the header of its train_llama3.py, which the other
programs refuse. EOT is before each document. llm.c's own scripts cut a stream into shards of 100 million tokens, and use the first shard as
val. Here val is the val split of the cache, and the shards of each split are numbered from 0. llm.c finds the shards by a pattern
(`NAME_train_*.bin`).
"""

import numpy as np

from niels_cache_assets.exchange.formats import ExportFormat
from niels_cache_assets.exchange.splits import ExportSplit
from niels_cache_assets.exchange.writing import Unit, even_units
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPE

HEADERS = {2: (20240520, 1), 4: (20240801, 7)}  # magic and version, by the bytes of a token
WIDE_NOTE = "of llm.c's programs, only train_llama3.py reads uint32 tokens"
HEADER_INTS = 256
SHARD_TOKENS = 100_000_000
MAX_TOKENS = 2**31 - 1  # llm.c counts tokens in an int32


def units(split: ExportSplit, max_bytes: int, *_: object) -> list[Unit]:
    """Return shards with `max_bytes` of tokens; the last one may be shorter.

    Raises:
        NielsCacheError: If a header cannot count the tokens.
    """
    size = split.dtype.itemsize
    if max_bytes // size > MAX_TOKENS:
        raise NielsCacheError(f"max_bytes={max_bytes}: llm.c counts the tokens of a shard in an int32; give at most {MAX_TOKENS * size}")
    return even_units(split, ".bin", _header, max_bytes=max_bytes, eot_before=split.eot is not None)


def _header(tokens: int, dtype: np.dtype) -> bytes:
    header = np.zeros(HEADER_INTS, dtype="<i4")
    header[:3] = *HEADERS[dtype.itemsize], tokens
    return header.tobytes()


FORMAT = ExportFormat(
    units=units,
    max_tokens=SHARD_TOKENS,
    notes_and_lines=lambda splits, settings: ([WIDE_NOTE] if splits[0].dtype != TOKEN_DTYPE else [], []),
    eot="is before each document, as llm.c reads it; in the cache it is after each",
)
