"""The implementation of `--wait`. It logs which process builds the same target, and waits until that build ends.

`artifacts/materialize.py` then checks again whether a build is still needed.
"""

import time
from collections.abc import Callable
from pathlib import Path

from niels_cache_runtime.format.commit import Writer, writer_of

_WAIT_SECONDS = 0.2


def wait_until_free(target: Path, writer: Writer | None, log: Callable[[str], None]) -> None:
    """Wait until no process builds `target`. `writer`: the process that builds it now, or None. Each such process is logged once."""
    told: Writer | None = None
    while writer is not None:
        if writer != told:
            log(f"waiting for the other build of {target}: {writer}")
            told = writer
        time.sleep(_WAIT_SECONDS)
        writer = writer_of(target)
