"""Facts about corpora for the commands: folder, state, duplicates, single rows, and a sample of the remaining documents.

A corpus is the cleaned documents of one data set. Drop lists name the duplicates in all corpora. Finding the state takes one or two small
reads and contacts no upstream. Finding rows reads the footers of the files and the row groups that contain a requested row, one row group
at a time. A sample needs 17 bytes of memory per document.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.artifacts.corpus_report import estimated_tokens
from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.base.documents import Document
from niels_cache_assets.base.random_numbers import TorchRandom
from niels_cache_assets.corpus.identity import require_prepared
from niels_cache_assets.corpus.layout import corpus_dir, duplicates_dir
from niels_cache_assets.corpus.prepared import PreparedCorpus, document_files, document_rows, open_documents
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, built_names
from niels_cache_runtime.format.meta import Meta, check_location, read_meta


def corpus_names(registry: Registry, root: Path) -> list[str]:
    """Return the names of the data sets with `prepare`, in order, then the names of built corpora that are not in this configuration."""
    return list(dict.fromkeys([*registry.prepared(), *built_names(root / "corpus")]))


def duplicate_counts(root: Path, name: str, meta: Meta) -> Meta | None:
    """Return the counts that the meta.json of the drop lists has for a corpus, or None if the drop lists do not cover this corpus."""
    path = duplicates_dir(root) / META_NAME
    if not path.exists():
        return None
    duplicates = read_meta(path)
    if duplicates["inputs"].get(name) != meta["content_sha256"]:
        return None
    return duplicates["datasets"][name]


def cut_counts(registry: Registry, root: Path, name: str) -> dict[str, Meta]:
    """Return the counts of the cuts of a data set by step, or an empty dict if they are missing or not current."""
    with suppress(NielsCacheError):
        return {cut.step: cut.counts for cut in open_prepared(registry, name, root=root).cuts} if name in registry.pretrain else {}
    return {}


def find_corpus(registry: Registry, root: Path, name: str) -> tuple[Path, Meta]:
    """Return the folder and meta.json of a finished corpus.

    Raises:
        NielsCacheError: If the name is unknown (the message suggests the nearest name), if the corpus is missing (the message gives the
            command that builds it), or if the folder contains the corpus of a different data set.
    """
    directory = corpus_dir(root, name)
    if (directory / META_NAME).exists():
        return directory, check_location(read_meta(directory / META_NAME), directory)
    if name not in registry.pretrain:
        if name in registry.sft:
            raise NielsCacheError(f"{name}: is an SFT data set; only pretrain data sets have a corpus")
        registry.refuse_data_set(str(root), "no data set", name, list(dict.fromkeys([*registry.pretrain, *corpus_names(registry, root)])))
    if not require_prepared(registry, name).enabled:
        raise NielsCacheError(f"{name}: has no corpus, because it is switched off; set enabled = true in [pretrain.{name}] and build it")
    raise NielsCacheError(f"{directory}: no corpus yet; build it: niels-cache build-all --only {name}")


def find_drop_lists(registry: Registry, root: Path) -> Meta:
    """Return the meta.json of the drop lists (lists of duplicates) of all data sets.

    Raises:
        NielsCacheError: If there are no drop lists. The message says how to make them.
    """
    path = duplicates_dir(root) / META_NAME
    if path.exists():
        return read_meta(path)
    if not registry.prepared("dedup"):
        raise NielsCacheError(f'{registry.origin}: no data set is deduplicated; give one prepare = ["clean", "dedup"] and build it')
    raise NielsCacheError(f"{path.parent}: there are no drop lists of duplicates yet; build them: niels-cache build-all")


def find_drop_list(registry: Registry, root: Path, name: str) -> Meta:
    """Return the meta.json of the drop lists, which must cover the current corpus of a data set.

    Raises:
        NielsCacheError: If there are no drop lists, or if they do not cover this corpus.
    """
    _, corpus = find_corpus(registry, root, name)
    source = registry.pretrain.get(name)
    if source is not None and "dedup" not in source.prepare:
        raise NielsCacheError(f'{name}: was not deduplicated; add "dedup" to prepare in [pretrain.{name}] and build it')
    duplicates = find_drop_lists(registry, root)
    require_same_corpus(duplicates, name, corpus)
    return duplicates


def require_same_corpus(duplicates: Meta, name: str, corpus: Meta) -> None:
    """Check that the drop lists were made from this corpus, because outdated drop lists select wrong documents.

    Raises:
        NielsCacheError: If they were not.
    """
    if duplicates["inputs"].get(name) != corpus["content_sha256"]:
        raise NielsCacheError(f"{name}: its corpus changed after the last deduplication; update the duplicates: niels-cache build-all")


def ordinal_of(prepared: PreparedCorpus, source_id: str) -> int | None:
    """Return the ordinal of the first document with this id in a corpus, or None."""
    first = 0
    for path in document_files(prepared.directory, prepared.meta):
        ids = column(path, "source_id")
        if len(rows := np.flatnonzero(ids == source_id)):
            return first + int(rows[0])
        first += len(ids)
    return None


def rows_at(paths: Sequence[Path], positions: Iterable[int], columns: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Return the rows at these positions, which count the rows of all files in order.

    Raises:
        NielsCacheError: If a row is missing.
    """
    requested = np.unique(np.fromiter(positions, dtype=np.int64))
    found: dict[int, dict[str, Any]] = {}
    for inside, rows in document_rows(paths, requested, columns):
        found.update(zip(inside.tolist(), rows.to_pylist(), strict=True))
    return found


def documents_at(
    root: Path, chosen: Collection[tuple[str, int]], corpora: Mapping[str, Meta], columns: Sequence[str]
) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the documents with these data sets and ordinals.

    Args:
        root: The cache root.
        chosen: The name of the data set and the ordinal of each document.
        corpora: The meta.json of the corpus of each data set.
        columns: The columns to read.
    """
    return {
        (name, ordinal): row
        for name in {name for name, _ in chosen}
        for ordinal, row in rows_at(
            document_files(corpus_dir(root, name), corpora[name]), [ordinal for each, ordinal in chosen if each == name], columns
        ).items()
    }


def column(path: Path, name: str) -> np.ndarray:
    """Return one column of a whole file."""
    with open_documents(path) as parquet:
        values: np.ndarray = parquet.read(columns=[name])[name].to_numpy()
    return values


def seeded_choice(count: int, wanted: int, seed: int) -> np.ndarray:
    """Return min(wanted, count) different numbers below `count` as ascending int64, drawn uniformly.

    The draw needs 8 * `count` bytes.
    """
    return np.sort(TorchRandom(seed).permutation(count)[:wanted]).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class CorpusSample:
    """A sample of a corpus.

    Attributes:
        documents: Pairs of the ordinal in the corpus and the document, by ascending ordinal.
        kept: Number of all documents that can be drawn.
        mean_characters: Mean number of characters of all these documents.
        estimated_tokens: Estimated number of tokens of all these documents.
    """

    documents: list[tuple[int, Document]]
    kept: int
    mean_characters: float
    estimated_tokens: int


def sample_corpus(registry: Registry, name: str, *, root: Path, count: int, seed: int, minus_duplicates: bool = True) -> CorpusSample:
    """Return a uniform sample of the remaining documents. The same seed and corpus give the same sample.

    Args:
        registry: The configuration.
        name: Name of the data set.
        root: The cache root.
        count: Number of documents; all are returned if fewer remain.
        seed: Seed of the draw.
        minus_duplicates: Whether to leave out duplicates; by default yes. Otherwise all cleaned documents are drawn from.

    Raises:
        NielsCacheError: As `open_prepared` does.
    """
    if count < 1:
        raise NielsCacheError(f"a sample needs at least 1 document, not {count}")
    prepared = open_prepared(registry, name, root=root, minus_duplicates=minus_duplicates)
    remaining = np.flatnonzero(~prepared.is_dropped)
    chosen = remaining[seeded_choice(len(remaining), count, seed)]
    characters = prepared.meta["characters"]["after"] - (sum(prepared.drops["characters"].values()) if prepared.drops else 0)
    characters -= sum(cut.counts["characters"] for cut in prepared.cuts)
    return CorpusSample(
        documents=list(zip(chosen.tolist(), prepared.select(chosen), strict=True)),
        kept=prepared.kept,
        mean_characters=characters / prepared.kept if prepared.kept else 0.0,
        estimated_tokens=estimated_tokens(characters),
    )
