"""An index of the tokens of a cache: suffix arrays, in which a phrase of tokens is found without reading the tokens.

A split is divided into ranges of at most 128 M tokens. The suffix array of a range has the positions of all its tokens, sorted by the
tokens that follow up to the end of the range. So all places of a phrase are one slice of it, which two binary searches find. They read the
tokens of the cache, of which the index has no copy. A place that crosses the border of two ranges is in no array: the tokens at the borders
are compared with the phrase. Documents do not matter here: a place may cross the end of a document.

    files     of each range, its positions as uint32; of each split, the keys: the first 16 bytes of tokens of every 1024th suffix
    size      4.016 bytes a token, and as many in the staging folder during a build
    build     libdivsufsort sorts a range as bytes: of each token as few as hold the largest id, the high byte first. Positions inside
              tokens are left out afterwards. With 2 bytes (3, 4), this takes 10 bytes of memory a token (15, 20), 1.4 GB (2.0, 2.7) for
              a full range
    search    the keys, which are in memory, leave 1024 suffixes, in one page of the array. So a search reads about 12 pages of a range from
              a disk, most of them pages of tokens

The arrays are determined by the tokens, so any number of threads makes the same bytes. pydivsufsort (the extra `find`) is needed to build
an index, not to search in it.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from niels_cache_assets.artifacts.base import BuildJob, ReportedProgress
from niels_cache_assets.artifacts.suffixes import SuffixIndex, suffixes_dir
from niels_cache_assets.base.parallel import map_in_order
from niels_cache_assets.disk.identity import without_keys
from niels_cache_assets.disk.space import SpaceNeed
from niels_cache_assets.disk.writers import Files, HashedFile
from niels_cache_assets.facts.split_tokens import SplitTokens
from niels_cache_runtime.cache.mmap import MappedTokens, slice_pieces
from niels_cache_runtime.cache.opening import open_consistently
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, Array, Bytes, Family, Ints, Split, Uints, token_dtype_of
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.format.meta import content_sha256 as hash_of_content
from niels_cache_runtime.format.reading import available_threads

CODE_VERSION = "1"  # raise it by hand when the files change for the same tokens

_STRIDE = 1024  # suffixes for each key: their positions fill a page
_KEY_WORDS = 2
_POSITION, _KEY = np.dtype("<u4"), np.dtype("<u8")
_BUILD_BYTES = 5_500_000_000  # the most memory of all ranges that are sorted at the same time
_BLOCK = 1 << 22
_MADV_RANDOM = 1  # the same on Linux and macOS


class _Range(NamedTuple):
    """A range of a split: the number of the range, and its first token and the token after its last one."""

    split: Split
    number: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.split}_{self.number:05d}.bin"


def _keys_name(split: Split) -> str:
    return f"{split}_keys.bin"


def _ranges(split: Split, tokens: int, range_tokens: int) -> list[_Range]:
    starts = range(0, tokens, range_tokens)
    return [_Range(split, number, start, min(start + range_tokens, tokens)) for number, start in enumerate(starts)]


def index_need(artifact: SuffixIndex) -> SpaceNeed:
    """Return the disk space that a build of an index needs.

    Raises:
        NielsCacheError: If the cache cannot be read.
    """
    tokens = sum(map(len, _open_cache(artifact.cache)[1].values()))
    keys = (tokens // _STRIDE + 1) * _KEY_WORDS * _KEY.itemsize
    return SpaceNeed(bytes=tokens * _POSITION.itemsize + keys, reason=f"an index of {tokens:,} tokens")


def build_index(artifact: SuffixIndex, work: BuildJob) -> Meta:
    """Write the index of a cache, and return its meta.json.

    Raises:
        NielsCacheError: As `write_index`.
    """
    files: Files = {}
    counts = write_index(
        work.directory,
        cache=artifact.cache,
        content_sha256=work.identity["inputs"][artifact.inputs()[0]],
        range_tokens=artifact.registry.find.range_tokens,
        threads=artifact.registry.build.threads or available_threads(),
        files=files,
        report=lambda done, total: work.report(ReportedProgress(counts={"tokens": done}, share=done / total)),
    )
    return {
        "kind": artifact.kind,
        "built": True,
        "dataset_name": artifact.name,
        **without_keys(work.identity, "code_version"),
        "index_version": int(CODE_VERSION),
        "fingerprint": work.fingerprint,
        **counts,
        "files": files,
        "content_sha256": hash_of_content(files),
    }


def write_index(
    directory: Path,
    *,
    cache: Path,
    content_sha256: str,
    range_tokens: int,
    threads: int,
    files: Files,
    report: Callable[[int, int], None],
) -> dict[str, int]:
    """Write the index of a cache.

    Args:
        directory: The folder to write to.
        cache: The folder of the cache, ROOT/FAMILY/NAME.
        content_sha256: What its meta.json must have.
        range_tokens: The most tokens of a range.
        threads: The most ranges that are sorted at the same time. Fewer are if they would take more than 5.5 GB of memory.
        files: Gets the size and the sha256 of each file.
        report: Called with the number of tokens that are sorted, and of all.

    Returns:
        The number of tokens of each split, by the keys `train_tokens` and `val_tokens`.

    Raises:
        NielsCacheError: If pydivsufsort is not installed, or files of the cache are missing or inconsistent, or it was replaced.
    """
    divsufsort, (meta, splits) = _import_divsufsort(), open_consistently(cache, lambda: _open_cache(cache))
    if meta["content_sha256"] != content_sha256:
        raise NielsCacheError(f"{cache}: was built again while its index was about to be built; run this again")
    ranges = [each for split, tokens in splits.items() for each in _ranges(split, len(tokens), range_tokens)]
    largest = max((each.stop - each.start for each in ranges), default=1)
    most = max(1, _BUILD_BYTES // (5 * token_dtype_of(meta).itemsize * largest))
    keys = {split: HashedFile(directory, _keys_name(split), files) for split in SPLITS}
    done, total = 0, sum(map(len, splits.values()))
    sort = partial(_write_range, directory, splits, divsufsort, files)
    for each, of_range in zip(ranges, map_in_order(sort, ranges, threads=min(threads, most), size_of=lambda _: 0), strict=True):
        keys[each.split].append(of_range.tobytes())
        done += each.stop - each.start
        report(done, total)
    for file in keys.values():
        file.seal()
    return {f"{split}_tokens": len(tokens) for split, tokens in splits.items()}


def _open_cache(cache: Path) -> tuple[Meta, dict[Split, SplitTokens]]:
    """Return the meta.json of a cache, and the tokens of its splits."""
    meta, family = read_meta(cache / META_NAME), cast(Family, cache.parent.name)
    return meta, {split: SplitTokens(cache, family, split, meta) for split in SPLITS}


def _import_divsufsort() -> Any:
    try:
        from pydivsufsort import divsufsort
    except ImportError as error:
        raise NielsCacheError(
            'an index for `niels-cache find` needs pydivsufsort: pip install "niels-cache[find]", or leave out index in [find]'
        ) from error
    return divsufsort


def _write_range(directory: Path, splits: dict[Split, SplitTokens], divsufsort: Any, files: Files, of: _Range) -> Uints:
    """Sort a range, write its positions, and return its keys, (keys, words) uint64."""
    tokens = splits[of.split]
    text = _sortable_bytes(tokens, of)
    width = text.shape[1]
    order = divsufsort(text.reshape(-1))
    keys, file = list[Uints](), HashedFile(directory, of.name, files)
    for first in range(0, len(order), _BLOCK):
        block = order[first : first + _BLOCK]
        positions = (block[block % width == 0] // width).astype(_POSITION)
        keys.append(_keys_at(text, positions[-(file.bytes // _POSITION.itemsize) % _STRIDE :: _STRIDE], tokens.dtype.itemsize))
        file.append(positions.tobytes())
    file.seal()
    return np.concatenate(keys)


def _sortable_bytes(tokens: SplitTokens, of: _Range) -> Bytes:
    """Return the tokens of a range as bytes, (tokens, width) uint8, whose order is that of the tokens."""
    pieces = [piece for shard in slice_pieces(tokens.shards, of.start, of.stop) for piece in _blocks(shard)]
    width = max(1, (int(max(piece.max() for piece in pieces)).bit_length() + 7) // 8)
    text, first = np.empty((of.stop - of.start, width), dtype=np.uint8), 0
    for piece in pieces:
        for column in range(width):
            text[first : first + len(piece), column] = (piece >> 8 * (width - 1 - column)).astype(np.uint8)
        first += len(piece)
    return text


def _blocks(shard: Array) -> Iterator[Array]:
    return (shard[first : first + _BLOCK] for first in range(0, len(shard), _BLOCK))


def _keys_at(text: Bytes, positions: Array, token_bytes: int) -> Uints:
    """Return the keys of suffixes: their first tokens in two numbers, with zeros after the end of the range."""
    keys, per_word = np.zeros((len(positions), _KEY_WORDS), dtype=_KEY), _KEY.itemsize // token_bytes
    for number in range(_KEY_WORDS * per_word):
        places = positions.astype(np.int64) + number
        rows = text[np.minimum(places, len(text) - 1)].astype(np.uint64)
        token = np.zeros(len(positions), dtype=np.uint64)
        for column in rows.T:
            token = token << np.uint64(8) | column
        word, place = divmod(number, per_word)
        keys[:, word] |= np.where(places < len(text), token, 0).astype(_KEY) << np.uint64(8 * token_bytes * (per_word - 1 - place))
    return keys


class TokenIndex:
    """The index of a cache, open for searches in both splits. Its files and those of the cache stay mapped; threads may share it.

    Args:
        directory: The folder of the index.
        meta: Its meta.json.
        splits: The tokens of the cache.

    Raises:
        NielsCacheError: If the index is not of these tokens.
    """

    def __init__(self, directory: Path, meta: Meta, splits: Mapping[Split, SplitTokens]) -> None:
        self._splits = {
            split: _SplitIndex(directory, tokens, _ranges(split, meta[f"{split}_tokens"], meta["range_tokens"]))
            for split, tokens in splits.items()
        }

    def count(self, split: Split, ids: Sequence[int]) -> int:
        """Return the number of places of these ids in a split, without reading all of them."""
        return self._splits[split].count([*ids])

    def positions(self, split: Split, ids: Sequence[int]) -> Ints:
        """Return the places of these ids in a split: the position of the first token of each in the token stream, ascending.

        Overlapping places count, and places across the ends of documents. Nothing is found for ids that the tokens cannot have.
        """
        return self._splits[split].positions([*ids])


class _SplitIndex:
    """The index of one split."""

    def __init__(self, directory: Path, tokens: SplitTokens, ranges: Sequence[_Range]) -> None:
        self._directory, self._tokens, self._ranges = directory, tokens, ranges
        if ranges and ranges[-1].stop != len(tokens):
            raise NielsCacheError(
                f"{directory}: is of {ranges[-1].stop:,} tokens of {ranges[0].split}, not {len(tokens):,}; build it again"
            )

    @cached_property
    def _arrays(self) -> list[tuple[Array, Uints]]:
        """The positions of each range, and its keys in memory, (words, keys)."""
        if not self._ranges:
            return []
        sizes = [(each.stop - each.start) * _POSITION.itemsize for each in self._ranges]
        counts = [-(-(each.stop - each.start) // _STRIDE) for each in self._ranges]
        path, size = self._directory / _keys_name(self._ranges[0].split), sum(counts) * _KEY_WORDS * _KEY.itemsize
        try:
            arrays = MappedTokens([self._directory / each.name for each in self._ranges], dtype=_POSITION, sizes=sizes).shards
            keys = MappedTokens([path], dtype=_KEY, sizes=[size]).shards[0].reshape(-1, _KEY_WORDS)
        except NielsCacheError as error:
            raise NielsCacheError(f"{error}; remove the damaged index {self._directory}, and build it again if you need it") from error
        for each in (*arrays, *self._tokens.shards):
            _read_at_random(each)
        ends = [*accumulate(counts)][:-1]
        return [*zip(arrays, (np.ascontiguousarray(of_range.T) for of_range in np.split(keys, ends)), strict=True)]

    def count(self, ids: list[int]) -> int:
        found = sum(last - first for _, _, first, last in self._slices(ids))
        return found + len(self._at_borders(ids))

    def positions(self, ids: list[int]) -> Ints:
        found = [array[first:last].astype(np.int64) + start for array, start, first, last in self._slices(ids)]
        return np.sort(np.concatenate([*found, self._at_borders(ids)]))

    def _slices(self, ids: list[int]) -> Iterator[tuple[Array, int, int, int]]:
        """Yield the array of each range, the position of its first token, and the slice of the array that has the places of these ids."""
        if self._are_possible(ids):
            for (array, keys), of in zip(self._arrays, self._ranges, strict=True):
                yield array, of.start, *self._slice(array, keys, of, ids)

    def _are_possible(self, ids: list[int]) -> bool:
        if not ids:
            raise NielsCacheError("an index finds one token or more; give ids")
        return min(ids) >= 0 and max(ids) <= np.iinfo(self._tokens.dtype).max

    def _slice(self, array: Array, keys: Uints, of: _Range, ids: list[int]) -> tuple[int, int]:
        """Return the slice of an array that has the places of these ids."""

        def prefix(number: int) -> list[int]:
            place = of.start + int(array[number])
            return list(self._tokens.read(place, min(len(ids), of.stop - place)).tolist())

        per_word = _KEY.itemsize // self._tokens.dtype.itemsize
        below, upto = _count_keys(keys, ids, per_word)
        low, high = max(0, (below - 1) * _STRIDE + 1), min(len(array), upto * _STRIDE)
        # If a key has all ids, the suffixes between those of the counted keys begin with them. But an id of 0 may be the end of the range.
        is_exact = len(ids) <= per_word * _KEY_WORDS and 0 not in ids
        first = bisect_left(range(len(array)), ids, low, min(high, below * _STRIDE) if is_exact else high, key=prefix)
        last = max(first, (upto - 1) * _STRIDE + 1) if is_exact else first
        step = 1
        while last + step <= high and prefix(last + step - 1) == ids:
            last, step = last + step, 2 * step
        return first, bisect_right(range(len(array)), ids, last, min(high, last + step), key=prefix)

    def _at_borders(self, ids: list[int]) -> Ints:
        """Return the places that cross the border of two ranges."""
        if not self._are_possible(ids):
            return np.empty(0, dtype=np.int64)
        phrase, size = np.array(ids, dtype=self._tokens.dtype).tobytes(), self._tokens.dtype.itemsize
        found = set[int]()
        for of in self._ranges[1:]:
            begin = max(0, of.start - len(ids) + 1)
            around = self._tokens.read(begin, of.start + len(ids) - 1 - begin).tobytes()
            at = around.find(phrase)
            while at >= 0:
                if at % size == 0:
                    found.add(begin + at // size)
                at = around.find(phrase, at + 1)
        return np.array(sorted(found), dtype=np.int64)


def _count_keys(keys: Uints, ids: list[int], per_word: int) -> tuple[int, int]:
    """Return how many keys, (words, keys), are below every suffix that begins with these ids, and how many are not above all of them."""
    bits, counts = 8 * _KEY.itemsize // per_word, list[int]()
    for filler, is_upper in ((0, False), ((1 << bits) - 1, True)):
        bound = [*ids, *[filler] * (_KEY_WORDS * per_word)]
        first, last = 0, keys.shape[1]  # of the keys that begin with the words so far
        for word, column in enumerate(keys):
            value = np.uint64(sum(bound[word * per_word + place] << bits * (per_word - 1 - place) for place in range(per_word)))
            after = first + int(column[first:last].searchsorted(value, side="right"))
            first += int(column[first:last].searchsorted(value, side="left"))
            last = after
        counts.append(last if is_upper else first)
    return counts[0], counts[1]


def _read_at_random(array: Array) -> None:
    """Tell the kernel that pages of a mapped file are read in no order, so that it reads no other pages with them."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is not None and array.nbytes:
        madvise(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), _MADV_RANDOM)


def open_index(cache: str | Path) -> TokenIndex | None:
    """Return the index of a cache, or None if it has none, or only one of other tokens or of another version.

    Args:
        cache: The folder of the cache, ROOT/FAMILY/NAME.

    Raises:
        NielsCacheError: If the cache or its index cannot be read.
    """
    cache = Path(cache).absolute()
    directory = suffixes_dir(cache.parents[1], cache.name)

    def open_both() -> TokenIndex | None:
        if not (directory / META_NAME).exists():
            return None
        meta, (cache_meta, splits) = read_meta(directory / META_NAME), _open_cache(cache)
        inputs = {f"{cache.parent.name}/{cache.name}": cache_meta.get("content_sha256")}
        if (meta.get("index_version"), meta.get("inputs")) != (int(CODE_VERSION), inputs):
            return None
        return TokenIndex(directory, meta, splits)

    return open_consistently(directory, lambda: open_consistently(cache, open_both))


def candidates(cache: str | Path, split: Split, ids: Sequence[int]) -> Ints | None:
    """Return the places of ids in a split as `TokenIndex.positions` does, or None if the cache has no current index."""
    index = open_index(cache)
    return None if index is None else index.positions(split, ids)
