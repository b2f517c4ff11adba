"""The report of a corpus: its figures add up, it is written once, and its pictures show it."""

import json
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.corpus_report import corpus_report
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.dedup.bands import choose_bands
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.builds import find_duplicates, prepare_corpus
from tests.helpers.dagster_tools import Project
from tests.helpers.prepared_project import LETTERS, prepare_project


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> Project:
    project = prepare_project(tmp_path, tiny_model)
    for name in ("books", "letters"):
        prepare_corpus(project.registry, name, root=project.root, processes=1)
    find_duplicates(project.registry, root=project.root)
    return project


def test_the_funnel_ends_with_what_stays_and_every_step_is_a_reason(project: Project) -> None:
    report = corpus_report(project.registry, "letters", root=project.root)
    stages = {stage["stage"]: stage["documents"] for stage in report["funnel"]}
    assert stages == {"read": 23, "checked": 23, "without exact duplicates": 21, "without near duplicates": LETTERS}
    assert report["documents"] == {"given": 23, "kept": LETTERS}
    assert sum(report["splits"].values()) == LETTERS
    assert [(row["reason"], row["stage"], row["documents"]) for row in report["reasons"]] == [
        ("exact_duplicate", "duplicates", 2),
        ("near_duplicate", "duplicates", 1),
    ]
    assert report["reasons"][0]["share"] == pytest.approx(2 / 23, abs=1e-6)
    for key in ("characters", "bytes", "estimated_tokens"):
        figures = [stage[key] for stage in report["funnel"]]
        assert figures == sorted(figures, reverse=True)
        assert figures[-1] > 0
    assert sum(bin["before"] for bin in report["lengths"]) == 23


def test_cleaning_is_told_from_duplicates_and_lengths_from_before_and_after(project: Project) -> None:
    report = corpus_report(project.registry, "books", root=project.root)
    assert [(row["reason"], row["stage"]) for row in report["reasons"]] == [("too_short", "cleaning")]
    assert [stage["documents"] for stage in report["funnel"]] == [5, 4, 4, 4]
    assert next((bin["from"], bin["below"]) for bin in report["lengths"]) == (4, 8), "'Brief.' has six characters"
    assert sum(bin["before"] for bin in report["lengths"]) == 5
    assert sum(bin["after"] for bin in report["lengths"]) == 4


def test_duplicates_come_with_clusters_their_origin_and_the_bands_used(project: Project) -> None:
    found = corpus_report(project.registry, "letters", root=project.root)["duplicates"]
    assert {(pair["because_dataset"], pair["kind"]) for pair in found["because_of"]} == {
        ("books", "exact"),
        ("letters", "exact"),
        ("letters", "near"),
    }
    assert found["cluster_sizes"] == {"2": 3}
    assert found["cluster_sizes_across"] == {"2": 1}, "a letter equals a book"
    across = [(row["because_of"], row["exact"], row["near"]) for row in found["matrix"] if row["because_of"] == "books"]
    assert across == [("books", 1, 0)]
    of_books = corpus_report(project.registry, "books", root=project.root)["duplicates"]
    assert (of_books["exact"], of_books["near"], of_books["cluster_sizes"]) == (0, 0, {"2": 1})
    assert [(row["data_set"], row["because_of"], row["exact"]) for row in of_books["matrix"]] == [("letters", "books", 1)]
    assert (found["bands"], found["rows"]) == choose_bands(0.85, 128)


def test_a_report_is_written_once_and_again_when_something_changed(project: Project) -> None:
    artifacts = graph(project.registry, project.root)
    assert artifacts.state("report/letters").state == "missing"
    first = materialize(graph(project.registry, project.root)["report/letters"])
    assert (first.state, artifacts.state("report/letters").state) == ("built", "in sync")
    assert [path.name for path in first.directory.iterdir()] == ["report.json"]
    assert json.loads((first.directory / "report.json").read_text()) == first.meta
    assert materialize(graph(project.registry, project.root)["report/letters"]).state == "cache_hit"
    (first.directory / "report.json").unlink()
    assert artifacts.state("report/letters").state == "missing"
    assert materialize(graph(project.registry, project.root)["report/letters"]).state == "built"
    assert materialize(graph(project.registry, project.root)["report/letters"], force=True).state == "built"


def test_without_a_current_corpus_it_says_what_to_materialize(tmp_path: Path, tiny_model: Path) -> None:
    project = prepare_project(tmp_path, tiny_model)
    with pytest.raises(NielsCacheError, match="materialize corpus/documents of 'books'"):
        materialize(graph(project.registry, project.root)["report/books"])
    assert not (project.root / "reports").exists()
