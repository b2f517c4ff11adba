"""Build from a program, through Dagster: one run per data set in this process, recorded where the UI looks.

What `niels-cache build-all` calls. Same assets, checks, jobs and instance as the UI's; no retry, no daemon needed. Lines and bars are
the listener's business: Dagster itself writes nothing to the console here.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import dagster as dg

from niels_cache_assets.build_cache import Progress
from niels_cache_assets.defs.abandoned import LAUNCHER_TAG, launcher_identity
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.assets.upstream import observe_revision
from niels_cache_assets.defs.instance import dagster_home, ensure_instance
from niels_cache_assets.defs.keys import FAMILY_JOBS, LOCATION, STREAM_OPS, STREAM_POOL, TOKENIZER, TOKENIZER_JOB
from niels_cache_assets.defs.metadata import STATE
from niels_cache_assets.defs.progress import ProgressSink
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.registry import Registry
from niels_cache_runtime.formats import FAMILIES, META_NAME, dataset_dir, tokenizer_dir
from niels_cache_runtime.meta import Meta, read_meta

LaunchFamily = Literal["tokenizer", "pretrain", "sft"]
LaunchState = Literal["built", "cache_hit", "disabled", "skipped", "failed"]

_TOKENIZER_NAME = "tokenizer"
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# Captured compute logs would take stdout and stderr away from the listener's progress bars.
_INSTANCE_OVERRIDES = {
    "compute_logs": {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"},
}
_REPOSITORY_TAG = {".dagster/repository": f"__repository__@{LOCATION}"}  # by this the UI finds the runs of a job


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """What came of one data set. `message`: why it failed or was skipped, or what to know about a cache that was kept."""

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

    def progressed(self, name: str, progress: Progress) -> None: ...

    def logged(self, name: str, message: str) -> None: ...

    def finished(self, result: LaunchResult) -> None: ...


def launch_builds(
    registry: Registry, *, root: Path, only: Sequence[str] | None = None, force: bool = False, listener: LaunchListener
) -> list[LaunchResult]:
    """Build the tokenizer, then every data set, or those named in `only`, in the registry's order; verify each.

    A data set that fails does not stop the others; without a tokenizer all are skipped. The tokenizer is always looked at, and trained
    again only if it is asked for (`force` with no `only`, or with one that names it). Raises NielsCacheError for an unknown name, and
    KeyboardInterrupt when interrupted: the run then ends as canceled, and what is on disk is as it was.
    """
    chosen = _chosen(registry, only)
    home = dagster_home()
    with ensure_instance(home, overrides=_INSTANCE_OVERRIDES) as instance, launcher_identity(instance, home) as identity:
        launcher = _Launcher(registry, root, instance, listener, identity)
        tokenizer = launcher.build(_TOKENIZER_NAME, "tokenizer", force=force and (only is None or _TOKENIZER_NAME in only))
        results = [tokenizer]
        for name in chosen:
            family, missing = registry.family_of(name), registry.source(name).missing_setting()
            if missing is not None:
                results.append(launcher.skip(name, family, f"needs {missing}"))
            elif tokenizer.state == "failed":
                results.append(launcher.skip(name, family, "there is no tokenizer"))
            else:
                results.append(launcher.build(name, family, force=force))
        return results


def _chosen(registry: Registry, only: Sequence[str] | None) -> list[str]:
    """The data sets to build, in the registry's order; unknown names are refused."""
    for name in only or ():
        if name != _TOKENIZER_NAME:
            registry.family_of(name)
    names = [name for family in FAMILIES for name in registry.datasets(family)]
    return names if only is None else [name for name in names if name in only]


class _ListenerSink(ProgressSink):
    def __init__(self, listener: LaunchListener) -> None:
        self._listener = listener

    def progressed(self, name: str, progress: Progress) -> None:
        self._listener.progressed(name, progress)

    def logged(self, name: str, message: str) -> None:
        self._listener.logged(name, message)


class _Launcher:
    def __init__(self, registry: Registry, root: Path, instance: dg.DagsterInstance, listener: LaunchListener, identity: str) -> None:
        self._registry = registry
        self._root = root
        self._instance = instance
        self._listener = listener
        self._tags = {**_REPOSITORY_TAG, LAUNCHER_TAG: identity}
        resources = {"cache_root": CacheRoot(root=str(root)), "progress_sink": _ListenerSink(listener)}
        self._defs = build_defs(resources, registry=registry)

    def build(self, name: str, family: LaunchFamily, *, force: bool) -> LaunchResult:
        started = time.monotonic()
        self._listener.started(name, family)
        if family == "tokenizer":
            op, job, directory = TOKENIZER.path[-1], TOKENIZER_JOB, tokenizer_dir(self._root)
            partition = None
        else:
            op, job, directory = STREAM_OPS[family], FAMILY_JOBS[family], dataset_dir(self._root, family, name)
            partition = name
            self._observe_upstream(name)
            self._say_if_waiting(name)
        run = self._defs.resolve_job_def(job).execute_in_process(
            run_config={"ops": {op: {"config": {"force": force}}}, **_QUIET},
            instance=self._instance,
            partition_key=partition,
            tags=self._tags,
            raise_on_error=False,
        )
        if _was_interrupted(run):
            self._instance.report_run_canceled(run.dagster_run, message="Interrupted from the terminal.")
            raise KeyboardInterrupt
        outcome: dict[str, Any]
        if run.success:
            metadata = run.asset_materializations_for_node(op)[-1].metadata
            warning = metadata.get("warning")
            outcome = {
                "state": metadata[STATE].value,
                "meta": read_meta(str(directory / META_NAME)),
                "message": str(warning.value) if warning else None,
            }
        else:
            outcome = {"state": "failed", "meta": None, "message": _why_failed(run)}
        return self._finish(LaunchResult(name=name, family=family, directory=directory, seconds=time.monotonic() - started, **outcome))

    def skip(self, name: str, family: LaunchFamily, reason: str) -> LaunchResult:
        return self._finish(LaunchResult(name=name, family=family, state="skipped", meta=None, directory=None, seconds=0.0, message=reason))

    def _finish(self, result: LaunchResult) -> LaunchResult:
        self._listener.finished(result)
        return result

    def _observe_upstream(self, name: str) -> None:
        """Before the run, so that the build is not stale at once. What goes wrong here, the build meets in its own step."""
        try:
            for observation in observe_revision(self._registry, self._registry.family_of(name), name):
                self._instance.report_runless_asset_event(observation)
        except Exception:  # a source may be anyone's: a bug in it fails its data set, not the launch
            return

    def _say_if_waiting(self, name: str) -> None:
        pool = self._instance.event_log_storage.get_concurrency_info(STREAM_POOL)
        if 0 < pool.slot_count <= pool.active_slot_count:
            self._listener.logged(name, f"waiting for the pool {STREAM_POOL}: run {', '.join(sorted(pool.active_run_ids))} is streaming")


def _was_interrupted(run: dg.ExecuteInProcessResult) -> bool:
    causes = (event.step_failure_data.error for event in run.all_events if event.is_step_failure)
    return any(cause is not None and cause.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt") for cause in causes)


def _why_failed(run: dg.ExecuteInProcessResult) -> str:
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
                return " ".join(cause.message.split())
    return f"run {run.run_id} failed; the Dagster UI shows its log"
