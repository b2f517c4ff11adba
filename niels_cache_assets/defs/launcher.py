"""Builds that a program starts: what is current is found, and everything else is built by runs of Dagster (runs.py).

`niels-cache build-all` uses the launcher. A listener (an object that receives the events) prints lines and progress bars. What is current,
and recorded in the Dagster home already (home/found.py), costs a few small reads, and no check is executed again. Dagster, which takes
seconds to import, is opened only for the rest.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.artifacts.base import Artifact, Outcome, kind_of, listed_name
from niels_cache_assets.artifacts.duplicates import SearchStep
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import find_current
from niels_cache_assets.artifacts.parts.free_parts import FreePartsFirst
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.stored import in_store
from niels_cache_assets.base.wording import format_list
from niels_cache_assets.corpus.layout import HASHES
from niels_cache_assets.defs.home.found import dagster_home, digests_path, has_abandoned_runs, mark_unchecked, marker_of, unchecked_run
from niels_cache_assets.defs.launch_events import LaunchListener, LaunchResult
from niels_cache_assets.defs.part_slots import has_shared_steps
from niels_cache_assets.parts.layout import CHILD_BUILT_KINDS, PART_KINDS
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.reports import page_path
from niels_cache_assets.sources.reading.digests import remember_digests
from niels_cache_assets.tokenizer.engines import load_in_background
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES
from niels_cache_runtime.format.reading import available_threads

if TYPE_CHECKING:
    from niels_cache_assets.defs.runs import Runs

_WAIT_FOR_THEIR_CACHES = ("corpus", "report", HASHES)  # kinds that report no missing input, because their caches do
_OWN_FAMILIES = ("tokenizer", *FAMILIES, "index", "suffixes")  # kinds of artifacts that are a family of results


def launch_builds(
    registry: Registry,
    *,
    root: Path,
    only: Sequence[str] | None = None,
    force: bool = False,
    wait: bool = False,
    record: bool = False,
    listener: LaunchListener,
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
        record: Whether to look into the database for everything that is found; by default what a marker says is believed.
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
        from niels_cache_assets.artifacts.input_problems import require_inputs

        require_inputs(registry, [key.partition("/")[2] for key in order if kind_of(key) in FAMILIES])
    with ExitStack() as opened, remember_digests(digests_path()):
        launcher = _Launcher(registry, root, opened, listener, wait=wait, record=record)
        for are_parts, group in groupby(order, key=_shared):
            steps = [all_artifacts[key] for key in group]
            if are_parts and (force or not all_artifacts.is_done(steps[0].key)):
                launcher.launch_parts(steps, force=force)
            for step in () if are_parts else steps:
                if force or not all_artifacts.is_done(step.key):
                    launcher.launch(step, force=retrained if step.key == "tokenizer" else force)
        is_new = any(result.state == "built" for result in launcher.results)
        if (
            is_new or record or not page_path(root).exists() or has_abandoned_runs()
        ):  # opening the runs ends those; one may be that of the reports
            launcher.runs.write_reports(in_run=is_new)
        return launcher.results


class _Launcher:
    """A launch, whose results are in `results`."""

    def __init__(self, registry: Registry, root: Path, opened: ExitStack, listener: LaunchListener, *, wait: bool, record: bool) -> None:
        self._registry, self._root, self._opened, self._listener = registry, root, opened, listener
        self._wait, self._record = wait, record
        self._graph = graph(registry, root)
        self.results: list[LaunchResult] = []
        off = {name: f"is switched off: set enabled = true in [{registry.family_of(name)}.{name}]" for name in registry.switched_off()}
        reasons = off | {name: f"needs {setting}" for name, setting in registry.unconfigured().items()}
        self._unconfigured = {f"{registry.family_of(name)}/{name}": reason for name, reason in reasons.items()}
        self._missing = {*self._unconfigured}  # keys of artifacts that cannot be built or could not be built
        self._new: set[str] = set()  # keys that were built or found since the artifacts that use existing inputs were built
        self._built: set[str] = set()  # keys that were built or found
        self._started: dict[str, float] = {}  # when parts were started ahead of their runs
        cluster, self._at_once = registry.cluster, registry.cluster.parts_at_once(available_threads())
        is_plain = self._at_once == 1 and not cluster.command and not cluster.program
        self._builds_parts_here = is_plain or bool(registry.overrides)
        if self._builds_parts_here and not is_plain and has_shared_steps(registry):
            listener.logged("parts", "WARNING: built here, one at a time, because options of this command change settings of the file")

    @cached_property
    def runs(self) -> "Runs":
        """The runs of this launch, which import Dagster and open its home."""
        from niels_cache_assets.defs.runs import open_runs

        runs = self._opened.enter_context(open_runs(self._registry, self._root.absolute(), self._listener))
        runs.built, runs.builds_parts_here = self._built, self._builds_parts_here
        return runs

    def launch_parts(self, parts: Sequence[Artifact], *, force: bool) -> None:
        """Build parts of one data set, or ranges, in children, several at a time ([cluster]), or here.

        Parts that other processes build are waited for.
        """
        if self._builds_parts_here or force:
            pending = FreePartsFirst(parts)
            for part, waits in pending:
                if not self.launch(part, force=force, skip_if_busy=not waits):
                    pending.defer(part)
            return
        from niels_cache_assets.cluster.child import BuildInChild
        from niels_cache_assets.defs.part_processes import build_in_children

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
            on_end=lambda part, end: self.launch(part, force=False, end=end),  # records what its child has done ahead of its run
        )

    def launch(self, artifact: Artifact, *, force: bool, skip_if_busy: bool = False, end: Outcome | NielsCacheError | None = None) -> bool:
        """Find or build one artifact, or skip it if an input is missing. `end` is its end if it was found or built ahead.

        Returns False if another process builds this part and `skip_if_busy` is set.
        """
        if self._is_left_out(artifact):
            return True
        key, kind = artifact.key, artifact.kind
        family: Any = "parts" if kind in PART_KINDS else kind if kind in _OWN_FAMILIES else "corpus"
        listed = LaunchResult(name=listed_name(key), family=family, state="skipped", message=self._reason_to_skip(artifact))
        result = listed if listed.message else self._result(artifact, listed, end, force=force, skip_if_busy=skip_if_busy)
        if result is None:
            return False
        self._listener.finished(result)
        self.results.append(result)
        if result.state in ("failed", "skipped"):
            self._missing.add(key)
        else:
            self._missing.discard(key)
            self._new.add(key)
            self._built.add(key)
        if artifact.builds_from_partial_inputs and kind != HASHES:  # the drop lists follow the hashes, and use the same documents
            self._new.difference_update([*artifact.inputs(), HASHES])
        return True

    def _is_left_out(self, artifact: Artifact) -> bool:
        """Return whether an artifact has no result, because no input of it is new, or because its caches report the missing input."""
        kind, inputs = artifact.kind, {*artifact.inputs()}
        if kind in _WAIT_FOR_THEIR_CACHES and ("tokenizer" in self._missing or (kind == "report" and self._reason_to_skip(artifact))):
            return True
        uses_new_inputs = artifact.builds_from_partial_inputs or (kind == "range" and inputs.isdisjoint(self._missing))
        return kind != "tokenizer" and uses_new_inputs and inputs.isdisjoint(self._new)

    def _reason_to_skip(self, artifact: Artifact) -> str | None:
        """Return why an artifact cannot be built: its settings, or an input that could not be built."""
        needed = self._graph.before(artifact.key) if artifact.builds_from_partial_inputs else artifact.inputs()
        missing = [listed_name(each) for each in needed if each in self._missing]
        return self._unconfigured.get(artifact.key) or (f"{format_list(missing)} could not be built" if missing else None)

    def _result(
        self, artifact: Artifact, listed: LaunchResult, end: Outcome | NielsCacheError | None, *, force: bool, skip_if_busy: bool
    ) -> LaunchResult | None:
        """Find or build an artifact, and record it. Return None if another process builds this part and `skip_if_busy` is set."""
        started = self._started.get(listed.name, time.monotonic())
        if listed.name not in self._started:
            self._listener.started(listed.name, listed.family)
        outcome = end if isinstance(end, Outcome) and end.state == "cache_hit" else None
        if end is None and not force:
            outcome = self._find(artifact)
        is_found, checks = outcome is not None, ""
        if outcome is None:
            if end is not None:
                self.runs.ends[artifact.key] = end
            elif listed.family in ("tokenizer", "pretrain") and self._registry.pretrain and self._registry.build.threads is None:
                load_in_background(self._registry.tokenizer, self._root, partial(self._listener.logged, "tokenizer"))
            waits = self._wait or artifact.is_shared  # where processes that share parts meet
            outcome, checks = self.runs.build(artifact, force=force, wait=waits and not skip_if_busy, passes_over=skip_if_busy)
        folder = artifact.directory if in_store(artifact) is artifact else None
        result = replace(listed, directory=folder, seconds=time.monotonic() - started)
        if outcome is None and not checks:
            return None
        if outcome is None:
            if isinstance(artifact, SearchStep) and not force and self._graph.is_done(artifact.key):
                return replace(result, state="cache_hit")  # another process has finished the search
            mark_unchecked(artifact)
            return replace(result, state="failed", message=checks)
        marker = marker_of(self._graph, artifact, outcome)
        is_recorded = is_found and not self._record and marker.is_current
        if is_found and not is_recorded:
            runs = self.runs  # a home that cannot be used ends the launch
            try:
                runs.record(replace(outcome, directory=outcome.directory.absolute()))
            except NielsCacheError as error:
                return replace(result, state="failed", message=str(error))
        if not is_recorded and not outcome.kept:  # what upstream has now is not recorded while it cannot be reached
            marker.write()
        return replace(
            result,
            state=outcome.state,
            meta=None if isinstance(artifact, PartsPlan) or artifact.record is None else outcome.meta,
            message="; ".join(filter(None, [outcome.warning, checks])) or None,
            left_out=outcome.drops.requested or None,
            drop_warnings=outcome.drops.warnings,
        )

    def _find(self, artifact: Artifact) -> Outcome | None:
        """Return the outcome if the artifact is current, or None if a run must build it, or must say why it cannot."""
        name, run_id = listed_name(artifact.key), unchecked_run(artifact)
        if run_id == "":
            return None
        try:
            found = find_current(artifact, partial(self._listener.logged, name))
        except Exception:  # any error of a source; the run that follows reports it
            return None
        if found is not None and run_id and not self.runs.has_passed(artifact, run_id):
            return None
        if found is not None and found.warning:
            self._listener.logged(name, f"WARNING: {found.warning}")
        return found


def _shared(key: str) -> str | None:
    """Return what the parts of one data set, or all ranges, have in common, or None for what one process builds."""
    return key.rpartition("/")[0] if kind_of(key) in CHILD_BUILT_KINDS else None
