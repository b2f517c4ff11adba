"""What is only found: it is recorded once without a run, as fresh as if a run had built it, and then needs no Dagster at all."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.base.processes import lock_record
from niels_cache_assets.defs import launcher, runs
from niels_cache_assets.defs.home import found as markers
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.launcher import launch_builds
from niels_cache_assets.defs.provenance import FOUND_TAG, POINTER_TAG
from niels_cache_assets.sources.reading.digests import _digest, remember_digests
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.built_project import Built
from tests.helpers.dagster_tools import Project, metadata
from tests.helpers.launches import Recorder, launch, launch_in_memory, states
from tests.helpers.servers import postgres

pytestmark = pytest.mark.usefixtures("no_drawing")
ASSETS = [dg.AssetKey(["pretrain", name]) for name in ("train_shards", "val_shards", "meta_json")]
HEAVY = ("torch", "dagster", "pyarrow", "datasets", "sentencepiece", "tokenizers", "matplotlib")
BUILDERS = ("build_cache.pretrain", "build_cache.sft", "corpus.chunks", "streaming.encode", "tokenizer.training", "plots.drawing")
_LIST_MODULES = """
import sys
from niels_cache_assets.cli import main
code = main(sys.argv[1:])
print("modules:", *sys.modules)
sys.exit(code)
"""


@pytest.fixture
def elsewhere(built_project: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Everything of it is built, and its home, which is in memory, has recorded nothing."""
    project = built_project.project.copied(tmp_path)
    project.instance = dg.DagsterInstance.ephemeral()
    launch_in_memory(project, monkeypatch)
    return project


@pytest.fixture
def here(built_project: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Everything of it is built, and its home, which is in memory, has recorded that."""
    project = built_project.project.copied(tmp_path)
    launch_in_memory(project, monkeypatch)
    return project


def events(instance: dg.DagsterInstance, *keys: dg.AssetKey) -> list[dg.AssetMaterialization]:
    """Return the events of these assets, the oldest first, by asset."""
    found = [record.asset_materialization for key in keys for record in reversed(instance.fetch_materializations(key, limit=50).records)]
    return [event for event in found if event is not None]


def refuse_dagster(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **settings: object) -> None:
        raise AssertionError("Dagster is opened")

    monkeypatch.setattr(runs, "open_runs", refuse)


def interrupt(*arguments: object, **settings: object) -> None:
    raise KeyboardInterrupt


def test_what_is_found_is_as_fresh_as_what_a_run_has_built(
    elsewhere: Project, built_project: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(elsewhere.folder)
    results = launch_builds(elsewhere.registry, root=Path("cache"), listener=Recorder())
    assert {result.state for result in results} == {"cache_hit"}
    assert elsewhere.instance.get_runs() == []
    assert [elsewhere.status(key, "notes") for key in ASSETS] == ["FRESH"] * 3
    of_runs = events(built_project.project.instance, *ASSETS)
    for event in events(elsewhere.instance, *ASSETS):
        [of_run] = [each for each in of_runs if (each.asset_key, each.partition) == (event.asset_key, event.partition)]
        told, wanted = dict(event.tags or {}), dict(of_run.tags or {})
        assert told.pop(FOUND_TAG) == "build-all"
        assert {tag: value for tag, value in told.items() if not tag.startswith(POINTER_TAG)} == {
            tag: value for tag, value in wanted.items() if not tag.startswith(POINTER_TAG)
        }
        assert told.keys() == wanted.keys()
        assert str(metadata(event)["dagster/uri"]).startswith(elsewhere.root.as_uri())
        assert metadata(of_run).keys() - metadata(event).keys() <= {"seconds", "tokens_per_second", "encoded_by"}, "of a build alone"
        assert metadata(event).keys() <= metadata(of_run).keys()
    assert str(metadata(events(elsewhere.instance, ASSETS[2])[0])["state"]).startswith("hit")
    elsewhere.build("books")
    assert elsewhere.status(ASSETS[0], "notes") == "FRESH"
    elsewhere.import_other_tokenizer()
    assert elsewhere.build_tokenizer().success
    assert [elsewhere.status(key, "notes") for key in ASSETS] == ["STALE"] * 3


def test_what_is_recorded_needs_no_dagster_until_something_is_new(elsewhere: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(elsewhere)
    before = len(events(elsewhere.instance, *ASSETS))
    with monkeypatch.context() as patch:
        refuse_dagster(patch)
        assert set(states(launch(elsewhere)[0]).values()) == {"cache_hit"}
    report = dg.AssetKey(["reports", "cache"])
    elsewhere.instance.wipe_assets([ASSETS[2], report])
    launch(elsewhere)
    assert events(elsewhere.instance, ASSETS[2]) == [], "a marker is believed"
    launch_builds(elsewhere.registry, root=elsewhere.root, record=True, listener=Recorder())
    assert {event.partition for event in events(elsewhere.instance, ASSETS[2])} == {"notes", "books"}
    assert len(events(elsewhere.instance, report)) == 1
    launch_builds(elsewhere.registry, root=elsewhere.root, record=True, listener=Recorder())
    assert len(events(elsewhere.instance, *ASSETS)) == before + 4, "the other assets of a cache are recorded with it"


def test_a_run_of_the_ui_leaves_only_the_marker_to_write(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(events(here.instance, *ASSETS))
    launch(here)
    assert len(events(here.instance, *ASSETS)) == before, "runs have recorded everything"
    with monkeypatch.context() as patch:
        refuse_dagster(patch)
        launch(here)
        here.build("notes")
        with pytest.raises(AssertionError):
            launch(here, only=["notes"])
    launch(here)
    assert len(events(here.instance, *ASSETS)) == before + 3


def test_a_marker_counts_for_the_database_that_the_home_has_now(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    home = markers.dagster_home()
    database = home / "history" / "runs.db"
    database.parent.mkdir()
    for change in (lambda: (home / "dagster.yaml").write_text("storage: {}"), database.touch, database.unlink):
        change()
        with monkeypatch.context() as patch:
            refuse_dagster(patch)
            with pytest.raises(AssertionError):
                launch(here)
        launch(here)
        with monkeypatch.context() as patch:
            refuse_dagster(patch)
            launch(here)


def test_a_build_found_while_upstream_cannot_be_reached_is_looked_for_again(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        find = launcher.find_current
        patch.setattr(launcher, "find_current", lambda *each: (found := find(*each)) and replace(found, kept=True))
        launch(here)
    refuse_dagster(monkeypatch)
    with pytest.raises(AssertionError):
        launch(here)


def test_a_home_that_cannot_be_used_ends_the_launch(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise NielsCacheError("the home is a file")

    monkeypatch.setattr(runs, "open_runs", refuse)
    with pytest.raises(NielsCacheError, match="is a file"):
        launch(here)


def test_a_killed_run_is_ended_though_there_is_nothing_to_build(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(here)
    refuse_dagster(monkeypatch)
    launch(here)
    os.close(lock_record(markers.dagster_home() / markers.RUN_RECORDS / "run"))  # as a process leaves it that is killed
    with pytest.raises(AssertionError):
        launch(here)


def test_a_kill_between_the_event_and_the_marker_loses_nothing(elsewhere: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(marker: markers.Marker) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(markers.Marker, "write", kill)
        with pytest.raises(KeyboardInterrupt):
            launch(elsewhere)
    launch(elsewhere)
    recorded = events(elsewhere.instance, dg.AssetKey("tokenizer"), *ASSETS)
    assert len(recorded) == len({(event.asset_key, event.partition) for event in recorded}) == 7


def test_the_parts_that_another_program_has_built_are_recorded_once(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, tiny_model)
    (project.folder / "more.jsonl").write_text((project.folder / "notes.jsonl").read_text())
    project.edit('files = ["notes.jsonl"]', 'files = ["notes.jsonl", "more.jsonl"]\nparts = 2')
    launch_in_memory(project, monkeypatch)
    artifacts = graph(project.registry, project.root)
    for key in artifacts.order(["notes"]):
        materialize(artifacts[key])
    assert set(states(launch(project, only=["notes"])[0]).values()) == {"cache_hit"}
    assert [project.status(key, "notes") for key in ASSETS] == ["FRESH"] * 3
    parts = dg.AssetKey(["pretrain", "parts"])
    assert [(event.partition, project.status(parts, event.partition)) for event in events(project.instance, parts)] == [
        ("notes/part-00000", "FRESH"),
        ("notes/part-00001", "FRESH"),
    ]
    refuse_dagster(monkeypatch)
    markers._hash_in.cache_clear()
    launch(project, only=["notes"])
    assert markers._hash_in.cache_info().misses == 2, "the tokenizer, and the plan of all parts"


def test_a_check_that_failed_is_executed_again_and_a_hit_executes_none(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = here.root / "pretrain/notes/train/shard_00000.bin"
    good = shard.read_bytes()
    assert states(launch(here, only=["notes"])[0])["notes"] == "cache_hit"
    with monkeypatch.context() as patch:
        patch.setattr(runs.Runs, "build", lambda self, artifact, **settings: (None, "the check failed"))
        assert states(launch(here, only=["notes"], force=True)[0])["notes"] == "failed"
    shard.write_bytes(b"\xff\xff" + good[2:])
    assert not here.build("notes").success  # as a run of the UI
    markers.remove_markers_of(graph(here.registry, here.root), "notes")  # as an observation of upstream does
    for _ in range(2):
        results, _ = launch(here, only=["notes"])
        assert results["notes"].state == "failed"
        assert "files_match_meta" in (results["notes"].message or "")
    with monkeypatch.context() as patch:
        patch.setattr("niels_cache_assets.defs.assets.building.materialize", interrupt)
        with pytest.raises(KeyboardInterrupt):
            launch(here, only=["notes"])
    assert states(launch(here, only=["notes"])[0])["notes"] == "failed"
    shard.write_bytes(good)
    assert states(launch(here, only=["notes"])[0])["notes"] == "cache_hit"
    shard.write_bytes(b"\xff\xff" + good[2:])
    assert states(launch(here, only=["notes"])[0])["notes"] == "cache_hit", "verify reads the content"


@pytest.mark.cluster  # starts a Postgres server
def test_a_home_in_postgres_is_recorded_once(built_project: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = built_project.project.copied(tmp_path / "project")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with postgres(tmp_path) as address:
        (home / "dagster.yaml").write_text(f"storage: {{postgres: {{postgres_url: {address}}}}}\n")
        for _ in range(2):
            assert set(states(launch(project)[0]).values()) == {"cache_hit"}
        with ensure_instance() as instance:
            assert len(events(instance, *ASSETS)) == 6


@pytest.mark.parametrize("command", [["build-all"], ["status"]])
def test_a_hit_imports_nothing_large(elsewhere: Project, command: Sequence[str]) -> None:
    launch(elsewhere)
    options = ["--config", str(elsewhere.folder / "niels_cache.toml"), "--cache-dir", str(elsewhere.root)]
    names = [[], ["--only", *elsewhere.registry.pretrain, *elsewhere.registry.sft]][command == ["build-all"]]
    ended = subprocess.run(
        [sys.executable, "-c", _LIST_MODULES, *command, *names, *options], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    modules = set(ended.stdout.partition("modules:")[2].split())
    assert len(modules) > 100
    assert sorted(modules & {*HEAVY, *(f"niels_cache_assets.{name}" for name in BUILDERS)}) == []


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, file = tmp_path / "digests.json", tmp_path / "notes.txt"
    file.write_text("one")
    monkeypatch.setattr("niels_cache_assets.sources.reading.digests._SETTLED_NS", 0)
    from niels_cache_assets.sources.reading.digests import content_digest

    digests = []
    for change in (lambda: None, lambda: None, lambda: file.write_text("two")):
        change()
        _digest.cache_clear()
        with remember_digests(memory):
            digests.append(content_digest(str(file)))
    assert digests[0] == digests[1] != digests[2]
    [entry] = json.loads(memory.read_text()).values()
    assert entry[-1] == digests[2]
    for shape in ("[1]", "3", json.dumps({str(file): 3})):
        memory.write_text(shape)
        _digest.cache_clear()
        with remember_digests(memory):
            assert content_digest(str(file)) == digests[2]
    memory.write_text(json.dumps({str(file): [*entry[:-1], "remembered"], str(tmp_path / "removed"): entry}))
    _digest.cache_clear()
    with remember_digests(memory):
        assert content_digest(str(file)) == "remembered"
    monkeypatch.setattr("niels_cache_assets.sources.reading.digests._SETTLED_NS", 10**12)
    other = tmp_path / "other.txt"
    other.write_text("one")
    with monkeypatch.context() as patch:
        patch.setattr("niels_cache_assets.sources.reading.digests._SETTLED_NS", 0)
        with remember_digests(memory):
            content_digest(str(other))
    assert json.loads(memory.read_text()).keys() == {str(file), str(other)}
    file.write_text("six")
    with remember_digests(memory):
        content_digest(str(file))
    assert json.loads(memory.read_text())[str(file)][-1] == "remembered", "a file that has just changed is not remembered"
