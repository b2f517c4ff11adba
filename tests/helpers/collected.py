"""The tests, collected when this module is imported. A fork of the process that imports it collects them again in a tenth of the time.

On a fresh clone, nearly all of the first time is the compilation of our modules and the rewriting of asserts (tests/helpers/workers.py).
"""

import contextlib
import io
import os

import pytest

from tests.helpers.workers import COLLECTED

with contextlib.redirect_stdout(io.StringIO()):  # errors are for the forks, which meet them again
    pytest.main(
        [
            "-q",
            "--collect-only",
            "-s",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:cov",
            "-p",
            "no:xdist",
            *os.environ.get(COLLECTED, "").splitlines(),
        ]
    )
