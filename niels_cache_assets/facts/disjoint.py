"""The documents of train that are also in val of a pretrain cache. The build finds them once, and records them as `overlap` in meta.json.

Exact copies are found by the hashes of canonical texts in lineage: all hashes of val are in memory, and those of train are read in blocks.
So all of train is compared, and no token is decoded. The hashes are those of whole texts, also if a token budget has cut a document.

Near copies need the texts. Val is decoded into a set of texts (dedup/text_set.py), and train is decoded chunk by chunk and looked up in the
set, on all cores. If train has more than SAMPLE_TOKENS tokens and not everything is requested, a sample of about this size is compared: the
documents that a hash of the seed and of their ordinal chooses.

Cost: about 0.1 s for each million compared tokens, and a read of 8 bytes for each document. Memory: up to 24 bytes for each document of
val, the set of texts, and a few chunks.

This module repairs nothing: to remove copies, use decontaminate and dedup in the next build. A build with decontaminate = "near" has
already compared all whole texts, so near copies are not looked for again, unless this threshold is lower. If the build used decontaminate,
the beginning of a document that a token budget has cut is no exact copy.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from niels_cache_assets.base.defaults import BOS
from niels_cache_assets.base.documents import BatchDivider
from niels_cache_assets.base.parallel import map_in_order
from niels_cache_assets.base.strings import buffers_of
from niels_cache_assets.dedup.hashing import MIX_1, MIX_2, SHINGLE_BASE, mix
from niels_cache_assets.dedup.signatures import Shingles
from niels_cache_assets.dedup.text_set import HashIndex, TextMatch, TextSet
from niels_cache_assets.disk.table_file import NoTextHashesError, read_text_hashes
from niels_cache_assets.facts.lineage import read_lineage
from niels_cache_assets.facts.split_tokens import SplitTokens
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.project.tables import BuildSettings
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_runtime.cache.mmap import map_doc_ends
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Bools, Ints, Split, Uints, doc_ends_name
from niels_cache_runtime.format.meta import Meta, cut_ordinals
from niels_cache_runtime.format.reading import available_threads

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_TOKENS = 20_000_000
MIN_SAMPLED = 1_000  # documents
MAX_PAIRS = 20  # that are recorded
_TOKENS_PER_CHUNK = 250_000  # about a megabyte of text
_CHARACTERS_PER_TOKEN = 4
_DOCUMENTS_PER_CHUNK = 1_024
_ORIGIN = ("ordinal", "source_id", "file", "row")
_NORMAL_95 = 1.959964  # the quantile of the normal distribution for an interval of 95%


@dataclass(frozen=True, kw_only=True)
class OverlapSettings:
    """How train is compared with val.

    Attributes:
        threshold: The Jaccard similarity of word 5-grams from which documents are near each other, above 0 and below 1. None: look only for
            equal documents.
        everything: Whether near copies are looked for in all of a large train.
        prevents: The kind of copies that the settings of the data set should have kept out of train. "near" includes "exact".
    """

    threshold: float | None = 0.8
    everything: bool = True
    prevents: Literal["exact", "near"] | None = None

    @classmethod
    def of(cls, registry: Registry, source: PretrainSource, build: BuildSettings) -> Self:
        """Return the settings that the tables of a data set give."""
        has_dedup = "dedup" in source.prepare
        return cls(
            threshold=registry.dedup.threshold if has_dedup else source.decontaminate_threshold,
            everything=build.near_check == "all",
            prevents="exact" if has_dedup else None if source.decontaminate == "off" else source.decontaminate,
        )


@dataclass(frozen=True)
class SplitOverlap:
    """The documents of train that are also in val.

    Attributes:
        record: The value of `overlap` in meta.json (docs/meta.md).
        documents: The number of documents of train.
    """

    record: dict[str, Any]
    documents: int

    @classmethod
    def recorded(cls, meta: Meta, settings: OverlapSettings | None = None) -> Self | None:
        """Return the overlap that the build of a cache has recorded.

        Args:
            meta: The content of meta.json.
            settings: The settings that count now. None: those of the build.

        Returns:
            The overlap. None if the build has recorded none, or with another threshold, or by a sample if everything is requested.
        """
        if "overlap" not in meta:
            return None
        found = cls(meta["overlap"], meta["documents"]["train"])
        if settings is None:
            return found
        fits = found.record["threshold"] == settings.threshold and not (settings.everything and found.near_estimate)
        return found if fits else None

    @property
    def is_disjoint(self) -> bool:
        """Whether no document of train was found in val."""
        return not self.record["exact"] and not self.record["near"]

    @property
    def was_prevented(self) -> bool:
        """Whether the settings of the data set should have kept some of these documents out of train."""
        prevents = self.record.get("prevents")
        return bool((self.record["exact"] and prevents) or (self.record["near"] and prevents == "near"))

    @property
    def near_estimate(self) -> str | None:
        """The estimated number of near copies in all of train, with its interval of 95% (Wilson 1927). None if everything was compared."""
        near, compared = self.record["near"], self.record["compared"]
        if compared >= self.documents:
            return None
        share, square = near / compared, _NORMAL_95**2 / compared
        middle, scale = (share + square / 2) / (1 + square), self.documents / (1 + square)
        half = math.sqrt(square * (share * (1 - share) + square / 4)) * scale
        low, high = max(near, round(middle * self.documents - half)), round(middle * self.documents + half)
        return f"about {round(share * self.documents):,} (95%: {low:,} to {high:,}; {compared:,} were compared)"

    def describe(self) -> str | None:
        """Return what was found in one line, or None if nothing was found."""
        if self.is_disjoint:
            return None
        near = f"{self.record['near']:,}" if self.near_estimate is None else self.near_estimate
        advice = "" if "prevents" in self.record else '; decontaminate = "near" keeps them out'
        return f"{self.record['exact']:,} documents of train equal one of val, {near} are near to one{advice}"


def compare_splits(
    folder: Path,
    meta: Meta,
    tokenizer: Any,
    settings: OverlapSettings,
    *,
    threads: int | None = None,
    scratch: Path | None = None,
    shards: Callable[[Split], Sequence[Any] | None] = lambda split: None,
) -> SplitOverlap:
    """Compare train with val of a pretrain cache whose files are finished.

    The match of a document is the earliest document of val with the same canonical text or, if there is none, the earliest that is near.

    Args:
        folder: The folder of the cache.
        meta: The content of its meta.json, which need not be written yet.
        tokenizer: The tokenizer of this cache, whose `piece_bytes` are used.
        settings: How the splits are compared.
        threads: The number of threads. None: one for each available core.
        scratch: A folder for a temporary file of 8 bytes for each word of val. None: the system's folder.
        shards: Returns the token files of a split that are not in the folder (see `SplitTokens`), or None if they are.

    Raises:
        NielsCacheError: If the threshold is invalid, or files are broken.
    """
    import pyarrow as pa

    train, val = (_Documents(folder, split, meta, shards(split)) for split in SPLITS)
    comparison = _Comparison(train, val, meta, settings)
    with TextSet(near=settings.threshold, folder=scratch) as known:
        if comparison.needs_texts:
            comparison.look_up(known, pa.array(tokenizer.piece_bytes(), pa.large_binary()), threads or available_threads())
        elif len(val):
            deque(comparison.candidates(), maxlen=0)
        else:
            comparison.counts["compared"] = len(train)
    found = sorted(comparison.found)[:MAX_PAIRS]
    in_train, in_val = train.origins([pair[0] for pair in found]), val.origins([pair[1] for pair in found])
    record = {
        **comparison.counts,
        "threshold": settings.threshold,
        **({} if settings.prevents is None else {"prevents": settings.prevents}),
        "pairs": [
            {"kind": kind, "similarity": round(similarity, 6), "train": in_train[ordinal], "val": in_val[of]}
            for ordinal, of, kind, similarity in found
        ],
    }
    return SplitOverlap(record, len(train))


class _Comparison:
    """A comparison of train with val.

    Attributes:
        counts: The first three values of the record.
        found: The first pairs of each kind: the ordinals in train and val, the kind, and the similarity.
        needs_texts: Whether texts are compared, and not only hashes.
    """

    def __init__(self, train: "_Documents", val: "_Documents", meta: Meta, settings: OverlapSettings) -> None:
        self._train, self._val, self._known = train, val, meta.get("decontaminate")
        self.counts = {"exact": 0, "near": 0, "compared": 0}
        self.found: list[tuple[int, int, str, float]] = []
        self._seed = np.uint64(mix(meta.get("seed") or 0))
        known, near = self._known or {}, settings.threshold
        is_compared = near is None or (known.get("kind") == "near" and known["threshold"] <= near)
        share = max(SAMPLE_TOKENS / max(1, train.tokens), MIN_SAMPLED / max(1, len(train)))
        self._share = 1.0 if settings.everything or is_compared else share
        try:
            hashes = np.concatenate([np.empty(0, np.int64), *val.hashes()])
            self._index = HashIndex(hashes, np.arange(len(hashes)))
            self._is_hashed = True
        except NoTextHashesError:
            self._is_hashed = False
        self.needs_texts = bool(len(val)) and not (self._is_hashed and is_compared)

    def candidates(self) -> Iterator[Ints]:
        """Count the exact copies in train, and yield chunks of the ordinals of other documents, whose texts are compared."""
        first = 0
        for hashes in self._train.hashes() if self._is_hashed else [np.zeros(len(self._train), np.int64)]:
            ordinals = np.arange(first, first := first + len(hashes))
            chosen = self._sampled(ordinals)
            self.counts["compared"] += int(chosen.sum())
            if self._is_hashed:
                copies, matches = self._index.find(hashes, most=1)
                self._add("exact", ordinals[copies].tolist(), matches.tolist(), 1.0)
                chosen[copies] = False
            yield from self._train.chunks(ordinals[chosen])

    def _sampled(self, ordinals: Ints) -> Bools:
        """Return which documents are in the sample. A hash of the seed and the ordinal decides (splitmix64)."""
        mixed = self._seed + ordinals.astype(np.uint64) * np.uint64(SHINGLE_BASE)
        for shift, factor in ((30, MIX_1), (27, MIX_2)):
            mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
        return mixed <= self._share * 2.0**64

    def look_up(self, known: TextSet, pieces: "pa.LargeBinaryArray", threads: int) -> None:
        """Compare the texts of the candidates with those of val, which are added to the empty set `known`."""

        def read(ordinals: Ints) -> tuple[list[str], Shingles]:
            return (texts := self._val.texts(ordinals, pieces)), known.shingle(texts)

        def find(ordinals: Ints) -> tuple[Ints, list[TextMatch | None]]:
            return ordinals, known.find(self._train.texts(ordinals, pieces))

        val = self._val.chunks(np.arange(len(self._val)))
        with closing(map_in_order(read, val, threads=threads, size_of=self._val.characters)) as chunks:
            for texts, shingles in chunks:
                known.add(texts, shingles)
        known.seal()
        with closing(map_in_order(find, self.candidates(), threads=threads, size_of=self._train.characters)) as results:
            for ordinals, matches in results:
                for ordinal, match in zip(ordinals.tolist(), matches, strict=True):
                    if match is None or (
                        match.kind == "exact" and self._known and (ordinal in self._train.cut or match.ordinal in self._val.cut)
                    ):
                        continue
                    # If the hashes differ, the whole texts do.
                    self._add("near" if self._is_hashed else match.kind, [ordinal], [match.ordinal], match.similarity)

    def _add(self, kind: str, ordinals: list[int], matches: list[int], similarity: float) -> None:
        room = max(0, MAX_PAIRS - self.counts[kind])
        self.counts[kind] += len(ordinals)
        self.found += [(ordinal, of, kind, similarity) for ordinal, of in zip(ordinals[:room], matches[:room], strict=True)]


class _Documents:
    """The documents of one split as hashes and texts, by ordinal. Files are read only when needed."""

    def __init__(self, folder: Path, split: Split, meta: Meta, shards: Sequence[Any] | None) -> None:
        self._stream = SplitTokens(folder, "pretrain", split, meta, shards=shards)
        self._meta, self.tokens = meta, len(self._stream)
        self.ends: Uints = map_doc_ends(folder / doc_ends_name(split), token_count=self.tokens) if self.tokens else np.empty(0, np.uint64)
        self._end_tokens = 1 if meta.get("append_eot") else 0
        self._begin_tokens = 0 if meta["special_token_ids"].get(BOS) is None else 1
        self.cut = set(cut_ordinals(meta, split))

    def __len__(self) -> int:
        return len(self.ends)

    def hashes(self) -> Iterator[Ints]:
        """Yield the hashes of the canonical texts in blocks.

        Raises:
            NoTextHashesError: If the lineage has none.
        """
        count = 0
        for block in read_text_hashes(self._stream.lineage, self._meta) if len(self) else ():
            count += len(block)
            yield block
        if count != len(self):
            raise NielsCacheError(f"{self._stream.lineage}: has {count:,} rows for {len(self):,} documents; rebuild this data set")

    def chunks(self, ordinals: Ints) -> Iterator[Ints]:
        """Divide ordinals into chunks. The documents of a chunk have about a megabyte of text."""
        begins, ends = self._bounds(ordinals)
        divider = BatchDivider(most_items=_DOCUMENTS_PER_CHUNK, most_characters=_TOKENS_PER_CHUNK)
        for chunk, _ in divider.cuts(ends - begins):
            yield ordinals[chunk]

    def _bounds(self, ordinals: Ints) -> tuple[Ints, Ints]:
        """Return the start and the end of each document, in tokens."""
        return np.where(ordinals > 0, self.ends[ordinals - 1], 0).astype(np.int64), self.ends[ordinals].astype(np.int64)

    def characters(self, ordinals: Ints) -> int:
        """Return the approximate number of characters of these documents."""
        begins, ends = self._bounds(ordinals)
        return int((ends - begins).sum()) * _CHARACTERS_PER_TOKEN

    def texts(self, ordinals: Ints, pieces: "pa.LargeBinaryArray") -> list[str]:
        """Return the texts of documents, whose ordinals ascend. Arrow joins the bytes of the pieces without the interpreter lock.

        The canonical form of a text is the same as with the `decode` of the tokenizer.
        """
        import pyarrow as pa

        begins, ends = self._bounds(ordinals)
        ids = self._stream.read_ranges(begins, ends)
        content, offsets = buffers_of(pieces.take(pa.array(np.concatenate(ids))))
        stops = np.cumsum(ends - begins)
        starts = offsets[stops - (ends - begins) + self._begin_tokens].tolist()
        view: Any = memoryview(content)  # type: ignore[arg-type]
        return [str(view[start:stop], "utf-8", "replace") for start, stop in zip(starts, offsets[stops - self._end_tokens], strict=True)]

    def origins(self, ordinals: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the origins of these documents by ordinal. Only the row groups that contain them are read."""
        found = read_lineage(self._stream.lineage, ordinals, self._meta) if ordinals else {}
        return {ordinal: {key: getattr(each, key) for key in _ORIGIN} for ordinal, each in found.items()}
