"""benchmarks/stream.py with a small cache, without other projects' readers."""

import importlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.printed import rows_of
from tests.test_benchmark_remote import VARIABLES

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

pytestmark = pytest.mark.walk


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("obstore", reason="obstore is not installed (the extra remote)")
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # the benchmark sets them; afterwards they are as before
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("stream")


def test_a_quick_run_stays_below_the_limit(stream: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--mib", "24", "--shard-mib", "1", "--limit-mib", "14", "--seconds", "1", "--rounds", "1", "--peers"]
    monkeypatch.setattr(sys, "argv", ["stream.py", *arguments])
    stream.main()
    rows = rows_of(capsys.readouterr().out)
    assert [row[0] for row in rows[1:]] == ["niels-cache", "plain loop"]
    assert float(rows[1][1].split()[0]) > 0
    assert 0 < int(rows[1][6]) <= 14


def test_a_peer_without_a_setting_below_the_limit_is_told(
    stream: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    above = stream.Run(first=1.0, tokens=1, seconds=1.0, processor_seconds=1.0, most_bytes=2 << 20)
    monkeypatch.setattr(stream, "command_of", lambda name: ["false"])
    monkeypatch.setattr(stream, "measure", lambda command, local: above)
    with pytest.raises(stream.PeersMissing, match="below the limit"):
        stream.fastest_setting("litdata", [1], tmp_path, 1 << 20, 0.1, 1, is_search=True, until=math.inf)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert all(line.endswith("above the limit") for line in printed)


def test_the_first_known_setting_is_tried_even_if_no_time_is_left(
    stream: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    below = stream.Run(first=1.0, tokens=1, seconds=1.0, processor_seconds=1.0, most_bytes=1)
    monkeypatch.setattr(stream, "command_of", lambda name: ["false"])
    monkeypatch.setattr(stream, "measure", lambda command, local: below)
    for name, known in stream.KNOWN.items():
        chosen = stream.fastest_setting(name, [], tmp_path, 1 << 20, 0.1, 8, is_search=False, until=-math.inf)
        assert (chosen.mib, chosen.workers, chosen.mode) == known[0]
        assert capsys.readouterr().out.count("not tried") == len(known) - 1 > 0


def test_rounds_end_when_another_one_would_take_too_long(stream: Any) -> None:
    assert list(stream.rounds_until(-math.inf, 3)) == [1]
    assert list(stream.rounds_until(math.inf, 3)) == [1, 2, 3]


def test_a_reader_that_fails_is_named_by_its_last_line(stream: Any, tmp_path: Path) -> None:
    program = "import sys; sys.exit('first\\nlast')"
    with pytest.raises(stream.PeersMissing, match=r"^last$"):
        stream.measure([sys.executable, "-c", program], tmp_path / "local")


def test_processor_seconds_count_a_process_below_this_one_once(stream: Any) -> None:
    busy = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\nimport sys; sys.stdin.read()"
    processor_seconds = importlib.import_module("peers.serve").processor_seconds
    before = processor_seconds()
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert 0.35 < processor_seconds(busy) - before < 2
        child.communicate()
