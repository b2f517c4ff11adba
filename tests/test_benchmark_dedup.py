"""benchmarks/dedup.py runs without arguments but time: here with small sizes, without what takes real data or minutes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "dedup.py"


def test_a_quick_run_prints_its_rows() -> None:
    pytest.importorskip("datasketch")
    pytest.importorskip("rensa")
    environment = {name: value for name, value in os.environ.items() if name != "NIELS_CACHE_REAL_DATA"}
    command = [sys.executable, str(BENCHMARK), "--quick", "--only", "signatures", "whole", "corpus"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[0] == ["what", "measured", "wanted"]
    whats = "\n".join(row[0] for row in rows)
    for part in (
        "from canonical words, datasketch",
        "with making the canonical text",
        "500 texts in memory to those that stay",
        "find_duplicates in a corpus of 500 documents",
        'the same with verify = "jaccard"',
    ):
        assert part in whats
    for row in rows[2:]:
        assert re.search(r"\d", row[1]), row
