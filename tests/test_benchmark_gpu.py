"""benchmarks/gpu.py runs: here on the CPU, with a small cache and a small model."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.printed import rows_of

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "gpu.py"

pytestmark = pytest.mark.walk


def test_a_quick_run_prints_a_row_for_each_way_to_get_a_batch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--quick"])
    runpy.run_path(str(BENCHMARK))["main"]()
    ways = [row[1] for row in rows_of(capsys.readouterr().out)]
    assert ways.count("least") == 3
    assert ways.count("fixed") == 1
    for way in ("usual", "get_batch", *(f"loader, prefetch={ahead}" for ahead in (0, 1, 2)), "loader, document fields, prefetch=1"):
        assert ways.count(way) == 4
