"""benchmarks/remote.py with a small cache."""

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

pytestmark = pytest.mark.walk


def test_a_quick_run_prints_both_ratios(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("obstore")
    for name in ("AWS_ENDPOINT", "AWS_ALLOW_HTTP", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "")  # the benchmark sets them; afterwards they are as before
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(sys, "argv", ["remote.py", "--mib", "4", "--shards", "2", "--rounds", "1"])
    importlib.import_module("remote").main()
    printed = capsys.readouterr().out
    assert [name for name in ("push is at", "pull is at") if name not in printed] == []
