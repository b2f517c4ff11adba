"""The files of llm.c: NAME_train_000000.bin, ... with a header of 256 int32 (magic, version, tokens), then uint16 tokens.

EOT is before each document. llm.c's own scripts cut a stream into shards of 100 million tokens, and use the first shard as val. Here val is
the val split of the cache. The shards of each split are numbered from 0. llm.c finds the shards by a pattern (`NAME_train_*.bin`).
"""

from collections.abc import Iterator

import numpy as np

from niels_cache_assets.exchange.splits import ExportSplit, even_cuts
from niels_cache_assets.exchange.writing import PlannedFile, Unit, unit_of
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_BYTES

MAGIC = 20240520
VERSION = 1
HEADER_INTS = 256
HEADER_BYTES = HEADER_INTS * 4
SHARD_BYTES = 100_000_000 * TOKEN_BYTES  # size of the tokens, without the header
MAX_TOKENS = 2**31 - 1  # llm.c counts tokens in an int32


def units(split: ExportSplit, *, max_bytes: int) -> list[Unit]:
    """Return shards with `max_bytes` of tokens; the last shard is shorter. Raises NielsCacheError if a header cannot count the tokens."""
    if max_bytes // TOKEN_BYTES > MAX_TOKENS:
        raise NielsCacheError(
            f"max_bytes={max_bytes}: llm.c counts the tokens of a shard in an int32; give at most {MAX_TOKENS * TOKEN_BYTES}"
        )
    cuts = even_cuts(split.tokens, max_bytes // TOKEN_BYTES)
    return [_unit(split, f"{split.name}_{split.split}_{index:06d}.bin", first, end) for index, (first, end) in enumerate(cuts)]


def _unit(split: ExportSplit, name: str, first: int, end: int) -> Unit:
    def blocks() -> Iterator[bytes]:
        header = np.zeros(HEADER_INTS, dtype="<i4")
        header[:3] = MAGIC, VERSION, end - first
        yield header.tobytes()
        yield from split.blocks(first, end) if split.eot is None else split.blocks_with_eot_before(first, end)

    return unit_of((PlannedFile(name=name, bytes=HEADER_BYTES + (end - first) * TOKEN_BYTES, tokens=end - first), blocks))
