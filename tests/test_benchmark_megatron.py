"""benchmarks/megatron.py runs without arguments but time: here with small sizes. On the way it compares every array and sample."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.megatron_core import REASON

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "megatron.py"


def test_a_quick_run_prints_every_row_of_the_table() -> None:
    pytest.importorskip("megatron.core", reason=REASON)
    pytest.importorskip("numba", reason="compiled steps need numba")
    done = subprocess.run([sys.executable, str(BENCHMARK), "--quick"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["ours", "theirs", "ratio"]
    for part in ("sample index, ", "all three indices", "numpy", "compiled", "num_workers=0", "num_workers=1"):
        assert any(part in row for row in rows), part
    for row in rows:
        assert re.search(r"\d\.\d\d +\S+ +\d+\.\d\dx$", row), row
