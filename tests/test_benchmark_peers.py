"""benchmarks/peers.py runs: here with little text, and without the other projects."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.printed import rows_of

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "peers.py"

pytestmark = pytest.mark.walk


def test_a_small_run_prints_both_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers", reason="the library tokenizers is not installed")
    monkeypatch.delenv("NIELS_CACHE_REAL_DATA", raising=False)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    import peers.compare

    monkeypatch.setattr(peers.compare, "PEERS", {})
    monkeypatch.setattr("sys.argv", [str(BENCHMARK), "--megabytes", "1", "--rounds", "1", "--seconds", "0.05"])
    try:
        runpy.run_path(str(BENCHMARK))["main"]()
    finally:
        sys.modules.pop("build", None)  # a common name, which others may mean by something else
    rows = rows_of(capsys.readouterr().out)
    assert [row[0] for row in rows] == ["writer", "niels-cache", "script", "reader", "niels-cache", "script"]
    for row in rows:
        if row[0] in ("niels-cache", "script"):
            assert float(row[1].split()[0]) > 0
