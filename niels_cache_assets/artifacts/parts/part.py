"""One part of a data set: its share of the files, tokenized and written as a cache of its own, `pretrain/.parts/NAME/part-00017`.

With `prepare`, it is the share of the corpus that the part with this number has prepared (`PreparedPart`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Work, Written
from niels_cache_assets.artifacts.dataset import Dataset
from niels_cache_assets.artifacts.parts.of_plan import OfCorpus, OfPlan
from niels_cache_assets.artifacts.parts.val_part import ValPart
from niels_cache_assets.artifacts.pretrain import Pretrain
from niels_cache_assets.build_cache import OnProgress, Provenance
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.disk.space import Need, pretrain_need
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.documents import Document, DocumentBatch
from niels_cache_assets.parts.layout import part_name
from niels_cache_assets.parts.plan import PlannedPart, is_compressed
from niels_cache_assets.parts.seal import link_all
from niels_cache_assets.show.contents import budget_rule
from niels_cache_assets.sources.excluding import identity_of_ids
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.reading.part_stream import PartStream, require_unchanged
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.splits import UNLIMITED
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import remove
from niels_cache_runtime.format.layout import dataset_dir
from niels_cache_runtime.format.meta import Meta


@dataclass(frozen=True, kw_only=True)
class Part(OfPlan):
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
            identity["val"] = self.plan.first.fingerprint  # the plan of added files does not tell which val they are compared with
        if self.source.decontaminate != "off" and (left_out := self._ids_of_val):
            identity["val_exclude"] = identity_of_ids(left_out)["exclude"]  # this part is compared with the rest of val
        return identity

    @cached_property
    def _ids_of_val(self) -> frozenset[str]:
        """The ids of `exclude` that the val part holds or has removed. Empty if there is no val part yet."""
        return self._val.ids_left_out() if self.source.has_val_part else frozenset()

    def ids_elsewhere(self) -> frozenset[str]:
        """Return the ids in the head of this part that val has taken, or would have taken without `exclude`."""
        return self._val.ids_left_out(self.planned) if self.source.has_val_part and not self._val.is_hashed else frozenset()

    @cached_property
    def _val(self) -> ValPart:
        return self.beside(ValPart)

    def revision(self) -> str | None:
        assert self.tokenizer  # fail early: nothing can be built without it
        return self.planned.revision

    @cached_property
    def stream(self) -> PartStream:
        """The stream of the part, without the documents that the val part has taken."""
        val = self._val_part
        return self.stream_of(self.planned, skip=self._taken[self.number], only="train" if val is not None and val.is_hashed else None)

    @cached_property
    def _val_part(self) -> ValPart | None:
        """The val part. Raises NielsCacheError if it does not exist as configured."""
        if not self.source.has_val_part:
            return None
        val = self._val
        val.current()
        return val

    @cached_property
    def _taken(self) -> list[int]:
        """How many documents the val part has taken from the head of each part. It takes none of added files."""
        taken: list[int] = [] if self._val_part is None else self._val_part.current()["part"]["taken"]
        return [*taken, *[0] * (len(self.plan.parts) - len(taken))]

    def _val_documents(self, context: StreamContext) -> Iterator[Document]:
        """Yield the documents of val of all parts, to compare the train documents of this part with them."""
        context.log("reading val, to keep its documents out of train")
        if self._val_part is not None and self._val_part.is_hashed:
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

    def need(self) -> Need | None:
        is_packed = any(is_compressed(file.name) for file in self.planned.files)
        tells_all = all(file.bytes for file in self.planned.files)  # 0: empty, or its server tells no size
        text_bytes = sum(file.bytes for file in self.planned.files) if tells_all and not is_packed else None
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
        """Yield the documents of the part, from the place where `context` begins."""
        return self.stream.documents(context)

    def require_input(self) -> None:
        """Raise NielsCacheError if a file of the part is not the one that the plan lists."""
        require_unchanged(self.stream.files)

    def write(self, work: Work) -> Written:
        self.require_input()
        written = super().write(work)
        budget, tokens = self.planned.train_tokens, written.meta["train_tokens"]
        short = 0 if budget is None else budget - tokens
        part = {"number": self.number, "plan": self.planned.plan, "short": short}
        return replace(written, meta={**self.of_removed_ids(written.meta, work.made_of), "part": part})


@dataclass(frozen=True, kw_only=True)
class PreparedPart(OfCorpus, Part):
    """A part of a data set with `prepare`: the documents of one part of its corpus, without duplicates."""

    @cached_property
    def planned(self) -> PlannedPart:
        """The part without files and budgets: the corpus has divided them."""
        nothing: dict[str, Any] = {"files": (), "text_field": None, "train_tokens": None, "val_tokens": None}
        return PlannedPart(number=self.number, plan=self.planned_by, revision=self.corpus.meta["dataset_revision"], **nothing)

    @property
    def _ordinals(self) -> range:
        return self.corpus.parts[self.number]

    def need(self) -> Need | None:
        share = len(self._ordinals) / max(1, self.corpus.meta["documents"]["kept"])
        text_bytes = int(self.corpus.meta["bytes"]["after"] * share)
        return pretrain_need(train_tokens=None, val_tokens=None, token_bytes=self.token_bytes, text_bytes=text_bytes, exact=False)

    def documents(self, context: StreamContext) -> Iterator[DocumentBatch]:
        return self.corpus.stream(context, self._ordinals)

    def require_input(self) -> None:
        """Do nothing: everything that is read from a corpus is compared with its meta.json."""


_BEFORE_THE_PIN = (None, "main")  # `part --add` replaces these by the commit; a cache of another branch is built again, with the same bytes


@dataclass(frozen=True, kw_only=True)
class WholePart(Part):
    """All first files of a data set as one part."""

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        return Dataset.identity_with(self, tokenizer_sha256, vocab_size, revision)

    def is_made_of(self, meta: Meta, made_of: Any) -> bool:
        """Return whether the cache is this part. It may have been built before its commit was pinned.

        All ids of `exclude` count for a cache that one process built, also those that it does not hold.
        """
        return any(self._is_made_of(meta, each) for each in (self.with_held_ids(meta, made_of), dict(made_of)))

    def _is_made_of(self, meta: Meta, made_of: dict[str, Any]) -> bool:
        source, forms = dict(made_of["source"]), [made_of]
        if source.get("pinned_revision") is not None and source["pinned_revision"] == made_of["revision"]:
            forms += [{**made_of, "source": {**source, "pinned_revision": pinned}} for pinned in _BEFORE_THE_PIN]
        return meta.get("fingerprint") in [fingerprint_of(each) for each in forms]

    def directory_of(self, meta: Meta) -> Path:
        return self.directory if "part" in meta else self._place

    @cached_property
    def built(self) -> Meta | None:
        """The meta.json of the cache that one process built, if it is still in the place of the data set and has these settings."""
        meta = self._of_one_process()
        if meta is None or not self.is_current(meta):
            return None
        if self.build.verify_parts == "sha256":
            try:
                self.check_files(meta, self._place)
            except NielsCacheError:
                return None
        return meta

    @property
    def is_there(self) -> bool:
        """Whether one process has built the data set. It may have had other settings."""
        return self._of_one_process() is not None

    def _of_one_process(self) -> Meta | None:
        meta = finished_meta(self._place)
        if meta is None or not meta.get("built") or "parts" in meta or meta.get("dataset_name") != self.name:
            return None
        return meta

    @property
    def _place(self) -> Path:
        return dataset_dir(self.root, "pretrain", self.name)

    def need(self) -> Need | None:
        return None if self.built is not None else Pretrain.need(self)

    def split_rule(self) -> str:
        return Pretrain.split_rule(self)

    def builder(self, context: StreamContext, provenance: Provenance, progress: OnProgress | None) -> PretrainBuild:
        return Pretrain.builder(self, self._of_plan(context), provenance, progress)

    def _of_plan(self, context: StreamContext) -> StreamContext:
        """Return the context with the files of the plan, because the patterns may match other files now. A commit of the hub cannot."""
        return context if isinstance(self.source, HubData) else replace(context, files=[file for _, file in self.stream.files])

    def write(self, work: Work) -> Written:
        if self.built is None or work.force:
            require_unchanged(self.stream.files)
            written = Dataset.write(self, work)
            meta = self._with_part(self.of_removed_ids(written.meta, work.made_of))
            return Written(meta=meta, resumed=written.resumed, warning=written.warning, engines=written.engines)
        meta = self.built
        for left in work.directory.iterdir():  # of an unfinished build that was kept
            remove(left)
        link_all(meta, self._place, work.directory, target=self.directory, log=work.log)
        if finished_meta(self._place) != meta:
            raise NielsCacheError(f"{self._place}: was built again while its files were being linked; run it again")
        return Written(meta=self._with_part(self.of_removed_ids({**meta, "dataset_name": self._full_name}, work.made_of)))

    def _with_part(self, meta: Meta) -> Meta:
        budget = self.source.train_tokens
        short = 0 if budget is None else max(0, budget - meta["train_tokens"])
        return {
            **{key: value for key, value in meta.items() if key != "meta_sha256"},
            "part": {"number": self.number, "plan": self.planned.plan, "short": short},
        }
