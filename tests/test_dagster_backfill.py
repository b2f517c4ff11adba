"""Back-fills: Dagster's own iteration, which its daemon does twice a minute, called here until there is nothing left to do."""

import logging
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.partitions.context import partition_loading_context  # none of these has a public name
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.test_utils import InProcessTestWorkspaceLoadTarget
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon.backfill import execute_backfill_iteration

from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.keys import TRAIN_KEYS
from niels_cache_assets.show import progress
from niels_cache_runtime.verify import verify_cache
from tests.dagster_tools import Project
from tests.messages import missing
from tests.ui.running import SETTINGS

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine 'BaseEventLoop:RuntimeWarning"),  # a run within the loop of an iteration
    pytest.mark.filterwarnings("ignore::DeprecationWarning:dagster"),  # Dagster's own, of its own
]

# Runs are executed where they are launched, in this process; what a process more may do to them is tests/ui/test_ui_process.py's.
AT_ONCE = {
    "run_launcher": {"module": "dagster._core.launcher.sync_in_memory_run_launcher", "class": "SyncInMemoryRunLauncher"},
    "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
    "compute_logs": {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"},
}
DEFINITIONS = """
import dagster as dg
from niels_cache_assets.defs.assembly import build_defs

defs = build_defs(executor=dg.in_process_executor)
"""


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NIELS_CACHE_CONFIG", str(tmp_path / "project/niels_cache.toml"))
    monkeypatch.setenv("NIELS_CACHE_PROFILE", "quickstart")
    monkeypatch.delenv("NIELS_CACHE_ROOT", raising=False)
    return Project(tmp_path / "project", tiny_model)


@pytest.fixture
def instance(project: Project) -> Iterator[dg.DagsterInstance]:
    with ensure_instance(overrides=AT_ONCE) as opened:
        yield opened


def back_fill(project: Project, instance: dg.DagsterInstance, *groups: str) -> tuple[str, list[set[str]]]:
    """Back-fill all partitions of all assets of these groups, as [Materialize all] does. Its status, and the runs of each iteration."""
    location = project.folder / "location.py"
    location.write_text(DEFINITIONS, encoding="utf-8")
    target = InProcessTestWorkspaceLoadTarget(InProcessCodeLocationOrigin(LoadableTargetOrigin(python_file=str(location))))
    with WorkspaceProcessContext(instance, target) as workspace:
        graph = workspace.create_request_context().asset_graph
        chosen = [key for key in graph.materializable_asset_keys if graph.get(key).group_name in groups]
        with partition_loading_context(dynamic_partitions_store=instance):
            backfill = PartitionBackfill.from_asset_partitions(
                backfill_id=uuid.uuid4().hex,
                asset_graph=graph,
                partition_names=None,
                asset_selection=chosen,
                backfill_timestamp=time.time(),
                tags={},
                dynamic_partitions_store=instance,
                all_partitions=True,
                title=None,
                description=None,
                run_config=None,
            )
        instance.add_backfill(backfill)
        iterations: list[set[str]] = []
        seen = {run.run_id for run in instance.get_runs()}
        while (status := status_of(instance, backfill)) == "REQUESTED":
            assert [error for error in execute_backfill_iteration(workspace, logging.getLogger("backfill")) if error] == []
            runs = {run.run_id: run for run in instance.get_runs() if run.run_id not in seen}
            seen |= runs.keys()
            iterations.append({what_was_built(run) for run in runs.values()})
            assert len(iterations) < 20, iterations
    return status, iterations


def status_of(instance: dg.DagsterInstance, backfill: PartitionBackfill) -> str:
    found = instance.get_backfill(backfill.backfill_id)
    assert found is not None
    return found.status.value


def what_was_built(run: dg.DagsterRun) -> str:
    """The group of the assets, the partition, and how the run ended."""
    group = min(key.path[0] for key in run.asset_selection or ())
    return " ".join([group, *([run.tags["dagster/partition"]] if "dagster/partition" in run.tags else []), run.status.value])


def test_a_back_fill_builds_everything_after_what_it_is_made_of_and_a_failure_says_why_and_stops_no_other(
    project: Project, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PROGRESS_SECONDS", 0.0)  # a build that takes long says so
    project.configure(extra=f'val_frac = 0.2\nprepare = ["dedup"]\n{SETTINGS}')
    notes = project.folder / "notes.jsonl"
    lines = notes.read_text(encoding="utf-8").splitlines()
    notes.write_text("\n".join([*lines[:2], '{"text": "cut', *lines[3:]]), encoding="utf-8")
    assert back_fill(project, instance, "tokenizer", "corpus", "pretrain", "sft") == (
        "COMPLETED_FAILED",
        [
            {"tokenizer SUCCESS", "corpus books SUCCESS"},
            {"corpus SUCCESS", "sft chats SUCCESS"},  # the duplicates over all corpora
            {"corpus books SUCCESS"},  # what stays of it, and its report
            {"pretrain notes FAILURE", "pretrain books SUCCESS"},
            set(),
        ],
    )
    [run] = instance.get_runs(filters=dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
    [failed] = [
        record.event_log_entry for record in instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    ]
    assert failed.dagster_event is not None
    assert failed.dagster_event.step_failure_data.user_failure_data is not None
    assert missing(failed.dagster_event.step_failure_data.user_failure_data.description, "notes.jsonl", "line 3", "JSON") == []
    assert {f"{path.parent.parent.name}/{path.parent.name}" for path in project.root.glob("*/*/meta.json")} == {
        *("corpus/books", "pretrain/books", "sft/chats")
    }
    assert verify_cache(project.root) == []
    records = instance.fetch_observations(TRAIN_KEYS["pretrain"], limit=100).records
    observed = {(seen.partition, "tokens_per_second" in seen.metadata) for seen in (record.asset_observation for record in records) if seen}
    assert observed == {("books", True)}
