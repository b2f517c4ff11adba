"""The settings that decide a corpus, and the settings that decide the drop lists of several corpora.

Thresholds for duplicates and the split of documents do not belong to a corpus, because they are applied later.
"""

from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.base.fingerprint import Identity, identity_settings
from niels_cache_assets.corpus.layout import CODE_VERSION, DIGESTS_NAME, SIGNATURES_NAME
from niels_cache_assets.dedup.hashing import SIGNATURE_VERSION
from niels_cache_assets.dedup.settings import DedupSettings
from niels_cache_assets.disk.build_lock import path_stamp
from niels_cache_assets.disk.identity import without_keys
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.types import PrepareStep, PretrainSource, Source
from niels_cache_assets.steps.identity import steps_identity
from niels_cache_assets.streaming.decontaminate import decontamination_identity, references_identity
from niels_cache_assets.tokenizer.kinds import TextTokenizer, load_tokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import Meta, read_meta

_APPLIED_LATER = ("train_tokens", "val_tokens", "val_frac", "shuffle_buffer")
_ONLY_CHECKED = {"max_reason_share", "min_language_share"}
_IN_ANY_ORDER = {"skip", "languages", "mask"}

DROP_LISTS_VERSION = "1"  # raise it by hand when the same signatures and settings lead to different dropped documents
HELD_OUT_VERSION = "1"  # raise it by hand when a mixture holds out different documents for the val of its members


def cleaning_identity(registry: Registry, name: str) -> dict[str, object] | None:
    """Return the cleaning settings that decide a data set's documents, or None if the data set is not cleaned."""
    if "clean" not in registry.pretrain[name].prepare:
        return None
    settings = identity_settings(registry.cleaning_of(name), "cleaning", without=_ONLY_CHECKED)
    return {key: sorted(set(value)) if key in _IN_ANY_ORDER else value for key, value in settings.items()}


def signature_identity(registry: Registry, name: str) -> Identity | None:
    """Return the settings that decide signatures, or None without "dedup"."""
    if "dedup" not in registry.pretrain[name].prepare:
        return None
    own = {} if registry.dedup.units == "words" else {"units": registry.dedup.units}
    return {"num_perm": registry.dedup.num_perm, "ngram": registry.dedup.ngram, "version": SIGNATURE_VERSION, **own}


def split_identity(source: PretrainSource, seed: int) -> Identity | None:
    """Return the settings that decide which documents without a split of their own go to val.

    Return None if token budgets decide the split, or if upstream alone decides the split.
    """
    return None if source.seeded_val_frac is None else {"val_frac": source.seeded_val_frac, "seed": seed}


def held_out_identity(registry: Registry, source: Source, *, seed: int) -> Identity:
    """Return the settings that decide which documents a mixture leaves out because they are in the val of a member.

    Fingerprints contain these settings. The documents and val_frac of the members are part of the mixture's revision, so they are not
    repeated here, and neither are the texts of `decontaminate_against`. The result is empty for every source that is not a mixture, and for
    a mixture whose members have none of val_tokens, decontaminate and decontaminate_against.

    Args:
        registry: The configuration.
        source: The table of the data set.
        seed: The seed of the mixture's build.
    """
    members = _members(registry, source)
    rules = {name: rule for name, member in members.items() if (rule := _held_out_rule(member, seed=registry.build.seed))}
    other_seed = {"seed": registry.build.seed} if members and seed != registry.build.seed else {}
    return {"held_out": {"code_version": HELD_OUT_VERSION, "members": rules, **other_seed}} if rules or other_seed else {}


def _members(registry: Registry, source: Source) -> dict[str, PretrainSource]:
    """Return the tables of a mixture's members by name. A source that is no mixture has none."""
    return {name: registry.pretrain[name] for name in getattr(source, "members", ()) if name in registry.pretrain}


def _held_out_rule(member: PretrainSource, *, seed: int) -> dict[str, Any]:
    budget = {"val_tokens": member.val_tokens, "shuffle_buffer": member.shuffle_buffer} if member.val_tokens else {}
    return {
        **budget,
        **decontamination_identity(member.decontaminate, member.decontaminate_threshold, val_is_given=False),
        **references_identity(member, seed=seed),
    }


def needs_tokenizer(registry: Registry, name: str) -> bool:
    """Return whether a data set is a mixture that leaves out the val of a data set with val_tokens. Only a tokenizer can find this val."""
    return any(registry.pretrain[other].val_tokens for other in mixture_dependencies(registry, registry.source(name)))


def mixture_dependencies(registry: Registry, source: Source) -> set[str]:
    """Return the pretrain data sets that a mixture reads: its members, and those that their `decontaminate_against` names."""
    members = _members(registry, source)
    named = {other for member in members.values() for other in member.decontaminate_against}
    return {*members, *(named & registry.pretrain.keys())}


def open_corpus_tokenizer(registry: Registry, name: str, *, root: Path) -> TextTokenizer | None:
    """Return the tokenizer if a data set's corpus depends on it, and otherwise None.

    Raises:
        NielsCacheError: If the tokenizer is not built yet.
    """
    if not needs_tokenizer(registry, name):
        return None
    try:
        return load_tokenizer(registry.tokenizer, root)
    except NielsCacheError as error:
        raise NielsCacheError(
            f"{name}: a member is split by token budgets, so the tokenizer is needed to leave out its val: {error}"
        ) from error


def identity_of_corpus(registry: Registry, name: str, *, revision: str | None, tokenizer_sha256: str | None) -> Identity:
    """Return everything that decides the bytes of a corpus. The revision of an interleave (a mixture of data sets) covers its members.

    Args:
        registry: The configuration.
        name: The name of the data set.
        revision: The revision of the source.
        tokenizer_sha256: The sha256 of the model that `open_corpus_tokenizer` returns. None if `open_corpus_tokenizer` returns None.
    """
    source = registry.pretrain[name]
    # The tables of a mixture's members, because changed tables change the splits, and the revision is not requested again.
    members = {name: member.identity() for name, member in _members(registry, source).items()}
    of_members = {"members": members, **held_out_identity(registry, source, seed=registry.build.seed)} if members else {}
    return {
        "source": without_keys(source.identity(), *_APPLIED_LATER),
        "revision": revision,
        "seed": registry.build.seed,
        "prepare": source.prepare_of_corpus,
        "cleaning": cleaning_identity(registry, name),
        "signatures": signature_identity(registry, name),
        "code_version": CODE_VERSION,
        **of_members,
        **({"tokenizer_sha256": tokenizer_sha256} if tokenizer_sha256 is not None else {}),
        **({"steps": steps_identity(source, f"{registry.origin}: [pretrain.{name}] steps")} if source.steps else {}),
    }


def require_prepared(registry: Registry, name: str) -> PretrainSource:
    """Return the table of a data set with a corpus.

    Raises:
        NielsCacheError: If the name is unknown, or the data set has no corpus.
    """
    if name not in registry.pretrain:
        raise_unknown_choice(registry.origin, "no pretrain data set", name, registry.pretrain)
    source = registry.pretrain[name]
    missing = source.missing_setting()
    if missing is not None:
        raise NielsCacheError(f"{registry.origin}: [pretrain.{name}] cannot be built: it needs {missing}")
    if not source.has_corpus:
        raise NielsCacheError(f'{registry.origin}: [pretrain.{name}] has no corpus; set prepare = ["clean", "dedup"] to make one')
    return source


def require_unchanged(directory: Path, meta: Meta) -> None:
    """Raise NielsCacheError if the meta.json in the folder differs from `meta`, which was read from this folder earlier.

    A meta.json with the inode and the time of the last check is not read again. A corpus may have thousands of files, each of which is
    checked, and its meta.json lists all of them.

    Raises:
        NielsCacheError: If the meta.json differs or cannot be read.
    """
    path = directory / META_NAME
    stamp = path_stamp(path)  # None if it is missing; `read_meta` then says why
    sha256 = read_meta(path)["meta_sha256"] if stamp is None else _recorded_sha256(str(path), stamp)
    if sha256 != meta["meta_sha256"]:
        raise NielsCacheError(f"{directory}: was replaced while it was read; run this again")


@lru_cache(maxsize=16)
def _recorded_sha256(path: str, stamp: tuple[int, int]) -> str:
    """Return the hash in a meta.json.

    Args:
        path: The path of the meta.json.
        stamp: Numbers of the file that change if it is replaced.
    """
    return str(read_meta(path)["meta_sha256"])


def drop_lists_identity(registry: Registry, corpora: Mapping[str, Meta], missing: Collection[str]) -> Identity:
    """Return everything that decides the drop lists (lists of duplicates) of these corpora, for meta.json.

    Args:
        registry: The configuration.
        corpora: The meta.json of each corpus, by the name of its data set.
        missing: The data sets without a corpus.
    """
    return {
        **dedup_identity(registry.dedup),
        "order": [*corpora],
        "missing": sorted(missing),
        "inputs": {name: meta["content_sha256"] for name, meta in corpora.items()},
        "signatures": {name: [meta["files"][file]["sha256"] for file in (DIGESTS_NAME, SIGNATURES_NAME)] for name, meta in corpora.items()},
        "splits": {name: split_identity(registry.pretrain[name], registry.build.seed) for name in corpora},
    }


def dedup_order(registry: Registry, step: PrepareStep = "dedup") -> list[str]:
    """Return the data sets with this step in the order of comparison: by [dedup] priority, then by table order. The first copy is kept."""
    names = registry.prepared(step)
    first = (name for name in registry.dedup.priority if name in names)
    return [*dict.fromkeys((*first, *names))]


def dedup_identity(dedup: DedupSettings) -> Identity:
    """Return the `settings` of [dedup], and the numbers of `bands` and `rows`.

    If [dedup] does not set both numbers, they are computed, for high recall if found pairs are verified. `dedup_order` gives the order of
    the corpora. `ranges` changes no result.
    """
    from niels_cache_assets.dedup.bands import bands_for_recall, choose_bands

    choose = bands_for_recall if dedup.verify == "jaccard" else choose_bands
    bands, rows = (dedup.bands, dedup.rows) if dedup.bands and dedup.rows else choose(dedup.threshold, dedup.num_perm)
    return {"settings": identity_settings(dedup, "dedup", without={"bands", "rows", "priority", "ranges"}), "bands": bands, "rows": rows}


def first_difference(meta: Meta, required: dict[str, Any]) -> str:
    """Return the first difference between the drop lists and the configuration, as the end of a sentence.

    The sentence begins "the duplicates were found".
    """
    if any(meta[key] != required[key] for key in ("settings", "bands", "rows")):
        return "with other settings of [dedup]"
    for name in required["order"]:
        if any(meta[key].get(name) != required[key][name] for key in ("inputs", "signatures")):
            return f"before the present corpus of {name!r} was made"
    if meta["order"] != required["order"]:
        return f"among {', '.join(meta['order'])} in this order, not {', '.join(required['order'])}"
    for name in required["order"]:
        if meta["splits"][name] != required["splits"][name]:
            return f"for splits of {name!r} by {meta['splits'][name]}, not {required['splits'][name]}"
    if meta["missing"] != required["missing"]:
        return f"without {', '.join(meta['missing']) or 'any other data set'}, now without {', '.join(required['missing']) or 'none'}"
    return "by another version of this program"
