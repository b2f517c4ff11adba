"""The rules of a data set that was joined from parts: which shards may be short, and where each part begins and ends.

`parts` in meta.json lists the parts in order. The shards of a split are those of the first part, then those of the second, and so on. Only
the last shard of each part may be short.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, Split
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.meta_keys import is_count
from niels_cache_runtime.verify.offset_file import OffsetFile

Problem = tuple[str, str]
_COUNTED = ("shards", "tokens", "documents")


class JoinedParts:
    """The parts of one split. Without parts, the split counts as one part.

    Raises NielsCacheError if an entry of `parts` lacks a name or a number.
    """

    def __init__(self, meta: Meta, split: Split) -> None:
        self._split, self._parts = split, meta.get("parts")
        for entry in self._parts or ():
            for key in _COUNTED:
                if not is_count(_count(entry, key, split)) or not isinstance(entry.get("name"), str):
                    raise NielsCacheError(f"parts has an entry without a name, or without {key} of {split}; rebuild this data set")

    def may_be_short(self, shards: int) -> set[int]:
        """Return the numbers of the shards that may be short, if the split has so many shards."""
        return {shards - 1} if self._parts is None else {end - 1 for end in self._ends("shards")}

    def problems(self, sizes: dict[str, int], ends: OffsetFile | None, ends_path: str, token_bytes: int) -> Iterator[Problem]:
        """Yield the parts whose shards or documents differ from `parts`. sizes: of the shards by path, in order."""
        if self._parts is None:
            return
        paths, first, shard_ends = list(sizes), 0, self._ends("shards")
        if (listed := shard_ends[-1] if shard_ends else 0) != len(paths):
            yield META_NAME, f"parts lists {listed} shards of {self._split}, but there are {len(paths)}"
            return
        if ends is not None and (listed := sum(self._counts("documents"))) != len(ends):
            yield META_NAME, f"parts lists {listed} documents of {self._split}, but there are {len(ends)}"
            return
        token_ends, document_ends = self._ends("tokens"), self._ends("documents")
        for number, (entry, stop) in enumerate(zip(self._parts, shard_ends, strict=True)):
            size, wanted = sum(sizes[path] for path in paths[first:stop]), _count(entry, "tokens", self._split) * token_bytes
            if size != wanted:
                where = paths[stop - 1] if stop > first else META_NAME
                yield where, f"the shards of {entry['name']} have {size} bytes, but parts says {wanted}"
            elif ends is not None and document_ends[number] and int(ends[document_ends[number] - 1]) != token_ends[number]:
                yield ends_path, f"no document ends at the end of {entry['name']}"
            first = stop

    def _counts(self, key: str) -> list[int]:
        return [_count(entry, key, self._split) for entry in self._parts or ()]

    def _ends(self, key: str) -> Sequence[int]:
        return list(accumulate(self._counts(key)))


def _count(entry: dict[str, Any], key: str, split: Split) -> Any:
    counts = entry.get(key)
    return counts.get(split) if isinstance(counts, dict) else None
