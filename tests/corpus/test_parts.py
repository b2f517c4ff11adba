"""Corpora in parts. The joined corpus has the content of a corpus without parts, so everything after it is the same."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts import corpus
from niels_cache_assets.artifacts.base import Outcome, ReportedProgress
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.prune import prune_parts
from niels_cache_assets.artifacts.prepared_corpora import prepared_documents
from niels_cache_assets.cli import command as exit_codes
from niels_cache_assets.cli import main
from niels_cache_assets.corpus import store
from niels_cache_assets.corpus.layout import DIGESTS_NAME, SIGNATURES_NAME, corpus_parts_dir, ranges_dir
from niels_cache_assets.disk.attempts import attempt_record, recorded_attempts
from niels_cache_assets.parts import seal
from niels_cache_assets.parts.layout import parts_dir
from niels_cache_assets.parts.lease import LeaseHolder
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.streaming import encode
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import BusyError, LockOwner
from niels_cache_runtime.format.meta import Meta, read_meta, write_meta
from niels_cache_runtime.verify import notes, verify_cache
from tests.corpus.test_resume import contents, stop_after
from tests.helpers.builds import find_duplicates, prepare_corpus
from tests.helpers.corpora import articles, nearly, write_jsonl
from tests.helpers.messages import missing
from tests.helpers.parts_project import NAME, PartsProject, build

FILES = 9


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_CHUNK_ITEMS", 5)
    monkeypatch.setattr(store, "TEXT_BYTES_PER_GROUP", 3_000)
    monkeypatch.setattr(store, "TEXT_BYTES_PER_FILE", 9_000)
    monkeypatch.setattr(corpus, "_ROWS", 7)  # of arrays, which are joined in blocks


def write_texts(folder: Path, files: Mapping[int, Sequence[str]] | None = None) -> None:
    """Write nine files with copies and near copies, within and across, and short texts that cleaning drops."""
    base = articles(90)
    for number in range(FILES):
        own = base[number * 10 : number * 10 + 10]
        texts = [*own, f"short {number}", nearly(base[number * 7]), base[(number * 13) % 90]]
        write_jsonl(folder / "texts" / f"f{number}.jsonl", (files or {}).get(number, texts))


def registry_of(folder: Path, parts: int, table: str = "val_frac = 0.1") -> Registry:
    config = folder / f"{parts}.toml"
    config.write_text(
        '[build]\nthreads = 1\n[cleaning]\nskip = ["not_english", "language_error"]\n[dedup]\nranges = 2\n'
        f'[pretrain.notes]\nsource = "jsonl"\nfiles = ["texts/*.jsonl"]\nprepare = ["clean", "dedup"]\nparts = {parts}\n{table}\n',
        encoding="utf-8",
    )
    return load_registry(profile="quickstart", config=str(config))


def prepare(registry: Registry, root: Path, **options: Any) -> Meta:
    return prepare_corpus(registry, "notes", root=root, processes=1, **options).meta


def part_of(registry: Registry, root: Path, number: int) -> Corpus:
    joined = graph(registry, root).corpus("notes")
    assert joined.is_joined
    return joined.part(number)


def test_one_two_and_eight_parts_lead_to_the_same_documents_and_decisions(tmp_path: Path) -> None:
    write_texts(tmp_path)
    metas, drops, streams = [], [], []
    for parts in (1, 2, 8):
        registry, root = registry_of(tmp_path, parts), tmp_path / f"cache-{parts}"
        meta = prepare(registry, root)
        assert [part["name"] for part in meta.get("parts", [])] == [f"part-{number:05d}" for number in range(parts) if parts > 1]
        arrays = {name: meta["files"][name] for name in (DIGESTS_NAME, SIGNATURES_NAME, "rejected.parquet")}
        metas.append({key: value for key, value in meta.items() if key not in OF_LAYOUT} | arrays | {"rejected.parquet": 0})
        drops.append(contents(find_duplicates(registry, root=root).directory))
        streams.append([[*document] for batch in prepared_documents(registry, "notes", root=root) for document in batch])
    assert metas[0] == metas[1] == metas[2]
    assert drops[0] == drops[1] == drops[2]
    assert streams[0] == streams[1] == streams[2]
    found = json.loads(drops[0]["meta.json"])["datasets"]["notes"]
    assert found["near"] > 3
    assert found["exact"] > 3
    assert metas[0]["dropped"] == {"too_short": FILES}
    assert 60 < len(streams[0]) <= 90


OF_LAYOUT = ("files", "parts", "fingerprint", "meta_sha256", "source")


def test_parts_that_were_made_before_are_joined_and_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made in another order, and one of them is stopped twice and resumes."""
    write_texts(tmp_path)
    registry = registry_of(tmp_path, 3)
    whole = contents(prepare_corpus(registry, "notes", root=tmp_path / "whole", processes=1).directory)
    monkeypatch.setattr(corpus, "TEXT_BYTES_PER_RECORD", 1)
    root = tmp_path / "cache"
    plan = graph(registry, root).corpus("notes")
    assert plan.is_joined
    materialize(plan.parts_plan)
    assert materialize(part_of(registry, root, 2)).state == "built"
    for _ in range(2):
        with monkeypatch.context() as patch:
            stop_after(patch, 2)
            with pytest.raises(KeyboardInterrupt):
                materialize(part_of(registry, root, 0))
    log: list[str] = []
    assert materialize(part_of(registry, root, 0), log=log.append).resumed > 0
    assert any(line.startswith("resuming") for line in log)
    assert materialize(part_of(registry, root, 2)).state == "cache_hit"
    with monkeypatch.context() as patch:
        stop_after(patch, 8)  # the chunks of one part
        assert contents(prepare_corpus(registry, "notes", root=root, processes=1).directory) == whole
    assert prepare_corpus(registry, "notes", root=root, processes=1).state == "cache_hit"


def test_a_changed_file_makes_only_its_part_again(tmp_path: Path) -> None:
    write_texts(tmp_path)
    registry = registry_of(tmp_path, 3)
    prepare(registry, tmp_path)
    times = [(part_of(registry, tmp_path, number).directory / "meta.json").stat().st_ino for number in range(3)]
    changed = [*articles(10, seed=9), "short", nearly(articles(90)[56]), "short too"]
    write_texts(tmp_path, {8: changed})
    meta = prepare(registry, tmp_path)
    now = [(part_of(registry, tmp_path, number).directory / "meta.json").stat().st_ino for number in range(3)]
    assert [one == other for one, other in zip(times, now, strict=True)] == [True, True, False]
    write_texts(tmp_path / "fresh", {8: changed})
    assert meta["content_sha256"] == prepare(registry_of(tmp_path / "fresh", 1), tmp_path / "fresh" / "cache")["content_sha256"]


def test_a_part_may_be_empty_and_a_corpus_may_not(tmp_path: Path) -> None:
    write_texts(tmp_path, {number: ["short"] * 250 for number in range(3)})
    registry = registry_of(tmp_path, 3)
    meta = prepare(registry, tmp_path)
    assert meta["parts"][0]["documents"] == 0 < meta["parts"][1]["documents"]
    write_texts(tmp_path, {number: ["short"] * (number + 1) for number in range(FILES)})
    with pytest.raises(NielsCacheError) as caught:
        prepare(registry, tmp_path)
    assert missing(caught.value, "corpus/notes", "too_short 45", "thresholds") == []


def test_the_command_makes_one_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_texts(tmp_path)
    registry_of(tmp_path, 3)
    where = ["--config", str(tmp_path / "3.toml"), "--cache-dir", str(tmp_path / "cache"), "--profile", "quickstart"]
    results = []
    for _ in range(2):
        assert main(["part", "notes", "1", "--corpus", "--threads", "2", *where]) == 0  # no other test makes a part on worker processes
        (said,) = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line["event"] == "result"]
        results.append(said)
    assert [said["state"] for said in results] == ["built", "cache_hit"]
    assert results[0]["documents"]["read"] > results[0]["documents"]["kept"] > 20
    assert Path(results[0]["directory"]) == corpus_parts_dir(tmp_path / "cache", "notes") / "part-00001"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["3", "--corpus"], "no part 3"),
        (["--val", "--corpus"], "--corpus: not allowed with argument --val"),
        (["1"], "add --corpus"),
    ],
)
def test_parts_that_do_not_exist_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    write_texts(tmp_path)
    registry_of(tmp_path, 3)
    where = ["--config", str(tmp_path / "3.toml"), "--cache-dir", str(tmp_path / "cache"), "--profile", "quickstart"]
    assert main(["part", "notes", *options, *where]) == exit_codes.WRONG_USE
    assert words in capsys.readouterr().err


def overtake(part: Corpus) -> None:
    """Let another process take a part over, and end at once."""
    attempt = max(recorded_attempts(part.directory)) + 1
    other = LeaseHolder(attempt=attempt, writer=LockOwner.current(), token="other", boot="elsewhere", ended="done")
    attempt_record(part.directory, attempt).write_bytes(other.encoded())


@pytest.mark.parametrize("how", ["lost", "busy"])
def test_a_part_that_another_process_has_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    write_texts(tmp_path)
    registry = registry_of(tmp_path, 3)
    whole = contents(prepare_corpus(registry, "notes", root=tmp_path / "whole", processes=1).directory)
    monkeypatch.setattr(corpus, "TEXT_BYTES_PER_RECORD", 1)
    root, begun, calls = tmp_path / "cache", list[tuple[int, bool]](), [0]

    def build(part: Corpus, *, wait: bool, **options: Any) -> Outcome:
        if part.is_part:
            begun.append((part.number, wait))
            if how == "busy" and begun == [(0, False)]:
                raise BusyError(part.directory, LockOwner.current())
        return materialize(part, wait=wait, **options)

    def progressed(_: object) -> None:
        calls[0] += 1
        if how == "lost" and calls[0] == 2:
            overtake(part_of(registry, root, 0))

    monkeypatch.setattr(corpus, "materialize", build)
    log: list[str] = []
    outcome = prepare_corpus(registry, "notes", root=root, processes=1, on_progress=progressed, log=log.append)
    assert contents(outcome.directory) == whole
    assert begun == [(0, False), (1, False), (2, False), (0, True)]
    assert any("taken over" in line for line in log) is any(line.startswith("resuming") for line in log) is (how == "lost")


def test_progress_is_that_of_all_parts(tmp_path: Path) -> None:
    write_texts(tmp_path)
    registry, told = registry_of(tmp_path, 3), list[ReportedProgress]()
    meta = prepare(registry, tmp_path / "cache", on_progress=told.append)
    assert [each.share for each in told] == sorted(each.share or 0.0 for each in told)
    assert len(told) > 15
    documents, characters = meta["documents"], meta["characters"]["before"]
    counts = {"documents": documents["read"], "kept": documents["kept"], "characters": characters}
    assert told[-1] == ReportedProgress(counts=counts, share=1.0)
    part = ReportedProgress(counts=dict(zip(counts, (4, 3, 50), strict=True)), share=0.5)
    together = corpus._progress_of_all([meta], part, parts=3)
    assert together == ReportedProgress(counts={unit: count + part.counts[unit] for unit, count in counts.items()}, share=0.5)
    assert [*together.counts] == [*counts]  # the speed is that of the last unit


def test_without_hard_links_the_documents_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(tmp_path)
    registry = registry_of(tmp_path, 3)
    whole = contents(prepare_corpus(registry, "notes", root=tmp_path / "whole", processes=1).directory)

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    log: list[str] = []
    outcome = prepare_corpus(registry, "notes", root=tmp_path / "cache", processes=1, log=log.append)
    assert contents(outcome.directory) == whole
    assert sum("hard links" in line for line in log) == 1
    for module in (corpus, seal):
        monkeypatch.setattr(module, "require_free_space", lambda target, need, log: told.append(need.bytes))
    told: list[int] = []
    prepare_corpus(registry, "notes", root=tmp_path / "cache", processes=1, force=True)
    sizes = {name: entry["bytes"] for name, entry in outcome.meta["files"].items()}
    arrays = sum(sizes[name] for name in (DIGESTS_NAME, SIGNATURES_NAME))
    assert told == [arrays + 2 * 2 * 128, sum(size for name, size in sizes.items() if name.startswith("documents_"))]


def test_a_part_that_is_replaced_during_the_join_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(tmp_path)
    registry = registry_of(tmp_path, 3)
    counts = corpus._counts

    def replacing(directories: Sequence[Path]) -> Any:
        found, path = counts(directories), directories[1] / "meta.json"
        write_meta(str(path), {key: value for key, value in read_meta(str(path)).items() if key != "meta_sha256"} | {"note": 1})
        return found

    with monkeypatch.context() as patch:
        patch.setattr(corpus, "_counts", replacing)
        with pytest.raises(NielsCacheError) as caught:
            prepare(registry, tmp_path / "cache")
    assert missing(caught.value, "part-00001", "replaced", "run this again") == []
    assert prepare(registry, tmp_path / "cache")["documents"]["kept"] > 60


def test_status_and_verify_know_the_parts(tmp_path: Path) -> None:
    write_texts(tmp_path)
    registry, root = registry_of(tmp_path, 3), tmp_path / "cache"
    found = graph(registry, root)
    joined = found.corpus("notes")
    assert joined.is_joined
    assert "0 of 3 parts" in found.state("corpus/notes").advice
    materialize(joined.parts_plan)
    materialize(part_of(registry, root, 1))
    assert "1 of 3 parts" in found.state("corpus/notes").advice
    stricter = replace(registry, cleaning=registry.cleaning.model_copy(update={"min_words": 7}))
    advice = graph(stricter, root).state("corpus/notes").advice
    assert "0 of 3 parts" in advice
    assert "1 stale" in advice
    prepare(registry, root)
    assert found.state("corpus/notes").state == "in sync"
    assert (verify_cache(root), [line for line in notes(root) if ".parts" in line]) == ([], [])
    damaged = part_of(registry, root, 2).directory / "counts.json"
    damaged.write_bytes(damaged.read_bytes().replace(b"0", b"1", 1))
    assert [finding.folder for finding in verify_cache(root)] == [str(damaged.parent)]


def test_prune_keeps_the_plan_and_the_parts_of_today(tmp_path: Path, tiny_model: Path) -> None:
    project = PartsProject(tmp_path, tiny_model)
    project.write([30, 30, 30, 30])
    table = 'prepare = ["dedup"]\nval_frac = 0.1\n'
    for parts in (4, 2):
        build(project.graph(parts, table))
    found = project.graph(2, table)
    plan = parts_dir(found.root, NAME) / "plan.json"
    before, folder = plan.read_bytes(), corpus_parts_dir(found.root, NAME)
    assert [part.directory for part in prune_parts(found, NAME)] == [folder / f"part-0000{number}" for number in (2, 3)]
    assert prune_parts(found, NAME) == []
    assert plan.read_bytes() == before
    assert materialize(found.corpus(NAME)).state == "cache_hit"
    build(project.graph(1, table))
    assert {part.directory for part in prune_parts(project.graph(1, table), NAME)} == {folder / f"part-0000{number}" for number in (0, 1)}
    assert not plan.exists()
    assert not folder.exists()


def test_prune_removes_a_search_that_nobody_needs(tmp_path: Path, tiny_model: Path) -> None:
    project = PartsProject(tmp_path, tiny_model)
    project.write([30, 30])
    searched = project.graph(1, 'prepare = ["dedup"]\nval_frac = 0.1\n', build="[dedup]\nranges = 2\n")
    build(searched)
    folder = ranges_dir(searched.root)
    materialize(searched.duplicates().hashes())
    materialize(searched.duplicates().range(1))
    assert prune_parts(searched, NAME) == []
    assert folder.exists()
    plain = project.graph(1, "val_frac = 0.1\n")
    build(plain)
    removed = prune_parts(plain, NAME)
    assert {part.directory for part in removed} == {folder / "hashes", folder / "range-00001"}
    assert all(part.bytes > 0 for part in removed)
    assert not folder.exists()
