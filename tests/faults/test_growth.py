"""Growth may fail or be killed at any call to the disk: the last good cache stays, and the next build gives the bytes of a sound one."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.graph import Graph
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.verify import verify_cache
from tests.faults.disk import Disk, kill_at_each
from tests.parts_project import NAME, PartsProject, build
from tests.test_cache_determinism import digests

ADDED = f'[[pretrain.{NAME}.added]]\nfiles = ["more/*"]\nparts = 2\n'


class Growing:
    """A data set that is built, and its growth. `reset` puts the state before the growth back."""

    def __init__(self, folder: Path, model: Path, *, parts: int) -> None:
        self.project = PartsProject(folder, model)
        self.project.write([5, 4, 6])
        self.project.write([3, 7], first=8, folder="more")
        settings = "val_tokens = 40"
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
