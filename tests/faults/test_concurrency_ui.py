"""A UI beside two command lines that build the same, and runs that it terminates. (Once, and what becomes of killed runs: tests/ui.)"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from niels_cache_assets.artifacts.builds import build_dataset
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_assets.disk.staging import work_on
from niels_cache_runtime.verify import verify_cache
from tests.test_cache_determinism import digests
from tests.tiny import sentences
from tests.ui.running import RunningUi, is_alive, running_ui, wait_until

BUILD_SECONDS = 240
TERMINATIONS = 20
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
TICKS = os.sysconf("SC_CLK_TCK")
CORES = len([line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]) - 1


@pytest.mark.torture
def test_two_command_lines_and_a_ui_that_build_at_once_end_well(tmp_path: Path, tiny_model: Path) -> None:
    with running_ui(tmp_path, tiny_model) as ui:
        assert ui.project.build_tokenizer().success
        ui.project.write_notes(sentences(60) * 200)
        command = [sys.executable, "-m", "niels_cache_assets.cli", "build-all", "--wait", "--profile", "quickstart"]
        environment = {
            **os.environ,
            "DAGSTER_HOME": str(ui.home),
            "NIELS_CACHE_CONFIG": str(ui.project.folder / "niels_cache.toml"),
            "PYTHONPATH": str(Path(__file__).parent.parent.parent),
        }
        environment.pop("NIELS_CACHE_ROOT", None)
        builds = [
            subprocess.Popen(command, env=environment, cwd=ui.project.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        run = ui.launch("notes")
        for build in builds:
            output, errors = build.communicate(timeout=BUILD_SECONDS)
            assert build.returncode == 0, output + errors
        wait_until(lambda: ui.status_of(run) not in ("QUEUED", "STARTING", "STARTED"), seconds=BUILD_SECONDS, what="the run has not ended")
        assert {each["status"] for each in ui.runs()} == {"SUCCESS"}
        assert verify_cache(ui.project.root) == []
        for name in ("pretrain/notes", "pretrain/books", "sft/chats"):
            assert sorted(path.name for path in (ui.project.root / name).parent.glob(".*.partial")) == []


@pytest.mark.torture
def test_runs_terminated_at_random_moments_end_within_two_seconds_and_the_last_finishes_them(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seconds are the promise for a machine that does nothing else. If other programs take half of its cores, it is twice as long.

    The moments are drawn from seed 0. Every second one comes after a new record, so that builds go on if the cores are busy. A build that
    has ended before its moment is compared and removed, and the next run begins again.
    """
    monkeypatch.setenv(BYTES_VARIABLE, "200000")
    generator = torch.Generator().manual_seed(0)
    with running_ui(tmp_path, tiny_model) as ui:
        assert ui.project.build_tokenizer().success
        ui.project.write_notes(sentences(60, words=200) * 2_000)  # quick to count, slow to encode
        copy = tmp_path / "undisturbed"
        copy.mkdir()
        (copy / "tokenizer").symlink_to(ui.project.root / "tokenizer")
        build_dataset(ui.project.registry, "notes", root=copy)
        expected = digests(copy / "pretrain/notes")
        target = ui.project.root / "pretrain/notes"
        lasted: list[tuple[float, float]] = []  # seconds, and the share of the cores that other programs took
        resumed = 0
        while len(lasted) < TERMINATIONS:
            resumed += work_on(target).is_resumable
            recorded = work_on(target).share or 0.0 if len(lasted) % 2 else None
            run = ui.launch("notes")
            begun = partial(builds, target, beyond=recorded)
            wait_until(lambda: begun() or ui.status_of(run) in ENDED, seconds=BUILD_SECONDS, what="no build has begun")  # noqa: B023
            time.sleep(3 * float(torch.rand(1, generator=generator)))
            writer = work_on(target).writer
            if writer is not None:
                cores = Cores(ui)
                ui.terminate(run)
                wait_until(lambda: not is_alive(writer.pid), seconds=60, what="the step runs")  # noqa: B023
                wait_until(lambda: ui.status_of(run) in ENDED, seconds=60, what="the run has not ended")  # noqa: B023
                if not target.exists():
                    assert ui.status_of(run) == "CANCELED"
                    lasted.append((cores.seconds, cores.share_of_others()))
            wait_until(lambda: ui.status_of(run) in ENDED, seconds=BUILD_SECONDS, what="the run has not ended")  # noqa: B023
            if target.exists():
                assert digests(target) == expected
                ui.project.remove("notes")
        print("seconds until a run was CANCELED, and the share of other programs:", [(round(s, 1), round(o, 2)) for s, o in sorted(lasted)])
        assert resumed
        run = ui.launch("notes")
        wait_until(lambda: ui.status_of(run) == "SUCCESS", seconds=BUILD_SECONDS, what="the last run has not succeeded")
        assert digests(target) == expected
        assert max(seconds * (1 - others) for seconds, others in lasted) < 2


def builds(target: Path, *, beyond: float | None) -> bool:
    """Return whether a process builds, and has recorded more than this share, if one is given."""
    work = work_on(target)
    return work.writer is not None and (beyond is None or (work.share or 0.0) > beyond)


class Cores:
    """The time since this object was made, and what other programs took of the processors meanwhile."""

    def __init__(self, ui: RunningUi) -> None:
        self._ui, self._began = ui, time.monotonic()
        self._before = self._busy(), self._own()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def share_of_others(self) -> float:
        """Return the processor time of all programs except the UI and this test, as a share of all cores. 0 to 0.9."""
        others = (self._busy() - self._before[0]) - (self._own() - self._before[1])
        return min(max(others / (self.seconds * CORES), 0.0), 0.9)

    @staticmethod
    def _busy() -> float:
        user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
        return (user + nice + system + sum(interrupts)) / TICKS

    def _own(self) -> float:
        """Return the processor time of the UI and of this test, with all their children, in seconds."""
        times = 0
        for pid in (os.getpid(), self._ui.process.pid, *self._ui.services()):
            with suppress(FileNotFoundError, ProcessLookupError):
                times += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        return times / TICKS
