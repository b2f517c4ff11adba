"""The files of OLMo-core: NAME_SPLIT/part-00000.npy, ..., each with a .csv.gz of its documents. dolma and OLMo-core use the same names.

    .npy      uint16 or uint32 tokens, without a header despite the name: OLMo-core maps the file from its first byte
    .csv.gz   a line for each document: its start and its end in the file, in tokens

Each split of each data set has its own folder, because OLMo-core's patterns have only `*` and match all files of a folder. A document is
never split between files, because OLMo-core's packing and padding data sets drop the tokens after the last EOT of a file. EOT follows each
document. OLMo-core reads the .csv.gz for files at a remote address, and if it does not find documents by their EOT. The content of the
.csv.gz is stored without compression, which gzip allows, so that its bytes do not depend on the version of zlib. A plan makes it once, to
know its size.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from niels_cache_assets.exchange.formats import ExportFormat
from niels_cache_assets.exchange.splits import ExportSplit
from niels_cache_assets.exchange.writing import PlannedFile, Unit, make_unit, tokens_file
from niels_cache_runtime.cache.opening import cut_documents
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Uints

MAX_BYTES = 1 << 30  # dolma writes at most 512 Mi tokens to a file: this many bytes of uint16
MAX_TOKENS = 2**32 - 1  # OLMo-core's padding and mixing data sets keep positions in a file as uint32
SEQUENCE_LENGTH = 1024  # appears in the lines to paste; users set their own value

_GZIP_HEADER = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])  # deflate; no name, no time, no system
_DOCUMENTS_IN_BLOCK = 1 << 10  # with two numbers of up to 20 digits a line, a block stays below the limit of 65,535 bytes


def units(split: ExportSplit, max_bytes: int, *_: object) -> list[Unit]:
    """Return two planned files for each part of the split.

    Raises:
        NielsCacheError: If a document is larger than `max_bytes`.
    """
    size = split.dtype.itemsize
    if max_bytes // size > MAX_TOKENS:
        raise NielsCacheError(f"max_bytes={max_bytes}: OLMo-core keeps positions in a file as uint32; give at most {MAX_TOKENS * size}")
    cuts = cut_documents(split.folder, split.doc_ends, max_bytes // size, token_bytes=size)
    return [_unit(split, f"{_folder(split)}/part-{index:05d}", *cut) for index, cut in enumerate(cuts)]


def notes(splits: Sequence[ExportSplit]) -> list[str]:
    """Return notes on surprising behaviour of OLMo-core, and on unknown values in the lines to paste."""
    found = ["OLMo-core drops the end of each file that does not fill sequence_length; numpy.load refuses these .npy, which have no header"]
    unknown = [name for name, value in (("VOCAB_SIZE", splits[0].vocab_size), ("EOS", splits[0].eot_id)) if value is None]
    if unknown:
        found.append(f"meta.json has no value for {' and '.join(unknown)}; write the numbers yourself")
    if splits[0].eot is None:
        found.append("only the .csv.gz holds the ends of documents: set OLMO_DATA_PREP_USE_ARRAY_IF_LOCAL=false")
    return found


def lines(folder: Path, splits: Sequence[ExportSplit]) -> list[str]:
    """Return Python code for the configuration of each split's data set.

    The code sets dtype, because OLMo-core would use the narrowest dtype for the vocabulary, such as uint8 for up to 256 ids.
    NumpyFSLDataset does not pad. Other data sets of OLMo-core pad with EOT, as in OLMo-core's configuration for GPT-2. For an unknown
    number, the code has an undefined name, so Python refuses to run it.
    """
    eos = "EOS" if splits[0].eot_id is None else splits[0].eot_id
    size = "VOCAB_SIZE" if splits[0].vocab_size is None else splits[0].vocab_size
    given = f"tokenizer=tokenizer, sequence_length={SEQUENCE_LENGTH}, dtype=NumpyDatasetDType.{splits[0].dtype.name}"
    return [
        "from olmo_core.data import NumpyDatasetDType, NumpyFSLDatasetConfig, TokenizerConfig",
        f"tokenizer = TokenizerConfig(vocab_size={size}, eos_token_id={eos}, pad_token_id={eos})",
        *(
            f"{split.split} = NumpyFSLDatasetConfig.glob({os.path.join(os.path.abspath(folder), _folder(split), '*.npy')!r}, {given})"
            for split in splits
        ),
    ]


def _folder(split: ExportSplit) -> str:
    return f"{split.name}_{split.split}"


def _unit(split: ExportSplit, stem: str, first_document: int, end_document: int, first: int, end: int) -> Unit:
    def metadata() -> Iterator[bytes]:
        checksum, size, before = 0, 0, np.zeros(1, dtype=np.uint64)
        yield _GZIP_HEADER
        for start in range(first_document, end_document, _DOCUMENTS_IN_BLOCK):
            stop = min(start + _DOCUMENTS_IN_BLOCK, end_document)
            ends = split.doc_ends[start:stop] - np.uint64(first)
            block = _csv(np.concatenate([before, ends[:-1]]), ends)
            checksum, size, before = zlib.crc32(block, checksum), size + len(block), ends[-1:]
            # the header of a stored block: whether it is the last, its length, the complement of the length
            yield struct.pack("<BHH", stop == end_document, len(block), len(block) ^ 0xFFFF) + block
        yield struct.pack("<II", checksum, size % 2**32)

    return make_unit(
        tokens_file(split, f"{stem}.npy", first, end, documents=end_document - first_document),
        (PlannedFile(name=f"{stem}.csv.gz", bytes=sum(map(len, metadata()))), metadata),
    )


def _csv(starts: Uints, ends: Uints) -> bytes:
    from pyarrow import BufferOutputStream, table
    from pyarrow.csv import WriteOptions, write_csv

    written = BufferOutputStream()
    write_csv(table({"start": starts, "end": ends}), written, WriteOptions(include_header=False))
    return written.getvalue().to_pybytes()


FORMAT = ExportFormat(
    units=units,
    max_bytes=MAX_BYTES,
    notes_and_lines=lambda splits, settings: (notes(splits), lines(settings.out, splits)),
)
