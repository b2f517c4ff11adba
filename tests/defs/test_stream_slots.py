"""Streams of a Dagster home take turns. A cache hit, or a data set that is switched off, does not wait."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.defs import stream_slots as turns
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.launcher import launch_builds
from niels_cache_assets.defs.stream_slots import stream_limit
from niels_cache_runtime.format.commit import hold_lock
from tests.defs.test_launcher import Recorder, states
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.dagster_tools import Project
from tests.helpers.messages import missing
from tests.helpers.names import NAMES
from tests.helpers.parts_project import build

pytestmark = pytest.mark.usefixtures("no_drawing")
HOLDER = "letters (run 0a1b2c3d)"
PREPARED_AND_OFF = """
val_frac = 0.2
prepare = ["dedup"]
[pretrain.off]
source = "text"
files = ["books/*.txt"]
enabled = false
[build]
threads = 1
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(turns, "_POLL_SECONDS", 0.05)
    return tmp_path / "home"


@pytest.fixture
def project(home: Path, tmp_path: Path, tiny_model: Path) -> Project:
    return Project(tmp_path, tiny_model)


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    with ensure_instance() as opened:
        yield opened


@contextmanager
def taken(home: Path, *places: int) -> Iterator[None]:
    """Another build has these places."""
    (home / ".streams").mkdir(exist_ok=True)
    with ExitStack() as stack:
        for number in places:
            stack.enter_context(hold_lock(home / ".streams" / str(number), doing=HOLDER))
        yield


class NeverWaiting(Recorder):
    def logged(self, name: str, message: str) -> None:
        assert not message.startswith("waiting"), (name, message)


class Freeing(Recorder):
    """Frees the places as soon as something waits for them, after `first`."""

    def __init__(self, places: ExitStack) -> None:
        super().__init__()
        self.places = places
        self.waited: list[tuple[str, str]] = []

    def first(self) -> None:
        pass

    def logged(self, name: str, message: str) -> None:
        if message.startswith("waiting"):
            self.waited.append((name, message))
            self.first()
            self.places.close()


def test_build_all_settles_hits_and_what_is_switched_off_while_another_build_has_the_place(
    project: Project, instance: dg.DagsterInstance, home: Path
) -> None:
    project.configure(extra=PREPARED_AND_OFF)
    found = graph(project.registry, project.root)
    assert {outcome.state for outcome in build(found).values()} == {"built"}
    instance.event_log_storage.set_concurrency_slots(NAMES.stream_pool, 1)
    instance.event_log_storage.claim_concurrency_slot(NAMES.stream_pool, "the run of another program", "step")
    with taken(home, 0):
        results = launch_builds(project.registry, root=project.root, listener=NeverWaiting())
    keys = ("tokenizer", "corpus/books", "corpus/duplicates", "report/books", "notes", "books", "chats")
    assert {result.name: result.state for result in results} == dict.fromkeys(keys, "cache_hit")
    [latest] = instance.fetch_materializations(dg.AssetKey(["pretrain", "meta_json"]), limit=1).records
    assert latest.asset_materialization is not None
    assert str(latest.asset_materialization.metadata["state"].value).startswith("hit (")


def test_no_op_is_in_a_pool_that_is_asked_before_the_op_can_look(project: Project) -> None:
    project.configure(extra=PREPARED_AND_OFF)
    definitions = project.defs.resolve_asset_graph().assets_defs
    ops = {asset.op.name: asset.op.pool for asset in definitions if asset.is_executable and asset.node_def}
    assert {"stream_pretrain_dataset", "stream_sft_dataset", "corpus__documents"} <= ops.keys()
    assert set(ops.values()) == {None}


@pytest.mark.usefixtures("instance")
def test_who_has_waited_looks_again_before_it_builds(project: Project, home: Path) -> None:
    build_tokenizer(project.registry, root=project.root)

    class Building(Freeing):
        def first(self) -> None:
            assert build_dataset(project.registry, "notes", root=project.root).state == "built"

    with ExitStack() as places:
        places.enter_context(taken(home, 0))
        listener = Building(places)
        results = launch_builds(project.registry, root=project.root, only=["notes"], listener=listener)
        assert [(name, HOLDER in message) for name, message in listener.waited] == [("notes", True)]
    assert states({result.name: result for result in results})["notes"] == "cache_hit"


def test_the_limit_is_that_of_the_pool_else_the_default_of_dagster_yaml(project: Project, instance: dg.DagsterInstance, home: Path) -> None:
    assert stream_limit(instance, NAMES.stream_pool) == 1
    instance.event_log_storage.set_concurrency_slots(NAMES.stream_pool, 3)
    assert stream_limit(instance, NAMES.stream_pool) == 3
    with taken(home, 0, 1):
        results = launch_builds(project.registry, root=project.root, only=["notes"], listener=NeverWaiting())
        assert {result.state for result in results} == {"built"}
    instance.event_log_storage.set_concurrency_slots(NAMES.stream_pool, 0)

    class Opening(Freeing):
        def first(self) -> None:
            instance.event_log_storage.set_concurrency_slots(NAMES.stream_pool, 1)

    listener = Opening(ExitStack())
    launch_builds(project.registry, root=project.root, only=["notes"], force=True, listener=listener)
    [(name, reason)] = listener.waited
    assert name == "notes"
    assert missing(reason, f"pool {NAMES.stream_pool}", "limit is 0") == []


@pytest.mark.usefixtures("instance")
def test_a_home_whose_places_cannot_be_locked_builds_without_turns_and_says_so(project: Project, home: Path) -> None:
    (home / ".streams").write_text("no folder")
    listener = Recorder()
    results = launch_builds(project.registry, root=project.root, only=["notes"], listener=listener)
    assert {result.state for result in results} == {"built"}
    assert any(not missing(told, "WARNING: ", "streams", str(home / ".streams")) for told in listener.told)


def test_an_interrupt_ends_a_run_that_waits(project: Project, instance: dg.DagsterInstance, home: Path) -> None:
    class Interrupting(Recorder):
        def logged(self, name: str, message: str) -> None:
            if not missing(message, "waiting", HOLDER):
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

    project.configure(extra=PREPARED_AND_OFF)
    with taken(home, 0), pytest.raises(KeyboardInterrupt):
        launch_builds(project.registry, root=project.root, only=["books"], listener=Interrupting())
    assert [(run.job_name, run.status.value) for run in instance.get_runs(limit=1)] == [("build_corpus", "CANCELED")], (
        "a corpus takes turns too"
    )
    assert not (project.root / "corpus/books").exists()
