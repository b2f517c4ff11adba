"""The only way to build an artifact.

The steps are:

    1  ask for upstream's revision  unless the build is settled; if upstream is not available, keep a finished build and warn
    2  compute the fingerprint      of everything that decides the bytes
    3  look for a cache hit         without a lock, so a cache in a read-only folder can be a hit
    4  wait for a turn              and check the disk space, before anything is written
    5  take the lock                wait for it if requested
    6  check again                  after a wait, or if another build ended since the first check
    7  build                        write to a staging directory with a journal, write the record, replace the old build

A notebook, the command line and a Dagster run all use `materialize`.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

from niels_cache_assets.artifacts.base import Artifact, BuildJob, Log, Outcome
from niels_cache_assets.artifacts.notify import OnProgress, notifying
from niels_cache_assets.artifacts.stored import in_store
from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.disk.build_lock import path_stamp
from niels_cache_assets.disk.space import explain_disk_full, require_free_space
from niels_cache_assets.parts.lease import HeldLease, LeaseLostError
from niels_cache_assets.project.running import NotifySettings
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.net.retries import retry_at_most, retry_for
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta, read_meta, write_meta


def materialize(
    artifact: Artifact,
    *,
    force: bool = False,
    wait: bool = False,
    on_progress: OnProgress | None = None,
    log: Log = lambda message: None,
    wait_for_turn: Callable[[], bool] = lambda: False,
    notify: bool = True,
) -> Outcome:
    """Build an artifact, or return a cache hit if the existing build is current.

    Args:
        artifact: The artifact.
        force: Whether to build in any case, and without resuming.
        wait: If another process is building the artifact, whether to wait and check again instead of failing. The same happens if another
            process takes the artifact over during the build.
        on_progress: Called with the progress. Each kind of artifact passes its own type. None: no reports.
        log: Called with each message. The default discards messages.
        wait_for_turn: Called when a build is certainly necessary. It returns True if it had to wait, and then the artifact is checked
            again.
        notify: Whether to send `[notify]` messages on failure, stall and completion.

    Raises:
        NielsCacheError: If the build fails. The last good build then stays.
        BusyError: If another process builds the artifact, without `wait`.
        LeaseLostError: If another process has taken the artifact over, without `wait`.
    """
    started = time.monotonic()
    with notifying(artifact.registry.notify if notify else NotifySettings(), artifact.key, log) as watch, _retrying(artifact, log):
        log = watch.log
        try:
            in_store(artifact).sweep(resumable=True)  # removes files of killed builds that cannot be resumed
        except NielsCacheError as error:  # a read-only cache can still be a hit, and a build reports the error itself
            log(str(error))
        found = _check_current(artifact, force=force)
        while isinstance(found, _RequiredBuild) and wait_for_turn():
            found = _check_current(artifact, force=force)
        while isinstance(found, _RequiredBuild):
            require_free_space(artifact.directory, in_store(found.artifact).need(), log=log)
            try:
                with in_store(artifact).lock(wait=wait, log=log) as lock:
                    is_overtaken = path_stamp(artifact.target) != found.target_stamp
                    if is_overtaken and not lock.waited:
                        log(f"another build of {artifact.directory} has just ended; checking its result")
                    if is_overtaken or lock.waited:
                        found = _check_current(artifact, force=force)
                    if isinstance(found, _RequiredBuild):
                        with watch.notify_on_stall(on_progress) as report:
                            found = _build(found, lock.lease, force=force, on_progress=report, log=log)
            except LeaseLostError as lost:
                if not wait:
                    raise
                log(str(lost))
                found = _check_current(artifact, force=force)
        if found.state == "built":
            watch.notify_completed(found.meta)
    return _ended(artifact, found, started)


def find_current(artifact: Artifact, log: Log) -> Outcome | None:
    """Return the outcome of `materialize` if the existing build is current, otherwise None.

    No model is loaded, no lock is taken, and upstream is asked for its revision only if there is a build.

    Args:
        artifact: The artifact.
        log: Called with each message.

    Raises:
        NielsCacheError: If the build cannot be compared with the configuration.
    """
    started = time.monotonic()
    with _retrying(artifact, log):
        found = _check_current(artifact, force=False, asks_without_build=False)
    return _ended(artifact, found, started) if isinstance(found, Outcome) and found.state == "cache_hit" else None


def _retrying(artifact: Artifact, log: Log) -> AbstractContextManager[None]:
    """Return a context in which the requests of an artifact are retried."""
    is_known = artifact.is_part  # a part has a plan, for which upstream has answered
    return retry_for(artifact.registry.build.network_patience, log, is_known=is_known) if artifact.uses_network else nullcontext()


def _ended(artifact: Artifact, outcome: Outcome, started: float) -> Outcome:
    """Return the outcome with its duration, after the files of unfinished builds beside a hit are removed."""
    if outcome.state == "cache_hit" and not outcome.kept:
        with suppress(NielsCacheError):  # a cache that cannot be written can be current, too
            in_store(artifact).sweep(resumable=False)  # an unfinished build beside it had different settings, different data or --force
    return replace(outcome, seconds=time.monotonic() - started)


@dataclass(frozen=True, kw_only=True)
class _RequiredBuild:
    """An artifact that must be built, with the values that led to this decision.

    Attributes:
        artifact: The artifact, without cached properties.
        target_stamp: The value of `path_stamp` for the target at the time of the decision.
        revision: The revision of upstream.
        identity: Everything that decides the bytes, for this revision.
    """

    artifact: Artifact
    target_stamp: tuple[int, int] | None
    revision: str | None
    identity: Identity


def _check_current(artifact: Artifact, *, force: bool, asks_without_build: bool = True) -> Outcome | _RequiredBuild:
    artifact, stamp = artifact.uncached(), path_stamp(artifact.target)
    place = in_store(artifact)

    def outcome(meta: Meta, warning: str | None = None, *, kept: bool = False) -> Outcome:
        return Outcome(
            key=artifact.key,
            state=artifact.states[1],
            meta=meta,
            directory=artifact.directory,
            warning=warning,
            kept=kept,
            drops=artifact.drop_summary(meta),
        )

    if artifact.unavailable() is not None:
        return replace(outcome(place.finished() or {}), state="disabled")
    existing = None if force else place.finished()
    reason = None if force else artifact.reason_to_keep_stale()
    if reason is not None:
        return outcome(read_meta(artifact.record_path), reason, kept=True)
    if existing is not None and artifact.is_frozen(existing):
        return outcome(existing, artifact.warning())
    if existing is None and not asks_without_build:
        return _RequiredBuild(artifact=artifact, target_stamp=stamp, revision=None, identity={})
    try:
        with retry_at_most(existing is not None and bool(existing.get("built"))):
            revision = artifact.revision()
    except SourceUnavailableError as error:
        last_revision = None if existing is None else existing.get("dataset_revision")
        if existing is None or not artifact.matches(existing, artifact.identity(last_revision)):
            raise
        return outcome(existing, f"{error}; kept the finished {artifact.noun} of revision {last_revision}", kept=True)
    identity = artifact.identity(revision)
    if existing is not None and artifact.matches(existing, identity):
        return outcome(existing, artifact.warning())
    return _RequiredBuild(artifact=artifact, target_stamp=stamp, revision=revision, identity=identity)


def _build(required: _RequiredBuild, lease: HeldLease | None, *, force: bool, on_progress: OnProgress | None, log: Log) -> Outcome:
    """Build an artifact. The caller holds its lock."""
    artifact, place = required.artifact, in_store(required.artifact)
    work = BuildJob(
        directory=artifact.directory,
        revision=required.revision,
        identity=required.identity,
        force=force,
        progress=on_progress,
        log=log,
        lease=lease,
        reference=artifact.reference,
        record_seconds=artifact.registry.build.seconds_between_records,
    )
    with explain_disk_full(place.need()), place.stage(work) as staging:
        written = artifact.write(replace(work, directory=staging))
        drops = artifact.drop_summary(written.meta)
        meta = written.meta
        if artifact.record is not None:
            write_meta(staging / artifact.record, meta)
            meta = read_meta(staging / artifact.record)
    return Outcome(
        key=artifact.key,
        state=artifact.states[0 if written.changed else 1],
        meta=meta,
        directory=artifact.directory,
        warning=written.warning or artifact.warning(),
        resumed=written.resumed,
        engines=written.engines,
        drops=drops,
    )
