"""benchmarks/megatron.py runs without arguments but time: here with small sizes. On the way it compares every array and sample."""

import re
import runpy
from pathlib import Path

import pytest

from tests import megatron_core

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "megatron.py"

pytestmark = pytest.mark.walk


def test_a_quick_run_prints_every_row_of_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    megatron_core.load()
    pytest.importorskip("numba", reason="compiled steps need numba")
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    monkeypatch.setattr("sys.argv", [str(BENCHMARK), "--quick"])
    runpy.run_path(str(BENCHMARK))["main"]()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["ours", "theirs", "ratio"]
    for part in ("sample index, ", "all three indices", "blend of 2", "num_workers=0", "num_workers=1"):
        assert any(part in row for row in rows), part
    for row in rows:
        assert re.search(r"\d\.\d\d +\S+ +\d+\.\d\dx$", row), row
