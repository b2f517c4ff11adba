"""A UI beside two command lines that build the same, and runs that it terminates. (Once, and what becomes of killed runs: tests/ui.)"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from niels_cache_assets.artifacts.builds import build_dataset
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_assets.disk.staging import work_on
from niels_cache_runtime.verify import verify_cache
from tests.test_cache_determinism import digests
from tests.tiny import sentences
from tests.ui.running import is_alive, running_ui, wait_until

BUILD_SECONDS = 240
TERMINATIONS = 20


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
    """Two seconds are the promise for a machine that does nothing else. The moments are drawn from seed 0."""
    monkeypatch.setenv(BYTES_VARIABLE, "200000")
    generator = torch.Generator().manual_seed(0)
    with running_ui(tmp_path, tiny_model) as ui:
        assert ui.project.build_tokenizer().success
        ui.project.write_notes(sentences(60, words=200) * 2_000)  # quick to count, slow to encode
        target = ui.project.root / "pretrain/notes"
        lasted: list[float] = []
        for number in range(TERMINATIONS):
            run = ui.launch("notes")
            wait_until(lambda: work_on(target).writer is not None, seconds=BUILD_SECONDS, what="no build has begun")
            time.sleep(3 * float(torch.rand(1, generator=generator)))
            writer = work_on(target).writer
            assert writer is not None, f"termination {number}: finished before; lengthen the notes"
            begin = time.monotonic()
            ui.terminate(run)
            wait_until(lambda: not is_alive(writer.pid), seconds=60, what=f"termination {number}: the step runs")  # noqa: B023
            wait_until(lambda: ui.status_of(run) == "CANCELED", seconds=60, what=f"termination {number}: not canceled")  # noqa: B023
            lasted.append(time.monotonic() - begin)
            assert not target.exists()
        print("seconds until the step was gone and the run CANCELED:", [round(seconds, 1) for seconds in sorted(lasted)])
        assert work_on(target).is_resumable
        run = ui.launch("notes")
        wait_until(lambda: ui.status_of(run) == "SUCCESS", seconds=BUILD_SECONDS, what="the last run has not succeeded")
        copy = tmp_path / "undisturbed"
        copy.mkdir()
        (copy / "tokenizer").symlink_to(ui.project.root / "tokenizer")
        build_dataset(ui.project.registry, "notes", root=copy)
        assert digests(copy / "pretrain/notes") == digests(target)
        assert max(lasted) < 2
