"""Corpora on disk. The files are the same for any number of processes, and a failed build leaves the last good corpus."""

import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_assets.artifacts.base import Outcome, ReportedProgress
from niels_cache_assets.base.documents import Document
from niels_cache_assets.base.parallel import map_in_processes
from niels_cache_assets.corpus import chunks, store
from niels_cache_assets.corpus.layout import DOCUMENTS, REJECTED, corpus_dir
from niels_cache_assets.dedup.signatures import Signer
from niels_cache_assets.project.registry import Registry
from niels_cache_cleaning.chain import Cleaner
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.builds import prepare_corpus
from tests.helpers.corpora import MisbehavingSource, articles, corpus_registry, with_source, write_jsonl
from tests.helpers.messages import missing
from tests.helpers.programs import Program

PREPARE = ("clean", "dedup")


def content_of(folder: Path) -> dict[str, bytes]:
    content = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    assert len(content) >= 3
    return content


def documents_of(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("documents_*.parquet")) for row in pq.read_table(path).to_pylist()]


def mixed_texts() -> list[str]:
    """Documents that stay, and some that are too short, lists, or have little but numbers."""
    lists = "\n".join(f"* the item of a list to number {index}" for index in range(60))
    numbers = " ".join(f"{index} and the" for index in range(400))
    return [*articles(300), "too short", lists, numbers, *articles(300, seed=1), "short as well, the one and only"]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return corpus_registry(tmp_path, {"notes": mixed_texts()})


class Prepared(NamedTuple):
    registry: Registry
    outcome: Outcome
    reports: list[ReportedProgress]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A corpus of the mixed texts, for tests that only look at it."""
    folder, reports = tmp_path_factory.mktemp("prepared"), list[ReportedProgress]()
    registry = corpus_registry(folder, {"notes": mixed_texts()})
    return Prepared(registry, prepare_corpus(registry, "notes", root=folder, processes=1, on_progress=reports.append), reports)


def test_the_bytes_are_the_same_for_any_number_of_processes(tmp_path: Path, prepared: Prepared) -> None:
    outcome = prepare_corpus(prepared.registry, "notes", root=tmp_path, processes=2)
    assert (prepared.outcome.state, outcome.state) == ("built", "built")
    assert outcome.meta["documents"]["kept"] == 600
    assert content_of(outcome.directory) == content_of(prepared.outcome.directory)
    assert str(tmp_path) not in json.dumps(outcome.meta)


def test_what_the_cleaner_keeps_is_stored_in_input_order_and_the_rest_is_counted_and_shown(prepared: Prepared) -> None:
    registry, outcome, _ = prepared
    cleaner = Cleaner(registry.cleaning_of("notes"))
    results = [cleaner.clean(Document(text, f"notes-{row}", "notes.jsonl", row)) for row, text in enumerate(mixed_texts())]
    kept = [result for result in results if isinstance(result, Document)]
    rows = documents_of(outcome.directory)
    assert len(rows) == len(kept) == 600
    assert list(rows[0]) == list(DOCUMENTS)
    assert [row["ordinal"] for row in rows] == list(range(600))
    assert [(row["text"], row["source_id"], row["file"], row["row"]) for row in rows] == [
        (document.text, document.source_id, document.file, document.row) for document in kept
    ]
    assert all(row["characters"] == len(row["text"]) and row["bytes"] == len(row["text"].encode()) for row in rows)
    gone = [result for result in results if not isinstance(result, Document)]
    assert len(gone) == 4
    assert outcome.meta["dropped"] == Counter(result.reason for result in gone)
    rejected = pq.read_table(outcome.directory / "rejected.parquet").to_pylist()
    assert list(rejected[0]) == list(REJECTED)
    assert sorted((row["reason"], row["source_id"]) for row in rejected) == sorted(
        (result.reason, result.document.source_id) for result in gone
    )


def test_signatures_are_those_of_the_stored_texts(prepared: Prepared) -> None:
    folder = prepared.outcome.directory
    signed = Signer(num_perm=128, ngram=5).sign([row["text"] for row in documents_of(folder)])
    assert len(signed) == 600
    assert np.array_equal(np.load(folder / "digests.npy"), signed.digests)
    assert np.array_equal(np.load(folder / "signatures.npy"), signed.slots)


def test_the_counts_of_meta_add_up(tmp_path: Path, registry: Registry) -> None:
    source = MisbehavingSource(prepare=PREPARE, split=True)
    outcome = prepare_corpus(with_source(registry, "notes", source), "notes", root=tmp_path, processes=1)
    meta, rows = outcome.meta, documents_of(outcome.directory)
    assert len(rows) == meta["documents"]["kept"] == 514
    assert meta["dropped_by_source"] == {"short_docstring": 86}
    cleaning = sum(meta["dropped"].values()) - 86
    assert meta["documents"]["read"] == 514 + cleaning
    assert sum(meta["lengths"]["before"]) == meta["documents"]["read"]
    assert sum(meta["lengths"]["after"]) == 514
    assert meta["bytes"]["after"] == sum(row["bytes"] for row in rows)
    assert meta["characters"]["after"] == sum(row["characters"] for row in rows)
    assert meta["words"] == sum(len(row["text"].split()) for row in rows)
    assert meta["splits"] == Counter(row["split"] for row in rows)
    assert set(meta["splits"]) == {"train", "val"}
    assert rows[0]["title"] == "Title 1"


def test_a_second_run_and_settings_that_are_applied_later_find_the_corpus(tmp_path: Path, registry: Registry) -> None:
    first = prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    again = prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    assert (again.state, again.meta) == ("cache_hit", first.meta)
    later = corpus_registry(
        tmp_path,
        {"notes": mixed_texts()},
        settings='[dedup]\nthreshold = 0.7\nverify = "jaccard"\n',
        table='prepare = ["dedup", "clean"]\nval_frac = 0.3\nshuffle_buffer = 100\n',
    )
    assert prepare_corpus(later, "notes", root=tmp_path, processes=1).state == "cache_hit"
    assert prepare_corpus(registry, "notes", root=tmp_path, processes=1, force=True).meta == first.meta


@pytest.mark.parametrize(
    ("settings", "table"),
    [
        ("[dedup]\nnum_perm = 64\n", ""),
        ("[dedup]\nngram = 4\n", ""),
        ("", "cleaning = { min_words = 60 }\n"),
    ],
)
def test_settings_that_decide_the_bytes_prepare_again(tmp_path: Path, settings: str, table: str) -> None:
    data, prepare = {"notes": articles(20)}, 'prepare = ["clean", "dedup"]\n'
    prepare_corpus(corpus_registry(tmp_path, data, table=prepare), "notes", root=tmp_path, processes=1)
    changed = corpus_registry(tmp_path, data, settings=settings, table=prepare + table)
    assert prepare_corpus(changed, "notes", root=tmp_path, processes=1).state == "built"


def test_row_groups_of_short_texts_end_by_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ROWS_PER_GROUP", 40)
    registry = corpus_registry(tmp_path, {"notes": [f"note {index}" for index in range(100)]}, table='prepare = ["dedup"]\n')
    outcome = prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    parquet = pq.ParquetFile(outcome.directory / "documents_00000.parquet")
    assert [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)] == [40, 40, 20]
    assert [row["text"] for row in documents_of(outcome.directory)] == [f"note {index}" for index in range(100)]


def test_token_budgets_do_not_end_what_is_prepared_and_the_log_says_so(tmp_path: Path) -> None:
    log: list[str] = []
    registry = corpus_registry(tmp_path, {"notes": articles(20)}, table='prepare = ["clean"]\ntrain_tokens = 100\n')
    assert prepare_corpus(registry, "notes", root=tmp_path, processes=1, log=log.append).meta["documents"]["kept"] == 20
    (warning,) = [line for line in log if line.startswith("warning")]
    assert missing(warning, "notes", "train_tokens", "val_tokens") == []
    log.clear()
    prepare_corpus(corpus_registry(tmp_path, {"notes": articles(20)}), "notes", root=tmp_path, processes=1, log=log.append)
    assert len(log) == 1


def test_a_source_of_which_nothing_is_left_is_an_error_and_replaces_nothing(tmp_path: Path, registry: Registry) -> None:
    good = prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    before = content_of(good.directory)
    write_jsonl(tmp_path / "notes.jsonl", ["too short", "this one, too"])
    with pytest.raises(NielsCacheError, match=r"too_short 2.*\[cleaning\]"):
        prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    write_jsonl(tmp_path / "notes.jsonl", [])
    with pytest.raises(NielsCacheError, match=r"is empty.*check the source$"):
        prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    uncleaned = with_source(registry, "notes", MisbehavingSource(prepare=("dedup",), count=1))
    with pytest.raises(NielsCacheError, match=r"short_docstring 1.*check the source$"):
        prepare_corpus(uncleaned, "notes", root=tmp_path, processes=1)
    assert content_of(good.directory) == before


def test_a_corpus_outlives_an_upstream_that_is_down(tmp_path: Path, registry: Registry) -> None:
    up = with_source(registry, "notes", MisbehavingSource(prepare=PREPARE, count=50))
    first = prepare_corpus(up, "notes", root=tmp_path, processes=1)
    down = with_source(registry, "notes", MisbehavingSource(prepare=PREPARE, count=50, unavailable=True))
    kept = prepare_corpus(down, "notes", root=tmp_path, processes=1)
    assert (kept.state, kept.meta) == ("cache_hit", first.meta)
    assert missing(kept.warning, "upstream is down", "kept", "revision 1") == []
    with pytest.raises(NielsCacheError, match="upstream is down"):
        prepare_corpus(down, "notes", root=tmp_path, processes=1, force=True)


def test_what_cannot_be_written_is_counted_without_cleaning_and_repaired_with_it(tmp_path: Path) -> None:
    texts = [*articles(5), f"half a pair \ud800 and a \1 control character in {articles(1, seed=3)[0]}"]
    plain = corpus_registry(tmp_path / "plain", {"notes": texts}, table='prepare = ["dedup"]\n')
    outcome = prepare_corpus(plain, "notes", root=tmp_path / "plain", processes=1)
    assert (outcome.meta["documents"], outcome.meta["dropped"]) == ({"read": 6, "kept": 5}, {"invalid_unicode": 1})
    assert pq.read_table(outcome.directory / "rejected.parquet")["reason"].to_pylist() == ["invalid_unicode"]
    clean = corpus_registry(tmp_path / "clean", {"notes": texts}, table='prepare = ["clean"]\n')
    outcome = prepare_corpus(clean, "notes", root=tmp_path / "clean", processes=1)
    assert (outcome.meta["documents"], outcome.meta["dropped"]) == ({"read": 6, "kept": 6}, {})
    assert not (outcome.directory / "signatures.npy").exists()


def test_a_data_set_without_prepare_has_no_corpus(tmp_path: Path) -> None:
    registry = corpus_registry(tmp_path, {"notes": articles(3)}, table="")
    with pytest.raises(NielsCacheError, match=r"\[pretrain.notes\].*set prepare"):
        prepare_corpus(registry, "notes", root=tmp_path)
    with pytest.raises(NielsCacheError, match="did you mean 'notes'"):
        prepare_corpus(registry, "note", root=tmp_path)


def test_a_data_set_that_is_switched_off_is_left_alone(tmp_path: Path) -> None:
    registry = corpus_registry(tmp_path, {"notes": articles(3)}, table='prepare = ["clean"]\nenabled = false\n')
    outcome = prepare_corpus(registry, "notes", root=tmp_path)
    assert (outcome.state, outcome.meta, outcome.directory.exists()) == ("disabled", {}, False)


def test_progress_counts_what_was_read_and_what_stays(prepared: Prepared) -> None:
    _, outcome, reports = prepared
    assert len(reports) > 1
    assert [report.counts["documents"] for report in reports] == sorted(report.counts["documents"] for report in reports)
    documents, characters = outcome.meta["documents"], outcome.meta["characters"]
    assert reports[-1].counts == {"documents": documents["read"], "kept": documents["kept"], "characters": characters["before"]}
    shares = [report.share for report in reports if report.share is not None]
    assert len(shares) > 1
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1


def test_workers_answer_in_order_and_take_no_more_than_they_need() -> None:
    taken = []

    def numbers() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    results = map_in_processes(math.factorial, numbers(), processes=2, doing="multiplying")
    assert [next(results) for _ in range(10)] == [math.factorial(number) for number in range(10)]
    assert len(taken) <= 10 + 2 * 2 + 1
    assert list(results) == [math.factorial(number) for number in range(10, 1000)]


_SLOW_RUN = """
import sys
from pathlib import Path
from tests.helpers.builds import prepare_corpus
from tests.helpers.corpora import MisbehavingSource, corpus_registry, with_source
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    source = MisbehavingSource(prepare=("clean",), sleep_at=300, pid_file=str(folder / "pid"))
    prepare_corpus(with_source(corpus_registry(folder, {"notes": []}), "notes", source), "notes", root=folder, processes=2)
"""


def wait_for_the_end_of(process: int) -> None:
    """Or for the end of the test's patience."""
    for _ in range(600):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError(f"process {process} is still there")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_or_killed_run_leaves_no_worker_and_no_corpus(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "run.py").write_text(_SLOW_RUN)
    with open(os.devnull, "r+b") as nothing:
        run = Program("run.py", tmp_path, cwd=tmp_path, streams=[nothing.fileno()] * 3)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert run.poll() is None
        time.sleep(0.05)
    worker = int((tmp_path / "pid").read_text())
    os.kill(worker, 0)
    run.send_signal(number)
    assert run.wait(timeout=60) != 0
    wait_for_the_end_of(worker)
    assert not corpus_dir(tmp_path, "notes").exists()


@given(st.lists(st.text("ab \n\t\x1c\x85\xa0\u2028\u3000\u4e2d\U0001f600\ud800", max_size=8), max_size=3))
def test_words_are_counted_as_split_finds_them(texts: list[str]) -> None:
    assert chunks._count_words(texts) == sum(len(text.split()) for text in texts)
