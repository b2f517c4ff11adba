"""The source `interleave`, which mixes several pretrain data sets into one stream by weight, document by document.

Each member is read with the settings of its own table. A member that is split by val_frac is read one more time to count its documents.
The memory is that of all members together. `corpus/held_out.py` finds the documents that a member keeps for val, and describes the cost.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, FiniteFloat, model_validator

from niels_cache_assets.base.documents import Document, SourceReport
from niels_cache_assets.base.random_numbers import TorchRandom
from niels_cache_assets.base.wording import format_list
from niels_cache_assets.sources.excluding import without_excluded
from niels_cache_assets.sources.reading.part_stream import PartStream, heads_of_parts, streams_of_all_parts
from niels_cache_assets.sources.reading.references import data_set_with_val, revision_with_references
from niels_cache_assets.sources.reading.rows import batched
from niels_cache_assets.sources.types import PretrainSource, Siblings, SourceWithParts, StreamContext, growth_identity
from niels_cache_assets.sources.val_share import FractionSplitter
from niels_cache_runtime.errors import NielsCacheError

_DRAWS = 1000  # that are made together
_LIMIT = 1 << 53  # below it, floats can be all integers


class Interleave(PretrainSource):
    """Documents from several data sets, drawn with the given weights.

    `all_exhausted` restarts members that end early. Their documents repeat, so there can be no val split.

    The documents that a member keeps for val, by upstream's split, val_frac or token budgets, are left out and counted (`member_val`). The
    other documents are split by the rule of this table, even if the member's own cache ends earlier. `corpus/held_out.py` describes how
    val is found.

    If a member has `decontaminate`, documents of all members that are equal or nearly equal to its val are left out too
    (`in_val_of_member`, `near_val_of_member`). The same applies to the texts in `decontaminate_against` of a member, with the limits and
    drop reasons of that member.

    A member is read without its shuffle. A member in parts is read file by file. Added files come last.
    """

    source: Literal["interleave"] = "interleave"
    members: dict[str, FiniteFloat] = Field(min_length=1)
    """Weight of each member, by the name of its pretrain table"""
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = "first_exhausted"
    """'first_exhausted' stops when the first member runs out of documents, 'all_exhausted' when all have"""

    @model_validator(mode="after")
    def _no_val_of_repeated_documents(self) -> Self:
        if self.stopping_strategy == "all_exhausted":
            budgets = self.train_tokens is not None or self.val_tokens is not None
            if self.val_tokens != 0 if budgets else self.val_frac != 0:
                setting = "val_tokens = 0" if budgets else "val_frac = 0, or train_tokens with val_tokens = 0"
                raise ValueError(f"all_exhausted repeats documents, which would be in both train and val; set {setting}")
        return self

    def check_input(self, siblings: Siblings) -> None:
        self._sources(siblings)  # the data of the members is not checked here, because each member has its own check

    def revision(self, siblings: Siblings) -> str | None:
        return self._digest(siblings, self._revisions(siblings))

    def _revisions(self, siblings: Siblings) -> dict[str, str | None]:
        """Return the revision of each member. A member in parts is read at the revision of its plan, like its parts."""
        members = self._sources(siblings).items()
        return {name: (None if member.plan is None else member.plan.revision()) or member.revision(siblings) for name, member in members}

    def _digest(self, siblings: Siblings, revisions: Mapping[str, str | None]) -> str:
        digest = hashlib.sha256()
        for name, member in self._sources(siblings).items():
            rule = "\0without its val" if member.seeded_val_frac else ""
            revision = revision_with_references(member, revisions[name], siblings)
            digest.update(f"{name}\0{member.identity()}\0{revision}{growth_identity(member.added)}{rule}\n".encode())
        return f"sha256:{digest.hexdigest()}"

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "members": self.members, "stopping_strategy": self.stopping_strategy}

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        return batched(self._documents(context))

    def _documents(self, context: StreamContext) -> Iterator[Document]:
        sources = self._sources(context.siblings)
        if not context.revisions:
            revisions = self._revisions(context.siblings)
            if context.revision is not None and context.revision != self._digest(context.siblings, revisions):
                raise NielsCacheError("interleave: a member changed upstream while the build started; run it again")
            context.revisions.update(revisions)  # so that all later passes and restarted members read the same revision
        streams = [MixtureMember(name, member, context) for name, member in sources.items()]
        if (held_out := context.held_out) is not None:
            for stream in streams:
                held_out.find(stream)
        ordered = [name for name, member in sources.items() if member.shuffle_buffer]
        if ordered and not self.shuffle_buffer:
            context.log(f"{format_list(ordered)}: read in the order of the files; to shuffle the mixture, set its shuffle_buffer")
        yield from self._drawn(streams, seed=context.seed)

    def _drawn(self, members: Sequence[Iterable[Document]], *, seed: int) -> Iterator[Document]:
        """Yield documents by weight, with the rules of `datasets.interleave_datasets` for the end of a member."""
        weights = np.array([*self.members.values()])
        bounds = weights.cumsum()[:-1] / weights.sum() * _LIMIT
        is_over = all if self.stopping_strategy == "all_exhausted" else any
        random, has_ended = TorchRandom(seed), [False] * len(members)
        streams = [*map(iter, members)]
        following: list[Document | None] = [None] * len(members)
        while True:
            for index in bounds.searchsorted(random.below(_LIMIT, _DRAWS), side="right").tolist():
                document = following[index] or next(streams[index], None)
                following[index] = next(streams[index], None)  # shows whether the member has ended
                if document is not None:
                    yield document
                if following[index] is None:
                    has_ended[index], streams[index] = True, iter(members[index])
                    if is_over(has_ended):
                        return

    def _sources(self, siblings: Siblings) -> dict[str, PretrainSource]:
        sources = {}
        for name, weight in self.members.items():
            otherwise = "blend the caches with the weights of TokenLoader"
            sources[name] = data_set_with_val("interleave: members", name, siblings, otherwise)
            if not weight > 0:
                raise NielsCacheError(f"interleave: members: the weight of {name!r} is {weight}; weights must be above 0")
        return sources


@dataclass(eq=False)
class MixtureMember:
    """One member of a mixture."""

    name: str
    source: PretrainSource
    context: StreamContext
    _started: bool = field(default=False, init=False)
    _val: FractionSplitter | None = field(default=None, init=False)
    _part_streams: list[PartStream] | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents for the mixture, from the first one on. The dropped documents are counted only the first time."""
        report = SourceReport(within=f"{self.name}/")  # a separate report, because a position in a member is not a position in the mixture
        if not self._started:
            own_report = self.context.report
            report.dropped, report.facts, report.hints = own_report.dropped, own_report.facts, own_report.hints
        self._started = True
        documents = self.documents(report)
        found = ((document, "member_val" if document.split == "val" else None) for document in documents)
        for document, reason in found if self.context.held_out is None else self.context.held_out.sort(self.name, documents):
            if reason is None:
                yield document._replace(file=f"{self.name}/{document.file}", split=None)
            else:
                report.drop_row(reason, document.file, document.row)

    @property
    def has_heads(self) -> bool:
        """Whether val is the head of each part of this member."""
        return self.source.parts > 1 and bool(self.source.val_tokens)

    def heads(self) -> Iterator[tuple[int, Iterator[Document]]]:
        """Yield for each part of this member the number of tokens that its head contributes to val, and its documents."""
        context = self._own_context(SourceReport())
        assert isinstance(self.source, SourceWithParts)
        for val_tokens, stream in heads_of_parts(self.source, revision=context.revision):
            yield val_tokens, chain.from_iterable(stream.documents(replace(context, report=SourceReport())))

    def _own_context(self, report: SourceReport) -> StreamContext:
        """Return the context in which the member's own build reads."""
        seed = self.context.seed if self.context.held_out is None else self.context.held_out.seed
        return replace(self.context, seed=seed, revision=self.context.revisions[self.name], report=report, files=None, text_field=None)

    def documents(self, report: SourceReport) -> Iterator[Document]:
        """Yield the documents with the splits that the member's own build assigns before tokenization."""
        context = self._own_context(report)
        if isinstance(self.source, SourceWithParts) and self.source.plan is not None:
            if self._part_streams is None:
                self._part_streams = streams_of_all_parts(self.source, revision=context.revision)
            return chain.from_iterable(chain.from_iterable(stream.documents(context) for stream in self._part_streams))
        share = self.source.seeded_val_frac
        if not share:
            return chain.from_iterable(self.source.kept_documents(context))
        if self._val is None:
            context.log(f"counting documents of {self.name}, to leave out its val documents")
            self._val = FractionSplitter.of(self.source.count_unsplit(context), val_frac=share, seed=context.seed)
        split = replace(self._val).batches(self.source.documents(context))
        return chain.from_iterable(without_excluded(split, self.source.exclude, report))
