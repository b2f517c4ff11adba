"""reports/mixture and reports/cache as assets, and what the history of a Dagster home adds to a report."""

import json
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.cli import main
from niels_cache_assets.defs.assets.reports import NOT_TOO_OFTEN
from niels_cache_assets.defs.home.history import history_at_home, history_of
from niels_cache_assets.defs.home.instance import HOME_VARIABLE, ensure_instance
from niels_cache_assets.defs.keys import CACHE_REPORT, META_KEYS, MIXTURE, UPSTREAM_KEYS
from niels_cache_assets.show.reports.cache import CacheReport, cache_report, find_items
from niels_cache_runtime import read_meta
from tests.built_project import Built
from tests.dagster_tools import Project, checks, data_versions, materializations, metadata
from tests.messages import missing

REPORTS = """
[blend.mix]
weights = { notes = 3, books = 1 }
sequence_length = 16
num_samples = 4000
"""


@pytest.fixture
def project(built_project: Built, tmp_path: Path) -> Project:
    project = built_project.project.copied(tmp_path / "project")
    project.configure(extra=REPORTS)
    return project


def make(project: Project, key: dg.AssetKey) -> dg.ExecuteInProcessResult:
    job = project.defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(instance=project.instance, asset_selection=[key], raise_on_error=False)


def told(run: dg.ExecuteInProcessResult, key: dg.AssetKey) -> dict[str, Any]:
    op = "__".join(key.path)
    return metadata(materializations(run, op)[key.to_user_string()])


def report_of(project: Project, root: Path | None = None) -> CacheReport:
    registry, root = project.registry, root or project.root
    items = find_items(registry, root=root)
    return cache_report(registry, items, root=root, history=history_of(project.instance, registry, items, root=root))


def test_the_mixture_shows_a_table_and_warns_by_a_check_of_its_own(project: Project) -> None:
    run = make(project, MIXTURE)
    assert run.success
    found = told(run, MIXTURE)
    cells = [line.strip("| ").split(" | ") for line in found["report"].splitlines() if line.startswith("| ")][2:]
    assert {each[0]: each[3] for each in cells} == {"notes": "75.00%", "books": "25.00%"}
    epochs = [float(each[-1]) for each in cells]
    assert min(epochs) > 4
    assert (found["warnings"], found["most_epochs"]) == (2, pytest.approx(max(epochs), abs=0.01))
    assert "| data set |" in found["report"]
    assert "data:image" not in found["report"]  # [dagster] plots = false
    result = checks(run)[NOT_TOO_OFTEN]
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert missing(result.description, "mix: notes", "max_epochs") == []
    assert data_versions(make(project, MIXTURE), "reports__mixture") == data_versions(run, "reports__mixture")


def test_the_cache_report_is_markdown_in_dagster_and_a_page_in_the_root(project: Project) -> None:
    before = {path: path.stat().st_mtime_ns for path in project.root.rglob("*") if path.is_file() and "reports" not in path.parts}
    run = make(project, CACHE_REPORT)
    assert run.success
    found = told(run, CACHE_REPORT)
    page = project.root / "reports/cache.html"
    assert found["page"] == str(page)
    assert found["contents"].startswith("4 of 4 folders complete, ")
    assert int(found["checks"].split(" passed")[0].split()[-1]) >= 10
    assert "| notes | pretrain | complete |" in found["report"]
    assert "<title>" in page.read_text(encoding="utf-8")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert data_versions(make(project, CACHE_REPORT), "reports__cache") == data_versions(run, "reports__cache")
    project.configure(extra=REPORTS.replace("4000", "4001"))
    assert data_versions(make(project, CACHE_REPORT), "reports__cache") != data_versions(run, "reports__cache")


def test_plots_are_drawn_where_they_are_wanted(project: Project) -> None:
    project.edit("plots = false", "plots = true")
    assert told(make(project, MIXTURE), MIXTURE)["report"].count("](data:image/png;base64,") == 1


def test_reports_depend_on_what_they_tell_of_and_settings_make_them_stale(project: Project) -> None:
    graph = project.defs.resolve_asset_graph()
    assert graph.get(MIXTURE).parent_keys == {META_KEYS["pretrain"]}
    assert {key.to_user_string() for key in graph.get(CACHE_REPORT).parent_keys} == {
        "tokenizer",
        "pretrain/meta_json",
        "sft/meta_json",
        "index/gpt",
    }
    for extra in (REPORTS + "\n[reports]\nmax_epochs = 9\n", REPORTS.replace("4000", "4001")):
        project.configure(extra=extra)
        changed = project.defs.resolve_asset_graph()
        for key in (MIXTURE, CACHE_REPORT):
            assert changed.get(key).code_version != graph.get(key).code_version


def test_checks_and_revisions_are_those_of_what_lies_here_now(project: Project, tmp_path: Path) -> None:
    notes = project.root / "pretrain/notes"
    revision = read_meta(str(notes / "meta.json"))["dataset_revision"]
    for seen in (revision, "later"):
        project.instance.report_runless_asset_event(
            dg.AssetObservation(UPSTREAM_KEYS["pretrain"], partition="notes", metadata={"revision": seen})
        )
    report = report_of(project)
    recorded = report.history.of(notes)
    assert {check.name for check in recorded.checks} == {
        "files_match_meta",
        "invariants_hold",
        "tokenizer_is_current",
        "splits_disjoint",
        "budgets_met",
    }
    assert {check.outcome for check in recorded.checks} == {"passed"}
    assert recorded.newest_revision == "later"
    assert [check.name for check in report.history.checks] == ["caches_in_sync (pretrain)", "caches_in_sync (sft)"]
    assert any(notice.name == "notes" and missing(notice.text, "upstream", "at later") == [] for notice in report.notices)
    assert {check.name for check in report.history.of(project.root / "tokenizer").checks} == {
        "special_tokens_are_one_id_each",
        "text_survives_a_round_trip",
    }

    moved = tmp_path / "moved"
    shutil.copytree(project.root, moved)
    elsewhere = report_of(project, moved)
    assert elsewhere.history.of(moved / "pretrain/notes").checks == ()
    assert elsewhere.history.checks == ()


def test_a_damaged_database_is_one_line_and_no_history(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    with ensure_instance(home):
        pass
    databases = [*home.rglob("*.db")]
    assert databases
    for database in databases:
        database.write_bytes(b"not a database" * 100)
    items = find_items(project.registry, root=project.root)
    source = history_at_home(project.registry, items, root=project.root).source
    assert missing(source, "none: ", str(home), "DatabaseError: ") == []
    assert "\n" not in source


def test_the_command_finds_the_history_of_its_dagster_home(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    project = Project(tmp_path / "project", tiny_model)
    with ensure_instance(tmp_path / "home") as project.instance:
        assert project.build_tokenizer().success
    command = ["report", "--config", str(project.folder / "niels_cache.toml"), "--cache-dir", str(project.root), "--json"]
    assert main([*command, "--profile", "quickstart"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert missing(found["history"], "recorded", str(tmp_path / "home")) == []
    tokenizer = found["items"][0]
    assert (tokenizer["name"], {check["outcome"] for check in tokenizer["checks"]}) == ("tokenizer", {"passed"})

    (tmp_path / "home/dagster.yaml").write_text("storage: [", encoding="utf-8")
    assert main([*command, "--profile", "quickstart"]) == 0
    assert "not valid" in json.loads(capsys.readouterr().out)["history"]
