"""A build that is killed anywhere ends, after a second run, in exactly the bytes of an undisturbed run.

Each trial draws the place of the kill from its seed, which is the number in the test's name. To repeat a trial, run this test again. Kills
at a call to the disk then come at the same call. Kills at a moment come after the same share of an undisturbed run. The seconds of this run
are measured again, so the place may differ, and a failure may need several runs.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.build_cache.test_determinism import digests
from tests.helpers import children
from tests.helpers import fault_builds as builds
from tests.helpers.hub_repositories import card, parquet
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.tiny import sentences

NAMES = [*builds.TABLES, *builds.SFT_TABLES, *builds.HUB_TABLES, *builds.PARTS_TABLES]
LATE = ("jsonl", "shuffled", "trees")  # killed late
ANYWHERE = (
    "near",
    "prepared",
    "hub",
    "in_parts",
)  # killed anywhere; all of NAMES are in the torture, and start at every place in tests/sources/test_seek.py
SHARD_BYTES = [512, 20_000, 1 << 27]
RECORD_EVERY = [0, 3_000, 20_000]


class Reference(NamedTuple):
    """The files of an undisturbed build, its number of calls to the disk, and its seconds."""

    files: dict[str, str]
    calls: int
    seconds: float


class Workshop:
    """The project, its hub, and the undisturbed builds that tests have requested so far."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.project = folder / "project"
        self.project.mkdir()
        builds.write_project(self.project, model)
        pages = [{"text": text if row % 30 else "", "id": f"page-{row}"} for row, text in enumerate(sentences(builds.DOCUMENTS, seed=8))]
        files = {f"data/{part}.parquet": parquet(pages[part::3], row_group_size=100) for part in range(3)}
        self.hub = LoopbackHub({"owner/pages": {"README.md": card({"default": {"train": "data/*"}}), **files}}, folder / "hf_home")
        self._references: dict[tuple[str, int, int], Reference] = {}

    def run(self, name: str, root: Path, *, shard_bytes: int, record_every: int, at: int | None = None, **settings: object) -> int:
        """Return the exit code of a child that builds."""
        env = {key: value for key, value in self.hub.env.items() if key.startswith(("HF_", "NIELS_CACHE_NETWORK"))}
        env["NIELS_CACHE_NETWORK_PATIENCE"] = "60"  # on busy cores, an answer may come late
        work = partial(builds.build, self.project, name, root, shard_bytes=shard_bytes, record_every=record_every, at=at, env=env)
        return children.run(work, **settings)  # type: ignore[arg-type]

    def written(self, name: str, root: Path) -> dict[str, str]:
        cache = builds.cache_of(self.project, name, root)
        beside = sorted(path.name for path in cache.parent.iterdir() if path.name != ".parts")
        assert [each for each in beside if each not in (f".{name}.lock", f".{name}.lease")] == [name], "leftovers"
        assert not [path for path in cache.parent.glob(f".parts/{name}/.*") if path.suffix not in (".lock", ".lease")], "leftovers"
        return digests(cache)

    def reference(self, name: str, shard_bytes: int, record_every: int) -> Reference:
        key = (name, shard_bytes, record_every)
        if key not in self._references:
            root = builds.fresh_root(self.project, self.project.parent / f"{name}-{shard_bytes}-{record_every}")
            started = time.monotonic()
            assert self.run(name, root, shard_bytes=shard_bytes, record_every=record_every) == 0
            seconds = time.monotonic() - started
            self._references[key] = Reference(self.written(name, root), int(Path(f"{root}.calls").read_text()), seconds)
            assert len(self._references[key].files) >= 7
            shutil.rmtree(root)
        return self._references[key]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path_factory.mktemp("builds"), tiny_model)
    yield workshop
    workshop.hub.close()


def drawing(seed: int) -> Callable[[int], int]:
    """Return a function that draws whole numbers below a limit. The same seed gives the same numbers."""
    generator = torch.Generator().manual_seed(seed)
    return lambda limit: int(torch.randint(limit, (), generator=generator))


def log_of(root: Path) -> str:
    return Path(f"{root}.log").read_text()


def kill_and_resume(workshop: Workshop, name: str, root: Path, *, seed: int, kills: int, shard_bytes: int, record_every: int) -> str:
    """Kill the build so often, finish it, and compare the bytes. Return the log of all runs. Half of the kills come at a call to the disk,
    half at a time.
    """
    draw = drawing(seed)
    reference = workshop.reference(name, shard_bytes, record_every)
    builds.fresh_root(workshop.project, root)
    story = []
    for _ in range(kills):
        if draw(2):
            at = draw(reference.calls)
            story.append(f"at call {at} of {reference.calls}")
            workshop.run(name, root, shard_bytes=shard_bytes, record_every=record_every, at=at)
        else:
            after = reference.seconds * draw(1000) / 1000
            story.append(f"after {after:.3f} s")
            workshop.run(name, root, shard_bytes=shard_bytes, record_every=record_every, kill_after=after)
    told = f"seed {seed}: {name}, shards of {shard_bytes}, a record every {record_every} bytes, killed {', '.join(story)}\n"
    code = workshop.run(name, root, shard_bytes=shard_bytes, record_every=record_every)
    assert code == 0, told + log_of(root)
    assert workshop.written(name, root) == reference.files, told + log_of(root)
    return log_of(root)


@pytest.mark.parametrize(("seed", "name"), [(seed, name) for seed, name in enumerate(NAMES) if name in ANYWHERE])
def test_a_killed_build_is_finished_by_the_next(workshop: Workshop, tmp_path: Path, seed: int, name: str) -> None:
    kill_and_resume(workshop, name, tmp_path / "root", seed=seed, kills=1, shard_bytes=20_000, record_every=3_000)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(300))
def test_builds_killed_anywhere_and_more_than_once_are_finished_by_the_next(workshop: Workshop, tmp_path: Path, seed: int) -> None:
    draw = drawing(10_000 + seed)
    settings = {"shard_bytes": SHARD_BYTES[draw(3)], "record_every": RECORD_EVERY[draw(3)], "kills": 1 + draw(3)}
    kill_and_resume(workshop, NAMES[seed % len(NAMES)], tmp_path / "root", seed=seed, **settings)


@pytest.mark.parametrize("name", LATE)
def test_a_build_killed_late_goes_on_and_does_not_start_afresh(workshop: Workshop, tmp_path: Path, name: str) -> None:
    settings = {"shard_bytes": 20_000, "record_every": 3_000}
    reference, root = workshop.reference(name, **settings), builds.fresh_root(workshop.project, tmp_path / "root")
    assert workshop.run(name, root, at=reference.calls * 3 // 4, **settings) == -signal.SIGKILL
    assert workshop.run(name, root, **settings) == 0
    assert f"resuming {name}" in log_of(root)
    assert "afresh" not in log_of(root)
    assert int(Path(f"{root}.calls").read_text()) < reference.calls
    assert workshop.written(name, root) == reference.files


@pytest.mark.parametrize(("seed", "number"), [(1, signal.SIGINT)])
def test_a_signal_ends_a_build_within_two_seconds_and_the_next_finishes_it(
    workshop: Workshop, tmp_path: Path, seed: int, number: signal.Signals
) -> None:
    stop_and_resume(workshop, NAMES[drawing(seed)(len(NAMES))], tmp_path / "root", seed=seed, number=number)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(100))
def test_signals_end_builds_within_two_seconds_and_the_next_finish_them(workshop: Workshop, tmp_path: Path, seed: int) -> None:
    number = signal.SIGTERM if seed % 2 else signal.SIGINT
    stop_and_resume(workshop, NAMES[seed % len(NAMES)], tmp_path / "root", seed=seed, number=number)


def stop_and_resume(workshop: Workshop, name: str, root: Path, *, seed: int, number: signal.Signals, tries: int = 3) -> None:
    """`tries`: the number of tries. One of them must end in time, because other programs may delay some of them."""
    settings = {"shard_bytes": 20_000, "record_every": 3_000}
    reference = workshop.reference(name, **settings)
    builds.fresh_root(workshop.project, root)
    after = reference.seconds * (0.1 + 0.8 * drawing(seed)(1000) / 1000)
    started = time.monotonic()
    code = workshop.run(name, root, kill_after=after, with_signal=number, **settings)
    lasted = time.monotonic() - started - after
    told = f"seed {seed}: {name}, {number.name} after {after:.3f} s, which took {lasted:.1f} s"
    elsewhere = not Path(f"{root}.log").exists() or builds.cache_of(workshop.project, name, root).exists()  # before or after the build
    # 0: the build had finished before; 128 and the signal: it was in a call that did not return
    assert code in (0, 1, 128 + number) or (code == -number and elsewhere), told
    assert workshop.run(name, root, **settings) == 0, told
    assert workshop.written(name, root) == reference.files, told
    if lasted > children.here(2) and tries > 1:
        return stop_and_resume(workshop, name, root.with_name(f"{tries}"), seed=seed, number=number, tries=tries - 1)
    assert lasted < children.here(2), told
