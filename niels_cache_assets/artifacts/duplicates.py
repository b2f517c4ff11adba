"""The drop lists of all data sets whose `prepare` contains "dedup".

A drop list has a row for each document of a data set that is dropped as a duplicate. The row also names the document that is kept instead,
and how similar the two documents are. Documents are compared in a fixed order, and of several duplicates the first document stays. Data
sets are ordered by [dedup] priority, then by the order of their tables. In a data set, val comes before train, so a document that is in
both splits is dropped from train. In a split, documents are in input order.

Cost and memory are described in dedup/greedy.py. Signatures are read from disk in blocks. Texts are read again only for `verify =
"jaccard"`, and for documents of train that seem to be near to val (corpus/near_val.py). A text is read once. An interrupted search
uses the existing ranges, makes the missing ones, and removes all of them at its end.

Each range of hashes is a job of its own, on any machine: hashes, range/range-00003, corpus/duplicates. `hashes` reads the signatures of all
corpora once, and writes the hashes of each band, divided into ranges. A range reads only its own hashes, and finds which documents share
one (dedup/ranges.py). All lie in `corpus/.parts/.ranges`, and each has a lease. With 8 bands, hashes take 164 bytes for each document. A
killed job for a range resumes after the last band on the disk. A killed job for hashes starts from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.artifacts.base import BuildJob, Log, ReportedProgress, RootArtifact, WriteResult
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.free_parts import build_free_parts_first
from niels_cache_assets.base.fingerprint import Identity, fingerprint_of
from niels_cache_assets.base.wording import format_count
from niels_cache_assets.corpus.identity import (
    DROP_LISTS_VERSION,
    dedup_order,
    drop_lists_identity,
    first_difference,
    require_unchanged,
    split_identity,
)
from niels_cache_assets.corpus.layout import DUPLICATES, HASHES, corpus_dir, duplicates_dir, duplicates_file, range_name, ranges_dir
from niels_cache_assets.corpus.prepared import document_sizes, ordinals_sha256
from niels_cache_assets.disk.journal import SCRATCH_NAME
from niels_cache_assets.disk.space import SpaceNeed
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.disk.table_file import ParquetWriter, sealing
from niels_cache_assets.disk.writers import Files, add_file, add_folder
from niels_cache_assets.parts.attempts import PrunedPart, remove_target, targets_in
from niels_cache_assets.parts.lease import hold_lease
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import sync
from niels_cache_runtime.format.layout import META_NAME, SPLITS
from niels_cache_runtime.format.meta import Meta, sha256_text

if TYPE_CHECKING:
    from niels_cache_assets.corpus.order import CorpusInput, CorpusInputs
    from niels_cache_assets.dedup.signatures import Signatures


CODE_VERSION = "1"  # raise this by hand if the files of hashes or ranges change for the same corpora
_BUCKET_KEYS = ("bands", "rows", "order", "inputs", "signatures", "splits")  # of the identity of the drop lists: they decide the buckets


@dataclass(frozen=True, kw_only=True)
class RequiredDropLists:
    """The drop lists that the configuration and the corpora on disk require.

    Attributes:
        corpora: The meta.json of each corpus, by data set, in the order of comparison.
        missing: The data sets without a current corpus, and the reason for each.
        identity: Everything that decides the drop lists. Their meta.json stores it.
    """

    corpora: dict[str, Meta]
    missing: dict[str, str]
    identity: Identity

    @classmethod
    def of(cls, registry: Registry, root: Path) -> RequiredDropLists:
        """Return the drop lists that are required now. This costs one small read for each data set; no document is read."""
        corpora: dict[str, Meta] = {}
        missing: dict[str, str] = {}
        for name in dedup_order(registry):
            try:
                corpora[name] = Corpus(registry, root, name=name).current()
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

    def require_corpora(self) -> None:
        """Raise NielsCacheError if there is no corpus to search."""
        if not self.corpora:
            raise NielsCacheError(next(iter(self.missing.values()), 'no data set has prepare = [..., "dedup"]'))

    def need(self, *, certain: bool) -> SpaceNeed:
        """Return the disk space that the hashes of all bands need."""
        from niels_cache_assets.dedup.ranges import hashes_bytes

        documents, bands = self.documents, self.identity["bands"]
        reason = f"the hashes of {documents:,} documents in {bands} bands"
        return SpaceNeed(bytes=hashes_bytes(documents, bands=bands), reason=reason, certain=certain)

    @contextmanager
    def unchanged(self, root: Path) -> Iterator[None]:
        """Check that the corpora stay the same while the block reads them.

        Raises:
            NielsCacheError: If a corpus was replaced, even if the block has already raised a different error.
        """
        try:
            yield
        finally:
            for name, meta in self.corpora.items():
                require_unchanged(corpus_dir(root, name), meta)


@dataclass(frozen=True, kw_only=True)
class _StepState:
    """The state in the journal of a range, or of the whole search.

    Attributes:
        done: The number of finished bands, where the digests count as the first band. Or the number of finished hashes and ranges.
    """

    done: int


@dataclass(frozen=True, kw_only=True)
class SearchStep(RootArtifact):
    """A step of the search for duplicates in ranges: the hashes of all documents, or the documents that share a hash of one range.

    The hashes are files for each band and range, with the digests in the order of comparison.

    Attributes:
        ranges: The number of ranges.
        number: The number of the range. None: the hashes.
        given: The drop lists that are required, if the caller knows them. None: they are computed.
    """

    ranges: int
    number: int | None = None
    given: RequiredDropLists | None = field(default=None, compare=False)

    version = CODE_VERSION
    is_shared = True

    @cached_property
    def required(self) -> RequiredDropLists:
        """The drop lists that are required now."""
        return self.given or RequiredDropLists.of(self.registry, self.root)

    @property
    def bands(self) -> int:
        """The number of bands of a signature."""
        return int(self.required.identity["bands"])

    @property
    def member(self) -> str:
        """The name of the folder."""
        return HASHES if self.number is None else range_name(self.number)

    @property
    def key(self) -> str:
        return HASHES if self.number is None else f"range/{self.member}"

    @property
    def resumable(self) -> bool:
        return self.number is not None

    @property
    def builds_from_partial_inputs(self) -> bool:
        return self.number is None

    @property
    def part_arguments(self) -> list[str]:
        """The arguments of `niels-cache part` that build the range, with one of the data sets that are searched."""
        return [next(iter(self.required.corpora), dedup_order(self.registry)[0]), str(self.number), "--range"]

    def inputs(self) -> list[str]:
        return [f"corpus/{name}" for name in dedup_order(self.registry)] if self.number is None else [HASHES]

    @property
    def directory(self) -> Path:
        return ranges_dir(self.root) / self.member

    def unavailable(self) -> str | None:
        self.required.require_corpora()
        return None

    def identity(self, revision: str | None) -> Identity:
        found = self.required.identity
        return {**{key: found[key] for key in _BUCKET_KEYS}, "ranges": self.ranges, "member": self.member, "code_version": self.version}

    def owns(self, name: str) -> bool:
        return name == META_NAME or name.startswith(("digests", "hashes_", "links_"))

    def _meta(self, work: BuildJob, files: Files) -> Meta:
        return {
            "kind": self.kind,
            "built": True,
            "documents": {"searched": self.required.documents},
            "bands": self.bands,
            "ranges": self.ranges,
            "fingerprint": work.fingerprint,
            "files": files,
            "content_sha256": fingerprint_of({name: entry["sha256"] for name, entry in files.items()}),
        }

    def need(self) -> SpaceNeed | None:
        return self.required.need(certain=True) if self.number is None else None

    def warning(self) -> str | None:
        return self.required.warning if self.number is None else None

    def write(self, work: BuildJob) -> WriteResult:
        return self._write_hashes(work) if self.number is None else self._write_range(self.number, work)

    def _write_hashes(self, work: BuildJob) -> WriteResult:
        from niels_cache_assets.corpus.order import CorpusInputs
        from niels_cache_assets.dedup.ranges import write_hashes

        required = self.required
        work.log(f"hashing the signatures of {', '.join(required.corpora)} in {format_count(self.ranges, 'range')}")
        with required.unchanged(self.root):
            inputs = CorpusInputs(self.registry, self.root, required.corpora)
            blocks = self._signatures(inputs, work.report)
            write_hashes(blocks, bands=self.bands, rows=required.identity["rows"], ranges=self.ranges, folder=work.directory)
        files: Files = {}
        add_folder(work.directory, files)
        return WriteResult(meta=self._meta(work, files))

    def _signatures(self, inputs: CorpusInputs, progress: Callable[[Any], None]) -> Iterator[Signatures]:
        """Yield the signatures in the order of comparison, and report how many were read."""
        done, documents = 0, self.required.documents
        for block in (block for each in inputs.all for block in each.signatures()):
            yield block
            done += len(block)
            progress(ReportedProgress(counts={"documents": done}, share=done / max(1, documents)))

    def _write_range(self, number: int, work: BuildJob) -> WriteResult:
        from niels_cache_assets.dedup.ranges import link_range, links_name

        hashes = replace(self, number=None, given=self.required)  # if a corpus changes now, its hashes are not those of this range
        hashes_meta = hashes.current()
        documents = hashes_meta["documents"]["searched"]
        journal = work.open_journal(self.key, state=_StepState)
        files: Files = {name: dict(entry) for name, entry in journal.finished.items()}
        for band in range(journal.state.done if journal.state else 0, self.bands + 1):
            link_range(hashes.directory, work.directory, band, number, documents=documents)
            path = work.directory / links_name(band, number)
            sync(path)
            add_file(path, path.name, files)
            share = (band + 1) / (self.bands + 1)
            if journal.due(sum(entry["bytes"] for entry in files.values()), finished=len(files)):
                journal.record({"done": band + 1}, files={}, finished=files, share=share)
            work.report(ReportedProgress(counts={"documents": documents}, share=share))
        require_unchanged(hashes.directory, hashes_meta)
        return WriteResult(meta=self._meta(work, files))


def remove_ranges(registry: Registry, root: Path, *, log: Log = lambda line: None) -> list[PrunedPart]:
    """Remove the hashes and the ranges, except those that another process builds now, and return them."""
    folder, removed = ranges_dir(root), list[PrunedPart]()
    for target in targets_in(folder):
        busy = (NielsCacheError, OSError)  # another process builds it, or the folder cannot be written
        with suppress(*busy), hold_lease(target, times=registry.cluster, wait=False, at_once=True, log=log) as lease:
            removed += remove_target(lease)
    with suppress(OSError):  # they do not exist, or are not empty
        folder.rmdir()
        folder.parent.rmdir()
    return removed


_ROWS_PER_GROUP = 65_536
_ADVICE = "materialize corpus/duplicates first (niels-cache build-all does)"


@dataclass(frozen=True, kw_only=True)
class Duplicates(RootArtifact):
    """The drop lists (lists of duplicates) of all data sets with "dedup" that have a current corpus."""

    key = "corpus/duplicates"
    version = DROP_LISTS_VERSION
    resumable = True
    builds_from_partial_inputs = True

    @property
    def directory(self) -> Path:
        return duplicates_dir(self.root)

    @cached_property
    def required(self) -> RequiredDropLists:
        """The drop lists that are required now."""
        return RequiredDropLists.of(self.registry, self.root)

    @property
    def ranges(self) -> int:
        """The number of ranges into which the hashes of a band are cut."""
        from niels_cache_assets.dedup.ranges import fitting_ranges

        return fitting_ranges(self.required.documents, self.registry.dedup.ranges)

    def hashes(self) -> SearchStep:
        """Return the artifact of the hashes that a search in ranges reads."""
        return SearchStep(self.registry, self.root, ranges=self.ranges)

    def range(self, number: int) -> SearchStep:
        """Return the artifact of a range."""
        return SearchStep(self.registry, self.root, ranges=self.ranges, number=number)

    def inputs(self) -> Sequence[str]:
        return [f"corpus/{name}" for name in dedup_order(self.registry)]

    def unavailable(self) -> str | None:
        if not self.registry.prepared("dedup"):
            return "no data set uses it"
        self.required.require_corpora()
        return None

    def finished(self) -> Meta | None:
        return finished_meta(self.directory) if self.registry.prepared("dedup") else None

    def identity(self, revision: str | None = None) -> Identity:
        return {**self.required.identity, "code_version": DROP_LISTS_VERSION}

    def warning(self) -> str | None:
        return self.required.warning

    @cached_property
    def _current(self) -> Meta:
        """The meta.json of the drop lists, if they are current. It is checked once for all data sets that are opened together."""
        meta = finished_meta(self.directory)
        if meta is None:
            raise NielsCacheError(f"{self.directory}: no search for duplicates has been made yet; {_ADVICE}")
        if not self.matches(meta, self.identity()):
            raise NielsCacheError(
                f"{self.directory}: the duplicates were found {first_difference(meta, self.required.identity)}; {_ADVICE}"
            )
        return meta

    def current_of(self, name: str, *, source: PretrainSource, seed: int) -> Meta:
        """Return the meta.json of the drop lists if they are current for the data set `name`.

        The drop lists are current if a search would now make the same lists, with the corpus of `name` split by `source` and `seed`.

        Args:
            name: The name of the data set.
            source: Its table.
            seed: The seed of the split.

        Raises:
            NielsCacheError: If they are not current. The message names the difference and the artifact to materialize.
        """
        meta, splits = self._current, split_identity(source, seed)
        if meta["splits"][name] != splits:
            raise NielsCacheError(
                f"{self.directory}: the duplicates of {name!r} were found for other splits ({meta['splits'][name]}, now {splits}); "
                f"set seed and val_frac in the configuration and not for one run, then {_ADVICE}"
            )
        return meta

    def owns(self, name: str) -> bool:
        return name == META_NAME or name.endswith(".parquet")

    def need(self) -> SpaceNeed | None:
        """Return the disk space of a search from its beginning. A search whose hashes exist needs less."""
        return self.required.need(certain=not self.hashes().directory.exists())

    @contextmanager
    def stage(self, work: BuildJob) -> Iterator[Path]:
        with super().stage(work) as staging:
            yield staging
        remove_ranges(self.registry, self.root, log=work.log)

    def sweep(self, *, resumable: bool) -> None:
        super().sweep(resumable=resumable)
        if not resumable:
            remove_ranges(self.registry, self.root)

    def write(self, work: BuildJob) -> WriteResult:
        from niels_cache_assets.corpus.near_val import drop_near_val
        from niels_cache_assets.corpus.order import CorpusInputs
        from niels_cache_assets.dedup.greedy import SimilarityCondition, drop_later
        from niels_cache_assets.dedup.ranges import Buckets

        work.log(f"looking for duplicates in {', '.join(self.required.corpora)}")
        registry, required = self.registry, self.required
        dedup = registry.dedup
        files: Files = {}
        with required.unchanged(self.root):
            scratch = work.directory / SCRATCH_NAME

            def similarity(compared: np.ndarray) -> Callable[[int, int], float]:
                work.log(f"comparing the texts of {len(compared):,} documents")
                return inputs.similarity(compared, ngram=dedup.ngram, units=dedup.units, path=scratch / "shingles")

            verify = SimilarityCondition(similarity=similarity, threshold=dedup.threshold) if dedup.verify == "jaccard" else None
            _make_ranges(self, work)
            inputs = CorpusInputs(registry, self.root, required.corpora)
            work.log(f"choosing among {required.documents:,} documents by {format_count(self.ranges, 'range')}")
            scratch.mkdir(exist_ok=True)
            buckets = Buckets(
                scratch=scratch,
                hashes=self.hashes().directory,
                links=[self.range(number).directory for number in range(self.ranges)],
                documents=required.documents,
                bands=required.identity["bands"],
            )
            dropped = drop_later(buckets, verify=verify)  # the memory does not grow with the number of dropped documents
            if verify is None:
                dropped = drop_near_val(inputs, dropped, dedup, path=scratch / "near_val", log=work.log)
            drops = inputs.drops(dropped)
            datasets = {}
            for corpus, each in enumerate(inputs.all):
                own = drops[drops.corpora == corpus]
                _write_drop_list(work.directory, each.name, inputs, own, files)
                datasets[each.name] = _counts(inputs, each, own) | _clusters(drops, corpus)
            meta = {
                "kind": "duplicates",
                "built": True,
                **required.identity,
                "fingerprint": work.fingerprint,
                "datasets": datasets,
                "files": files,
                "content_sha256": sha256_text("".join(f"{name} {counts['drop_sha256']}\n" for name, counts in sorted(datasets.items()))),
            }
        return WriteResult(meta=meta)


def _make_ranges(duplicates: Duplicates, work: BuildJob) -> None:
    """Make the hashes and the ranges that are missing. Those that other processes make come last. By default, there is one range.

    Raises:
        NielsCacheError: If they belong to other corpora.
    """
    force, done = work.force and duplicates.forces_steps, 0
    journal = work.open_journal("duplicates", state=_StepState)  # `status` reads it; what is done lies in the folders of the steps

    def build(step: SearchStep, waits: bool) -> None:
        nonlocal done
        meta = materialize(step, wait=waits, force=force, log=work.log, notify=False).meta
        step = replace(step, given=duplicates.required)
        if not step.matches(meta, step.identity(None)):
            raise NielsCacheError(f"{duplicates.directory}: a corpus has changed since the search began; run it again")
        done += 1
        journal.record({"done": done}, files={}, share=done / (duplicates.ranges + 2))  # the choice takes about as long as a range

    build(duplicates.hashes(), True)
    build_free_parts_first([duplicates.range(number) for number in range(duplicates.ranges)], build, log=work.log)


def _write_drop_list(root: Path, name: str, inputs: CorpusInputs, drops: np.recarray, files: Files) -> None:
    """Write the drop list of one data set, sorted by ordinal."""
    names = np.array([each.name for each in inputs.all], dtype=object)
    splits = np.array([*SPLITS, None], dtype=object)  # UNKNOWN is -1, which selects the last element
    kinds = np.array(["near", "exact"], dtype=object)
    with sealing(ParquetWriter(root, duplicates_file(name), DUPLICATES, files)) as table:
        for first in range(0, len(drops) or 1, _ROWS_PER_GROUP):
            part = drops[first : first + _ROWS_PER_GROUP].view(np.recarray)
            columns = {
                "ordinal": part.ordinals,
                "split": splits[part.splits],
                "kind": kinds[part.exact.astype(np.int8)],
                "similarity": part.similarity,
                "because_dataset": names[part.because_corpora],
                "because_ordinal": part.because_ordinals,
                "because_split": splits[part.because_splits],
            }
            table.write_group(columns[column] for column in DUPLICATES)


def _counts(inputs: CorpusInputs, each: CorpusInput, drops: np.recarray) -> Meta:
    """Return the counts of one data set for meta.json."""
    sizes = document_sizes(each.directory, each.meta)
    totals = {
        what: {kind: int(sizes[what][drops.ordinals[drops.exact == (kind == "exact")]].sum()) for kind in ("exact", "near")}
        for what in ("characters", "bytes")
    }
    split_names = ["unknown", *SPLITS]
    shape = (len(split_names), len(inputs.all), len(split_names), 2)
    keys = np.ravel_multi_index((drops.splits + 1, drops.because_corpora, drops.because_splits + 1, drops.exact.astype(np.int8)), shape)
    documents = np.bincount(keys, minlength=int(np.prod(shape))).reshape(shape)
    pairs = [
        {
            "split": split_names[split],
            "because_dataset": inputs.all[corpus].name,
            "because_split": split_names[because_split],
            "kind": "exact" if exact else "near",
            "documents": int(documents[split, corpus, because_split, exact]),
        }
        for split, corpus, because_split, exact in np.argwhere(documents).tolist()
    ]
    exact = int(drops.exact.sum())
    return {
        "documents": len(each.order),
        "exact": exact,
        "near": len(drops) - exact,
        **totals,
        "pairs": pairs,
        "drop_sha256": ordinals_sha256(drops.ordinals),
    }


def _clusters(drops: np.recarray, corpus: int) -> dict[str, dict[str, int]]:
    """Return the number of clusters for each cluster size, for meta.json. A cluster is a kept document and its duplicates.

    `clusters` counts the clusters with a document of this corpus, `clusters_across` those of them that also have a document of another one.
    A size counts the documents of all corpora. Single documents are not counted.
    """
    own, other = drops.corpora == corpus, drops.because_corpora == corpus
    kept = (drops.because_corpora.astype(np.int64) << 48) + drops.because_ordinals
    _, cluster, copies = np.unique(kept, return_inverse=True, return_counts=True)

    def sizes(members: np.ndarray) -> dict[str, int]:
        found, counts = np.unique(copies[np.unique(cluster[members])] + 1, return_counts=True)
        return {str(size): count for size, count in zip(found.tolist(), counts.tolist(), strict=True)}

    has_own, has_other = np.unique(cluster[own | other]), np.unique(cluster[~own | ~other])
    return {"clusters": sizes(own | other), "clusters_across": sizes(np.isin(cluster, np.intersect1d(has_own, has_other)))}
