"""`niels-cache ui` on a small project in a separate process, for the tests in tests/defs/ui."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tests.helpers import programs
from tests.helpers.dagster_tools import Project

Process = subprocess.Popen[bytes] | programs.Program

START_SECONDS = 300
DAGSTER_YAML = resources.files("niels_cache_assets.defs.home").joinpath("dagster.yaml").read_text(encoding="utf-8")
QUICKLY = "run_queue: {dequeue_interval_seconds: 1}\n"  # 5 as Dagster has it
SETTINGS = """
[build]
cache_dir = "cache"
[pretrain.python_docs]
enabled = false
[sft.python_help]
enabled = false
"""
LAUNCH = """mutation ($p: ExecutionParams!) { launchRun(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
TERMINATE = "mutation ($id: String!) { terminateRun(runId: $id) { __typename } }"
RUNS = "{ runsOrError { ... on Runs { results { runId status } } } }"


def wait_until(true: Callable[[], bool], *, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} after {seconds} s"
        time.sleep(0.1)


def ask(url: str, query: str, variables: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the answer of a web server of Dagster to a query."""
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)["data"]
        return answer


@dataclass
class RunningUi:
    """The process of the UI, and the address that it printed."""

    project: Project
    home: Path
    process: Process
    output: Path
    url: str = ""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def graphql(self, query: str, variables: dict[str, Any] | None = None) -> dict[str, Any]:
        return ask(self.url, query, variables)

    def launch(self, name: str) -> str:
        """Build a data set of pretrain, as the button does, and return the id of the run."""
        location = {"repositoryLocationName": "niels_cache_assets", "repositoryName": "__repository__"}
        parameters = {
            "mode": "default",
            "runConfigData": json.dumps({"ops": {"stream_pretrain_dataset": {"config": {"wait": True}}}}),
            "executionMetadata": {"tags": [{"key": "dagster/partition", "value": name}]},
            "selector": {**location, "jobName": "build_pretrain"},
        }
        launched = self.graphql(LAUNCH, {"p": parameters})["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run: str = launched["run"]["runId"]
        return run

    def terminate(self, run: str) -> None:
        """End a run, as the button does."""
        assert self.graphql(TERMINATE, {"id": run})["terminateRun"]["__typename"] == "TerminateRunSuccess"

    def status_of(self, run: str) -> str:
        return next(each["status"] for each in self.runs() if each["runId"] == run)

    def runs(self) -> list[dict[str, str]]:
        """Return runId and status of all runs, the newest first."""
        found: list[dict[str, str]] = self.graphql(RUNS)["runsOrError"]["results"]
        return found

    def services(self) -> list[int]:
        """Return the child processes of the UI, and their child processes."""
        listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split("\n")
        parents = {int(line.split()[0]): int(line.split()[1]) for line in listed if line}
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found[1:]


def is_alive(pid: int) -> bool:
    """Return whether the process is alive. A zombie (an ended process whose parent has not read its exit code) counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def running_ui(
    folder: Path,
    tokenizer_model: Path,
    *options: str,
    project: Project | None = None,
    module: str = "niels_cache_assets.cli",
    forked: bool = False,
) -> Iterator[RunningUi]:
    """Run the UI on a small project in `folder`, on any free port. The data sets of the quickstart profile are switched off.

    `forked`: start the UI as a fork, without a new interpreter (tests/helpers/programs.py).
    """
    folder.mkdir(exist_ok=True)
    if project is None:
        project = Project(folder / "project", tokenizer_model)
        config = project.folder / "niels_cache.toml"
        config.write_text(f"{config.read_text()}{SETTINGS}")
    home, output = folder / "home", folder / "ui.log"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text(f"{DAGSTER_YAML}{QUICKLY}")
    command = ["-m", module, "ui", "--port", "0", "--profile", "quickstart", *options]
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "NIELS_CACHE_CONFIG": str(project.folder / "niels_cache.toml"),
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    environment.pop("NIELS_CACHE_ROOT", None)
    with open(output, "wb") as log:
        if forked:
            process: Process = programs.Program(*command, cwd=project.folder, env=environment, streams=(0, log.fileno(), log.fileno()))
        else:
            process = subprocess.Popen(
                [sys.executable, *command], env=environment, cwd=project.folder, stdout=log, stderr=log, start_new_session=True
            )
    ui = RunningUi(project, home, process, output)

    def is_ready() -> bool:
        assert process.poll() is None, output.read_text()
        ui.url = next((line.partition(" ")[0].rstrip(";") for line in output.read_text().splitlines() if line.startswith("http://")), "")
        return bool(ui.url)

    try:
        wait_until(is_ready, seconds=START_SECONDS, what="the UI does not answer")
        yield ui
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
