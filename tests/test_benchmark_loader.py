"""benchmarks/loader.py runs without arguments but time: here with small sizes, and without other projects' loaders."""

import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.printed import rows_of

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "loader.py"

pytestmark = pytest.mark.walk


def run_program(command: list[str], **settings: Any) -> "subprocess.CompletedProcess[str]":
    return programs.run(*command[1:], check=settings["check"])


def test_a_quick_run_prints_every_row_of_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("NIELS_CACHE_REAL_DATA", raising=False)
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    monkeypatch.setattr(subprocess, "run", run_program)  # where it opens a cache in a process of its own, three times
    monkeypatch.setattr("sys.argv", [str(BENCHMARK), "--quick", "--no-peers"])
    runpy.run_path(str(BENCHMARK))["main"]()
    rows = rows_of(capsys.readouterr().out)
    assert rows[0] == ["what", "measured", "wanted", "ratio"]
    whats = "\n".join(row[0] for row in rows)
    for part in (
        "get_batch (64, 2048), 12 shards",
        "get_batch (64, 1024), 4 shards, against the usual way",
        "get_batch (64, 1024), 4 shards, against one copy into x and y",
        "loader (8, 512), 1 shard",
        "get_batch (64, 2048), 4 shards, uint32 against uint16",
        "loader (64, 2048), 12 shards, blocks of 1 shard, 8 lanes",
        "document_ids",
        "open 100 shards",
        "at step 10,000,000",
        "packing",
    ):
        assert part in whats
    for row in rows[1:]:
        assert re.search(r"\d", row[1]), row
