"""benchmarks/scale.py runs, with small sizes, and its table is the one on the page."""

import importlib
import re
from pathlib import Path

import pytest

from tests import programs
from tests.printed import rows_of

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"


def test_the_page_shows_the_table_of_the_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    scale = importlib.import_module("scale")
    rows = [*scale.table()]
    assert len(rows) == 2 + 2 * 2 * 2
    page = PAGE.read_text(encoding="utf-8")
    for row in rows:
        assert row in page, "run python benchmarks/scale.py --only table"


@pytest.mark.walk
@pytest.mark.parametrize("step", ["queue", "page"])
def test_a_quick_run_of_dagsters_costs_prints_its_row(step: str) -> None:
    if step == "page":
        pytest.importorskip("playwright.sync_api")
        from tests.ui.browser import browser_path

        if browser_path() is None:
            pytest.skip("no Chromium or Chrome on this machine")
    done = programs.run(str(BENCHMARKS / "scale_dagster.py"), "--quick", "--only", step, timeout=600)
    assert done.returncode == 0, done.stderr
    assert {"queue": "queue 10 runs", "page": "40 partitions in Chromium"}[step] in done.stdout


@pytest.mark.walk
def test_a_quick_run_prints_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIELS_CACHE_REAL_DATA", raising=False)
    done = programs.run(str(BENCHMARKS / "scale.py"), "--quick", "--ranges", "4", timeout=600)
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    whats = "\n".join(row[0] for row in rows)
    for part in (
        "15 T, fast BPE",
        "one of 4 ranges",
        "4 parts of",
        "its prediction",
        "open 640 shards",
        "seal 20 parts",
    ):
        assert part in whats
    for row in rows:
        assert re.search(r"\d", row[0] + row[1]) or row[0] in ("what", "data set"), row
