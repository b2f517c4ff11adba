"""The files of datatrove: SPLIT/NAME_00000_unshuffled.ds, ... with .ds.index and .ds.metadata. DocumentTokenizer writes the same files.

    .ds            uint16 or uint32 tokens, no header
    .ds.index      uint64 for each document: its end in the file, in tokens
    .ds.metadata   text: tokenizer|bytes of a token, tokens, tokens in short form (`1.23 MT`)

Each split has its own folder, because datatrove's readers take all files of a folder. A document is never cut between files. EOT follows
each document. In the file name, "unshuffled" means that the documents are in the cache's order.
"""

from collections.abc import Iterator

import numpy as np

from niels_cache_assets.exchange.formats import ExportFormat
from niels_cache_assets.exchange.splits import ExportSplit
from niels_cache_assets.exchange.writing import PlannedFile, Unit, make_unit, tokens_file
from niels_cache_runtime.cache.opening import cut_documents

MAX_BYTES = 200 * 1000**3  # datatrove writes at most 100 billion tokens to a file: this many bytes of uint16
INDEX_DTYPE = np.dtype("<u8")

_ENTRIES = 1 << 18  # the number of index entries written at a time


def units(split: ExportSplit, max_bytes: int, *_: object) -> list[Unit]:
    """Return the units of a split. Each unit is three files for one part.

    Raises:
        NielsCacheError: If a document is larger than `max_bytes`.
    """
    size = split.dtype.itemsize
    cuts = cut_documents(split.folder, split.doc_ends, max_bytes // size, token_bytes=size)
    return [_unit(split, f"{split.split}/{split.name}_{index:05d}_unshuffled.ds", *cut) for index, cut in enumerate(cuts)]


def human_tokens(tokens: int) -> str:
    """Return a number of tokens in the form `12.0 T` or `1.23 MT`: three digits, as in line 3 of datatrove's metadata."""
    exponent = len(str(tokens)) - 1
    thousands, shift = divmod(exponent, 3)
    if round(tokens / 1000**thousands, 2 - shift) >= 10 ** (shift + 1):  # 9.996 becomes 10.0
        thousands, shift = divmod(exponent + 1, 3)
    return f"{tokens / 1000**thousands:.{2 - shift}f} {('', 'k', 'M', 'G', 'T', 'P', 'E')[thousands]}T"


def _unit(split: ExportSplit, name: str, first_document: int, end_document: int, first: int, end: int) -> Unit:
    tokens, documents, size = end - first, end_document - first_document, split.dtype.itemsize
    metadata = f"{_tokenizer(split)}|{size}\n{tokens}\n{human_tokens(tokens)}".encode()

    def index() -> Iterator[bytes]:
        for start in range(first_document, end_document, _ENTRIES):
            yield (split.doc_ends[start : min(start + _ENTRIES, end_document)] - np.uint64(first)).astype(INDEX_DTYPE).tobytes()

    return make_unit(
        tokens_file(split, name, first, end, documents=documents),
        (PlannedFile(name=f"{name}.index", bytes=documents * INDEX_DTYPE.itemsize), index),
        (PlannedFile(name=f"{name}.metadata", bytes=len(metadata)), lambda: [metadata]),
    )


def _tokenizer(split: ExportSplit) -> str:
    """Return the tokenizer's hash, which stands for the tokenizer's name on the hub.

    It contains no `|`, because datatrove reads a number after `|`.
    """
    sha256 = split.meta.get("tokenizer_sha256")
    return f"sha256:{sha256}" if sha256 else "unknown"


FORMAT = ExportFormat(units=units, max_bytes=MAX_BYTES)
