"""The val of a data set in parts, if val must be known before the parts, `pretrain/.parts/NAME/val`.

With token budgets, val is the head of each part, before any shuffle. Each part gives its share of `val_tokens`. meta.json records how many
documents were taken from the head of each part, and the parts leave out exactly these. At most twice `val_tokens` is encoded.

With `val_frac` and `decontaminate`, val is what a hash chooses from all files, so all text is read once. Its texts are kept beside its
tokens, because every part is compared with them. The parts leave out what the hash chooses.

The reference encodes. A killed build resumes at the part that it was reading.

Only the first parts give to val. Files that are added later do not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, Work, Written
from niels_cache_assets.artifacts.parts.of_plan import OfPlan
from niels_cache_assets.build_cache.base import Progress
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.build_cache.resuming import JournalFingerprint
from niels_cache_assets.disk.space import Need, pretrain_need
from niels_cache_assets.disk.table_file import TableFile, closing_table
from niels_cache_assets.documents import Document, Drops
from niels_cache_assets.parts.excluded import documents_held, removed_ids
from niels_cache_assets.parts.layout import VAL_NAME, parts_dir
from niels_cache_assets.parts.plan import PlannedPart
from niels_cache_assets.show.contents import budget_rule
from niels_cache_assets.sources.excluding import EXCLUDED, excluded_ids
from niels_cache_assets.sources.reading.part_stream import require_unchanged
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.intake import as_documents
from niels_cache_assets.streaming.pretrain_writer import PretrainWriter, WriterState
from niels_cache_assets.streaming.splits import UNLIMITED, BudgetSplitter, encoded_head
from niels_cache_assets.streaming.types import EncodedDocuments
from niels_cache_assets.tokenizer.tokenizer_json import tokenizers_limited_to
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import VAL_TEXTS
from niels_cache_runtime.format.meta import content_sha256

_TEXTS_AT_A_TIME = 256
_GROUP_CHARACTERS = 1 << 21


def _as_they_count(batch: EncodedDocuments, splitter: BudgetSplitter, build: PretrainBuild) -> Iterable[EncodedDocuments]:
    """Return the batch. If the share of val may end in it, and some of its documents were dropped, return each document alone instead:
    documents after the end are neither taken nor counted.
    """
    if not batch.drops.dropped or int(batch.lengths.sum()) < splitter.remaining["val"]:
        return [batch]
    documents = [(chunk[at : at + 1], position) for chunk, position in batch.chunks for at in range(len(chunk))]
    return build.encode_apart(replace(batch, chunks=documents))


def _through(batch: EncodedDocuments, count: int) -> tuple[str, Mapping[str, Any]]:
    """Return the file of document number `count` that was read for a batch, and the facts of the source after its chunk."""
    for chunk, position in batch.chunks:
        if count <= len(chunk):
            return chunk.file[count - 1], position.facts
        count -= len(chunk)
    raise IndexError(count)


def _texts_name(planned: PlannedPart) -> str:
    """Return the relative path of the file with the texts that one part gives to a hashed val."""
    return f"{VAL_TEXTS}/{planned.name}.parquet"


@dataclass(frozen=True, kw_only=True)
class _State:
    """The state between two parts. taken: how many documents the head of each part gave so far. cut: ordinals of cut documents."""

    taken: list[int]
    cut: list[int]
    drops: dict[str, dict[str, Any]]
    writer: WriterState | None
    excluded: dict[str, dict[str, int]] = field(default_factory=dict)


def _with_excluded(state: _State, planned: PlannedPart, facts: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the removed documents of each part by id, with those of this part. facts: of its stream up to the last document of val."""
    removed = facts.get(EXCLUDED)
    return {**state.excluded, planned.name: dict(removed)} if removed else state.excluded


def _counts(state: _State, *, with_excluded: bool) -> dict[str, Any]:
    """Return `dropped` and `facts` of meta.json, with the removed documents of all parts if `with_excluded`."""
    total = sum((Counter(ids) for ids in state.excluded.values()), Counter[str]())
    if not (total and with_excluded):
        return state.drops
    return {"dropped": {**state.drops["dropped"], EXCLUDED: total.total()}, "facts": {**state.drops["facts"], EXCLUDED: dict(total)}}


@dataclass(frozen=True, kw_only=True)
class ValPart(OfPlan):
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

    def ids_left_out(self, planned: PlannedPart | None = None) -> frozenset[str]:
        """Return the ids of `exclude` that the finished val part holds or has removed. Empty if it is not built.

        planned: return only those in the head of this part.
        """
        meta = None if self.source.exclude is None else self.finished()
        if meta is None or self.source.exclude is None:
            return frozenset()
        wanted, beside = excluded_ids(self.source.exclude), parts_dir(self.root, self.name)
        try:
            held = documents_held(meta, self.directory, wanted, beside=beside)
        except NielsCacheError:  # it is damaged, so all of them may count
            return wanted
        if planned is None:
            return wanted & ({each.source_id for each in held} | removed_ids(meta))
        files, removed = {file.name for file in planned.files}, meta["part"].get(EXCLUDED, {}).get(planned.name, [])
        return wanted & {*removed, *(each.source_id for each in held if each.file in files)}

    def revision(self) -> str | None:
        assert self.tokenizer  # fail early: nothing can be built without it
        return self.plan.first.revision

    @property
    def is_hashed(self) -> bool:
        """Whether a hash decides which documents are val, and not a token budget."""
        return not self.source.val_tokens

    def journal(self, revision: str | None) -> JournalFingerprint:
        return Artifact.journal(self, revision)

    def documents(self) -> Iterator[Document]:
        """Yield the texts of a hashed val. Raises NielsCacheError for a damaged file."""
        import pyarrow
        import pyarrow.parquet

        for planned in self.plan.parts:
            path = self.directory / _texts_name(planned)
            try:
                with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as parquet:
                    for batch in parquet.iter_batches(batch_size=_TEXTS_AT_A_TIME, columns=["text"]):
                        yield from map(Document, batch["text"].to_pylist())
            except (pyarrow.ArrowException, OSError) as error:
                again = f"niels-cache build-all --only {self.name} --force"
                raise NielsCacheError(f"{path}: cannot be read ({str(error).splitlines()[0]}); build it again: {again}") from error

    def need(self) -> Need | None:
        if self.is_hashed:
            return None
        val_tokens = self.source.val_tokens
        return pretrain_need(train_tokens=0, val_tokens=val_tokens, token_bytes=self.token_bytes, text_bytes=None, exact=False)

    def split_rule(self) -> str:
        return super().split_rule() if self.is_hashed else budget_rule(train_tokens=None, val_tokens=self.source.val_tokens or 0)

    def write(self, work: Work) -> Written:
        journal = work.open_journal(f"{self.name}/{self.member}", state=_State)
        state: _State = journal.state or _State(taken=[], cut=[], drops=Drops().state(), writer=None)
        parts, build = self.plan.first.parts, self._build_of(work)
        with (
            tokenizers_limited_to(self.build.threads),
            PretrainWriter(
                work.directory,
                dtype=build.dtype,
                shard_bytes=build.shard_bytes,
                state=state.writer,
                files=journal.finished,
                keeps=bool(self.keep),
            ) as writer,
        ):
            resumed = writer.tokens("val")
            for planned in parts[len(state.taken) :]:
                take = self._take_hashed if self.is_hashed else self._take_head
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
            if not writer.tokens("val") and not self.is_hashed:
                raise NielsCacheError(f"{self.directory}: the files gave no usable document; nothing was written")
            writer.seal()
            excluded = {EXCLUDED: {name: sorted(ids) for name, ids in state.excluded.items()}} if state.excluded else {}
            short = 0 if self.is_hashed else (self.source.val_tokens or 0) - writer.tokens("val")
            meta: dict[str, Any] = {
                **build.meta(self.split_rule()),
                "append_eot": True,
                "shard_bytes": self.build.shard_bytes,
                **writer.totals(),
                "cut": {"train": 0, "val": len(state.cut)},
                "cut_document": {"train": [], "val": state.cut},
                **_counts(state, with_excluded=self.is_hashed),  # otherwise the parts count those in their heads
                "files": writer.files,
                "content_sha256": content_sha256(writer.files),
                "part": {"plan": self.planned_by, "taken": state.taken, "short": short, **excluded},
            }
        return Written(meta=self.of_removed_ids(meta, work.made_of), resumed=resumed)

    def _build_of(self, work: Work) -> PretrainBuild:
        """Return a build with the settings of this cache. Only its settings and its meta.json are used."""
        return self.new_build(
            items=(),
            max_train_tokens=UNLIMITED,
            max_val_tokens=self.source.val_tokens or 0,
            seed=self.build.seed,
            shuffle_buffer=None,
            provenance=self.provenance(work.revision, work.fingerprint),
        )

    def _context(self, work: Work) -> StreamContext:
        return StreamContext(seed=self.build.seed, revision=work.revision, log=work.log)

    def _take_hashed(self, planned: PlannedPart, state: _State, writer: PretrainWriter, build: PretrainBuild, work: Work) -> _State:
        """Write the documents of one part that belong to val, with their texts, and return the state after it."""
        drops, stream, context = Drops(**state.drops), self.stream_of(planned, only="val"), self._context(work)
        feed = Feed(stream.documents, context)
        splitter = BudgetSplitter(max_train_tokens=UNLIMITED, max_val_tokens=0, eot=build.view.eot)
        (work.directory / VAL_TEXTS).mkdir(exist_ok=True)
        table = TableFile(work.directory, _texts_name(planned), {"text": "string"}, writer.files)
        with closing_table(table), closing(build.encode(as_documents(feed.open()), feed)) as batches:
            texts: list[str] = []  # of the next row group, because a batch may hold few documents of val
            characters = 0
            for batch in batches:
                drops.join(batch.drops)
                if len(batch.documents):
                    writer.write({"val": splitter.place(batch)["val"]})
                    texts += batch.documents.text.tolist()
                    characters += int(batch.documents.characters.sum())
                if characters >= _GROUP_CHARACTERS:
                    table.write_group([texts])
                    texts, characters = [], 0
            table.write_group([texts])
        require_unchanged(stream.files)
        excluded = _with_excluded(state, planned, context.report.facts)
        return _State(taken=[*state.taken, 0], cut=[], drops=drops.state(), writer=None, excluded=excluded)

    def _take_head(self, planned: PlannedPart, state: _State, writer: PretrainWriter, build: PretrainBuild, work: Work) -> _State:
        """Write the share of one part, and return the state after it."""
        taken, cut, drops, context = 0, [*state.cut], Drops(**state.drops), self._context(work)
        facts: Mapping[str, Any] = {}
        if planned.val_tokens:
            stream = self.stream_of(planned)
            last = ""  # the name of the file with the last document that was taken
            splitter = BudgetSplitter(max_train_tokens=UNLIMITED, max_val_tokens=planned.val_tokens, eot=build.view.eot)
            feed = Feed(stream.documents, context)
            head = encoded_head(as_documents(feed.open()), lambda documents: build.encode(documents, feed), splitter)
            with closing(head) as batches:
                for each in chain.from_iterable(_as_they_count(batch, splitter, build) for batch in batches):
                    drops.join(each.drops)
                    chosen = splitter.place(each).get("val")
                    if chosen is not None:
                        cut += [] if chosen.cut is None else [writer.documents("val") + chosen.cut]
                        writer.write({"val": chosen})
                    # Documents after the end of the share belong to the part.
                    count = (
                        len(chosen.lengths) if chosen is not None and splitter.val_is_full else sum(len(chunk) for chunk, _ in each.chunks)
                    )
                    taken += count
                    last, facts = _through(each, count)
                    if splitter.val_is_full:
                        break
            require_unchanged(stream.files_through(last) if splitter.val_is_full else stream.files)
            facts = facts if splitter.val_is_full else context.report.facts
        excluded = _with_excluded(state, planned, facts)
        return _State(taken=[*state.taken, taken], cut=cut, drops=drops.state(), writer=None, excluded=excluded)
