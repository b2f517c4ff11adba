"""benchmarks/chats.py runs: here with small sizes."""

import re
from pathlib import Path

import pytest

from tests import programs
from tests.printed import rows_of

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "chats.py"

pytestmark = pytest.mark.walk


def test_a_quick_run_prints_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIELS_CACHE_REAL_DATA", raising=False)
    done = programs.run(str(BENCHMARK), "--quick", timeout=300)
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)[1:]
    names = ("ChatML", "without marks")
    assert [row[0] for row in rows] == [*(f"rendering, {name}" for name in names), *(f"build, {name}" for name in ("sentinels", *names))]
    assert all(re.fullmatch(r"\d+\.\d us", row[1]) for row in rows)
