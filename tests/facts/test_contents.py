"""A source that ends before its token budgets are met. The table, status, list, show and Dagster all report the missed budgets."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.cli import main
from niels_cache_assets.facts.contents import budget_rule, budget_shares, budget_shortfall
from niels_cache_assets.streaming.splits import UNLIMITED
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.corpora import write_jsonl
from tests.helpers.tiny import sentences

ENDED = "0.5% of train_tokens"
SHARES = "seeded 0.1 of documents to val, seed 42"


def builders_rule(*, val: int, train: int) -> str:
    """Return the rule as a builder writes it that is called without a registry."""
    return f"val until {val} tokens, then train until {train}"


def meta(train: int, val: int, rule: str | None, **more: Any) -> dict[str, Any]:
    return {"kind": "pretrain", "built": True, "train_tokens": train, "val_tokens": val, "split_rule": rule, **more}


@pytest.mark.parametrize(
    ("train", "val", "rule", "said"),
    [
        (46_967, 0, budget_rule(train_tokens=10_000_000, val_tokens=0), ENDED),
        (9_999_999, 5, budget_rule(train_tokens=10_000_000, val_tokens=5), "99.9% of train_tokens"),
        (1, 5, budget_rule(train_tokens=10_000_000, val_tokens=5), "<0.1% of train_tokens"),
        (50, 5, budget_rule(train_tokens=100, val_tokens=10), "50.0% of train_tokens, 50.0% of val_tokens"),
        (200, 5, budget_rule(train_tokens=None, val_tokens=10), "50.0% of val_tokens"),
        (46_967, 0, builders_rule(val=0, train=10_000_000), ENDED),  # of the builders
        (100, 10, budget_rule(train_tokens=100, val_tokens=10), None),
        (200, 10, budget_rule(train_tokens=None, val_tokens=10), None),
        (200, 10, builders_rule(val=10, train=UNLIMITED), None),
        (200, 10, SHARES, None),
        (200, 10, "upstream's own splits", None),
        (200, 10, None, None),
    ],
)
def test_the_sentence_says_how_much_of_which_budget_is_there(train: int, val: int, rule: str | None, said: str | None) -> None:
    told = budget_shortfall(meta(train, val, rule))
    assert (told and told.partition(": ")[0]) == said
    assert told is None or "source ended" in told
    assert bool(budget_shares(meta(train, val, rule))) == (said is not None)


def test_what_is_switched_off_or_no_pretrain_cache_has_no_budget() -> None:
    rule = budget_rule(train_tokens=10_000_000, val_tokens=0)
    assert budget_shortfall(meta(0, 0, rule, built=False)) is None
    assert budget_shortfall(meta(46_967, 0, rule, kind="sft")) is None
    assert budget_shortfall({}) is None


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`short` ends before its budget, `cut` does not."""
    write_jsonl(tmp_path / "texts.jsonl", sentences(60))
    table = 'source = "jsonl"\nfiles = ["texts.jsonl"]\nval_tokens = 100\n'
    (tmp_path / "niels_cache.toml").write_text(
        f'profile = "quickstart"\n[tokenizer]\nmodel = "{tiny_model}"\n[dagster]\nplots = false\n'
        "[pretrain.python_docs]\nenabled = false\n[sft.python_help]\nenabled = false\n"
        f"[pretrain.short]\n{table}train_tokens = 10_000_000\n[pretrain.cut]\n{table}train_tokens = 200\n"
    )
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "--cache-dir", "cache"]) == 0
    return capsys.readouterr().out


def test_every_command_that_tells_sizes_says_that_the_source_ended(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = run(capsys, "build-all")
    tokens = read_meta("cache/pretrain/short/meta.json")["train_tokens"]
    said = budget_shortfall(read_meta("cache/pretrain/short/meta.json"))
    assert said is not None
    assert said.startswith("<0.1% of train_tokens: ")
    assert f"{tokens:,} tokens (<0.1%)" in built
    assert f"short built: budgets_met: {said}" in built
    assert "200 tokens  100" in built, "what was cut by its budget is met"
    assert "cut built" not in built
    status = {" ".join(line.split()) for line in run(capsys, "status").splitlines()}
    for row in (rf"short pretrain complete {tokens:,} tokens \(<0.1%\) \S+ {re.escape(said)}", r"cut pretrain complete 200 tokens 100 "):
        assert any(re.match(row, line) and line.endswith("cut by token budgets") for line in status), row
    assert f"\n{said}\n" in run(capsys, "show", "short")
    assert "% of train_tokens" not in run(capsys, "show", "cut")
    for key in ("note", "shortfall"):
        rows = {row["name"]: row for row in json.loads(run(capsys, "status", "--json"))["data_sets"]}
        assert (rows["short"][key].startswith(said), "the source ended" in (rows["cut"][key] or "")) == (True, False)
    (result,) = [row for row in json.loads(run(capsys, "build-all", "--only", "short", "--json"))["results"] if row["name"] == "short"]
    assert result["state"] == "cache_hit", "what is told of a cache that is there already"
    assert (result["shortfall"], result["message"]) == (said, None), "a hit executes no check"
