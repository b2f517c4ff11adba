"""The seal of parts may fail at any call to the disk: the parts stay, and the next seal gives the bytes of an undisturbed one."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.verify import verify_cache
from tests.faults.disk import Disk, kill_at_each
from tests.parts_project import NAME, PartsProject, build
from tests.test_cache_determinism import digests

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


BUDGETS, HASHED = "train_tokens = 1200\nval_tokens = 150", 'val_frac = 0.2\ndecontaminate = "exact"'


class OfMember:
    """A project, one cache of a plan in it (a part, or the val part), and the number of calls to the disk of its build.

    `reset` removes this cache and everything after it.
    """

    def __init__(self, folder: Path, model: Path, *, key: str, settings: str) -> None:
        self.project, self.key = PartsProject(folder, model), key
        self.project.write([9, 6, 8])
        self.graph = self.project.graph(3, settings)
        build(self.graph)
        self.expected = digests(self.project.cache())
        self.reset()
        with Disk(self.graph.root).installed() as disk:
            self.make()
        self.calls = len(disk.calls)
        assert self.calls > 20

    def make(self) -> None:
        materialize(self.graph[self.key])

    def reset(self) -> None:
        parts = self.graph[self.key].directory.parent
        for folder, name in ((parts, self.graph[self.key].directory.name), (self.project.cache().parent, NAME)):
            for path in folder.glob(f"*{name}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def build_and_compare(self) -> None:
        build(self.graph)
        assert digests(self.project.cache()) == self.expected
        assert verify_cache(self.graph.root) == []


@pytest.mark.torture
@pytest.mark.parametrize(
    ("key", "settings"),
    [
        (f"val_part/{NAME}", BUDGETS),
        (f"val_part/{NAME}", HASHED),
        (f"part/{NAME}/part-00001", BUDGETS),
        (f"part/{NAME}/part-00001", HASHED),
    ],
    ids=["val, budgets", "val, hashed", "part, budgets", "part, hashed"],
)
def test_a_kill_at_any_call_of_val_or_of_a_part(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, key: str, settings: str
) -> None:
    monkeypatch.setenv(BYTES_VARIABLE, "500")  # so that there is much to resume
    of = OfMember(tmp_path, tiny_model, key=key, settings=settings)
    kill_at_each(of.graph.root, range(of.calls), of.make, reset=of.reset, compare=of.build_and_compare)


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        (f"part/{NAME}/part-00001", BUDGETS),
        (f"plan/{NAME}", BUDGETS),
        (f"val_part/{NAME}", HASHED),
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
    monkeypatch.setattr("niels_cache_runtime.format.commit.exchange", lambda first, second: False)
    for key in (f"part/{NAME}/part-00000", KEY):
        materialize(found[key], force=True)
    assert digests(project.cache()) == expected
    assert verify_cache(found.root) == []
