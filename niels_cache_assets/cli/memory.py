"""How much memory this process takes, for what is shown: a read of /proc or a system call, no more."""

from __future__ import annotations

import resource
import sys

from niels_cache_assets.wording import file_size


def peak_memory() -> str:
    """`at most 512 MB of memory`, of this process and of the largest of those it started."""
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB on Linux
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return f"at most {file_size(peak * unit)} of memory"


def memory_now() -> str | None:
    """`512 MB`; None where there is no /proc, which only Linux has."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return file_size(int(file.read().split()[1]) * resource.getpagesize())
    except OSError:
        return None
