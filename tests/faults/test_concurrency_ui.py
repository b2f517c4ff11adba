"""Runs of the UI that are terminated or killed, and a UI beside two command lines: statuses are right, the next build goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_assets.pipeline import build_dataset
from niels_cache_assets.streaming.directories import partial_directory, work_on
from niels_cache_assets.streaming.journal import BYTES_VARIABLE
from niels_cache_runtime.verify import verify_cache
from tests.test_cache_determinism import digests
from tests.tiny import sentences
from tests.ui.running import LAUNCH, RunningUi, is_alive, running_ui, wait_until

pytestmark = pytest.mark.slow

TERMINATE = "mutation ($id: String!) { terminateRun(runId: $id) { __typename } }"
STOP_SECONDS = 60  # two are meant: the step leaves at once, but a busy machine takes its time to end a process
BUILD_SECONDS = 240


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[RunningUi]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(BYTES_VARIABLE, "200000")
        with running_ui(tmp_path_factory.mktemp("ui"), tiny_model) as ui:
            assert ui.project.build_tokenizer().success
            yield ui


def launch(ui: RunningUi) -> str:
    """Materialize pretrain/notes, as the button does; the id of the run."""
    location = {"repositoryLocationName": "niels_cache_assets", "repositoryName": "__repository__"}
    parameters = {
        "mode": "default",
        "runConfigData": json.dumps({"ops": {"stream_pretrain_dataset": {"config": {"wait": True}}}}),
        "executionMetadata": {"tags": [{"key": "dagster/partition", "value": "notes"}]},
        "selector": {**location, "jobName": "build_pretrain"},
    }
    assert ui.graphql(LAUNCH, {"p": parameters})["launchRun"]["__typename"] == "LaunchRunSuccess"
    return ui.runs()[0]["runId"]


def wait_for(ui: RunningUi, run_id: str, status: str, *, seconds: float) -> None:
    def is_so() -> bool:
        now = {run["runId"]: run["status"] for run in ui.runs()}[run_id]
        assert now == status or now not in ("SUCCESS", "FAILURE", "CANCELED"), ui.output.read_text()
        return now == status

    wait_until(is_so, seconds=seconds, what=f"the run is not {status}")


def test_runs_that_are_terminated_or_lose_their_process_end_so_and_the_next_one_goes_on(ui: RunningUi, tmp_path: Path) -> None:
    ui.project.write_notes(sentences(60) * 3_000)
    target = ui.project.root / "pretrain/notes"
    for end, share in (("terminate", 0.1), ("kill the step", 0.3), ("kill the run", 0.5)):
        run = launch(ui)
        wait_until(lambda: (work_on(target).share or 0.0) > share, seconds=BUILD_SECONDS, what=f"{end}: not so far")  # noqa: B023
        writer = work_on(target).writer
        assert writer is not None
        if end == "terminate":
            ui.graphql(TERMINATE, {"id": run})
            wait_for(ui, run, "CANCELED", seconds=STOP_SECONDS)
        else:
            parent = int(Path(f"/proc/{writer.pid}/stat").read_text().rpartition(")")[2].split()[1])
            for pid in [writer.pid] if end == "kill the step" else [parent, writer.pid]:
                os.kill(pid, signal.SIGKILL)
            wait_for(ui, run, "FAILURE", seconds=60)
        wait_until(lambda: not is_alive(writer.pid), seconds=STOP_SECONDS, what=f"{end}: the step still runs")  # noqa: B023
        work = work_on(target)
        assert (work.writer, work.is_resumable, (work.share or 0.0) > share) == (None, True, True), end
        assert not target.exists(), end
    wait_for(ui, launch(ui), "SUCCESS", seconds=BUILD_SECONDS)
    assert not partial_directory(target).exists()
    copy = tmp_path / "undisturbed"
    copy.mkdir()
    (copy / "tokenizer").symlink_to(ui.project.root / "tokenizer")
    build_dataset(ui.project.registry, "notes", root=copy)
    assert digests(copy / "pretrain/notes") == digests(target)


@pytest.mark.torture
def test_two_command_lines_and_a_ui_that_build_at_once_end_well(ui: RunningUi) -> None:
    before = {run["runId"] for run in ui.runs()}
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
    run = launch(ui)
    for build in builds:
        output, errors = build.communicate(timeout=BUILD_SECONDS)
        assert build.returncode == 0, output + errors
    wait_for(ui, run, "SUCCESS", seconds=BUILD_SECONDS)
    assert {each["status"] for each in ui.runs() if each["runId"] not in before} == {"SUCCESS"}
    assert verify_cache(ui.project.root) == []
    for name in ("pretrain/notes", "pretrain/books", "sft/chats"):
        assert sorted(path.name for path in (ui.project.root / name).parent.glob(".*.partial")) == []
