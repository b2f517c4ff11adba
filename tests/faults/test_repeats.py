"""The searches for repeated lines and spans. If one is killed anywhere, the last cuts stay, and the next run makes the same bytes."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.types import PrepareStep
from tests.helpers.builds import prepare_corpus
from tests.helpers.corpora import corpus_registry
from tests.helpers.failing_disk import Disk, killed_at

PAGE = "This line of page {0} has its own number, {0}, and it is so long that it counts as a paragraph; {1} is the data set.\n"
NOTICE = "This notice has the number {0}, and it is one of the lines that are cut out of all pages but the first.\n"
SETTINGS = {"lines": ("max_copies = 5", "max_copies = 1"), "spans": ("min_bytes = 400", "min_bytes = 100")}


def project(folder: Path, step: PrepareStep, settings: str) -> Registry:
    """Two data sets of four pages. Three notices are in all pages, and one is in every second page, which later settings cut, too."""
    texts = {
        name: [PAGE.format(row, name) + "".join(NOTICE.format(number) for number in range(3 + row % 2)) for row in range(4)]
        for name in ("a", "b")
    }
    return corpus_registry(folder, texts, settings=f"[build]\nthreads = 1\n[{step}]\n{settings}", table=f'prepare = ["{step}"]\n')


def search(registry: Registry, root: Path, step: PrepareStep) -> None:
    materialize(graph(registry, root).repeats(step), notify=False)


def cuts(root: Path, step: PrepareStep) -> dict[str, bytes]:
    """Return the files of the cuts."""
    return {path.name: path.read_bytes() for path in sorted((root / "repeats" / step).iterdir())}


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"}


@pytest.mark.parametrize(
    ("step", "kills"),
    [
        pytest.param("lines", 3),
        pytest.param("spans", 3),
        pytest.param("lines", None, marks=pytest.mark.torture),
        pytest.param("spans", None, marks=pytest.mark.torture),
    ],
)
def test_a_killed_search_leaves_the_last_cuts_and_the_next_one_makes_the_same_bytes(
    tmp_path: Path, step: PrepareStep, kills: int | None
) -> None:
    root = tmp_path / "cache"
    earlier, later = (project(tmp_path, step, settings) for settings in SETTINGS[step])
    for name in ("a", "b"):
        prepare_corpus(earlier, name, root=root, processes=1)
    search(earlier, root, step)
    before, saved = cuts(root, step), shutil.copytree(root, tmp_path / "saved")
    with Disk(root).installed() as disk:
        search(later, root, step)
    after, files = cuts(root, step), everything(root)
    assert after["a.parquet"] != before["a.parquet"]
    calls = len(disk.calls)
    left = []
    for at in range(calls) if kills is None else [number * (calls - 1) // (kills - 1) for number in range(kills)]:
        shutil.rmtree(root)
        shutil.copytree(saved, root)
        assert killed_at(root, at, partial(search, later, root, step)), disk.calls[at]
        left.append(cuts(root, step))
        assert left[-1] in (before, after), disk.calls[at]
        search(later, root, step)
        assert everything(root) == files, disk.calls[at]
    assert before in left
    assert after in left  # it was killed after the new cuts were in place
