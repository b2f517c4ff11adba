"""The note of `status` about a trained tokenizer. The note names the data sets in the training sample, and the data sets that were left
out.

The note also tells which of the data sets that were left out can be read now. To find out, this module reads meta.json files. For a data
set of local files, it may also read the first document. No request goes to the hub.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from niels_cache_assets.config.registry import Registry
from niels_cache_assets.corpus.reading import open_prepared
from niels_cache_assets.corpus.tokenizer_sample import raw_texts
from niels_cache_assets.sources.types import PATH_KEYS, StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, dataset_dir
from niels_cache_runtime.format.meta import Meta, read_meta

_ADVICE = "niels-cache build-all --only tokenizer --force trains it again, and every cache is built again with it"


def training_note(registry: Registry, root: Path, meta: Meta) -> str | None:
    """Return a text like `trained on notes (prepared), web; without chats, which can be read now: ...`. Return None for an imported
    tokenizer.
    """
    trained_on = meta.get("trained_on")
    if not isinstance(trained_on, dict):
        return None
    sources, skipped, read_as = (_table(trained_on, key) for key in ("sources", "skipped", "read_as"))
    said = [f"trained on {', '.join(name + _how_it_was_read(registry, name, read_as) for name in sources)}"] if sources else []
    lacking = {name: f"the rest of {name}" if sources.get(name) else name for name in skipped}
    back = [name for name in lacking if _can_be_read(registry, root, name, meta)]
    gone = [name for name in sources if name not in registry.pretrain and name not in registry.sft]
    if gone:
        said.append(f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} not configured any more, which changes nothing: {_ADVICE}")
    still = [words for name, words in lacking.items() if name not in back]
    if still:
        said.append(f"without {', '.join(still)}, which could not be read")
    if back:
        said.append(f"without {', '.join(lacking[name] for name in back)}, which can be read now: {_ADVICE}")
    return "; ".join(said) or None


def _table(trained_on: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a table in `trained_on`, or an empty table if the value is not a table. No other code checks the form of this value."""
    value = trained_on.get(key)
    return value if isinstance(value, dict) else {}


def _how_it_was_read(registry: Registry, name: str, read_as: dict[str, Any]) -> str:
    """Return ` (prepared)` or a similar note. Return "" for a data set without `prepare`, because only its raw text can be read."""
    words = {"prepared": " (prepared)", "members": " (mixed from its members)"}
    return words.get(str(read_as.get(name)), " (raw text)" if name in registry.prepared() else "")


def _can_be_read(registry: Registry, root: Path, name: str, meta: Meta) -> bool:
    """Return whether something on this machine shows that the data set can be read.

    Such evidence is a cache that was built with this tokenizer, a corpus, or local files. Local files do not count for a source that failed
    after its first documents. Such a source would fail again, and reading its first document would not show this.
    """
    if name not in [*registry.partition_keys("pretrain"), *registry.partition_keys("sft")]:
        return False
    return (
        _was_built_since(registry, root, name, meta)
        or _has_corpus(registry, root, name)
        or (name not in _table(meta["trained_on"], "sources") and _gives_text(registry, name))
    )


def _was_built_since(registry: Registry, root: Path, name: str, meta: Meta) -> bool:
    try:
        built = read_meta(str(dataset_dir(root, registry.family_of(name), name) / META_NAME))
    except NielsCacheError:
        return False
    return bool(built.get("built")) and built.get("tokenizer_sha256") == meta["sha256"]


def _has_corpus(registry: Registry, root: Path, name: str) -> bool:
    if name not in registry.prepared():
        return False
    try:
        open_prepared(registry, name, root=root, minus_duplicates=False)
    except NielsCacheError:
        return False
    return True


def _gives_text(registry: Registry, name: str) -> bool:
    """Return whether the files of the data set are on this machine and begin with readable text."""
    source = registry.source(name)
    if "://" in str([getattr(source, key, None) for key in PATH_KEYS]):
        return False
    try:
        return bool(source.input_files()) and next(raw_texts(source, StreamContext(seed=registry.build.seed)), None) is not None
    except Exception:  # a source may raise any exception; then it cannot be read now
        return False
