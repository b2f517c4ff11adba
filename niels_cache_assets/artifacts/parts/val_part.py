"""The val of a data set in parts with token budgets: the head of each part, before any shuffle, `pretrain/.parts/NAME/val`.

Each part gives its share of `val_tokens`. meta.json records how many documents were taken from the head of each part, and the parts leave
out exactly these. At most twice `val_tokens` is encoded, by the reference. A killed build resumes at the part that it was reading.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict

import numpy as np

from niels_cache_assets.artifacts.base import Work, Written
from niels_cache_assets.artifacts.parts.leased import Leased, checked
from niels_cache_assets.build_cache.base import Progress
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.disk.space import Need, pretrain_need
from niels_cache_assets.parts.layout import VAL_NAME
from niels_cache_assets.parts.plan import PlannedPart
from niels_cache_assets.show.contents import budget_rule
from niels_cache_assets.sources.reading.part_stream import require_unchanged
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.streaming.encode import encode_apart, encode_documents
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.intake import as_documents
from niels_cache_assets.streaming.pretrain_writer import PretrainWriter, WriterState
from niels_cache_assets.streaming.splits import UNLIMITED, BudgetSplitter
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import content_sha256
from niels_cache_runtime.format.reading import available_threads


class _How(TypedDict):
    dtype: np.dtype
    append_eot: bool
    raise_on_collision: bool


@dataclass(frozen=True, kw_only=True)
class _State:
    """The state between two parts. taken: how many documents the head of each part gave so far. cut: ordinals of cut documents."""

    taken: list[int]
    cut: list[int]
    dropped: dict[str, int]
    writer: WriterState | None


@dataclass(frozen=True, kw_only=True)
class ValPart(Leased):
    """The val of a data set with token budgets."""

    @property
    def member(self) -> str:
        return VAL_NAME

    @property
    def key(self) -> str:
        return f"val_part/{self.name}"

    def need(self) -> Need | None:
        val_tokens = self.source.val_tokens
        return pretrain_need(train_tokens=0, val_tokens=val_tokens, token_bytes=self.token_bytes, text_bytes=None, exact=False)

    def split_rule(self) -> str:
        return budget_rule(train_tokens=None, val_tokens=self.source.val_tokens or 0)

    def write(self, work: Work) -> Written:
        journal = work.open_journal(f"{self.name}/{self.member}", state=_State)
        state: _State = journal.state or _State(taken=[], cut=[], dropped={}, writer=None)
        parts, build = self.plan.parts, self._build_of(work)
        progress = checked(work.lease, work.progress)
        with PretrainWriter(
            work.directory, dtype=build.dtype, shard_bytes=build.shard_bytes, state=state.writer, files=journal.finished
        ) as writer:
            resumed = writer.tokens("val")
            for planned in parts[len(state.taken) :]:
                state = self._take_head(planned, state, writer, build, work)
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
                progress(Progress(writer.documents("val"), writer.tokens("val"), len(state.taken) / len(parts)))
            if not writer.tokens("val"):
                raise NielsCacheError(f"{self.directory}: the files gave no usable document; nothing was written")
            writer.seal()
            short = (self.source.val_tokens or 0) - writer.tokens("val")
            meta: dict[str, Any] = {
                **build.meta(self.split_rule()),
                "append_eot": True,
                "shard_bytes": self.build.shard_bytes,
                **writer.totals(),
                "cut": {"train": 0, "val": len(state.cut)},
                "cut_document": {"train": [], "val": state.cut},
                "dropped": state.dropped,
                "facts": {},
                "files": writer.files,
                "content_sha256": content_sha256(writer.files),
                "part": {"plan": self.plan.fingerprint, "taken": state.taken, "short": short},
            }
        return Written(meta=meta, resumed=resumed)

    def _build_of(self, work: Work) -> PretrainBuild:
        """Return a build with the settings of this cache. Only its settings and its meta.json are used."""
        return PretrainBuild(
            items=(),
            out_dir=str(self.directory),
            tokenizer=self.tokenizer,
            max_train_tokens=UNLIMITED,
            max_val_tokens=self.source.val_tokens or 0,
            shard_bytes=self.build.shard_bytes,
            seed=self.build.seed,
            shuffle_buffer=None,
            threads=self.build.threads,
            token_dtype=self.build.token_dtype,
            provenance=self.provenance(work.revision, work.fingerprint),
        )

    def _take_head(self, planned: PlannedPart, state: _State, writer: PretrainWriter, build: PretrainBuild, work: Work) -> _State:
        """Write the share of one part, and return the state after it."""
        taken, cut, dropped = 0, [*state.cut], Counter(state.dropped)
        if planned.val_tokens:
            stream = self.stream_of(planned)
            last = ""  # the name of the file with the last document that was taken
            feed = Feed(stream.documents, StreamContext(seed=self.build.seed, revision=work.revision, log=work.log))
            splitter = BudgetSplitter(max_train_tokens=UNLIMITED, max_val_tokens=planned.val_tokens, eot=build.view.eot)
            how: _How = {"dtype": build.dtype, "append_eot": True, "raise_on_collision": False}
            threads = self.build.threads or available_threads()
            with closing(encode_documents(as_documents(feed.open()), build.view, feed, threads=threads, **how)) as batches:
                for batch in batches:
                    alone = [batch]
                    if int(batch.lengths.sum()) >= splitter.remaining["val"]:
                        # The share may end here, so each document is taken alone. Documents after the end belong to the part.
                        documents = [(chunk[at : at + 1], position) for chunk, position in batch.chunks for at in range(len(chunk))]
                        alone = list(encode_apart(replace(batch, chunks=documents), build.view, **how))
                    for each in alone:
                        taken += sum(len(chunk) for chunk, _ in each.chunks)
                        last = next((chunk.file[-1] for chunk, _ in reversed(each.chunks) if len(chunk)), last)
                        dropped.update(each.dropped)
                        chosen = splitter.place(each).get("val")
                        if chosen is not None:
                            cut += [] if chosen.cut is None else [writer.documents("val") + chosen.cut]
                            writer.write({"val": chosen})
                        if splitter.val_is_full:
                            break
                    if splitter.val_is_full:
                        break
            require_unchanged(stream.files_through(last) if splitter.val_is_full else stream.files)
        return _State(taken=[*state.taken, taken], cut=cut, dropped=dict(dropped), writer=None)
