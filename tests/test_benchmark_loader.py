"""benchmarks/loader.py runs without arguments but time: here with small sizes, and without other projects' loaders."""

import os
import re
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "loader.py"


def test_a_quick_run_prints_every_row_of_the_table() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NIELS_CACHE_REAL_DATA"}
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick", "--no-peers"], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[0] == ["what", "measured", "wanted", "ratio"]
    whats = "\n".join(row[0] for row in rows)
    for part in (
        "get_batch (64, 2048), 12 shards",
        "get_batch (64, 1024), 4 shards, against the usual way",
        "get_batch (64, 1024), 4 shards, against one copy into x and y",
        "loader (8, 512), 1 shard",
        "document_ids",
        "open 100 shards",
        "at step 10,000,000",
        "packing",
    ):
        assert part in whats
    for row in rows[1:]:
        assert re.search(r"\d", row[1]), row
