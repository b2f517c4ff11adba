"""benchmarks/engines.py runs: here with a small model, a megabyte of text, and an engine if one is installed."""

import json
import runpy
from pathlib import Path

import pytest

from niels_cache_assets.tokenizer.engines import gpt2_tokenizer_json
from niels_cache_assets.tokenizer.tiktoken_ranks import read_ranks
from tests.test_engines import write_ranks

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "engines.py"

pytestmark = pytest.mark.walk


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ranks, _ = read_ranks(write_ranks(tmp_path / "tiny.tiktoken"))
    described = json.loads(gpt2_tokenizer_json(ranks))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    described["added_tokens"] = [{"id": len(ranks), "content": "<|endoftext|>", "special": True, **flags}]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(described), encoding="utf-8")
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.delenv("NIELS_CACHE_REAL_DATA", raising=False)
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    monkeypatch.setattr("sys.argv", [str(BENCHMARK), *arguments])
    runpy.run_path(str(BENCHMARK))["main"]()


def test_it_measures_encoding_and_a_build(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "--models", str(model), "--megabytes", "1", "--rounds", "1", "--bytes", "390", "--build")
    said = capsys.readouterr().out
    for part in ("tokenizer.json", "documents of 390 bytes", "tokenizers", "fastokens", "build of 1 MB", "peak memory"):
        assert part in said


def test_it_compares_ids(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastokens", reason="fastokens is not installed (the extra fast)")
    run(monkeypatch, "--models", str(model), "--equality", "600")
    said = capsys.readouterr().out
    assert "real: 300 texts, 0 differ" in said
    assert "made: 300 texts, 0 differ" in said


def test_without_models_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch)
    assert "NIELS_CACHE_REAL_DATA" in capsys.readouterr().out
