"""benchmarks/dedup.py runs without arguments but time: here with small sizes, without what takes real data or minutes."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.printed import rows_of

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

pytestmark = pytest.mark.walk


def test_a_quick_run_prints_its_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("datasketch")
    pytest.importorskip("rensa")
    monkeypatch.delenv("NIELS_CACHE_REAL_DATA", raising=False)
    monkeypatch.syspath_prepend(BENCHMARKS)
    dedup = importlib.import_module("dedup")
    children = []

    def run(command: list[str], **settings: Any) -> Any:
        children.append(command[2])
        return programs.run(*command[1:], check=settings["check"])

    monkeypatch.setattr(dedup, "ROUND", 20)
    monkeypatch.setattr(dedup.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["dedup.py", "--quick", "--only", "signatures", "whole", "corpus"])
    dedup.main()
    assert children == ["--find-duplicates"]
    rows = rows_of(capsys.readouterr().out)
    assert rows[0] == ["what", "measured", "wanted"]
    whats = "\n".join(row[0] for row in rows)
    for part in ("canonical words, datasketch", "canonical text, datasketch", "500 texts", "corpus of 500 documents", 'verify = "jaccard"'):
        assert part in whats
    for row in rows[2:]:
        assert re.search(r"\d", row[1]), row
