"""The assets corpus/*. The tests check dependencies, records of runs, stale partitions, checks, and the order of builds."""

import sys
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.defs.checks.cache import SPLITS_DISJOINT
from niels_cache_assets.defs.checks.corpus import LANGUAGE_PLAUSIBLE, NOT_EMPTY, REASONS_PLAUSIBLE
from niels_cache_assets.reports.cache import cache_report, find_items
from niels_cache_assets.reports.history import History
from niels_cache_pages.page import draw_report, render_page
from tests.helpers.built_project import Built
from tests.helpers.dagster_tools import Project, checks, json_of, materializations, metadata, rows, state_in
from tests.helpers.launches import launch, launch_in_memory
from tests.helpers.messages import missing
from tests.helpers.names import NAMES
from tests.helpers.prepared_project import LETTERS, changed, configure, prepare_project, write_letters
from tests.helpers.tiny import sentences

META = NAMES.meta["pretrain"]
MIXTURE = '[pretrain.mix]\nsource = "interleave"\nmembers = { notes = 0.5, letters = 0.5 }\n'
ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> Project:
    """Nothing of it is built."""
    return prepare_project(tmp_path, tiny_model)


@pytest.fixture
def built(built_corpora: Built, tmp_path: Path) -> Project:
    return built_corpora.project.copied(tmp_path)


def test_the_assets_of_a_corpus_are_these(project: Project) -> None:
    configure(project, more=MIXTURE)
    graph = project.defs.resolve_asset_graph()
    prepared, every = ["books", "letters"], ["notes", "books", "letters", "mix"]
    found = {}
    for key in (NAMES.documents, NAMES.duplicates, NAMES.kept, NAMES.report, META):
        node = graph.get(key)
        partitions = node.partitions_def.get_partition_keys() if node.partitions_def else None
        parents = sorted(parent.to_user_string() for parent in node.parent_keys)
        found[key.to_user_string()] = (node.group_name, partitions, parents, sorted(check.name for check in node.check_keys))
    verified = ["budgets_met", "caches_in_sync", "files_match_meta", "invariants_hold", "splits_disjoint", "tokenizer_is_current"]
    above = ["corpus/documents", "corpus/kept", "pretrain/train_shards", "pretrain/val_shards", "tokenizer", "upstream/pretrain"]
    assert found == {
        "corpus/documents": ("corpus", prepared, ["upstream/pretrain"], [LANGUAGE_PLAUSIBLE, REASONS_PLAUSIBLE]),
        "corpus/duplicates": ("corpus", None, ["corpus/documents"], []),
        "corpus/kept": ("corpus", prepared, ["corpus/documents", "corpus/duplicates"], [NOT_EMPTY]),
        "corpus/report": ("reports", prepared, ["corpus/documents", "corpus/duplicates"], []),
        "pretrain/meta_json": ("pretrain", every, above, verified),
    }
    assert graph.get_check_spec(dg.AssetCheckKey(NAMES.kept, NOT_EMPTY)).blocking


def test_a_data_set_depends_on_its_own_corpus_and_a_mixture_on_those_of_its_members(project: Project) -> None:
    configure(project, more=MIXTURE)
    graph = project.defs.resolve_asset_graph()

    def above(name: str) -> list[str]:
        parents = graph.get_parents_partitions(META, name)
        assert not parents.required_but_nonexistent_parents_partitions
        keys = [key for key in parents.parent_partitions if key.asset_key.path[0] in ("corpus", "upstream")]
        return sorted(f"{key.asset_key.path[1]} {key.partition_key}" for key in keys)

    assert above("notes") == ["pretrain notes"]
    assert above("books") == ["documents books", "kept books", "pretrain books"]
    assert above("mix") == ["documents letters", "kept letters", "pretrain mix"]


def test_runs_record_figures_examples_and_pictures(built_corpora: Built, built: Project) -> None:
    runs = built_corpora.runs
    recorded = metadata(materializations(runs["corpus/books"], "corpus__documents")["corpus/documents"])
    assert (state_in(recorded), recorded["documents"]) == ("built", 4)
    assert "4 documents of 5" in recorded["contents"]
    assert rows(recorded["reasons"]) == [{"reason": "too_short", "stage": "cleaning", "documents": 1, "share": "20.0%"}]
    assert "niels-cache clean --dropped books" in recorded["rejected_examples"]
    assert "niels-cache sample books --stage corpus" in recorded["samples"]
    assert checks(runs["corpus/books"])[REASONS_PLAUSIBLE].passed
    again = materializations(built.run("build_corpus", "books"), "corpus__documents")["corpus/documents"]
    assert state_in(metadata(again)) == "cache_hit"
    duplicates = metadata(materializations(runs["duplicates"], "corpus__duplicates")["corpus/duplicates"])
    settings = json_of(duplicates["settings"])
    assert (duplicates["exact_duplicates"], duplicates["near_duplicates"], settings["bands"], settings["rows"]) == (2, 1, 8, 16)
    assert "2 exact, 1 near" in duplicates["contents"]
    assert [row["data_set"] for row in rows(duplicates["data_sets"])] == ["books", "letters"]
    reported = runs["report/letters"]
    assert checks(reported)[NOT_EMPTY].passed
    kept = metadata(materializations(reported, "corpus__kept")["corpus/kept"])
    assert kept["documents"] == LETTERS
    assert "; 3 duplicates and " in kept["contents"]
    report = metadata(materializations(reported, "corpus__report")["corpus/report"])
    assert [row["documents"] for row in rows(report["funnel_table"])] == [23, 23, 21, LETTERS]
    assert "plots" not in report


def test_no_build_imports_matplotlib_but_the_page_does(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    launch_in_memory(project, monkeypatch)
    project.edit("[dagster]\nplots = false\n", "")
    loaded = [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]
    for name in {*loaded, "matplotlib", "matplotlib.backends.backend_agg", "matplotlib.figure", "matplotlib.patches"}:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails now
    results, _ = launch(project)
    assert len(results) > 5
    assert {result.state for result in results.values()} == {"built"}
    items = find_items(project.registry, root=project.root)
    report = cache_report(project.registry, items, root=project.root, history=History(source="none"))
    drawings = draw_report(project.registry, report)
    with pytest.raises(ImportError, match="matplotlib"):
        render_page(report, drawings, now=0.0)
    project.edit("[tokenizer]", "[dagster]\nplots = true\n[tokenizer]")
    assert launch(project, only=["tokenizer"], force=True)[0]["tokenizer"].state == "failed", "a PNG is asked for"


def test_a_threshold_makes_stale_what_it_changes_and_nothing_else(built: Project) -> None:
    partitions = [(META, name) for name in ("notes", "books", "letters")]
    assert {built.status(*each) for each in partitions} == {"FRESH"}

    built.edit("threshold = 0.85", "threshold = 0.99")  # the near duplicate stays now
    assert built.status(NAMES.duplicates) == "STALE"
    assert {built.status(NAMES.documents, name) for name in ("books", "letters")} == {"FRESH"}
    assert built.run("find_duplicates").success
    for name in ("books", "letters"):
        assert built.run("report_corpus", name).success
    assert {name: built.status(key, name) for key, name in partitions} == {"notes": "FRESH", "books": "FRESH", "letters": "STALE"}
    states = {name: state_in(metadata(materializations(built.build(name))["pretrain/meta_json"])) for name in ("books", "letters")}
    assert states == {"books": "cache_hit", "letters": "built"}
    assert {built.status(*each) for each in partitions} == {"FRESH"}


def test_what_is_implausible_is_a_warning(project: Project) -> None:
    configure(project, more="[cleaning]\nmax_reason_share = 0.1\n")
    found = checks(project.run("build_corpus", "books"))
    assert (found[REASONS_PLAUSIBLE].passed, found[REASONS_PLAUSIBLE].severity) == (False, WARN)
    assert missing(found[REASONS_PLAUSIBLE].description, "too_short", "20.0%") == []
    assert found[LANGUAGE_PLAUSIBLE].passed, "nobody was asked"
    text = project.folder / "niels_cache.toml"
    text.write_text(text.read_text().replace('"not_english", ', "").replace("max_reason_share = 0.1", 'languages = ["de"]'))
    for book in (project.folder / "books").iterdir():
        book.write_text("Der Hund und die Katze gehen am Abend durch den Wald nach Hause. " * 3 if book.stem == "0" else book.read_text())
    found = checks(project.run("build_corpus", "books"))
    check = found[LANGUAGE_PLAUSIBLE]
    assert (check.passed, check.severity, check.metadata["min_language_share"].value) == (False, WARN, 0.5)
    assert missing(check.description, "25.0%", " de") == []


def test_a_corpus_of_which_duplicates_leave_nothing_is_an_error_that_blocks(project: Project) -> None:
    book = (project.folder / "books" / "0.txt").read_text(encoding="utf-8")
    write_letters(project, [book, book.upper()])
    for name in ("books", "letters"):
        assert project.run("build_corpus", name).success
    assert project.run("find_duplicates").success
    reported = project.run("report_corpus", "letters")
    check = checks(reported)[NOT_EMPTY]
    assert (check.passed, check.severity, check.blocking) == (False, ERROR, True)
    assert missing(check.description, "no document", "exact_duplicate 2") == []
    assert not reported.success


@pytest.mark.parametrize(("settings", "passed"), [("", False), ('decontaminate = "near"\n', True)])
def test_splits_that_share_documents_are_found_once_by_the_build(
    built_project: Built, tmp_path: Path, settings: str, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = built_project.project.copied(tmp_path)
    texts = sentences(6, words=120)
    for number, text in enumerate([*texts, *map(changed, texts), *texts]):
        (project.folder / "books" / f"more{number:02}.txt").write_text(text, encoding="utf-8")
    project.configure(extra=f"val_frac = 0.3\n{settings}")
    built = project.build("books")
    assert built.success
    check = checks(built)[SPLITS_DISJOINT]
    assert (check.passed, check.metadata["near"].value > 0) == (passed, not passed)
    assert (check.metadata["exact"].value > 0) == (not passed)
    if not passed:
        assert check.severity == WARN
        assert rows(check.metadata["pairs"].value)[0]["train"].startswith("more")
    with monkeypatch.context() as patch:
        for module in ("facts.disjoint", "inspection.splits"):
            patch.delattr(f"niels_cache_assets.{module}.compare_splits")
        hit = checks(project.build("books"))[SPLITS_DISJOINT]
        assert (hit.passed, hit.description) == (check.passed, check.description)
    if not passed:  # the record is of another threshold
        project.configure(extra="val_frac = 0.3\ndecontaminate_threshold = 0.9999\n")
        assert checks(project.build("books"))[SPLITS_DISJOINT].metadata["near"].value == 0
