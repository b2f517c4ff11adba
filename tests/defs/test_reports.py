"""The assets reports/mixture, reports/cache, index/gpt and published/*: their partitions, what a run makes, and what makes them stale."""

import json
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.cli import main
from niels_cache_assets.defs.assets.reports import NOT_TOO_OFTEN
from niels_cache_assets.defs.home.history import history_of
from niels_cache_assets.defs.home.instance import HOME_VARIABLE, ensure_instance
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.publish.check import check
from niels_cache_assets.reports.cache import CacheReport, cache_report, find_items
from niels_cache_runtime import read_meta
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.megatron import IndexCache, open_blend
from niels_cache_runtime.remote.record import read_record
from niels_cache_runtime.remote.store import open_store
from tests.helpers.built_project import Built
from tests.helpers.dagster_tools import Project, checks, data_versions, failure, materializations, metadata, rows, state_in
from tests.helpers.messages import missing
from tests.helpers.names import NAMES
from tests.helpers.tiny import sentences

REPORTS = """
[blend.mix]
weights = { notes = 3, books = 1 }
sequence_length = 16
num_samples = 4000
"""


@pytest.fixture
def project(built_project: Built, tmp_path: Path) -> Project:
    return built_project.project.copied(tmp_path / "project")


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
    project.configure(extra=REPORTS)
    run = make(project, NAMES.mixture)
    assert run.success
    found = told(run, NAMES.mixture)
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
    assert data_versions(make(project, NAMES.mixture), "reports__mixture") == data_versions(run, "reports__mixture")


def test_the_cache_report_is_markdown_in_dagster_and_a_page_in_the_root(project: Project) -> None:
    project.configure(extra=REPORTS)
    before = {path: path.stat().st_mtime_ns for path in project.root.rglob("*") if path.is_file() and "reports" not in path.parts}
    run = make(project, NAMES.cache_report)
    assert run.success
    found = told(run, NAMES.cache_report)
    page = project.root / "reports/cache.html"
    assert found["page"] == str(page)
    assert found["contents"].startswith("4 of 4 folders complete, ")
    assert int(found["checks"].split(" passed")[0].split()[-1]) >= 10
    assert "| notes | pretrain | complete |" in found["report"]
    assert "<title>" in page.read_text(encoding="utf-8")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert data_versions(make(project, NAMES.cache_report), "reports__cache") == data_versions(run, "reports__cache")
    project.configure(extra=REPORTS.replace("4000", "4001"))
    assert data_versions(make(project, NAMES.cache_report), "reports__cache") != data_versions(run, "reports__cache")


def test_plots_are_drawn_where_they_are_wanted(project: Project) -> None:
    project.configure(extra=REPORTS)
    project.edit("plots = false", "plots = true")
    report = told(make(project, NAMES.mixture), NAMES.mixture)["report"]
    assert report.count("](data:image/png;base64,") == report.count("![mix: ") == 2


def test_reports_depend_on_what_they_tell_of_and_settings_make_them_stale(project: Project) -> None:
    project.configure(extra=REPORTS)
    graph = project.defs.resolve_asset_graph()
    assert graph.get(NAMES.mixture).parent_keys == {NAMES.meta["pretrain"]}
    assert {key.to_user_string() for key in graph.get(NAMES.cache_report).parent_keys} == {
        "tokenizer",
        "pretrain/meta_json",
        "sft/meta_json",
        "index/gpt",
    }
    for extra in (REPORTS + "\n[reports]\nmax_epochs = 9\n", REPORTS.replace("4000", "4001")):
        project.configure(extra=extra)
        changed = project.defs.resolve_asset_graph()
        for key in (NAMES.mixture, NAMES.cache_report):
            assert changed.get(key).code_version != graph.get(key).code_version


def test_checks_and_revisions_are_those_of_what_lies_here_now(project: Project, tmp_path: Path) -> None:
    project.configure(extra=REPORTS)
    notes = project.root / "pretrain/notes"
    revision = read_meta(str(notes / "meta.json"))["dataset_revision"]
    for seen in (revision, "later"):
        project.instance.report_runless_asset_event(
            dg.AssetObservation(NAMES.upstream["pretrain"], partition="notes", metadata={"revision": seen})
        )
    report = report_of(project)
    recorded = report.history.of_folder(notes)
    assert {check.name for check in recorded.checks} == {
        "files_match_meta",
        "invariants_hold",
        "tokenizer_is_current",
        "splits_disjoint",
        "budgets_met",
    }
    assert {check.outcome for check in recorded.checks} == {"passed"}
    assert recorded.newest_revision == "later"
    assert recorded.seconds is not None
    assert 0 <= recorded.seconds < 600
    assert [check.name for check in report.history.checks] == ["caches_in_sync (pretrain)", "caches_in_sync (sft)"]
    assert any(notice.name == "notes" and missing(notice.text, "upstream", "at later") == [] for notice in report.notices)
    assert {check.name for check in report.history.of_folder(project.root / "tokenizer").checks} == {
        "special_tokens_are_one_id_each",
        "text_survives_a_round_trip",
    }

    moved = tmp_path / "moved"
    shutil.copytree(project.root, moved)
    elsewhere = report_of(project, moved)
    assert elsewhere.history.of_folder(moved / "pretrain/notes").checks == ()
    assert elsewhere.history.of_folder(moved / "pretrain/notes").seconds is None
    assert elsewhere.history.checks == ()


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


BLENDS = """
[blend.mix]
weights = { notes = 3, books = 1 }
sequence_length = 16
num_samples = 40

[blend.alone]
weights = { books = 1 }
sequence_length = 16
num_samples = 10
"""
OP = "index__gpt"


def test_a_blend_is_a_partition_below_the_train_shards_of_its_members(project: Project) -> None:
    project.configure(extra=BLENDS)
    graph = project.defs.resolve_asset_graph()
    node = graph.get(NAMES.index)
    assert node.group_name == "index"
    assert node.partitions_def is not None
    assert node.partitions_def.get_partition_keys() == ["mix", "alone"]
    above = {
        name: {
            (key.asset_key.to_user_string(), key.partition_key) for key in graph.get_parents_partitions(NAMES.index, name).parent_partitions
        }
        for name in ("mix", "alone")
    }
    books = ("pretrain/train_shards", "books")
    assert above == {"mix": {("pretrain/train_shards", "notes"), books}, "alone": {books}}
    project.configure()
    assert NAMES.index not in project.defs.resolve_asset_graph().get_all_asset_keys(), "without a blend there is no index"


def test_a_run_builds_what_training_finds_and_only_other_tokens_or_settings_make_it_stale(project: Project) -> None:
    project.configure(extra=BLENDS)
    notes = project.root / "pretrain/notes"
    away = notes.rename(notes.with_name("away"))
    assert "pretrain/notes/train.idx" in failure(project.run("build_index", "mix"))
    away.rename(notes)
    for name in ("mix", "alone"):
        run = project.run("build_index", name)
        assert run.success
    recorded = metadata(materializations(project.run("build_index", "mix"), OP)["index/gpt"])
    assert state_in(recorded) == "cache_hit"
    assert [row["index"] for row in rows(recorded["indices"])] == ["notes", "books", "blend"]
    folders = [path for path in (project.root / "index").iterdir() if path.is_dir()]
    assert len(folders) == 4, "both blends take 11 samples of books: one index"

    blend = open_blend(
        [project.root / "pretrain" / name / "train" for name in ("notes", "books")],
        [3, 1],
        num_samples=40,
        sequence_length=16,
        seed=1234,
        index_cache=IndexCache(project.root / "index"),
    )
    assert len(blend) == recorded["samples"] == 40
    assert sorted(path for path in (project.root / "index").iterdir() if path.is_dir()) == sorted(folders)

    assert (project.status(NAMES.index, "mix"), project.status(NAMES.index, "alone")) == ("FRESH", "FRESH")
    project.write_notes(sentences(61))
    assert project.build("notes").success
    assert (project.status(NAMES.index, "mix"), project.status(NAMES.index, "alone")) == ("STALE", "FRESH")
    rebuilt = project.run("build_index", "mix")
    other = metadata(materializations(rebuilt, OP)["index/gpt"])
    assert state_in(other) == "built"
    assert other["hash"] != recorded["hash"]
    assert project.status(NAMES.index, "mix") == "FRESH"
    project.configure(extra=BLENDS.replace("num_samples = 40", "num_samples = 41"))
    assert project.status(NAMES.index, "mix") == "STALE"


def test_an_index_for_find_becomes_stale_with_its_cache_and_its_settings(project: Project) -> None:
    pytest.importorskip("pydivsufsort")
    project.configure(extra='[find]\nindex = ["notes"]\n')
    recorded = metadata(materializations(project.run("build_suffixes", "notes"), "index__suffixes")["index/suffixes"])
    assert (state_in(recorded), recorded["bytes"] > 4 * 900) == ("built", True)
    assert project.status(NAMES.suffixes, "notes") == "FRESH"
    project.write_notes(sentences(62))
    assert project.build("notes").success
    assert project.status(NAMES.suffixes, "notes") == "STALE"
    assert project.run("build_suffixes", "notes").success
    assert project.status(NAMES.suffixes, "notes") == "FRESH"
    project.configure(extra='[find]\nindex = ["notes"]\nrange_tokens = 100\n')
    assert project.status(NAMES.suffixes, "notes") == "STALE"
    project.configure()
    assert NAMES.suffixes not in project.defs.resolve_asset_graph().get_all_asset_keys()


PRETRAIN, SFT = NAMES.published["pretrain"], NAMES.published["sft"]


def publishing(project: Project) -> str:
    """Configure the project to publish two data sets. Return the address of one of them."""
    pytest.importorskip("obstore", reason="obstore is not installed (the extra remote)")
    address = f"file://{project.folder}/published"
    project.configure(extra=f'[publish]\naddress = "{address}"\ndata_sets = ["notes", "chats"]\n')
    return f"{address}/pretrain/notes"


def test_each_data_set_of_the_table_is_a_partition_below_its_cache(project: Project) -> None:
    assert not {PRETRAIN, SFT} & set(project.defs.resolve_asset_graph().get_all_asset_keys()), "without the table"
    publishing(project)
    graph = project.defs.resolve_asset_graph()
    for key, names, above in ((PRETRAIN, ["notes"], "pretrain/meta_json"), (SFT, ["chats"], "sft/meta_json")):
        node = graph.get(key)
        assert node.partitions_def is not None
        assert node.partitions_def.get_partition_keys() == names
        parents = graph.get_parents_partitions(key, names[0]).parent_partitions
        assert {(each.asset_key.to_user_string(), each.partition_key) for each in parents} == {(above, names[0])}


def test_a_run_publishes_the_cache_and_a_rebuild_makes_it_stale(project: Project) -> None:
    address = publishing(project)
    run = project.run("publish_pretrain", "notes")
    assert run.success
    content = read_record(open_store(address))[0].content_sha256
    (made,) = materializations(run, "published__pretrain").values()
    assert made.tags is not None
    assert made.tags["dagster/data_version"] == content
    assert check(address, download=True).findings == []
    assert project.status(PRETRAIN, "notes") == "FRESH"
    project.build("notes", seed=99)
    assert project.status(PRETRAIN, "notes") == "STALE"
    assert project.run("publish_pretrain", "notes").success
    assert project.status(PRETRAIN, "notes") == "FRESH"
    assert read_record(open_store(address))[0].previous == (content,)


def test_a_wrong_address_or_name_is_refused_without_its_password(tmp_path: Path) -> None:
    for text, keyword in (
        ('address = "s3://user:hidden@bucket/x"', "password"),
        ('address = "s3://bucket"', "prefix"),
        ('address = "s3://bucket/x"\ndata_sets = ["nothing"]', "nothing"),
        ('adress = "s3://bucket/x"', "address"),
    ):
        config = tmp_path / "niels_cache.toml"
        config.write_text(f'[pretrain.notes]\nsource = "text"\nfiles = ["a.txt"]\n[publish]\n{text}\n', encoding="utf-8")
        with pytest.raises(NielsCacheError, match=keyword) as raised:
            load_registry(config=str(config))
        assert "hidden" not in str(raised.value)
