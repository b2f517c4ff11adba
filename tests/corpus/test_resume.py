"""Interrupted builds of corpora and drop lists. The next build resumes, and ends in the bytes of an undisturbed run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts import corpus, materialize
from niels_cache_assets.base.parallel import LONG_CHARACTERS
from niels_cache_assets.corpus import store
from niels_cache_assets.corpus.chunks import ChunkWork, CorpusChunk, PreparedChunk
from niels_cache_assets.corpus.layout import corpus_dir, duplicates_dir
from niels_cache_assets.corpus.order import CorpusInput
from niels_cache_assets.dedup import ranges
from niels_cache_assets.disk.journal import Journal, partial_directory, read_journal
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.streaming import encode
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.builds import find_duplicates, prepare_corpus
from tests.helpers.corpora import MisbehavingSource, articles, corpus_registry, nearly, with_source, write_jsonl
from tests.helpers.messages import missing

CHUNK = 20
COUNT = 180


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of documents ends every few chunks of twenty; a batch of the source is a chunk."""
    monkeypatch.setattr(encode, "_CHUNK_ITEMS", CHUNK)
    monkeypatch.setattr(encode, "_CHUNKS_PER_TASK", 1)
    monkeypatch.setattr(rows, "BATCH_DOCUMENTS", CHUNK)
    monkeypatch.setattr(store, "TEXT_BYTES_PER_GROUP", 5_000)
    monkeypatch.setattr(store, "TEXT_BYTES_PER_FILE", 15_000)
    monkeypatch.setattr(Journal, "REST", 0)


@pytest.fixture
def cleaned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the first document of every chunk that is cleaned."""
    firsts: list[int] = []
    work = ChunkWork.__call__

    def noted(self: ChunkWork, chunk: CorpusChunk) -> PreparedChunk:
        firsts.append(chunk.first)
        return work(self, chunk)

    monkeypatch.setattr(ChunkWork, "__call__", noted)
    return firsts


def texts() -> list[str]:
    """Articles, every ninth of them too short to stay."""
    return [text if number % 9 else f"short {number}" for number, text in enumerate(articles(COUNT))]


def contents(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    assert "meta.json" in found
    return found


def misbehaving(folder: Path, **faults: Any) -> Registry:
    source = MisbehavingSource.model_validate({"prepare": ("clean", "dedup"), "count": COUNT, "split": True, **faults})
    return with_source(corpus_registry(folder, {"notes": []}), "notes", source)


def stop_after(monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    """Send Ctrl-C after so many chunks."""
    work, done = ChunkWork.__call__, [0]

    def stopping(self: ChunkWork, chunk: CorpusChunk) -> PreparedChunk:
        if done[0] == chunks:
            raise KeyboardInterrupt
        done[0] += 1
        return work(self, chunk)

    monkeypatch.setattr(ChunkWork, "__call__", stopping)


def begin(monkeypatch: pytest.MonkeyPatch, registry: Registry, root: Path, *, chunks: int) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, chunks)
        with pytest.raises(KeyboardInterrupt):
            prepare_corpus(registry, "notes", root=root, processes=1)


# counts


# cleaning


@pytest.mark.parametrize("places", [True, False])
def test_a_run_that_was_stopped_anywhere_goes_on_and_ends_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleaned: list[int], places: bool
) -> None:
    """`places`: of a source that starts in the middle, and of one that is read again."""
    registry = corpus_registry(tmp_path, {"notes": texts()}) if places else misbehaving(tmp_path)
    whole = prepare_corpus(registry, "notes", root=tmp_path / "whole", processes=1)
    expected, chunks = contents(whole.directory), len(cleaned)
    assert chunks == COUNT // CHUNK
    assert len([name for name in expected if name.startswith("documents_")]) > 3
    resumed = 0
    for stop in range(chunks):
        root, log = tmp_path / str(stop), list[str]()
        begin(monkeypatch, registry, root, chunks=stop)
        kept = read_journal(partial_directory(corpus_dir(root, "notes")))
        cleaned.clear()
        outcome = prepare_corpus(registry, "notes", root=root, processes=1, log=log.append)
        assert contents(outcome.directory) == expected
        first = kept.state["reached"]["items"] if kept else 0
        assert cleaned == list(range(first, COUNT, CHUNK))
        share = f" at {kept.share:.0%}" if kept and kept.share is not None else ""
        assert [line for line in log if "resuming" in line] == ([f"resuming notes{share}"] if kept else [])
        assert kept is None or (kept.documents == first if places else 0 < (kept.documents or 0) < first)  # less what `convert` drops
        assert kept is None or kept.share == (pytest.approx(first / COUNT, abs=0.15) if places else None)
        assert any(line.startswith(f"skipped the {first} ") for line in log) == (kept is not None)
        assert not any("afresh" in line for line in log)
        resumed += kept is not None
        assert stop * CHUNK - first <= 2 * CHUNK  # about a file
    assert resumed > chunks // 2


@pytest.mark.parametrize("due", ["bytes", "seconds"])
def test_a_run_resumes_inside_of_a_file_of_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleaned: list[int], due: str) -> None:
    """With a record after each chunk, no chunk is cleaned twice, and the open file gets the same bytes."""
    registry = corpus_registry(tmp_path, {"notes": texts()}, settings="[build]\nrecord_seconds = 1e-9" if due == "seconds" else "")
    expected, chunks = contents(prepare_corpus(registry, "notes", root=tmp_path / "whole", processes=1).directory), len(cleaned)
    if due == "bytes":
        monkeypatch.setattr(corpus, "TEXT_BYTES_PER_RECORD", 1)
    assert len([name for name in expected if name.startswith("documents_")]) < chunks
    for each in range(4):
        begin(monkeypatch, registry, tmp_path, chunks=2)
        assert cleaned[-2:] == [each * 2 * CHUNK, (each * 2 + 1) * CHUNK]
    cleaned.clear()
    outcome = prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    assert cleaned == list(range(8 * CHUNK, COUNT, CHUNK))
    assert contents(outcome.directory) == expected


def test_a_killed_run_repeats_at_most_16_megabytes_for_each_worker() -> None:
    """A record comes after so much text for each worker. Another two chunks of each worker may be under way."""
    assert corpus.TEXT_BYTES_PER_RECORD + 2 * LONG_CHARACTERS <= 16_000_000


def test_a_run_is_stopped_again_and_again_and_in_other_numbers_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = corpus_registry(tmp_path, {"notes": texts()}, table='prepare = ["clean"]\n')  # a worker that signs takes a second more
    whole = prepare_corpus(registry, "notes", root=tmp_path / "whole", processes=1)
    progress: list[int] = []
    for _ in range(3):
        begin(monkeypatch, registry, tmp_path / "parts", chunks=3)
    outcome = prepare_corpus(
        registry, "notes", root=tmp_path / "parts", processes=2, on_progress=lambda done: progress.append(done.counts["documents"])
    )
    assert progress[0] > 4 * CHUNK
    assert contents(outcome.directory) == contents(whole.directory)


def test_a_worker_that_is_killed_is_told_of_and_the_next_run_goes_on(tmp_path: Path, cleaned: list[int]) -> None:
    def registry(**settings: Any) -> Registry:
        return misbehaving(tmp_path, prepare=("clean",), **settings)

    good = prepare_corpus(registry(count=50), "notes", root=tmp_path, processes=1)
    before = contents(good.directory)
    with pytest.raises(NielsCacheError) as caught:
        prepare_corpus(registry(kill_at=120), "notes", root=tmp_path, processes=2)
    assert missing(caught.value, "notes", "worker", "killed", "fewer processes") == []
    assert "\n" not in str(caught.value)
    assert contents(good.directory) == before
    whole = prepare_corpus(registry(), "notes", root=tmp_path / "whole", processes=1)
    cleaned.clear()
    outcome = prepare_corpus(registry(), "notes", root=tmp_path, processes=1)
    assert 0 < len(cleaned) < COUNT // CHUNK
    assert contents(outcome.directory) == contents(whole.directory)


@pytest.mark.parametrize("ending", ["write_rejected", "write_meta"])
def test_a_run_that_failed_at_its_end_goes_on_behind_its_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleaned: list[int], ending: str
) -> None:
    registry = corpus_registry(tmp_path, {"notes": texts()})
    whole = prepare_corpus(registry, "notes", root=tmp_path / "whole", processes=1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(corpus if ending == "write_rejected" else materialize, ending, full)
        with pytest.raises(NielsCacheError, match=r"No space left.*unfinished.*kept"):
            prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    cleaned.clear()
    outcome = prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    assert len(cleaned) <= 2
    assert contents(outcome.directory) == contents(whole.directory)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("data", ["other settings", "data have"]),
        ("force", ["fresh build"]),
    ],
)
def test_a_run_of_another_corpus_and_one_by_force_start_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleaned: list[int], change: str, reason: list[str]
) -> None:
    registry = corpus_registry(tmp_path, {"notes": texts()})
    begin(monkeypatch, registry, tmp_path, chunks=5)
    if change == "data":
        write_jsonl(tmp_path / "notes.jsonl", [*texts()[1:], "a new last document"])
    whole = prepare_corpus(registry, "notes", root=tmp_path / "whole", processes=1)
    cleaned.clear()
    log: list[str] = []
    outcome = prepare_corpus(registry, "notes", root=tmp_path, processes=1, force=change == "force", log=log.append)
    assert missing(afresh(log), *reason) == []
    assert cleaned[0] == 0
    assert contents(outcome.directory) == contents(whole.directory)


def afresh(log: list[str]) -> str:
    """Return the line with the reason why a build starts from the beginning."""
    (line,) = [line for line in log if line.startswith("starting afresh: ")]
    return line


def test_a_hit_sweeps_what_a_killed_build_of_other_settings_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = corpus_registry(tmp_path, {"notes": texts()})
    prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    other = corpus_registry(tmp_path, {"notes": texts()}, table='prepare = ["clean", "dedup"]\ncleaning = { min_words = 60 }\n')
    begin(monkeypatch, other, tmp_path, chunks=5)
    partial = partial_directory(corpus_dir(tmp_path, "notes"))
    assert partial.exists()
    assert prepare_corpus(registry, "notes", root=tmp_path, processes=1).state == "cache_hit"
    assert not partial.exists()


# duplicates


def prepared(folder: Path, verify: str) -> Registry:
    """Two corpora with copies and near copies, within and across."""
    base = articles(60)
    data = {"notes": [*base, *base[:10]], "books": [*articles(40, seed=1), *(nearly(text) for text in base[:20]), *base[50:]]}
    registry = corpus_registry(folder, data, table='prepare = ["dedup"]\nval_frac = 0.1\n', settings=f'[dedup]\nverify = "{verify}"\n')
    for name in data:
        prepare_corpus(registry, name, root=folder, processes=1)
    return registry


def stop_at_band(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    link_range = ranges.link_range

    def stopping(hashes: Path, links: Path, band: int, each: int, *, documents: int) -> None:
        if band == number:
            raise KeyboardInterrupt
        link_range(hashes, links, band, each, documents=documents)

    monkeypatch.setattr(ranges, "link_range", stopping)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data sets whose signatures are read."""
    names: list[str] = []
    signatures = CorpusInput.signatures

    def noted(self: CorpusInput) -> Iterator[Any]:
        names.append(self.name)
        return signatures(self)

    monkeypatch.setattr(CorpusInput, "signatures", noted)
    return names


COMPARED_WITH_VAL = ["notes", "books"]  # without `verify`, train is compared with val at the end, which reads the signatures once more


@pytest.mark.parametrize("verify", ["none", "jaccard"])
def test_a_search_that_was_stopped_at_any_band_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str], verify: str
) -> None:
    monkeypatch.setattr(Journal, "BYTES", 0)
    registry = prepared(tmp_path, verify)
    whole = contents(find_duplicates(registry, root=tmp_path).directory)
    assert sum(counts["near"] for counts in json.loads(whole["meta.json"])["datasets"].values()) > 10
    bands = json.loads(whole["meta.json"])["bands"] + 1
    assert bands > 5
    for band in range(bands):
        for path in duplicates_dir(tmp_path).iterdir():
            path.unlink()
        with monkeypatch.context() as patch:
            stop_at_band(patch, band)
            with pytest.raises(KeyboardInterrupt):
                find_duplicates(registry, root=tmp_path)
        reads.clear()
        log: list[str] = []
        outcome = find_duplicates(registry, root=tmp_path, log=log.append)
        assert reads == (COMPARED_WITH_VAL if verify == "none" else [])
        assert [line for line in log if "range/range-00000" in line and line.startswith("resuming")] or not band
        assert contents(outcome.directory) == whole
    assert not partial_directory(duplicates_dir(tmp_path)).exists()
