"""The pretrain cache of a data set. A build tokenizes the documents, and writes the tokens to the shards of train and val."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from niels_cache_assets.artifacts.dataset import Dataset
from niels_cache_assets.build_cache import CODE_VERSIONS, OnProgress, Provenance
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.corpus.cache_identity import val_may_come_late
from niels_cache_assets.disk.space import Need, pretrain_need
from niels_cache_assets.documents import Document, DocumentBatch, Documents
from niels_cache_assets.show.contents import budget_rule
from niels_cache_assets.sources.reading.keep import kept_columns
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_assets.streaming.decontaminate import ReferenceTexts
from niels_cache_assets.streaming.feed import Feed, ValShare
from niels_cache_assets.streaming.held_out import HeldOut, reference_texts
from niels_cache_assets.streaming.splits import UNLIMITED
from niels_cache_runtime.format.layout import SPLITS


@dataclass(frozen=True, kw_only=True)
class Pretrain(Dataset):
    """The cache of a pretrain data set."""

    source: PretrainSource

    version = CODE_VERSIONS["pretrain"]

    def need(self) -> Need | None:
        # how much text a drop list or `decontaminate_against` removes is unknown
        exact = self.prepared is not None and self.prepared.duplicates is None and not self.source.decontaminate_against
        return pretrain_need(
            train_tokens=self.source.train_tokens,
            val_tokens=self.source.val_tokens,
            token_bytes=self.token_bytes,
            text_bytes=self.text_bytes,
            exact=exact,
        )

    def split_rule(self) -> str:
        if self.source.has_own_splits:
            return "upstream's own splits"
        if self.source.seeded_val_frac is not None:
            return f"seeded {self.source.seeded_val_frac:g} of documents to val, seed {self.build.seed}"
        return budget_rule(train_tokens=self.source.train_tokens, val_tokens=self.source.val_tokens or 0)

    def builder(self, context: StreamContext, provenance: Provenance, progress: OnProgress | None) -> PretrainBuild:
        source, feed = self.source, self._feed(context)

        def val_documents() -> Iterator[Document]:
            context.log("reading val, to keep its documents out of train")
            for batch in feed.read_unreported():  # only the second pass counts dropped documents
                documents = DocumentBatch.of(batch)
                yield from documents[documents.split == SPLITS.index("val")]

        return self.new_build(
            items=feed,
            max_train_tokens=UNLIMITED if source.train_tokens is None else source.train_tokens,
            max_val_tokens=source.val_tokens or 0,
            seed=self.build.seed,
            shuffle_buffer=source.builder_shuffle or None,
            val_texts=val_documents() if source.decontaminate != "off" and val_may_come_late(source) else None,
            references=self._references(context),
            provenance=provenance,
            progress=progress,
        )

    def new_build(self, **own: Any) -> PretrainBuild:
        """Return a build with the settings that all builds for this data set have. own: its other fields."""
        return PretrainBuild(
            out_dir=str(self.directory),
            tokenizer=self.tokenizer,
            shard_bytes=self.build.shard_bytes,
            threads=self.build.threads,
            token_dtype=self.build.token_dtype,
            decontaminate=self.source.decontaminate,
            decontaminate_threshold=self.source.decontaminate_threshold,
            keep=self.keep,
            **own,
        )

    @property
    def keep(self) -> tuple[str, ...]:
        """The columns whose values stay in lineage."""
        return kept_columns(self.source, self.registry.pretrain)

    def _references(self, context: StreamContext) -> ReferenceTexts | None:
        """Return the texts of `decontaminate_against`, or None without this key."""
        if not self.source.decontaminate_against:
            return None
        held_out = context.held_out if isinstance(context.held_out, HeldOut) else None
        return reference_texts(self.registry, self.source, context, held_out)

    def _feed(self, context: StreamContext) -> Feed[Documents]:
        """Return the documents of the corpus, or the documents of the source if the data set has no corpus. Documents of a corpus already
        have a split.
        """
        if self.prepared is not None:
            return Feed(self.prepared.stream, context, expected=self.prepared.kept if self.source.train_tokens is None else None)
        if self.source.seeded_val_frac is None:
            return Feed(self.source.kept_documents, context)

        def count() -> int:
            context.log("counting documents, to split them by val_frac")
            return self.source.count_unsplit(context)

        return Feed(
            self.source.kept_documents, context, share=ValShare(val_frac=self.source.seeded_val_frac, seed=self.build.seed, count=count)
        )
