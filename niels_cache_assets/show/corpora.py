"""What the commands show of corpora: where one lies, how it and its duplicates stand, single rows, and a sample of what stays.

How one stands costs a small read or two; upstreams are not asked. Rows cost the footers of the files and those row groups that hold a row
asked for, one at a time. A sample adds 17 bytes of memory a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.state import unlisted_corpus_state
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.corpus.layout import corpus_dir, duplicates_dir
from niels_cache_assets.corpus.prepared import open_documents
from niels_cache_assets.corpus.reading import open_prepared
from niels_cache_assets.corpus.report import documents_given, estimated_tokens
from niels_cache_assets.documents import Document
from niels_cache_assets.show.lineage import rows_of
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, built_names
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.format.place import check_place


def corpus_names(registry: Registry, root: Path) -> list[str]:
    """Data sets with `prepare`, in order, then those whose corpus another configuration made."""
    return list(dict.fromkeys([*registry.prepared(), *built_names(root / "corpus")]))


def corpus_summary(registry: Registry, root: Path, name: str) -> str:
    """A cell of `list`: how many documents are left of how many, or what is missing. For a name of `corpus_names`."""
    directory = corpus_dir(root, name)
    if not (directory / META_NAME).exists():
        return "not built"
    is_prepared = name in registry.prepared()
    judged = graph(registry, root).state(f"corpus/{name}") if is_prepared else unlisted_corpus_state(name, root=root)
    try:
        meta = read_meta(str(directory / META_NAME))
        left, documents = kept_after_duplicates(root, name, meta), documents_given(meta)
    except (NielsCacheError, KeyError):
        return "damaged"
    if judged.condition == "broken":
        return judged.state if judged.state == "other data set" else "damaged"
    if is_prepared:
        if judged.condition == "stale":
            return judged.state
        try:
            open_prepared(registry, name, root=root)
        except NielsCacheError:
            return f"{meta['documents']['kept']:,} of {documents:,}, {'no dedup yet' if left is None else 'dedup out of date'}"
    return f"{meta['documents']['kept'] if left is None else left:,} of {documents:,}"


def kept_after_duplicates(root: Path, name: str, meta: Meta) -> int | None:
    """Documents of a corpus without its duplicates; None where they were not looked for, or in another corpus of that name."""
    counts = duplicates_of(root, name, meta)
    return None if counts is None else counts["documents"] - counts["exact"] - counts["near"]


def duplicates_of(root: Path, name: str, meta: Meta) -> Meta | None:
    """What the drop lists' meta.json says of a corpus; None where duplicates were not looked for, or in another corpus of that name."""
    path = duplicates_dir(root) / META_NAME
    if not path.exists():
        return None
    duplicates = read_meta(str(path))
    if duplicates["inputs"].get(name) != meta["content_sha256"]:
        return None
    counts: Meta = duplicates["datasets"][name]
    return counts


def find_corpus(registry: Registry, root: Path, name: str) -> tuple[Path, Meta]:
    """The folder and meta.json of a finished corpus.

    Raises NielsCacheError with the nearest name, with how to make it, or if the folder holds another one.
    """
    directory = corpus_dir(root, name)
    if (directory / META_NAME).exists():
        return directory, check_place(read_meta(str(directory / META_NAME)), directory)
    if name not in registry.pretrain:
        if name in registry.sft:
            raise NielsCacheError(f"{name}: is an SFT data set; only pretrain data sets have a corpus")
        registry.refuse_data_set(str(root), "no data set", name, [*registry.pretrain, *corpus_names(registry, root)])
    source = registry.pretrain[name]
    missing = source.missing_setting()
    if missing is not None:
        raise NielsCacheError(f"{directory}: no corpus yet; {name} needs {missing}")
    if not source.prepare:
        raise NielsCacheError(f'{name}: has no corpus; set prepare = ["clean", "dedup"], or either, in [pretrain.{name}] and build it')
    if not source.enabled:
        raise NielsCacheError(f"{name}: has no corpus, it is switched off; set enabled = true in [pretrain.{name}] and build it")
    raise NielsCacheError(f"{directory}: no corpus yet; make it: niels-cache build-all --only {name}")


def find_drop_lists(registry: Registry, root: Path) -> Meta:
    """meta.json of the drop lists of all data sets. Raises NielsCacheError with how to make them."""
    path = duplicates_dir(root) / META_NAME
    if path.exists():
        return read_meta(str(path))
    if not registry.prepared("dedup"):
        raise NielsCacheError(f'{registry.origin}: no data set is deduplicated; give one prepare = ["clean", "dedup"] and build it')
    raise NielsCacheError(f"{path.parent}: duplicates have not been looked for yet; niels-cache build-all does")


def find_drop_list(registry: Registry, root: Path, name: str) -> Meta:
    """meta.json of the drop lists, where they have that data set's corpus in them as it is now."""
    _, corpus = find_corpus(registry, root, name)
    source = registry.pretrain.get(name)
    if source is not None and "dedup" not in source.prepare:
        raise NielsCacheError(f'{name}: was not deduplicated; add "dedup" to prepare in [pretrain.{name}] and build it')
    duplicates = find_drop_lists(registry, root)
    require_same_corpus(duplicates, name, corpus)
    return duplicates


def require_same_corpus(duplicates: Meta, name: str, corpus: Meta) -> None:
    """The corpus must be the one that the drop lists were made of, or their ordinals name other documents."""
    if duplicates["inputs"].get(name) != corpus["content_sha256"]:
        raise NielsCacheError(f"{name}: duplicates were not looked for in its corpus as it is now; niels-cache build-all does")


def rows_at(paths: Sequence[Path], positions: Iterable[int], columns: Sequence[str]) -> dict[int, dict[str, Any]]:
    """The rows at these positions, counted over all files in order, by position. Raises NielsCacheError for one that is not there."""
    wanted = np.unique(np.fromiter(positions, dtype=np.int64))
    found: dict[int, dict[str, Any]] = {}
    first = 0
    for path in paths:
        with open_documents(path) as parquet:
            for inside, rows in rows_of(parquet, wanted, columns, first=first):
                found.update(zip(inside.tolist(), rows.to_pylist(), strict=True))
            first += parquet.metadata.num_rows
    missing = [position for position in wanted.tolist() if position not in found]
    if missing:
        raise NielsCacheError(
            f"{paths[0].parent if paths else 'no file'}: has {first:,} rows, none of number {missing[0]:,}; make it again"
        )
    return found


def column(path: Path, name: str) -> np.ndarray:
    """One column of a whole file."""
    with open_documents(path) as parquet:
        values: np.ndarray = parquet.read(columns=[name])[name].to_numpy()
    return values


def seeded_choice(count: int, wanted: int, seed: int) -> np.ndarray:
    """int64, ascending: min(wanted, count) different numbers below count, each set of them with the same chance. Costs 8 bytes a number."""
    import torch

    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:wanted]
    chosen: np.ndarray = np.sort(order.numpy())
    return chosen


@dataclass(frozen=True, kw_only=True)
class CorpusSample:
    """`documents`: (ordinal in the corpus, document), ascending. The rest is of all `kept` documents, not of those drawn."""

    documents: list[tuple[int, Document]]
    kept: int
    mean_characters: float
    estimated_tokens: int


def sample_corpus(registry: Registry, name: str, *, root: Path, count: int, seed: int, minus_duplicates: bool = True) -> CorpusSample:
    """`count` documents (or all there are) that stay, every set of them with the same chance; the same for the same seed and corpus.

    `minus_duplicates` False: of the cleaned documents, whether their duplicates have been looked for or not. Raises as `open_prepared`.
    """
    if count < 1:
        raise NielsCacheError(f"a sample has at least 1 document, not {count}")
    prepared = open_prepared(registry, name, root=root, minus_duplicates=minus_duplicates)
    stay = np.flatnonzero(~prepared.gone)
    chosen = stay[seeded_choice(len(stay), count, seed)]
    characters = prepared.meta["characters"]["after"] - (sum(prepared.drops["characters"].values()) if prepared.drops else 0)
    return CorpusSample(
        documents=list(zip(chosen.tolist(), prepared.select(chosen), strict=True)),
        kept=prepared.kept,
        mean_characters=characters / prepared.kept if prepared.kept else 0.0,
        estimated_tokens=estimated_tokens(characters),
    )
