"""Megatron-LM's IndexedDataset, written: the bytes of megatron-core's IndexedDatasetBuilder, streamed.

Sequences are written as they come; lengths, document indices and modes wait in spools beside the output, so that memory does not grow
with their number. Files appear when they are complete, .bin first: an .idx that is there is that of its .bin. A whole split of a cache is
the business of `indexed_writer`.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPE
from niels_cache_runtime.megatron.indexed import (
    BLOCK,
    DOCUMENTS_DTYPE,
    DTYPE_CODES,
    HEADER,
    LENGTHS_DTYPE,
    MAGIC,
    MODES_DTYPE,
    POINTERS_DTYPE,
    VERSION,
)

MAX_SEQUENCE_TOKENS = 2**31 - 1

Blocks = Callable[[], Iterator[NDArray[Any]]]


class IndexedWriter:
    """Writes PREFIX.bin and PREFIX.idx as megatron-core's IndexedDatasetBuilder does, sequence by sequence. A context manager: the files
    appear when its block ends well.

    dtype: of a token, one of the format's. multimodal: each sequence has a mode, an int8. Raises NielsCacheError if a file is there and
    not `force`, if a token does not fit into dtype, or if a file cannot be written.
    """

    def __init__(self, prefix: str | Path, *, dtype: Any = TOKEN_DTYPE, multimodal: bool = False, force: bool = False) -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")
        if self.dtype not in DTYPE_CODES:
            raise NielsCacheError(f"dtype={self.dtype}: this format has {', '.join(str(known) for known in DTYPE_CODES)}")
        if not force:
            refuse_existing(str(prefix))
        self._output = Output(str(prefix))
        self._multimodal = multimodal
        self._sequences = 0
        self._entries = 1

    def add_sequence(self, tokens: NDArray[Any] | Sequence[int], *, mode: int = 0) -> None:
        """One more sequence of the document that is open; a document of one sequence is `add_document`."""
        given = np.asarray(tokens)
        converted = given.astype(self.dtype, casting="unsafe")
        if len(given) and not np.array_equal(converted, given):
            raise NielsCacheError(f"{self._output.prefix}: sequence {self._sequences} has a token that is no {self.dtype}")
        if len(given) > MAX_SEQUENCE_TOKENS:
            raise NielsCacheError(f"{self._output.prefix}: sequence {self._sequences} has {len(given)} tokens; an int32 counts them")
        self._bin.write(converted.tobytes())
        self._lengths.write(np.array(len(given), dtype=LENGTHS_DTYPE).tobytes())
        if self._multimodal:
            self._modes.write(np.array(mode, dtype=MODES_DTYPE).tobytes())
        self._sequences += 1

    def end_document(self) -> None:
        """The document ends here. One without sequences is allowed."""
        self._documents.write(np.array(self._sequences, dtype=DOCUMENTS_DTYPE).tobytes())
        self._entries += 1

    def add_document(
        self, tokens: NDArray[Any] | Sequence[int], *, lengths: Sequence[int] | None = None, modes: Sequence[int] | None = None
    ) -> None:
        """A whole document: one sequence, or one for each of `lengths`, tokens, which must add up."""
        lengths = [len(tokens)] if lengths is None else lengths
        if sum(lengths) != len(tokens):
            raise NielsCacheError(f"{self._output.prefix}: lengths add up to {sum(lengths)}, the document has {len(tokens)} tokens")
        start = 0
        for length, mode in zip(lengths, modes or [0] * len(lengths), strict=True):
            self.add_sequence(tokens[start : start + length], mode=mode)
            start += length
        self.end_document()

    def __enter__(self) -> Self:
        self._output.__enter__()
        with ExitStack() as files:
            files.callback(self._output.discard)
            self._bin = open(self._output.bin_path, "wb")
            folder = os.path.dirname(self._output.bin_path)  # where there is room for the output
            self._lengths, self._documents, self._modes = (_spool(folder) for _ in range(3))
            files.pop_all()
        self._documents.write(np.array(0, dtype=DOCUMENTS_DTYPE).tobytes())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            self._bin.close()
            if error is None:
                with open(self._output.idx_path, "wb") as file:
                    write_index(
                        file,
                        self.dtype,
                        sequences=self._sequences,
                        lengths=lambda: _read_spool(self._lengths, LENGTHS_DTYPE),
                        entries=self._entries,
                        document_indices=lambda: _read_spool(self._documents, DOCUMENTS_DTYPE),
                        modes=(lambda: _read_spool(self._modes, MODES_DTYPE)) if self._multimodal else None,
                    )
        finally:
            for spool in (self._lengths, self._documents, self._modes):
                spool.close()
            self._output.__exit__(kind, error, traceback)


def _spool(folder: str) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def _read_spool(spool: IO[bytes], dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    spool.seek(0)
    while block := spool.read(BLOCK * dtype.itemsize):
        yield np.frombuffer(block, dtype=dtype)


def write_index(
    file: IO[bytes], dtype: np.dtype[Any], *, sequences: int, lengths: Blocks, entries: int, document_indices: Blocks, modes: Blocks | None
) -> None:
    """An .idx, section by section. Each of `lengths` (asked for twice), `document_indices` and `modes` gives its numbers in blocks."""
    file.write(HEADER.pack(MAGIC, VERSION, DTYPE_CODES[dtype], sequences, entries))
    for block in lengths():
        file.write(block.astype(LENGTHS_DTYPE).tobytes())
    pointer = 0
    for block in lengths():
        ends = block.cumsum(dtype=np.int64) * dtype.itemsize + pointer
        file.write(np.concatenate([[pointer], ends[:-1]]).astype(POINTERS_DTYPE).tobytes())
        pointer = int(ends[-1])
    for blocks, kind in ((document_indices, DOCUMENTS_DTYPE), (modes, MODES_DTYPE)):
        for block in blocks() if blocks is not None else ():
            file.write(block.astype(kind).tobytes())


def refuse_existing(prefix: str) -> None:
    """Raise NielsCacheError if either file is there."""
    for path in (f"{prefix}.bin", f"{prefix}.idx"):
        if os.path.lexists(path):
            raise NielsCacheError(f"{path}: is there already; choose another prefix, or replace it (force)")


class Output:
    """PREFIX.bin and PREFIX.idx, written under other names, which they get when the block ends well and lose when it does not."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.bin_path, self.idx_path = f"{prefix}.bin.partial", f"{prefix}.idx.partial"

    def __enter__(self) -> Self:
        folder = os.path.dirname(os.path.abspath(self.prefix))
        try:
            os.makedirs(folder, exist_ok=True)
            self.discard()
        except OSError as error:
            raise NielsCacheError(f"{folder}: cannot write there: {error.strerror or error}; choose another prefix") from error
        return self

    def discard(self) -> None:
        for path in (self.bin_path, self.idx_path):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if error is None:
                for path in (self.bin_path, self.idx_path):
                    descriptor = os.open(path, os.O_RDONLY)
                    os.fsync(descriptor)
                    os.close(descriptor)
                with suppress(FileNotFoundError):
                    os.unlink(f"{self.prefix}.idx")  # that of a .bin which is about to go
                os.replace(self.bin_path, f"{self.prefix}.bin")
                os.replace(self.idx_path, f"{self.prefix}.idx")
        except OSError as problem:
            raise self._failed(problem) from problem
        finally:
            self.discard()
        if isinstance(error, OSError):
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> NielsCacheError:
        return NielsCacheError(f"{error.filename or self.prefix}: {error.strerror or error}; nothing was written")
