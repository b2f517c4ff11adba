"""Files of earlier commits work with the code of today. They are caches, unfinished builds, states of loaders, and Dagster homes.

The commit in its name made each folder tests/upgrades/YYYY-MM-DD-HASH. tests/upgrades/make.py describes how, and the content. With each
release, and before the first change of written files in an issue, a new folder is added. No folder is ever made again or removed. The tests
name no kind of source. made.json has the code versions on which each thing depends, and a thing must be stale if one of these versions has
risen since. The kinds `steady` and `steady_chats` are of the fixtures alone, so there is always something that must still be good. If a
test fails here, either bytes that people have were invalidated, or a code version was not raised.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.artifacts.builds import build_dataset, prepare_corpus
from niels_cache_assets.artifacts.index import plan_of, prebuild
from niels_cache_assets.build_cache import resuming
from niels_cache_assets.cli import main
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_runtime import DatasetLoader, TokenLoader, open_cache
from tests.test_cache_determinism import digests
from tests.upgrades import make

FOLDERS = sorted(path.parent for path in Path(make.__file__).parent.glob(f"*/{make.MADE}"))
REBUILT = ("prepared", "chats")  # by build-all; all of them would take a minute


@dataclass(frozen=True)
class Release:
    """The files of one commit, unpacked, as it left them: to be read here, and copied where they are built upon."""

    folder: Path
    project: Path
    made: dict[str, Any]

    @property
    def config(self) -> str:
        return str(self.project / "niels_cache.toml")

    @property
    def cache(self) -> Path:
        return self.project / "cache"

    @property
    def registry(self) -> Registry:
        return make.read_registry(self.project)

    @property
    def changed(self) -> set[str]:
        """Return the code versions that have changed or are new."""
        now, then = make.code_versions(self.registry), self.made["code_versions"]
        return {name for name in now.keys() | then.keys() if now.get(name) != then.get(name)}

    def is_good(self, path: str, recorded: list[str]) -> bool:
        """Whether what this folder of a root holds is still what a build would make. `recorded`: the code versions that it needed then."""
        return self.changed.isdisjoint(recorded) and self.changed.isdisjoint(make.needs(self.registry, path))

    def copied(self, folder: Path) -> Release:
        return Release(self.folder, Path(shutil.copytree(self.project, folder / "project")), self.made)


@pytest.fixture(scope="module")
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    folder: Path = request.param
    target = tmp_path_factory.mktemp(folder.name)
    with tarfile.open(folder / make.FILES) as archive:
        archive.extractall(target, filter="data")
    with make.steady_kinds():
        yield Release(folder, target / "project", made_by(folder))


@pytest.fixture
def same_environment(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries and the Python of then: another one ends an unfinished build, and that is no matter of ours."""
    monkeypatch.setattr(resuming, "_version", release.made["libraries"].get)
    monkeypatch.setattr(resuming.platform, "python_version", lambda: release.made["python"])


def made_by(folder: Path) -> dict[str, Any]:
    """made.json of a folder."""
    made: dict[str, Any] = json.loads((folder / make.MADE).read_text(encoding="utf-8"))
    return made


JOURNALS = [(folder, name) for folder in FOLDERS for name in made_by(folder)["journals"]]
each_journal = pytest.mark.parametrize(
    ("release", "name"), JOURNALS, indirect=["release"], ids=[f"{folder.name}-{name}" for folder, name in JOURNALS]
)
each_release = pytest.mark.parametrize("release", FOLDERS, indirect=True, ids=lambda folder: folder.name)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Exit code and JSON of a command."""
    capsys.readouterr()
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def conditions(capsys: pytest.CaptureFixture[str], release: Release) -> dict[str, dict[str, Any]]:
    """Return the status of each folder of the cache, by its path in the cache."""
    _, said = told(capsys, "status", "--all", "--config", release.config)
    return {Path(entry["directory"]).relative_to(release.cache).as_posix(): entry for entry in said["data_sets"]}


def test_there_is_a_release_and_each_is_small() -> None:
    assert FOLDERS
    assert len(JOURNALS) >= 7 * len(FOLDERS)
    for folder in FOLDERS:
        assert {path.name for path in folder.iterdir()} == {make.MADE, make.STATES, make.FILES}
        assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000


@each_release
def test_no_file_names_a_folder_of_the_machine_that_made_it(release: Release) -> None:
    files = [path for folder in (release.folder, release.project) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 150
    contents = [(path, path.read_bytes()) for path in files]
    assert sum(bytes(make.WORKSHOP) in content for _, content in contents) > 10  # whose paths are there to be found
    private = tuple(f"/{folder}/".encode() for folder in ("root", "home", "work", "Users"))
    assert [(path.name, folder) for path, content in contents for folder in private if folder in content] == []


@each_release
def test_code_versions_only_rise_and_those_of_the_fixtures_never_do(release: Release) -> None:
    now, then = make.code_versions(release.registry), release.made["code_versions"]
    assert {"pretrain", "sft", "corpus", "tokenizer", "source of letters", "source of mixture"} <= now.keys() & then.keys()
    assert [name for name in now.keys() & then.keys() if int(now[name]) < int(then[name])] == []
    steady = {f"source of {name}" for name in ("steady", "prepared", "killed", "steady_chats")}
    assert steady <= then.keys()
    assert release.changed.isdisjoint(steady)


@each_release
def test_caches_of_then_open_and_verify(release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told(capsys, "verify", "--config", release.config)
    assert (code, said["findings"]) == (0, [])
    assert release.made["caches"].keys() <= set(said["folders"])
    assert len(said["folders"]) - len(release.made["caches"]) == 3  # the indices
    root, opened = open_cache(release.cache), 0
    for path, recorded in release.made["caches"].items():
        family, _, name = path.partition("/")
        if family in ("pretrain", "sft") and recorded["built"]:
            cache = (root.pretrain if family == "pretrain" else root.sft)[name]
            assert cache.meta["content_sha256"] == recorded["content_sha256"]
            assert len(cache.train[0]) > 1
            assert len(cache.val[0]) > 1
            opened += 1
    assert opened >= 13


@each_release
def test_status_calls_caches_of_then_complete_unless_a_code_version_rose(release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    said = conditions(capsys, release)
    good = 0
    for path, cache in release.made["caches"].items():
        expected = "off" if not cache["built"] else "complete" if release.is_good(path, cache["needs"]) else "stale"
        assert (path, said[path]["condition"]) == (path, expected)
        assert expected != "stale" or said[path]["advice"]
        good += expected == "complete"
    assert good >= 3 or release.changed & {"tokenizer", "pretrain", "sft", "corpus"}


@each_release
def test_an_index_of_then_is_found_unless_its_version_rose(release: Release, tmp_path: Path) -> None:
    copy = release.copied(tmp_path)
    outcome = prebuild(plan_of(copy.registry, "pair", root=copy.cache), root=copy.cache)
    assert outcome.state == ("built" if "index" in release.changed else "cache_hit")


@each_release
def test_loaders_go_on_from_states_of_then(release: Release) -> None:
    states = json.loads((release.folder / make.STATES).read_text(encoding="utf-8"))
    assert {state["kind"] for state in states} == {"TokenLoader", "DatasetLoader"}
    loader: TokenLoader | DatasetLoader
    for saved in states:
        if saved["kind"] == "TokenLoader":
            sources = {name: str(release.cache / folder) for name, folder in saved["sources"].items()}
            loader = TokenLoader.from_state(saved["state"], sources, **saved["changes"])
        else:
            loader = DatasetLoader(dataset_dir=str(release.cache / saved["folder"]), **saved["arguments"])
            loader.load_state_dict(saved["state"])
        assert len(set(saved["next"])) > 1, saved["name"]
        assert make.next_batches(loader, len(saved["next"])) == saved["next"], saved["name"]


@each_journal
@pytest.mark.usefixtures("same_environment")
def test_an_unfinished_build_of_then_goes_on_unless_a_code_version_rose(release: Release, name: str, tmp_path: Path) -> None:
    """It ends in the bytes of a build that was never stopped: of today's code, and if it goes on, of then."""
    goes_on, registry, short = release.is_good(name, release.made["journals"][name]), release.registry, Path(name).name
    root, whole = Path(shutil.copytree(release.project / "unfinished", tmp_path / "root")), tmp_path / "whole"
    shutil.copytree(root / "tokenizer", whole / "tokenizer")

    def build(root: Path, log: list[str]) -> dict[str, str]:
        if name.startswith("corpus/"):
            with make.small_pieces():
                return digests(prepare_corpus(registry, short, root=root, processes=1, log=log.append).directory)
        return digests(build_dataset(registry, short, root=root, log=log.append).directory)

    log: list[str] = []
    built = build(root, log)
    assert any(line.startswith(f"resuming {short}") for line in log) == goes_on, log
    assert any(line.startswith("starting afresh: ") for line in log) != goes_on, log
    assert built == build(whole, [])
    if goes_on and not name.startswith("corpus/"):
        meta = finished_meta(root / name)
        assert meta is not None
        assert meta["content_sha256"] == release.made["caches"][name]["content_sha256"]


@each_journal
@pytest.mark.usefixtures("same_environment")
def test_status_calls_an_unfinished_build_of_then_resumable_or_stale(
    release: Release, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = name if name.startswith("corpus/") else Path(name).name
    monkeypatch.setenv("COLUMNS", "400")
    capsys.readouterr()
    main(["status", Path(name).name, "--config", release.config, "--cache-dir", str(release.project / "unfinished")])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == [shown]]
    goes_on = release.is_good(name, release.made["journals"][name])
    assert ("resumable" in line, "stale" in line) == (goes_on, not goes_on)


@each_release
def test_a_dagster_home_of_then_opens_with_its_runs_and_materializations(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = release.copied(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(copy.project / ".dagster"))
    recorded = release.made["dagster"]
    with ensure_instance() as instance:
        runs = [[run.job_name, run.tags.get("dagster/partition"), run.status.value] for run in reversed(instance.get_runs())]
        assert runs == recorded["runs"]
        assert [job for job, _, status in runs if status == "STARTED"] == ["build_pretrain"]
        for family, partitions in recorded["materialized"].items():
            key = dg.AssetKey([family, "meta_json"])
            assert instance.get_materialized_partitions(key) == set(partitions)
            for record in instance.fetch_materializations(key, limit=100).records:
                assert record.asset_materialization is not None
                assert {"state", "dataset_revision"} <= record.asset_materialization.metadata.keys()
    code, said = told(capsys, "verify", "--config", copy.config, "--against-dagster")
    assert (code, said["findings"]) == (0, [])
    assert release.made["caches"].keys() <= set(said["folders"])


@pytest.mark.slow
@each_release
@pytest.mark.usefixtures("same_environment")
def test_build_all_on_a_dagster_home_of_then_finds_hits_and_ends_the_run_that_was_killed(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = release.copied(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(copy.project / ".dagster"))
    ((killed_path, needed),), caches = release.made["killed"].items(), release.made["caches"]
    killed = Path(killed_path).name
    capsys.readouterr()
    code = main(["build-all", "--config", copy.config, "--json", "--only", *REBUILT, killed])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    results = {result["name"]: result["state"] for result in json.loads(printed.out)["results"]}
    for name in REBUILT:
        (path,) = [path for path in caches if path in (f"pretrain/{name}", f"sft/{name}")]
        wanted = {"cache_hit"} if release.is_good(path, caches[path]["needs"]) else {"built"}
        if "corpus" in caches[path]["needs"] and "corpus" in release.changed:
            wanted.add("cache_hit")  # the corpus was made again, and has the same documents
        assert (name, results[name] in wanted) == (name, True)
    assert results[killed] == "built"
    assert (f"{killed}: resuming {killed}" in printed.err) == release.is_good(killed_path, needed)
    with ensure_instance() as instance:
        assert instance.get_runs_count(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])) == 0
        assert instance.get_runs_count() > len(release.made["dagster"]["runs"]) + len(REBUILT)
        assert killed in instance.get_materialized_partitions(dg.AssetKey(["pretrain", "meta_json"]))
    assert told(capsys, "verify", "--config", copy.config, "--against-dagster")[1]["findings"] == []
    said = conditions(capsys, copy)
    assert {name for name, entry in said.items() if Path(name).name in (*REBUILT, killed) and entry["condition"] != "complete"} == set()
