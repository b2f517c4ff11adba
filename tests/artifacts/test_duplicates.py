"""Duplicates within and across data sets. The tests check which documents are dropped, for which reason, and the cost of a changed
setting.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from niels_cache_assets.artifacts import duplicates
from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.prepared_corpora import open_prepared, prepared_documents
from niels_cache_assets.corpus import near_val, order, store
from niels_cache_assets.corpus.identity import dedup_order
from niels_cache_assets.corpus.layout import DUPLICATES, corpus_dir, duplicates_dir, duplicates_file
from niels_cache_assets.corpus.order import ArrayRows
from niels_cache_assets.dedup import greedy
from niels_cache_assets.dedup.signatures import Signer, jaccard
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.streaming import encode
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.builds import find_duplicates, prepare_corpus
from tests.helpers.corpora import MisbehavingSource, articles, corpus_registry, nearly, with_source, write_jsonl
from tests.helpers.messages import missing
from tests.helpers.plain_signatures import shingles_of


def prepare_all(registry: Registry, root: Path) -> Outcome:
    for name in registry.prepared():
        prepare_corpus(registry, name, root=root, processes=1)
    return find_duplicates(registry, root=root)


def drop_list(root: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(duplicates_dir(root) / duplicates_file(name)).to_pylist()
    return rows


def texts_of(registry: Registry, name: str, root: Path) -> list[str]:
    return [document.text for batch in prepared_documents(registry, name, root=root) for document in batch]


def no_val(steps: str = '"clean", "dedup"') -> str:
    return f"prepare = [{steps}]\nval_frac = 0\n"


def test_the_first_in_table_order_stays_and_the_drop_list_says_because_of_whom(tmp_path: Path) -> None:
    texts = articles(12)
    data = {"books": texts[:6], "notes": [texts[7], texts[2].upper(), nearly(texts[4]), texts[8], texts[7]]}
    registry = corpus_registry(tmp_path, data, table=no_val())
    outcome = prepare_all(registry, tmp_path)
    assert outcome.state == "built"
    assert drop_list(tmp_path, "books") == []
    rows = drop_list(tmp_path, "notes")
    assert list(rows[0]) == list(DUPLICATES)
    near = rows[1].pop("similarity")
    assert 0.85 < near < 1
    assert rows[1] == {
        "ordinal": 2,
        "split": "train",
        "kind": "near",
        "because_dataset": "books",
        "because_ordinal": 4,
        "because_split": "train",
    }
    assert [(row["ordinal"], row["kind"], row["because_dataset"], row["because_ordinal"]) for row in rows] == [
        (1, "exact", "books", 2),
        (2, "near", "books", 4),
        (4, "exact", "notes", 0),
    ]
    assert rows[0]["similarity"] == rows[2]["similarity"] == 1
    assert texts_of(registry, "notes", tmp_path) == [texts[7], texts[8]]
    counts = outcome.meta["datasets"]
    assert (counts["notes"]["exact"], counts["notes"]["near"], counts["notes"]["documents"]) == (2, 1, 5)
    assert counts["books"]["clusters"] == {"2": 2}
    assert counts["notes"]["clusters"] == {"2": 3}
    assert counts["books"]["clusters_across"] == counts["notes"]["clusters_across"] == {"2": 2}
    assert counts["notes"]["characters"]["near"] == len(nearly(texts[4]))
    assert sum(pair["documents"] for pair in counts["notes"]["pairs"]) == 3


def test_data_sets_with_priority_win(tmp_path: Path) -> None:
    texts = articles(4)
    data = {"books": texts, "letters": texts[:2], "notes": texts[1:3]}
    registry = corpus_registry(tmp_path, data, settings='[dedup]\npriority = ["notes"]\n', table=no_val())
    assert dedup_order(registry) == ["notes", "books", "letters"]
    prepare_all(registry, tmp_path)
    assert [len(texts_of(registry, name, tmp_path)) for name in data] == [2, 0, 2]
    assert [row["because_dataset"] for row in drop_list(tmp_path, "letters")] == ["books", "notes"]


def test_upstreams_own_val_wins_as_well(tmp_path: Path) -> None:
    """One document in ten is val: number 10 has twins in train before it."""
    registry = corpus_registry(tmp_path, {"notes": articles(3)})
    source = MisbehavingSource(prepare=("dedup",), count=60, split=True, twins={3: 10, 5: 10, 33: 31})
    registry = with_source(registry, "notes", source)
    prepare_all(registry, tmp_path)
    prepared = open_prepared(registry, "notes", root=tmp_path)
    stay = [(document.row, document.split) for batch in prepared.documents() for document in batch]
    assert stay == [(row, "val" if row % 10 == 0 else "train") for row in range(60) if row % 7 and row not in (3, 5, 33)]
    rows = [row for row in range(60) if row % 7]
    assert [
        (rows[row["ordinal"]], row["split"], rows[row["because_ordinal"]], row["because_split"]) for row in drop_list(tmp_path, "notes")
    ] == [
        (3, "train", 10, "val"),
        (5, "train", 10, "val"),
        (33, "train", 31, "train"),
    ]


@pytest.mark.parametrize(("first", "is_large"), [("books", False), ("notes", True)])
def test_no_train_document_is_near_val_although_the_bands_miss_some_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, is_large: bool
) -> None:
    """Pairs whose one word differs, at a similarity of about 0.92, of which the balanced bands miss about one in eight.

    is_large: val is compared in blocks, signatures and drop lists have several blocks, and numbers of documents have 64 bits.
    """
    if is_large:
        monkeypatch.setattr(near_val, "_VAL_AT_ONCE", 7)
        monkeypatch.setattr(greedy, "_MAX_DOCUMENTS_OF_32_BITS", 10)
        monkeypatch.setattr(order, "_BLOCK", 41)
        monkeypatch.setattr(duplicates, "_ROWS_PER_GROUP", 9)
    base = articles(300)
    data = {"books": base, "notes": [" ".join([*words[:50], "different", *words[51:]]) for words in map(str.split, base)]}
    registry = corpus_registry(
        tmp_path, data, settings=f'[dedup]\npriority = ["{first}"]\n', table='prepare = ["clean", "dedup"]\nval_frac = 0.3\n'
    )
    counts = prepare_all(registry, tmp_path).meta["datasets"]
    split_of: dict[str, list[tuple[str, str | None]]] = {name: [] for name in data}
    for name in data:
        for batch in prepared_documents(registry, name, root=tmp_path):
            split_of[name] += [(document.text, document.split) for document in batch]
    signer = Signer()
    sets = {name: [(shingles_of(signer, text), split) for text, split in rows] for name, rows in split_of.items()}
    survivors = [
        (one_split, other_split) for one, one_split in sets["books"] for other, other_split in sets["notes"] if jaccard(one, other) >= 0.85
    ]
    assert len(survivors) > 5, "pairs within train stay as the bands leave them"
    assert not [pair for pair in survivors if set(pair) == {"train", "val"}]
    because = {row["because_dataset"] for row in drop_list(tmp_path, "books" if first == "notes" else "notes")}
    assert because == {first}
    assert sum(count["near"] for count in counts.values()) == 300 - len(survivors)


def test_verified_duplicates_have_the_similarity_that_their_texts_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The likes lie far apart, in many row groups."""
    in_parts(monkeypatch, group=3_000, file=1_000_000)
    base = articles(50)
    texts = [*base, *(nearly(text, changed) for changed in (1, 8, 16) for text in base)]
    plain = corpus_registry(tmp_path, {"notes": texts}, settings="[dedup]\nthreshold = 0.8\n", table=no_val())
    prepare_all(plain, tmp_path)
    unverified = {row["ordinal"] for row in drop_list(tmp_path, "notes")}
    verified = corpus_registry(tmp_path, {"notes": texts}, settings='[dedup]\nthreshold = 0.8\nverify = "jaccard"\n', table=no_val())
    assert find_duplicates(verified, root=tmp_path).state == "built"
    rows = drop_list(tmp_path, "notes")
    assert len(rows) >= 50
    signer = Signer()
    sets = [shingles_of(signer, text) for text in texts]
    near = {ordinal for ordinal in range(50, 200) if jaccard(sets[ordinal], sets[ordinal % 50]) >= 0.8}
    assert unverified - near, "without verify, pairs below the threshold are dropped, too"
    found = {row["ordinal"] for row in rows}
    assert found <= near
    assert len(near - found) <= 1
    for row in rows:
        similarity = jaccard(sets[row["ordinal"]], sets[row["because_ordinal"]])
        assert row["similarity"] == pytest.approx(similarity) if row["kind"] == "near" else row["similarity"] == 1
        assert similarity >= 0.8


def test_a_second_run_is_a_cache_hit_and_a_changed_threshold_runs_only_this(tmp_path: Path) -> None:
    base = articles(30)
    data = {"notes": [*base, *(nearly(text, 4) for text in base)]}
    registry = corpus_registry(tmp_path, data, table=no_val())
    first = prepare_all(registry, tmp_path)
    again = find_duplicates(registry, root=tmp_path)
    assert (again.state, again.meta) == ("cache_hit", first.meta)
    assert find_duplicates(registry, root=tmp_path, force=True).meta == first.meta
    stricter = corpus_registry(tmp_path, data, settings="[dedup]\nthreshold = 0.97\n", table=no_val())
    assert prepare_corpus(stricter, "notes", root=tmp_path, processes=1).state == "cache_hit"
    outcome = find_duplicates(stricter, root=tmp_path)
    assert outcome.state == "built"
    assert outcome.meta["datasets"]["notes"]["near"] < first.meta["datasets"]["notes"]["near"]
    assert outcome.meta["content_sha256"] != first.meta["content_sha256"]


def test_data_sets_without_a_corpus_are_named_and_waited_for(tmp_path: Path) -> None:
    registry = corpus_registry(tmp_path, {"notes": articles(5), "books": articles(5, seed=1)})
    with pytest.raises(NielsCacheError, match=r"finished corpus .*'notes' .*materialize corpus/documents"):
        find_duplicates(registry, root=tmp_path)
    prepare_corpus(registry, "books", root=tmp_path, processes=1)
    outcome = find_duplicates(registry, root=tmp_path)
    assert outcome.warning is not None
    assert missing(outcome.warning, "duplicates", "notes: ") == []
    assert (outcome.meta["missing"], sorted(outcome.meta["datasets"])) == (["notes"], ["books"])
    prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    with pytest.raises(NielsCacheError, match=r"before .*'notes' .*; materialize corpus/duplicates"):
        prepared_documents(registry, "notes", root=tmp_path)
    outcome = find_duplicates(registry, root=tmp_path)
    assert (outcome.state, outcome.warning, outcome.meta["missing"]) == ("built", None, [])


def test_a_corpus_of_other_settings_takes_no_part(tmp_path: Path) -> None:
    data = {"notes": articles(5), "books": articles(5, seed=1)}
    prepare_all(corpus_registry(tmp_path, data), tmp_path)
    smaller = corpus_registry(tmp_path, data, settings="[dedup]\nnum_perm = 64\n")
    prepare_corpus(smaller, "books", root=tmp_path, processes=1)
    outcome = find_duplicates(smaller, root=tmp_path)
    assert outcome.meta["missing"] == ["notes"]
    assert outcome.warning is not None
    assert missing(outcome.warning, "corpus of 'notes'", "other settings") == []


def test_where_nobody_asks_for_it_nothing_is_looked_for(tmp_path: Path) -> None:
    registry = corpus_registry(tmp_path, {"notes": articles(5)}, table=no_val('"clean"'))
    prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    outcome = find_duplicates(registry, root=tmp_path)
    assert (outcome.state, outcome.meta, outcome.directory.exists()) == ("disabled", {}, False)
    assert len(texts_of(registry, "notes", tmp_path)) == 5


def test_a_damaged_corpus_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    registry = corpus_registry(tmp_path, {"notes": articles(50)})
    prepare_all(registry, tmp_path)
    path = corpus_dir(tmp_path, "notes") / "documents_00000.parquet"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(NielsCacheError, match=r"documents_00000\.parquet: cannot"):
        texts_of(registry, "notes", tmp_path)
    path.write_bytes(b"short")
    with pytest.raises(NielsCacheError, match=r"finished corpus .*'notes'"):
        texts_of(registry, "notes", tmp_path)


def in_parts(monkeypatch: pytest.MonkeyPatch, *, group: int, file: int) -> None:
    """Corpora that are prepared from now on have row groups and files of so many bytes of text."""
    monkeypatch.setattr(encode, "_CHUNK_ITEMS", 5)  # files end with one
    monkeypatch.setattr(store, "TEXT_BYTES_PER_GROUP", group)
    monkeypatch.setattr(store, "TEXT_BYTES_PER_FILE", file)


@pytest.mark.parametrize("count", [50, 2])
def test_a_part_of_another_corpus_than_the_one_that_was_opened_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    in_parts(monkeypatch, group=3_000, file=6_000)
    registry = corpus_registry(tmp_path, {"notes": articles(50)})
    prepare_all(registry, tmp_path)
    opened = open_prepared(registry, "notes", root=tmp_path)
    begun = open_prepared(registry, "notes", root=tmp_path).documents()
    assert next(begun)
    write_jsonl(tmp_path / "notes.jsonl", articles(count, seed=1))
    prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    for read in (lambda: list(begun), lambda: list(opened.documents()), lambda: opened.select(np.array([40]))):
        with pytest.raises(NielsCacheError, match=r"corpus/notes: .* replaced .*run this again"):
            read()


def test_a_drop_list_that_is_replaced_before_it_is_read_is_an_error(tmp_path: Path) -> None:
    texts = articles(30)
    data = {"notes": [*texts, *(nearly(text, 6) for text in texts)], "books": articles(5, seed=1)}
    registry = corpus_registry(tmp_path, data, table=no_val())
    prepare_all(registry, tmp_path)
    notes, books = (open_prepared(registry, name, root=tmp_path) for name in data)
    stricter = corpus_registry(tmp_path, data, settings="[dedup]\nthreshold = 0.97\n", table=no_val())
    assert find_duplicates(stricter, root=tmp_path).state == "built"
    with pytest.raises(NielsCacheError, match=r"duplicates/notes\.parquet: was replaced"):
        list(notes.documents())
    assert [len(batch) for batch in books.documents()] == [5]  # its list is the same
    notes = open_prepared(stricter, "notes", root=tmp_path)
    find_duplicates(corpus_registry(tmp_path, {"books": data["books"]}, table=no_val()), root=tmp_path)
    with pytest.raises(NielsCacheError, match="duplicates: was replaced"):
        list(notes.documents())


def test_a_corpus_that_is_replaced_while_duplicates_are_looked_for_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = articles(5, seed=2)
    registry = corpus_registry(tmp_path, {"notes": articles(60), "books": articles(5, seed=1)})
    first = prepare_all(registry, tmp_path)
    opening = order.CorpusInputs

    def and_replace(*arguments: Any) -> Any:
        inputs = opening(*arguments)
        write_jsonl(tmp_path / "notes.jsonl", others)
        prepare_corpus(registry, "notes", root=tmp_path, processes=1)
        return inputs

    monkeypatch.setattr(order, "CorpusInputs", and_replace)
    with pytest.raises(NielsCacheError, match=r"corpus/notes: .* replaced .*run this again"):
        find_duplicates(registry, root=tmp_path, force=True)
    assert read_meta(str(duplicates_dir(tmp_path) / "meta.json")) == first.meta
    monkeypatch.setattr(order, "CorpusInputs", opening)
    again = find_duplicates(registry, root=tmp_path)
    assert (again.state, again.meta["datasets"]["notes"]["documents"]) == ("built", len(others))


OTHER_LISTS = {
    "a data set is gone": (["notes"], "", "0", "among books, notes .*not notes"),
    "tables in another order": (["notes", "books"], "", "0", "among books, notes .*not notes, books"),
    "another priority": (["books", "notes"], '[dedup]\npriority = ["notes"]\n', "0", "in this order"),
    "another split": (["books", "notes"], "", "0.2", "splits of 'books'"),
    "other bands": (["books", "notes"], "[dedup]\nbands = 16\nrows = 8\n", "0", r"other settings of \[dedup\]"),
}


@pytest.mark.parametrize("change", OTHER_LISTS)
def test_drop_lists_that_would_be_made_otherwise_now_are_not_read(tmp_path: Path, change: str) -> None:
    names, settings, val_frac, reason = OTHER_LISTS[change]
    texts = articles(15)
    data = {"books": texts, "notes": [*texts[:5], *articles(5, seed=3)]}
    prepare_all(corpus_registry(tmp_path, data, table=no_val()), tmp_path)
    table = no_val().replace("val_frac = 0", f"val_frac = {val_frac}")
    changed = corpus_registry(tmp_path, {name: data[name] for name in names}, settings=settings, table=table)
    with pytest.raises(NielsCacheError, match=f"{reason}.*materialize corpus/duplicates first"):
        prepared_documents(changed, "notes", root=tmp_path)
    assert find_duplicates(changed, root=tmp_path).state == "built"
    assert len(texts_of(changed, "notes", tmp_path)) == (10 if names[0] == "notes" or "priority" in settings else 5)


def test_drop_lists_of_an_older_program_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = corpus_registry(tmp_path, {"notes": articles(5)})
    prepare_all(registry, tmp_path)
    monkeypatch.setattr(duplicates, "DROP_LISTS_VERSION", "another")
    with pytest.raises(NielsCacheError, match=r"another version .*; materialize corpus/duplicates"):
        prepared_documents(registry, "notes", root=tmp_path)
    assert find_duplicates(registry, root=tmp_path).state == "built"
    assert len(texts_of(registry, "notes", tmp_path)) == 5


def test_who_is_missing_is_told_as_it_is_now(tmp_path: Path) -> None:
    data = {"notes": articles(5)}
    alone = corpus_registry(tmp_path, data)
    prepare_all(alone, tmp_path)
    both = corpus_registry(tmp_path, {**data, "books": articles(5, seed=1)})
    with pytest.raises(NielsCacheError, match=r"now without books.*; materialize corpus/duplicates"):
        prepared_documents(both, "notes", root=tmp_path)
    assert find_duplicates(both, root=tmp_path).meta["missing"] == ["books"]
    assert find_duplicates(corpus_registry(tmp_path, data), root=tmp_path).meta["missing"] == []


def test_settings_spelled_otherwise_are_no_reason_to_look_again(tmp_path: Path) -> None:
    data = {"notes": articles(5), "books": articles(5, seed=1)}
    first = prepare_all(corpus_registry(tmp_path, data), tmp_path)
    assert (first.meta["bands"], first.meta["rows"], first.meta["order"]) == (8, 16, ["notes", "books"])
    for settings in ("bands = 8\nrows = 16", 'priority = ["notes"]', 'priority = ["notes", "books"]', "threshold = 0.85"):
        same = corpus_registry(tmp_path, data, settings=f"[dedup]\n{settings}\n")
        assert len(texts_of(same, "notes", tmp_path)) == 5
        assert find_duplicates(same, root=tmp_path).state == "cache_hit"


def test_rows_of_signatures_that_are_close_or_repeated_are_those_of_the_array(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    array = torch.randint(256, (700, 4_000), generator=generator, dtype=torch.uint8).numpy()
    np.save(tmp_path / "array.npy", array)
    ascending = np.sort(torch.randint(700, (300,), generator=generator).numpy())
    assert len(np.unique(ascending)) < len(ascending)
    with ArrayRows(tmp_path / "array.npy") as rows:
        assert (len(rows), rows.width) == (700, 4_000)
        wide, near = np.arange(0, 700, 6), np.arange(0, 700, 5)
        for wanted in (ascending, ascending[::-1], ascending.astype(np.uint32)[[7, 3, 3, 290]], np.unique(ascending), near, wide):
            assert np.array_equal(rows[wanted], array[wanted])


def test_a_file_of_signatures_that_holds_less_than_asked_for_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "signatures.npy"
    np.save(path, np.zeros((10, 4), dtype=np.uint32))
    with ArrayRows(path) as rows, pytest.raises(NielsCacheError, match=r"signatures\.npy: .*meta\.json"):
        rows[np.array([3, 10])]
    path.write_bytes(path.read_bytes()[:-8])
    with ArrayRows(path) as rows, pytest.raises(NielsCacheError, match=r"signatures\.npy: .*meta\.json"):
        rows[np.arange(10)]
    path.write_bytes(b"no array")
    with pytest.raises(NielsCacheError, match=r"signatures\.npy: .*meta\.json"):
        ArrayRows(path)
    path.unlink()
    with pytest.raises(NielsCacheError, match=r"signatures\.npy: cannot"):
        ArrayRows(path)
