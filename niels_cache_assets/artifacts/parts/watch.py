"""What happens to a data set in parts now: which steps are done, running, waiting or failed, and what they cost.

A step is known by its lease (parts/lease.py), so any machine that shares the folder sees it, whatever engine started it. The time of the
last renewal is that of the file, and is compared with the clock of this machine. Cost: two small reads a step, its lease and its record.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from niels_cache_assets.artifacts.base import Artifact
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.parts.seal import JoinedCache
from niels_cache_assets.base.wording import format_duration
from niels_cache_assets.disk.attempts import attempt_record
from niels_cache_assets.disk.build_lock import path_stamp
from niels_cache_assets.disk.journal import real_path
from niels_cache_assets.facts.progress import describe
from niels_cache_assets.parts.lease import DONE, STOPPED, UNKNOWN_SPEED, LeaseHolder, has_died, latest
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import read_meta

RUNNING, SILENT, FAILED, STALE, WAITING = "running", "silent", "failed", "stale", "waiting"
STATES = (SILENT, FAILED, STOPPED, STALE, RUNNING, WAITING, DONE)  # first those that need attention


class WatchedStep(NamedTuple):
    """A step of a build.

    Attributes:
        key: The key of its artifact.
        state: One of STATES. SILENT: the lease was not renewed in time, because the process was killed or is frozen, or its machine is
            lost. STALE: what was built has other settings, or was removed.
        attempt: The latest attempt, or None if the step was never begun.
        silent_seconds: The time since the last renewal. 0 unless the step is running or silent.
    """

    key: str
    state: str
    attempt: LeaseHolder | None
    silent_seconds: float = 0.0

    @property
    def reason(self) -> str:
        """Who makes the latest attempt, how far it is, and why it has ended."""
        attempt = self.attempt
        if attempt is None:
            return "never begun"
        if self.state == STALE:
            return "has other settings or was removed; must be built again"
        speed = attempt.speed if self.state == RUNNING else UNKNOWN_SPEED
        return (
            f"{attempt.writer.host} since {attempt.writer.since}"
            f"{'; ' + describe(attempt, speed, with_share=True) if attempt.counts else ''}"
            f"{f'; last renewed {format_duration(self.silent_seconds)} ago' if self.state == SILENT else ''}"
            f"{f'; {attempt.ended}' if attempt.ended else ''}{f' (log: {attempt.log})' if attempt.log and self.state != RUNNING else ''}"
        )


def watch_parts(joined: JoinedCache | Corpus) -> list[WatchedStep]:
    """Return what happens to the val part, if there is one, and the parts of a cache or corpus. Their plan is read once."""
    parts: Sequence[Artifact]
    try:
        parts, is_comparable = joined.members(), True
    except NielsCacheError:  # there is no plan, corpus or tokenizer of these settings
        parts, is_comparable = joined.steps(), False
    seconds = joined.registry.cluster.lease_seconds
    return [watch_step(part, lease_seconds=seconds, is_comparable=is_comparable) for part in parts if part.is_part]


def watch_step(artifact: Artifact, *, lease_seconds: float, is_comparable: bool = True) -> WatchedStep:
    """Return what happens to an artifact that has a lease.

    Args:
        artifact: The artifact.
        lease_seconds: How long a lease may go without renewal.
        is_comparable: Whether everything that a part is compared with exists. If not, only the lease is read.
    """
    target = real_path(artifact.lease_target)
    seen, seconds = latest(target), 0.0
    attempt = None if seen is None else seen.holder
    state = WAITING if attempt is None else STALE
    if is_comparable:
        with suppress(NielsCacheError):  # there is no record, or an input is missing
            meta = read_meta(str(artifact.directory / (artifact.record or META_NAME)))
            state = DONE if artifact.matches(meta, artifact.identity(meta.get("dataset_revision"))) else STALE
    if seen is not None and attempt is not None and attempt.ended is None:
        renewed = path_stamp(attempt_record(target, seen.attempt))
        seconds = time.time() - renewed[1] / 1e9 if renewed else 0.0
        if seconds <= lease_seconds and not has_died(target, seen):
            state = RUNNING  # even if it replaces a current build
        elif state != DONE:
            state = SILENT
    elif attempt is not None and DONE not in (state, attempt.ended):
        state = STOPPED if attempt.ended == STOPPED else FAILED
    return WatchedStep(artifact.key, state, attempt, seconds)


def summarize_steps(steps: Sequence[WatchedStep]) -> dict[str, Any]:
    """Return figures of the steps.

    `states` counts the steps by state. `core_hours` are hours of CPU time, those of killed attempts (as `lost`) up to their last renewal.
    `seconds_left` is the time until all steps of the kinds that are running are done, at the present speed, or None if it is unknown.
    """
    hours, speeds, left = (defaultdict[str, float](float) for _ in range(3))
    for key, state, attempt, _ in steps:
        kind, share_left = key.partition("/")[0], 0.0 if state == DONE else 1.0
        if attempt is not None:
            finished, lost = attempt.all_cpu_seconds()
            if state == RUNNING:
                lost -= attempt.cpu_seconds
                hours[RUNNING] += attempt.cpu_seconds / 3600
            hours["finished"] += finished / 3600
            hours["lost"] += lost / 3600
            if state != STALE:
                share_left *= 1 - (attempt.share or 0)
            if state == RUNNING and attempt.speed.seconds_left:
                speeds[kind] += share_left / attempt.speed.seconds_left
        left[kind] += share_left
    seconds_left = max((left[kind] / speed for kind, speed in speeds.items()), default=None)
    return {"states": Counter(step.state for step in steps), "core_hours": hours, "seconds_left": seconds_left}


def steps_json(steps: Sequence[WatchedStep]) -> dict[str, Any]:
    """Return the figures of `summarize_steps`, and the steps that are not done, as values of JSON."""
    left = [
        {**step._asdict(), "reason": step.reason, "attempt": step.attempt and asdict(step.attempt)} for step in steps if step.state != DONE
    ]
    return {**summarize_steps(steps), "steps": left}


def describe_steps(steps: Sequence[WatchedStep]) -> str:
    """Return the figures of `summarize_steps` in one line."""
    facts = summarize_steps(steps)
    states, left = facts["states"], facts["seconds_left"]
    words = [f"{states[state]} {state}" for state in STATES if states[state]]
    words += [f"{hours:.1f} core hours {what}" for what, hours in facts["core_hours"].items()]
    if left is not None:
        words.append(f"about {format_duration(left)} left, until {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(time.time() + left))}")
    return ", ".join(words)
