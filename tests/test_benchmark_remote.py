"""benchmarks/remote.py with a small cache."""

import importlib
import sys
from pathlib import Path

import pytest

VARIABLES = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

pytestmark = pytest.mark.walk


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--mib 4 --shards 2 --rounds 1", ["push is at", "pull is at"]),
        ("--train --mib 16 --shards 32 --rounds 1", ["cold start", "streaming", "local"]),
        ("--memory 2 4 --shard-mib 1", ["push     2", "pull     4"]),
    ],
)
def test_a_quick_run_prints_its_figures(
    arguments: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("obstore")
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # the benchmark sets them; afterwards they are as before
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(sys, "argv", ["remote.py", *arguments.split()])
    importlib.import_module("remote").main()
    printed = capsys.readouterr().out
    assert [words for words in expected if words not in printed] == []


def test_streaming_refuses_a_cache_that_its_copy_holds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(sys, "argv", ["remote.py", "--train", "--mib", "16", "--shards", "8"])
    with pytest.raises(SystemExit, match="--shards 32"):
        importlib.import_module("remote").main()
