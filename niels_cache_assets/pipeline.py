"""From a registry entry to a cache: resolve settings and revision, decide whether a build is needed, stream it through a builder.

A data set with `prepare` is read from its corpus, minus its drop list, and not from its source: what upstream has now is for
prepare_corpus to ask.
Plain Python for notebooks and for the Dagster assets alike; progress and log lines go to the callbacks that the caller gives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from niels_cache_assets.budgets import budget_rule
from niels_cache_assets.build_cache import (
    OnProgress,
    Provenance,
    Resume,
    build_pretrain_cache,
    build_sft_cache,
    write_unbuilt_cache,
)
from niels_cache_assets.build_cache.resuming import JournalFingerprint
from niels_cache_assets.cache_identity import cache_identity, is_prepared, val_may_come_late
from niels_cache_assets.corpus.member import with_prepared
from niels_cache_assets.corpus.reading import PreparedCorpus, open_prepared
from niels_cache_assets.documents import Document
from niels_cache_assets.fingerprint import fingerprint_of
from niels_cache_assets.held_out import HeldOut
from niels_cache_assets.registry import BuildSettings, Registry, apply_run_settings
from niels_cache_assets.sources.base import PretrainSource, SftSource, Source, SourceUnavailable, StreamContext
from niels_cache_assets.sources.encodings import decoding_warning
from niels_cache_assets.sources.network import briefly, patient
from niels_cache_assets.streaming.directories import finished_meta, sweep_beside_hit
from niels_cache_assets.streaming.feed import Feed, ValShare
from niels_cache_assets.streaming.space import Need, file_bytes, pretrain_need, require_room, sft_need, telling
from niels_cache_assets.streaming.splits import UNLIMITED
from niels_cache_assets.tokenization import SentencePieceTokenizer, load_tokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.foreign_meta import ForeignMetaError, is_foreign
from niels_cache_runtime.format.layout import META_NAME, Family, dataset_dir
from niels_cache_runtime.format.meta import Meta, load_meta, read_meta
from niels_cache_runtime.format.place import check_place, place_problem

Log = Callable[[str], None]
State = Literal["built", "cache_hit", "disabled"]


@dataclass(frozen=True, kw_only=True)
class BuildOutcome:
    """What happened to one data set.

    `warning` is set where an old cache was kept because its upstream could not be reached, and where bytes of files were replaced or
    documents are no text.

    seconds: of this run. resumed_tokens: those of its tokens that an earlier, stopped build had made already.
    """

    family: Family
    name: str
    state: State
    meta: Meta
    directory: Path
    seconds: float
    warning: str | None = None
    resumed_tokens: int = 0


@patient
def build_dataset(
    registry: Registry,
    name: str,
    *,
    root: Path,
    run_settings: Mapping[str, Any] | None = None,
    force: bool = False,
    progress: OnProgress | None = None,
    log: Log = lambda message: None,
    before_streaming: Callable[[], None] = lambda: None,
) -> BuildOutcome:
    """Build one data set under `root`, or find that the cache there is what a build would make.

    `run_settings` replace keys of the data set's table or of [build] (seed, shard_bytes, threads) for this run; None means the registry's
    value. `before_streaming` is called once it is certain that the source must be read; it may wait, and raise LookAgain (directories.py).
    Raises NielsCacheError, also if the folder holds another data set and `force` is off; the last good cache then stays.
    """
    started = time.monotonic()
    family = registry.family_of(name)
    build, source = _resolve(registry, name, run_settings or {})
    missing = source.missing_setting()
    if missing is not None:
        raise NielsCacheError(f"{registry.origin}: [{family}.{name}] cannot be built: it needs {missing}")
    directory = dataset_dir(root, family, name)
    prepared: PreparedCorpus | None = None

    def outcome(state: State, warning: str | None = None, resumed_tokens: int = 0) -> BuildOutcome:
        meta = read_meta(str(directory / META_NAME))
        if state == "built" and prepared is None:  # of a corpus it was said when that was made
            warning = decoding_warning(meta)
        return BuildOutcome(
            family=family,
            name=name,
            state=state,
            meta=meta,
            directory=directory,
            seconds=time.monotonic() - started,
            warning=warning,
            resumed_tokens=resumed_tokens,
        )

    def provenance(revision: str | None, fingerprint: str) -> Provenance:
        return _provenance(name, source, build, revision, fingerprint)

    old = finished_meta(directory)
    if old is not None and old.get("built") and not force:
        check_place(old, directory)  # a folder that was exchanged or copied: neither a hit nor to be replaced
    foreign = _is_of_another_program(directory)
    if not source.enabled:
        fingerprint = fingerprint_of({"enabled": False, "source": source.source})
        if (foreign or (old is not None and old.get("built"))) and not force:
            return outcome("disabled", warning=f"{name} is switched off; its finished cache is kept as it is (force replaces it)")
        is_here = old is not None and place_problem(old, family=family, name=name) is None
        if force or old is None or not is_here or old.get("fingerprint") != fingerprint:
            write_unbuilt_cache(str(directory), family=family, provenance=provenance(None, fingerprint))
        return outcome("disabled")

    if foreign and not force:
        raise NielsCacheError(f"{directory / META_NAME}: another program made this cache; move its folder away, or replace it with --force")
    tokenizer = load_tokenizer(registry, root)
    tokenizer_sha256 = tokenizer.model_sha256
    siblings = with_prepared(registry, root)
    prepared = open_prepared(registry, name, root=root, source=source, build=build) if is_prepared(source) else None

    def identity_at(revision: str | None) -> dict[str, Any]:
        return cache_identity(
            registry, source, build, tokenizer_sha256=tokenizer_sha256, revision=revision, siblings=siblings, prepared=prepared
        )

    def fingerprint_at(revision: str | None) -> str:
        return fingerprint_of(identity_at(revision))

    try:
        with briefly(bool(old and old.get("built") and not force)):
            revision = prepared.meta["dataset_revision"] if prepared else source.revision(siblings)
    except SourceUnavailable as error:
        if not force and old is not None and old.get("built") and old["fingerprint"] == fingerprint_at(old["dataset_revision"]):
            return outcome("cache_hit", warning=f"{error}; kept the finished cache of revision {old['dataset_revision']}")
        raise
    fingerprint = fingerprint_at(revision)
    if not force and old is not None and old.get("fingerprint") == fingerprint:
        sweep_beside_hit(directory)
        return outcome("cache_hit")
    before_streaming()
    with HeldOut(registry, root=root, siblings=siblings, tokenizer=tokenizer) as held_out:
        context = StreamContext(seed=build.seed, revision=revision, log=log, siblings=siblings, held_out=held_out)
        resume = Resume(fingerprint=fingerprint, log=log, afresh=force, made_of=identity_at(revision))
        run = _Run(directory, tokenizer, build, context, provenance(revision, fingerprint), progress, resume)
        need = _need(source, prepared)
        require_room(directory, need, log=log)
        with telling(need):
            if isinstance(source, PretrainSource):
                return outcome("built", resumed_tokens=_build_pretrain(source, run, prepared))
            assert isinstance(source, SftSource)
            return outcome("built", resumed_tokens=_build_sft(source, run))


def journal_fingerprint(registry: Registry, name: str, *, root: Path, revision: str | None) -> JournalFingerprint:
    """What the journal of a build of this data set would have now, if upstream is at `revision`. Asks nothing of upstream, writes nothing.

    Raises NielsCacheError if there is no tokenizer, or no corpus that is to be read.
    """
    source, build = registry.source(name), registry.build
    directory, tokenizer, siblings = dataset_dir(root, source.family, name), load_tokenizer(registry, root), with_prepared(registry, root)
    prepared = open_prepared(registry, name, root=root, source=source, build=build) if is_prepared(source) else None
    if prepared is not None:
        revision = prepared.meta["dataset_revision"]
    identity = cache_identity(
        registry, source, build, tokenizer_sha256=tokenizer.model_sha256, revision=revision, siblings=siblings, prepared=prepared
    )
    fingerprint = fingerprint_of(identity)
    context = StreamContext(seed=build.seed, revision=revision, siblings=siblings)
    resume = Resume(fingerprint=fingerprint, made_of=identity, only_asked=True)
    run = _Run(directory, tokenizer, build, context, _provenance(name, source, build, revision, fingerprint), None, resume)
    try:
        if isinstance(source, PretrainSource):
            _build_pretrain(source, run, prepared)
        else:
            assert isinstance(source, SftSource)
            _build_sft(source, run)
    except JournalFingerprint as answer:
        return answer
    raise AssertionError("the builder answers before it builds")


@dataclass(frozen=True)
class _Run:
    directory: Path
    tokenizer: SentencePieceTokenizer
    build: BuildSettings
    context: StreamContext
    provenance: Provenance
    progress: OnProgress | None
    resume: Resume


def _resolve(registry: Registry, name: str, run_settings: Mapping[str, Any]) -> tuple[BuildSettings, Source]:
    """[build] and the data set's table with this run's settings in them."""
    shared = {key: value for key, value in run_settings.items() if key in BuildSettings.model_fields}
    own = {key: value for key, value in run_settings.items() if key not in BuildSettings.model_fields}
    return apply_run_settings(registry.build, shared), apply_run_settings(registry.source(name), own)


def _need(source: Source, prepared: PreparedCorpus | None) -> Need | None:
    text_bytes = prepared.meta["bytes"]["after"] if prepared else file_bytes(getattr(source, "files", None), source.endings)
    if not isinstance(source, PretrainSource):
        return sft_need(text_bytes)
    exact = prepared is not None and prepared.duplicates is None  # how much text a drop list takes is not known
    return pretrain_need(train_tokens=source.train_tokens, val_tokens=source.val_tokens, text_bytes=text_bytes, exact=exact)


def _is_of_another_program(directory: Path) -> bool:
    """Return whether another program made the cache in `directory`, complete or not."""
    try:
        return is_foreign(load_meta(str(directory / META_NAME)))
    except ForeignMetaError:
        return True
    except NielsCacheError:
        return False


def _provenance(name: str, source: Source, build: BuildSettings, revision: str | None, fingerprint: str) -> Provenance:
    return Provenance(
        dataset_name=name,
        dataset_config=source.hub_config,
        dataset_revision=revision,
        source=source.describe(),
        split_rule=_split_rule(source, build.seed),
        fingerprint=fingerprint,
    )


def _split_rule(source: Source, seed: int) -> str:
    """How this data set is divided, in one line for meta.json."""
    if isinstance(source, SftSource):
        return f"seeded {source.val_frac:g} of {source.split_unit}s to val, seed {seed}"
    assert isinstance(source, PretrainSource)
    if source.has_own_splits:
        return "upstream's own splits"
    if source.seeded_val_frac is not None:
        return f"seeded {source.seeded_val_frac:g} of documents to val, seed {seed}"
    return budget_rule(train_tokens=source.train_tokens, val_tokens=source.val_tokens or 0)


def _build_pretrain(source: PretrainSource, run: _Run, prepared: PreparedCorpus | None) -> int:
    seed, context = run.build.seed, run.context
    if prepared is not None:  # its documents have their split
        feed = Feed(prepared.stream, context, expected=prepared.kept if source.train_tokens is None else None)
    elif source.seeded_val_frac is not None:

        def count() -> int:
            context.log("counting documents, to split them by val_frac")
            return source.count_unsplit(context)

        feed = Feed(source.documents, context, share=ValShare(val_frac=source.seeded_val_frac, seed=seed, count=count))
    else:
        feed = Feed(source.documents, context)

    def val_documents() -> Iterator[Document]:
        context.log("reading val, to keep its documents out of train")
        for document in feed.read_unreported():  # the pass that is written counts what is dropped
            if document.split == "val":
                yield document

    return build_pretrain_cache(
        feed,
        str(run.directory),
        tokenizer=run.tokenizer,
        max_train_tokens=UNLIMITED if source.train_tokens is None else source.train_tokens,
        max_val_tokens=source.val_tokens or 0,
        shard_bytes=run.build.shard_bytes,
        seed=seed,
        shuffle_buffer=source.builder_shuffle or None,
        threads=run.build.threads,
        decontaminate=source.decontaminate,
        decontaminate_threshold=source.decontaminate_threshold,
        val_texts=val_documents() if source.decontaminate != "off" and val_may_come_late(source) else None,
        provenance=run.provenance,
        progress=run.progress,
        resume=run.resume,
    )


def _build_sft(source: SftSource, run: _Run) -> int:
    return build_sft_cache(
        Feed(source.conversations, run.context),
        str(run.directory),
        tokenizer=run.tokenizer,
        val_frac=source.val_frac,
        seed=run.build.seed,
        split_by=source.split_unit,
        on_invalid="drop",
        threads=run.build.threads,
        provenance=run.provenance,
        progress=run.progress,
        resume=run.resume,
    )
