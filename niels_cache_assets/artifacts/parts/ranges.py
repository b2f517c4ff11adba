"""The search for duplicates in ranges of hashes. Each range is a job of its own, on any machine.

    hashes   range/range-00003   corpus/duplicates

`hashes` reads the signatures of all corpora once, and writes the hashes of each band, divided into ranges. A range reads only its own
hashes, and finds which documents share one (dedup/ranges.py). The drop lists (artifacts/duplicates.py) read the results of all ranges in
one pass.

All lie in `corpus/.parts/.ranges`, and each has a lease. When the drop lists are finished, `remove_ranges` removes them: with 8 bands, the
hashes take 164 bytes for each document. A killed job for a range resumes after the last band on the disk. Hashes start afresh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.artifacts.base import Artifact, Log, Work, Written, times_of
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.corpus.identity import dedup_order, drop_lists_identity, require_unchanged
from niels_cache_assets.corpus.layout import HASHES, corpus_dir, range_name, ranges_dir
from niels_cache_assets.corpus.order import Inputs
from niels_cache_assets.disk.space import Need
from niels_cache_assets.disk.writers import Files, add_file
from niels_cache_assets.parts.attempts import remove_target, targets_in
from niels_cache_assets.parts.lease import leased
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import sync
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import Meta

if TYPE_CHECKING:
    from niels_cache_assets.dedup.signatures import Signatures

CODE_VERSION = "1"  # raise this by hand if the files of hashes or ranges change for the same corpora
_DECIDES = ("bands", "rows", "order", "inputs", "signatures", "splits")  # of the identity of the drop lists: what decides the buckets


@dataclass(frozen=True, kw_only=True)
class WantedDropLists:
    """The drop lists that the configuration and the corpora on disk require.

    corpora: the meta.json of each corpus, by data set, in the order of comparison.
    missing: the data sets without a current corpus, and the reason for each.
    identity: everything that decides the drop lists. Their meta.json stores it.
    """

    corpora: dict[str, Meta]
    missing: dict[str, str]
    identity: dict[str, Any]

    @classmethod
    def of(cls, registry: Registry, root: Path) -> WantedDropLists:
        """Return the drop lists that are required now. This costs one small read for each data set; no document is read."""
        corpora: dict[str, Meta] = {}
        missing: dict[str, str] = {}
        for name in dedup_order(registry):
            try:
                corpora[name] = Corpus(registry=registry, root=root, name=name).current()
            except NielsCacheError as error:
                missing[name] = str(error)
        return cls(corpora=corpora, missing=missing, identity=drop_lists_identity(registry, corpora, missing))

    @property
    def documents(self) -> int:
        """The number of documents that are compared."""
        return sum(meta["documents"]["kept"] for meta in self.corpora.values())

    @property
    def warning(self) -> str | None:
        """A warning about data sets that are left out, or None."""
        missing = self.missing
        return f"the search for duplicates left out {', '.join(missing)}: {next(iter(missing.values()))}" if missing else None

    @contextmanager
    def unchanged(self, root: Path) -> Iterator[Callable[[], None]]:
        """Check that the corpora stay the same while the block reads them.

        If a corpus was replaced, raises an error that says so, even if the block has already raised a different error. Yields a function
        that makes the same check. The block calls this function before it uses a result.
        """

        def require_same() -> None:
            for name, meta in self.corpora.items():
                require_unchanged(corpus_dir(root, name), meta)

        try:
            yield require_same
        except Exception:
            require_same()
            raise
        require_same()


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """The progress of a job. documents: the number of documents that were read. share: 0 to 1."""

    documents: int
    share: float

    @property
    def counts(self) -> dict[str, int]:
        """All fields except the share."""
        return {"documents": self.documents}


@dataclass(frozen=True, kw_only=True)
class OfSearch(Artifact):
    """A step of the search for duplicates in ranges. ranges: how many there are."""

    registry: Registry
    root: Path
    ranges: int

    version = CODE_VERSION
    is_shared = True

    @cached_property
    def wanted(self) -> WantedDropLists:
        """The drop lists that are required now."""
        return WantedDropLists.of(self.registry, self.root)

    @property
    def bands(self) -> int:
        return int(self.wanted.identity["bands"])

    @property
    def member(self) -> str:
        """The name of the folder."""
        return HASHES

    @property
    def directory(self) -> Path:
        return ranges_dir(self.root) / self.member

    def unavailable(self) -> str | None:
        if not self.wanted.corpora:
            raise NielsCacheError(next(iter(self.wanted.missing.values()), 'no data set has prepare = [..., "dedup"]'))
        return None

    def identity(self, revision: str | None) -> dict[str, Any]:
        found = self.wanted.identity
        return {**{key: found[key] for key in _DECIDES}, "ranges": self.ranges, "member": self.member, "code_version": self.version}

    def owns(self, name: str) -> bool:
        return name == META_NAME or name.startswith(("digests", "hashes_", "links_"))

    def _meta(self, work: Work, files: Files) -> Meta:
        return {
            "kind": self.key.partition("/")[0],
            "built": True,
            "documents": {"searched": self.wanted.documents},
            "bands": self.bands,
            "ranges": self.ranges,
            "fingerprint": work.fingerprint,
            "files": files,
            "content_sha256": fingerprint_of({name: entry["sha256"] for name, entry in files.items()}),
        }


@dataclass(frozen=True, kw_only=True)
class Hashes(OfSearch):
    """The hashes of all documents, in files for each band and range, and their digests in the order of comparison."""

    takes_what_is_there = True

    @property
    def key(self) -> str:
        return HASHES

    def inputs(self) -> list[str]:
        return [f"corpus/{name}" for name in dedup_order(self.registry)]

    def need(self) -> Need:
        from niels_cache_assets.dedup.ranges import hashes_bytes

        documents = self.wanted.documents
        size = hashes_bytes(documents, bands=self.bands)
        return Need(bytes=size, why=f"the hashes of {documents:,} documents in {self.bands} bands", certain=True)

    def warning(self) -> str | None:
        return self.wanted.warning

    def write(self, work: Work) -> Written:
        from niels_cache_assets.dedup.ranges import write_hashes

        wanted = self.wanted
        work.log(f"hashing the signatures of {', '.join(wanted.corpora)} in {self.ranges} ranges")
        sums: dict[str, Any] = {}

        def wrote(name: str, data: Any) -> None:
            sums.setdefault(name, hashlib.sha256()).update(data)

        with wanted.unchanged(self.root):
            inputs = Inputs(self.registry, self.root, wanted.corpora)
            blocks = self._told(inputs, work.report)
            settings = {"bands": self.bands, "rows": wanted.identity["rows"], "ranges": self.ranges}
            write_hashes(blocks, **settings, folder=work.directory, wrote=wrote)
        sizes = {name: (work.directory / name).stat().st_size for name in sums}
        return Written(meta=self._meta(work, {name: {"bytes": sizes[name], "sha256": found.hexdigest()} for name, found in sums.items()}))

    def _told(self, inputs: Inputs, progress: Callable[[Any], None]) -> Iterator[Signatures]:
        """Yield the signatures in the order of comparison, and report how many were read."""
        done, documents = 0, self.wanted.documents
        for block in (block for each in inputs.all for block in each.signatures()):
            yield block
            done += len(block)
            progress(SearchProgress(done, done / max(1, documents)))


@dataclass(frozen=True, kw_only=True)
class _Linked:
    """The state in the journal: the number of finished bands. The digests count as the first band."""

    bands: int


@dataclass(frozen=True, kw_only=True)
class HashRange(OfSearch):
    """The documents that share a hash, for one range of the hashes of every band."""

    number: int

    option = "--range"
    resumable = True
    noun = "range"

    @property
    def member(self) -> str:
        return range_name(self.number)

    @property
    def key(self) -> str:
        return f"range/{self.member}"

    @property
    def name(self) -> str:
        """One of the data sets that are searched, for the command of a range. A range is that of all of them."""
        return next(iter(self.wanted.corpora), dedup_order(self.registry)[0])

    def inputs(self) -> list[str]:
        return [HASHES]

    @cached_property
    def hashes(self) -> Hashes:
        """The artifact of the hashes of the same corpora."""
        hashes = Hashes(registry=self.registry, root=self.root, ranges=self.ranges)
        vars(hashes).update(wanted=self.wanted)  # its cached property: if a corpus changes now, its hashes are not those of this range
        return hashes

    def write(self, work: Work) -> Written:
        from niels_cache_assets.dedup.ranges import link_range, links_name

        of_hashes = self.hashes.current()
        documents = of_hashes["documents"]["searched"]
        journal = work.open_journal(self.key, state=_Linked)
        files: Files = {name: dict(entry) for name, entry in journal.finished.items()}
        for band in range(journal.state.bands if journal.state else 0, self.bands + 1):
            link_range(self.hashes.directory, work.directory, band, self.number, documents=documents)
            path = work.directory / links_name(band, self.number)
            sync(path)
            add_file(path, path.name, files)
            share = (band + 1) / (self.bands + 1)
            if journal.due(sum(entry["bytes"] for entry in files.values()), finished=len(files)):
                journal.record({"bands": band + 1}, files={}, finished=files, share=share)
            work.report(SearchProgress(documents, share))
        require_unchanged(self.hashes.directory, of_hashes)
        return Written(meta=self._meta(work, files))


def remove_ranges(registry: Registry, root: Path, *, log: Log = lambda line: None) -> list[tuple[Path, int]]:
    """Remove the hashes and the ranges, except those that another process builds now. Return each folder and its bytes."""
    folder, removed = ranges_dir(root), list[tuple[Path, int]]()
    for target in targets_in(folder):
        busy = (NielsCacheError, OSError)  # another process builds it, or the folder cannot be written
        with suppress(*busy), leased(target, times=times_of(registry), wait=False, at_once=True, log=log) as lease:
            removed += remove_target(lease)
    with suppress(OSError):  # it is not there, or something is left in it
        folder.rmdir()
    return removed
