"""The right to build an artifact: a lock of the file system, or a lease for machines without common file locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from niels_cache_assets.disk.journal import real_path
from niels_cache_assets.disk.space import refusal
from niels_cache_assets.disk.staging import require_target
from niels_cache_assets.parts.lease import Lease, Times, leased
from niels_cache_assets.parts.lease_files import Stops
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.config.registry import Registry

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Held:
    """The right to build an artifact. waited: whether the caller had to wait for another build. lease: None for most artifacts."""

    waited: bool = False
    lease: Lease | None = None


@contextmanager
def held(lock: AbstractContextManager[bool]) -> Iterator[Held]:
    """Hold a lock whose value says whether the caller had to wait."""
    with lock as waited:
        yield Held(waited=waited)


@contextmanager
def under_lease(
    target: Path,
    registry: Registry,
    *,
    owns: Callable[[str], bool],
    wait: bool,
    log: Log,
    on_stop: Callable[[], None] | None = None,
    stops: Stops | None = None,
) -> Iterator[Held]:
    """Hold the lease of a target. owns: whether a file or folder of this name in the target may be replaced. The rest is as in `leased`.

    Raises NielsCacheError for a target that must not be replaced, and for errors of the disk.
    """
    target = real_path(target)
    with ExitStack() as held:
        try:
            require_target(target, owns)
            lease = held.enter_context(leased(target, times=times_of(registry), wait=wait, log=log, on_stop=on_stop, stops=stops))
        except OSError as error:
            raise NielsCacheError(f"{refusal(error, target)}; the last good build, if there is one, is unchanged: {target}") from error
        yield Held(waited=lease.waited, lease=lease)


def times_of(registry: Registry) -> Times:
    """Return the times of leases that [cluster] sets."""
    return Times(renew_seconds=registry.cluster.renew_seconds, lease_seconds=registry.cluster.lease_seconds)
