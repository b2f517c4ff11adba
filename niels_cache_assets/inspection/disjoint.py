"""An exact comparison of train and val of a finished pretrain cache, by its tokens.

    overlap = splits_disjoint("cache/pretrain/wikitext", tokenizer)
    overlap.disjoint, overlap.exact, overlap.near, overlap.pairs[0].train.source_id

The cache may come from any builder. Val is decoded into a set of texts (dedup/text_set.py). Then train is decoded chunk by chunk, and every
document is looked up in it, on all cores. No similarity is estimated, and every near duplicate is found. Memory is bounded by val and a few
chunks of a megabyte, not by train. This module repairs nothing: to remove copies, use decontaminate and dedup in the next build.

A token budget may cut a document, so that the cache has only the beginning of its text. If the build did not use decontaminate, this
beginning is compared like any other text. If the build used decontaminate, it compared the whole text, and its result counts: this module
does not report the beginning as an exact match. If decontaminate was "near" with a threshold of at most `threshold`, this module does not
report the beginning as a near match either.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from niels_cache_assets.base.defaults import BOS
from niels_cache_assets.base.parallel import map_in_order
from niels_cache_assets.dedup.text_set import Kind, TextMatch, TextSet
from niels_cache_assets.facts.lineage import read_lineage
from niels_cache_assets.facts.split_tokens import SplitTokens
from niels_cache_runtime.cache.mmap import map_doc_ends
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, Split, Uints, doc_ends_name, token_dtype_of
from niels_cache_runtime.format.meta import Meta, cut_ordinals, read_meta
from niels_cache_runtime.format.reading import available_threads

_TOKENS_PER_CHUNK = 250_000  # about a megabyte of text
_CHARACTERS_PER_TOKEN = 4
_DOCUMENTS_PER_CHUNK = 1_024


class SplitDocument(NamedTuple):
    """A document of a split: its ordinal in the split, and its origin."""

    ordinal: int
    source_id: str
    file: str
    row: int


@dataclass(frozen=True, kw_only=True)
class OverlappingPair:
    """A document of train and its match in val.

    The match is the earliest document of val with the same canonical text or, if there is no such document, the earliest that is near.
    """

    kind: Kind
    similarity: float  # 1 if exact, else Jaccard of the word 5-grams
    train: SplitDocument
    val: SplitDocument


@dataclass(frozen=True, kw_only=True)
class SplitOverlap:
    """The documents of train that are also in val.

    Attributes:
        train_documents: The number of documents of train.
        val_documents: The number of documents of val.
        exact: The number of documents of train with an exact match. Each document counts once.
        near: The number of documents of train with a near match. Each document counts once.
        pairs: The first pairs, in the order of train.
    """

    train_documents: int
    val_documents: int
    exact: int
    near: int
    pairs: tuple[OverlappingPair, ...]

    @property
    def disjoint(self) -> bool:
        """Whether train and val of this data set have no document in common."""
        return not self.exact and not self.near


def splits_disjoint(
    folder: str | Path, tokenizer: Any, *, threshold: float | None = 0.8, max_pairs: int = 100, threads: int | None = None
) -> SplitOverlap:
    """Compare train with val of the pretrain cache in `folder`.

    Temporary files in the system's folder take 8 bytes for each word of val.

    Args:
        folder: The folder of the cache.
        tokenizer: The tokenizer of this cache, whose `decode` is used.
        threshold: The Jaccard similarity of word 5-grams from which documents are near each other, above 0 and below 1. None: look only for
            equal documents.
        max_pairs: The maximum number of pairs to return.
        threads: The number of threads. None: one for each available core.

    Raises:
        NielsCacheError: If the threshold is invalid, or the folder is not a pretrain cache, was made with a different tokenizer, or has
            broken files.
    """
    folder = Path(folder)
    meta = read_meta(str(folder / META_NAME))
    if meta.get("kind") != "pretrain":
        raise NielsCacheError(f"{folder}: kind is {meta.get('kind')!r}; only a pretrain cache has documents in train and val to compare")
    built_with, given = meta.get("tokenizer_sha256"), getattr(tokenizer, "model_sha256", None)
    if built_with and given and built_with != given:
        raise NielsCacheError(f"{folder}: was made with another tokenizer ({built_with[:12]} ..., not {given[:12]} ...); build it again")
    train, val = (_Documents(folder, split, meta, tokenizer) for split in ("train", "val"))
    counts: Counter[Kind] = Counter()
    found: list[tuple[int, TextMatch]] = []
    checked_kinds = _kinds_checked_by_build(meta, threshold)

    def counts_as_overlap(ordinal: int, match: TextMatch) -> bool:
        return match.kind not in checked_kinds or (ordinal not in train.cut and match.ordinal not in val.cut)

    with TextSet(near=threshold, folder=None) as known:
        for chunk in val.chunks():
            known.add(val.texts(chunk))
        known.seal()

        def find_matches(chunk: range) -> tuple[range, list[TextMatch | None]]:
            return chunk, known.find(train.texts(chunk))

        chunks = train.chunks() if len(val) else iter(())
        with closing(map_in_order(find_matches, chunks, threads=threads or available_threads(), size_of=train.characters)) as results:
            for chunk, matches in results:
                hits = [
                    (ordinal, match)
                    for ordinal, match in zip(chunk, matches, strict=True)
                    if match is not None and counts_as_overlap(ordinal, match)
                ]
                counts.update(match.kind for _, match in hits)
                found += hits[: max_pairs - len(found)]
    train_origins = train.origins([ordinal for ordinal, _ in found])
    val_origins = val.origins([match.ordinal for _, match in found])
    return SplitOverlap(
        train_documents=len(train),
        val_documents=len(val),
        exact=counts["exact"],
        near=counts["near"],
        pairs=tuple(
            OverlappingPair(kind=match.kind, similarity=match.similarity, train=train_origins[ordinal], val=val_origins[match.ordinal])
            for ordinal, match in found
        ),
    )


class _Documents:
    """The documents of one split as texts, by ordinal. Files are read only when needed."""

    def __init__(self, folder: Path, split: Split, meta: Meta, tokenizer: Any) -> None:
        self._tokens = SplitTokens(folder, "pretrain", split, dtype=token_dtype_of(meta))
        path, count = folder / doc_ends_name(split), len(self._tokens)
        self.ends: Uints = map_doc_ends(path, token_count=count) if count else np.empty(0, np.uint64)
        self._end_tokens = 1 if meta.get("append_eot") else 0
        self._begin_tokens = 0 if meta["special_token_ids"].get(BOS) is None else 1
        self.cut = set(cut_ordinals(meta, split))
        self._decode = _decoder(tokenizer)

    def __len__(self) -> int:
        return len(self.ends)

    def chunks(self) -> Iterator[range]:
        """Yield ranges of ordinals. The documents of a range have about a megabyte of text."""
        first = 0
        while first < len(self.ends):
            start = int(self.ends[first - 1]) if first else 0
            end = int(np.searchsorted(self.ends, np.uint64(start + _TOKENS_PER_CHUNK), side="right"))
            end = min(max(first + 1, end), first + _DOCUMENTS_PER_CHUNK, len(self.ends))
            yield range(first, end)
            first = end

    def characters(self, ordinals: range) -> int:
        """Return the approximate number of characters of these documents."""
        start = int(self.ends[ordinals[0] - 1]) if ordinals[0] else 0
        return (int(self.ends[ordinals[-1]]) - start) * _CHARACTERS_PER_TOKEN

    def texts(self, ordinals: range) -> list[str]:
        start = int(self.ends[ordinals[0] - 1]) if ordinals[0] else 0
        ends = [end - start for end in self.ends[ordinals[0] : ordinals[-1] + 1].tolist()]
        ids = self._tokens.read(start, ends[-1]).tolist()
        return [
            self._decode(ids[begin + self._begin_tokens : end - self._end_tokens]) for begin, end in zip([0, *ends], ends, strict=False)
        ]

    def origins(self, ordinals: Sequence[int]) -> dict[int, SplitDocument]:
        """Return the origins of these documents by ordinal. Only the row groups that contain them are read."""
        found = read_lineage(self._tokens.lineage, ordinals) if ordinals else {}
        return {ordinal: SplitDocument(ordinal, each.source_id, each.file, each.row) for ordinal, each in found.items()}


def _kinds_checked_by_build(meta: Meta, threshold: float | None) -> set[Kind]:
    """Return the kinds of matches that the build looked for in whole documents, at least as strictly as this comparison."""
    decontaminate = meta.get("decontaminate")
    if decontaminate is None:
        return set()
    if decontaminate["kind"] == "near" and threshold is not None and decontaminate["threshold"] <= threshold:
        return {"exact", "near"}
    return {"exact"}


def _decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    """Return a function that decodes ids. The canonical form of its text is the same as with `tokenizer.decode`.

    If the tokenizer has `piece_bytes`, the function uses a table of pieces, which is three times faster.
    """
    piece_bytes = getattr(tokenizer, "piece_bytes", None)
    if piece_bytes is None:
        return lambda ids: str(tokenizer.decode(ids))
    table = piece_bytes()

    def decode(ids: list[int]) -> str:
        if len(ids) < 2:  # then itemgetter returns no tuple
            return b"".join(table[token] for token in ids).decode("utf-8", "replace")
        return b"".join(itemgetter(*ids)(table)).decode("utf-8", "replace")

    return decode
