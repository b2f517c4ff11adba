"""What happens to a data set in parts now: which steps are done, running, waiting or failed, and what they cost.

A step is known by its lease (parts/lease.py), so any machine that shares the folder or the store sees it, whatever engine started it. In a
folder, the time of the last renewal is that of the file, and is compared with the clock of this machine. Cost: two small reads a step, its
lease and its record. In a store, a look takes two listings, and later looks read only what has changed.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from niels_cache_assets.artifacts.base import Artifact
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.parts.seal import JoinedCache
from niels_cache_assets.artifacts.stored import StorePlace, in_store
from niels_cache_assets.base.wording import format_duration
from niels_cache_assets.disk.attempts import attempt_record
from niels_cache_assets.disk.build_lock import BuildStatus, path_stamp
from niels_cache_assets.disk.journal import real_path
from niels_cache_assets.facts.progress import describe
from niels_cache_assets.parts.lease import DONE, STOPPED, UNKNOWN_SPEED, LeaseHolder, has_died, latest
from niels_cache_assets.parts.store import CLOCKS, LEASES, MAX_RECORD_BYTES, RECORDS, lease_of, record_of
from niels_cache_assets.parts.store_attempt import READS_AT_ONCE, read_objects
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.remote.store import RemoteError, Store

RUNNING, SILENT, FAILED, STALE, WAITING = "running", "silent", "failed", "stale", "waiting"
STATES = (SILENT, FAILED, STOPPED, STALE, RUNNING, WAITING, DONE)  # first those that need attention


class WatchedStep(NamedTuple):
    """A step of a build.

    Attributes:
        artifact: Its artifact.
        state: One of STATES. SILENT: the lease was not renewed in time, because the process was killed or is frozen, or its machine is
            lost. STALE: what was built has other settings, or was removed.
        attempt: The latest attempt, or None if the step was never begun.
        silent_seconds: The time since the last renewal. 0 unless the step is running or silent.
        stamp: A value that differs for each build of the current settings. None if there is none.
    """

    artifact: Artifact
    state: str
    attempt: LeaseHolder | None
    silent_seconds: float = 0.0
    stamp: str | None = None

    @property
    def key(self) -> str:
        """The key of the artifact."""
        return self.artifact.key

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


StoreReads = dict[str, tuple[str | None, Any]]  # by address of an object in a store: the ETag that it had, and what was read from it


def watch_parts(joined: JoinedCache | Corpus, known: StoreReads) -> list[WatchedStep]:
    """Return what happens to the val part, if there is one, and the parts of a cache or corpus. Their plan is read once.

    Args:
        joined: The cache or the corpus.
        known: See `watch_steps`.
    """
    parts: Sequence[Artifact]
    try:
        parts, is_comparable = joined.members(), True
    except NielsCacheError:  # there is no plan, corpus or tokenizer of these settings
        parts, is_comparable = joined.steps(), False
    return watch_steps([part for part in parts if part.is_part], known, is_comparable=is_comparable)


def watch_steps(artifacts: Iterable[Artifact], known: StoreReads, *, is_comparable: bool = True) -> list[WatchedStep]:
    """Return what happens to artifacts that have leases.

    Args:
        artifacts: The artifacts.
        known: What earlier looks have read in a store, which this look updates.
        is_comparable: Whether everything that a part is compared with exists. If not, only the lease is read.
    """
    places = [*map(in_store, artifacts)]
    examples = {place.kind == "tokenizer": place for place in places if isinstance(place, StorePlace)}  # it has an address of its own
    looks = {kind: _StoreLook(place.store, known) for kind, place in examples.items()}

    def watch(place: Artifact | StorePlace) -> WatchedStep:
        if isinstance(place, Artifact):
            return _watch_in_folder(place, is_comparable=is_comparable)
        return looks[place.kind == "tokenizer"].watch(place, is_comparable=is_comparable)

    with ThreadPoolExecutor(READS_AT_ONCE if looks else 1) as pool:
        return [*pool.map(watch, places)]


def build_status_in_store(artifact: Artifact) -> BuildStatus | None:
    """Return the state of a build in a store, or None for an artifact that is built in its folder. It costs as much as `watch_steps`."""
    place = in_store(artifact)
    if isinstance(place, Artifact):
        return None
    [step] = watch_steps([artifact], {})
    attempt = step.attempt
    if attempt is None:
        return BuildStatus(None, False, None, None)
    writer = attempt.writer if step.state == RUNNING else None
    return BuildStatus(writer, step.state in (SILENT, FAILED, STOPPED), attempt.share, attempt.counts.get("documents"))


def _watch_in_folder(artifact: Artifact, *, is_comparable: bool) -> WatchedStep:
    target = real_path(artifact.lease_target)
    seen, seconds, is_dead = latest(target), 0.0, False
    attempt = seen.holder
    meta: Meta | None = None
    if is_comparable:
        with suppress(NielsCacheError):  # there is no record
            meta = read_meta(artifact.record_path)
    if attempt is not None and attempt.ended is None:
        renewed = path_stamp(attempt_record(target, seen.attempt))
        seconds, is_dead = time.time() - renewed[1] / 1e9 if renewed else 0.0, has_died(target, seen)
    return _step(artifact, _stamp(artifact, meta), attempt, seconds, is_dead=is_dead)


def _stamp(artifact: Artifact, meta: Meta | None) -> str | None:
    """Return the stamp of a finished build, an empty string if it has other settings, or None if that is unknown."""
    if meta is None:
        return None
    try:
        return str(meta["meta_sha256"]) if artifact.matches(meta, artifact.identity(meta.get("dataset_revision"))) else ""
    except RemoteError:
        raise
    except NielsCacheError:  # there is no plan, or one of other settings
        return None


def _step(artifact: Artifact, stamp: str | None, attempt: LeaseHolder | None, seconds: float, *, is_dead: bool = False) -> WatchedStep:
    """Return what happens to a step. `stamp` is a result of `_stamp`."""
    state = DONE if stamp else STALE if attempt is not None or stamp is not None else WAITING
    if attempt is not None and attempt.ended is None:
        if seconds <= artifact.registry.cluster.lease_seconds and not is_dead:
            state = RUNNING  # even if it replaces a current build
        elif state != DONE:
            state = SILENT
    elif attempt is not None and DONE not in (state, attempt.ended):
        state = STOPPED if attempt.ended == STOPPED else FAILED
    return WatchedStep(artifact, state, attempt, seconds, stamp or None)


class _StoreLook:
    """One look at an address of a store. It reads the leases and the records that have changed since the last one.

    Args:
        store: The store.
        known: What earlier looks have read, which this look updates.
    """

    def __init__(self, store: Store, known: StoreReads) -> None:
        self._store, self._known = store, known
        self._listed = {each.key: each for folder in (LEASES, RECORDS) for each in store.list(folder)}
        self._now = store.now(f"{CLOCKS}/watch")

    def watch(self, place: StorePlace, *, is_comparable: bool) -> WatchedStep:
        """Return what happens to an artifact in the store."""
        key = lease_of(place.member)
        attempt = self._read(key, lambda: LeaseHolder.decoded(self._store.get(key, most_bytes=MAX_RECORD_BYTES).content))
        is_open = attempt is not None and attempt.ended is None
        seconds = (self._now - self._listed[key].modified).total_seconds() if is_open else 0.0
        stamp = self._stamp(place) if is_comparable else None
        return _step(place.artifact, stamp, attempt, seconds)

    def _stamp(self, place: StorePlace) -> str | None:
        if place.kind not in ("part", "val_part"):
            return _stamp(place.artifact, place.finished())
        try:
            folder = place.folder
        except NielsCacheError:  # there is no plan, or one of other settings
            return None
        key = record_of(folder)
        return self._listed[key].e_tag if self._read(key, lambda: read_objects(self._store, folder) is not None) else None

    def _read(self, key: str, load: Callable[[], Any]) -> Any:
        """Return what is read from an object, or None if it does not exist."""
        listed, name = self._listed.get(key), self._store.name_of(key)
        if listed is None:
            return None
        if name not in self._known or self._known[name][0] != listed.e_tag:
            self._known[name] = listed.e_tag, load()
        return self._known[name][1]


def summarize_steps(steps: Sequence[WatchedStep]) -> dict[str, Any]:
    """Return figures of the steps.

    `states` counts the steps by state. `core_hours` are hours of CPU time, those of killed attempts (as `lost`) up to their last renewal.
    `seconds_left` is the time until all steps of the kinds that are running are done, at the present speed, or None if it is unknown.
    """
    hours, speeds, left = (defaultdict[str, float](float) for _ in range(3))
    for step in steps:
        state, attempt, kind = step.state, step.attempt, step.artifact.kind
        share_left = 0.0 if state == DONE else 1.0
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
        {"key": step.key, "state": step.state, "reason": step.reason, "attempt": step.attempt and asdict(step.attempt)}
        for step in steps
        if step.state != DONE
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
