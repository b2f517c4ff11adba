"""The largest size of one document, line or whole file (`max_document_mib`), and readers that keep this limit.

Without a limit, one line of a few gigabytes takes all the memory of a machine. A small compressed file may become such a line. The readers
in this module hold at most one block more than the limit. The parsed JSON of a line may take about twenty times the bytes of the line. Two
kinds of rows are in memory before they are rejected. The first is rows of a Parquet file, together with few other rows (parquet_files.py).
The second is rows that the hub's library reads from the hub or from addresses. (A local file is scanned before that library reads it.)
"""

from __future__ import annotations

from typing import IO, ClassVar, NoReturn

from pydantic import Field, PositiveInt

from niels_cache_assets.sources.types import Source
from niels_cache_runtime.errors import NielsCacheError

MAX_DOCUMENT_MIB = 256
MAX_DOCUMENT_BYTES = MAX_DOCUMENT_MIB << 20

_BLOCK = 1 << 20


class LimitsDocuments(Source):
    """The key of the kinds that read files."""

    never_counts: ClassVar[frozenset[str]] = frozenset({"max_document_mib"})  # a build may fail because of this limit, but no byte changes

    max_document_mib: PositiveInt = Field(
        MAX_DOCUMENT_MIB,
        description="Limit in MiB for each document, for each line, and for each file that is one document. "
        "If one of them is longer, the build fails",
    )

    @property
    def max_document_bytes(self) -> int:
        return self.max_document_mib << 20


def refuse_length(where: str, limit: int) -> NoReturn:
    size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit:,} bytes"
    raise NielsCacheError(f"{where}: is longer than {size}; remove it, or raise max_document_mib (it is held in memory)")


def read_whole(stream: IO[bytes], where: str, limit: int) -> bytes:
    """Return the rest of a stream. Raises NielsCacheError if it has more than `limit` bytes. `where`: a name for the message."""
    blocks = []
    size = 0
    while block := stream.read(_BLOCK):
        blocks.append(block)
        size += len(block)
        if size > limit:
            refuse_length(where, limit)
    return b"".join(blocks)
