"""The comparison of a finished cache with its source: random documents are read and encoded again, with the reference of the tokenizer.

This finds a cache whose tokens are not those of its texts, for example because a fast engine gave other ids for a text that was not
compared during the build. Cost: one pass over the source, up to the last of the documents. Memory: one batch of the source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from niels_cache_assets.artifacts.dataset import Dataset
from niels_cache_assets.build_cache.base import CacheBuild
from niels_cache_assets.show.lineage import read_lineage
from niels_cache_assets.show.split_tokens import SplitTokens
from niels_cache_assets.sources.errors import SourceUnavailable
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.streaming.held_out import HeldOut
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split, Tokens, documents_name, entries_per_example, examples_name, token_dtype_of
from niels_cache_runtime.format.meta import Meta, cut_ordinals
from niels_cache_runtime.verify import Finding

_Origin = tuple[str, int, str]


@dataclass(frozen=True, kw_only=True)
class EncodedAgain:
    """The result for one data set. compared: the number of documents or examples. note: why nothing could be compared, or None."""

    compared: int = 0
    findings: list[Finding] = field(default_factory=list)
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    split: Split
    ordinal: int
    tokens: Tokens


def encode_again(dataset: Dataset, count: int, *, seed: int, log: Callable[[str], None]) -> EncodedAgain:
    """Read and encode up to `count` random documents or examples of a finished cache again, and compare their tokens.

    Nothing is compared, and the note gives the reason, if the cache is not built, if a build now would not make this same cache, or if
    the source cannot be read. Raises NielsCacheError for files of the cache that are damaged.
    """
    try:
        meta = dataset.finished()
        if meta is None or not meta.get("built"):
            return EncodedAgain(note="it is not built")
        revision = dataset.revision()
        made_of = dataset.identity(revision)
    except (SourceUnavailable, NielsCacheError) as error:
        return EncodedAgain(note=str(error))
    if not dataset.is_made_of(meta, made_of):
        return EncodedAgain(note="its settings, tokenizer or source have changed since (niels-cache status)")
    wanted = _choose(dataset, meta, count, seed)
    with HeldOut(dataset.registry, root=dataset.root, siblings=dataset.siblings, tokenizer=dataset.tokenizer) as held_out:
        own = dataset.source_revision(revision)
        context = StreamContext(seed=dataset.build.seed, revision=own, log=log, siblings=dataset.siblings, held_out=held_out)
        build = dataset.builder(context, dataset.provenance(revision, str(meta["fingerprint"])), None)
        compared = sum(map(len, wanted.values()))
        try:
            left = _compare(build, chain.from_iterable(dataset.items(context)), wanted)
        except SourceUnavailable as error:
            return EncodedAgain(note=str(error))
    findings = [_finding(dataset, each, origin, found) for origin, (missing, found) in left.items() for each in missing]
    return EncodedAgain(compared=compared, findings=findings)


def _choose(dataset: Dataset, meta: Meta, count: int, seed: int) -> dict[_Origin, list[_Wanted]]:
    """Return random documents of both splits, by origin. A document that a token budget has cut is left out."""
    import torch

    splits = {
        split: SplitTokens(dataset.directory, dataset.family, split, dtype=token_dtype_of(meta), entries=entries_per_example(meta))
        for split in SPLITS
        if meta[f"{split}_tokens"]
    }
    cut = {split: set(cut_ordinals(meta, split)) for split in splits}
    total = sum(len(tokens.ends) for tokens in splits.values())
    drawn = torch.randint(max(1, total), (count,), generator=torch.Generator().manual_seed(seed)).unique().tolist()  # sorted
    wanted: dict[_Origin, list[_Wanted]] = defaultdict(list)
    first = 0
    for split, tokens in splits.items():
        last = first + len(tokens.ends)
        mine = [number - first for number in drawn if first <= number < last and number - first not in cut[split]]
        first = last
        for ordinal, row in read_lineage(tokens.lineage, mine).items():
            start, end = tokens.bounds(ordinal)
            each = _Wanted(split=split, ordinal=ordinal, tokens=tokens.read(start, end - start))
            wanted[row.file, row.row, row.source_id].append(each)
    return dict(wanted)


def _compare(
    build: CacheBuild, items: Iterable[Any], wanted: dict[_Origin, list[_Wanted]]
) -> dict[_Origin, tuple[list[_Wanted], Tokens | None]]:
    """Return the documents whose tokens were not found again, by origin, with the tokens that were found; None: not in the source.

    Several items of a source may have the same origin. Then each document must equal one of them.
    """
    left = {origin: list(each) for origin, each in wanted.items()}
    found: dict[_Origin, Tokens] = {}
    for item in items if left else ():
        origin = (item.file, item.row, item.source_id)
        if origin not in left:
            continue
        found[origin] = build.tokens_of(item)
        left[origin] = [each for each in left[origin] if not np.array_equal(each.tokens, found[origin])]
        if not left[origin]:
            del left[origin]
            if not left:
                break
    return {origin: (each, found.get(origin)) for origin, each in left.items()}


def _finding(dataset: Dataset, wanted: _Wanted, origin: _Origin, found: Tokens | None) -> Finding:
    file, row, source_id = origin
    name = documents_name(wanted.split) if dataset.family == "pretrain" else examples_name(wanted.split)
    where = (
        f"{wanted.split} {'document' if dataset.family == 'pretrain' else 'example'} {wanted.ordinal:,} ({file or source_id}, row {row:,})"
    )
    if found is None:
        problem = f"{where} is not in the source"
    else:
        same = min(len(found), len(wanted.tokens))
        unequal = np.flatnonzero(found[:same] != wanted.tokens[:same])
        problem = f"{where} has other tokens than its text gives now, from token {unequal[0] if len(unequal) else same:,} on"
    problem = f"{problem}; build the data set again with --force"
    return Finding(kind="content", folder=str(dataset.directory), path=name, problem=problem)
