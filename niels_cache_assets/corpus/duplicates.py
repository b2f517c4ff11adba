"""`find_duplicates`: which documents go, over all data sets with "dedup" at once, because of whom, and at which similarity.

Documents are taken in a defined order, in which the first one wins: data sets by [dedup] priority, then in table order; in a data set val
before train, so that a twin leaves train; then input order. Cost and memory: dedup/greedy.py; signatures are read from disk in blocks.
Texts are read again only for `verify = "jaccard"`, those of candidates.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal

import numpy as np

from niels_cache_assets.build_cache import fingerprint_of
from niels_cache_assets.corpus.identity import current_corpus
from niels_cache_assets.corpus.layout import DIGESTS_NAME, DUPLICATES, SIGNATURES_NAME, duplicates_dir, duplicates_file
from niels_cache_assets.corpus.order import Drops, Input, Inputs
from niels_cache_assets.corpus.reading import document_files, document_sizes, split_identity
from niels_cache_assets.corpus.store import TableFile, closing_table
from niels_cache_assets.corpus.texts import DocumentTexts, ShingleSets
from niels_cache_assets.registry import Registry
from niels_cache_assets.streaming.directories import atomic_directory, finished_meta
from niels_cache_assets.streaming.writers import Files
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import META_NAME, SPLITS
from niels_cache_runtime.meta import Meta, read_meta, sha256_text, write_meta

CODE_VERSION = "1"  # bumped by hand when other documents go for the same signatures and settings
_ROWS_PER_GROUP = 65_536
_SCRATCH = "scratch"

Log = Callable[[str], None]
State = Literal["built", "cache_hit", "disabled"]


@dataclass(frozen=True, kw_only=True)
class DuplicatesOutcome:
    """What happened to the drop lists. `meta` is empty where no data set asks for dedup. `warning` names those that have no corpus yet."""

    state: State
    meta: Meta
    directory: Path
    seconds: float
    warning: str | None = None


def find_duplicates(registry: Registry, *, root: Path, force: bool = False, log: Log = lambda message: None) -> DuplicatesOutcome:
    """Make `duplicates/` under `root` from every current corpus with "dedup", or find that it is what that would make.

    Raises NielsCacheError where data sets ask for it and none of them has a corpus. The last good drop lists then stay.
    """
    started = time.monotonic()
    directory = duplicates_dir(root)

    def outcome(state: State, meta: Meta, warning: str | None = None) -> DuplicatesOutcome:
        return DuplicatesOutcome(state=state, meta=meta, directory=directory, seconds=time.monotonic() - started, warning=warning)

    names = dedup_order(registry)
    if not names:
        return outcome("disabled", {})
    metas: dict[str, Meta] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            metas[name] = current_corpus(registry, name, root=root)
        except NielsCacheError as error:
            missing[name] = str(error)
    if not metas:
        raise NielsCacheError(next(iter(missing.values())))
    warning = None
    if missing:
        warning = f"duplicates were looked for without {', '.join(missing)}: {next(iter(missing.values()))}"
    splits = {name: split_identity(registry.pretrain[name], registry.build.seed) for name in metas}
    settings = registry.dedup.model_dump(mode="json")
    inputs = {name: meta["content_sha256"] for name, meta in metas.items()}
    signatures = {name: [meta["files"][file]["sha256"] for file in (DIGESTS_NAME, SIGNATURES_NAME)] for name, meta in metas.items()}
    identity = {"settings": settings, "order": [*metas], "inputs": inputs, "signatures": signatures, "splits": splits}
    fingerprint = fingerprint_of({**identity, "code_version": CODE_VERSION})
    old = None if force else finished_meta(directory)
    if old is not None and old.get("fingerprint") == fingerprint:
        return outcome("cache_hit", old, warning)
    log(f"looking for duplicates in {', '.join(metas)}")
    _write(registry, root, directory, metas, {**identity, "missing": sorted(missing), "fingerprint": fingerprint})
    return outcome("built", read_meta(str(directory / META_NAME)), warning)


def dedup_order(registry: Registry) -> list[str]:
    """The data sets with "dedup" in the order in which the first one wins: [dedup] priority, then table order."""
    names = registry.prepared("dedup")
    first = [name for name in registry.dedup.priority if name in names]
    return [*first, *(name for name in names if name not in first)]


def _write(registry: Registry, root: Path, directory: Path, metas: dict[str, Meta], identity: dict[str, Any]) -> None:
    from niels_cache_assets.dedup.bands import choose_bands
    from niels_cache_assets.dedup.greedy import Verify, keep_first

    dedup = registry.dedup
    bands, rows = (dedup.bands, dedup.rows) if dedup.bands and dedup.rows else choose_bands(dedup.threshold, dedup.num_perm)
    inputs = Inputs(registry, root, metas)
    files: Files = {}
    with atomic_directory(directory, is_ours=_is_duplicates_file) as partial, ExitStack() as opened:
        verify = None
        if dedup.verify == "jaccard":
            texts = [opened.enter_context(DocumentTexts(document_files(each.directory, each.meta))) for each in inputs.all]
            shingles = ShingleSets(texts, dedup.ngram)
            verify = Verify(similarity=lambda earlier, later: _similarity(inputs, shingles, earlier, later), threshold=dedup.threshold)
        scratch = partial / _SCRATCH
        scratch.mkdir()
        blocks = (block for each in inputs.all for block in each.signatures())
        drops = inputs.drops(keep_first(blocks, bands=bands, rows=rows, scratch=scratch, verify=verify))
        rmtree(scratch)
        datasets = {}
        for corpus, each in enumerate(inputs.all):
            own = drops.of(corpus)
            _write_drop_list(partial, each.name, inputs, own, files)
            datasets[each.name] = {**_counts(inputs, each, own), "clusters": _cluster_sizes(drops.because_of(corpus))}
        meta = {
            "kind": "duplicates",
            "built": True,
            **identity,
            "bands": bands,
            "rows": rows,
            "datasets": datasets,
            "files": files,
            "content_sha256": sha256_text("".join(f"{name} {counts['drop_sha256']}\n" for name, counts in sorted(datasets.items()))),
        }
        write_meta(str(partial / META_NAME), meta)


def _is_duplicates_file(name: str) -> bool:
    return name == META_NAME or name.endswith(".parquet")


def _similarity(inputs: Inputs, shingles: ShingleSets, earlier: int, later: int) -> float:
    from niels_cache_assets.dedup.jaccard import jaccard

    return jaccard(shingles[inputs.place(earlier)], shingles[inputs.place(later)])


def _write_drop_list(root: Path, name: str, inputs: Inputs, drops: Drops, files: Files) -> None:
    """The drop list of one data set, sorted by ordinal."""
    names = np.array([each.name for each in inputs.all], dtype=object)
    splits = np.array([*SPLITS, None], dtype=object)  # UNKNOWN is the last
    kinds = np.array(["near", "exact"], dtype=object)
    with closing_table(TableFile(root, duplicates_file(name), DUPLICATES, files)) as table:
        for first in range(0, len(drops.ordinals) or 1, _ROWS_PER_GROUP):
            part = drops.where(slice(first, first + _ROWS_PER_GROUP))
            columns = {
                "ordinal": part.ordinals,
                "split": splits[part.splits],
                "kind": kinds[part.exact.astype(np.int8)],
                "similarity": part.similarity,
                "because_dataset": names[part.because_corpora],
                "because_ordinal": part.because_ordinals,
                "because_split": splits[part.because_splits],
            }
            table.write_group(columns[column] for column in DUPLICATES)


def _counts(inputs: Inputs, each: Input, drops: Drops) -> dict[str, Any]:
    """What meta.json says of one data set. `drop_sha256` is over the ordinals alone, as little-endian int64."""
    sizes = document_sizes(each.directory, each.meta)
    totals = {
        what: {kind: int(sizes[what][drops.ordinals[drops.exact == (kind == "exact")]].sum()) for kind in ("exact", "near")}
        for what in ("characters", "bytes")
    }
    split_names = ["unknown", *SPLITS]
    shape = (len(split_names), len(inputs.all), len(split_names), 2)
    keys = np.ravel_multi_index((drops.splits + 1, drops.because_corpora, drops.because_splits + 1, drops.exact.astype(np.int8)), shape)
    documents = np.bincount(keys, minlength=int(np.prod(shape))).reshape(shape)
    pairs = [
        {
            "split": split_names[split],
            "because_dataset": inputs.all[corpus].name,
            "because_split": split_names[because_split],
            "kind": "exact" if exact else "near",
            "documents": int(documents[split, corpus, because_split, exact]),
        }
        for split, corpus, because_split, exact in np.argwhere(documents).tolist()
    ]
    exact = int(drops.exact.sum())
    return {
        "documents": len(each.order),
        "exact": exact,
        "near": len(drops.ordinals) - exact,
        **totals,
        "pairs": pairs,
        "drop_sha256": hashlib.sha256(drops.ordinals.astype("<i8").tobytes()).hexdigest(),
    }


def _cluster_sizes(drops: Drops) -> dict[str, int]:
    """How many kept documents have so many documents in their cluster, themselves included; those alone are left out."""
    _, copies = np.unique(drops.because_ordinals, return_counts=True)
    sizes, clusters = np.unique(copies + 1, return_counts=True)
    return {str(size): count for size, count in zip(sizes.tolist(), clusters.tolist(), strict=True)}
