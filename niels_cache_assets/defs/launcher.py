"""Builds that a program starts through Dagster: each data set is one run in this process, and the runs are recorded for the UI.

`niels-cache build-all` uses the launcher, which has the same assets, checks, jobs and instance as the UI. It does not retry, and needs no
daemon. A listener (an object that receives the events) prints lines and progress bars. Dagster itself writes nothing to the console here.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.base import Artifact, Outcome, listed_name
from niels_cache_assets.artifacts.duplicates import SearchStep
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.input_problems import require_inputs
from niels_cache_assets.artifacts.parts.free_parts import FreePartsFirst
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.stored import in_store
from niels_cache_assets.base.wording import format_list
from niels_cache_assets.cluster.child import BuildInChild
from niels_cache_assets.corpus.layout import HASHES
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.checks.sync import IN_SYNC
from niels_cache_assets.defs.home.abandoned import ending_abandoned_runs, recorded_run
from niels_cache_assets.defs.home.home_errors import end_runs_that_cannot_record, home_errors, recorded_error_message
from niels_cache_assets.defs.home.instance import dagster_home, ensure_instance
from niels_cache_assets.defs.jobs import job_of
from niels_cache_assets.defs.keys import names_of
from niels_cache_assets.defs.launch_events import LaunchListener, LaunchResult
from niels_cache_assets.defs.part_processes import build_in_children
from niels_cache_assets.defs.part_slots import limit_parts
from niels_cache_assets.defs.private import NO_COMPUTE_LOGS, record_location
from niels_cache_assets.defs.progress import ProgressSink
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.facts.progress import BuildProgress
from niels_cache_assets.parts.layout import CHILD_BUILT_KINDS, PART_KINDS
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.reports.page import page_path
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES
from niels_cache_runtime.format.reading import available_threads

_WAIT_FOR_THEIR_CACHES = ("corpus", "report", HASHES)  # kinds that report no missing input, because their caches do
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# No captured compute logs, because they redirect stdout and stderr, which the progress bars of the listener need.
_INSTANCE_OVERRIDES = {"compute_logs": NO_COMPUTE_LOGS}
# A retry by the daemon would use the settings and cache root of the code server, which may differ from the settings of this program.
_NO_RETRY = {"dagster/max_retries": "0"}


def launch_builds(
    registry: Registry, *, root: Path, only: Sequence[str] | None = None, force: bool = False, wait: bool = False, listener: LaunchListener
) -> list[LaunchResult]:
    """Build and verify the tokenizer and every data set, in the order of the registry.

    First come the corpora of data sets with `prepare` and of their mixtures, and the search for duplicates in all corpora. Then comes the
    tokenizer, which is trained on the corpora. Then come the corpora of mixtures that need the tokenizer, the reports of corpora, the
    caches, and the indices of blends. At the end, the reports about everything are written, if anything was built or no report exists.

    Plans, val parts and parts come before their cache. If one build fails, the remaining builds still run. A cache is skipped if the
    tokenizer or its corpus is missing. A blend is skipped if one of its data sets is missing. The tokenizer is always checked, but trained
    again only on request (`force` without `only`, or with the tokenizer in `only`). An imported tokenizer needs no corpus and comes first.
    Several processes may share a data set in parts: each takes parts that no one else builds, and at the end waits for the rest, even
    without `wait`.

    Args:
        registry: The configuration.
        root: The cache root.
        only: Names of data sets and blends to build; by default all.
        force: Whether to build again what is current; by default no.
        wait: Whether to wait if a different process is building a data set; by default its build here fails.
        listener: Receives the events.

    Returns:
        A result for each build.

    Raises:
        NielsCacheError: If a name is unknown.
        InputsError: Before a tokenizer is trained, if a data set cannot be read as configured (artifacts/input_problems.py).
        KeyboardInterrupt: When interrupted. Then the run ends as canceled, and the files on disk are unchanged.
        NotWrittenError: If the Dagster home cannot record a run, for example because its disk is full. This error ends the launch.
    """
    all_artifacts = graph(registry, root)
    order = all_artifacts.order(only)
    retrained = force and (only is None or all_artifacts.tokenizer().key in only)
    if all_artifacts.tokenizer().needs_training(force=retrained):
        require_inputs(registry, [key.partition("/")[2] for key in order if key.partition("/")[0] in FAMILIES])
    home, names = dagster_home(), names_of(registry)
    with (
        home_errors(home),
        ensure_instance(home, overrides=_INSTANCE_OVERRIDES) as instance,
        ending_abandoned_runs(instance, names),
        end_runs_that_cannot_record(instance, home),
    ):
        limit_parts(instance, registry)
        record_location(instance, names.location)
        launcher = _Launcher(registry, root, instance, listener, wait=wait)
        for are_parts, group in groupby(order, key=_shared):
            steps = [all_artifacts[key] for key in group]
            if are_parts and (force or not all_artifacts.is_done(steps[0].key)):
                launcher.launch_parts(steps, force=force)
            for step in () if are_parts else steps:
                if force or not all_artifacts.is_done(step.key):
                    launcher.launch(step, force=retrained if step.key == "tokenizer" else force)
        if any(result.state == "built" for result in launcher.results) or not page_path(root).exists():
            launcher.write_reports()
        return launcher.results


class _Launcher(ProgressSink):
    """A launch, which passes everything that its runs report to the listener."""

    def __init__(self, registry: Registry, root: Path, instance: dg.DagsterInstance, listener: LaunchListener, *, wait: bool) -> None:
        super().__init__()
        self._instance, self._listener, self._wait = instance, listener, wait
        self._graph, self._names = graph(registry, root), names_of(registry)
        self.results: list[LaunchResult] = []
        off = {name: f"is switched off: set enabled = true in [{registry.family_of(name)}.{name}]" for name in registry.switched_off()}
        reasons = {**off, **{name: f"needs {setting}" for name, setting in registry.unconfigured().items()}}
        self._unconfigured = {f"{registry.family_of(name)}/{name}": reason for name, reason in reasons.items()}
        self._missing = {*self._unconfigured}  # keys of artifacts that cannot be built or could not be built
        self._new: set[str] = set()  # keys that were built or found since the artifacts that use existing inputs were built
        self._started: dict[str, float] = {}  # when parts were started ahead of their runs
        cluster, self._at_once = registry.cluster, registry.cluster.parts_at_once(available_threads())
        is_plain = self._at_once == 1 and not cluster.command and not cluster.program
        self.builds_parts_here = is_plain or bool(registry.overrides)
        if self.builds_parts_here and not is_plain and keys.has_shared_steps(registry):
            listener.logged("parts", "WARNING: built here, one at a time, because options of this command change settings of the file")
        self._defs = build_defs({"cache_root": CacheRoot(root=str(root)), "progress_sink": self}, registry=registry)

    def progressed(self, name: str, progress: BuildProgress) -> None:
        self._listener.progressed(name, progress)

    def logged(self, name: str, message: str) -> None:
        self._listener.logged(name, message)

    def launch_parts(self, parts: Sequence[Artifact], *, force: bool) -> None:
        """Build parts of one data set, or ranges, in children, several at a time ([cluster]), or here.

        Parts that other processes build are waited for.
        """
        if self.builds_parts_here or force:
            pending = FreePartsFirst(parts)
            while (next_part := pending.take()) is not None:
                part, waits = next_part
                if not self.launch(part, force=force, skip_if_busy=not waits):
                    pending.defer(part)
            return
        ready: list[BuildInChild] = []
        for part in parts:
            if isinstance(part, BuildInChild) and not self._is_left_out(part) and not self._reason_to_skip(part):
                ready.append(part)
            else:
                self.launch(part, force=False)  # it is skipped
        build_in_children(
            ready,
            at_once=self._at_once,
            home=dagster_home(),
            listener=self._listener,
            started=self._started,
            on_end=self._record,
        )

    def _record(self, part: Artifact, end: Outcome | NielsCacheError) -> None:
        """Execute the run of a part that was built, or has failed, ahead of it."""
        self.ends[part.key] = end
        self.launch(part, force=False)

    def launch(self, artifact: Artifact, *, force: bool, skip_if_busy: bool = False) -> bool:
        """Build one artifact, or skip it if an input is missing.

        Returns False if another process builds this part and `skip_if_busy` is set.
        """
        if self._is_left_out(artifact):
            return True
        key, kind = artifact.key, artifact.key.partition("/")[0]
        asset, partition = self._names.recorded_as(key)
        family: Any = "parts" if kind in PART_KINDS else self._names.kind_of(asset)
        listed = LaunchResult(name=listed_name(key), family=family, state="skipped", message=self._reason_to_skip(artifact))
        result = listed if listed.message else self._run(artifact, listed, asset, partition, force=force, skip_if_busy=skip_if_busy)
        if result is None:
            return False
        self._listener.finished(result)
        self.results.append(result)
        if result.state in ("failed", "skipped"):
            self._missing.add(key)
        else:
            self._missing.discard(key)
            self._new.add(key)
            self.built.add(key)
        if artifact.builds_from_partial_inputs and kind != HASHES:  # the drop lists follow the hashes, and use the same documents
            self._new.difference_update([*artifact.inputs(), HASHES])
        return True

    def _is_left_out(self, artifact: Artifact) -> bool:
        """Return whether an artifact has no result, because no input of it is new, or because its caches report the missing input."""
        kind, inputs = artifact.key.partition("/")[0], {*artifact.inputs()}
        if kind in _WAIT_FOR_THEIR_CACHES and ("tokenizer" in self._missing or (kind == "report" and self._reason_to_skip(artifact))):
            return True
        uses_new_inputs = artifact.builds_from_partial_inputs or (kind == "range" and inputs.isdisjoint(self._missing))
        return kind != "tokenizer" and uses_new_inputs and inputs.isdisjoint(self._new)

    def _reason_to_skip(self, artifact: Artifact) -> str | None:
        """Return why an artifact cannot be built: its settings, or an input that could not be built."""
        needed = self._graph.before(artifact.key) if artifact.builds_from_partial_inputs else artifact.inputs()
        missing = [listed_name(each) for each in needed if each in self._missing]
        return self._unconfigured.get(artifact.key) or (f"{format_list(missing)} could not be built" if missing else None)

    def write_reports(self) -> None:
        """Write the reports over everything. The listener gets only a failure, because the reports are not a data set."""
        run = self._finished_run(self._names.name("write_reports"), None, _QUIET)
        if not run.success:
            self._listener.logged("reports", f"WARNING: not written: {_failure_reason(run)}")

    def _run(
        self, artifact: Artifact, listed: LaunchResult, asset: dg.AssetKey, partition: str | None, *, force: bool, skip_if_busy: bool
    ) -> LaunchResult | None:
        """Execute the run of an artifact. Return None if another process builds this part and `skip_if_busy` is set."""
        started = self._started.get(listed.name, time.monotonic())
        if listed.name not in self._started:
            self._listener.started(listed.name, listed.family)
        self.passes_over, self.outcome = skip_if_busy, None
        waits = self._wait or artifact.is_shared  # where processes that share parts meet
        op = self._names.stream_ops.get(listed.family) or asset.to_python_identifier()
        config = {"force": force, "wait": waits and not skip_if_busy}
        settings = {"ops": {op: {"config": config}}} if asset != self._names.index else {}
        run = self._finished_run(job_of(self._names, asset), partition, {**settings, **_QUIET})
        folder = artifact.directory if in_store(artifact) is artifact else None
        result = replace(listed, directory=folder, seconds=time.monotonic() - started)
        outcome: Outcome | None = self.outcome
        if run.success:
            return None if outcome is None else _successful(result, artifact, run, outcome)
        if isinstance(artifact, SearchStep) and not force and self._graph.is_done(artifact.key):
            return replace(result, state="cache_hit")  # another process has finished the search
        return replace(result, state="failed", message=_failure_reason(run))

    def _finished_run(self, job: str, partition: str | None, run_config: Mapping[str, Any]) -> dg.ExecuteInProcessResult:
        """Execute a run and return its result.

        Raises:
            KeyboardInterrupt: If the run was interrupted, which is then ended as canceled.
        """
        run_id = str(uuid.uuid4())
        with recorded_run(self._instance, run_id):
            run = self._defs.resolve_job_def(job).execute_in_process(
                run_config, self._instance, partition, raise_on_error=False, run_id=run_id, tags=_NO_RETRY
            )
            if _was_interrupted(run):
                self._instance.report_run_canceled(run.dagster_run, message="Interrupted from the terminal.")
                raise KeyboardInterrupt
        return run


def _shared(key: str) -> str | None:
    """Return what the parts of one data set, or all ranges, have in common, or None for what one process builds."""
    return key.rpartition("/")[0] if key.partition("/")[0] in CHILD_BUILT_KINDS else None


def _successful(result: LaunchResult, artifact: Artifact, run: dg.ExecuteInProcessResult, outcome: Outcome) -> LaunchResult:
    """Return the result of a run without errors.

    Its message is the warning of the build and the failures of checks that do not block, except the check that covers all data sets.
    """
    found = [each for each in run.get_asset_check_evaluations() if not each.passed and each.check_name != IN_SYNC]
    messages = [*filter(None, [outcome.warning]), *(f"{each.check_name}: {each.description}" for each in found)]
    return replace(
        result,
        state=outcome.state,
        meta=None if isinstance(artifact, PartsPlan) or artifact.record is None else outcome.meta,
        message="; ".join(messages) or None,
        left_out=outcome.drops.requested or None,
        drop_warnings=outcome.drops.warnings,
    )


def _was_interrupted(run: dg.ExecuteInProcessResult) -> bool:
    causes = (event.step_failure_data.error for event in run.all_events if event.is_step_failure)
    return any(cause is not None and cause.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt") for cause in causes)


def _failure_reason(run: dg.ExecuteInProcessResult) -> str:
    """Return the reason of a failure in one line: the failure of a check, otherwise the error of the first failed step."""
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
                return recorded_error_message(cause.message, dagster_home()) or " ".join(cause.message.split())
    return f"run {run.run_id} failed; the Dagster UI shows its log"
