"""Documents of train whose text is also in the val of another data set, by the hashes in the lineage of pretrain caches.

Cost: a read of 8 bytes per document, and of no token. Memory: 24 bytes for each document of val, and a row group of lineage. A billion
documents take minutes. Only equal canonical texts count, and no empty texts. So this promises less than facts/disjoint.py, which also finds
near copies in the train and val of one cache. A cache that was made from tokens has no hashes, and is not checked.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_cache_assets.dedup.signatures import hash_canonical
from niels_cache_assets.dedup.text_set import HashIndex
from niels_cache_assets.disk.table_file import read_text_hashes
from niels_cache_assets.facts.lineage import Lineage, read_lineage
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import documents_name


@dataclass(frozen=True, kw_only=True)
class SharedText:
    """How many documents in the train of one data set have the text of a document in the val of another.

    Attributes:
        train: Data set of the train split.
        val: Data set of the val split.
        documents: Number of documents.
        first: The first of them in train.
    """

    train: str
    val: str
    documents: int
    first: Lineage


@dataclass(frozen=True, kw_only=True)
class SharedTexts:
    """The result for several caches.

    Attributes:
        found: A result for each pair of caches that share texts.
        not_checked: Names of the caches whose train or val has no hashes, or broken lineage.
    """

    found: tuple[SharedText, ...] = ()
    not_checked: tuple[str, ...] = ()


def shared_texts(folders: Mapping[str, Path], *, trains: Collection[str] | None = None) -> SharedTexts:
    """Compare the train of each pretrain cache with the val of every other one.

    Args:
        folders: Folders of the caches by name.
        trains: Names of the caches whose train is compared; by default all.
    """
    names = [*folders]
    found, not_checked = list[SharedText](), list[str]()
    hashes, owners = [np.empty(0, np.int64)], [np.empty(0, np.int64)]  # of the texts of val; an owner is an index into `names`
    for owner, name in enumerate(names):
        try:
            own = np.unique(np.concatenate([hashes[0], *read_text_hashes(folders[name] / documents_name("val"))]))
        except NielsCacheError:  # it has no hashes, or is damaged
            not_checked.append(name)
            continue
        hashes.append(own[own != hash_canonical([""])[0]])
        owners.append(np.full(len(hashes[-1]), owner, np.int64))
    index = HashIndex(np.concatenate(hashes), np.concatenate(owners))
    for name in names if trains is None else trains:
        try:
            found += _shared(name, folders[name], index, names)
        except NielsCacheError:
            not_checked.append(name)
    return SharedTexts(found=tuple(found), not_checked=tuple(dict.fromkeys(not_checked)))


def advice_against(registry: Registry, name: str, others: Sequence[str]) -> str | None:
    """Return what keeps documents out of the train of `name` that are in the val of other data sets, or None if no key does."""
    source = registry.pretrain[name]
    known = [other for other in others if other in registry.pretrain]
    allowed = [other for other in known if not getattr(registry.pretrain[other], "members", None)]
    if allowed and not source.is_in_parts:  # decontaminate_against takes neither parts nor mixtures
        return f"decontaminate_against = {json.dumps(allowed)} keeps them out"
    return '"dedup" in `prepare` of both data sets keeps them out' if source.has_corpus else None


def _shared(name: str, folder: Path, vals: HashIndex, names: Sequence[str]) -> Iterator[SharedText]:
    """Yield for each other cache how many documents of train have a hash of its val."""
    counts, first, start = np.zeros(len(names), np.int64), dict[int, int](), 0
    path = folder / documents_name("train")
    for train in read_text_hashes(path):
        rows, owners = vals.find(train)
        counts += np.bincount(owners, minlength=len(counts))
        for owner, at in zip(*(column.tolist() for column in np.unique(owners, return_index=True)), strict=True):
            if names[owner] != name:
                first.setdefault(owner, start + int(rows[at]))
        start += len(train)
    lineage = read_lineage(path, first.values()) if first else {}
    for owner, ordinal in sorted(first.items()):
        yield SharedText(train=name, val=names[owner], documents=int(counts[owner]), first=lineage[ordinal])
