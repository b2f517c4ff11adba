"""The seal and the growth of parts may fail or be killed at any call to the disk, and the next build gives equal bytes."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.verify import verify_cache
from tests.build_cache.test_determinism import digests
from tests.helpers.failing_disk import Disk, kill_at_each
from tests.helpers.parts_project import NAME, PartsProject, build

KEY = f"pretrain/{NAME}"


class Sealing:
    """A project whose parts are built, the bytes of its sealed cache, and the number of calls to the disk of a seal."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.project = PartsProject(folder, model)
        self.project.write([5, 4, 6])
        self.graph: Graph = self.project.graph(2, "val_tokens = 40", build="")
        build(self.graph)
        self.expected = digests(self.project.cache())
        self.parts = digests(self.graph.root / "pretrain/.parts")
        self.unseal()
        with Disk(self.graph.root).installed() as disk:
            materialize(self.graph[KEY])
        self.calls = len(disk.calls)
        assert self.calls > 20

    def unseal(self) -> None:
        for path in self.project.cache().parent.glob(f"*{NAME}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def seal_and_compare(self) -> None:
        build(self.graph)
        assert digests(self.project.cache()) == self.expected
        assert {name: each for name, each in digests(self.graph.root / "pretrain/.parts").items() if "lock" not in name} == {
            name: each for name, each in self.parts.items() if "lock" not in name
        }
        assert verify_cache(self.graph.root) == []


@pytest.fixture(scope="module")
def sealing(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Sealing:
    return Sealing(tmp_path_factory.mktemp("sealing"), tiny_model)


@pytest.mark.parametrize("is_there", [False, True], ids=["first", "again"])
def test_a_full_disk_at_any_call_of_the_seal(sealing: Sealing, is_there: bool) -> None:
    failed = 0
    for at in range(is_there, sealing.calls, 2):
        if not is_there:
            sealing.unseal()
        with Disk(sealing.graph.root, at=at, fault=errno.ENOSPC, lasting=True).installed():
            try:
                materialize(sealing.graph[KEY], force=is_there)
            except NielsCacheError:
                failed += 1
        if is_there:
            assert digests(sealing.project.cache()) == sealing.expected
        elif at % 7 == 0:
            sealing.seal_and_compare()
    assert failed > sealing.calls / 4
    sealing.seal_and_compare()


@pytest.mark.torture
def test_a_kill_at_any_call_of_the_seal(sealing: Sealing) -> None:
    seal = lambda: materialize(sealing.graph[KEY])  # noqa: E731
    kill_at_each(sealing.graph.root, range(sealing.calls), seal, reset=sealing.unseal, compare=sealing.seal_and_compare)


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([40, 30, 50])
    return project


BUDGETS, SHARE = "train_tokens = 1200\nval_tokens = 150", 'val_frac = 0.2\ndecontaminate = "exact"'


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        (f"part/{NAME}/part-00001", BUDGETS),
        (f"plan/{NAME}", SHARE),
        (f"val_part/{NAME}", SHARE),
    ],
)
def test_a_full_disk_in_one_part_leaves_the_others(project: PartsProject, key: str, settings: str) -> None:
    build(project.graph(3, settings, root="sound"))
    found = project.graph(3, settings)
    order = found.order()
    build(found, order[: order.index(key)])
    failed = 0
    for at in range(0, 12, 2):
        with Disk(found.root, at=at, fault=errno.ENOSPC, lasting=True).installed():
            try:
                materialize(found[key], force=True)
            except NielsCacheError as error:
                failed += "No space left" in str(error)
    assert failed > 2
    build(found)
    assert digests(project.cache()) == digests(project.cache("sound"))
    assert verify_cache(found.root) == []


def test_a_folder_without_locks_has_leases(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    build(project.graph(2, BUDGETS, root="sound"))
    found = project.graph(2, BUDGETS)

    def refused(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", refused)
        build(found)
    assert digests(project.cache()) == digests(project.cache("sound"))
    assert verify_cache(found.root) == []


def test_a_folder_without_exchange_is_sealed_again_by_two_renames(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    found = project.graph(2)
    build(found)
    expected = digests(project.cache())
    monkeypatch.setattr("niels_cache_runtime.format.commit.swap_paths", lambda first, second: False)
    for key in (f"part/{NAME}/part-00000", KEY):
        materialize(found[key], force=True)
    assert digests(project.cache()) == expected
    assert verify_cache(found.root) == []


ADDED = f'[[pretrain.{NAME}.added]]\nfiles = ["more/*"]\nparts = 2\n'


class Growing:
    """A data set that is built, and its growth. `reset` puts the state before the growth back."""

    def __init__(self, folder: Path, model: Path, *, parts: int) -> None:
        self.project = PartsProject(folder, model)
        self.project.write([5, 4, 6])
        self.project.write([3, 7], first=8, folder="more")
        settings = "val_tokens = 40" if parts == 1 else "val_frac = 0.2"
        build(self.project.graph(parts, settings))
        self.old = digests(self.project.cache())
        shutil.copytree(folder / "cache", folder / "before")
        self.graph: Graph = self.project.graph(parts, f"{settings}\n{ADDED}")
        with Disk(self.graph.root).installed() as disk:
            build(self.graph)
        self.calls = len(disk.calls)
        self.grown = digests(self.project.cache())
        assert self.calls > 60
        assert self.grown != self.old

    def reset(self) -> None:
        shutil.rmtree(self.graph.root)
        shutil.copytree(self.project.folder / "before", self.graph.root)

    def compare(self) -> None:
        """Compare the cache after a failure, and after the build that follows."""
        assert digests(self.project.cache()) in (self.old, self.grown)
        assert [finding for finding in verify_cache(self.graph.root) if ".parts" not in finding.folder] == []
        build(self.graph)
        assert digests(self.project.cache()) == self.grown
        assert verify_cache(self.graph.root) == []


@pytest.fixture(scope="module", params=[2, 1], ids=["parts", "one process"])
def growing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Growing:
    return Growing(tmp_path_factory.mktemp("growing"), tiny_model, parts=request.param)


def test_a_full_disk_while_a_data_set_grows(growing: Growing) -> None:
    failed = 0
    for at in random.Random(7).sample(range(growing.calls), 6):
        growing.reset()
        with Disk(growing.graph.root, at=at, fault=errno.ENOSPC, lasting=True).installed():
            try:
                build(growing.graph)
            except NielsCacheError:
                failed += 1
        growing.compare()
    assert failed > 2


@pytest.mark.torture
def test_a_kill_at_random_calls_while_a_data_set_grows(growing: Growing) -> None:
    calls = random.Random(11).sample(range(growing.calls), 40)
    kill_at_each(growing.graph.root, calls, lambda: build(growing.graph), reset=growing.reset, compare=growing.compare)
