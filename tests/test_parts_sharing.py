"""Several processes build one data set in parts: each takes other parts, and one of them seals."""

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts import builds
from niels_cache_assets.artifacts.base import Artifact
from niels_cache_assets.artifacts.builds import build_dataset
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts import sharing
from niels_cache_assets.defs.launcher import LaunchResult, launch_builds
from niels_cache_runtime.format.commit import writer_lock
from niels_cache_runtime.verify import verify_cache
from tests.launches import Recorder, states
from tests.parts_project import NAME, PartsProject, build, parts_of
from tests.test_cache_determinism import digests

SETTINGS = "val_tokens = 60"


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> PartsProject:
    monkeypatch.setattr(sharing, "_LOOK_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(sharing, "_FIRST_PAUSE_SECONDS", 0.01)
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 2, 30, 14, 7])
    return project


class Held:
    """The lock of a part, held by another thread until `free` is called."""

    def __init__(self, folder: Path) -> None:
        self._ends, begun = threading.Event(), threading.Event()

        def hold() -> None:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with writer_lock(folder):
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
    monkeypatch.setattr(sharing, "writer_of", lambda target: None)  # so that only the run finds out
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


def test_a_part_that_stays_locked_is_tried_from_time_to_time(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen process keeps its lock, although its lease may have run out."""
    monkeypatch.setattr(sharing, "_LONGEST_PAUSE_SECONDS", 0.02)
    found = project.graph(3)
    first, *rest = (found[key] for key in parts_of(found))
    tries: list[str] = []

    def try_to_build(part: Artifact) -> bool:
        tries.append(part.key)
        return part is not first or tries.count(first.key) == 3

    held = Held(first.directory)
    try:
        sharing.build_free_parts_first([first, *rest], try_to_build, log=lambda line: None)
    finally:
        held.free()
    assert tries == [*(part.key for part in rest), *[first.key] * 3]


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
    build(project.graph(5, SETTINGS, root="alone"))
    found = project.graph(5, SETTINGS)
    build(found, ["tokenizer"])
    forked = multiprocessing.get_context("fork")
    begin, told = forked.Barrier(3), forked.Queue()
    children = [forked.Process(target=_build, args=(found, begin, told)) for _ in range(3)]
    for child in children:
        child.start()
    every = [told.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    for key in [f"plan/{NAME}", f"val_part/{NAME}", *parts_of(found), f"pretrain/{NAME}"]:
        assert sorted(states[key] for states in every) == ["built", "cache_hit", "cache_hit"], key
    assert digests(project.cache()) == digests(project.cache("alone"))
    assert verify_cache(found.root) == []
