"""Which settings decide a corpus, and whether the corpus on disk is the one that the configuration asks for.

Costs one small read; upstream is not asked. Thresholds of duplicates and how documents are split are no part of it: they are applied later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from niels_cache_assets.corpus.layout import CODE_VERSION, corpus_dir
from niels_cache_assets.dedup.hashing import SIGNATURE_VERSION
from niels_cache_assets.fingerprint import fingerprint_of
from niels_cache_assets.registry import Registry, refuse_choice
from niels_cache_assets.sources.base import PretrainSource
from niels_cache_assets.streaming.directories import finished_meta
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import META_NAME
from niels_cache_runtime.meta import Meta, read_meta

_APPLIED_LATER = ("train_tokens", "val_tokens", "val_frac")
_ONLY_CHECKED = {"max_reason_share", "min_language_share"}
_IN_ANY_ORDER = {"skip", "languages"}


def cleaning_identity(registry: Registry, name: str) -> dict[str, object] | None:
    """The cleaning settings that decide a data set's documents; None where it is not cleaned."""
    if "clean" not in registry.pretrain[name].prepare:
        return None
    settings = registry.cleaning_of(name).model_dump(mode="json", exclude=_ONLY_CHECKED)
    return {key: sorted(set(value)) if key in _IN_ANY_ORDER else value for key, value in settings.items()}


def signature_identity(registry: Registry, name: str) -> dict[str, Any] | None:
    """What decides signatures; None where duplicates are not looked for."""
    if "dedup" not in registry.pretrain[name].prepare:
        return None
    return {"num_perm": registry.dedup.num_perm, "ngram": registry.dedup.ngram, "version": SIGNATURE_VERSION}


def split_identity(source: PretrainSource, seed: int) -> dict[str, Any] | None:
    """What decides which documents without a split of their own are val; None where token budgets, or upstream alone, decide."""
    return None if source.seeded_val_frac is None else {"val_frac": source.seeded_val_frac, "seed": seed}


def corpus_fingerprint(registry: Registry, name: str, *, revision: str | None) -> str:
    """sha256 over everything that decides a corpus's bytes. An interleave's members are in its revision."""
    source = registry.pretrain[name]
    identity = source.identity()
    for key in _APPLIED_LATER if source.shuffles_itself else (*_APPLIED_LATER, "shuffle_buffer"):
        identity.pop(key, None)
    return fingerprint_of(
        {
            "source": identity,
            "revision": revision,
            "seed": registry.build.seed,
            "prepare": sorted(source.prepare),
            "cleaning": cleaning_identity(registry, name),
            "signatures": signature_identity(registry, name),
            "code_version": CODE_VERSION,
        }
    )


def require_prepared(registry: Registry, name: str) -> PretrainSource:
    """The table of a data set that has a corpus. Raises NielsCacheError for an unknown name, and for one without `prepare`."""
    if name not in registry.pretrain:
        refuse_choice(registry.origin, "no pretrain data set", name, registry.pretrain)
    source = registry.pretrain[name]
    missing = source.missing_setting()
    if missing is not None:
        raise NielsCacheError(f"{registry.origin}: [pretrain.{name}] cannot be built: it needs {missing}")
    if not source.prepare:
        raise NielsCacheError(f'{registry.origin}: [pretrain.{name}] has no corpus; set prepare = ["clean", "dedup"] to make one')
    return source


def current_corpus(registry: Registry, name: str, *, root: Path) -> Meta:
    """meta.json of a finished corpus that the configuration asks for. Raises NielsCacheError with what to materialize where there is none.

    "Asks for" is told at the revision that the corpus has: a newer upstream is `prepare_corpus`'s to see.
    """
    source = require_prepared(registry, name)
    directory = corpus_dir(root, name)
    advice = f"materialize corpus/documents of {name!r} first (niels-cache build-all does)"
    if not source.enabled:
        advice = f"{name!r} is switched off: set enabled = true, then {advice}"
    meta = finished_meta(directory)
    if meta is None:
        raise NielsCacheError(f"{directory}: no finished corpus of {name!r} yet; {advice}")
    if meta["fingerprint"] != corpus_fingerprint(registry, name, revision=meta["dataset_revision"]):
        raise NielsCacheError(f"{directory}: the corpus of {name!r} was made with other settings; {advice}")
    return meta


def require_unchanged(directory: Path, meta: Meta) -> None:
    """Raises NielsCacheError where the folder has another meta.json than this one, which was read from it before."""
    if read_meta(str(directory / META_NAME))["meta_sha256"] != meta["meta_sha256"]:
        raise NielsCacheError(f"{directory}: was replaced while it was read; run this again")
