"""A corpus in parts. Each part is cleaned and signed by a process of its own, and the parts are joined in the order of the plan.

The documents of the joined corpus are hard links. Digests and signatures are copied in blocks (532 bytes a document with 128 slots). The
joined corpus has the content of a corpus without parts, so the search for duplicates decides the same. A build makes the parts that are
missing, one after the other. `niels-cache part NAME 17 --corpus` makes one of them in advance, on any machine.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.artifacts.base import Artifact, Work, Written
from niels_cache_assets.artifacts.corpus import Corpus, CorpusProgress
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.parts.sharing import build_free_parts_first, told_of_parts
from niels_cache_assets.corpus import identity as corpus_identity
from niels_cache_assets.corpus.chunks import CorpusCounts
from niels_cache_assets.corpus.identity import corpus_made_of
from niels_cache_assets.corpus.layout import (
    COUNTS_NAME,
    DIGESTS_NAME,
    HASHES_NAME,
    SIGNATURES_NAME,
    corpus_parts_dir,
    documents_file,
)
from niels_cache_assets.corpus.prepared import document_files
from niels_cache_assets.corpus.store import write_measures, write_rejected
from niels_cache_assets.disk.space import Need, corpus_need, require_room
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.disk.writers import Files, NpyWriter
from niels_cache_assets.documents import Documents, Drops, joined_facts
from niels_cache_assets.parts.layout import part_name
from niels_cache_assets.parts.plan import Plan, PlannedPart
from niels_cache_assets.parts.seal import Links, write_blocks
from niels_cache_assets.sources.excluding import excluded_ids
from niels_cache_assets.sources.reading.part_stream import PartStream, require_unchanged
from niels_cache_assets.sources.text_column import facts_of, reading_warning
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_assets.sources.with_parts import SourceWithParts
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.npy_files import map_npy
from niels_cache_runtime.format.place import place_problem

_ROWS = 1 << 16


def _with_parts(source: PretrainSource) -> SourceWithParts:
    assert isinstance(source, SourceWithParts)  # other kinds refuse `parts`
    return source


def _plan_of(corpus: Corpus) -> PartsPlan:
    registry = corpus.registry
    return PartsPlan(registry=registry, root=corpus.root, name=corpus.name, source=_with_parts(corpus.source), build=registry.build)


@dataclass(frozen=True, kw_only=True)
class JoinedCorpus(Corpus):
    """The corpus of a data set with `parts` above 1. forces_parts: whether `force` also builds the parts again."""

    forces_parts: bool = field(default=True, compare=False)

    resumable = False  # the parts are
    is_shared = True

    @property
    def parts_plan(self) -> PartsPlan:
        """The artifact of the plan."""
        return _plan_of(self)

    def part(self, number: int) -> CorpusPart:
        """Return the artifact of a part."""
        return CorpusPart(registry=self.registry, root=self.root, name=self.name, processes=self.processes, number=number)

    def steps(self) -> list[Artifact]:
        """Return everything that is built before this corpus, in order."""
        return [self.parts_plan, *map(self.part, range(self.source.corpus_parts))]

    def inputs(self) -> Sequence[str]:
        return [*super().inputs(), *(step.key for step in self.steps())]

    def members(self, plan: Plan | None = None) -> Iterator[CorpusPart]:
        """Yield the parts of a plan, which is read once for all of them. Raises NielsCacheError if it is missing or of other settings."""
        for planned in (plan or self.parts_plan.read()).parts:
            yield replace(self.part(planned.number), given=planned)

    def require_parts(self) -> None:
        """Raise NielsCacheError if a part is missing, or has other settings."""
        for part in self.members():
            try:
                part.current()
            except NielsCacheError as error:
                how = f"niels-cache part {self.name} {part.number} --corpus"
                raise NielsCacheError(f"{part.directory}: is not there as configured; build it first: {how}") from error

    def revision(self) -> str | None:
        meta = self.parts_plan.finished()
        if meta is not None and self.parts_plan.is_settled(meta):
            revision: str | None = meta["dataset_revision"]
            return revision
        return super().revision()

    def need(self) -> Need | None:
        return None  # each part asks for its own room, and `_join` for that of the joined corpus

    def progress_of_parts(self) -> str:
        """Return how many parts are built, stale, unfinished, and being built, in words. Costs a few small reads for each part."""
        folders = [self.part(number).directory for number in range(self.source.corpus_parts)]
        try:
            stale = sum(part.is_stale for part in self.members())
        except NielsCacheError:  # without a plan, each finished part is stale
            stale = sum((folder / META_NAME).exists() for folder in folders)
        return told_of_parts(folders, stale=stale)

    def write(self, work: Work) -> Written:
        work.log(f"preparing {self.name} in {self.source.corpus_parts} parts: {', '.join(self.source.prepare)}")
        force = work.force and self.forces_parts
        materialize(self.parts_plan, wait=True, force=force, log=work.log, tells=False)
        plan = self.parts_plan.read()
        if plan.revision != work.revision:
            raise NielsCacheError(f"{self.parts_plan.place}: the files have changed since this build began; run it again")
        parts = [*self.members(plan)]
        metas = dict[int, Meta]()

        def progressed(part: CorpusProgress) -> None:
            if work.progress is not None:
                work.progress(_progress_of_all(metas.values(), part, parts=len(parts)))

        def build(part: CorpusPart, waits: bool) -> None:
            outcome = materialize(part, wait=waits, force=force, on_progress=progressed, log=work.log, tells=False)
            metas[part.number] = outcome.meta
            progressed(CorpusProgress(0, 0, 0, None))

        build_free_parts_first(parts, build, log=work.log)
        meta = _join(self, [(part.directory, metas[part.number]) for part in parts], work)
        return Written(meta=self.of_removed_ids(meta, work), warning=reading_warning(meta))


@dataclass(frozen=True, kw_only=True)
class CorpusPart(Corpus):
    """A part of a corpus. given: the part in the plan, if the caller has read the plan."""

    number: int
    given: PlannedPart | None = field(default=None, compare=False)

    noun = "part"
    option = "--corpus"
    is_shared = True
    is_part = True

    @property
    def key(self) -> str:
        return f"corpus_part/{self.name}/{part_name(self.number)}"

    @property
    def directory(self) -> Path:
        return corpus_parts_dir(self.root, self.name) / part_name(self.number)

    @cached_property
    def planned(self) -> PlannedPart:
        """The part in the plan. Raises NielsCacheError if the plan is missing or of other settings."""
        if self.given is not None:
            return self.given
        return _plan_of(self).read().parts[self.number]

    @property
    def is_stale(self) -> bool:
        """Whether the part is finished, but has other settings or is damaged."""
        try:
            return (self.directory / META_NAME).exists() and not self.current()
        except NielsCacheError:
            return True

    def revision(self) -> str | None:
        return self.planned.revision

    def identity(self, revision: str | None) -> dict[str, Any]:
        made_of = corpus_made_of(self.registry, self.name, revision=None, tokenizer_sha256=None)
        source = {key: value for key, value in made_of["source"].items() if key != "parts"}
        files = [list(file) for file in self.planned.files]
        return {**made_of, "source": source, "files": files, "text_field": self.planned.text_field, "part": self.number}

    @cached_property
    def _stream(self) -> PartStream:
        files, source = self.planned.files, _with_parts(self.source)
        located = source.located(files, self.planned.revision)
        reader = source.file_reader([file.name for file in files])
        excluded = () if source.exclude is None else excluded_ids(source.exclude)
        listed = [*zip(files, located, strict=True)]
        return PartStream(reader=reader, files=listed, text_field=self.planned.text_field, excluded=excluded)

    def inputs(self) -> Sequence[str]:
        return [*super().inputs(), f"plan/{self.name}"]

    def stream(self, context: StreamContext) -> Iterator[Documents]:
        return self._stream.documents(context)

    def finished(self) -> Meta | None:
        meta = finished_meta(self.directory)
        if meta is not None and (problem := place_problem(meta, family="corpus", name=self._full_name)):
            raise NielsCacheError(f"{self.directory}: {problem}")
        return meta

    @property
    def _full_name(self) -> str:
        return f"{self.name}/{part_name(self.number)}"

    def need(self) -> Need | None:
        return corpus_need(sum(file.bytes for file in self.planned.files))

    def write(self, work: Work) -> Written:
        require_unchanged(self._stream.files)
        written = super().write(work)
        part = {"number": self.number, "plan": self.planned.plan}
        return replace(written, meta={**self.of_removed_ids(written.meta, work), "dataset_name": self._full_name, "part": part})


def _progress_of_all(finished: Collection[Meta], part: CorpusProgress, *, parts: int) -> CorpusProgress:
    """Return the progress of all parts. part: that of the part which is built now."""
    return CorpusProgress(
        documents=part.documents + sum(meta["documents"]["read"] for meta in finished),
        kept=part.kept + sum(meta["documents"]["kept"] for meta in finished),
        characters=part.characters + sum(meta["characters"]["before"] for meta in finished),
        share=(len(finished) + (part.share or 0.0)) / parts,
    )


def _join(corpus: JoinedCorpus, members: Sequence[tuple[Path, Meta]], work: Work) -> Meta:
    """Write everything except meta.json, and return meta.json."""
    files: Files = {}
    digest = hashlib.sha256()
    arrays = (DIGESTS_NAME, SIGNATURES_NAME) if members[0][1]["signatures"] is not None else ()
    size = sum(meta["files"][name]["bytes"] for _, meta in members for name in arrays)
    require_room(corpus.directory, Need(bytes=size, why="the signatures of all parts", certain=True), log=work.log)
    documents = [(path, meta["files"][path.name]) for directory, meta in members for path in document_files(directory, meta)]
    links = Links(sum(entry["bytes"] for _, entry in documents), target=corpus.directory, log=work.log)
    for number, (path, entry) in enumerate(documents):
        files[documents_file(number)] = dict(entry)
        links.add(path, work.directory / documents_file(number), entry["bytes"])
    for directory, _ in members:
        with open(directory / HASHES_NAME, "rb") as hashes:
            hashlib.file_digest(hashes, lambda: digest)
    for name in arrays:
        _concatenate([directory / name for directory, _ in members], work.directory, name, files)
    counts = _counts([directory for directory, _ in members])
    if not counts.after.documents:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(_added(members, "dropped").items())) or "the source is empty"
        raise NielsCacheError(f"{corpus.directory}: no document is left ({reasons}); check the source and the thresholds of [cleaning]")
    write_rejected(work.directory, counts.report.rows(), files)
    write_measures(work.directory, counts.report, files)
    for directory, meta in members:
        corpus_identity.require_unchanged(directory, meta)  # otherwise the links may be those of another build
    facts = joined_facts([facts_of(meta) for _, meta in members])
    meta = corpus.meta_of(work, counts, Drops(_added(members, "dropped_by_source"), facts), files=files, content_sha256=digest.hexdigest())
    parts = [
        {"name": directory.name, "documents": meta["documents"]["kept"], "meta_sha256": meta["meta_sha256"]} for directory, meta in members
    ]
    return {**meta, "parts": parts}


def _added(members: Sequence[tuple[Path, Meta]], key: str) -> Counter[str]:
    return sum((Counter(meta[key]) for _, meta in members), Counter())


def _concatenate(paths: Sequence[Path], directory: Path, name: str, files: Files) -> None:
    """Write the rows of several arrays to one file."""
    first = map_npy(paths[0])
    writer = NpyWriter(directory, name, first.dtype, files, width=first.shape[1])
    rows = (rows[start : start + _ROWS] for rows in map(map_npy, paths) for start in range(0, len(rows), _ROWS))
    write_blocks(writer, map(np.asarray, rows))


def _counts(directories: Sequence[Path]) -> CorpusCounts:
    """Return the counts of all parts together. Examples of rejected documents come from all parts."""
    total, *others = [CorpusCounts.from_state(json.loads((directory / COUNTS_NAME).read_bytes())) for directory in directories]
    for counts in others:
        total.add(counts, is_part=True)
    return total
