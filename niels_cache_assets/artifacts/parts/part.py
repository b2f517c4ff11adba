"""The parts of a data set, `pretrain/.parts/NAME/part-00017`, and its val part, `pretrain/.parts/NAME/val`.

There are three kinds of parts:

* `PartOfPlan` reads the files that the plan gives to the part, and has a share of the budgets.
* `PartOfCorpus` reads, with `prepare`, the documents of the corpus that the part with this number has prepared, without duplicates.
* `GrownPart` is the first part of a data set that grew from one part, which is the cache that one process built. Its split is that of a
  data set without parts. If this cache is still in `pretrain/NAME`, its files are linked, and nothing is read from the source. Otherwise it
  is built again, which gives the same bytes.

If val must be known before the parts, it is made first (`ValPart`). With token budgets, val is the head of each part, before any shuffle.
Each part gives its share of `val_tokens`. meta.json records how many documents were taken from the head of each part, and the parts leave
out exactly these. At most twice `val_tokens` is encoded. With `val_frac` and `decontaminate`, val is what the plan has chosen, so all text
is read once more. Its texts are kept next to its tokens, because every part is compared with them. The parts leave out the same documents.
The reference encodes. A killed build of val resumes at the part that it was reading. Only the first parts give to val. Files that are added
later do not change it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.artifacts.base import BuildJob, WriteResult
from niels_cache_assets.artifacts.cache_identity import dtype_identity
from niels_cache_assets.artifacts.dataset import DatasetArtifact, DatasetSpec, PretrainCache, content_matches, pretrain_build, split_rule
from niels_cache_assets.base.documents import Document, DropReport
from niels_cache_assets.base.fingerprint import Identity, fingerprint_of
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.build_cache.pretrain_writer import PretrainWriter, WriterState
from niels_cache_assets.disk.identity import without_keys
from niels_cache_assets.disk.space import SpaceNeed, pretrain_need
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.disk.table_file import ParquetWriter, open_table, sealing
from niels_cache_assets.facts.contents import budget_rule
from niels_cache_assets.parts.layout import VAL_NAME, part_name
from niels_cache_assets.parts.plan import PlannedPart, is_compressed
from niels_cache_assets.parts.seal import link_all
from niels_cache_assets.sources.excluding import EXCLUDED, exclude_identity, identity_of_ids
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.reading.part_stream import PartStream, part_stream, require_unchanged
from niels_cache_assets.sources.types import PretrainSource, SourceWithParts, StreamContext
from niels_cache_assets.sources.val_share import FractionSplitter
from niels_cache_assets.streaming.decontaminate import decontamination_identity
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.intake import as_documents
from niels_cache_assets.streaming.splits import UNLIMITED, BudgetSplitter, encoded_head
from niels_cache_assets.streaming.types import EncodedDocuments
from niels_cache_assets.tokenizer.kinds import special_tokens_of
from niels_cache_assets.tokenizer.tokenizer_json import tokenizers_limited_to
from niels_cache_runtime.cache.opening import short_sha256
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import remove
from niels_cache_runtime.format.layout import VAL_TEXTS
from niels_cache_runtime.format.meta import Meta, content_sha256, location_problem

if TYPE_CHECKING:
    from niels_cache_assets.build_cache.pretrain import PretrainBuild


def planned_identity(spec: DatasetSpec[PretrainSource], member: str, planned_by: str) -> Identity:
    """Return everything that decides a cache with a plan: the plan, which covers the settings and the revision, and the tokenizer."""
    source, (tokenizer_sha256, vocab_size) = spec.source, spec.recorded_tokenizer
    return {
        "plan": planned_by,
        "member": member,
        "special_tokens": special_tokens_of(spec.registry.tokenizer),
        "tokenizer_sha256": tokenizer_sha256,
        "code_version": CODE_VERSIONS["pretrain"],
        **dtype_identity(spec.build, vocab_size),
        **exclude_identity(source.exclude),
        **source.fim_identity,
        **decontamination_identity(source.decontaminate, source.decontaminate_threshold, val_is_given=True),
    }


def stream_of(spec: DatasetSpec[SourceWithParts], planned: PlannedPart, **arguments: Any) -> PartStream:
    """Return the stream of a part.

    Args:
        spec: The data set.
        planned: The part in the plan.
        **arguments: Arguments `skip`, `only` and `excludes` of `part_stream`.

    Raises:
        NielsCacheError: If a file is missing.
    """
    val = FractionSplitter.load(spec.parts_folder, planned.val)
    return part_stream(spec.source, planned.files, revision=planned.revision, text_field=planned.text_field, val=val, **arguments)


class PartFolder(DatasetArtifact[SourceWithParts]):
    """The val part or a part of a data set. It has a lease, because machines share the parts."""

    is_shared = True
    is_part = True

    @property
    @abstractmethod
    def member(self) -> str:
        """The name of the folder."""

    @property
    @abstractmethod
    def planned_by(self) -> str:
        """The fingerprint of the group of parts that decides a part, or of the first group for val. Growth never changes it."""

    @property
    def directory(self) -> Path:
        return self.spec.parts_folder / self.member

    def inputs(self) -> list[str]:
        return ["tokenizer", self.spec.parts_plan.key]

    def finished(self) -> Meta | None:
        """Return the meta.json of the finished part, or None.

        Raises:
            NielsCacheError: If the folder holds another part.
        """
        meta = finished_meta(self.directory)
        if meta is not None and (problem := location_problem(meta, family="pretrain", name=f"{self.spec.name}/{self.member}")):
            raise NielsCacheError(f"{self.directory}: {problem}")
        return meta if meta is not None and content_matches(self.spec, self.directory, meta) else None

    def external_ids(self) -> frozenset[str]:
        """Return ids that decide the part without being in its files. They count if they are in the list `exclude`."""
        return frozenset()

    def matches(self, meta: Meta, identity: Identity) -> bool:
        return super().matches(meta, self.spec.exclude_list.present_identity(meta, identity, self.directory, also=self.external_ids()))

    def difference(self, meta: Meta) -> str:
        """Return why the part with this meta.json does not belong to the plan."""
        built_by, revision = meta.get("part", {}).get("plan"), meta.get("dataset_revision")
        if built_by != self.planned_by:
            if revision != self.revision():
                return f"was built from revision {revision}, but the plan is of revision {self.revision()}"
            return f"was built by another plan ({short_sha256(built_by)}), with other settings"
        used, (current, _) = meta.get("tokenizer_sha256"), self.spec.recorded_tokenizer
        if used != current:
            return f"was built with tokenizer {short_sha256(used)}, but the cache now holds {short_sha256(current)}"
        if self.spec.source.exclude is not None or meta.get("facts", {}).get(EXCLUDED):
            return "was built with other ids in the list `exclude`, with other settings or by another code version"
        return "was built with other settings or by another code version"


_TEXTS_AT_A_TIME = 256
_GROUP_CHARACTERS = 1 << 21


def _resolve_share(batch: EncodedDocuments, splitter: BudgetSplitter, build: PretrainBuild) -> Iterable[EncodedDocuments]:
    """Return the batch, or its documents one by one if the share of val may end in it and some of its documents were dropped.

    Documents after the end are neither taken nor counted.
    """
    if not batch.drops.dropped or int(batch.lengths.sum()) < splitter.remaining["val"]:
        return [batch]
    documents = ((chunk[at : at + 1], position) for chunk, position in batch.chunks for at in range(len(chunk)))
    return build.document_encoder.encode_separately(documents)


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
    """The state between two parts. The default is that before the first part.

    Attributes:
        taken: How many documents the head of each part gave so far.
        cut: The ordinals of cut documents.
    """

    taken: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    drops: dict[str, dict[str, Any]] = field(default_factory=DropReport().state)
    writer: WriterState = field(default_factory=WriterState)
    excluded: dict[str, dict[str, int]] = field(default_factory=dict)

    def after(self, planned: PlannedPart, taken: int, cut: list[int], drops: DropReport, facts: Mapping[str, Any]) -> _State:
        """Return the state after a part.

        Args:
            planned: The part in the plan.
            taken: How many documents its head gave.
            cut: The ordinals of all cut documents so far.
            drops: The dropped documents so far.
            facts: The facts of its stream up to the last document of val.
        """
        removed = facts.get(EXCLUDED)
        excluded = {**self.excluded, planned.name: dict(removed)} if removed else self.excluded
        return _State(taken=[*self.taken, taken], cut=cut, drops=drops.state(), excluded=excluded)


def _counts(state: _State, *, with_excluded: bool) -> Meta:
    """Return `dropped` and `facts` of meta.json, with the removed documents of all parts if `with_excluded`."""
    total = sum((Counter(ids) for ids in state.excluded.values()), Counter[str]())
    if not (total and with_excluded):
        return state.drops
    return {"dropped": {**state.drops["dropped"], EXCLUDED: total.total()}, "facts": {**state.drops["facts"], EXCLUDED: dict(total)}}


class ValPart(PartFolder):
    """The val of a data set in parts that is made before the parts."""

    member = VAL_NAME
    resumable = True

    @property
    def key(self) -> str:
        return f"val_part/{self.spec.name}"

    @property
    def planned_by(self) -> str:
        return self.spec.plan.first.fingerprint

    def identity(self, revision: str | None) -> Identity:
        return planned_identity(self.spec, self.member, self.planned_by)

    def decisive_ids(self, planned: PlannedPart | None = None) -> frozenset[str]:
        """Return the ids of `exclude` that the finished val part holds or has removed. Empty if it is not built.

        Args:
            planned: Return only the ids in the head of this part. None: all ids.
        """
        listed = self.spec.exclude_list
        meta = None if listed.path is None else self.finished()
        if meta is None:
            return frozenset()
        excluded = listed.ids
        try:
            if planned is None:
                return listed.ids_in_build(meta, self.directory)
            present = listed.find_documents(meta, self.directory)
        except NielsCacheError:  # it is damaged, so all of them may count
            return excluded
        files, removed = {file.name for file in planned.files}, meta["part"].get(EXCLUDED, {}).get(planned.name, [])
        return excluded & {*removed, *(source_id for source_id, file in present if file in files)}

    def revision(self) -> str | None:
        assert self.spec.recorded_tokenizer  # fail early: nothing can be built without it
        return self.spec.plan.first.revision

    @property
    def is_seeded(self) -> bool:
        """Whether val_frac decides which documents are val, and not a token budget."""
        return not self.spec.source.val_tokens

    def documents(self) -> Iterator[Document]:
        """Yield the texts of a seeded val.

        Raises:
            NielsCacheError: If the file is damaged.
        """
        for planned in self.spec.plan.parts:
            path, advice = self.directory / _texts_name(planned), f"build it again: niels-cache build-all --only {self.spec.name} --force"
            with open_table(path, advice) as parquet:
                for batch in parquet.iter_batches(batch_size=_TEXTS_AT_A_TIME, columns=["text"]):
                    yield from map(Document, batch["text"].to_pylist())

    def need(self) -> SpaceNeed | None:
        if self.is_seeded:
            return None
        return pretrain_need(train_tokens=0, val_tokens=self.spec.source.val_tokens, token_bytes=self.spec.token_bytes)

    @property
    def split_rule(self) -> str:
        """The rule that chooses the documents, as one line for meta.json."""
        if self.is_seeded:
            return split_rule(self.spec)
        return budget_rule(train_tokens=None, val_tokens=self.spec.source.val_tokens or 0)

    def write(self, work: BuildJob) -> WriteResult:
        from niels_cache_assets.build_cache.base import Progress

        spec = self.spec
        journal = work.open_journal(f"{spec.name}/{self.member}", state=_State)
        state: _State = journal.state or _State()
        parts, build = spec.plan.first.parts, self._build_of(work)
        with (
            tokenizers_limited_to(spec.build.threads),
            PretrainWriter(
                work.directory,
                dtype=build.dtype,
                shard_bytes=build.shard_bytes,
                state=state.writer,
                files=journal.finished,
                has_kept_values=bool(build.keep),
                has_edges=build.edges is not None,
            ) as writer,
        ):
            resumed = writer.tokens("val")
            for planned in parts[len(state.taken) :]:
                take = self._take_seeded if self.is_seeded else self._take_head
                state = take(planned, state, writer, build, work)
                share, documents = len(state.taken) / len(parts), writer.documents("val")
                journal.record_writer(writer, state, "writer", share=share, documents=documents)
                work.report(Progress(documents, writer.tokens("val"), share))
            if not writer.tokens("val") and not self.is_seeded:
                raise NielsCacheError(f"{self.directory}: the files gave no usable document; nothing was written")
            writer.seal()
            excluded = {EXCLUDED: {name: sorted(ids) for name, ids in state.excluded.items()}} if state.excluded else {}
            short = 0 if self.is_seeded else (spec.source.val_tokens or 0) - writer.tokens("val")
            meta: Meta = {
                **build.meta(self.split_rule),
                "append_eot": True,
                "shard_bytes": spec.build.shard_bytes,
                **writer.totals(),
                "cut": {"train": 0, "val": len(state.cut)},
                "cut_document": {"train": [], "val": state.cut},
                **_counts(state, with_excluded=self.is_seeded),  # otherwise the parts count those in their heads
                "files": writer.files,
                "content_sha256": content_sha256(writer.files),
                "part": {"plan": self.planned_by, "taken": state.taken, "short": short, **excluded},
            }
        return WriteResult(meta=spec.exclude_list.with_removed_ids_only(meta, work.identity), resumed=resumed)

    def _build_of(self, work: BuildJob) -> PretrainBuild:
        """Return a build with the settings of this cache. Only its settings and its meta.json are used."""
        return pretrain_build(
            self.spec,
            self.directory,
            items=(),
            max_train_tokens=UNLIMITED,
            max_val_tokens=self.spec.source.val_tokens or 0,
            seed=self.spec.build.seed,
            shuffle_buffer=None,
            provenance=self.spec.provenance(work.revision, work.fingerprint, self.split_rule, member=VAL_NAME),
        )

    def _context(self, work: BuildJob) -> StreamContext:
        return StreamContext(seed=self.spec.build.seed, revision=work.revision, log=work.log)

    def _take_seeded(self, planned: PlannedPart, state: _State, writer: PretrainWriter, build: PretrainBuild, work: BuildJob) -> _State:
        """Write the documents of one part that belong to val, with their texts, and return the state after it."""
        drops, stream, context = DropReport(**state.drops), stream_of(self.spec, planned, only="val"), self._context(work)
        feed = Feed(stream.documents, context)
        splitter = BudgetSplitter(max_train_tokens=UNLIMITED, max_val_tokens=0, eot=build.view.eot)
        (work.directory / VAL_TEXTS).mkdir(exist_ok=True)
        table = ParquetWriter(work.directory, _texts_name(planned), {"text": "string"}, writer.files)
        with sealing(table), closing(build.document_encoder.encode(as_documents(feed.open()), feed)) as batches:
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
        return state.after(planned, 0, [], drops, context.report.facts)

    def _take_head(self, planned: PlannedPart, state: _State, writer: PretrainWriter, build: PretrainBuild, work: BuildJob) -> _State:
        """Write the share of one part, and return the state after it."""
        taken, cut, drops, context = 0, [*state.cut], DropReport(**state.drops), self._context(work)
        facts: Mapping[str, Any] = {}
        if planned.val_tokens:
            stream = stream_of(self.spec, planned)
            last = ""  # the name of the file with the last document that was taken
            splitter = BudgetSplitter(max_train_tokens=UNLIMITED, max_val_tokens=planned.val_tokens, eot=build.view.eot)
            feed = Feed(stream.documents, context)
            head = encoded_head(as_documents(feed.open()), lambda documents: build.document_encoder.encode(documents, feed), splitter)
            with closing(head) as batches:
                for each in chain.from_iterable(_resolve_share(batch, splitter, build) for batch in batches):
                    drops.join(each.drops)
                    chosen = splitter.assign(each).get("val")
                    if chosen is not None:
                        cut += [] if chosen.cut is None else [writer.documents("val") + chosen.cut]
                        writer.write({"val": chosen})
                    # Documents after the end of the share belong to the part.
                    count = len(chosen.lengths) if chosen is not None and splitter.val_is_full else each.chunks.size
                    taken += count
                    last, facts = _position_after(each, count)
                    if splitter.val_is_full:
                        break
            require_unchanged(stream.files_through(last) if splitter.val_is_full else stream.files)
            facts = facts if splitter.val_is_full else context.report.facts
        return state.after(planned, taken, cut, drops, facts)


@dataclass(frozen=True, kw_only=True)
class PartCache(PartFolder, PretrainCache):
    """The cache of a part. It has a lease, because machines share the parts."""

    spec: DatasetSpec[SourceWithParts]
    number: int

    @property
    def member(self) -> str:
        return part_name(self.number)

    @property
    def key(self) -> str:
        return f"part/{self.spec.name}/{self.member}"

    @property
    def root(self) -> Path:
        """The folder of the caches."""
        return self.spec.root

    @property
    def part_arguments(self) -> list[str]:
        """The arguments of `niels-cache part` that build the part."""
        return [self.spec.name, str(self.number)]

    @cached_property
    def planned(self) -> PlannedPart:
        """The part in the plan."""
        return self.spec.plan.parts[self.number]

    @property
    def planned_by(self) -> str:
        return self.planned.plan

    def revision(self) -> str | None:
        assert self.spec.recorded_tokenizer  # fail early: nothing can be built without it
        return self.planned.revision

    def stream_of_part(self, items: Feed[Any], **own: Any) -> dict[str, Any]:
        """Return the documents of the part with its budget and its shuffle, as fields of PretrainBuild. `own` are further fields."""
        return {
            "items": items,
            "max_train_tokens": self.planned.train_tokens or UNLIMITED,
            "seed": self.planned.seed(self.spec.build.seed),
            "shuffle_buffer": self.spec.source.shuffle_buffer or None,
            "needs_train": False,
            **own,
        }

    def _as_part(self, written: WriteResult, work: BuildJob) -> WriteResult:
        """Return the result of a build with the entry `part` of meta.json, and the fingerprint of the excluded ids that were removed."""
        meta = self.spec.exclude_list.with_removed_ids_only(written.meta, work.identity, also=self.external_ids())
        planned = self.planned
        budgets = {"train": planned.train_tokens, "val": 0 if planned.files else planned.val_tokens}  # the val part counts what val lacks
        short = sum(max(0, (budget or 0) - meta[f"{split}_tokens"]) for split, budget in budgets.items())
        return replace(written, meta={**meta, "part": {"number": self.number, "plan": self.planned_by, "short": short}})


class PartOfPlan(PartCache):
    """A part with the files and budgets that a plan gives to it."""

    @cached_property
    def val(self) -> ValPart | None:
        """The artifact of the val part, or None if the data set has none."""
        return ValPart(spec=self.spec) if self.spec.source.has_val_part else None

    def inputs(self) -> list[str]:
        return [*super().inputs(), *([self.val.key] if self.val else [])]

    def identity(self, revision: str | None) -> Identity:
        identity = planned_identity(self.spec, self.member, self.planned_by)
        if self.spec.source.decontaminate != "off":
            if self.number >= self.spec.source.parts:
                identity["val"] = self.spec.plan.first.fingerprint  # the plan of added files does not say which val they are compared with
            if left_out := self._val_ids:
                identity["val_exclude"] = identity_of_ids(left_out)["exclude"]  # this part is compared with the rest of val
        return identity

    @cached_property
    def _val_ids(self) -> frozenset[str]:
        """The ids of `exclude` that the val part holds or has removed. Empty if there is no val part yet."""
        return self.val.decisive_ids() if self.val else frozenset()

    def external_ids(self) -> frozenset[str]:
        """Return the ids in the head of this part that val has taken, or would have taken without `exclude`."""
        return self.val.decisive_ids(self.planned) if self.val and not self.val.is_seeded else frozenset()

    def need(self) -> SpaceNeed | None:
        files = self.planned.files
        is_known = all(file.bytes and not is_compressed(file.name) for file in files)  # 0: it is empty, or its server reports no size
        text_bytes = sum(file.bytes for file in files) if is_known else None
        return pretrain_need(train_tokens=self.planned.train_tokens, token_bytes=self.spec.token_bytes, text_bytes=text_bytes)

    @property
    def split_rule(self) -> str:
        budget = self.planned.train_tokens
        group = [each.fingerprint for each in self.spec.plan.groups].index(self.planned_by)
        return split_rule(self.spec, group=group) if budget is None else budget_rule(train_tokens=budget, val_tokens=0)

    @cached_property
    def part_stream(self) -> PartStream:
        """The stream of the part, without the documents that the val part has taken."""
        only = "train" if self._finished_val is not None and self._finished_val.is_seeded else None
        return stream_of(self.spec, self.planned, skip=self._taken[self.number], only=only)

    @cached_property
    def _finished_val(self) -> ValPart | None:
        """The val part, or None if the data set has none.

        Raises:
            NielsCacheError: If it does not exist as configured.
        """
        if self.val is not None:
            self.val.current()
        return self.val

    @cached_property
    def _taken(self) -> list[int]:
        """The number of documents that the val part has taken from the head of each part. It takes none from added files."""
        taken: list[int] = [] if self._finished_val is None else self._finished_val.current()["part"]["taken"]
        return [*taken, *[0] * (len(self.spec.plan.parts) - len(taken))]

    def _val_documents(self, context: StreamContext) -> Iterator[Document]:
        """Yield the documents of val of all parts, to compare the train documents of this part with them."""
        context.log("reading val, to keep its documents out of train")
        if self._finished_val is not None and self._finished_val.is_seeded:
            yield from self._finished_val.documents()
            return
        for planned, taken in zip(self.spec.plan.parts, self._taken, strict=True):
            files = tuple(file for file in planned.files if file.split == "val" or taken)
            if files:
                unreported = StreamContext(seed=context.seed, revision=context.revision)
                # Without a val part, an excluded document of val stays among them, so that no part depends on those of another part.
                stream = stream_of(self.spec, replace(planned, files=files), excludes=self.val is not None)
                count, last = 0, ""
                for document in islice(chain.from_iterable(stream.documents(unreported)), taken or None):
                    count, last = count + 1, document.file
                    yield document
                require_unchanged(stream.files_through(last) if taken and count == taken else stream.files)

    def stream(self, context: StreamContext) -> dict[str, Any]:
        val_texts = self._val_documents(context) if self.spec.source.decontaminate != "off" else None
        return self.stream_of_part(Feed(self.part_stream.documents, context), max_val_tokens=0, val_texts=val_texts)

    def write(self, work: BuildJob) -> WriteResult:
        require_unchanged(self.part_stream.files)
        return self._as_part(self.write_stream(work), work)


class PartOfCorpus(PartCache):
    """A part with the documents of one part of a corpus, without duplicates."""

    @cached_property
    def planned(self) -> PlannedPart:
        """The part without files: the corpus has divided them.

        Raises:
            NielsCacheError: If the part has documents, but no share in the budget of train.
        """
        spec, budgets = self.spec, dict.fromkeys(("train_tokens", "val_tokens"))
        budgets |= {key: shares[self.number] for key, shares in spec.corpus_budgets.items()}
        if budgets["train_tokens"] == 0 and self._ordinals:
            raise NielsCacheError(
                f"{spec.name}: {self.member} has so few documents that it gets no share of the {spec.source.train_tokens:,} "
                "train_tokens; lower parts"
            )
        revision = spec.corpus.meta["dataset_revision"]
        return PlannedPart(number=self.number, plan=spec.corpus_plan, revision=revision, files=(), text_field=None, **budgets)

    @property
    def _ordinals(self) -> range:
        return self.spec.corpus.parts[self.number]

    def inputs(self) -> list[str]:
        return self.spec.inputs()

    def revision(self) -> str | None:
        return self.spec.revision()

    def identity(self, revision: str | None) -> Identity:
        return {**super().identity(revision), "plan": self.planned_by, "member": self.member}

    def need(self) -> SpaceNeed | None:
        meta = self.spec.corpus.meta
        text_bytes = int(meta["bytes"]["after"] * len(self._ordinals) / max(1, meta["documents"]["kept"]))
        return pretrain_need(token_bytes=self.spec.token_bytes, text_bytes=text_bytes)

    def stream(self, context: StreamContext) -> dict[str, Any]:
        feed = Feed(lambda context: self.spec.corpus.stream(context, self._ordinals), context)
        return self.stream_of_part(feed, max_val_tokens=self.planned.val_tokens or 0)

    def write(self, work: BuildJob) -> WriteResult:
        return self._as_part(self.write_stream(work), work)  # what is read from a corpus is compared with its meta.json


_UNPINNED = (None, "main")  # `part --add` replaces these by the commit; a cache of another branch is built again, with the same bytes


class GrownPart(PartCache):
    """A part with all first files of a data set."""

    def matches(self, meta: Meta, identity: Identity) -> bool:
        """Return whether the build is current. It may have been made before its commit was pinned.

        All ids of `exclude` count for a cache that one process built, also those that it does not hold.
        """
        spec = self.spec
        directory = self.directory if "part" in meta else spec.directory
        forms = [spec.exclude_list.present_identity(meta, identity, directory), identity]
        for form in [*forms]:
            source = dict(form["source"])
            if source.get("pinned_revision") is not None and source["pinned_revision"] == form["revision"]:
                forms += [{**form, "source": {**source, "pinned_revision": pinned}} for pinned in _UNPINNED]
        return any(meta.get("fingerprint") == fingerprint_of(form) for form in forms)

    @cached_property
    def built(self) -> Meta | None:
        """The meta.json of the cache that one process built, if it is still in the folder of the data set and has these settings."""
        meta, spec = self.spec.parts_plan.single_process_build(), self.spec
        if meta is None or not self.is_current(meta) or not content_matches(spec, spec.directory, meta):
            return None
        return meta

    def need(self) -> SpaceNeed | None:
        return None if self.built is not None else super().need()

    @cached_property
    def _part_stream(self) -> PartStream:
        return stream_of(self.spec, self.planned)

    def stream(self, context: StreamContext) -> dict[str, Any]:
        """Return the stream of the files of the plan, because the patterns may match others now. A commit of the hub is fixed."""
        is_fixed = isinstance(self.spec.source, HubData)
        return super().stream(context if is_fixed else replace(context, files=[file for _, file in self._part_stream.files]))

    def write(self, work: BuildJob) -> WriteResult:
        spec, built = self.spec, self.built
        if built is None or work.force:
            require_unchanged(self._part_stream.files)
            written = self.write_stream(work)
        else:
            for path in work.directory.iterdir():  # of an unfinished build that was kept
                remove(path)
            stored = work.stored
            link = None if stored is None else stored.link_published(spec.directory)
            link_all(built, spec.directory, work.directory, target=self.directory, log=work.log, link=link)
            if spec.parts_plan.single_process_build() != built:
                raise NielsCacheError(f"{spec.directory}: was built again while its files were being linked; run it again")
            meta = {**without_keys(built, "meta_sha256", "overlap"), "dataset_name": f"{spec.name}/{self.member}"}
            written = WriteResult(meta=meta)
        return self._as_part(written, work)
