"""What the commands know of corpora: where one lies, how it and its duplicates stand, and what to do where they are missing.

Costs a small read or two per data set; upstreams are not asked.
"""

from __future__ import annotations

from pathlib import Path

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.state import unlisted_corpus_state
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.corpus.layout import corpus_dir, duplicates_dir
from niels_cache_assets.corpus.reading import open_prepared
from niels_cache_assets.corpus.report import documents_given
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
