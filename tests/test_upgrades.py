"""Caches, unfinished builds, loader states, publications and Dagster homes of earlier versions work with the code of today.

tests/upgrades/make.py makes the files and describes them. A failure here means that a release would invalidate what people have. A cache
that is not a hit is built again from the start, which may be terabytes: either the change must not reach the fingerprint, or a code version
rises knowingly, and CHANGELOG.md says so.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.cli import main
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.launcher import launch_builds
from niels_cache_runtime.verify import verify_cache
from tests.build_cache.test_determinism import digests
from tests.helpers.launches import Recorder, states
from tests.upgrades import make

FOLDERS = sorted(path.parent for path in make.HERE.glob(f"*/{make.FACTS}"))
PROJECTS = (make.PLAIN, make.WIDE)

pytestmark = [
    pytest.mark.skipif(not FOLDERS, reason="there has been no release: tests/upgrades has no folder of a version"),
    pytest.mark.usefixtures("short_proofs"),
]


@dataclass(frozen=True)
class Release:
    """The unpacked files of a version, which a test copies before it builds on them. `facts`: what they held."""

    files: Path
    facts: dict[str, Any]

    @property
    def has_same_parquet(self) -> bool:
        """Whether Parquet files have the bytes of then, and with them corpora and the fingerprints of what is built from corpora."""
        return self.facts["libraries"]["pyarrow"] == metadata.version("pyarrow")

    def changed(self, project: str, metas: dict[str, Mapping[str, Any]]) -> dict[str, list[str]]:
        """Return for each artifact the entries of its record that differ from those of then."""
        then = make.recorded(self.facts["records"][project], every=self.has_same_parquet)
        now = make.recorded(metas, every=self.has_same_parquet)
        return {
            key: names for key in then.keys() & metas if (names := [name for name in then[key] if now[key].get(name) != then[key][name]])
        }


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    files = tmp_path_factory.mktemp("release")
    for name in (make.FILES, make.HOME):
        with tarfile.open(request.param / name) as archive:
            archive.extractall(files, filter="data")
    facts = json.loads((request.param / make.FACTS).read_text(encoding="utf-8"))
    assert facts["loaders"].keys() <= make.LOADERS.keys(), "a loader is opened no more"
    assert facts["journals"].keys() <= make.STOPPED.keys(), "a stopped build is opened no more"
    with make.small_pieces(), make.environment_of(facts):
        yield Release(files, facts)


def test_the_files_are_small_and_name_no_folder_of_a_machine(release: Release) -> None:
    for folder in FOLDERS:
        assert {path.name for path in folder.iterdir()} == {make.FACTS, make.FILES, make.HOME}
        assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    contents = {path.relative_to(release.files).as_posix(): path.read_bytes() for path in release.files.rglob("*") if path.is_file()}
    assert len(contents) > 500
    private = [f"/{name}/".encode() for name in ("root", "home", "work", "tmp", "shm", "Users")]
    assert [path for path, content in contents.items() if any(each in content for each in private)] == []


@pytest.mark.parametrize("project", PROJECTS)
def test_caches_verify_and_nothing_is_built_again(release: Release, project: str, tmp_path: Path) -> None:
    """A hit shows that fingerprints, code versions and the files of leases, plans and records are still understood."""
    root = Path(shutil.copytree(release.files / project, tmp_path / "project")) / "cache"
    assert verify_cache(root) == []
    before, recorded = digests(root), release.facts["records"][project]
    found = make.opened(root.parent)
    keys = [key for key in found.order() if key in recorded or key.startswith("index/")]
    assert {key.partition("/")[0] for key in keys} >= {"tokenizer", "corpus", "pretrain", "sft", "plan", "part"} | (
        {"report", "index"} if project == make.PLAIN else set()
    )
    outcomes = {key: materialize(found[key]) for key in keys}
    assert {key for key, outcome in outcomes.items() if outcome.state != "cache_hit"} == set()
    assert release.changed(project, {key: outcome.meta for key, outcome in outcomes.items()}) == {}
    assert digests(root) == before


@pytest.mark.parametrize("project", PROJECTS)
def test_status_calls_caches_complete(release: Release, project: str) -> None:
    found = {state.name: state.condition for state in make.opened(release.files / project).states()}
    assert {name for name, condition in found.items() if condition != "complete"} == found.keys() & set(make.LEFT_OUT)
    assert len(found) > 5


@pytest.mark.parametrize("stage", make.STOPPED)
def test_a_stopped_build_goes_on_to_the_bytes_of_one_that_was_not_stopped(release: Release, stage: str, tmp_path: Path) -> None:
    project, stopped, names, _ = make.STOPPED[stage]
    root = Path(shutil.copytree(make.stopped_root(release.files, stage), tmp_path / "root"))
    found, recorded = (
        make.opened(release.files / project, root),
        release.facts["journals"].get(stage) or pytest.skip("this version had no such build"),
    )
    assert make.journal_of(release.files, stage) == recorded
    keys = found.order(names)
    log: list[str] = []
    outcomes = {
        key: materialize(found[key], log=log.append if key == stopped else lambda line: None) for key in keys if not found.is_done(key)
    }
    assert {key for key in itertools.takewhile(lambda each: each != stopped, outcomes) if outcomes[key].state != "cache_hit"} == set()
    assert [line for line in log if line.startswith("resuming")], log
    assert outcomes[stopped].resumed > 0 or recorded["documents"] is None  # a search for duplicates has none
    assert release.changed(project, {key: outcome.meta for key, outcome in outcomes.items()}) == {}


@pytest.mark.parametrize("name", make.LOADERS)
@pytest.mark.filterwarnings("ignore:.*no assistant target|.*dropped|.*longer:UserWarning")
def test_a_loader_gives_the_same_batches_and_resumes_its_state(release: Release, name: str, tmp_path: Path) -> None:
    facts = release.facts["loaders"].get(name) or pytest.skip("this version had no such loader")
    assert len({*facts["before"], *facts["next"]}) >= 2 * make.BATCHES
    assert make.run_loader(release.files, name, tmp_path) == facts
    assert make.next_batches(make.resume_loader(release.files, name, tmp_path, facts["state"])) == facts["next"]


def test_samplers_give_the_same_batches(release: Release) -> None:
    assert make.sampled(release.files) == release.facts["samplers"]
    facts, loader = release.facts["sequential"], make.open_sequential(release.files)
    loader.load_state_dict(facts["state"])
    assert make.sequential_batches(loader) == facts["next"]


def test_trace_finds_the_documents_of_a_batch(release: Release, tmp_path: Path) -> None:
    assert make.traced(release.files, release.facts["loaders"][make.TRACED]["state"], tmp_path) == release.facts["trace"]


def test_a_published_cache_is_pulled(release: Release, tmp_path: Path) -> None:
    address = f"file://{release.files / make.PUBLISHED}"
    assert main(["verify", address]) == 0
    assert main(["pull", address, "--out", str(tmp_path)]) == 0
    cache = release.files / make.PLAIN / "cache"
    assert digests(tmp_path / "pretrain/letters") == digests(cache / "pretrain/letters")
    assert digests(tmp_path / "tokenizer") == digests(cache / "tokenizer")


@pytest.mark.usefixtures("no_drawing")
def test_a_dagster_home_shows_its_runs_and_records_new_ones(release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Path(shutil.copytree(release.files / make.PLAIN, tmp_path / "project"))
    monkeypatch.setenv("DAGSTER_HOME", str(project / ".dagster"))
    assert make.home_facts(project / ".dagster") == release.facts["home"]
    registry, root = make.opened(project).registry, project / "cache"
    results = {result.name: result for result in launch_builds(registry, root=root, only=["letters", "fresh"], listener=Recorder())}
    assert states(results).items() >= {"tokenizer": "cache_hit", "letters": "cache_hit", "fresh": "built"}.items()
    with ensure_instance() as instance:
        assert instance.get_runs_count() > len(release.facts["home"]["runs"])
        assert instance.get_materialized_partitions(dg.AssetKey(["pretrain", "meta_json"])) >= {"letters", "grown", "fresh"}
    assert main(["verify", "--config", str(project / "niels_cache.toml"), "--against-dagster"]) == 0
