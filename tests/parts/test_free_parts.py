"""Several processes build one data set in parts: each takes other parts, and one of them seals."""

import multiprocessing
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.base import BuildJob
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts import free_parts
from niels_cache_assets.defs.launcher import LaunchResult, launch_builds
from niels_cache_assets.parts.lease import LeaseLostError, hold_lease
from niels_cache_assets.project.running import ClusterSettings
from niels_cache_runtime.format.commit import hold_lock
from niels_cache_runtime.verify import verify_cache
from tests.build_cache.test_determinism import digests
from tests.helpers import builds
from tests.helpers.builds import build_dataset
from tests.helpers.launches import Recorder, states
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of

SETTINGS = "val_tokens = 60"


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 2, 30, 14, 7])
    return project


class Held:
    """The lock of a part, held by another thread until `free` is called."""

    def __init__(self, folder: Path) -> None:
        self._ends, begun = threading.Event(), threading.Event()

        def hold() -> None:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with hold_lock(folder):
                begun.set()
                assert self._ends.wait(60)

        self._thread = threading.Thread(target=hold)
        self._thread.start()
        assert begun.wait(60)

    def free(self) -> None:
        self._ends.set()
        self._thread.join()


def test_a_part_that_another_process_builds_comes_last(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    found = project.graph(3, SETTINGS)
    build(found, ["tokenizer"])
    first, *rest = parts_of(found)
    held, order, said = Held(found[first].directory), [], list[str]()

    def recorded(artifact: Any, **settings: Any) -> Any:
        outcome = materialize(artifact, **settings)
        order.append(artifact.key)
        if artifact.key == rest[-1]:
            assert first not in order
            held.free()
        return outcome

    monkeypatch.setattr(builds, "materialize", recorded)
    build_dataset(found.registry, NAME, root=found.root, log=said.append)
    assert order == [f"plan/{NAME}", f"val_part/{NAME}", *rest, first, f"pretrain/{NAME}"]
    assert verify_cache(found.root) == []


def test_a_launch_passes_over_a_part_that_another_process_has_just_begun(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(project.folder / "home"))
    monkeypatch.setattr(free_parts, "lease_owner", lambda target: None)  # so that only the run finds out
    found = project.graph(3)
    first, second, third = parts_of(found)
    held = Held(found[first].directory)

    class Freeing(Recorder):
        def finished(self, result: LaunchResult) -> None:
            super().finished(result)
            if result.name == third:
                held.free()

    listener = Freeing()
    results = {result.name: result for result in launch_builds(found.registry, root=found.root, listener=listener)}
    assert set(states(results).values()) == {"built"}, [result.message for result in results.values()]
    assert list(results)[-4:] == [second, third, first, NAME]
    started = [line for line in listener.told if line.startswith(f"started {first}")]
    assert len(started) >= 2
    assert verify_cache(found.root) == []


class Frozen:
    """A process that has a lease and its locks, and never renews it. Here it is a thread."""

    def __init__(self, folder: Path) -> None:
        self._ends, begun = threading.Event(), threading.Event()

        def hold() -> None:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with hold_lease(folder, times=ClusterSettings(renew_seconds=1200, lease_seconds=3600), wait=False, log=lambda line: None):
                begun.set()
                assert self._ends.wait(60)

        self._thread = threading.Thread(target=hold)
        self._thread.start()
        assert begun.wait(60)

    def wake(self) -> None:
        self._ends.set()
        self._thread.join()


def test_the_part_of_a_frozen_process_is_taken_over(project: PartsProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    found = project.graph(3, build="[cluster]\nat_once = 1\nrenew_seconds = 0.1\nlease_seconds = 1")
    first, *rest = parts_of(found)
    frozen, listener = Frozen(found[first].directory), Recorder()
    try:
        results = launch_builds(found.registry, root=found.root, listener=listener)
    finally:
        frozen.wake()
    assert set(states({result.name: result for result in results}).values()) == {"built"}
    assert any("taking over" in line for line in listener.told)
    assert [result.name for result in results][-4:] == [*rest, first, NAME]
    assert verify_cache(found.root) == []


@pytest.mark.parametrize(
    ("key", "is_checked"), [("tokenizer", True), (f"plan/{NAME}", False), (f"pretrain/{NAME}", True), (f"pretrain/{NAME}", False)]
)
def test_a_process_that_was_overtaken_replaces_neither_tokenizer_nor_plan_nor_seal(
    project: PartsProject, monkeypatch: pytest.MonkeyPatch, key: str, is_checked: bool
) -> None:
    """It was frozen before its last check of the lease, or just after this check."""
    frozen = project.graph(2, SETTINGS, build="[cluster]\nrenew_seconds = 1000\nlease_seconds = 3000")
    build(frozen, frozen.order()[: frozen.order().index(key)])
    found = project.graph(2, SETTINGS, build="[cluster]\nrenew_seconds = 0.1\nlease_seconds = 0.5")
    seen: list[bytes] = []

    def wake_up_late() -> None:
        artifact = frozen[key]
        job = BuildJob(directory=artifact.directory, revision=None, identity={}, force=False, progress=None, log=print)
        with artifact.lock(wait=False, log=print) as held, artifact.stage(replace(job, lease=held.lease)) as staging:
            for name in ("plan.json", "meta.json"):
                (staging / name).write_text("{}")
            outcome = materialize(found[key], wait=True)
            assert outcome.state == "built"
            seen.append(record.read_bytes())
            if not is_checked:
                monkeypatch.setattr(held.lease, "check", lambda: None)

    record = found[key].directory / (found[key].record or "")
    with pytest.raises(LeaseLostError):
        wake_up_late()
    assert seen == [record.read_bytes()]
    build(found)
    assert verify_cache(found.root) == []
    assert [path.name for path in found.root.rglob(".*.partial*")] == []


def _build(found: Graph, begin: Any, told: Any) -> None:
    states: dict[str, str] = {}

    def recorded(artifact: Any, **settings: Any) -> Any:
        outcome = materialize(artifact, **settings)
        states[artifact.key] = outcome.state
        return outcome

    builds.materialize = recorded  # type: ignore[attr-defined]
    begin.wait()
    build_dataset(found.registry, NAME, root=found.root)
    told.put(states)


def test_processes_that_begin_together_build_each_part_and_the_seal_once(project: PartsProject) -> None:
    """The joined bytes are those of one process."""
    workers = 4
    build(project.graph(5, SETTINGS, root="alone"))
    found = project.graph(5, SETTINGS)
    build(found, ["tokenizer"])
    forked = multiprocessing.get_context("fork")
    begin, told = forked.Barrier(workers), forked.Queue()
    children = [forked.Process(target=_build, args=(found, begin, told)) for _ in range(workers)]
    for child in children:
        child.start()
    every = [told.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    assert {child.exitcode for child in children} == {0}
    for key in [f"plan/{NAME}", f"val_part/{NAME}", *parts_of(found), f"pretrain/{NAME}"]:
        assert sorted(states[key] for states in every) == ["built", *["cache_hit"] * (workers - 1)], key
    assert digests(project.cache()) == digests(project.cache("alone"))
    assert verify_cache(found.root) == []
