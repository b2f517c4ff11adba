"""Caches of data sets with `prepare`. They are made of the corpus without the documents in the drop list, alone and as members of
mixtures.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from niels_cache_assets.artifacts import dataset
from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.builds import build_dataset, build_tokenizer, find_duplicates, prepare_corpus
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.config.registry import Registry, load_registry
from niels_cache_assets.corpus.reading import open_prepared, with_prepared
from niels_cache_assets.show.corpora import sample_corpus
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import documents_name
from niels_cache_runtime.verify import verify_cache
from tests.corpora import articles, corpus_registry, nearly, write_jsonl
from tests.messages import missing

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


def test_no_document_of_train_has_a_twin_in_val(tmp_path: Path, model_table: str) -> None:
    texts = articles(50)
    registry = corpus_registry(
        tmp_path,
        {"notes": [*texts, *texts], "books": [*texts, *articles(20, seed=1)]},
        settings=model_table,
        table=PREPARE + "val_frac = 0.3\n",
    )
    ready(registry, tmp_path)
    seen: dict[str, set[str]] = {"train": set(), "val": set()}
    for name in ("notes", "books"):
        build_dataset(registry, name, root=tmp_path)
        for batch in open_prepared(registry, name, root=tmp_path).documents():
            for document in batch:
                assert document.split is not None
                assert document.text not in seen["train"] | seen["val"]
                seen[document.split].add(document.text)
    assert len(seen["train"]) > 30
    assert len(seen["val"]) > 15


def test_without_a_corpus_or_drop_list_the_message_says_what_to_materialize(tmp_path: Path, model_table: str) -> None:
    registry = corpus_registry(tmp_path, {"notes": articles(10)}, settings=model_table)
    build_tokenizer(registry, root=tmp_path)
    with pytest.raises(NielsCacheError, match=r"finished corpus .*; materialize corpus/documents of 'notes'"):
        build_dataset(registry, "notes", root=tmp_path)
    prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    with pytest.raises(NielsCacheError, match=r"duplicates .*; materialize corpus/duplicates"):
        build_dataset(registry, "notes", root=tmp_path)
    find_duplicates(registry, root=tmp_path)
    assert build_dataset(registry, "notes", root=tmp_path).state == "built"


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


@pytest.mark.parametrize("budgets", [True, False])
def test_a_corpus_or_drop_list_that_is_replaced_before_it_is_read_makes_no_cache(
    tmp_path: Path, model_table: str, monkeypatch: pytest.MonkeyPatch, budgets: bool
) -> None:
    table = PREPARE + ("train_tokens = 500\nval_tokens = 100\n" if budgets else "val_frac = 0.1\n")
    texts = articles(40)
    data = {"notes": [*texts, *(nearly(text, 6) for text in texts)]}
    registry = ready(corpus_registry(tmp_path, data, settings=model_table, table=table), tmp_path)
    build = dataset.PretrainBuild

    def replace_corpus() -> None:
        write_jsonl(tmp_path / "notes.jsonl", articles(80, seed=1))
        prepare_all(registry, tmp_path)

    def replace_drop_list() -> None:
        find_duplicates(corpus_registry(tmp_path, data, settings=model_table + "[dedup]\nthreshold = 0.97\n", table=table), root=tmp_path)

    for replace in (replace_drop_list, replace_corpus):

        def late(*arguments: Any, replace: Callable[[], None] = replace, **settings: Any) -> Any:
            replace()
            return build(*arguments, **settings)

        monkeypatch.setattr(dataset, "PretrainBuild", late)
        with pytest.raises(NielsCacheError, match=r" replaced .*run this again"):
            build_dataset(registry, "notes", root=tmp_path)
        monkeypatch.setattr(dataset, "PretrainBuild", build)
        assert not (tmp_path / "pretrain" / "notes").exists()
        registry = corpus_registry(tmp_path, data, settings=model_table, table=table)
        find_duplicates(registry, root=tmp_path)


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


def test_reasons_and_languages_in_another_order_are_no_reason_to_clean_again(tmp_path: Path) -> None:
    def registry(changes: str) -> Registry:
        return corpus_registry(tmp_path, {"notes": articles(5)}, table=f'prepare = ["clean"]\ncleaning = {{ {changes} }}\n')

    first = 'languages = ["en", "de"], skip = ["language_error", "not_english", "too_short"]'
    again = 'languages = ["de", "en", "de"], skip = ["too_short", "not_english", "language_error"]'
    assert prepare_corpus(registry(first), "notes", root=tmp_path, processes=1).state == "built"
    assert prepare_corpus(registry(again), "notes", root=tmp_path, processes=1).state == "cache_hit"
    assert prepare_corpus(registry(first.replace('"de"', '"fr"')), "notes", root=tmp_path, processes=1).state == "built"


def test_a_run_with_another_seed_is_refused_where_the_drop_list_hangs_on_it(tmp_path: Path, model_table: str) -> None:
    registry = ready(corpus_registry(tmp_path, {"notes": articles(30)}, settings=model_table), tmp_path)
    with pytest.raises(NielsCacheError, match=r"seed and val_frac .*configuration"):
        build_dataset(registry, "notes", root=tmp_path, run_settings={"val_frac": 0.5})
    cleaned = corpus_registry(tmp_path, {"notes": articles(30)}, settings=model_table, table='prepare = ["clean"]\n')
    prepare_corpus(cleaned, "notes", root=tmp_path, processes=1)
    outcome = build_dataset(cleaned, "notes", root=tmp_path, run_settings={"val_frac": 0.5})
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
    member = with_prepared(registry, tmp_path)["notes"]
    before = member.identity()
    assert sum(map(len, member.documents(StreamContext(seed=1)))) == 30
    write_jsonl(tmp_path / "notes.jsonl", articles(30, seed=1))
    prepare_all(registry, tmp_path)
    assert member.identity() == before
    with pytest.raises(NielsCacheError, match="was replaced"):
        list(member.documents(StreamContext(seed=1)))
    assert with_prepared(registry, tmp_path)["notes"].identity() != before


def test_a_member_that_is_switched_off_is_not_taken_unprepared(tmp_path: Path, model_table: str) -> None:
    mix = '[pretrain.mix]\nsource = "interleave"\nmembers = { notes = 1 }\nval_frac = 0\n'
    registry = corpus_registry(tmp_path, {"notes": articles(5)}, settings=model_table + mix, table='prepare = ["clean"]\nenabled = false\n')
    build_tokenizer(registry, root=tmp_path)
    with pytest.raises(NielsCacheError, match=r"'notes' .*enabled = true"):
        build_dataset(registry, "mix", root=tmp_path)


def test_a_cleaned_data_set_can_be_decontaminated(tmp_path: Path, model_table: str) -> None:
    texts = articles(40)
    registry = corpus_registry(
        tmp_path,
        {"notes": [*texts, *texts]},
        settings=model_table,
        table='prepare = ["clean"]\nval_frac = 0.2\ndecontaminate = "exact"\n',
    )
    outcome = build_dataset(ready(registry, tmp_path), "notes", root=tmp_path)
    assert outcome.meta["documents"]["val"] == 16
    assert outcome.meta["dropped"]["in_val"] > 0
    assert outcome.meta["documents"]["train"] == 64 - outcome.meta["dropped"]["in_val"]


@pytest.mark.real_data
@pytest.mark.skipif("NIELS_CACHE_REAL_DATA" not in os.environ, reason="NIELS_CACHE_REAL_DATA does not name the folder of real samples")
def test_real_repetitions_go_within_and_across_data_sets(tmp_path: Path) -> None:
    folder = Path(os.environ["NIELS_CACHE_REAL_DATA"]).resolve()
    config = tmp_path / "niels_cache.toml"
    tables = {
        "wiki": f'source = "jsonl"\nfiles = ["{folder}/wikipedia/enwiki_extracted_dev.jsonl"]\nprepare = ["clean", "dedup"]\n',
        "web": f'source = "parquet"\nfiles = ["{folder}/web_fineweb/fineweb_rows.parquet"]\nprepare = ["dedup"]\nval_frac = 0\n',
        "again": f'source = "jsonl"\nfiles = ["{folder}/web_fineweb/fineweb_rows.jsonl"]\nprepare = ["dedup"]\nval_frac = 0\n',
    }
    config.write_text("".join(f"[pretrain.{name}]\n{table}" for name, table in tables.items()), encoding="utf-8")
    registry = load_registry(profile="quickstart", config=str(config))
    for name in registry.prepared():
        assert prepare_corpus(registry, name, root=tmp_path, processes=1).meta["documents"]["kept"] >= 15
    counts = find_duplicates(registry, root=tmp_path).meta["datasets"]
    assert (counts["web"]["exact"], counts["web"]["near"]) == (5, 0)  # rows 6-10 repeat rows 1-5
    assert counts["again"]["exact"] == 15
    assert open_prepared(registry, "web", root=tmp_path).kept == 10
    assert list(open_prepared(registry, "again", root=tmp_path).documents()) == []


def test_an_interleave_can_be_prepared_itself(tmp_path: Path, model_table: str) -> None:
    mix = '[pretrain.mix]\nsource = "interleave"\nmembers = { notes = 1, books = 1 }\nprepare = ["dedup"]\nval_frac = 0.2\n'
    data = {"notes": articles(30), "books": articles(30)}
    registry = corpus_registry(tmp_path, data, settings=model_table + mix, table="")
    outcome = build_dataset(ready(registry, tmp_path), "mix", root=tmp_path)
    assert outcome.meta["dropped"]["exact_duplicate"] > 10
    assert outcome.meta["documents"]["val"] >= 1


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
    drawn = [
        ordinal for seed in range(300) for ordinal, _ in sample_corpus(registry, "notes", root=tmp_path, count=10, seed=seed).documents
    ]
    counts = [drawn.count(ordinal) for ordinal, _ in everything.documents]
    assert len(counts) == 60
    assert 20 < min(counts) <= max(counts) < 85  # 50 on average
    cleaned = sample_corpus(registry, "notes", root=tmp_path, count=1000, seed=3, minus_duplicates=False)
    assert len(cleaned.documents) == 100
