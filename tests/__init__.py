"""The tests, and what all processes do that import them."""

import os

# Threads of OpenMP that wait for a core keep another one busy with waiting, and several processes share the cores here.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _fsync(descriptor: int) -> None:
    """Check the descriptor, and leave the disk alone: no test loses power. Tests of what is synchronized put their own in its place."""
    os.fstat(descriptor)


os.fsync = _fsync
