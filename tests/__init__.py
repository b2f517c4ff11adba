"""The tests. This module also prepares every process that imports them."""

import os

# Several processes share the cores here, and a waiting thread of OpenMP would keep a core busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _fsync(descriptor: int) -> None:
    """Check the descriptor, and write nothing to the disk, because no test loses power. Tests of fsync put their own function in its
    place.
    """
    os.fstat(descriptor)


os.fsync = _fsync
