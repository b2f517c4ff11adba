"""The check whether the next build will resume an unfinished build, by its journal and by files on this machine.

`niels-cache status` shows the result for each data set. The check compares the journal of the unfinished build with the journal that a
build of the same revision would write now. It does not ask upstream, so it does not notice a changed source. Local files of up to
256 MB are an exception: the check hashes them. The check costs as much as the start of a build, but only for data sets with an unfinished
build.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from niels_cache_assets.artifacts.cache_identity import is_prepared
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.prepared_corpora import with_corpus_readers
from niels_cache_assets.artifacts.state import CacheState
from niels_cache_assets.disk.identity import differences
from niels_cache_assets.disk.journal import JournalRecord, partial_directory, read_journal
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.types import Siblings, Source
from niels_cache_assets.tokenizer.kinds import load_tokenizer
from niels_cache_runtime.errors import NielsCacheError

_HASHED_BYTES = 1 << 28
_OTHER_BUILD = "it was made by another version of niels-cache, or by a run with settings of its own"


@dataclass(frozen=True, kw_only=True)
class UnfinishedBuild:
    """An interrupted build.

    Attributes:
        stale: Why the next build does not resume this build. None if it does.
        is_certain: Whether `stale` is certain. A change of upstream does not count here, because only the next build finds out about it.
    """

    stale: str | None
    is_certain: bool = True


_UNCERTAIN = UnfinishedBuild(stale=None, is_certain=False)


def unfinished_build(registry: Registry, cache_state: CacheState, *, root: Path) -> UnfinishedBuild | None:
    """Return the unfinished build of the data set, corpus or drop lists in `cache_state`, or None."""
    try:
        recorded = read_journal(partial_directory(cache_state.directory))
    except OSError:
        return None
    if recorded is None:
        return None
    if cache_state.state == "disabled" or cache_state.condition == "off":
        return UnfinishedBuild(stale="it is switched off or not configured now")
    try:
        return _compare_with_journal(registry, cache_state, recorded, root)
    except NielsCacheError:  # an input is missing now: the tokenizer, a corpus or files
        return _UNCERTAIN


def _compare_with_journal(registry: Registry, cache_state: CacheState, recorded: JournalRecord, root: Path) -> UnfinishedBuild:
    from niels_cache_assets.tokenizer.encoder import resume_problem

    found = graph(registry, root)
    key = cache_state.key
    is_search = key == "corpus/duplicates"
    if not is_search and key not in found.keys:
        return UnfinishedBuild(stale="it is not in this configuration")
    revision = None
    if not is_search:
        if recorded.made_of is None:  # a builder that was called directly
            return _UNCERTAIN
        source = registry.source(cache_state.name.removeprefix("corpus/"))
        reads_corpus = cache_state.kind != "corpus" and is_prepared(source)
        current = None if reads_corpus else revision_on_this_machine(source, with_corpus_readers(registry, root))
        revision = recorded.made_of.get("revision") if current is None else current[0]
    journal = found[key].journal(revision)
    if recorded.fingerprint == journal.fingerprint:
        tokenizer = None if cache_state.kind == "corpus" else load_tokenizer(registry.tokenizer, root)
        return UnfinishedBuild(stale=resume_problem(recorded.notes, tokenizer))
    return UnfinishedBuild(stale="; ".join(differences(recorded.made_of or {}, journal.identity or {})) or _OTHER_BUILD)


def revision_on_this_machine(source: Source, siblings: Siblings) -> tuple[str | None] | None:
    """Return the current revision in a tuple, or None if finding the revision takes the network or much time."""
    if getattr(source, "members", None) or getattr(source, "decontaminate_against", ()):
        return None
    urls = [file.url for file in source.input_files()]
    if any("://" in url for url in urls) or (isinstance(source, HubData) and not urls):
        return None
    if sum(os.path.getsize(url) for url in urls if os.path.isfile(url)) > _HASHED_BYTES:
        return None
    return (source.revision(siblings),)
