"""The temporary folder of a web UI: its socket, its workspace, and the temporary files of its services.

The UI removes it at its end. A UI that was killed cannot, so the next UI of this user removes the folders of all UIs that have ended. A
record in the folder, which the UI locks until it ends, tells whether it still runs. The folder is in the temporary directory of the system,
because the path of a socket can have at most 107 bytes.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from niels_cache_assets.processes import claimed_record, hold_record

_PREFIX = "niels-cache-ui-"
_RECORD = "process"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder, which is removed after the block. First remove folders that killed UIs have left."""
    _remove_left()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        descriptor = hold_record(Path(folder) / _RECORD)
        try:
            yield Path(folder)
        finally:
            os.close(descriptor)


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another UI removes it at this moment
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                with claimed_record(folder / _RECORD, copies=False) as has_ended:
                    if has_ended:
                        shutil.rmtree(folder, ignore_errors=True)
