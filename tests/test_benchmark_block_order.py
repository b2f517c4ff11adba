"""benchmarks/block_order.py runs: here with random words and a smaller model."""

import runpy
from pathlib import Path

import pytest

from tests.printed import rows_of

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "block_order.py"

pytestmark = pytest.mark.walk


def test_a_quick_run_prints_a_row_for_each_order_and_draws_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NIELS_CACHE_REAL_DATA", raising=False)
    runpy.run_path(str(BENCHMARK))["main"](["--quick", "--picture", str(tmp_path / "curves.png")])
    rows = rows_of(capsys.readouterr().out)
    assert len(rows) == 7
    for name in ("whole split", "blocks of 16 shards, shuffled corpus", "8 lanes"):
        assert any(name in cell for row in rows for cell in row)
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
