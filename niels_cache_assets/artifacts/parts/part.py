"""One part of a data set: its share of the files, tokenized and written as a cache of its own, `pretrain/.parts/NAME/part-00017`.

With `prepare`, it is the share of the corpus that the part with this number has prepared (`PreparedPart`). `PlannedCache` is what the val
part, the parts and the seal have in common.

If val must be known before the parts, it is made first, `pretrain/.parts/NAME/val` (`ValPart`). With token budgets, val is the head of each
part, before any shuffle. Each part gives its share of `val_tokens`. meta.json records how many documents were taken from the head of each
part, and the parts leave out exactly these. At most twice `val_tokens` is encoded. With `val_frac` and `decontaminate`, val is what the
plan has chosen, so all text is read once more. Its texts are kept next to its tokens, because every part is compared with them. The parts
leave out the same documents. The reference encodes. A killed build of val resumes at the part that it was reading. Only the first parts
give to val. Files that are added later do not change it.

The first part of a data set that grew from one part is the cache that one process built (`WholePart`). Its split is that of a data set
without parts. If this cache is still in `pretrain/NAME`, its files are linked, and nothing is read from the source. Otherwise it is built
again, which gives the same bytes.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from niels_cache_assets.artifacts.base import Artifact, BuildJob, WriteResult
from niels_cache_assets.artifacts.cache_identity import dtype_identity
from niels_cache_assets.artifacts.dataset import Dataset, Pretrain
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.base.documents import Document, DocumentBatch, DropReport
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.build_cache import CODE_VERSIONS, OnProgress, Provenance
from niels_cache_assets.build_cache.base import Progress
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.build_cache.pretrain_writer import PretrainWriter, WriterState
from niels_cache_assets.build_cache.resume import JournalFingerprint
from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.disk.space import SpaceNeed, pretrain_need
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.disk.table_file import ParquetWriter, closing_table
from niels_cache_assets.facts.contents import budget_rule
from niels_cache_assets.parts.exclusion import find_excluded_documents, identity_with_ids, identity_with_present_ids, removed_ids
from niels_cache_assets.parts.layout import VAL_NAME, part_name, parts_dir
from niels_cache_assets.parts.plan import Plan, PlannedPart, is_compressed
from niels_cache_assets.parts.seal import link_all
from niels_cache_assets.sources.excluding import EXCLUDED, exclude_identity, excluded_ids, identity_of_ids
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.reading.part_stream import PartStream, part_stream, require_unchanged
from niels_cache_assets.sources.types import SourceWithParts, StreamContext
from niels_cache_assets.sources.val_share import FractionSplitter
from niels_cache_assets.streaming.decontaminate import decontamination_identity
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.intake import as_documents
from niels_cache_assets.streaming.splits import UNLIMITED, BudgetSplitter, encoded_head
from niels_cache_assets.streaming.types import EncodedDocuments
from niels_cache_assets.tokenizer.tokenizer_json import tokenizers_limited_to
from niels_cache_runtime.cache.opening import check_sizes, listed_files, short_sha256
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import remove
from niels_cache_runtime.format.layout import VAL_TEXTS, dataset_dir
from niels_cache_runtime.format.meta import Meta, content_sha256, location_problem

Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class PlannedCache(Pretrain):
    """A cache that is built by a plan. Its identity is the plan and the tokenizer; the plan covers the settings and the revision."""

    source: SourceWithParts

    def sibling(self, kind: Callable[..., Kind], **own: Any) -> Kind:
        """Return another artifact of this data set.

        Args:
            kind: The class of the artifact.
            **own: Its other fields.
        """
        return kind(registry=self.registry, root=self.root, name=self.name, source=self.source, build=self.build, **own)

    @property
    def parts_plan(self) -> PartsPlan:
        """The artifact of the plan."""
        return self.sibling(PartsPlan)

    @cached_property
    def plan(self) -> Plan:
        """The plan of these settings.

        Raises:
            NielsCacheError: If the plan is missing or has other settings.
        """
        return self.parts_plan.read()

    @property
    @abstractmethod
    def member(self) -> str:
        """The name of the cache among the parts of its data set."""

    @property
    @abstractmethod
    def key(self) -> str: ...

    @property
    def directory(self) -> Path:
        return parts_dir(self.root, self.name) / self.member

    @property
    def planned_by(self) -> str:
        """The fingerprint of the plan, or of the group of its parts, that decides this cache. Growth never changes that of a part."""
        return self.plan.fingerprint

    def inputs(self) -> Sequence[str]:
        return ["tokenizer", f"plan/{self.name}"]

    def revision(self) -> str | None:
        assert self.tokenizer  # fail early: nothing can be built without it
        return self.plan.revision

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        return {
            "plan": self.planned_by,
            "member": self.member,
            "special_tokens": self.registry.tokenizer.special_tokens,
            "tokenizer_sha256": tokenizer_sha256,
            "code_version": CODE_VERSIONS["pretrain"],
            **dtype_identity(self.build, vocab_size),
            **exclude_identity(self.source.exclude),
            **decontamination_identity(self.source.decontaminate, self.source.decontaminate_threshold, val_is_given=True),
        }

    def finished(self) -> Meta | None:
        meta = finished_meta(self.directory)
        if meta is not None and (problem := location_problem(meta, family="pretrain", name=self._full_name)):
            raise NielsCacheError(f"{self.directory}: {problem}")
        return meta if meta is not None and self.content_matches(meta) else None

    def content_matches(self, meta: Meta) -> bool:
        """Return whether the content of the files is that of meta.json. They are read only with verify_parts = "sha256" in [build]."""
        if self.build.verify_parts == "sha256":
            try:
                self.check_files(meta)
            except NielsCacheError:
                return False
        return True

    def check_files(self, meta: Meta, directory: Path | None = None) -> None:
        """Raise NielsCacheError for a file that differs from meta.json, by size or by content ([build] verify_parts).

        Args:
            meta: The meta.json.
            directory: The folder of the cache. None: the folder of this artifact.
        """
        directory = directory or self.directory
        listed = listed_files(meta, directory)
        found = {name: (directory / name).stat().st_size for name in listed if (directory / name).is_file()}
        check_sizes(directory, listed, found, verify=self.build.verify_parts)

    def provenance(self, revision: str | None, fingerprint: str) -> Provenance:
        return replace(super().provenance(revision, fingerprint), dataset_name=self._full_name)

    @property
    def _full_name(self) -> str:
        return f"{self.name}/{self.member}"

    def stream_of(self, planned: PlannedPart, **arguments: Any) -> PartStream:
        """Return the stream of a part.

        Args:
            planned: The part in the plan.
            **arguments: Arguments `skip`, `only` and `excludes` of `part_stream`.

        Raises:
            NielsCacheError: If a file is missing.
        """
        val = FractionSplitter.load(parts_dir(self.root, self.name), planned.val)
        return part_stream(self.source, planned.files, revision=planned.revision, text_field=planned.text_field, val=val, **arguments)

    def is_current(self, meta: Meta) -> bool:
        """Return whether the cache with this meta.json belongs to the plan and to the tokenizer."""
        return self.matches(meta, self.identity(self.revision()))

    def matches(self, meta: Meta, identity: Mapping[str, Any]) -> bool:
        return super().matches(meta, self.identity_with_present_ids(meta, identity))

    def identity_with_present_ids(self, meta: Meta, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return an identity in which only those ids of `exclude` count that this finished cache holds or has removed."""
        directory, parts_folder, also = self.directory_of(meta), parts_dir(self.root, self.name), self.external_ids()
        list_of_ids = None if self.source.prepare else self.source.exclude  # a corpus has left out what it names
        return identity_with_present_ids(identity, list_of_ids, meta, directory, parts_folder=parts_folder, also=also)

    def directory_of(self, meta: Meta) -> Path:
        """Return the folder of the cache with this meta.json."""
        return self.directory

    def external_ids(self) -> frozenset[str]:
        """Return the ids of `exclude` that decide this cache although they are not in its lineage, and its build did not remove them."""
        return frozenset()

    def with_removed_ids_only(self, meta: Meta, identity: Mapping[str, Any]) -> Meta:
        """Return the meta.json of a new cache, with the fingerprint recomputed for only the excluded ids that this build removed."""
        if self.source.exclude is None or self.source.prepare:
            return meta
        return {**meta, "fingerprint": fingerprint_of(identity_with_ids(identity, removed_ids(meta) | self.external_ids()))}

    def difference(self, meta: Meta) -> str:
        """Return why the part with this meta.json does not belong to the plan."""
        part, revision = meta.get("part", {}), meta.get("dataset_revision")
        if part.get("plan") != self.planned_by:
            if revision != self.revision():
                return f"was built from revision {revision}, but the plan is of revision {self.revision()}"
            return f"was built by another plan ({short_sha256(part.get('plan'))}), with other settings"
        if meta.get("tokenizer_sha256") != self.tokenizer.model_sha256:
            used, current = (short_sha256(sha256) for sha256 in (meta.get("tokenizer_sha256"), self.tokenizer.model_sha256))
            return f"was built with tokenizer {used}, but the cache now holds {current}"
        if self.source.exclude is not None or meta.get("facts", {}).get(EXCLUDED):
            return "was built with other ids in the list `exclude`, with other settings or by another code version"
        return "was built with other settings or by another code version"


@dataclass(frozen=True, kw_only=True)
class PlannedCorpusCache(PlannedCache):
    """A cache that is built from a corpus in parts. Its identity is the kept documents, their splits, and the parts of the corpus."""

    @cached_property
    def corpus(self) -> PreparedCorpus:
        """The corpus, without its duplicates.

        Raises:
            NielsCacheError: If the corpus or its drop list is not current.
        """
        assert self.prepared is not None  # the table has `prepare`
        return self.prepared

    @property
    def planned_by(self) -> str:
        return fingerprint_of({**self.corpus.identity(), "parts": [len(part) for part in self.corpus.parts]})

    def inputs(self) -> Sequence[str]:
        return Dataset.inputs(self)

    def revision(self) -> str | None:
        return Dataset.revision(self)

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        of_cache = Dataset.identity_with(self, tokenizer_sha256, vocab_size, revision)
        return {**of_cache, "plan": self.planned_by, "member": self.member}


_TEXTS_AT_A_TIME = 256
_GROUP_CHARACTERS = 1 << 21


def _resolve_share(batch: EncodedDocuments, splitter: BudgetSplitter, build: PretrainBuild) -> Iterable[EncodedDocuments]:
    """Return the batch, or its documents one by one if the share of val may end in it and some of its documents were dropped.

    Documents after the end are neither taken nor counted.
    """
    if not batch.drops.dropped or int(batch.lengths.sum()) < splitter.remaining["val"]:
        return [batch]
    documents = [(chunk[at : at + 1], position) for chunk, position in batch.chunks for at in range(len(chunk))]
    return build.encode_chunks_separately(replace(batch, chunks=documents))


def _position_after(batch: EncodedDocuments, count: int) -> tuple[str, Mapping[str, Any]]:
    """Return the file of document number `count` that was read for a batch, and the facts of the source after its chunk."""
    for chunk, position in batch.chunks:
        if count <= len(chunk):
            return chunk.file[count - 1], position.facts
        count -= len(chunk)
    raise IndexError(count)


def _texts_name(planned: PlannedPart) -> str:
    """Return the relative path of the file with the texts that one part gives to a seeded val."""
    return f"{VAL_TEXTS}/{planned.name}.parquet"


@dataclass(frozen=True, kw_only=True)
class _State:
    """The state between two parts.

    Attributes:
        taken: How many documents the head of each part gave so far.
        cut: The ordinals of cut documents.
    """

    taken: list[int]
    cut: list[int]
    drops: dict[str, dict[str, Any]]
    writer: WriterState | None
    excluded: dict[str, dict[str, int]] = field(default_factory=dict)


def _with_excluded(state: _State, planned: PlannedPart, facts: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the removed documents of each part by id, including those of this part.

    Args:
        state: The state before this part.
        planned: This part in the plan.
        facts: The facts of its stream up to the last document of val.
    """
    removed = facts.get(EXCLUDED)
    return {**state.excluded, planned.name: dict(removed)} if removed else state.excluded


def _counts(state: _State, *, with_excluded: bool) -> dict[str, Any]:
    """Return `dropped` and `facts` of meta.json, with the removed documents of all parts if `with_excluded`."""
    total = sum((Counter(ids) for ids in state.excluded.values()), Counter[str]())
    if not (total and with_excluded):
        return state.drops
    return {"dropped": {**state.drops["dropped"], EXCLUDED: total.total()}, "facts": {**state.drops["facts"], EXCLUDED: dict(total)}}


@dataclass(frozen=True, kw_only=True)
class ValPart(PlannedCache):
    """The val of a data set in parts that is made before the parts."""

    is_shared = True
    is_part = True

    @property
    def member(self) -> str:
        return VAL_NAME

    @property
    def key(self) -> str:
        return f"val_part/{self.name}"

    @property
    def planned_by(self) -> str:
        return self.plan.first.fingerprint

    def decisive_ids(self, planned: PlannedPart | None = None) -> frozenset[str]:
        """Return the ids of `exclude` that the finished val part holds or has removed. Empty if it is not built.

        Args:
            planned: Return only the ids in the head of this part. None: all ids.
        """
        meta = None if self.source.exclude is None else self.finished()
        if meta is None or self.source.exclude is None:
            return frozenset()
        excluded, parts_folder = excluded_ids(self.source.exclude), parts_dir(self.root, self.name)
        try:
            present = find_excluded_documents(meta, self.directory, excluded, parts_folder=parts_folder)
        except NielsCacheError:  # it is damaged, so all of them may count
            return excluded
        if planned is None:
            return excluded & ({each.source_id for each in present} | removed_ids(meta))
        files, removed = {file.name for file in planned.files}, meta["part"].get(EXCLUDED, {}).get(planned.name, [])
        return excluded & {*removed, *(each.source_id for each in present if each.file in files)}

    def revision(self) -> str | None:
        assert self.tokenizer  # fail early: nothing can be built without it
        return self.plan.first.revision

    @property
    def is_seeded(self) -> bool:
        """Whether val_frac decides which documents are val, and not a token budget."""
        return not self.source.val_tokens

    def journal(self, revision: str | None) -> JournalFingerprint:
        return Artifact.journal(self, revision)

    def documents(self) -> Iterator[Document]:
        """Yield the texts of a seeded val.

        Raises:
            NielsCacheError: If the file is damaged.
        """
        import pyarrow
        import pyarrow.parquet

        for planned in self.plan.parts:
            path = self.directory / _texts_name(planned)
            try:
                with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as parquet:
                    for batch in parquet.iter_batches(batch_size=_TEXTS_AT_A_TIME, columns=["text"]):
                        yield from map(Document, batch["text"].to_pylist())
            except (pyarrow.ArrowException, OSError) as error:
                command = f"niels-cache build-all --only {self.name} --force"
                raise NielsCacheError(f"{path}: cannot be read ({str(error).splitlines()[0]}); build it again: {command}") from error

    def need(self) -> SpaceNeed | None:
        if self.is_seeded:
            return None
        val_tokens = self.source.val_tokens
        return pretrain_need(train_tokens=0, val_tokens=val_tokens, token_bytes=self.token_bytes, text_bytes=None, exact=False)

    def split_rule(self) -> str:
        return super().split_rule() if self.is_seeded else budget_rule(train_tokens=None, val_tokens=self.source.val_tokens or 0)

    def write(self, work: BuildJob) -> WriteResult:
        journal = work.open_journal(f"{self.name}/{self.member}", state=_State)
        state: _State = journal.state or _State(taken=[], cut=[], drops=DropReport().state(), writer=None)
        parts, build = self.plan.first.parts, self._build_of(work)
        with (
            tokenizers_limited_to(self.build.threads),
            PretrainWriter(
                work.directory,
                dtype=build.dtype,
                shard_bytes=build.shard_bytes,
                state=state.writer,
                files=journal.finished,
                has_kept_values=bool(self.keep),
            ) as writer,
        ):
            resumed = writer.tokens("val")
            for planned in parts[len(state.taken) :]:
                take = self._take_seeded if self.is_seeded else self._take_head
                state = take(planned, state, writer, build, work)
                on_disk, sizes = writer.checkpoint()
                journal.record(
                    asdict(replace(state, writer=on_disk)),
                    finished=writer.files,
                    files=sizes,
                    sums=sizes.sums,
                    bytes_written=writer.bytes,
                    share=len(state.taken) / len(parts),
                    documents=writer.documents("val"),
                )
                work.report(Progress(writer.documents("val"), writer.tokens("val"), len(state.taken) / len(parts)))
            if not writer.tokens("val") and not self.is_seeded:
                raise NielsCacheError(f"{self.directory}: the files gave no usable document; nothing was written")
            writer.seal()
            excluded = {EXCLUDED: {name: sorted(ids) for name, ids in state.excluded.items()}} if state.excluded else {}
            short = 0 if self.is_seeded else (self.source.val_tokens or 0) - writer.tokens("val")
            meta: dict[str, Any] = {
                **build.meta(self.split_rule()),
                "append_eot": True,
                "shard_bytes": self.build.shard_bytes,
                **writer.totals(),
                "cut": {"train": 0, "val": len(state.cut)},
                "cut_document": {"train": [], "val": state.cut},
                **_counts(state, with_excluded=self.is_seeded),  # otherwise the parts count those in their heads
                "files": writer.files,
                "content_sha256": content_sha256(writer.files),
                "part": {"plan": self.planned_by, "taken": state.taken, "short": short, **excluded},
            }
        return WriteResult(meta=self.with_removed_ids_only(meta, work.identity), resumed=resumed)

    def _build_of(self, work: BuildJob) -> PretrainBuild:
        """Return a build with the settings of this cache. Only its settings and its meta.json are used."""
        return self.new_build(
            items=(),
            max_train_tokens=UNLIMITED,
            max_val_tokens=self.source.val_tokens or 0,
            seed=self.build.seed,
            shuffle_buffer=None,
            provenance=self.provenance(work.revision, work.fingerprint),
        )

    def _context(self, work: BuildJob) -> StreamContext:
        return StreamContext(seed=self.build.seed, revision=work.revision, log=work.log)

    def _take_seeded(self, planned: PlannedPart, state: _State, writer: PretrainWriter, build: PretrainBuild, work: BuildJob) -> _State:
        """Write the documents of one part that belong to val, with their texts, and return the state after it."""
        drops, stream, context = DropReport(**state.drops), self.stream_of(planned, only="val"), self._context(work)
        feed = Feed(stream.documents, context)
        splitter = BudgetSplitter(max_train_tokens=UNLIMITED, max_val_tokens=0, eot=build.view.eot)
        (work.directory / VAL_TEXTS).mkdir(exist_ok=True)
        table = ParquetWriter(work.directory, _texts_name(planned), {"text": "string"}, writer.files)
        with closing_table(table), closing(build.encode(as_documents(feed.open()), feed)) as batches:
            texts: list[str] = []  # of the next row group, because a batch may hold few documents of val
            characters = 0
            for batch in batches:
                drops.join(batch.drops)
                if len(batch.documents):
                    writer.write({"val": splitter.assign(batch)["val"]})
                    texts += batch.documents.text.tolist()
                    characters += int(batch.documents.characters.sum())
                if characters >= _GROUP_CHARACTERS:
                    table.write_group([texts])
                    texts, characters = [], 0
            table.write_group([texts])
        require_unchanged(stream.files)
        excluded = _with_excluded(state, planned, context.report.facts)
        return _State(taken=[*state.taken, 0], cut=[], drops=drops.state(), writer=None, excluded=excluded)

    def _take_head(self, planned: PlannedPart, state: _State, writer: PretrainWriter, build: PretrainBuild, work: BuildJob) -> _State:
        """Write the share of one part, and return the state after it."""
        taken, cut, drops, context = 0, [*state.cut], DropReport(**state.drops), self._context(work)
        facts: Mapping[str, Any] = {}
        if planned.val_tokens:
            stream = self.stream_of(planned)
            last = ""  # the name of the file with the last document that was taken
            splitter = BudgetSplitter(max_train_tokens=UNLIMITED, max_val_tokens=planned.val_tokens, eot=build.view.eot)
            feed = Feed(stream.documents, context)
            head = encoded_head(as_documents(feed.open()), lambda documents: build.encode(documents, feed), splitter)
            with closing(head) as batches:
                for each in chain.from_iterable(_resolve_share(batch, splitter, build) for batch in batches):
                    drops.join(each.drops)
                    chosen = splitter.assign(each).get("val")
                    if chosen is not None:
                        cut += [] if chosen.cut is None else [writer.documents("val") + chosen.cut]
                        writer.write({"val": chosen})
                    # Documents after the end of the share belong to the part.
                    count = (
                        len(chosen.lengths) if chosen is not None and splitter.val_is_full else sum(len(chunk) for chunk, _ in each.chunks)
                    )
                    taken += count
                    last, facts = _position_after(each, count)
                    if splitter.val_is_full:
                        break
            require_unchanged(stream.files_through(last) if splitter.val_is_full else stream.files)
            facts = facts if splitter.val_is_full else context.report.facts
        excluded = _with_excluded(state, planned, facts)
        return _State(taken=[*state.taken, taken], cut=cut, drops=drops.state(), writer=None, excluded=excluded)


@dataclass(frozen=True, kw_only=True)
class Part(PlannedCache):
    """A part of a data set."""

    is_shared = True
    is_part = True

    number: int

    @property
    def member(self) -> str:
        return part_name(self.number)

    @property
    def key(self) -> str:
        return f"part/{self.name}/{self.member}"

    @cached_property
    def planned(self) -> PlannedPart:
        """The part in the plan."""
        return self.plan.parts[self.number]

    @property
    def planned_by(self) -> str:
        return self.planned.plan

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        identity = super().identity_with(tokenizer_sha256, vocab_size, revision)
        if self.source.decontaminate != "off" and self.number >= self.source.parts:
            identity["val"] = self.plan.first.fingerprint  # the plan of added files does not say which val they are compared with
        if self.source.decontaminate != "off" and (left_out := self._val_ids):
            identity["val_exclude"] = identity_of_ids(left_out)["exclude"]  # this part is compared with the rest of val
        return identity

    @cached_property
    def _val_ids(self) -> frozenset[str]:
        """The ids of `exclude` that the val part holds or has removed. Empty if there is no val part yet."""
        return self._val.decisive_ids() if self.source.has_val_part else frozenset()

    def external_ids(self) -> frozenset[str]:
        """Return the ids in the head of this part that val has taken, or would have taken without `exclude`."""
        return self._val.decisive_ids(self.planned) if self.source.has_val_part and not self._val.is_seeded else frozenset()

    @cached_property
    def _val(self) -> ValPart:
        return self.sibling(ValPart)

    def revision(self) -> str | None:
        assert self.tokenizer  # fail early: nothing can be built without it
        return self.planned.revision

    @cached_property
    def stream(self) -> PartStream:
        """The stream of the part, without the documents that the val part has taken."""
        val = self._val_part
        return self.stream_of(self.planned, skip=self._taken[self.number], only="train" if val is not None and val.is_seeded else None)

    @cached_property
    def _val_part(self) -> ValPart | None:
        """The val part, or None if the data set has none.

        Raises:
            NielsCacheError: If it does not exist as configured.
        """
        if not self.source.has_val_part:
            return None
        val = self._val
        val.current()
        return val

    @cached_property
    def _taken(self) -> list[int]:
        """The number of documents that the val part has taken from the head of each part. It takes none from added files."""
        taken: list[int] = [] if self._val_part is None else self._val_part.current()["part"]["taken"]
        return [*taken, *[0] * (len(self.plan.parts) - len(taken))]

    def _val_documents(self, context: StreamContext) -> Iterator[Document]:
        """Yield the documents of val of all parts, to compare the train documents of this part with them."""
        context.log("reading val, to keep its documents out of train")
        if self._val_part is not None and self._val_part.is_seeded:
            yield from self._val_part.documents()
            return
        for planned, taken in zip(self.plan.parts, self._taken, strict=True):
            files = tuple(file for file in planned.files if file.split == "val" or taken)
            if files:
                unreported = StreamContext(seed=context.seed, revision=context.revision)
                # Without a val part, an excluded document of val stays among them, so that no part depends on those of another part.
                stream, count, last = self.stream_of(replace(planned, files=files), excludes=self.source.has_val_part), 0, ""
                for document in islice(chain.from_iterable(stream.documents(unreported)), taken or None):
                    count, last = count + 1, document.file
                    yield document
                require_unchanged(stream.files_through(last) if taken and count == taken else stream.files)

    def inputs(self) -> Sequence[str]:
        return [*super().inputs(), *([f"val_part/{self.name}"] if self.source.has_val_part else [])]

    def need(self) -> SpaceNeed | None:
        any_compressed = any(is_compressed(file.name) for file in self.planned.files)
        all_sizes_known = all(file.bytes for file in self.planned.files)  # 0: the file is empty, or its server reports no size
        text_bytes = sum(file.bytes for file in self.planned.files) if all_sizes_known and not any_compressed else None
        budget = self.planned.train_tokens
        return pretrain_need(train_tokens=budget, val_tokens=0, token_bytes=self.token_bytes, text_bytes=text_bytes, exact=False)

    def split_rule(self) -> str:
        budget = self.planned.train_tokens
        return super().split_rule() if budget is None else budget_rule(train_tokens=budget, val_tokens=0)

    def builder(self, context: StreamContext, provenance: Provenance, progress: OnProgress | None) -> PretrainBuild:
        budget = self.planned.train_tokens
        return self.new_build(
            items=Feed(self.documents, context),
            max_train_tokens=UNLIMITED if budget is None else budget,
            max_val_tokens=0,
            seed=self.planned.seed(self.build.seed),
            shuffle_buffer=self.source.shuffle_buffer or None,
            val_texts=self._val_documents(context) if self.source.decontaminate != "off" else None,
            needs_train=False,
            provenance=provenance,
            progress=progress,
        )

    def documents(self, context: StreamContext) -> Iterator[DocumentBatch]:
        """Yield the documents of the part, from the position where `context` begins."""
        return self.stream.documents(context)

    def write(self, work: BuildJob) -> WriteResult:
        if not self.source.prepare:  # everything that is read from a corpus is compared with its meta.json
            require_unchanged(self.stream.files)
        written = super().write(work)
        budget, tokens = self.planned.train_tokens, written.meta["train_tokens"]
        short = 0 if budget is None else budget - tokens
        part = {"number": self.number, "plan": self.planned.plan, "short": short}
        return replace(written, meta={**self.with_removed_ids_only(written.meta, work.identity), "part": part})


@dataclass(frozen=True, kw_only=True)
class PreparedPart(PlannedCorpusCache, Part):
    """A part of a data set with `prepare`: the documents of one part of its corpus, without duplicates."""

    @cached_property
    def planned(self) -> PlannedPart:
        """The part without files and budgets: the corpus has divided them."""
        nothing: dict[str, Any] = {"files": (), "text_field": None, "train_tokens": None, "val_tokens": None}
        return PlannedPart(number=self.number, plan=self.planned_by, revision=self.corpus.meta["dataset_revision"], **nothing)

    @property
    def _ordinals(self) -> range:
        return self.corpus.parts[self.number]

    def need(self) -> SpaceNeed | None:
        share = len(self._ordinals) / max(1, self.corpus.meta["documents"]["kept"])
        text_bytes = int(self.corpus.meta["bytes"]["after"] * share)
        return pretrain_need(train_tokens=None, val_tokens=None, token_bytes=self.token_bytes, text_bytes=text_bytes, exact=False)

    def documents(self, context: StreamContext) -> Iterator[DocumentBatch]:
        return self.corpus.stream(context, self._ordinals)


_UNPINNED = (None, "main")  # `part --add` replaces these by the commit; a cache of another branch is built again, with the same bytes


@dataclass(frozen=True, kw_only=True)
class WholePart(Part):
    """All first files of a data set as one part."""

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        return Dataset.identity_with(self, tokenizer_sha256, vocab_size, revision)

    def matches(self, meta: Meta, identity: Any) -> bool:
        """Return whether the cache is this part. It may have been built before its commit was pinned.

        All ids of `exclude` count for a cache that one process built, also those that it does not hold.
        """
        return any(self._matches_identity(meta, each) for each in (self.identity_with_present_ids(meta, identity), dict(identity)))

    def _matches_identity(self, meta: Meta, identity: dict[str, Any]) -> bool:
        source, forms = dict(identity["source"]), [identity]
        if source.get("pinned_revision") is not None and source["pinned_revision"] == identity["revision"]:
            forms += [{**identity, "source": {**source, "pinned_revision": pinned}} for pinned in _UNPINNED]
        return meta.get("fingerprint") in [fingerprint_of(each) for each in forms]

    def directory_of(self, meta: Meta) -> Path:
        return self.directory if "part" in meta else self._dataset_directory

    @cached_property
    def built(self) -> Meta | None:
        """The meta.json of the cache that one process built, if it is still in the folder of the data set and has these settings."""
        meta = self._single_process_build()
        if meta is None or not self.is_current(meta):
            return None
        if self.build.verify_parts == "sha256":
            try:
                self.check_files(meta, self._dataset_directory)
            except NielsCacheError:
                return None
        return meta

    @property
    def exists(self) -> bool:
        """Whether one process has built the data set. It may have had other settings."""
        return self._single_process_build() is not None

    def _single_process_build(self) -> Meta | None:
        meta = finished_meta(self._dataset_directory)
        if meta is None or not meta.get("built") or "parts" in meta or meta.get("dataset_name") != self.name:
            return None
        return meta

    @property
    def _dataset_directory(self) -> Path:
        return dataset_dir(self.root, "pretrain", self.name)

    def need(self) -> SpaceNeed | None:
        return None if self.built is not None else Pretrain.need(self)

    def split_rule(self) -> str:
        return Pretrain.split_rule(self)

    def builder(self, context: StreamContext, provenance: Provenance, progress: OnProgress | None) -> PretrainBuild:
        return Pretrain.builder(self, self._with_planned_files(context), provenance, progress)

    def _with_planned_files(self, context: StreamContext) -> StreamContext:
        """Return the context with the files of the plan, because the patterns may match other files now. A commit of the hub is fixed."""
        return context if isinstance(self.source, HubData) else replace(context, files=[file for _, file in self.stream.files])

    def write(self, work: BuildJob) -> WriteResult:
        if self.built is None or work.force:
            require_unchanged(self.stream.files)
            written = Dataset.write(self, work)
            meta = self._with_part(self.with_removed_ids_only(written.meta, work.identity))
            return WriteResult(meta=meta, resumed=written.resumed, warning=written.warning, engines=written.engines)
        meta = self.built
        for path in work.directory.iterdir():  # of an unfinished build that was kept
            remove(path)
        link_all(meta, self._dataset_directory, work.directory, target=self.directory, log=work.log)
        if finished_meta(self._dataset_directory) != meta:
            raise NielsCacheError(f"{self._dataset_directory}: was built again while its files were being linked; run it again")
        return WriteResult(meta=self._with_part(self.with_removed_ids_only({**meta, "dataset_name": self._full_name}, work.identity)))

    def _with_part(self, meta: Meta) -> Meta:
        budget = self.source.train_tokens
        short = 0 if budget is None else max(0, budget - meta["train_tokens"])
        return {
            **{key: value for key, value in meta.items() if key not in ("meta_sha256", "overlap")},  # the seal compares the splits
            "part": {"number": self.number, "plan": self.planned.plan, "short": short},
        }
