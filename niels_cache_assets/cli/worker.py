"""The work of `part`: one artifact of a data set in parts, built in this process, without Dagster.

Programs read stdout, one JSON object per line (docs/cluster.md). People read stderr. If a reader ends, the build continues, and its lines
are dropped.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.processes import InterruptRequested, stop_on_signals
from niels_cache_assets.base.wording import format_list
from niels_cache_assets.cli.command import BUG, BUSY, DONE, TERMINATED, WHERE, BuildFailedError, exit_code
from niels_cache_assets.cli.console import PROGRAM, diagnostics, ignore_output_errors, print_error, stdout
from niels_cache_assets.corpus.layout import HASHES
from niels_cache_assets.defs.launch_events import LaunchListener, LaunchResult
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.artifacts.base import Artifact, Outcome
    from niels_cache_assets.artifacts.corpus import Corpus
    from niels_cache_assets.artifacts.duplicates import Duplicates
    from niels_cache_assets.artifacts.graph import Graph
    from niels_cache_assets.artifacts.parts.seal import JoinedCache
    from niels_cache_assets.artifacts.tokenizer import Tokenizer
    from niels_cache_assets.project.registry import Registry
    from niels_cache_runtime.format.meta import Meta

_SECONDS = 1.0  # between two lines of progress


class JsonLines:
    """The output of one build: JSON lines on stdout, and the same for people through a listener.

    Args:
        notify: Whether to send `[notify]` messages.

    Attributes:
        notify: Whether to send `[notify]` messages.
        key: Name of the artifact.
        listener: The listener. Before the build starts, it ignores everything.
    """

    def __init__(self, *, notify: bool) -> None:
        self.notify = notify
        self.key: str | None = None
        self.listener = LaunchListener()
        self._last = -_SECONDS

    def write_event(self, event: str, **values: Any) -> None:
        """Print one line on stdout."""
        line = json.dumps({"event": event, "key": self.key, **values}, default=os.fspath)
        with ignore_output_errors(stdout()):
            print(line, file=stdout(), flush=True)

    def log(self, message: str) -> None:
        self.write_event("log", message=message)
        self._forward("logged", message)

    def progress(self, progress: Any) -> None:
        now = time.monotonic()
        if now - self._last >= _SECONDS:
            self._last = now
            self.write_event("progress", **progress.counts, share=progress.share)
        self._forward("progressed", progress)

    def started(self, key: str) -> None:
        self.key = key
        self._forward("started", "parts")

    def finished(self, outcome: Outcome) -> None:
        from niels_cache_assets.tokenizer.encoder import EngineUse
        from niels_cache_runtime.format.layout import SPLITS

        meta = outcome.meta
        counts: dict[str, Any] = {"documents": _documents(meta)}
        if meta["kind"] == "pretrain":
            tokens = {split: meta[f"{split}_tokens"] for split in SPLITS}
            short = meta["part"]["short"] if "part" in meta else sum(part["short"] for part in meta["parts"])
            counts = {"tokens": tokens, **counts, "short": short}
        self.write_event(
            "result",
            state=outcome.state,
            directory=outcome.directory.absolute(),
            resumed=outcome.resumed,
            seconds=round(outcome.seconds, 3),
            warning=outcome.warning,
            left_out=outcome.drops.requested,
            drop_warnings=[*outcome.drops.warnings],
            **counts,
            **EngineUse.notes(outcome.engines),
            content_sha256=meta["content_sha256"],
            meta_sha256=meta["meta_sha256"],
        )
        with ignore_output_errors(sys.stderr):
            self.listener.finished(
                LaunchResult(name=self.key or "", family="parts", state=outcome.state, seconds=outcome.seconds, message=outcome.warning)
            )
        for line in outcome.drops.warnings:
            self._forward("logged", f"WARNING: {line}")

    def failed(self, error: BaseException, code: int) -> int:
        """Print the error on stdout, and return the exit code."""
        self.write_event("error", message=" ".join(str(error).split()), exit_code=code)
        return code

    def _forward(self, method: str, value: Any) -> None:
        with ignore_output_errors(sys.stderr):
            getattr(self.listener, method)(self.key or "", value)


def build_and_report(choose: Callable[[JsonLines], Artifact], *, wait: bool, notify: bool) -> int:
    """Build an artifact, and return the exit code.

    Args:
        choose: Returns the artifact, after the artifacts that it needs first are built.
        wait: Whether to wait while another process builds it.
        notify: Whether to send `[notify]` messages.

    Raises:
        NielsCacheError: If the use or a setting is wrong, or an input is missing.
        InterruptRequested: If the build was interrupted.
        Exception: Any unexpected error, after its line on stdout.
    """
    from niels_cache_assets.cli.progress import build_listener
    from niels_cache_assets.parts.lease import LeaseLostError, StopRequested
    from niels_cache_runtime.format.commit import BusyError

    lines = JsonLines(notify=notify)
    try:
        with stop_on_signals(), build_listener(diagnostics()) as lines.listener:
            artifact = choose(lines)
            lines.started(artifact.key)
            outcome = _build(artifact, lines, wait=wait, progress=lines.progress)
            lines.finished(_with_warnings_of_splits(artifact, outcome))
    except (BusyError, LeaseLostError, StopRequested) as error:
        print_error(str(error) if isinstance(error, StopRequested) else f"error: {error}")
        return lines.failed(error, TERMINATED if isinstance(error, StopRequested) else BUSY)
    except InterruptRequested as interrupt:
        lines.failed(interrupt, interrupt.exit_code)
        raise
    except Exception as error:
        lines.failed(error, exit_code(error) if isinstance(error, NielsCacheError) else BUG)
        raise
    return DONE


def _build(artifact: Artifact, lines: JsonLines, *, wait: bool, progress: Callable[[Any], None] | None) -> Outcome:
    """Build an artifact. If another process takes it over and `wait` is set, wait for that process."""
    from niels_cache_assets.artifacts.materialize import materialize
    from niels_cache_assets.parts.lease import LeaseLostError, StopRequested, StopRequests, stop_stamp
    from niels_cache_runtime.format.commit import BusyError

    if artifact.is_shared:
        stops = artifact.stops or StopRequests(stale=stop_stamp(artifact.lease_target))
        artifact = replace(artifact, stops=replace(stops, on_stop=lambda: os.kill(os.getpid(), signal.SIGTERM)))
    try:
        return materialize(artifact, wait=wait, on_progress=progress, log=lines.log, notify=lines.notify)
    except (BusyError, LeaseLostError, StopRequested):
        raise
    except NielsCacheError as error:
        raise BuildFailedError(str(error)) from error


def _with_warnings_of_splits(artifact: Artifact, outcome: Outcome) -> Outcome:
    """Return the outcome of a seal with what `build-all` reports after its checks. Other outcomes stay as they are."""
    from niels_cache_assets.artifacts.parts.seal import JoinedCache
    from niels_cache_assets.inspection.splits import warnings_of_splits

    if not isinstance(artifact, JoinedCache):
        return outcome
    spec, said = artifact.spec, [outcome.warning]
    try:
        said += warnings_of_splits(spec.registry, spec.name, spec.root, outcome.meta)
    except NielsCacheError as error:  # the cache is finished
        said.append(f"train and val are not compared: {error}")
    return replace(outcome, warning="; ".join(line for line in said if line) or None)


def _build_input(artifact: Artifact, lines: JsonLines, *, progress: Callable[[Any], None] | None = None) -> None:
    lines.started(artifact.key)
    _build(artifact, lines, wait=True, progress=progress)


def ready_dataset(artifacts: Graph, name: str, lines: JsonLines) -> JoinedCache:
    """Return the cache of a data set in parts whose tokenizer and plan exist. Make them if they are missing.

    With `prepare`, the corpus takes the place of the plan, and must exist.

    Raises:
        NielsCacheError: If the data set is unknown, switched off or not in parts, or if the plan or corpus has other settings.
        BuildFailedError: If the tokenizer or the plan cannot be made.
    """
    from niels_cache_assets.artifacts.input_problems import require_inputs
    from niels_cache_assets.artifacts.stored import in_store

    registry = artifacts.registry
    _require_switched_on(registry, name)
    source = registry.pretrain[name]
    if source.corpus_parts > 1 and not source.is_in_parts:
        problem = "has prepare or steps, so its corpus is in parts, and not its cache; add --corpus, or set tokens_in_parts"
        raise NielsCacheError(f"{registry.origin}: {name} {problem}")
    sealed = artifacts.sealed(name)
    sealed.unavailable()
    tokenizer, plan = artifacts.tokenizer(), sealed.spec.parts_plan
    if in_store(tokenizer).finished() is None:
        if tokenizer.inputs():
            first = f"{PROGRAM} build-all --only tokenizer"
            raise NielsCacheError(f"{tokenizer.directory}: the tokenizer is trained on prepared texts; make it first: {first}")
        if not tokenizer.is_imported:
            require_inputs(registry, registry.partition_keys())
        _build_input(tokenizer, lines)
    _require_current(tokenizer)
    if source.has_corpus:
        sealed.revision()  # raises if the corpus or its drop list is not current
        return sealed
    if in_store(plan).finished() is None:
        _build_input(plan, lines)
    plan.read()
    if sealed.spec.source.has_val_part:
        in_store(sealed.val_part()).finished()  # copies it from the store
    return sealed


def _require_current(tokenizer: Tokenizer) -> None:
    """Check that the tokenizer has the settings of the configuration. A part does not replace what others use.

    Raises:
        NielsCacheError: If it has other settings.
    """
    if tokenizer.is_stale():
        others = format_list(tokenizer.users())
        used = f", and then {others} too" if others else ""
        raise NielsCacheError(
            f"{tokenizer.directory}: the tokenizer has other settings than [tokenizer] in {tokenizer.registry.origin}; undo the change, or "
            f"build it again{used}: {PROGRAM} build-all --only tokenizer"
        )


def ready_corpus(artifacts: Graph, name: str, lines: JsonLines) -> Corpus:
    """Return the corpus of a data set in parts whose plan exists. Make the plan if it is missing.

    Raises:
        NielsCacheError: As `ready_dataset` does.
        BuildFailedError: As `ready_dataset` does.
    """
    _require_switched_on(artifacts.registry, name)
    artifacts.corpus(name).unavailable()
    corpus = artifacts.joined_corpus(name)
    if "tokenizer" in corpus.inputs():
        _require_current(artifacts.tokenizer())
    if corpus.parts_plan.finished() is None:
        _build_input(corpus.parts_plan, lines)
    corpus.parts_plan.read()
    return corpus


def ready_search(artifacts: Graph, name: str, lines: JsonLines) -> Duplicates:
    """Return the search for duplicates, whose hashes exist unless its drop lists are current. Make the hashes if they are missing.

    Args:
        artifacts: The graph of artifacts.
        name: A data set that is searched.
        lines: Output of the build.

    Raises:
        NielsCacheError: If the data set has no current corpus, or if the search is not in ranges.
        BuildFailedError: If the hashes cannot be made.
    """
    _require_switched_on(artifacts.registry, name)
    origin, duplicates = artifacts.registry.origin, artifacts.duplicates()
    if name not in artifacts.registry.prepared("dedup"):
        raise NielsCacheError(f'{origin}: {name} is not searched for duplicates; add "dedup" to prepare in [pretrain.{name}]')
    if name in duplicates.required.missing:
        raise NielsCacheError(duplicates.required.missing[name])
    if duplicates.ranges == 1:
        raise NielsCacheError(f"{origin}: the search for duplicates is not in ranges; set ranges in [dedup]")
    if not artifacts.is_done(HASHES):
        if (warning := duplicates.warning()) is not None:
            lines.log(f"WARNING: {warning}")
        _build_input(duplicates.hashes(), lines, progress=lines.progress)
    return duplicates


def _documents(meta: Meta) -> dict[str, int]:
    if meta["kind"] != "duplicates":
        return dict(meta["documents"])
    found = meta["datasets"].values()
    return {"searched": sum(each["documents"] for each in found), "dropped": sum(each["exact"] + each["near"] for each in found)}


def require_name(registry: Registry, name: str) -> None:
    """Check that this is the name of a pretrain data set.

    Raises:
        NielsCacheError: If it is not.
    """
    if name not in registry.pretrain:
        registry.refuse_data_set(WHERE, "no pretrain data set", name, list(registry.pretrain))


def _require_switched_on(registry: Registry, name: str) -> None:
    require_name(registry, name)
    if name in registry.switched_off():
        raise NielsCacheError(f"{registry.origin}: {name} is switched off; set enabled = true in [pretrain.{name}]")


def ready_seal(artifacts: Graph, name: str, lines: JsonLines) -> Artifact:
    """Return the cache or the corpus whose finished parts are joined next. If both are in parts, the corpus is joined first."""
    if name not in artifacts.registry.corpora_in_parts():
        return ready_dataset(artifacts, name, lines)
    corpus = ready_corpus(artifacts, name, lines)
    if name in artifacts.registry.in_parts() and artifacts.is_done(corpus.part(0).key):
        return ready_dataset(artifacts, name, lines)
    return corpus
