"""Windows of a published split by one request each: for small runs and evaluation. Nothing is written to the disk.

A window costs a round trip to the store, and a window over two shards costs two. Eight requests run at a time. Nothing is hashed, because a
hash covers a whole shard. The size, the recorded hash and the ETag of each object are compared. meta.json and the document ends are in
memory, and these are hashed. A forked process cannot send requests, so the workers of a DataLoader must be spawned.
"""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from niels_cache_runtime.cache.mmap import SlotTokens, check_doc_ends, check_offsets_form
from niels_cache_runtime.cache.opening import OpenedSplit
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, Ints, Split, Tokens, Uints, doc_ends_name, token_dtype_of
from niels_cache_runtime.loader.windows import PretrainWindows
from niels_cache_runtime.remote.copied_build import CopiedBuild
from niels_cache_runtime.remote.pieces import another_object, read_range
from niels_cache_runtime.remote.record import RemoteFile
from niels_cache_runtime.remote.store import RemoteError, Store, open_store

_AT_ONCE = 8


class RangeWindows(PretrainWindows):
    """A `source.Source` of windows that are requested one by one.

    folder: the address, for messages. The other arguments are those of PretrainWindows. The object can be pickled.
    requests, bytes: the counts of this process so far. Raises RemoteError if the store refuses or does not answer.
    """

    def __init__(self, folder: str, *, build: CopiedBuild, split: Split, T: int, stride: int | None) -> None:
        self.T, self.stride, self.folder, self.build = T, T if stride is None else stride, folder, build
        self.path = f"{build.address}/{split}"
        self.requests, self.bytes = 0, 0
        self._objects = build.shards(split)
        self._store: Store | None = None
        self._e_tags: dict[str, str | None] = {}
        tokens = SlotTokens([file.size for file in self._objects], dtype=token_dtype_of(build.published.meta))
        self._use(
            OpenedSplit(
                meta=build.published.meta,
                shards=[f"{build.address}/{file.key}" for file in self._objects],
                tokens=tokens,
                doc_ends=self._read_doc_ends(split, int(tokens.shard_lengths.sum())),
            )
        )

    def _read_doc_ends(self, split: Split, token_count: int) -> Uints | None:
        file = next((file for file in self.build.published.data if file.path == doc_ends_name(split)), None)
        if file is None:
            return None
        content, name = self._request(file, 0, file.size), f"{self.build.address}/{file.key}"
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise RemoteError(f"{name}: its content has another sha256 than recorded; push it again with --repair")
        ends = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        check_offsets_form(name, ends, DOC_ENDS_DTYPE)
        check_doc_ends(name, ends, token_count=token_count)
        return ends

    def _request(self, file: RemoteFile, start: int, length: int) -> bytes:
        if not length:
            return b""
        if self._store is None:
            self._store = open_store(self.build.address)
        found = read_range(self._store, file, length, start=start)
        self.requests, self.bytes = self.requests + 1, self.bytes + length
        if self._e_tags.setdefault(file.key, found.e_tag) != found.e_tag:
            raise another_object(self._store, file)
        return found.content

    def _read_tokens(self, starts: Ints) -> Tokens:
        rows = np.empty((len(starts), self.T + 1), dtype=self._dtype)
        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(starts)))) as pool:
            for row, content in zip(rows, pool.map(self._window, starts.tolist()), strict=True):
                row[:] = np.frombuffer(content, dtype=self._dtype)
        return rows

    def _window(self, start: int) -> bytes:
        """Return the bytes of the window that begins at a place in the stream."""
        shard, content, size = int(self._stream_ends.searchsorted(start, side="right")), b"", (self.T + 1) * self._dtype.itemsize
        skipped = (start - int(self._stream_starts[shard])) * self._dtype.itemsize
        while len(content) < size:
            file = self._objects[shard]
            content += self._request(file, skipped, min(file.size - skipped, size - len(content)))
            shard, skipped = shard + 1, 0
        return content

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("folder", "build", "split", "T", "stride")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
