"""What `--wait` does while another process builds the same: it says for whom it waits, and looks until that one has ended.

`artifacts/materialize.py` then looks again at what is there.
"""

import time
from collections.abc import Callable
from pathlib import Path

from niels_cache_runtime.format.commit import Writer, writer_of

_WAIT_SECONDS = 0.2


def wait_until_free(target: Path, writer: Writer | None, log: Callable[[str], None]) -> None:
    """Return when nobody builds `target`, which `writer` does now. Each builder is named to `log` once."""
    told: Writer | None = None
    while writer is not None:
        if writer != told:
            log(f"waiting for the other build of {target}: {writer}")
            told = writer
        time.sleep(_WAIT_SECONDS)
        writer = writer_of(target)
