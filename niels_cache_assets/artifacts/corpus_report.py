"""The report of a prepared data set: the file report.json.

All numbers come from the meta.json of the corpus and of the drop lists (the lists of duplicates).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import BuildJob, RootArtifact, WriteResult, corpus_keys
from niels_cache_assets.artifacts.corpus_facts import CODE_VERSION, corpus_report
from niels_cache_assets.corpus.layout import REPORT_NAME, reports_dir
from niels_cache_assets.disk.identity import without_keys
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta, read_meta


@dataclass(frozen=True, kw_only=True)
class CorpusReport(RootArtifact):
    """The report of a data set with `prepare`.

    The identity of the report is its content, because making the report costs less than finding out whether a new report would differ.
    """

    name: str

    version = CODE_VERSION
    record = REPORT_NAME

    @property
    def key(self) -> str:
        return f"report/{self.name}"

    @property
    def directory(self) -> Path:
        return reports_dir(self.root, self.name)

    def inputs(self) -> Sequence[str]:
        return corpus_keys(self.registry, [self.name])

    def finished(self) -> Meta | None:
        try:
            return read_meta(str(self.directory / REPORT_NAME))
        except NielsCacheError:
            return None

    def identity(self, revision: str | None) -> dict[str, Any]:
        return corpus_report(self.registry, self.name, root=self.root)

    def matches(self, meta: Meta, identity: Mapping[str, Any]) -> bool:
        return without_keys(meta, "schema_version", "meta_sha256") == identity

    def owns(self, name: str) -> bool:
        return name == REPORT_NAME

    def write(self, work: BuildJob) -> WriteResult:
        return WriteResult(meta=dict(work.identity))
