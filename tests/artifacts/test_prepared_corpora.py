"""Caches of data sets with `prepare`. They are made of the corpus without the documents in the drop list, alone and as members of
mixtures.
"""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.prepared_corpora import open_prepared, with_corpus_readers
from niels_cache_assets.inspection.corpora import sample_corpus
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import documents_name
from niels_cache_runtime.verify import verify_cache
from tests.helpers.builds import build_dataset, build_tokenizer, find_duplicates, prepare_corpus
from tests.helpers.corpora import articles, corpus_registry, nearly, write_jsonl
from tests.helpers.messages import missing

PREPARE = 'prepare = ["clean", "dedup"]\n'


@pytest.fixture
def model_table(tiny_model: Path) -> str:
    return f'[tokenizer]\nmodel = "{tiny_model}"\n[build]\nshard_bytes = 20000\n'


def prepare_all(registry: Registry, root: Path) -> None:
    for name in registry.prepared():
        prepare_corpus(registry, name, root=root, processes=1)
    find_duplicates(registry, root=root)


def ready(registry: Registry, root: Path) -> Registry:
    build_tokenizer(registry, root=root)
    prepare_all(registry, root)
    return registry


def source_ids(outcome: Outcome, split: str) -> list[str]:
    ids: list[str] = pq.read_table(outcome.directory / documents_name(split))["source_id"].to_pylist()  # type: ignore[arg-type]
    return ids


def doubled() -> list[str]:
    texts = articles(60)
    return [*texts, "too short", *(text.upper() for text in texts[:20]), *(nearly(text) for text in texts[20:40])]


def test_a_cache_holds_what_stays_of_the_corpus_and_says_why_the_rest_went(tmp_path: Path, model_table: str) -> None:
    registry = ready(corpus_registry(tmp_path, {"notes": doubled()}, settings=model_table), tmp_path)
    outcome = build_dataset(registry, "notes", root=tmp_path)
    prepared = open_prepared(registry, "notes", root=tmp_path)
    kept = [document for batch in prepared.documents() for document in batch]
    assert len(kept) == prepared.kept == 60
    for split in ("train", "val"):
        expected = [document.source_id for document in kept if document.split == split]
        assert expected
        assert source_ids(outcome, split) == expected
    assert outcome.meta["dropped"] == {"too_short": 1, "exact_duplicate": 20, "near_duplicate": 20}
    assert missing(outcome.meta["split_rule"], "seeded 0.1", "seed 42") == []
    assert outcome.meta["dataset_revision"] == prepared.meta["dataset_revision"]
    assert list(verify_cache(tmp_path / "pretrain" / "notes")) == []


def test_a_changed_threshold_builds_only_what_lost_other_documents(tmp_path: Path, model_table: str) -> None:
    texts = articles(40)
    data = {"notes": [*texts, *(nearly(text, 6) for text in texts)], "books": articles(20, seed=1)}
    registry = ready(corpus_registry(tmp_path, data, settings=model_table), tmp_path)
    for name in data:
        assert build_dataset(registry, name, root=tmp_path).state == "built"
        assert build_dataset(registry, name, root=tmp_path).state == "cache_hit"
        assert graph(registry, tmp_path).dataset_state(name).state == "in sync"
    stricter = corpus_registry(tmp_path, data, settings=model_table + "[dedup]\nthreshold = 0.97\n")
    for name in data:
        state = graph(stricter, tmp_path).dataset_state(name)
        assert (state.state, state.needs_build) == ("no corpus", True)
        assert "other settings of [dedup]" in state.advice
        assert prepare_corpus(stricter, name, root=tmp_path, processes=1).state == "cache_hit"
    assert find_duplicates(stricter, root=tmp_path).state == "built"
    assert [graph(stricter, tmp_path).dataset_state(name).state for name in data] == ["other settings", "in sync"]
    assert [build_dataset(stricter, name, root=tmp_path).state for name in data] == ["built", "cache_hit"]


def test_where_the_files_lie_and_cleaning_that_changes_nothing_are_no_reason_to_build(tmp_path: Path, model_table: str) -> None:
    registry = ready(corpus_registry(tmp_path, {"notes": articles(30)}, settings=model_table), tmp_path)
    build_dataset(registry, "notes", root=tmp_path)
    milder = corpus_registry(
        tmp_path, {"notes": articles(30)}, settings=model_table, table=PREPARE + "val_frac = 0.1\ncleaning = { min_words = 10 }\n"
    )
    assert graph(milder, tmp_path).dataset_state("notes").state == "no corpus"
    assert prepare_corpus(milder, "notes", root=tmp_path, processes=1).state == "built"
    assert find_duplicates(milder, root=tmp_path).state == "cache_hit"
    assert build_dataset(milder, "notes", root=tmp_path).state == "cache_hit"


def test_token_budgets_count_what_is_left_in_order(tmp_path: Path, model_table: str) -> None:
    texts = articles(60)
    repeated = [text for text in texts for _ in range(3)]
    registry = corpus_registry(
        tmp_path, {"notes": repeated}, settings=model_table, table=PREPARE + "train_tokens = 5000\nval_tokens = 1000\n"
    )
    outcome = build_dataset(ready(registry, tmp_path), "notes", root=tmp_path)
    assert (outcome.meta["train_tokens"], outcome.meta["val_tokens"]) == (5000, 1000)
    ids = source_ids(outcome, "val") + source_ids(outcome, "train")
    assert len(ids) > 10
    assert ids == [f"notes-{3 * row}" for row in range(len(ids))]
    assert outcome.meta["dropped"]["exact_duplicate"] == 120


def test_drop_lists_of_another_data_sets_former_corpus_are_told_by_the_state_of_the_cache(tmp_path: Path, model_table: str) -> None:
    data = {"notes": articles(20), "books": articles(5, seed=1)}
    registry = ready(corpus_registry(tmp_path, data, settings=model_table), tmp_path)
    build_dataset(registry, "notes", root=tmp_path)
    write_jsonl(tmp_path / "books.jsonl", articles(5, seed=2))
    prepare_corpus(registry, "books", root=tmp_path, processes=1)
    state = graph(registry, tmp_path).dataset_state("notes")
    assert (state.state, state.needs_build) == ("no corpus", True)
    assert missing(state.advice, "before", "corpus of 'books'") == []
    find_duplicates(registry, root=tmp_path)
    assert graph(registry, tmp_path).dataset_state("notes").state == "in sync"
    assert build_dataset(registry, "notes", root=tmp_path).state == "cache_hit"


def test_a_run_with_another_seed_is_refused_where_the_drop_list_hangs_on_it(tmp_path: Path, model_table: str) -> None:
    registry = ready(corpus_registry(tmp_path, {"notes": articles(30)}, settings=model_table), tmp_path)
    with pytest.raises(NielsCacheError, match=r"seed and val_frac .*configuration"):
        materialize(graph(registry, tmp_path).dataset("notes", {"val_frac": 0.5}))
    cleaned = corpus_registry(tmp_path, {"notes": articles(30)}, settings=model_table, table='prepare = ["clean"]\n')
    prepare_corpus(cleaned, "notes", root=tmp_path, processes=1)
    outcome = materialize(graph(cleaned, tmp_path).dataset("notes", {"val_frac": 0.5}))
    assert outcome.meta["documents"] == {"train": 15, "val": 15}


def test_an_interleave_takes_prepared_members_prepared(tmp_path: Path, model_table: str) -> None:
    write_jsonl(tmp_path / "plain.jsonl", articles(40, seed=5))
    table = '[pretrain.plain]\nsource = "jsonl"\nfiles = ["plain.jsonl"]\n'
    mix = '[pretrain.mix]\nsource = "interleave"\nmembers = { notes = 1, plain = 1 }\nval_frac = 0\n'
    registry = corpus_registry(tmp_path, {"notes": doubled()}, settings=model_table + table + mix)
    build_tokenizer(registry, root=tmp_path)
    with pytest.raises(NielsCacheError, match=r"finished corpus .*'notes'"):
        build_dataset(registry, "mix", root=tmp_path)
    prepare_all(registry, tmp_path)
    outcome = build_dataset(registry, "mix", root=tmp_path)
    ids = source_ids(outcome, "train")
    prepared = open_prepared(registry, "notes", root=tmp_path)
    train = [document.source_id for batch in prepared.documents() for document in batch if document.split == "train"]
    taken = [source_id for source_id in ids if source_id.startswith("notes")]
    assert len(taken) > 20
    assert taken == train[: len(taken)]
    assert len(ids) > len(taken)
    assert {"exact_duplicate", "near_duplicate", "too_short", "member_val"} <= outcome.meta["dropped"].keys()
    assert build_dataset(registry, "mix", root=tmp_path).state == "cache_hit"
    assert graph(registry, tmp_path).dataset_state("mix").state == "in sync"
    stricter = corpus_registry(tmp_path, {"notes": doubled()}, settings=model_table + table + mix + "[dedup]\nthreshold = 0.98\n")
    assert graph(stricter, tmp_path).dataset_state("mix").state == "no corpus"
    find_duplicates(stricter, root=tmp_path)
    assert graph(stricter, tmp_path).dataset_state("mix").state == "other settings"
    assert build_dataset(stricter, "mix", root=tmp_path).state == "built"


def test_a_member_that_starts_again_gives_the_same_documents_or_none(tmp_path: Path) -> None:
    mix = '[pretrain.mix]\nsource = "interleave"\nmembers = { notes = 1 }\nval_frac = 0\n'
    registry = corpus_registry(tmp_path, {"notes": articles(30)}, settings=mix)
    prepare_all(registry, tmp_path)
    member = with_corpus_readers(registry, tmp_path)["notes"]
    before = member.identity()
    assert sum(map(len, member.documents(StreamContext(seed=1)))) == 30
    write_jsonl(tmp_path / "notes.jsonl", articles(30, seed=1))
    prepare_all(registry, tmp_path)
    assert member.identity() == before
    with pytest.raises(NielsCacheError, match="was replaced"):
        list(member.documents(StreamContext(seed=1)))
    assert with_corpus_readers(registry, tmp_path)["notes"].identity() != before


def test_a_member_that_is_switched_off_is_not_taken_unprepared(tmp_path: Path, model_table: str) -> None:
    mix = '[pretrain.mix]\nsource = "interleave"\nmembers = { notes = 1 }\nval_frac = 0\n'
    registry = corpus_registry(tmp_path, {"notes": articles(5)}, settings=model_table + mix, table='prepare = ["clean"]\nenabled = false\n')
    build_tokenizer(registry, root=tmp_path)
    with pytest.raises(NielsCacheError, match=r"'notes' .*enabled = true"):
        build_dataset(registry, "mix", root=tmp_path)


def test_a_sample_is_seeded_uniform_and_of_what_stays(tmp_path: Path, model_table: str) -> None:
    registry = ready(corpus_registry(tmp_path, {"notes": doubled()}, settings=model_table), tmp_path)
    prepared = open_prepared(registry, "notes", root=tmp_path)
    kept = [document for batch in prepared.documents() for document in batch]
    sample = sample_corpus(registry, "notes", root=tmp_path, count=5, seed=3)
    assert sample == sample_corpus(registry, "notes", root=tmp_path, count=5, seed=3)
    assert len(sample.documents) == 5
    assert all(document in kept for _, document in sample.documents)
    assert sample.kept == 60
    assert sample.mean_characters == pytest.approx(sum(len(document.text) for document in kept) / 60)
    everything = sample_corpus(registry, "notes", root=tmp_path, count=1000, seed=3)
    assert [document for _, document in everything.documents] == kept
    drawn = {ordinal for seed in range(60) for ordinal, _ in sample_corpus(registry, "notes", root=tmp_path, count=10, seed=seed).documents}
    assert drawn == {ordinal for ordinal, _ in everything.documents}
    cleaned = sample_corpus(registry, "notes", root=tmp_path, count=1000, seed=3, minus_duplicates=False)
    assert len(cleaned.documents) == 100
