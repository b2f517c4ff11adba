"""Opening a prepared data set: its corpus and drop list, if they are what the configuration asks for.

Costs two small reads and one for each data set with "dedup". What is read of it, and how, is prepared.py's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.config.tables import BuildSettings
from niels_cache_assets.corpus import drop_lists
from niels_cache_assets.corpus.drop_lists import dedup_order, drop_lists_identity, what_is_otherwise
from niels_cache_assets.corpus.identity import corpus_fingerprint, corpus_tokenizer, require_prepared, split_identity
from niels_cache_assets.corpus.layout import corpus_dir, duplicates_dir
from niels_cache_assets.corpus.prepared import PreparedCorpus, PreparedMember
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.documents import Document
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.place import check_place

_ADVICE = "materialize corpus/duplicates first (niels-cache build-all does)"


def open_prepared(
    registry: Registry,
    name: str,
    *,
    root: Path,
    source: PretrainSource | None = None,
    build: BuildSettings | None = None,
    minus_duplicates: bool = True,
) -> PreparedCorpus:
    """The prepared data set as the configuration asks for it; `source` and `build`: its table and [build] for one run.

    Raises NielsCacheError, which says what to materialize, where its corpus or (with "dedup") its drop list is missing or out of date.
    """
    source, build = source or registry.pretrain[name], build or registry.build
    meta = current_corpus(registry, name, root=root)
    looks_for_duplicates = "dedup" in source.prepare and minus_duplicates
    return PreparedCorpus(
        name=name,
        directory=corpus_dir(root, name),
        meta=meta,
        source=source,
        seed=build.seed,
        duplicates=_current_drop_lists(registry, name, meta, source, build.seed, root=root) if looks_for_duplicates else None,
        duplicates_directory=duplicates_dir(root),
    )


def prepared_documents(registry: Registry, name: str, *, root: Path) -> Iterator[list[Document]]:
    """The documents of a prepared data set that stay, with their split, in batches. Raises as `open_prepared` does."""
    return open_prepared(registry, name, root=root).documents()


def with_prepared(registry: Registry, root: Path) -> dict[str, PretrainSource]:
    """All pretrain tables by name, those with a corpus replaced by what reads it: the `siblings` of a StreamContext."""
    return {
        name: PreparedMember.of(partial(open_prepared, registry, name, root=root)) if source.prepare else source
        for name, source in registry.pretrain.items()
    }


def current_corpus(registry: Registry, name: str, *, root: Path) -> Meta:
    """meta.json of a corpus, if it is what would be made at the revision that it has. A newer upstream is for a build to see.

    Raises NielsCacheError, which says what to materialize.
    """
    source, directory = require_prepared(registry, name), corpus_dir(root, name)
    advice = f"materialize corpus/documents of {name!r} first (niels-cache build-all does)"
    if not source.enabled:
        advice = f"{name!r} is switched off: set enabled = true, then {advice}"
    meta = finished_corpus(name, root=root)
    if meta is None:
        raise NielsCacheError(f"{directory}: no finished corpus of {name!r} yet; {advice}")
    tokenizer = corpus_tokenizer(registry, name, root=root)
    tokenizer_sha256 = tokenizer.model_sha256 if tokenizer else None
    if meta.get("fingerprint") != corpus_fingerprint(registry, name, revision=meta["dataset_revision"], tokenizer_sha256=tokenizer_sha256):
        raise NielsCacheError(f"{directory}: the corpus of {name!r} was made with other settings or another code version; {advice}")
    return meta


def finished_corpus(name: str, *, root: Path) -> Meta | None:
    """meta.json of a whole corpus, however it was made. Raises NielsCacheError if the folder holds another one."""
    meta = finished_meta(corpus_dir(root, name))
    return None if meta is None else check_place(meta, corpus_dir(root, name))


@dataclass(frozen=True, kw_only=True)
class WantedDropLists:
    """What the configuration and the corpora on disk ask for.

    `corpora`: meta.json of each, in the order in which the first one wins. `missing`: data sets without a current corpus, and why.
    `identity`: what decides the lists, for their meta.json.
    """

    corpora: dict[str, Meta]
    missing: dict[str, str]
    identity: dict[str, Any]

    @property
    def made_of(self) -> dict[str, Any]:
        """What decides the bytes of the lists, for their fingerprint."""
        return {**self.identity, "code_version": drop_lists.CODE_VERSION}


def wanted_drop_lists(registry: Registry, *, root: Path) -> WantedDropLists:
    """What is asked for now. It costs one small read for each data set; no document and no signature is read."""
    corpora: dict[str, Meta] = {}
    missing: dict[str, str] = {}
    for name in dedup_order(registry):
        try:
            corpora[name] = current_corpus(registry, name, root=root)
        except NielsCacheError as error:
            missing[name] = str(error)
    return WantedDropLists(corpora=corpora, missing=missing, identity=drop_lists_identity(registry, corpora, missing))


def _current_drop_lists(registry: Registry, name: str, corpus: Meta, source: PretrainSource, seed: int, *, root: Path) -> Meta:
    """meta.json of the drop lists, if a search would make them now, of this corpus of `name`, split by `source` and `seed`.

    Raises NielsCacheError, which says what is otherwise and what to materialize.
    """
    folder, splits = duplicates_dir(root), split_identity(source, seed)
    meta = finished_meta(folder)
    if meta is None:
        raise NielsCacheError(f"{folder}: duplicates have not been looked for yet; {_ADVICE}")
    if meta["inputs"].get(name) != corpus["content_sha256"]:
        raise NielsCacheError(f"{folder}: the duplicates were found before the corpus of {name!r} was made as it is; {_ADVICE}")
    wanted = wanted_drop_lists(registry, root=root)
    if meta.get("fingerprint") != fingerprint_of(wanted.made_of):
        raise NielsCacheError(f"{folder}: the duplicates were found {what_is_otherwise(meta, wanted.identity)}; {_ADVICE}")
    if meta["splits"][name] != splits:
        raise NielsCacheError(
            f"{folder}: the duplicates of {name!r} were found for splits by {meta['splits'][name]}, not {splits}; "
            f"set seed and val_frac in the configuration, not for one run, and {_ADVICE}"
        )
    return meta
