"""The cuts of all data sets whose `prepare` contains "lines" or "spans": repeated text that is left out, and the copy that stays.

One search covers all data sets with the step. Their documents are compared as the steps before have left them: without those on the drop
list, and for spans without the cuts of lines. Of several copies the first stays, in the order of ComparedTexts in niels_cache_repeats,
which searches. An interrupted search starts from the beginning. A search that fails leaves the cuts of the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import BuildJob, ReportedProgress, RootArtifact, WriteResult, corpus_keys
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.duplicates import Duplicates
from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.fingerprint import Identity, identity_settings
from niels_cache_assets.base.wording import file_size
from niels_cache_assets.corpus.identity import dedup_order
from niels_cache_assets.corpus.layout import repeats_dir
from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.disk.identity import differences, without_keys
from niels_cache_assets.disk.journal import SCRATCH_NAME
from niels_cache_assets.disk.space import SpaceNeed
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.disk.writers import Files
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.project.tables import BuildSettings
from niels_cache_assets.sources.types import REPEATS, PrepareStep, PretrainSource
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import Meta, sha256_text


def open_prepared(
    registry: Registry,
    name: str,
    *,
    root: Path,
    source: PretrainSource | None = None,
    build: BuildSettings | None = None,
    minus_duplicates: bool = True,
    before: PrepareStep | None = None,
    searches: dict[str, Any] | None = None,
) -> PreparedCorpus:
    """Return the prepared data set of this configuration.

    Args:
        registry: The configuration.
        name: The name of the data set.
        root: The folder of the caches.
        source: The table of the data set with the settings for this run. None: the table of the registry.
        build: The table [build] with the settings for this run. None: the table of the registry.
        minus_duplicates: Whether the documents in the drop list and repeated text are left out.
        before: The step that will read the data set. Its cuts and those of later steps are not applied. None: all cuts are applied.
        searches: The drop lists and cuts that were opened, by step, if the caller opens several data sets.

    Raises:
        NielsCacheError: If the corpus, the drop list (with "dedup") or cuts are missing or out of date. The message names the artifact to
            materialize.
    """
    source, build = source or registry.pretrain[name], build or registry.build
    corpus, searches = Corpus(registry, root, name=name), {} if searches is None else searches
    meta, duplicates = corpus.current(), searches.setdefault("dedup", Duplicates(registry, root))
    looks_for_duplicates = "dedup" in source.prepare and minus_duplicates
    prepared = PreparedCorpus(
        name=name,
        directory=corpus.directory,
        meta=meta,
        source=source,
        seed=build.seed,
        duplicates=duplicates.current_of(name, source=source, seed=build.seed) if looks_for_duplicates else None,
        duplicates_directory=duplicates.directory,
    )
    for step in REPEATS[: REPEATS.index(before) if before else None] if minus_duplicates else ():
        if step in source.prepare:
            prepared = searches.setdefault(step, Repeats(registry, root, step=step)).cut(prepared)
    return prepared


@dataclass(frozen=True, kw_only=True)
class Repeats(RootArtifact):
    """The cuts of a step of all data sets with this step that can be read.

    Attributes:
        step: The step, lines or spans.
    """

    step: PrepareStep

    builds_from_partial_inputs = True

    @property
    def key(self) -> str:
        return f"repeats/{self.step}"

    @property
    def directory(self) -> Path:
        return repeats_dir(self.root, self.step)

    @cached_property
    def _opened(self) -> tuple[dict[str, PreparedCorpus], dict[str, str]]:
        """The data sets in the order of comparison, and the reason for each that cannot be read."""
        corpora: dict[str, PreparedCorpus] = {}
        missing: dict[str, str] = {}
        searches: dict[str, Any] = {}
        for name in dedup_order(self.registry, self.step):
            try:
                corpora[name] = open_prepared(self.registry, name, root=self.root, before=self.step, searches=searches)
            except NielsCacheError as error:
                missing[name] = str(error)
        return corpora, missing

    def inputs(self) -> Sequence[str]:
        return corpus_keys(self.registry, dedup_order(self.registry, self.step), before=self.step)

    def unavailable(self) -> str | None:
        if not self.registry.prepared(self.step):
            return "no data set uses it"
        corpora, missing = self._opened
        if not corpora:
            raise NielsCacheError(next(iter(missing.values())))
        return None

    def finished(self) -> Meta | None:
        return finished_meta(self.directory) if self.registry.prepared(self.step) else None

    def identity(self, revision: str | None = None) -> Identity:
        corpora, missing = self._opened
        return {
            "settings": identity_settings(getattr(self.registry, self.step), self.step, without={"ranges"}),
            "order": [*corpora],
            "missing": sorted(missing),
            "inputs": {name: prepared.identity() for name, prepared in corpora.items()},
            "code_version": load_beside("repeats", self.step).CODE_VERSION,
        }

    def warning(self) -> str | None:
        missing = self._opened[1]
        return f"the search for repeated {self.step} left out {', '.join(missing)}: {next(iter(missing.values()))}" if missing else None

    @cached_property
    def _current(self) -> tuple[Meta, str | None]:
        """The meta.json of the cuts, and why they cannot be used, or None. Many data sets may be opened, and this reads all of them."""
        meta = finished_meta(self.directory)
        if meta is None:
            return {}, f"no search for repeated {self.step} has been made yet"
        identity = self.identity()
        if self.matches(meta, identity):
            return meta, None
        why = differences({key: meta.get(key, value) for key, value in identity.items()}, identity) or ["another version found them"]
        return meta, f"the cuts of repeated {self.step} are out of date: {'; '.join(why)}"

    def cut(self, prepared: PreparedCorpus) -> PreparedCorpus:
        """Return a data set with the cuts of this step.

        Raises:
            NielsCacheError: If they are missing or not current.
        """
        name, (meta, problem) = prepared.name, self._current
        if problem is None and meta["inputs"].get(name) != prepared.identity():
            problem = (
                f"the repeated {self.step} of {name!r} were found for other splits; "
                "set seed and val_frac in the configuration and not for one run"
            )
        if problem is not None:
            advice = f"build the cuts: niels-cache build-all (in Dagster: materialize corpus/{self.step})"
            raise NielsCacheError(f"{self.directory}: {problem}; {advice}")
        found = load_beside("repeats", "cuts").CutList(step=self.step, name=name, directory=self.directory, meta=meta)
        return replace(prepared, cuts=(*prepared.cuts, found))

    def owns(self, name: str) -> bool:
        return name == META_NAME or name.endswith(".parquet")

    def need(self) -> SpaceNeed | None:
        """Return the disk space of the search."""
        text = sum(prepared.meta["bytes"]["after"] for prepared in self._opened[0].values())
        module = load_beside("repeats", self.step)
        size = module.scratch_bytes(text, getattr(self.registry, self.step))
        return SpaceNeed(bytes=size, reason=f"the search for repeated {self.step} in {file_size(text)} of text", certain=False)

    def write(self, work: BuildJob) -> WriteResult:
        corpora, _ = self._opened
        documents = sum(prepared.kept for prepared in corpora.values())
        work.log(f"looking for repeated {self.step} in {', '.join(corpora)}")
        files: Files = {}
        scratch = work.directory / SCRATCH_NAME
        scratch.mkdir()
        datasets = load_beside("repeats", "search").write_cuts(
            self.step,
            [*corpora.values()],
            getattr(self.registry, self.step),
            directory=work.directory,
            scratch=scratch,
            files=files,
            report=lambda share: work.report(ReportedProgress(counts={"documents": int(share * documents)}, share=share)),
        )
        meta = {
            "kind": "repeats",
            "built": True,
            "step": self.step,
            **without_keys(work.identity, "code_version"),
            "fingerprint": work.fingerprint,
            "datasets": datasets,
            "files": files,
            "content_sha256": sha256_text("".join(f"{name} {counts['cuts_sha256']}\n" for name, counts in sorted(datasets.items()))),
        }
        return WriteResult(meta=meta)
