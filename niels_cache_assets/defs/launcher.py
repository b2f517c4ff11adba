"""Builds that a program starts through Dagster: each data set is one run in this process, and the runs are recorded for the UI.

`niels-cache build-all` uses the launcher, which has the same assets, checks, jobs and instance as the UI. It does not retry, and needs no
daemon. A listener (an object that receives the events) prints lines and progress bars. Dagster itself writes nothing to the console here.
"""

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob  # execute_in_process wraps a job in this class, which has no public name
from dagster._core.execution.api import execute_run
from dagster._core.execution.execute_in_process import merge_run_tags
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin  # the UI needs these to find the runs
from dagster._core.storage.tags import MAX_RETRIES_TAG

from niels_cache_assets.artifacts.base import Artifact, Outcome
from niels_cache_assets.artifacts.duplicates import SearchStep
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.input_problems import require_inputs
from niels_cache_assets.artifacts.parts.free_parts import FreePartsFirst
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.stored import in_store, read_finished
from niels_cache_assets.cluster.child import BuildInChild
from niels_cache_assets.corpus.layout import HASHES
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.checks.sync import IN_SYNC
from niels_cache_assets.defs.home.abandoned import ending_abandoned_runs, recorded_run
from niels_cache_assets.defs.home.home_errors import end_runs_that_cannot_record, home_errors, recorded_error_message
from niels_cache_assets.defs.home.instance import dagster_home, ensure_instance
from niels_cache_assets.defs.launch_events import LaunchFamily, LaunchListener, LaunchResult, LaunchState
from niels_cache_assets.defs.metadata.builds import DROPS, LEFT_OUT, state_in
from niels_cache_assets.defs.part_processes import build_in_children
from niels_cache_assets.defs.part_slots import limit_parts
from niels_cache_assets.defs.progress import ProgressSink
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.facts.progress import BuildProgress
from niels_cache_assets.parts.layout import CHILD_BUILT_KINDS, PART_KINDS
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.reports.page import page_path
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.reading import available_threads

_TOKENIZER_NAME, _DUPLICATES_NAME = "tokenizer", keys.DUPLICATES.to_user_string()
_RUNS: dict[str, tuple[LaunchFamily, str, dg.AssetKey]] = {  # by kind of artifact: family in the results, job, and asset with the results
    _TOKENIZER_NAME: ("tokenizer", keys.TOKENIZER_JOB, keys.TOKENIZER),
    "corpus": ("corpus", keys.CORPUS_JOB, keys.DOCUMENTS),
    _DUPLICATES_NAME: ("corpus", keys.DUPLICATES_JOB, keys.DUPLICATES),
    "corpus_part": ("corpus", keys.CORPUS_PARTS_JOB, keys.CORPUS_PARTS),
    HASHES: ("corpus", keys.HASHES_JOB, keys.HASHES),
    "range": ("corpus", keys.RANGES_JOB, keys.RANGES),
    "report": ("corpus", keys.REPORT_JOB, keys.REPORT),
    "plan": ("parts", keys.PLAN_JOB, keys.PLAN),
    "val_part": ("parts", keys.VAL_PART_JOB, keys.VAL_PART),
    "part": ("parts", keys.PARTS_JOB, keys.PARTS),
    "pretrain": ("pretrain", keys.FAMILY_JOBS["pretrain"], keys.META_KEYS["pretrain"]),
    "sft": ("sft", keys.FAMILY_JOBS["sft"], keys.META_KEYS["sft"]),
    "index": ("index", keys.INDEX_JOB, keys.INDEX),
}
_MISSING_MESSAGES = {_TOKENIZER_NAME: "there is no tokenizer", _DUPLICATES_NAME: "the duplicates could not be found"}
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# No captured compute logs, because they redirect stdout and stderr, which the progress bars of the listener need.
_INSTANCE_OVERRIDES = {"compute_logs": {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}}
# A retry by the daemon would use the settings and cache root of the code server, which may differ from the settings of this program.
_NO_RETRY = {MAX_RETRIES_TAG: "0"}
_REPOSITORY = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(keys.LOCATION), repository_name="__repository__")


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
    home = dagster_home()
    with (
        home_errors(home),
        ensure_instance(home, overrides=_INSTANCE_OVERRIDES) as instance,
        ending_abandoned_runs(instance),
        end_runs_that_cannot_record(instance, home),
    ):
        limit_parts(instance, registry)
        launcher = _Launcher(registry, root, instance, listener, wait=wait)
        for are_parts, group in groupby(order, key=_shared):
            steps = [all_artifacts[key] for key in group]
            if are_parts and (force or not all_artifacts.is_done(steps[0].key)) and not launcher.is_search_skipped(steps[0]):
                launcher.launch_parts(steps, force=force)
            for step in () if are_parts else steps:
                if force or not all_artifacts.is_done(step.key):
                    launcher.launch(step, force=retrained if step.key == all_artifacts.tokenizer().key else force)
        if any(result.state == "built" for result in launcher.results) or not page_path(root).exists():
            launcher.write_reports()
        return launcher.results


class _ListenerSink(ProgressSink):
    """A sink that passes everything to the listener.

    Attributes:
        ends: Ends of parts that were built ahead of their runs, by key.
        built: Keys of all artifacts that were built or found so far.
    """

    def __init__(self, listener: LaunchListener, *, builds_parts_here: bool = True) -> None:
        self._listener = listener
        self.builds_parts_here = builds_parts_here
        self.ends: dict[str, Outcome | NielsCacheError] = {}
        self.built: set[str] = set()

    def has_built(self, keys: Collection[str]) -> bool:
        return self.built.issuperset(keys)

    def outcome_of(self, key: str) -> Outcome | None:
        end = self.ends.pop(key, None)
        if isinstance(end, NielsCacheError):
            raise end
        return end

    def progressed(self, name: str, progress: BuildProgress) -> None:
        self._listener.progressed(name, progress)

    def logged(self, name: str, message: str) -> None:
        self._listener.logged(name, message)


@dataclass(frozen=True)
class _Step:
    """The run that builds an artifact.

    The last materialization of `op` has the result. If `op` has settings, `force` is one of them.
    """

    artifact: Artifact
    name: str
    family: LaunchFamily
    job: str
    op: str
    partition: str | None


class _Launcher:
    def __init__(self, registry: Registry, root: Path, instance: dg.DagsterInstance, listener: LaunchListener, *, wait: bool) -> None:
        self._registry = registry
        self._root = root
        self._instance = instance
        self._listener = listener
        self._graph: Graph = graph(registry, root)
        self._wait = wait
        self.results: list[LaunchResult] = []
        self._missing: dict[str, str] = {}  # for each missing artifact, by key: the reason that dependent artifacts show
        self._new: set[str] = set()  # keys that were built or found after the artifacts that use existing inputs were built
        cluster, self._at_once = registry.cluster, registry.cluster.parts_at_once(available_threads())
        is_plain = self._at_once == 1 and not cluster.command and not cluster.program
        self._sink = _ListenerSink(listener, builds_parts_here=is_plain or bool(registry.overrides))
        self._started: dict[str, float] = {}  # when parts were started ahead of their runs
        if self._sink.builds_parts_here and not is_plain and keys.has_shared_steps(registry):
            listener.logged("parts", "WARNING: built here, one at a time, because options of this command change settings of the file")
        resources = {"cache_root": CacheRoot(root=str(root)), "progress_sink": self._sink}
        self._defs = build_defs(resources, registry=registry)

    def launch_parts(self, parts: Sequence[Artifact], *, force: bool) -> None:
        """Build parts of one data set, or ranges, in children, several at a time ([cluster]), or here.

        Parts that other processes build are waited for.
        """
        if self._sink.builds_parts_here or force:
            pending = FreePartsFirst(parts)
            while (next_part := pending.take()) is not None:
                part, waits = next_part
                if not self.launch(part, force=force, skip_if_busy=not waits):
                    pending.defer(part)
            return
        ready: dict[str, BuildInChild] = {}
        for part in parts:
            if isinstance(part, BuildInChild) and self._missing.keys().isdisjoint(part.inputs()):
                ready[part.key] = part
            else:
                self.launch(part, force=False)  # it is skipped
        with closing(build_in_children([*ready.values()], at_once=self._at_once, home=dagster_home())) as events:
            for event in events:
                if event.key not in self._started:
                    self._started[event.key] = time.monotonic()
                    self._listener.started(event.key, "parts")
                if event.progress is not None:
                    self._listener.progressed(event.key, event.progress)
                if event.line is not None:
                    self._listener.logged(event.key, event.line)
                if event.end is not None:
                    self._sink.ends[event.key] = event.end
                    self.launch(ready[event.key], force=False)

    def launch(self, artifact: Artifact, *, force: bool, skip_if_busy: bool = False) -> bool:
        """Build one artifact, or skip it if an input is missing.

        Returns False if another process builds this part and `skip_if_busy` is set.
        """
        key, inputs = artifact.key, artifact.inputs()
        kind, _, name = key.partition("/")
        reasons = [self._missing[each] for each in inputs if each in self._missing]
        if kind in ("corpus", "report", HASHES):  # the caches of these artifacts report the missing input
            has_nothing_new = artifact.builds_from_partial_inputs and self._new.isdisjoint(inputs)
            if _TOKENIZER_NAME in self._missing or has_nothing_new or (kind == "report" and reasons):
                return True
            reasons = [self._missing[each] for each in self._graph.before(key) if each in self._missing] if kind == "corpus" else []
        elif kind in (*PART_KINDS, *CHILD_BUILT_KINDS):
            pass
        elif kind == "index":
            unbuildable = [member for member in self._registry.blend[name].weights if self._cannot_be_built(member)]
            reasons = [f"{', '.join(unbuildable)} could not be built"] if unbuildable else []
        elif kind in FAMILIES:
            source = self._registry.source(name)
            missing = source.missing_setting()
            if not source.enabled:
                reasons = [f"is switched off: set enabled = true in [{kind}.{name}]"]
            elif missing is not None:
                reasons = [f"needs {missing}"]
        else:
            reasons = []  # a tokenizer is trained on the corpora that exist
        step = _step(artifact)
        result: LaunchResult | None
        if reasons:
            result = LaunchResult(name=step.name, family=step.family, state="skipped", message=reasons[0])
        else:
            result = self._run(step, force=force, skip_if_busy=skip_if_busy)
        if result is None:
            return False
        self._listener.finished(result)
        self.results.append(result)
        if result.state in ("failed", "skipped"):
            self._missing[key] = _MISSING_MESSAGES.get(
                key,
                f"{key} could not be built"
                if kind in (*PART_KINDS, *CHILD_BUILT_KINDS, HASHES)
                else f"the {kind} of {name} could not be prepared",
            )
        else:
            self._missing.pop(key, None)
            self._new.add(key)
            self._sink.built.add(key)
        if artifact.builds_from_partial_inputs and kind != HASHES:  # the drop lists follow the hashes, and use the same documents
            self._new.difference_update([*inputs, HASHES])
        return True

    def is_search_skipped(self, part: Artifact) -> bool:
        """Return whether a part is a range of a search whose hashes were left out, because no corpus is new."""
        return HASHES in part.inputs() and HASHES not in self._new and HASHES not in self._missing

    def _cannot_be_built(self, member: str) -> bool:
        """Return whether a member of a blend failed, was skipped, is switched off, or lacks a setting."""
        return f"pretrain/{member}" in self._missing or member not in self._registry.partition_keys("pretrain")

    def write_reports(self) -> None:
        """Write the reports over everything. The listener gets only a failure, because the reports are not a data set."""
        run = self._finished_run(keys.REPORTS_JOB, None, _QUIET)
        if not run.success:
            self._listener.logged(keys.REPORTS_GROUP, f"WARNING: not written: {_failure_reason(run)}")

    def _run(self, step: _Step, *, force: bool, skip_if_busy: bool) -> LaunchResult | None:
        """Execute the run of a step. Return None if another process builds this part and `skip_if_busy` is set."""
        started = self._started.get(step.name, time.monotonic())
        if step.name not in self._started:
            self._listener.started(step.name, step.family)
        is_part = step.artifact.key.partition("/")[0] in CHILD_BUILT_KINDS
        waits = self._wait or step.artifact.is_shared  # where processes that share parts meet
        config = {"force": force, "wait": waits and not skip_if_busy, **({"pass_over": skip_if_busy} if is_part else {})}
        settings = {"ops": {step.op: {"config": config}}} if step.family != "index" else {}
        run = self._finished_run(step.job, step.partition, {**settings, **_QUIET})
        folder = step.artifact.directory if in_store(step.artifact) is step.artifact else None
        result = LaunchResult(name=step.name, family=step.family, state="failed", directory=folder)
        if run.success:
            recorded = run.asset_materializations_for_node(step.op)
            if not recorded and is_part:
                return None
            metadata = recorded[-1].metadata
            state = cast(LaunchState, state_in({name: value.value for name, value in metadata.items()}))
            result = replace(
                result, state=state, meta=_meta_of(step.artifact), message=_run_warnings(run, metadata), **_drops_from_metadata(metadata)
            )
        elif isinstance(step.artifact, SearchStep) and not force and self._graph.is_done(step.artifact.key):
            result = replace(result, state="cache_hit")  # another process has finished the search
        else:
            result = replace(result, message=_failure_reason(run))
        return replace(result, seconds=time.monotonic() - started)

    def _finished_run(self, job: str, partition: str | None, run_config: Mapping[str, Any]) -> dg.JobExecutionResult:
        """Execute a run and return its result.

        Raises:
            KeyboardInterrupt: If the run was interrupted, which is then ended as canceled.
        """
        run_id = str(uuid.uuid4())
        with recorded_run(self._instance, run_id):
            run = self._execute(self._defs.resolve_job_def(job), partition, run_id, run_config)
            if _was_interrupted(run):
                self._instance.report_run_canceled(run.dagster_run, message="Interrupted from the terminal.")
                raise KeyboardInterrupt
        return run

    def _execute(self, job: dg.JobDefinition, partition: str | None, run_id: str, run_config: Mapping[str, Any]) -> dg.JobExecutionResult:
        """Execute a job in the same way as Dagster's execute_in_process, and also record the job of the run.

        Without this record, the UI shows the run on no timeline and below no job.
        """
        in_process = job.as_ephemeral_job(resource_defs={}, input_values={})
        run = self._instance.create_run_for_job(
            job_def=in_process,
            run_id=run_id,
            run_config=run_config,
            tags=merge_run_tags(job, partition, _NO_RETRY, None, self._instance, run_config),
            remote_job_origin=_REPOSITORY.get_job_origin(job.name),
        )
        return execute_run(InMemoryJob(in_process), run, self._instance)


def _shared(key: str) -> str | None:
    """Return what the parts of one data set, or all ranges, have in common, or None for what one process builds."""
    return key.rpartition("/")[0] if key.partition("/")[0] in CHILD_BUILT_KINDS else None


def _step(artifact: Artifact) -> _Step:
    """Return the run that builds an artifact. A data set is listed by its name, everything else by its key."""
    kind, _, name = artifact.key.partition("/")
    partition: str | None = name
    if artifact.key in (_TOKENIZER_NAME, _DUPLICATES_NAME, HASHES):  # these artifacts have no partitions
        kind, partition = artifact.key, None
    family, job, asset = _RUNS[kind]
    listed_as, op = (name, keys.STREAM_OPS[kind]) if kind in FAMILIES else (artifact.key, asset.to_python_identifier())
    return _Step(artifact=artifact, name=listed_as, family=family, job=job, op=op, partition=partition)


def _run_warnings(run: dg.JobExecutionResult, metadata: Mapping[str, dg.MetadataValue[Any]]) -> str | None:
    """Return the warning of a run and the failures of its checks that do not block, except the check that covers all data sets."""
    messages = [str(metadata["warning"].value)] if "warning" in metadata else []
    for evaluation in run.get_asset_check_evaluations():
        if not evaluation.passed and evaluation.check_name != IN_SYNC:
            messages.append(f"{evaluation.check_name}: {evaluation.description}")
    return "; ".join(messages) or None


def _drops_from_metadata(metadata: Mapping[str, dg.MetadataValue[Any]]) -> dict[str, Any]:
    entries = {key: str(metadata[key].value) for key in (LEFT_OUT, DROPS) if key in metadata}
    return {"left_out": entries.get(LEFT_OUT), "drop_warnings": entries.get(DROPS, "").splitlines()}


def _was_interrupted(run: dg.JobExecutionResult) -> bool:
    causes = (event.step_failure_data.error for event in run.all_events if event.is_step_failure)
    return any(cause is not None and cause.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt") for cause in causes)


def _failure_reason(run: dg.JobExecutionResult) -> str:
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


def _meta_of(artifact: Artifact) -> Meta | None:
    """Return the record of an artifact that was built or found, or None for a plan, and for a step of a search that is finished."""
    if isinstance(artifact, PartsPlan) or artifact.record is None:
        return None
    try:
        return read_finished(artifact)
    except NielsCacheError:
        if not isinstance(artifact, SearchStep):
            raise
        return None  # another process has finished the search just now
