"""benchmarks/parts.py runs: here with small sizes."""

import re
from pathlib import Path

import pytest

from tests import programs
from tests.printed import rows_of

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "parts.py"

pytestmark = pytest.mark.walk


def test_a_quick_run_prints_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIELS_CACHE_REAL_DATA", raising=False)
    done = programs.run(str(BENCHMARK), "--quick", timeout=600)
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    assert rows[0] == ["what", "measured", "wanted", "ratio"]
    whats = "\n".join(row[0] for row in rows)
    for part in (
        "two parts of 1 MB",
        "2 parts of 1 MB, in one process",
        "2 parts of 1 MB, 2 at a time",
        "get_batch (64, 2048), 64 parts",
        "loader (8, 512), 64 parts",
        "open 100 shards",
        "seal 100 shards",
    ):
        assert part in whats
    for row in rows[1:]:
        assert re.search(r"\d", row[1]), row
