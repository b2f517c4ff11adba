"""Flipped bits. The verifier finds every single flipped bit of a cache, in the right file and nowhere else."""

import shutil
from pathlib import Path

import pytest
import torch

from niels_cache_runtime.verify import verify_cache
from tests.helpers.small_project import SmallProject, small_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> SmallProject:
    project = small_project(tmp_path_factory.mktemp("project"), tiny_model)
    project.build_all()
    shutil.rmtree(project.exports)  # files of other programs, which no meta.json lists
    return project


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def flip_random_bits(root: Path, *, count: int, seed: int) -> None:
    """Verify the folder after each of `count` flips, and the whole root now and then. A file is drawn first, so every file gets flips."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size and not path.name.startswith("."))
    kinds = {path.relative_to(root).parts[0] for path in paths}
    assert kinds == {"corpus", "duplicates", "index", "pretrain", "sft", "tokenizer"}
    assert verify_cache(root, threads=1) == []
    generator = torch.Generator().manual_seed(seed)
    for number in range(count):
        path = paths[int(torch.randint(len(paths), (1,), generator=generator))]
        bit = int(torch.randint(path.stat().st_size * 8, (1,), generator=generator))
        flip(path, bit)
        folder = next(parent for parent in path.parents if (parent / "meta.json").exists())
        found = {Path(finding.folder) / finding.path for finding in verify_cache(folder if number % 50 else root, threads=1)}
        assert found == {path}, f"seed {seed}, flip {number}: bit {bit} of {path.relative_to(root)} gave {found}"
        flip(path, bit)
    assert verify_cache(root, threads=1) == []


def test_random_bits_are_found_where_they_flipped(project: SmallProject) -> None:
    flip_random_bits(project.root, count=300, seed=0)


@pytest.mark.torture
def test_many_more_random_bits_are_found_where_they_flipped(project: SmallProject) -> None:
    flip_random_bits(project.root, count=30_000, seed=1)
