"""`niels-cache report NAME`: measures of the filters, similarities from stored signatures, and the page."""

import json
import math
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning import measures as cleaning_measures
from niels_cache_assets.cleaning.measures import MeasureHistograms, RuleLimit
from niels_cache_assets.cleaning.report import CleaningReport
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_assets.cli import main
from niels_cache_assets.corpus.layout import MEASURES_NAME, SIGNATURES_NAME, corpus_dir, duplicates_dir, duplicates_file
from niels_cache_assets.corpus.order import CorpusInputs
from niels_cache_assets.dedup.signatures import estimated_jaccard
from niels_cache_assets.project.registry import Registry
from niels_cache_cleaning.chain import Cleaner
from niels_cache_cleaning.filters import RULES
from niels_cache_cleaning.measuring import limits_of
from niels_cache_pages import tuning as facts
from niels_cache_pages.page import render_tuning
from niels_cache_pages.tuning import tuning
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.verify import notes, verify_cache
from tests.helpers.builds import find_duplicates, prepare_corpus
from tests.helpers.corpora import articles, corpus_registry

SETTINGS = CleaningSettings(skip=("not_english", "language_error"), min_characters=200, min_words=40, max_duplicate_lines=0.3)


def varied(count: int) -> list[str]:
    """Return texts that differ in everything that filters measure, and a few that the filters without a limit drop."""
    chance, base = random.Random(5), articles(count)
    texts = []
    for number, text in enumerate(base):
        words = text.split()[: chance.randint(20, 120)]
        for place in range(len(words)):
            if chance.random() < number % 7 / 20:
                words[place] = chance.choice(["1900", "#", "...", "12,5"])
        if number % 5 == 0:
            words += ["green", "house"] * (number % 9)
        lines = [" ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
        texts.append("\n".join(("* " if chance.random() < number % 4 / 4 else "") + line for line in lines + lines[: number % 3]))
    return [*texts, "", "#REDIRECT [[Other]]", "Mercury may refer to:\n* a planet\n* a metal\n" + "and a word " * 80]


def measured(texts: list[str], settings: CleaningSettings, *, chunk: int | None = None, compiled: bool = False) -> CleaningReport:
    """Clean the texts in chunks, and return the merged report."""
    size = chunk or len(texts)
    cleaner = Cleaner(settings, compiled=compiled)
    total: CleaningReport | None = None
    for first in range(0, len(texts), size):
        report = CleaningReport(7, first, measures=MeasureHistograms(limits_of(settings)))
        for row, text in enumerate(texts[first : first + size], first):
            cleaner.clean(Document(text, f"d{row}", "a.jsonl", row), report)
        if total is None:
            total = report
        else:
            total.merge(report)
    assert total is not None
    return total


def test_other_limits_win_and_lose_as_many_documents_as_cleaning_with_them() -> None:
    texts = varied(90)
    report = measured(texts, SETTINGS)
    assert report.measures is not None
    assert 20 < report.kept < 80
    checked = 0
    for rule in RULES:
        if rule.key not in report.measures.limits:
            continue
        found = facts._rule(rule, report.measures)
        assert sum(row["alone"] for row in found["bins"] if not row["drops"]) == report.kept
        for change in found["changes"][::3]:
            value = int(change["limit"]) if rule.form == "count" else change["limit"]
            if rule.form == "count" and value != change["limit"]:
                continue
            try:
                other = SETTINGS.with_changes({rule.key: value})
            except ValueError:  # the limit of the lengths of words crosses the other one
                continue
            cleaner = Cleaner(other, compiled=False)
            stays = sum(isinstance(cleaner.clean(Document(text)), Document) for text in texts)
            assert change["documents"] == stays - report.kept, (rule.key, change)
            checked += change["documents"] != 0
    assert checked > 20


def test_a_document_without_another_reason_counts_alone_and_one_with_two_counts_anyway() -> None:
    words = articles(2)[1].split()
    lines = [" ".join(words[start : start + 5]) for start in range(0, len(words), 5)]
    texts = [articles(1)[0], "* " + "\n* ".join(lines), "* a\n* b"]
    found = measured(texts, SETTINGS).measures
    assert found is not None
    assert found.steps["max_bullet_share"]["alone"] == {-20 + 0: 1, 20: 1}
    assert found.steps["max_bullet_share"]["anyway"] == {20: 1}
    assert found.samples("max_bullet_share", "above") == found.samples("max_bullet_share", "below") == []  # all are far from the limit


@pytest.mark.parametrize(
    ("limit", "value", "step"),
    [
        (RuleLimit(0.5, 0.025, "above"), 0.5, 0),
        (RuleLimit(0.5, 0.025, "above"), math.nextafter(0.5, 1), 1),
        (RuleLimit(0.5, 0.025, "above"), 0.0, -20),
        (RuleLimit(0.1, 0.005, "above"), 9.0, 40),
        (RuleLimit(400, 20, "below"), 400, 0),
        (RuleLimit(400, 20, "below"), 399, -1),
        (RuleLimit(400, 20, "below"), 0, -20),
        (RuleLimit(400, 20, "below"), 1e9, 40),
    ],
)
def test_the_limit_itself_passes(limit: RuleLimit, value: float, step: int) -> None:
    assert limit.step_of(value) == step
    assert limit.is_dropped(step) == (value > limit.limit if limit.side == "above" else value < limit.limit)


def test_chunks_and_compiled_loops_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning_measures, "FIRST", 20)
    monkeypatch.setattr(cleaning_measures, "EVERY", 4)
    texts = varied(120)
    whole = measured(texts, SETTINGS).state()
    assert whole["measures"] == measured(texts, SETTINGS, chunk=7).state()["measures"]
    assert whole["measures"] == measured(texts, SETTINGS, compiled=True).state()["measures"]
    assert 20 + 5 < whole["measures"]["measured"] < 80
    assert 80 < whole["measures"]["documents"] < 180
    again = CleaningReport.from_state(json.loads(json.dumps(whole)))
    assert json.dumps(again.state()) == json.dumps(whole)


def test_samples_are_the_nearest_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning_measures, "SAMPLES", 3)
    texts = [" ".join(articles(1)[0].split()[:words]) for words in range(45, 100, 5)]
    found = measured(texts, SETTINGS.with_changes({"min_words": 70, "min_characters": 0})).measures
    assert found is not None
    assert [row["value"] for row in found.samples("min_words", "above")] == [70, 75, 80]
    assert [row["value"] for row in found.samples("min_words", "below")] == [65, 60, 55]


# Corpora.


def copies(text: str, changed: int) -> str:
    """Return the text with some words in the middle replaced."""
    words = text.split()
    words[30 : 30 + changed] = [f"other{number}" for number in range(changed)]
    return " ".join(words)


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> tuple[Registry, Path]:
    """Two data sets with copies of every degree, within and across."""
    folder = tmp_path_factory.mktemp("tune")
    base = articles(80)
    first = base[:50] + [copies(base[number], number) for number in range(1, 30)] + [base[3], base[4].upper(), "too short"]
    second = [copies(base[number], number % 12) for number in range(20, 50)] + base[50:60]
    registry = corpus_registry(folder, {"books": first, "pages": second}, settings="[build]\nthreads = 1\n")
    for name in ("books", "pages"):
        prepare_corpus(registry, name, root=folder / "cache", processes=1)
    find_duplicates(registry, root=folder / "cache")
    return registry, folder / "cache"


def by_hand(registry: Registry, root: Path, name: str) -> np.ndarray:
    """Return the similarity of each document of `name` to its most similar earlier document, without exact duplicates, by comparing all."""
    seen: list[np.ndarray] = []
    best = []
    for each in ("books", "pages"):
        folder = corpus_dir(root, each)
        slots = np.load(folder / SIGNATURES_NAME)
        dropped = pq.read_table(duplicates_dir(root) / duplicates_file(each)).to_pylist()
        exact = {row["ordinal"] for row in dropped if row["kind"] == "exact"}
        order = CorpusInputs(registry, root, {each: read_meta(str(folder / "meta.json"))}).all[0].order
        for ordinal in order.tolist():
            if ordinal not in exact and each == name:
                others = np.array(seen) if seen else np.empty((0, slots.shape[1]), np.uint32)
                best.append(estimated_jaccard(others, np.broadcast_to(slots[ordinal], others.shape)).max(initial=0.0))
            seen.append(slots[ordinal])
    return np.array(best)


@pytest.mark.parametrize("name", ["books", "pages"])
def test_similarities_are_those_of_all_pairs(books: tuple[Registry, Path], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    registry, root = books
    monkeypatch.setattr(facts, "_PAIRS_AT_ONCE", 5)
    found = tuning(registry, name, root=root)["duplicates"]
    expected = by_hand(registry, root, name)
    assert found["documents"] == found["compared"] == len(expected)
    counts = np.bincount(np.minimum((expected * 100).astype(int), 99), minlength=100)
    clear = range(72, 100)  # every pair this similar meets in some band
    assert sum(counts[clear]) > 10
    assert {round(row["from"] * 100): row["documents"] for row in found["histogram"]}.items() >= {bin: counts[bin] for bin in clear}.items()
    lost = {row["threshold"]: row["documents"] for row in found["lost"]}
    assert lost[0.85] == (expected >= 0.85).sum()
    assert all(pair["similarity"] >= 0.85 for pair in found["above"])
    assert all(0 < pair["similarity"] < 0.85 for pair in found["below"])
    similarities = [pair["similarity"] for pair in found["below"]]
    assert similarities == sorted(similarities, reverse=True)
    assert len(found["above"]) <= 20


def test_a_sample_of_a_large_data_set_counts_for_all(books: tuple[Registry, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    registry, root = books
    monkeypatch.setattr(facts, "MAX_COMPARED", 40)
    found = tuning(registry, "books", root=root)["duplicates"]
    assert found["compared"] == 40 < found["documents"]
    assert abs(found["dissimilar"] + sum(row["documents"] for row in found["histogram"]) - found["documents"]) < 5
    assert found == tuning(registry, "books", root=root)["duplicates"]


def test_parts_have_the_measures_of_their_corpus(books: tuple[Registry, Path]) -> None:
    _, root = books
    found = facts.read_measures(corpus_dir(root, "books"))
    meta = read_meta(str(corpus_dir(root, "books") / "meta.json"))
    assert found.measured == found.documents == meta["documents"]["read"]
    assert MEASURES_NAME in meta["files"]
    assert verify_cache(str(root)) == []
    assert notes(str(root)) == []
    joined, later = CleaningReport.from_state({**_state(found)}), CleaningReport.from_state({**_state(found)})
    joined.join(later)
    assert joined.measures is not None
    assert joined.measures.measured == 2 * found.measured


def _state(found: MeasureHistograms) -> dict[str, Any]:
    return {**CleaningReport(7).state(), "measures": json.loads(json.dumps(found.state()))}


def test_the_page_is_self_contained_and_shows_everything(
    books: tuple[Registry, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry, root = books
    common = ["--config", registry.origin, "--cache-dir", str(root), "--profile", "quickstart"]
    assert main(["report", "books", *common, "--out", str(tmp_path / "page.html")]) == 0
    assert str(tmp_path / "page.html") in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text("utf-8")
    assert re.findall(r"(?i)<(?:script|link|iframe|object|img)|(?:src|href)=\"(?!#)|@import|url\(", page) == []
    assert "default-src &#39;none&#39;" in page
    found = tuning(registry, "books", root=root)
    excerpt = json.dumps(found["duplicates"]["below"][0]["document"]["excerpt"])
    hostile = json.loads(json.dumps(found).replace(excerpt, '"<script>{{ 7*7 }}"'))
    assert "&lt;script&gt;{{ 7*7 }}" in render_tuning(hostile)
    assert "<script" not in render_tuning(hostile)
    assert re.findall(r"<title>from [\d.]+ to [\d.]+, (?:stays|another rule drops it): \d+<", page)
    assert page.count("<svg") == len(found["cleaning"]["rules"]) + 2
    for rule in found["cleaning"]["rules"]:
        assert f'id="{rule["key"]}"' in page
    assert main(["report", "books", *common, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found))
    assert not (root / "reports" / "tune").exists()
    assert main(["report", "books", *common]) == 0
    assert (root / "reports" / "tune" / "books.html").read_text("utf-8") == page
    shutil.rmtree(root / "reports")  # another test compares the notes about this root


def test_damaged_measures_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(NielsCacheError, match=MEASURES_NAME):
        facts.read_measures(tmp_path)
    for content in (b"{", b"[]", b'{"rules": {}}'):
        (tmp_path / MEASURES_NAME).write_bytes(content)
        with pytest.raises(NielsCacheError, match=MEASURES_NAME) as raised:
            facts.read_measures(tmp_path)
        assert "\n" not in str(raised.value)
