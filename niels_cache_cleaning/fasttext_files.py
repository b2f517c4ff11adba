"""The form of a model file of fastText, checked before its C++ code reads the file.

That code trusts every number in the file: of a file that was cut off, it reads forever, or takes all memory. Here the numbers are read and
compared with each other and with the size of the file, and no weight is looked at. The cost grows with
the number of words.

The form, little-endian: magic number and version, 12 settings and `t`, the numbers of the dictionary, its entries (a word that ends with
NUL, a count and a kind), pairs of pruned n-grams, the input matrix, and the output matrix. A matrix follows the byte that says whether it
is quantized.
"""

import mmap
import struct
from pathlib import Path

from niels_cache_runtime.errors import NielsCacheError

_MAGIC, _VERSIONS = 793712314, (11, 12)
_SUPERVISED = 3
_SETTINGS = struct.Struct("<2i12id")
_DICTIONARY = struct.Struct("<3i2q")
_SHAPE = struct.Struct("<2q")
_QUANTIZED = struct.Struct("<?2qi")
_QUANTIZER = struct.Struct("<4i")
_CENTROIDS = 256
_AFTER_WORD = 9  # bytes: count and kind


class _DamagedError(Exception):
    """What is wrong with the file."""


def check_model(path: Path) -> None:
    """Check that a file is a whole supervised model.

    Raises:
        NielsCacheError: If it is not.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            _Reader(content).check()
    except (_DamagedError, struct.error, ValueError) as error:  # ValueError: an empty file
        problem = error if isinstance(error, _DamagedError) else "it is too short"
        raise NielsCacheError(f"{path}: is no model of fastText that can be used: {problem}; train or copy it again") from error


class _Reader:
    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._place = content, 0

    def check(self) -> None:
        magic, version, dim, *others, _ = self._read(_SETTINGS)
        if magic != _MAGIC or version not in _VERSIONS:
            raise _DamagedError("it begins with other bytes than one")
        if others[6] != _SUPERVISED:
            raise _DamagedError("it has word vectors and is not a classifier")
        size, words, labels, _, pruned = self._read(_DICTIONARY)
        if size != words + labels or min(words, labels) < 0 or labels < 1 or dim < 1:
            raise _DamagedError(f"it has {words} words and {labels} labels of {size} entries")
        for number in range(size):
            self._place = self._content.find(b"\0", self._place) + 1
            self._skip(_AFTER_WORD if self._place else len(self._content) + 1)
            if self._content[self._place - 1] != (number >= words):  # labels follow the words
                raise _DamagedError(f"entry {number} is of another kind than its place says")
        pairs = self._place
        self._skip(8 * max(pruned, 0))
        if any(not 0 <= row < pruned for _, row in struct.iter_unpack("<2i", self._content[pairs : self._place])):
            raise _DamagedError("its list of n-grams names rows that do not exist")
        is_quantized = self._flag()
        rows = self._matrix(is_quantized, dim)
        buckets, maxn, word_ngrams = others[7], others[9], others[4]
        has_ngrams = word_ngrams > 1 or (maxn > 0 and version > 11)
        if has_ngrams and buckets < 1:
            raise _DamagedError("it has n-grams without buckets")
        if rows < words + (pruned if pruned >= 0 else buckets if has_ngrams else 0):
            raise _DamagedError(f"its matrix has {rows} rows, too few for {words} words")
        if self._matrix(self._flag() and is_quantized, dim) != labels:
            raise _DamagedError(f"its matrix of labels has not {labels} rows")
        if self._place != len(self._content):
            raise _DamagedError("it has more bytes than one")

    def _matrix(self, is_quantized: bool, dim: int) -> int:
        """Skip a matrix, and return its number of rows."""
        _, rows, columns, *codes = found = self._read(_QUANTIZED) if is_quantized else (False, *self._read(_SHAPE))
        if columns != dim or rows < 0:
            raise _DamagedError(f"a matrix has {rows} x {columns} numbers, not {dim} columns")
        if not is_quantized:
            self._skip(4 * rows * columns)
            return int(rows)
        self._skip(codes[0])
        if codes[0] != rows * self._quantizer(dim):
            raise _DamagedError("a quantized matrix has another number of codes")
        if found[0]:
            self._skip(rows)
            self._quantizer(1)
        return int(rows)

    def _quantizer(self, expected: int) -> int:
        """Skip a quantizer, and return the number of codes of a row."""
        dim, parts, width, last = self._read(_QUANTIZER)
        if dim != expected or width < 1 or not 0 < last <= width or (parts - 1) * width + last != dim:
            raise _DamagedError("a quantizer does not fit its matrix")
        self._skip(4 * dim * _CENTROIDS)
        return int(parts)

    def _flag(self) -> bool:
        return bool(self._read(struct.Struct("<?"))[0])

    def _read(self, form: struct.Struct) -> tuple[int, ...]:
        found = form.unpack_from(self._content, self._place)
        self._place += form.size
        return found

    def _skip(self, count: int) -> None:
        if count < 0 or count > len(self._content) - self._place:
            raise _DamagedError("it is too short")
        self._place += count
