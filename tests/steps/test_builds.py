"""Corpora and caches with steps of a user: counts, identity, resume, parts, and workers that hang or die."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts import corpus as corpus_module
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.prepared_corpora import prepared_documents
from niels_cache_assets.artifacts.state import state_of
from niels_cache_assets.base.documents import Document
from niels_cache_assets.cli import main
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.steps import chain, trial
from niels_cache_assets.streaming import encode
from niels_cache_runtime.errors import NielsCacheError
from tests.corpus.test_resume import contents, stop_after
from tests.helpers.builds import prepare_corpus
from tests.helpers.corpora import write_jsonl
from tests.helpers.user_steps import user_module

CODE = """
    import os, time
    print("printed at import")
    from niels_cache_assets import Drop, step

    def drop_short(document):
        return Drop("few words") if len(document.text.split()) < 6 else document

    class Redact:
        def __init__(self, word):
            self.word = word
        def __call__(self, document):
            print("printed by a step")
            return document._replace(text=document.text.replace(self.word, "[x]"))

    @step(batch=True)
    def length(batch):
        return {"length": [len(text) for text in batch["text"].to_pylist()]}

    @step(stateful=True)
    class Number:
        def __init__(self):
            self.seen = 0
        def __call__(self, document):
            self.seen += 1
            return {"number": self.seen}

    def hang(document):
        if document.text.startswith("Text 17 "):
            time.sleep(100)
        return document

    @step(batch=True)
    def hang_in_batch(batch):
        if any(text.startswith("Text 17 ") for text in batch["text"].to_pylist()):
            time.sleep(100)
        return {}

    def numbers(item):
        return (f"Text {row} of page {item}" for row in range(300))

    def die(document):
        if document.text.startswith("Text 17 "):
            os._exit(9)
        return document
"""
FILES, ROWS = 3, 20
STEPS = [":drop_short", '{ use = ":Redact", word = "number" }', '{ use = ":length", keep = ["length"] }', '{ where = "length > 40" }']


@pytest.fixture
def module(tmp_path: Path) -> Iterator[str]:
    for file in range(FILES):
        rows = range(file * ROWS, file * ROWS + ROWS)
        write_jsonl(tmp_path / f"{file}.jsonl", [f"Text {row} has " + "the number and more words " * (row % 4) for row in rows])
    with user_module(tmp_path, CODE) as name:
        yield name


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run steps in this process, without a trial. Return the names of the data sets that would have been tried."""
    tried, run = list[str](), corpus_module.map_in_processes

    def unwatched(work: Any, items: Iterable[Any], *, is_watched: bool, processes: int, **how: Any) -> Iterator[Any]:
        return run(work, items, processes=1, **how)

    monkeypatch.setattr(corpus_module, "map_in_processes", unwatched)
    monkeypatch.setattr(trial, "try_steps", lambda name, chain, documents: tried.append(f"{name} {len([*documents])}"))
    monkeypatch.setattr(encode, "_CHUNK_ITEMS", 7)
    return tried


def registry_of(module: str, folder: Path, steps: list[str] = STEPS, table: str = "") -> Registry:
    entries = ", ".join(step.replace('":', f'"{module}:') if step.startswith("{") else f'"{module}{step}"' for step in steps)
    config = folder / "niels_cache.toml"
    config.write_text(f'[pretrain.notes]\nsource = "jsonl"\nfiles = ["*.jsonl"]\nsteps = [{entries}]\n{table}', encoding="utf-8")
    return load_registry(config=str(config))


@pytest.mark.usefixtures("in_this_process")
def test_tiers_are_cut_by_a_kept_score_and_call_no_step_again(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = """prepare = []
val_frac = 0.1
[pretrain.long]
source = "interleave"
members = { notes = 1 }
steps = [{ where = "length > 40" }]
[pretrain.short]
source = "interleave"
members = { notes = 1 }
steps = [{ where = "length <= 40" }]
"""
    registry = registry_of(module, tmp_path, ['{ use = ":length", keep = ["length"] }'], table)
    root = tmp_path / "cache"
    metas = {"notes": prepare_corpus(registry, "notes", root=root).meta}
    monkeypatch.delattr(chain, "_UserStep")  # no step is loaded any more
    metas |= {name: prepare_corpus(registry, name, root=root).meta for name in ("long", "short")}
    lengths = {name: [len(each.text) for batch in prepared_documents(registry, name, root=root) for each in batch] for name in metas}
    assert min(lengths["long"]) > 40 >= max(lengths["short"])
    assert Counter(lengths["long"] + lengths["short"]) < Counter(lengths["notes"]), "without the documents of val"
    for name in ("long", "short"):
        counts = metas[name]["documents"]["kept"], metas[name]["dropped"]["where"], metas[name]["dropped"]["member_val"]
        assert sum(counts) == metas["notes"]["documents"]["kept"] == FILES * ROWS
        assert counts[2] == 6


def test_steps_make_a_corpus_with_counts_columns_and_identity(module: str, tmp_path: Path, in_this_process: list[str]) -> None:
    registry = registry_of(module, tmp_path)
    outcome = prepare_corpus(registry, "notes", root=tmp_path / "cache")
    meta = outcome.meta
    assert in_this_process == [f"notes {FILES * ROWS}"], "a sample of all files"
    assert meta["dropped"] == {"step:drop_short:few words": 15, "where": 15}
    assert meta["documents"] == {"read": 60, "kept": 30}
    assert [*meta["steps"]] == ["1 drop_short", "2 Redact", "3 length", "4 where"]
    assert meta["steps"]["2 Redact"].items() >= {"use": f"{module}:Redact", "settings": {"word": "number"}}.items()
    assert (meta["keep"], meta["prepare"], meta["cleaning"]) == (["length"], [], None)
    documents = [document for batch in prepared_documents(registry, "notes", root=tmp_path / "cache") for document in batch]
    assert {(document.text.count("[x]"), document.text.count("number")) for document in documents} == {(2, 0), (3, 0)}
    assert all(json.loads(document.kept or "") == {"length": len(document.text)} for document in documents)
    assert {document.file for document in documents} == {"0.jsonl", "1.jsonl", "2.jsonl"}


def test_the_sample_has_documents_of_all_items_of_an_own_source(
    module: str, tmp_path: Path, in_this_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = list[Document]()
    monkeypatch.setattr(trial, "try_steps", lambda name, chain, documents: sample.extend(documents))
    config = tmp_path / "niels_cache.toml"
    config.write_text(f'[pretrain.notes]\nsource = "{module}:numbers"\nitems = 4\nsteps = ["{module}:length"]\n')
    registry = load_registry(config=str(config))
    assert prepare_corpus(registry, "notes", root=tmp_path / "cache").meta["documents"] == {"read": 1200, "kept": 1200}
    assert Counter(document.file for document in sample) == {str(item): 50 for item in range(4)}


def test_the_command_clean_shows_steps_like_filters(
    module: str, tmp_path: Path, in_this_process: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_corpus(registry_of(module, tmp_path), "notes", root=tmp_path / "cache")
    where = ["--config", str(tmp_path / "niels_cache.toml")]
    assert (
        main(
            [
                "clean",
                "--dropped",
                "notes",
                "--reason",
                "step:drop_short:few words",
                "-n",
                "1",
                "--cache-dir",
                str(tmp_path / "cache"),
                *where,
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "step:drop_short:few words" in shown
    assert "--- step:drop_short:few words: " in shown
    assert "Text 0 has" in shown
    files = [str(tmp_path / f"{file}.jsonl") for file in range(FILES)]
    skip = "skip=['not_english', 'no_stopwords', 'repetitive', 'language_error']"
    for settings, kept in ([], 30), (["min_words=14", "min_characters=0", skip], 15):  # this data set is not cleaned
        more = [f"--set={setting}" for setting in settings]
        assert main(["clean", *files, "--steps-of", "notes", "--json", *more, *where]) == 0
        shown_facts, printed = capsys.readouterr()
        assert json.loads(shown_facts)["documents"]["kept"] == kept
        assert "printed by a step" in printed
    assert main(["clean", *files, "--steps-of", "other", *where]) == 2
    assert main(["clean", *files, "--reason", "step_drop", *where]) == 2
    assert "unknown value 'step_drop'" in capsys.readouterr().err


def test_the_command_clean_keeps_the_columns_that_the_data_set_keeps(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.dumps({"text": f"Text {row}", "votes": row}) for row in range(4)]
    (tmp_path / "votes.jsonl").write_text("\n".join(rows))
    registry_of(module, tmp_path, ['{ where = "votes > 1" }'], 'keep = ["votes"]')
    where = ["--config", str(tmp_path / "niels_cache.toml")]
    assert main(["clean", str(tmp_path / "votes.jsonl"), "--steps-of", "notes", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == {"read": 4, "kept": 2}


def test_a_changed_step_makes_the_corpus_stale_and_the_state_says_why(module: str, tmp_path: Path, in_this_process: list[str]) -> None:
    root, path = tmp_path / "cache", tmp_path / f"{module}.py"

    def advice(**how: Any) -> str:
        state = state_of(graph(registry_of(module, tmp_path, **how), root).corpus("notes"))
        assert (state.state == "in sync") is not state.advice
        return state.advice

    prepare_corpus(registry_of(module, tmp_path), "notes", root=root)
    assert advice() == ""
    path.write_text("# a comment\n" + path.read_text())
    assert advice() == ""
    assert "steps.2 Redact.settings.word has changed" in advice(steps=[STEPS[0], '{ use = ":Redact", word = "has" }', *STEPS[2:]])
    assert "steps.4 where has changed" in advice(steps=STEPS[:3])
    path.write_text(path.read_text() + "\nMORE = 1\n")
    assert "out of date: steps.1 drop_short.code, steps.2 Redact.code, steps.3 length.code have changed since" in advice()


def test_a_stopped_build_ends_in_the_same_bytes(
    module: str, tmp_path: Path, in_this_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = registry_of(module, tmp_path)
    monkeypatch.setattr(corpus_module, "TEXT_BYTES_PER_RECORD", 1)
    whole = contents(prepare_corpus(registry, "notes", root=tmp_path / "whole").directory)
    for stop in (1, 4):
        with monkeypatch.context() as patch:
            stop_after(patch, stop)
            with pytest.raises(KeyboardInterrupt):
                prepare_corpus(registry, "notes", root=tmp_path / "cache")
    in_this_process.clear()
    log = list[str]()
    assert contents(prepare_corpus(registry, "notes", root=tmp_path / "cache", log=log.append).directory) == whole
    assert [line for line in log if "resuming" in line]
    assert in_this_process == [], "a build that resumes has been tried"


def test_parts_give_the_documents_of_the_whole(module: str, tmp_path: Path, in_this_process: list[str]) -> None:
    whole = prepare_corpus(registry_of(module, tmp_path), "notes", root=tmp_path / "whole").meta
    joined = prepare_corpus(registry_of(module, tmp_path, table="parts = 3"), "notes", root=tmp_path / "cache").meta
    assert {key: joined[key] for key in ("content_sha256", "dropped", "steps", "documents")} == {
        key: whole[key] for key in ("content_sha256", "dropped", "steps", "documents")
    }
    assert in_this_process[1:] == [f"notes {ROWS}"] * 3


def test_a_stateful_step_begins_again_and_is_refused_in_parts(
    module: str, tmp_path: Path, in_this_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ['{ use = ":Number", keep = ["number"] }']
    registry = registry_of(module, tmp_path, steps)
    monkeypatch.setattr(corpus_module, "TEXT_BYTES_PER_RECORD", 1)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            prepare_corpus(registry, "notes", root=tmp_path / "cache")
    prepare_corpus(registry, "notes", root=tmp_path / "cache")
    documents = [document for batch in prepared_documents(registry, "notes", root=tmp_path / "cache") for document in batch]
    assert [json.loads(document.kept or "")["number"] for document in documents] == list(range(1, FILES * ROWS + 1))
    with pytest.raises(NielsCacheError, match=r"niels_cache.toml: \[pretrain.notes\] steps: .*:Number is stateful, which parts cannot be"):
        prepare_corpus(registry_of(module, tmp_path, steps, "parts = 2"), "notes", root=tmp_path / "parts")


def test_mistakes_in_the_table_are_one_line(module: str, tmp_path: Path) -> None:
    with pytest.raises(NielsCacheError, match=r"niels_cache.toml: \[pretrain.notes\] steps: where is not a condition"):
        registry_of(module, tmp_path, ['{ where = "length >" }'])
    registry = registry_of(module, tmp_path, [":drop_shorts"])
    with pytest.raises(
        NielsCacheError, match=r"niels_cache.toml: \[pretrain.notes\] steps: .* has no 'drop_shorts'; did you mean 'drop_short'"
    ):
        prepare_corpus(registry, "notes", root=tmp_path / "cache")


@pytest.mark.walk
@pytest.mark.parametrize("step", ["hang", "hang_in_batch"])
def test_a_document_that_takes_too_long_is_named_or_counted_once(module: str, tmp_path: Path, step: str) -> None:
    use = f'use = ":{step}", seconds_per_document = 0.2'
    for file in range(1, FILES):
        (tmp_path / f"{file}.jsonl").unlink()
    with pytest.raises(NielsCacheError, match=rf"jsonl: row \d+.*: step {step}: took longer than 0.2 seconds"):
        prepare_corpus(registry_of(module, tmp_path, [f"{{ {use} }}"]), "notes", root=tmp_path / "cache", processes=2)
    registry = registry_of(module, tmp_path, [f'{{ {use}, on_error = "drop" }}'])
    meta = prepare_corpus(registry, "notes", root=tmp_path / "cache", processes=2).meta
    assert meta["dropped"] == {f"step_too_slow:{step}": 1}
    assert meta["documents"] == {"read": ROWS, "kept": ROWS - 1}


@pytest.mark.walk
def test_a_step_that_ends_its_process_is_named(module: str, tmp_path: Path) -> None:
    registry = registry_of(module, tmp_path, [":die"])
    with pytest.raises(NielsCacheError, match=r"0.jsonl: row 17: step die: its process has ended"):
        prepare_corpus(registry, "notes", root=tmp_path / "cache", processes=2)


@pytest.mark.walk
def test_workers_give_the_bytes_of_one_process(
    module: str,
    tmp_path: Path,
    in_this_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    registry = registry_of(module, tmp_path)
    one = contents(prepare_corpus(registry, "notes", root=tmp_path / "one").directory)
    monkeypatch.undo()
    capfd.readouterr()
    assert contents(prepare_corpus(registry, "notes", root=tmp_path / "two", processes=2).directory) == one
    out, err = capfd.readouterr()
    assert "printed by a step" in err
    assert "printed" not in out
