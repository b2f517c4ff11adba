"""What happens to a data set in parts now: which steps are done, running, waiting or failed, and what they cost.

A step is known by its lease (parts/lease.py), so any machine that shares the folder sees it, whatever engine started it. The time of the
last renewal is that of the file, and is compared with the clock of this machine. Cost: two small reads a step, its lease and its record.
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from niels_cache_assets.artifacts.base import Artifact, lease_times
from niels_cache_assets.artifacts.corpus import JoinedCorpus
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.parts.seal import SealedDataset
from niels_cache_assets.base.wording import format_duration
from niels_cache_assets.disk.attempts import attempt_record
from niels_cache_assets.disk.build_lock import path_stamp
from niels_cache_assets.facts.progress import describe
from niels_cache_assets.parts.lease import DONE, STOPPED, LeaseHolder, has_died, latest
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import read_meta

RUNNING, SILENT, FAILED, WAITING = "running", "silent", "failed", "waiting"
STATES = (SILENT, FAILED, STOPPED, RUNNING, WAITING, DONE)  # first those that need attention


class WatchedStep(NamedTuple):
    """A step of a build.

    Attributes:
        key: The key of its artifact.
        state: One of STATES. SILENT: the lease was not renewed in time, because the process was killed or is frozen, or its machine is
            lost. WAITING: never begun, or what was built is gone or has other settings.
        attempt: The latest attempt, or None if the step was never begun.
        reason: Who makes this attempt, how far it is, and why it has ended.
    """

    key: str
    state: str
    attempt: LeaseHolder | None
    reason: str


def watch_steps(graph: Graph, name: str) -> list[WatchedStep]:
    """Return the steps of a data set that have leases, those that need attention first, and otherwise in build order.

    Raises:
        NielsCacheError: If there is no data set in parts with this name.
    """
    graph.plan(name)
    artifacts = {key: graph[key] for key in graph.order([name])}
    for joined in [*artifacts.values()]:
        if isinstance(joined, JoinedCorpus | SealedDataset):
            with suppress(NielsCacheError):  # there is no plan yet; otherwise its parts need not read it again
                artifacts |= {member.key: member for member in joined.members()}
    steps = [_step(graph, artifact) for artifact in artifacts.values() if artifact.is_shared]
    return sorted(steps, key=lambda step: STATES.index(step.state))


def _step(graph: Graph, artifact: Artifact) -> WatchedStep:
    key, target, seen = artifact.key, artifact.lease_target, latest(artifact.lease_target)
    attempt = None if seen is None else seen.holder
    try:
        meta = read_meta(str(artifact.directory / (artifact.record or META_NAME)))
        is_done = artifact.matches(meta, artifact.identity(meta.get("dataset_revision")))
    except NielsCacheError:
        is_done = graph.is_done(key)  # it was removed because nothing needs it any more
    if seen is None or attempt is None:
        return WatchedStep(key, DONE if is_done else WAITING, None, "never begun")
    state, reasons = RUNNING, [f"{attempt.writer.host} since {attempt.writer.since}"]
    if attempt.counts:
        reasons.append(describe(attempt, attempt.speed, with_share=True))
    if is_done or attempt.ended is not None:
        state = DONE if is_done else {DONE: WAITING, STOPPED: STOPPED}.get(attempt.ended or "", FAILED)
        reasons.append(attempt.ended or "")
    elif (renewed := path_stamp(attempt_record(target, seen.attempt))) is not None:
        seconds = time.time() - renewed[1] / 1e9
        if seconds > lease_times(graph.registry).lease_seconds or has_died(target, seen):
            state = SILENT
            reasons.append(f"last renewed {format_duration(seconds)} ago")
    if attempt.log is not None:
        reasons.append(f"log: {attempt.log}")
    return WatchedStep(key, state, attempt, "; ".join(reasons))


def summarize_steps(steps: Sequence[WatchedStep]) -> dict[str, Any]:
    """Return figures of the steps.

    `states` counts the steps by state. `core_hours` are hours of CPU time, those of killed attempts up to their last renewal.
    `seconds_left` is the time until all steps of the kinds that are running are done, at the present speed, or None if it is unknown.
    """
    hours, speeds, left = Counter[str](), Counter[str](), Counter[str]()  # by kind: steps per second, and steps
    for step in steps:
        kind, attempt = step.key.partition("/")[0], step.attempt
        share_left = 0 if step.state == DONE else 1 - ((attempt and attempt.share) or 0)
        left[kind] += share_left
        if attempt is not None:
            finished, others = attempt.all_cpu_seconds()
            running = attempt.cpu_seconds if step.state == RUNNING else 0
            hours.update({"finished": finished / 3600, RUNNING: running / 3600, "lost": (others - running) / 3600})
            if running and attempt.speed.seconds_left:
                speeds[kind] += share_left / attempt.speed.seconds_left
    seconds = max((left[kind] / speed for kind, speed in speeds.items()), default=None)
    return {"states": Counter(step.state for step in steps), "core_hours": hours, "seconds_left": seconds}


def describe_steps(steps: Sequence[WatchedStep]) -> str:
    """Return the figures of `summarize_steps` in one line."""
    facts = summarize_steps(steps)
    words = [f"{facts['states'][state]} {state}" for state in STATES if facts["states"][state]]
    words += [f"{hours:.2f} core hours {what}" for what, hours in facts["core_hours"].items() if hours]
    if (left := facts["seconds_left"]) is not None:
        words.append(f"about {format_duration(left)} left, until {time.ctime(time.time() + left)}")
    return ", ".join(words)
