"""The tests. One thread of OpenMP in each of their processes: several that wait for a core keep another one busy with waiting."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
