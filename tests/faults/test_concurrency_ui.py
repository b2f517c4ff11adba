"""A UI beside two command lines that build the same. (What becomes of runs that are terminated or killed: tests/ui.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from niels_cache_runtime.verify import verify_cache
from tests.tiny import sentences
from tests.ui.running import running_ui, wait_until

BUILD_SECONDS = 240


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
