"""Build from a program, through Dagster: one run per data set in this process, recorded where the UI looks.

What `niels-cache build-all` calls. Same assets, checks, jobs and instance as the UI's; no retry, no daemon needed. Lines and bars are
the listener's business: Dagster itself writes nothing to the console here.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob  # how Dagster's own execute_in_process wraps a job; no public name
from dagster._core.execution.api import execute_run
from dagster._core.execution.execute_in_process import merge_run_tags
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin  # by these the UI finds the runs of a job
from dagster._core.storage.tags import MAX_RETRIES_TAG

from niels_cache_assets.blends.prebuild import index_folder
from niels_cache_assets.corpus.identity import needs_tokenizer
from niels_cache_assets.corpus.layout import REPORT_NAME, corpus_dir, duplicates_dir, reports_dir
from niels_cache_assets.defs.abandoned import ending_abandoned_runs, recorded_run
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.home_refusals import ending_refused_runs, home_refusals, recorded_refusal
from niels_cache_assets.defs.instance import dagster_home, ensure_instance
from niels_cache_assets.defs.keys import (
    CORPUS_JOB,
    DOCUMENTS,
    DUPLICATES,
    DUPLICATES_JOB,
    FAMILY_JOBS,
    INDEX,
    INDEX_JOB,
    LOCATION,
    REPORT,
    REPORT_JOB,
    REPORTS_GROUP,
    REPORTS_JOB,
    STREAM_OPS,
    TOKENIZER,
    TOKENIZER_JOB,
    corpus_name,
    index_name,
)
from niels_cache_assets.defs.metadata import state_in
from niels_cache_assets.defs.progress import ProgressSink
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.defs.sync_checks import IN_SYNC
from niels_cache_assets.inputs import require_inputs
from niels_cache_assets.progress import HowFar
from niels_cache_assets.registry import Registry
from niels_cache_assets.reports.page import page_path
from niels_cache_assets.tokenizer_training import needs_training
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, Family, dataset_dir, tokenizer_dir
from niels_cache_runtime.format.meta import Meta, read_meta

LaunchFamily = Literal["tokenizer", "corpus", "pretrain", "sft", "index"]
LaunchState = Literal["built", "cache_hit", "disabled", "skipped", "failed"]

_TOKENIZER_NAME = "tokenizer"
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# Captured compute logs would take stdout and stderr away from the listener's progress bars.
_INSTANCE_OVERRIDES = {
    "compute_logs": {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"},
}
# A retry of the daemon would build with the code server's settings and cache root, which need not be those of this program.
_NO_RETRY = {MAX_RETRIES_TAG: "0"}
_REPOSITORY = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(LOCATION), repository_name="__repository__")


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """What came of one data set, or of one step before it. `message`: why it failed or was skipped, or what to know of it.

    `meta` is the meta.json of what is there now, of a report its report.json, of an index None.
    """

    name: str
    family: LaunchFamily
    state: LaunchState
    meta: Meta | None
    directory: Path | None
    seconds: float
    message: str | None


class LaunchListener(Protocol):
    """Told what happens while it happens, in this process's main thread."""

    def started(self, name: str, family: LaunchFamily) -> None: ...

    def progressed(self, name: str, progress: HowFar) -> None: ...

    def logged(self, name: str, message: str) -> None: ...

    def finished(self, result: LaunchResult) -> None: ...


def launch_builds(
    registry: Registry,
    *,
    root: Path,
    only: Sequence[str] | None = None,
    force: bool = False,
    wait: bool = False,
    listener: LaunchListener,
) -> list[LaunchResult]:
    """Build the tokenizer and every data set, or those named in `only`, in the registry's order; verify each.

    Corpora come first: those of the data sets that are prepared or mixed from prepared ones, and the duplicates over all. Then come the
    tokenizer, which is trained on them, the corpora of mixtures that need it, their reports, the caches, and at last the indices of
    blends, which `only` may name, too. If anything was built, or no report is there, the reports over everything are written. What fails
    does not stop the others; without a tokenizer or its corpus a cache is skipped, without a member a blend. The tokenizer is always
    looked at, and trained again only if it is asked for (`force` with no `only`, or with one that names it); one that is imported needs
    no corpus, and comes before them. What another process is building fails, or is waited for (`wait`). Raises NielsCacheError for an
    unknown name, BadInputs before a tokenizer is trained if a data set cannot be read as it is configured (inputs.py), and
    KeyboardInterrupt when interrupted. The run then ends as canceled, and what is on disk is as it was. Raises NotWrittenError if the
    Dagster home cannot record a run, for one because its disk is full: that ends the launch.
    """
    chosen = _chosen(registry, only)
    retrained = force and (only is None or _TOKENIZER_NAME in only)
    if needs_training(registry, root=root, force=retrained):
        require_inputs(registry, chosen)
    home = dagster_home()
    with (
        home_refusals(home),
        ensure_instance(home, overrides=_INSTANCE_OVERRIDES) as instance,
        ending_abandoned_runs(instance),
        ending_refused_runs(instance, home),
    ):
        launcher = _Launcher(registry, root, instance, listener, wait=wait)
        results: list[LaunchResult] = []
        needed = _needed_corpora(registry, chosen)
        corpora = [name for name in registry.prepared() if any(name in each for each in needed.values())]
        late = [name for name in corpora if needs_tokenizer(registry, name)]
        early = [name for name in corpora if name not in late]
        failed: dict[str, str] = {}  # why there is no corpus
        is_imported = registry.tokenizer.model is not None
        if not is_imported:
            results += launcher.prepare(early, failed, force=force)
        tokenizer = launcher.build_tokenizer(force=retrained)
        results.append(tokenizer)
        if tokenizer.state == "failed":
            reasons = dict.fromkeys(chosen, "there is no tokenizer")
        else:
            if is_imported:
                results += launcher.prepare(early, failed, force=force)
            results += launcher.prepare(late, failed, force=force)
            results += [launcher.report(name, force=force) for name in corpora if name not in failed]
            reasons = {name: failed[each] for name, read in needed.items() for each in read if each in failed}
        for name in chosen:
            family, missing = registry.family_of(name), registry.source(name).missing_setting()
            if not registry.source(name).enabled:
                results.append(launcher.skip(name, family, f"is switched off: set enabled = true in [{family}.{name}]"))
            elif missing is not None:
                results.append(launcher.skip(name, family, f"needs {missing}"))
            elif name in reasons:
                results.append(launcher.skip(name, family, reasons[name]))
            else:
                results.append(launcher.build(name, family, force=force))
        kept = {result.name for result in results if result.state in ("failed", "skipped")}
        kept |= registry.pretrain.keys() - set(registry.partition_keys("pretrain"))  # switched off, or without a setting
        for name in _chosen_blends(registry, only):
            lacking = [member for member in registry.blend[name].weights if member in kept]
            if lacking:
                results.append(launcher.skip(index_name(name), "index", f"{', '.join(lacking)} could not be built"))
            else:
                results.append(launcher.index(name))
        if any(result.state == "built" for result in results) or not page_path(root).exists():
            launcher.write_reports()
        return results


def record_index(registry: Registry, name: str, *, root: Path, home: Path) -> None:
    """Record in a Dagster home that the index of a blend is there, by a run that finds it. Raises NielsCacheError if that fails."""
    with home_refusals(home), ensure_instance(home, overrides=_INSTANCE_OVERRIDES) as instance, ending_abandoned_runs(instance):
        result = _Launcher(registry, root, instance, _Nobody(), wait=True).index(name)
    if result.state == "failed":
        raise NielsCacheError(str(result.message))


def _chosen_blends(registry: Registry, only: Sequence[str] | None) -> list[str]:
    return [name for name in registry.blend if only is None or name in only]


def _chosen(registry: Registry, only: Sequence[str] | None) -> list[str]:
    """The data sets to build, in the registry's order; unknown names are refused. What is switched off is left out, unless it is named."""
    for name in only or ():
        if name != _TOKENIZER_NAME and name not in registry.blend:
            registry.family_of(name)
    names = [name for family in FAMILIES for name in registry.datasets(family)]
    return [name for name in names if (registry.source(name).enabled if only is None else name in only)]


class _Nobody(LaunchListener):
    """Told, and says nothing."""

    def started(self, name: str, family: LaunchFamily) -> None: ...

    def progressed(self, name: str, progress: HowFar) -> None: ...

    def logged(self, name: str, message: str) -> None: ...

    def finished(self, result: LaunchResult) -> None: ...


class _ListenerSink(ProgressSink):
    def __init__(self, listener: LaunchListener) -> None:
        self._listener = listener

    def progressed(self, name: str, progress: HowFar) -> None:
        self._listener.progressed(name, progress)

    def logged(self, name: str, message: str) -> None:
        self._listener.logged(name, message)


@dataclass(frozen=True)
class _Step:
    """One run. `op` is the one that is told `force`, if it takes settings, and whose last materialization says what came of it."""

    name: str
    family: LaunchFamily
    job: str
    op: str
    directory: Path
    partition: str | None
    record: str = META_NAME
    takes_settings: bool = True


class _Launcher:
    def __init__(self, registry: Registry, root: Path, instance: dg.DagsterInstance, listener: LaunchListener, *, wait: bool) -> None:
        self._registry = registry
        self._root = root
        self._instance = instance
        self._listener = listener
        self._wait = wait
        resources = {"cache_root": CacheRoot(root=str(root)), "progress_sink": _ListenerSink(listener)}
        self._defs = build_defs(resources, registry=registry)

    def build_tokenizer(self, *, force: bool) -> LaunchResult:
        step = _Step(_TOKENIZER_NAME, "tokenizer", TOKENIZER_JOB, TOKENIZER.path[-1], tokenizer_dir(self._root), None)
        return self._run(step, force=force)

    def build(self, name: str, family: Family, *, force: bool) -> LaunchResult:
        step = _Step(name, family, FAMILY_JOBS[family], STREAM_OPS[family], dataset_dir(self._root, family, name), name)
        return self._run(step, force=force)

    def prepare(self, names: Sequence[str], failed: dict[str, str], *, force: bool) -> list[LaunchResult]:
        """The corpora of these data sets, mixtures last, and the duplicates over all. `failed`: gets those that cannot be read, and why."""
        results: list[LaunchResult] = []
        mixtures = [name for name in names if _members(self._registry, name)]
        for group in ([name for name in names if name not in mixtures], mixtures):  # a mixture reads the corpora of its members
            results += self._prepare(group, failed, force=force)
        return results

    def _prepare(self, names: Sequence[str], failed: dict[str, str], *, force: bool) -> list[LaunchResult]:
        results: list[LaunchResult] = []
        for name in names:
            step = _Step(corpus_name(name), "corpus", CORPUS_JOB, _op(DOCUMENTS), corpus_dir(self._root, name), name)
            results.append(self._run(step, force=force))
            if results[-1].state == "failed":
                failed[name] = f"the corpus of {name} could not be prepared"
        searched = [name for name in names if name in self._registry.prepared("dedup") and name not in failed]
        if searched:
            step = _Step(DUPLICATES.to_user_string(), "corpus", DUPLICATES_JOB, _op(DUPLICATES), duplicates_dir(self._root), None)
            results.append(self._run(step, force=force))
            if results[-1].state == "failed":
                failed.update(dict.fromkeys(searched, "the duplicates could not be found"))
        return results

    def report(self, name: str, *, force: bool) -> LaunchResult:
        """What preparing did to a data set."""
        step = _Step(f"report/{name}", "corpus", REPORT_JOB, _op(REPORT), reports_dir(self._root, name), name, record=REPORT_NAME)
        return self._run(step, force=force)

    def index(self, blend: str) -> LaunchResult:
        """The indices of a blend; what is there already is a hit."""
        folder = index_folder(self._root)
        return self._run(_Step(index_name(blend), "index", INDEX_JOB, _op(INDEX), folder, blend, takes_settings=False), force=False)

    def write_reports(self) -> None:
        """Those over everything. They are no data set: nobody is told but of a failure."""
        run = self._finished_run(REPORTS_JOB, None, _QUIET)
        if not run.success:
            self._listener.logged(REPORTS_GROUP, f"WARNING: not written: {_why_failed(run)}")

    def _run(self, step: _Step, *, force: bool) -> LaunchResult:
        started = time.monotonic()
        self._listener.started(step.name, step.family)
        settings = {"ops": {step.op: {"config": {"force": force, "wait": self._wait}}}} if step.takes_settings else {}
        run = self._finished_run(step.job, step.partition, {**settings, **_QUIET})
        outcome: dict[str, Any]
        if run.success:
            metadata = run.asset_materializations_for_node(step.op)[-1].metadata
            outcome = {
                "state": state_in({name: value.value for name, value in metadata.items()}),
                "meta": None if step.family == "index" else read_meta(str(step.directory / step.record)),
                "message": _what_to_know(run, metadata),
            }
        else:
            outcome = {"state": "failed", "meta": None, "message": _why_failed(run)}
        seconds = time.monotonic() - started
        return self._finish(LaunchResult(name=step.name, family=step.family, directory=step.directory, seconds=seconds, **outcome))

    def _finished_run(self, job: str, partition: str | None, run_config: Mapping[str, Any]) -> dg.JobExecutionResult:
        """Raises KeyboardInterrupt if the run was interrupted, once it has ended as canceled."""
        run_id = str(uuid.uuid4())
        with recorded_run(self._instance, run_id):
            run = self._execute(self._defs.resolve_job_def(job), partition, run_id, run_config)
            if _was_interrupted(run):
                self._instance.report_run_canceled(run.dagster_run, message="Interrupted from the terminal.")
                raise KeyboardInterrupt
        return run

    def _execute(self, job: dg.JobDefinition, partition: str | None, run_id: str, run_config: Mapping[str, Any]) -> dg.JobExecutionResult:
        """Do what execute_in_process does, and record whose job it is: without that a run is on no timeline and below no job."""
        in_process = job.as_ephemeral_job(resource_defs={}, input_values={})
        run = self._instance.create_run_for_job(
            job_def=in_process,
            run_id=run_id,
            run_config=run_config,
            tags=merge_run_tags(job, partition, _NO_RETRY, None, self._instance, run_config),
            remote_job_origin=_REPOSITORY.get_job_origin(job.name),
        )
        return execute_run(InMemoryJob(in_process), run, self._instance)

    def skip(self, name: str, family: LaunchFamily, reason: str) -> LaunchResult:
        return self._finish(LaunchResult(name=name, family=family, state="skipped", meta=None, directory=None, seconds=0.0, message=reason))

    def _finish(self, result: LaunchResult) -> LaunchResult:
        self._listener.finished(result)
        return result


def _op(asset: dg.AssetKey) -> str:
    """The name that Dagster gives the op of a single asset."""
    return asset.to_python_identifier()


def _needed_corpora(registry: Registry, chosen: Sequence[str]) -> dict[str, list[str]]:
    """By data set: those whose corpora it is read from."""
    prepared = registry.prepared()
    return {name: [each for each in prepared if each == name or each in _members(registry, name)] for name in chosen}


def _members(registry: Registry, name: str) -> Mapping[str, float]:
    """Of a mixture; empty for every other data set."""
    members: Mapping[str, float] = getattr(registry.source(name), "members", {})
    return members


def _what_to_know(run: dg.JobExecutionResult, metadata: Mapping[str, dg.MetadataValue[Any]]) -> str | None:
    """Its warning, and what checks found that do not block. How other data sets stand is none of it."""
    said = [str(metadata["warning"].value)] if "warning" in metadata else []
    for evaluation in run.get_asset_check_evaluations():
        if not evaluation.passed and evaluation.check_name != IN_SYNC:
            said.append(f"{evaluation.check_name}: {evaluation.description}")
    return "; ".join(said) or None


def _was_interrupted(run: dg.JobExecutionResult) -> bool:
    causes = (event.step_failure_data.error for event in run.all_events if event.is_step_failure)
    return any(cause is not None and cause.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt") for cause in causes)


def _why_failed(run: dg.JobExecutionResult) -> str:
    """One line: what a check found, else what the step that failed first said."""
    for evaluation in run.get_asset_check_evaluations():
        if not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.ERROR:
            return f"the check {evaluation.check_name} failed: {evaluation.description}; build it again with force (--force)"
    for event in run.all_events:
        if event.is_step_failure:
            failure = event.step_failure_data
            if failure.user_failure_data is not None and failure.user_failure_data.description:
                return failure.user_failure_data.description
            error = failure.error
            cause = error.cause if error is not None and error.cause is not None else error
            if cause is not None:
                return recorded_refusal(cause.message, dagster_home()) or " ".join(cause.message.split())
    return f"run {run.run_id} failed; the Dagster UI shows its log"
