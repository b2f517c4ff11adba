"""The search for texts in everything that is known: sources, caches, corpora, and each file of the cache root and of Dagster's home.

    documents   of sources, Parquet files and caches: each with the share of a text that it contains
    files       all others, and tokens outside caches, such as unfinished builds: whether they contain a piece of a text

Many pages have the same banner, so a piece of a text may belong to documents that stay. A print that such a document has counts no more in
files. Everything that cannot be opened is listed: a search that does not say this proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import numpy as np

from niels_cache_assets.base.first_bytes import HEAD_BYTES, detect_content
from niels_cache_assets.base.wording import file_size
from niels_cache_assets.disk.table_file import lineage_files
from niels_cache_assets.facts.lineage import read_lineage
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.reading.compressed import decompressed
from niels_cache_assets.tokenizer.decoding import open_tokenizer
from niels_cache_inspection.erasure.prints import GRAM, RUN, WantedTexts, normalize, prints_of, unescape
from niels_cache_inspection.erasure.texts import (
    CacheFolder,
    StoredText,
    TokenText,
    cache_folders,
    documents_of,
    meta_of,
    open_tokens,
    parquet_texts,
    reason_not_read,
    regular_files,
    source_texts,
)
from niels_cache_runtime.cache.mmap import slice_pieces
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPES, Split, Uints
from niels_cache_runtime.format.meta import Meta

Relation = Literal["id", "exact", "near", "shared"]

EXACT = 0.999  # the share of a text from which on a document contains it
NEAR = 0.3  # the share of a text from which on a document is a near copy
MOSTLY = 0.8  # the share of its own text from which on a document is a near copy
_TOKEN_FILES = (".bin", ".npy", ".ds")  # files of our caches, and of exports
_BLOCK = 1 << 22
_OVERLAP = 1 << 10  # bytes that two blocks of a file share: more than a RUN with escapes
_EXCERPT = 160
_SHARED_AT_ONCE = 1 << 12
_NO_TOKENIZER = (f"tokens in files such as *{_TOKEN_FILES[0]}", "the cache root has no tokenizer that can be opened")
_TEXT_AT_ONCE = 1 << 26  # bytes of documents of a cache whose lineage is read at once
SOURCE = "source"  # the place of documents at their source
_COMPRESSED = {  # by a regular expression for the first bytes
    ".gz": rb"\x1f\x8b\x08",
    ".bz2": rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)",
    ".xz": rb"\xfd7zXZ\x00",
    ".zst": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
}
_PACKED = rb"PK(\x03\x04|\x05\x06)|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|\x04\x22\x4d\x18|%PDF-|(PAR1|ORC)[\x00-\x08\x0e-\x1f]|Obj\x01"


@dataclass(frozen=True, kw_only=True)
class FoundDocument:
    """A document that contains something of the texts, or has one of the ids.

    Attributes:
        place: "source", "cache", or the path of a Parquet file relative to the root.
        family: The family of its data set.
        name: The name of its data set.
        split: Its split, in a cache.
        number: Its number in the split, in a cache.
        source_id: Its id.
        file: Its file at the source.
        row: Its row in this file.
        relation: "id" if it has one of the ids, "exact" if it contains all of a text, "near" if it contains much of a text or is mostly a
            part of it. "shared" if it only shares a passage.
        share: The share of a text that it contains, from 0 to 1.
        texts: Its text, for sources and corpora, or the decoded text.
    """

    place: str
    family: str
    name: str
    source_id: str
    file: str
    row: int
    relation: Relation
    share: float
    texts: tuple[str, ...] = ()
    split: Split | None = None
    number: int | None = None

    @property
    def excerpt(self) -> str:
        """The beginning of its text in one line."""
        return " ".join(" ".join(self.texts).split())[:_EXCERPT]


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """A file that contains pieces of the texts outside of documents.

    Attributes:
        path: The file.
        prints: The number of prints of the texts in it.
    """

    path: Path
    prints: int


@dataclass(kw_only=True)
class Scan:
    """A search, and what it has found so far.

    Attributes:
        registry: The configuration.
        root: The cache root.
        folders: Further folders and files to search, such as Dagster's home and exports.
        wanted: The texts.
        ids: (family, name, source id) of documents that are found by their ids, whatever their text is. Only `in` is used.
        kept: (family, name, source id, file) of near copies that stay, as somebody has decided.
        with_remote: Whether remote sources are read too.
        progress: Called with a line about what is being read.
        documents: The documents that were found, without those that only share a passage.
        shared: The number of documents that only share a passage.
        files: The files that were found.
        unread: What could not be read, and why.
        common: The prints of the texts that documents have, too, which only share a passage.
        counts: The number of files, documents and bytes that were read.
    """

    registry: Registry
    root: Path
    wanted: WantedTexts
    folders: tuple[Path, ...] = ()
    ids: Container[tuple[str, str, str]] = frozenset()
    kept: Collection[tuple[str, str, str, str]] = ()
    with_remote: bool = False
    progress: Callable[[str], None] = lambda line: None
    documents: list[FoundDocument] = field(default_factory=list)
    shared: int = 0
    files: list[FoundFile] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    common: Uints = field(default_factory=lambda: np.empty(0, np.uint64))
    counts: dict[str, int] = field(default_factory=lambda: {"files": 0, "documents": 0, "bytes": 0})
    _shared_prints: list[Uints] = field(default_factory=list)
    _loose: list[tuple[Path, Uints]] = field(default_factory=list)
    _pieces: TokenText | None = None
    _names: dict[tuple[int, int], list[Path]] = field(default_factory=dict)  # of files with hard links
    _seen: set[Path] = field(default_factory=set)  # files whose content was searched as documents

    def run(self, *, sources: bool = True) -> Scan:
        """Search everything, sources only if asked for, and return this object."""
        if sources:
            self._search_sources()
        self._search_caches()
        self._search_files()
        self.common = common = np.unique(np.concatenate([np.empty(0, np.uint64), *self._shared_prints]))
        for path, prints in self._loose:
            own = np.setdiff1d(prints, common, assume_unique=True)
            if len(own):
                names = next((each for each in self._names.values() if each[0] == path), [path])
                self.files += [FoundFile(path=each, prints=len(own)) for each in names]
        return self

    def _search_sources(self) -> None:
        for name in self.registry.partition_keys():
            source = self.registry.source(name)
            with self._noting(f"{SOURCE} of {source.family}.{name}"):
                reason = reason_not_read(source, with_remote=self.with_remote)
                if reason is not None:
                    self.unread += [(f"{SOURCE} of {source.family}.{name}", reason)] if reason else []
                    continue
                self.progress(f"searching the source of {name}")
                for document in source_texts(self.registry, source):
                    self._search(document, SOURCE, source.family, name)

    def _search_caches(self) -> None:
        try:
            pieces = TokenText(open_tokenizer(self.root))
        except NielsCacheError as error:
            if any(cache_folders(self.root)):
                self.unread.append(("tokens of all caches", str(error)))
            return
        self._pieces = pieces
        if pieces.problem is not None:
            self.unread.append(("tokens of all caches", "the tokenizer does not spell text piece by piece, so text may be missed"))
        for folder in cache_folders(self.root):
            meta = meta_of(folder.directory)
            if meta is None or not meta.get("built"):
                continue
            self.progress(f"searching the tokens of {folder.directory.relative_to(self.root)}")
            with self._noting(str(folder.directory)):
                self._search_cache(folder, meta, pieces)

    def _search_cache(self, folder: CacheFolder, meta: Meta, pieces: TokenText) -> None:
        for split, tokens in open_tokens(folder.directory, meta):
            found: dict[int, tuple[bytes, Uints]] = {}
            struck = {*meta.get("tombstones", {}).get("documents", {}).get(split, ())}
            by_id, size = {*self._ids_in(folder, tokens.lineage)} - struck, 0
            for first, ends, block in documents_of(tokens) if not self.wanted.is_empty else ():
                text = pieces.decode(block)
                self.counts["bytes"] += len(text)
                self.counts["documents"] += len(ends)
                if not len(self.wanted.found_in(normalize(text))):
                    continue
                starts = [0, *ends[:-1].tolist()]
                for number, (start, end) in enumerate(zip(starts, ends.tolist(), strict=True), first):
                    own = pieces.decode(block[start:end])
                    if len(prints := self.wanted.found_in(normalize(own))):
                        found[number] = own, prints
                        size += len(own)
                if size > _TEXT_AT_ONCE:
                    self._add_all(folder, split, tokens.lineage, found)
                    by_id -= found.keys()
                    found, size = {}, 0
            self._seen.update(tokens.files)
            for number in by_id:
                start, end = (int(tokens.ends[number - 1]) if number else 0), int(tokens.ends[number])
                own = pieces.decode(np.concatenate([*slice_pieces(tokens.shards, start, end)]))
                found.setdefault(number, (own, np.empty(0, np.uint64)))
            self._add_all(folder, split, tokens.lineage, found)

    def _add_all(self, folder: CacheFolder, split: Split, lineage: Path, found: Mapping[int, tuple[bytes, Uints]]) -> None:
        for number, origin in sorted(read_lineage(lineage, found).items()) if found else ():
            own, prints = found[number]
            stored = StoredText(origin.source_id, origin.file, origin.row, [own.decode(errors="replace")])
            self._add(stored, prints, normalize(own), "cache", folder.family, folder.name, split=split, number=number)

    def _ids_in(self, folder: CacheFolder, lineage: Path) -> Iterator[int]:
        """Yield the number of each document in a lineage that has one of the ids."""
        first = 0
        for table in lineage_files(lineage) if self.ids else ():
            with table.open(["source_id"]) as parquet:
                for batch in parquet.iter_batches(columns=["source_id"]):
                    for number, source_id in enumerate(batch.column(0).to_pylist(), first):
                        if (folder.family, folder.name, source_id) in self.ids:
                            yield number
                    first += len(batch)

    def _search_files(self) -> None:
        for path, found in regular_files([self.root, *self.folders], self.unread):
            if found.st_nlink > 1 and path.suffix != ".parquet" and path not in self._seen:
                names = self._names.setdefault((found.st_dev, found.st_ino), [])
                names.append(path)
                if len(names) > 1:
                    continue
            self.counts["files"] += 1
            self.counts["bytes"] += found.st_size
            if path in self._seen or (self.wanted.is_empty and path.suffix != ".parquet"):
                continue
            if found.st_size > _BLOCK:
                self.progress(f"searching {path} ({file_size(found.st_size)})")
            prints = [np.empty(0, np.uint64)]
            with self._noting(str(path)):
                if path.suffix == ".parquet":
                    self._search_parquet(path)
                    continue
                for each in self._contents(path):
                    prints.append(self.wanted.found_in(each))
            if len(every := np.unique(np.concatenate(prints))):  # also before damage
                self._loose.append((path, every))

    def _search_parquet(self, path: Path) -> None:
        family, name = owner_of(path, self.root)
        place = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
        metas = (meta_of(folder) for folder in (path.parent, path.parent.parent))
        is_struck = any(meta and "tombstones" in meta for meta in metas)  # its lineage keeps ids; those of others are found with the tokens
        ids = frozenset() if is_struck else self.ids
        for rows in parquet_texts(path):
            self.counts["documents"] += len(rows)
            text = normalize("\n".join(each for row in rows for each in row.texts).encode(errors="replace"))
            hit = bool(len(self.wanted.found_in(text)))
            for row in rows:
                if hit or (family, name, row.source_id) in ids:
                    self._search(row, place, family, name)

    def _contents(self, path: Path) -> Iterator[bytes]:
        """Yield the normalized content of a file, as it is, without escapes, and as tokens."""
        if path.suffix in _TOKEN_FILES:
            if (pieces := self._pieces) is None:
                self.unread += [_NO_TOKENIZER] if _NO_TOKENIZER not in self.unread else []
                return
            for dtype in TOKEN_DTYPES.values():
                for block in _blocks(path, overlap=RUN * dtype.itemsize):
                    yield normalize(pieces.decode(np.frombuffer(block[: len(block) // dtype.itemsize * dtype.itemsize], dtype)))
            return
        for block in _blocks(path, overlap=_OVERLAP):
            yield normalize(block)
            if b"\\" in block or b"&" in block:
                yield normalize(unescape(block))

    def _search(self, document: StoredText, place: str, family: str, name: str) -> None:
        normalized = normalize("\n".join(document.texts).encode(errors="replace"))
        if place == SOURCE:
            self.counts["documents"] += 1
        prints = self.wanted.found_in(normalized)
        if len(prints) or (family, name, document.source_id) in self.ids:
            self._add(document, prints, normalized, place, family, name)

    def _add(
        self,
        document: StoredText,
        prints: Uints,
        normalized: bytes,
        place: str,
        family: str,
        name: str,
        *,
        split: Split | None = None,
        number: int | None = None,
    ) -> None:
        share = self.wanted.share(prints, normalized)
        relation: Relation = "shared"
        if (family, name, document.source_id, document.file) in self.kept:
            pass
        elif (family, name, document.source_id) in self.ids:
            relation = "id"
        elif share >= EXACT:
            relation = "exact"
        elif share >= NEAR or (len(normalized) >= GRAM and len(prints) >= MOSTLY * len(prints_of(normalized))):
            relation = "near"
        if relation == "shared":
            self.shared += 1
            self._shared_prints.append(prints)
            if len(self._shared_prints) > _SHARED_AT_ONCE:
                self._shared_prints = [np.unique(np.concatenate(self._shared_prints))]
            return
        self.documents.append(
            FoundDocument(
                place=place,
                family=family,
                name=name,
                split=split,
                number=number,
                source_id=document.source_id,
                file=document.file,
                row=document.row,
                relation=relation,
                share=share,
                texts=tuple(document.texts),
            )
        )

    def _noting(self, what: str) -> _Noting:
        return _Noting(self.unread, what)


class _Noting(suppress):
    """A block that notes what cannot be read, and goes on."""

    def __init__(self, unread: list[tuple[str, str]], what: str) -> None:
        super().__init__()
        self._unread, self._what = unread, what

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, NielsCacheError | OSError):
            return False
        self._unread.append(
            (self._what, (str(error) if isinstance(error, NielsCacheError) else getattr(error, "strerror", "") or str(error)))
        )
        return True


def owner_of(path: Path, root: Path) -> tuple[str, str]:
    """Return the family and the name of the data set that a file of a root belongs to, or two empty strings."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    if len(parts) < 3 or parts[0] not in ("pretrain", "sft", "corpus"):
        return "", ""
    name = parts[2] if parts[1] == ".parts" else parts[1]
    return ("sft" if parts[0] == "sft" else "pretrain"), name.removeprefix(".").removesuffix(".partial").removesuffix(".old")


def _blocks(path: Path, *, overlap: int) -> Iterator[bytes]:
    """Yield the content of a file, decompressed if its first bytes say so, in blocks that overlap.

    Raises:
        NielsCacheError: If it is an archive or a similar file, whose text its bytes do not show.
    """
    with path.open("rb") as raw:
        file: IO[bytes] = raw
        head = raw.read(HEAD_BYTES)
        raw.seek(0)
        if path.suffix not in _TOKEN_FILES:
            if re.match(_PACKED, head):
                content = detect_content(head)
                raise NielsCacheError(f"{content.what if content else 'packed'}; unpack or convert it, and search the result with --also")
            suffix = next((suffix for suffix, magic in _COMPRESSED.items() if re.match(magic, head)), "")
            file = decompressed(raw, f"content{suffix}") if suffix else raw  # also of a .tar.gz
        rest = b""
        while block := file.read(_BLOCK):
            yield rest + block
            rest = (rest + block)[-overlap:]
