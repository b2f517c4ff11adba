"""The names of attempts: a target that several machines may build has one staging directory for each attempt.

    .NAME.lease/attempt-00002.json    the process of attempt 2 (parts/lease.py); the file with the highest number is the current one
    .NAME.lease/stop                  a request to stop, for all processes
    .NAME.lease/stop-LAUNCH           a request to stop, for the processes of one launch
    .NAME.partial.2                   the staging directory of attempt 2
    .NAME.gone.1                      the staging directory of attempt 1, while it is removed

A number is never used twice, so no two processes ever write to the same staging directory. `.NAME.partial` without a number belongs to a
target without attempts.
"""

import errno
import os
import re
from pathlib import Path

from niels_cache_runtime.format.commit import partial_path

STOP_NAME = "stop"
NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EINVAL)  # no hard links here
_RECORD = re.compile(r"attempt-(\d{5,12})\.json")


def lease_path(target: Path) -> Path:
    """Return the path of the folder with the lease of `target`."""
    return target.parent / f".{target.name}.lease"


def stop_path(target: Path, launch: str | None = None) -> Path:
    """Return the path of a request to stop, for the processes of one launch, or with None for all processes."""
    return lease_path(target) / (STOP_NAME if launch is None else f"{STOP_NAME}-{launch}")


def attempt_record(target: Path, attempt: int) -> Path:
    """Return the path of the file that names the process of an attempt."""
    return lease_path(target) / f"attempt-{attempt:05d}.json"


def attempt_path(target: Path, attempt: int) -> Path:
    """Return the path of the staging directory of an attempt."""
    partial = partial_path(target)
    return partial.with_name(f"{partial.name}.{attempt}")


def recorded_attempts(target: Path) -> list[int]:
    """Return the numbers of all attempts that have a file in the lease's folder, in order."""
    try:
        names = os.listdir(lease_path(target))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):  # NFS: ESTALE if another machine has just removed the folder
            raise
        return []
    return sorted(int(found[1]) for found in map(_RECORD.fullmatch, names) if found)


def staged_attempts(target: Path) -> list[Path]:
    """Return the existing staging directories of all attempts, newest first, with the one without a number at the end."""
    latest = max(recorded_attempts(target), default=0)
    paths = (*(attempt_path(target, number) for number in range(latest, 0, -1)), partial_path(target))
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def highest_number(target: Path) -> int:
    """Return the highest number of a staging directory of `target`, or 0. This looks at each name in the folder that contains `target`."""
    prefix = f"{partial_path(target).name}."
    numbers = [name.removeprefix(prefix) for name in os.listdir(target.parent) if name.startswith(prefix)]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def removal_path(target: Path, attempt: int) -> Path:
    """Return the path to which an attempt's staging directory is moved before it is removed. Attempt 0 is the one without a number."""
    return target.parent / f".{target.name}.gone.{attempt}"


def abandoned_attempts(target: Path, before: int) -> list[tuple[Path, Path]]:
    """Return the staging directory and the `removal_path` of each attempt before this number, if one of the two exists."""
    found = [(partial_path(target), removal_path(target, 0))]
    found += [(attempt_path(target, number), removal_path(target, number)) for number in range(1, before)]
    return [each for each in found if any(os.path.lexists(path) for path in each)]
