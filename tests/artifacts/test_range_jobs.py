"""Ranges of the search for duplicates as jobs of their own. The drop lists have the same bytes for any ranges, jobs and interruptions."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.duplicates import SearchStep
from niels_cache_assets.artifacts.forecast.steps import forecast
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.cli import command as exit_codes
from niels_cache_assets.cli import main
from niels_cache_assets.cluster.child import PartCommand
from niels_cache_assets.corpus.layout import HASHES, duplicates_dir, ranges_dir
from niels_cache_assets.dedup import ranges
from niels_cache_assets.defs.part_processes import build_part_in_child
from niels_cache_assets.disk.attempts import attempt_record
from niels_cache_assets.disk.journal import Journal
from niels_cache_assets.parts.lease import hold_lease
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.project.running import ClusterSettings
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.verify import notes, verify_cache
from tests.corpus.test_resume import contents, prepared
from tests.helpers import children
from tests.helpers.builds import find_duplicates, prepare_corpus
from tests.helpers.corpora import articles, nearly, write_jsonl
from tests.helpers.messages import missing

BANDS = 9  # with that of the digests
WINDOW = 23  # documents


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MIN_WINDOW", WINDOW)
    monkeypatch.setattr(Journal, "BYTES", 0)
    monkeypatch.setattr(Journal, "REST", 0)


def in_ranges(registry: Registry, count: int) -> Registry:
    return replace(registry, dedup=registry.dedup.model_copy(update={"ranges": count}))


def job(registry: Registry, root: Path, number: int) -> SearchStep:
    return graph(registry, root).duplicates().range(number)


def linked(registry: Registry, root: Path, number: int, *, log: Callable[[str], None] = lambda line: None) -> dict[str, bytes]:
    """Make a range, with its hashes, and return its files."""
    materialize(graph(registry, root).duplicates().hashes())
    return contents(materialize(job(registry, root, number), log=log).directory)


@pytest.mark.parametrize("verify", ["none", "jaccard"])
def test_drop_lists_have_the_same_bytes_for_any_number_of_ranges(tmp_path: Path, verify: str) -> None:
    registry = prepared(tmp_path, verify)
    whole = contents(find_duplicates(registry, root=tmp_path).directory)
    assert sum(counts["near"] for counts in json.loads(whole["meta.json"])["datasets"].values()) > 10
    for count in (4, 16):
        other = in_ranges(registry, count)
        assert find_duplicates(other, root=tmp_path).state == "cache_hit"
        assert contents(find_duplicates(other, root=tmp_path, force=True).directory) == whole
        assert not ranges_dir(tmp_path).exists()


def test_ranges_that_jobs_have_made_are_used_and_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = in_ranges(prepared(tmp_path, "none"), 4)
    whole = contents(find_duplicates(in_ranges(registry, 1), root=tmp_path).directory)
    for path in duplicates_dir(tmp_path).iterdir():
        path.unlink()
    for number in (2, 0):
        linked(registry, tmp_path, number)
    calls = counted(monkeypatch)
    assert contents(find_duplicates(registry, root=tmp_path).directory) == whole
    assert sorted(set(calls)) == [1, 3]
    assert len(calls) == 2 * BANDS
    assert not ranges_dir(tmp_path).exists()
    assert verify_cache(tmp_path) == []
    assert not [line for line in notes(tmp_path) if ".ranges" in line]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of the range at each step of a job."""
    link_range, calls = ranges.link_range, list[int]()

    def counting(*arguments: Any, **options: Any) -> None:
        calls.append(arguments[3])
        link_range(*arguments, **options)

    monkeypatch.setattr(ranges, "link_range", counting)
    return calls


def test_a_job_that_is_killed_ends_in_the_same_bytes(tmp_path: Path) -> None:
    registry = in_ranges(prepared(tmp_path, "none"), 2)
    expected = linked(registry, tmp_path, 1)
    shutil.rmtree(job(registry, tmp_path, 1).directory)
    assert children.run(job_killed_after, 4, registry, tmp_path, 1) == -signal.SIGKILL
    log: list[str] = []
    assert linked(registry, tmp_path, 1, log=log.append) == expected
    assert any(line.startswith("resuming") for line in log)


def job_killed_after(steps: int, registry: Registry, root: Path, number: int) -> None:
    """Make a range in this process, and kill the process after some steps."""
    link_range, done = ranges.link_range, [0]

    def killing(*arguments: Any, **options: Any) -> None:
        if done[0] == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        link_range(*arguments, **options)
        done[0] += 1

    Journal.BYTES, Journal.REST, ranges.MIN_WINDOW = 0, 0, WINDOW
    ranges.link_range = killing
    materialize(graph(registry, root).duplicates().hashes())
    materialize(job(registry, root, number))


def test_a_range_that_another_process_makes_is_not_removed(tmp_path: Path) -> None:
    registry = in_ranges(prepared(tmp_path, "none"), 2)
    find_duplicates(registry, root=tmp_path)
    held = job(registry, tmp_path, 1).directory
    held.mkdir(parents=True)
    with hold_lease(held, times=ClusterSettings(), wait=False, log=lambda line: None) as lease:
        assert find_duplicates(registry, root=tmp_path).state == "cache_hit"
        assert held.exists()
        assert attempt_record(held, lease.attempt).exists()
    assert find_duplicates(registry, root=tmp_path).state == "cache_hit"
    assert not ranges_dir(tmp_path).exists()


def test_a_corpus_that_changes_makes_ranges_again(tmp_path: Path) -> None:
    project = Searched(tmp_path)
    registry = project.registry()
    project.prepare(registry)
    before = linked(registry, project.root, 0)
    project.write(articles(50, seed=3))
    project.prepare(registry)
    with pytest.raises(NielsCacheError) as caught:
        materialize(job(registry, project.root, 0))
    assert missing(caught.value, HASHES, "build it first") == []
    assert linked(registry, project.root, 0) != before


class Searched:
    """A data set of one file, with copies and near copies, whose search is in three ranges."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "cache"
        self.write([*articles(40), *articles(5), nearly(articles(9)[8])])

    def write(self, texts: list[str]) -> None:
        write_jsonl(self.folder / "texts.jsonl", texts)

    def registry(self, count: int = 3, *, first: str = "") -> Registry:
        config = self.folder / "niels_cache.toml"
        config.write_text(
            f'[dedup]\nranges = {count}\n{first}[pretrain.notes]\nsource = "jsonl"\nfiles = ["texts.jsonl"]\nprepare = ["dedup"]\n'
            '[pretrain.plain]\nsource = "jsonl"\nfiles = ["texts.jsonl"]\n'
            "[pretrain.python_docs]\nenabled = false\n[sft.python_help]\nenabled = false\n",
            encoding="utf-8",
        )
        return load_registry(profile="quickstart", config=str(config))

    def prepare(self, registry: Registry) -> None:
        prepare_corpus(registry, "notes", root=self.root, processes=1)

    @property
    def where(self) -> list[str]:
        return ["--config", str(self.folder / "niels_cache.toml"), "--cache-dir", str(self.root), "--profile", "quickstart"]


def lines_of(capsys: pytest.CaptureFixture[str], event: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line["event"] == event]


def test_the_command_makes_one_range(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    project = Searched(tmp_path)
    registry = project.registry()
    project.prepare(registry)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    said = []
    for options in (["--range", "1"], ["--range", "1"], ["--range"]):
        assert main(["part", "notes", *options, *project.where]) == 0
        said += lines_of(capsys, "result")
    assert [(each["key"], each["state"]) for each in said] == [
        ("range/range-00001", "built"),
        ("range/range-00001", "cache_hit"),
        ("range/range-00002", "built"),
    ]
    assert {each["documents"]["searched"] for each in said} == {46}
    assert Path(said[0]["directory"]) == ranges_dir(project.root) / "range-00001"
    find_duplicates(registry, root=project.root)
    assert main(["part", "notes", "--range", "0", *project.where]) == 0
    (hit,) = lines_of(capsys, "result")
    assert (hit["key"], hit["state"], hit["documents"]) == ("corpus/duplicates", "cache_hit", {"searched": 46, "dropped": 6})
    assert not ranges_dir(project.root).exists()


@pytest.mark.parametrize(
    ("options", "count", "words"),
    [
        (["notes", "--range", "3"], 3, "no range 3"),
        (["notes", "0", "--range", "--corpus"], 3, "not allowed with"),
        (["plain", "--range", "0"], 3, "not searched"),
        (["notes", "--range", "0"], 1, "set ranges"),
        (["notes", "--range", "0"], 3, "corpus/notes"),
    ],
)
def test_ranges_that_do_not_exist_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], count: int, words: str
) -> None:
    project = Searched(tmp_path)
    registry = project.registry(count)
    if words != "corpus/notes":
        project.prepare(registry)
    assert main(["part", *options, *project.where]) == exit_codes.WRONG_USE
    assert words in capsys.readouterr().err


def test_a_dry_run_names_the_ranges_until_the_drop_lists_are_there(tmp_path: Path) -> None:
    project = Searched(tmp_path)
    registry = project.registry()
    project.prepare(registry)

    def steps() -> dict[str, str]:
        return {step.key: step.action for step in forecast(graph(registry, project.root), only=["notes"])}

    before = steps()
    search = [HASHES, *(f"range/range-{number:05d}" for number in range(3)), "corpus/duplicates"]
    assert [key for key in before if key in search] == search
    assert {before[key] for key in search} == {"build"}
    find_duplicates(registry, root=project.root)
    after = steps()
    assert (after["corpus/duplicates"], [key for key in after if key in search]) == ("cache_hit", ["corpus/duplicates"])


def test_a_child_makes_a_range_or_a_part_of_a_corpus(tmp_path: Path) -> None:
    project = Searched(tmp_path)
    registry = project.registry()
    project.prepare(registry)
    materialize(graph(registry, project.root).duplicates().hashes())
    part = job(registry, project.root, 2)
    outcome = build_part_in_child(part, home=tmp_path, on_progress=lambda progress: None, log=lambda line: None)
    assert (outcome.key, outcome.state, outcome.meta) == ("range/range-00002", "built", part.current())
    corpus = PartCommand(part=Corpus(registry=registry, root=project.root, name="notes", number=17)).words()
    assert corpus[corpus.index("part") :][:4] == ["part", "notes", "17", "--corpus"]
