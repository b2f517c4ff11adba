"""Benchmarks run with little data, without the real samples and without other projects' environments, and prints its rows."""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from niels_cache_assets.tokenizer.bpe_json import ranks_as_json
from niels_cache_assets.tokenizer.tiktoken_ranks import read_ranks
from tests.helpers import megatron_core, programs
from tests.tokenizer.test_engines import write_ranks

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"

# The command line and the words that it must print. MODEL is a small tokenizer.json, and PICTURE a file to draw into.
RUNS = {
    "block_order.py --quick --picture PICTURE": ("whole split", "blocks of 16 shards, shuffled corpus", "8 lanes"),
    "chats.py --quick": ("rendering, ChatML", "rendering, without marks", "build, sentinels", "build, ChatML", "build, without marks"),
    "command.py --quick --rounds 0 --only builder script": (
        "first build",
        "nothing to do",
        "status",
        "All wrote",
        "of the builder alone",
        "3 data sets",
    ),
    "dedup.py --quick --only signatures whole corpus": ("canonical words, datasketch", "corpus of 500 documents", 'verify = "jaccard"'),
    "engines.py --models MODEL --megabytes 1 --rounds 1 --bytes 390 --build": ("tokenizer.json", "fastokens", "build of 1 MB"),
    "engines.py --models MODEL --equality 600": ("real: 300 texts, 0 differ", "made: 300 texts, 0 differ"),
    "first_batch.py --only code empty": ("`init 'data/**/*.py'`", "`my_text`", "refused"),
    "gpu.py --device cpu --quick": ("least", "fixed", "usual", "get_batch", "loader, prefetch=2", "loader, document fields, prefetch=1"),
    "loader.py --quick --no-peers": (
        "get_batch (64, 1024), 4 shards, against the usual way",
        "loader (64, 2048), 12 shards, blocks of 1 shard, 8 lanes",
        "document_ids",
        "open 100 shards",
        "at step 10,000,000",
        "packing",
    ),
    "megatron.py --quick": ("sample index, ", "all three indices", "blend of 2", "num_workers=0", "num_workers=1"),
    "packed_documents.py --quick": (
        "600 tokens a document",
        "80 tokens a document",
        "plan of 100,000 documents",
        "opened in",
        "web (log-normal)",
    ),
    "parts.py --quick": ("two parts of 1 MB", "2 parts of 1 MB, 2 at a time", "loader (8, 512), 64 parts", "seal 100 shards"),
    "remote.py --mib 4 --shards 2 --rounds 1": ("push is at", "pull is at"),
    "remote.py --train --mib 16 --shards 32 --rounds 1": ("cold start", "streaming", "local"),
    "remote.py --memory 2 4 --shard-mib 1": ("push     2", "pull     4"),
    "scale.py --quick --ranges 4": ("15 T, fast BPE", "one of 4 ranges", "its prediction", "open 640 shards", "seal 20 parts"),
    "scale_dagster.py --quick --only queue": ("queue 10 runs",),
    "scale_dagster.py --quick --only page": ("40 partitions in Chromium",),
    "start.py --shards 20 --ranks 1 2 --rounds 1": ("1, this working tree", "2, this working tree"),
    "stream.py --mib 24 --shard-mib 1 --limit-mib 14 --seconds 1 --rounds 1 --peers": ("niels-cache", "plain loop"),
    "verify.py --mib 4 --shards 2 --rounds 1": ("sha256sum, all cores", "verify, quick"),
    "warc.py PAGES --megabytes 1 --only source resiliparse": ("source", "resiliparse", "12 pages"),
    "web_cleaning.py --documents 2560 --rounds 1": ("then", "chain, before the compiled loops", "language_error"),
}
# The extras and programs that a run needs.
NEEDS = {"dedup": ("datasketch", "rensa"), "megatron": ("numba",), "remote": ("obstore",), "stream": ("obstore",), "warc": ("fastwarc",)}


def run(*arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "NIELS_CACHE_REAL_DATA"}
    done = programs.run(*arguments, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(printed: str) -> list[list[str]]:
    """Return the cells of each row of a printed Markdown table, with the row of names."""
    return [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("| ")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    ranks = read_ranks(write_ranks(folder / "tiny.tiktoken")).ranks
    described = json.loads(ranks_as_json(ranks, None))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    described["added_tokens"] = [{"id": len(ranks), "content": "<|endoftext|>", "special": True, **flags}]
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(described), encoding="utf-8")
    return path


@pytest.mark.walk
@pytest.mark.parametrize("line", RUNS)
def test_a_run_with_little_data_prints_its_rows(line: str, model: Path, tmp_path: Path) -> None:
    script, *arguments = line.split()
    missing = [package for package in NEEDS.get(Path(script).stem, ()) if find_spec(package) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    if script == "megatron.py":
        megatron_core.load()
    if arguments[-1] == "page":
        pytest.importorskip("playwright.sync_api")
        from tests.helpers.ui.browser import browser_path

        if browser_path() is None:
            pytest.skip("no Chromium or Chrome on this machine")
    (tmp_path / "pages").mkdir()
    for number in range(12):
        (tmp_path / "pages" / f"{number}.html").write_text(f"<title>{number}</title>" + "<p>Words about the sea and the weather.</p>" * 40)
    places = {"MODEL": str(model), "PICTURE": str(tmp_path / "curves.png"), "PAGES": str(tmp_path / "pages")}
    printed = run(str(BENCHMARKS / script), *(places.get(argument, argument) for argument in arguments))
    assert [words for words in RUNS[line] if words not in printed] == []
    measured = [row for row in rows_of(printed)[1:] if "measured" in rows_of(printed)[0]]
    assert [row for row in measured if not re.search(r"\d", row[1]) and not row[0].startswith("---")] == []
    assert "PICTURE" not in arguments or (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.walk
def test_the_comparison_with_peers_runs_without_them() -> None:
    pytest.importorskip("tokenizers", reason="the library tokenizers is not installed")
    line = "peers.py --megabytes 1 --rounds 1 --seconds 0.05"
    code = f"""
import runpy, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
sys.argv = {line.split()!r}
import peers.compare
peers.compare.PEERS.clear()
runpy.run_path({str(BENCHMARKS / "peers.py")!r})["main"]()
"""
    rows = rows_of(run("-c", code))
    assert [row[0] for row in rows] == ["writer", "niels-cache", "script", "reader", "niels-cache", "script"]


def test_the_page_about_scaling_shows_the_table_of_the_formulas() -> None:
    rows = run(str(BENCHMARKS / "scale.py"), "--only", "table").splitlines()
    shown = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    table = [row for row in rows if row.startswith("| ")]
    assert len(table) >= 8
    assert [row for row in table if row not in shown] == [], "run python benchmarks/scale.py --only table"
