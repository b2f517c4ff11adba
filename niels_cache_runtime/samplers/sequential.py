"""All tokens of a folder of files in order, in chunks that ranks take in turns, as in simple-llama and the successors of nanoGPT.

    a.npy       b.npy         the files in order, each cut into chunks of batch * seq_len tokens
    0  1  2  .  3  4  5  6 .  the chunks of all files, one list
    r0 r1 r0    r1 r0 r1      num_processes = 2: chunk 6 is left over, the next epoch begins with chunk 0

The class reads the shards of our splits, or `.npy` files that other projects write. The cost per batch is constant. Shards are mapped when
the folder is opened, and a `.npy` file is mapped when its turn comes. Shuffling, mixing and windows across files belong to `loader`.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from niels_cache_runtime.cache.checks import as_int, check_positive, check_whole
from niels_cache_runtime.cache.gather import InputTargetMaker, resolve_device
from niels_cache_runtime.cache.opening import Verify, check_same_build, listed_of_split, open_split
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    SPLITS,
    TOKEN_DTYPE,
    Array,
    Tokens,
    doc_ends_name,
    earlier_metas,
    file_edges_name,
    idx_name,
    shard_name,
    target_ends_name,
    tombstone_id,
)
from niels_cache_runtime.format.meta import Meta, content_sha256, is_foreign
from niels_cache_runtime.format.npy_files import map_npy, read_npy_header
from niels_cache_runtime.loader.state import check_values
from niels_cache_runtime.remote.split_location import Copy, SplitLocation

STATE_VERSION = 1

_OFFSET_FILES = {
    name(split) for name in (doc_ends_name, file_edges_name, idx_name, target_ends_name) for split in SPLITS
}  # 1-D, but no tokens


class DatasetLoader:
    """Chunks of batch * seq_len tokens from the files of a folder, in order, divided among ranks, endless.

    A file of n tokens holds (n - 1) // (batch * seq_len) chunks, whose targets lie in the same file. The chunks of all files are one list.
    Rank r takes chunks r, r + num_processes, and so on. So in each step the ranks take a group of neighbouring chunks, which may lie in two
    files. An epoch ends with the last whole group. In each epoch, every token is an input exactly once, with two exceptions. At the end of
    each file, at most a chunk of tokens is left out. At the end of the list, less than a group of chunks is left out.

    Many simple loaders have one pointer per rank, and read differently. There, a rank starts at process_rank * batch * seq_len in each
    file, advances by num_processes * batch * seq_len, and moves to the next file if the next step does not fit. Such a loader skips the
    last chunks of every file if they do not fill a group, and it skips the same chunks in every epoch. If a rank tests only its own
    position, ranks also change files at different steps and drift apart. With only one file, or if every file has whole groups, both kinds
    of loader read the same.

    A DatasetLoader can be pickled. A copy opens the files again, at the same position. It raises an error if the folder now holds another
    build.

    Args:
        batch: Rows per batch of this rank.
        seq_len: Tokens per row.
        process_rank: The number of this rank, 0 to num_processes - 1.
        num_processes: The number of ranks.
        dataset_dir: A folder of `shard_00000.bin`, ... (headerless little-endian uint16 or uint32), or of `.npy` files (one dimension of
            any integer type). Shards are read in the order of their numbers, `.npy` files in the order of their names. All other files are
            ignored: `.npy` files of other types and shapes, hidden files, the doc_ends and idx files of a cache, and so on. If the parent
            folder has a meta.json, the shards are compared with it, and it gives their dtype. Without it, shards hold uint16.
        device: The device of batches. For CUDA, tokens are copied from pinned memory in the width of the shards, and widened on the device.
        verify: "size" compares the shards' sizes with meta.json. "sha256" also reads the shards and compares their content.
        remote: For the address of a split in place of a folder: the local copy, such as `Copy(dir="/local/tokens", limit=200e9)`. The whole
            split is fetched first, so it must fit. Larger splits are for TokenLoader with `order=Blocks()`.

    Attributes:
        chunks: The number of chunks per epoch for all ranks.
        steps_per_epoch: The number of batches of one rank per epoch.
        epoch: The number of completed epochs.
        files: The length of each file in tokens, by name.

    Raises:
        NielsCacheError: If a setting is out of range, if the folder is missing, or if it holds no tokens or fewer than num_processes
            chunks.
        NielsCacheError: If a shard is not a whole number of tokens or is not the shard that meta.json lists, or if a `.npy` file is
            damaged.
    """

    def __init__(
        self,
        batch: int,
        seq_len: int,
        process_rank: int,
        num_processes: int,
        dataset_dir: str,
        device: str,
        *,
        verify: Verify = "size",
        remote: Copy | None = None,
    ) -> None:
        self.batch = check_positive("batch", batch)
        self.seq_len = check_positive("seq_len", seq_len)
        self.num_processes = check_positive("num_processes", num_processes)
        self.process_rank = check_whole("process_rank", process_rank, most=self.num_processes - 1)
        self.device = resolve_device(device)
        self._location = SplitLocation.of(dataset_dir, remote)
        self.dataset_dir, self._copy = self._location.whole()
        self.meta: Meta | None = None
        self._content: str | None = None  # the hash in meta.json for the shards
        self._shards: list[Tokens] = []  # empty for `.npy` files, which are mapped when their turn comes
        self._mapped: tuple[Path, Array] | None = None
        lengths = self._open(verify)
        self._paths, self.files = list(lengths), {path.name: length for path, length in lengths.items()}

        # A file of 0 tokens would have -1 // ... = -1 chunks.
        counts = [max(0, length - 1) // (self.batch * self.seq_len) for length in lengths.values()]
        self._chunk_ends = list(accumulate(counts))
        self.chunks = self._chunk_ends[-1]
        self.steps_per_epoch = self.chunks // self.num_processes
        if not self.steps_per_epoch:
            raise NielsCacheError(
                f"{dataset_dir}: {len(counts)} files with at most {max(self.files.values())} tokens hold {self.chunks} chunks of "
                f"batch * seq_len = {self.batch * self.seq_len} (and one more token), too few for num_processes={self.num_processes}; "
                "use a smaller batch or seq_len, or more tokens"
            )
        self.epoch = 0
        self._next_chunk = 0  # the first chunk of the next group, the same on every rank
        self._pairs = InputTargetMaker(self.device, tombstone_id(self.meta))

    def get_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next batch of this rank.

        The last token of y is the first token of the next chunk in the file. After the last chunk of a file, it is the token that follows.

        Returns:
            x, y: (batch, seq_len) int64, contiguous, on the device. Flattened, y is x shifted by one token, and -100 where
                `niels-cache erase --tombstone` struck a token.

        Raises:
            NielsCacheError: If a `.npy` file changed since it was opened, or holds an id that does not fit into int64.
        """
        chunk = self._next_chunk + self.process_rank
        index = bisect_right(self._chunk_ends, chunk)
        size = self.batch * self.seq_len
        start = (chunk - (self._chunk_ends[index - 1] if index else 0)) * size
        x, y = self._pairs.pairs(self._read(index, start, start + size + 1)[None])
        self._go_to(self.epoch, self._next_chunk + self.num_processes)
        return x.view(self.batch, self.seq_len), y.view(self.batch, self.seq_len)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the settings and files that it belongs to, as JSON-able values.

        Returns:
            A small dict, for `load_state_dict`. It is the same on every rank after the same number of batches.
        """
        return {
            "version": STATE_VERSION,
            "batch": self.batch,
            "seq_len": self.seq_len,
            "epoch": self.epoch,
            "next_chunk": self._next_chunk,
            "files": dict(self.files),
            "content_sha256": self._content,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was saved: the next batches are those of an uninterrupted run.

        The state of any rank serves all ranks. num_processes may differ from the saved run if the position is a multiple of the new
        num_processes. This is always so at the start of an epoch, and if the new number divides the old one. The change of num_processes
        then skips no chunk and repeats no chunk. Only the chunks that are left over at the end of the epoch depend on the new number.

        Args:
            state: A state of `state_dict`.

        Raises:
            NielsCacheError: If the state is not a state of this class, or if the position is not a multiple of num_processes. Then nothing
                changes.
            NielsCacheError: If batch, seq_len or the content of the folder differ (files, their lengths, and their entries in meta.json).
                Then nothing changes.
        """
        check_values(state)
        if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
            raise NielsCacheError(f"the state is not one of DatasetLoader, version {STATE_VERSION}; pass the result of state_dict()")
        for name in ("batch", "seq_len"):
            if state.get(name) != getattr(self, name):
                raise NielsCacheError(
                    f"the state was saved with {name}={state.get(name)!r}, but this loader has {name}={getattr(self, name)}; use the same"
                )
        saved = state.get("files")
        saved = saved if isinstance(saved, Mapping) else {}
        changed = [name for name in sorted(saved.keys() | self.files.keys()) if saved.get(name) != self.files.get(name)]
        if changed:
            name = changed[0]
            raise NielsCacheError(
                f"{Path(self.dataset_dir) / name}: has {self.files.get(name, 'no')} tokens, but the state was saved with "
                f"{saved.get(name, 'none')} ({len(changed)} files differ); restore the files or start again"
            )
        if state.get("content_sha256") not in (self._content, *map(self._content_of, earlier_metas(self.meta))):
            raise NielsCacheError(f"{self.dataset_dir}: was rebuilt with other tokens since the state was saved; restore it or start again")
        epoch, next_chunk = as_int(state.get("epoch")), as_int(state.get("next_chunk"))
        if epoch is None or epoch < 0 or next_chunk is None or not 0 <= next_chunk <= self.chunks:
            raise NielsCacheError(
                f"the state has epoch={state.get('epoch')!r}, next_chunk={state.get('next_chunk')!r}; "
                f"pass the result of state_dict(), with next_chunk from 0 to {self.chunks}"
            )
        if next_chunk % self.num_processes:
            raise NielsCacheError(
                f"the state is at chunk {next_chunk}, which does not begin a group of num_processes={self.num_processes}; "
                f"resume with a divisor of {next_chunk}, or from a state saved at an epoch's start"
            )
        self._go_to(epoch, next_chunk)

    def _go_to(self, epoch: int, next_chunk: int) -> None:
        """Move to a chunk (batch * seq_len tokens), or at the end of an epoch to the start of the next epoch.

        So a state that is saved at the end of an epoch fits any num_processes.
        """
        at_end = next_chunk + self.num_processes > self.chunks
        self.epoch, self._next_chunk = (epoch + 1, 0) if at_end else (epoch, next_chunk)

    def _open(self, verify: Verify) -> dict[Path, int]:
        """Open the files, and return their lengths in tokens, in order."""
        folder = Path(self.dataset_dir)
        arrays, ignored = {}, []  # the `.npy` files of tokens with their lengths, and what other `.npy` files hold
        for path in sorted(folder.glob("[!.]*.npy")):
            if path.name in _OFFSET_FILES or not path.is_file():
                continue
            try:
                header = read_npy_header(path)
            except OSError as error:
                raise _unreadable(path, error) from error
            if header.dtype is not None and header.dtype.kind in "iu" and len(header.shape) == 1:
                arrays[path] = header.shape[0]
            else:
                ignored.append(f"{path.name} ({header.dtype or header.descr} of shape {header.shape})")
        if arrays:  # files of another project, so a meta.json beside them is not ours
            if (folder / shard_name(0)).exists():
                raise NielsCacheError(f"{folder}: holds {next(iter(arrays)).name} beside shards; move one of both out of the folder")
            if verify != "size":
                raise NielsCacheError(f"{folder}: verify={verify!r}: no meta.json has the sha256 of .npy files; leave verify out")
            return arrays
        if ignored and not (folder / shard_name(0)).exists():
            raise NielsCacheError(f"{folder}: no token files here; .npy files of tokens have one dimension of integers, not {ignored[0]}")
        split = open_split(folder, verify=verify)
        if not split.shards:
            raise NielsCacheError(f"{folder}: this split is empty (0 tokens); there is nothing to read")
        self.meta, self._shards = split.meta, split.tokens.shards
        if self.meta is not None and not is_foreign(self.meta):
            self._content = self._content_of(self.meta)
        return dict(zip(map(Path, split.shards), map(len, self._shards), strict=True))

    def _content_of(self, meta: Meta) -> str:
        return content_sha256(listed_of_split(meta, self.dataset_dir, doc_ends=False))

    def _read(self, index: int, start: int, end: int) -> Array:
        """Return a copy of the tokens start to end - 1 of a file. Shards and uint16 `.npy` files keep their dtype; others become int64."""
        if self._shards:
            return self._shards[index][start:end].copy()
        path = self._paths[index]
        if self._mapped is None or self._mapped[0] != path:
            # Map one file at a time: every map holds a file descriptor, and there may be more files than a process may open.
            try:
                self._mapped = path, map_npy(path)
            except OSError as error:
                raise _unreadable(path, error) from error
            if len(self._mapped[1]) != self.files[path.name]:
                raise NielsCacheError(f"{path}: changed since this loader opened it; open the folder again")
        tokens = self._mapped[1]
        read = tokens[start:end].astype(TOKEN_DTYPE if tokens.dtype == TOKEN_DTYPE else np.int64)
        if tokens.dtype.kind == "u" and tokens.dtype.itemsize == 8 and read.min() < 0:
            raise NielsCacheError(f"{path}: holds {tokens[start:end].max()} after token {start}, which is not a token id")
        return read

    def __getstate__(self) -> dict[str, Any]:
        return {
            "settings": (self.batch, self.seq_len, self.process_rank, self.num_processes, self._location.given, str(self.device)),
            "remote": self._location.remote,
            "meta": self.meta,
            "state": self.state_dict(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["settings"], remote=state["remote"])  # type: ignore[misc]
        check_same_build(self.dataset_dir, opened=state["meta"], reopened=self.meta)
        self.load_state_dict(state["state"])


def _unreadable(path: Path, error: OSError) -> NielsCacheError:
    return NielsCacheError(f"{path}: cannot be read: {error.strerror or error}; restore it or move it out of the folder")
