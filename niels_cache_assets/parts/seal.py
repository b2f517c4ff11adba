"""The seal, which joins finished parts into one cache without writing any token again.

Shards and lineage become hard links under their final names, or copies if the file system refuses links. Document ends are shifted and
joined in blocks. Cost: one system call for each file, and one pass over the document ends. Memory does not grow with the data set.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_cache_assets.base.documents import merge_facts
from niels_cache_assets.disk.attempts import NO_LINKS
from niels_cache_assets.disk.space import SpaceNeed, name_path, require_free_space
from niels_cache_assets.disk.table_file import sealing
from niels_cache_assets.disk.writers import Files, NpyWriter
from niels_cache_assets.parts.lease import Log
from niels_cache_runtime.cache.mmap import map_offsets
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    DOC_ENDS_DTYPE,
    SPLITS,
    Split,
    copies_of,
    doc_ends_name,
    documents_folder,
    documents_name,
    file_edges_name,
    name_in_train,
    shard_name,
)
from niels_cache_runtime.format.meta import Meta, content_sha256, cut_ordinals

CODE_VERSION = "1"  # increment if a seal of the same parts writes different bytes
_BLOCK_ENDS = 1 << 20
_SHARED = ("append_eot", "shard_bytes", "source", "special_token_ids", "token_dtype", "tokenizer_sha256", "vocab_size", "dataset_config")


@dataclass(frozen=True, kw_only=True)
class SealInput:
    """A finished cache that is joined: a part, or the val part.

    Attributes:
        name: Its name.
        directory: Its folder.
        meta: Its meta.json.
        splits: The splits that are taken from it.
    """

    name: str
    directory: Path
    meta: Meta
    splits: tuple[Split, ...] = SPLITS

    def takes(self, split: str) -> bool:
        """Return whether a split, or a copy of train, is taken from it."""
        return name_in_train(split) in self.splits

    def shards(self, split: str) -> list[str]:
        """Return the relative paths of the shards of a split, in order. There are none if the split is not taken."""
        count = sum(path.startswith(f"{split}/") for path in self.meta["files"]) if self.takes(split) else 0
        return [f"{split}/{shard_name(index)}" for index in range(count)]

    def count(self, key: str, split: str) -> int:
        """Return the tokens or documents of a split, or 0 if the split is not taken."""
        if not self.takes(split):
            return 0
        return int(self.meta[f"{split}_tokens"] if key == "tokens" else self.meta[key][name_in_train(split)])


Link = Callable[[Path, Path, int], None]  # gives a file of a part, which has this size, another name in the joined cache


def seal(members: Sequence[SealInput], directory: Path, *, target: Path, log: Log, link: Link | None = None) -> Meta:
    """Write everything except meta.json into `directory`, and return the keys of meta.json that the parts determine.

    Args:
        members: The caches in the order in which they are joined. All have the same settings.
        directory: The staging directory.
        target: The folder that `directory` will replace.
        log: Called with a line if files are copied instead of linked.
        link: How files are linked. None: by hard links.

    Raises:
        NielsCacheError: If the document ends of a part do not match its tokens, or if copies are needed and do not fit on the disk.
    """
    files: Files = {}
    last = members[-1].meta
    splits = (*SPLITS, *copies_of(last))
    lineage = ((member, documents_name(split)) for member in members for split in member.splits)
    taken = (*lineage, *((member, path) for member in members for split in splits for path in member.shards(split)))
    link_file = link or HardLinker(sum(member.meta["files"][path]["bytes"] for member, path in taken), target=target, log=log).add

    def add(member: SealInput, path: str, name: str) -> None:
        files[name] = dict(member.meta["files"][path])
        link_file(member.directory / path, directory / name, files[name]["bytes"])

    for split in splits:
        (directory / split).mkdir()
        number = 0
        for member in members:
            for path in member.shards(split):
                add(member, path, f"{split}/{shard_name(number)}")
                number += 1
        write_blocks(NpyWriter(directory, doc_ends_name(split), DOC_ENDS_DTYPE, files), _offsets(members, split, doc_ends_name(split)))
    for split in SPLITS:
        name = file_edges_name(split)
        if all(name in member.meta["files"] for member in members):
            write_blocks(NpyWriter(directory, name, DOC_ENDS_DTYPE, files), _offsets(members, split, name))
        for member, name in _lineage(members, split):
            add(member, documents_name(split), name)
    counted = {key: {split: sum(member.count(key, split) for member in members) for split in SPLITS} for key in ("documents", "characters")}
    cut = {split: [*_cut_documents(members, split)] for split in SPLITS}
    return {
        **{key: last[key] for key in _SHARED},
        **{key: last[key] for key in ("decontaminate", "fim_tokens", "keep") if key in last},
        **({"fim": {**last["fim"], "rearranged": _rearranged(members)}} if "fim" in last else {}),
        **{f"{split}_tokens": sum(member.count("tokens", split) for member in members) for split in splits},
        **counted,
        "cut": {split: len(ordinals) for split, ordinals in cut.items()},
        "cut_document": cut,
        "dropped": dict(sum((Counter(member.meta["dropped"]) for member in members), Counter())),
        "facts": merge_facts([member.meta["facts"] for member in members]),
        "files": files,
        "content_sha256": content_sha256(files),
        "parts": [
            {
                "name": member.name,
                "shards": {split: len(member.shards(split)) for split in splits},
                "tokens": {split: member.count("tokens", split) for split in splits},
                "documents": {split: member.count("documents", split) for split in splits},
                "short": member.meta["part"]["short"],
                "meta_sha256": member.meta["meta_sha256"],
            }
            for member in members
        ],
    }


def link_all(meta: Meta, source: Path, directory: Path, *, target: Path, log: Log, link: Link | None = None) -> None:
    """Link all files of a finished cache, except meta.json, into `directory`, which will replace `target`.

    Args:
        meta: The meta.json of the cache.
        source: Its folder.
        directory: The staging directory.
        target: The folder that `directory` will replace.
        log: Called with a line if files are copied instead of linked.
        link: How files are linked. None: by hard links.

    Raises:
        NielsCacheError: If copies are needed and do not fit on the disk.
    """
    sizes = {path: int(entry["bytes"]) for path, entry in meta["files"].items()}
    link = link or HardLinker(sum(sizes.values()), target=target, log=log).add
    for path, size in sizes.items():
        link(source / path, directory / path, size)


class HardLinker:
    """Hard links from parts to the cache that joins them. After the file system has refused a link, all further files are copied.

    Args:
        size: The total size of all files in bytes.
        target: The cache that joins the parts, for messages.
        log: Called with a line if files are copied instead of linked.
    """

    def __init__(self, size: int, *, target: Path, log: Log) -> None:
        self._left, self._target, self._log = size, target, log
        self._copies = False

    def add(self, source: Path, link: Path, size: int) -> None:
        """Link a file of `size` bytes.

        Raises:
            NielsCacheError: If copies are needed and do not fit on the disk.
        """
        link.parent.mkdir(exist_ok=True)
        if not self._copies:
            try:
                os.link(source, link)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                self._copies = True
                need = SpaceNeed(bytes=self._left, reason="copies of the parts, because this file system has no hard links,")
                require_free_space(self._target, need, log=self._log)
                self._log(f"{self._target}: copying the parts, because hard links are refused ({error.strerror})")
        if self._copies:
            with name_path(link):
                shutil.copyfile(source, link)
        self._left -= size


def write_blocks(writer: NpyWriter, blocks: Iterable[np.ndarray]) -> None:
    """Write all rows of an array, and seal its file."""
    with sealing(writer):
        for block in blocks:
            writer.write(block)


def _rearranged(members: Sequence[SealInput]) -> list[int]:
    """Return how many documents are rearranged in each copy of train."""
    return [*map(sum, zip(*(member.meta["fim"]["rearranged"] for member in members if member.takes("train")), strict=True))]


def _offsets(members: Sequence[SealInput], split: str, name: str) -> Iterator[np.ndarray]:
    """Yield the offsets of a split in blocks, each shifted by the number of tokens before its part."""
    before = 0
    for member in members:
        if not member.takes(split):
            continue
        path, tokens = member.directory / name, member.count("tokens", split)
        ends = map_offsets(path, DOC_ENDS_DTYPE)
        is_wrong = (int(ends[-1]) if len(ends) else 0) != tokens or len(ends) != member.count("documents", split)
        if is_wrong and name == doc_ends_name(split):
            raise NielsCacheError(
                f'{path}: does not fit the meta.json beside it; set verify_parts = "sha256" in [build], and build {member.name} again'
            )
        for first in range(0, len(ends), _BLOCK_ENDS):
            yield np.asarray(ends[first : first + _BLOCK_ENDS]) + np.uint64(before)
        before += tokens


def _lineage(members: Sequence[SealInput], split: Split) -> Iterator[tuple[SealInput, str]]:
    """Yield the members whose lineage of a split is linked, and the names of the links.

    A split from several members has a folder with one file for each member that has documents. Other splits have one file.
    """
    taken = [member for member in members if split in member.splits]
    filled = [member for member in taken if member.count("documents", split)]
    if len(taken) == 1 or not filled:
        yield taken[0], documents_name(split)
        return
    for member in filled:
        yield member, f"{documents_folder(split)}/{member.name}.parquet"


def _cut_documents(members: Sequence[SealInput], split: Split) -> Iterator[int]:
    """Yield the ordinals of the documents that a budget has truncated."""
    before = 0
    for member in members:
        if split in member.splits:
            yield from (before + ordinal for ordinal in cut_ordinals(member.meta, split))
        before += member.count("documents", split)
