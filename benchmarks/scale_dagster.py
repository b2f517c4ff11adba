"""Dagster's costs of a data set with thousands of parts: queueing runs, bytes in the database, and the page of the asset in a browser.

    python benchmarks/scale_dagster.py [--quick] [--only queue page run] [--parts 5000] [--runs 1000]

* `queue`: a back-fill of the parts, by Dagster's own iteration, in this process. The runs are queued and not started. In processor time.
* `page`: parts have materializations, with the metadata of real ones. A browser (Chromium) opens the asset's page in the UI, and waits
  until it shows the partitions. In seconds on the clock. The page is opened three times, each time in a new browser, after a first time.
* `run`: the run of one small part, as a back-fill starts it: a process of Dagster, and its child that builds the part.

Needs the extra of the UI's tests (playwright) and Chromium for `page`.
"""

import argparse
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.test_utils import InProcessTestWorkspaceLoadTarget
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon.backfill import execute_backfill_iteration
from pyarrow import table
from pyarrow.parquet import write_table

from build import base_texts, documents
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.parts.layout import part_name
from niels_cache_assets.project.registry import load_registry
from scale import Row

DEFINITIONS = "from niels_cache_assets.defs.assembly import build_defs\n\ndefs = build_defs()\n"
CONFIG = '[pretrain.web]\nsource = "jsonl"\nfiles = ["texts/*.jsonl"]\nparts = {parts}\nval_frac = 0.0\n[dagster]\nplots = false\n'
CHOICES = ("queue", "page", "run")
_PATIENCE = 300.0


def prepare(work: Path, parts: int) -> list[str]:
    """Write the configuration, choose the Dagster home, and return the partitions."""
    (work / "texts").mkdir()
    (work / "texts" / "a.jsonl").write_text('{"text": "a text"}\n', encoding="utf-8")
    config = work / "niels_cache.toml"
    config.write_text(CONFIG.format(parts=parts), encoding="utf-8")
    os.environ.update(DAGSTER_HOME=str(work / "home"), NIELS_CACHE_CONFIG=str(config), NIELS_CACHE_PROFILE="quickstart")
    os.environ["NIELS_CACHE_ROOT"] = str(work / "cache")
    return [f"web/{part_name(number)}" for number in range(parts)]


def database_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in home.rglob("*") if path.is_file())


def queueing(work: Path, partitions: list[str], runs: int) -> Iterator[Row]:
    location = work / "location.py"
    location.write_text(DEFINITIONS, encoding="utf-8")
    target = InProcessTestWorkspaceLoadTarget(InProcessCodeLocationOrigin(LoadableTargetOrigin(python_file=str(location))))
    queued = {"run_coordinator": {"module": "dagster._core.run_coordinator", "class": "QueuedRunCoordinator"}}
    with ensure_instance(overrides=queued) as instance, WorkspaceProcessContext(instance, target) as workspace:
        before = database_bytes(work / "home")
        graph = workspace.create_request_context().asset_graph
        with partition_loading_context(dynamic_partitions_store=instance):
            backfill = PartitionBackfill.from_asset_partitions(
                backfill_id=uuid.uuid4().hex,
                asset_graph=graph,
                partition_names=partitions[:runs],
                asset_selection=[keys.names_of(load_registry()).parts],
                backfill_timestamp=time.time(),
                tags={},
                dynamic_partitions_store=instance,
                all_partitions=False,
                title=None,
                description=None,
                run_config=None,
            )
        instance.add_backfill(backfill)
        begin, iterations = time.process_time(), 0
        while instance.get_runs_count() < runs:
            errors = [error for error in execute_backfill_iteration(workspace, logging.getLogger("backfill")) if error]
            assert not errors, errors[0].to_string()
            iterations += 1
            assert iterations < 200
        seconds = time.process_time() - begin
        size = (database_bytes(work / "home") - before) / runs
    yield Row(
        f"queue {runs:,} runs of one back-fill, of an asset with {len(partitions):,} partitions",
        f"{runs / seconds:.1f} runs a core-second, so 5,000 runs in {5000 * seconds / runs / 60:.0f} minutes; "
        f"{size / 1e3:.0f} kB of database for a queued run",
        "",
    )


def run_of_a_part(work: Path) -> Iterator[Row]:
    """Measure the second of two parts, because the first run also makes Dagster's records of the asset."""
    texts = documents(base_texts(), size=2000, megabytes=4)
    for number in range(4):
        write_table(table({"text": texts[number::4]}), work / "texts" / f"{number}.parquet")
    (work / "niels_cache.toml").write_text(
        '[pretrain.web]\nsource = "parquet"\nfiles = ["texts/*.parquet"]\nparts = 4\nval_frac = 0.0\n[dagster]\nplots = false\n'
        '[tokenizer]\ntrain_on = ["web"]\nvocab_size = 8000\n[build]\nthreads = 1\n',
        encoding="utf-8",
    )
    found = graph(load_registry(), work / "cache")
    for key in ("tokenizer", "plan/web"):
        materialize(found[key])
    with ensure_instance():  # makes the home
        pass
    words = [sys.executable, "-m", "dagster", "asset", "materialize", "-m", "niels_cache_assets.definitions", "--select", "pretrain/parts"]
    for number in range(2):
        used, size = resource.getrusage(resource.RUSAGE_CHILDREN), database_bytes(work / "home")
        command = [*words, "--partition", f"web/part-{number:05d}"]
        subprocess.run(command, cwd=work, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield Row(
        "a run of Dagster for a part of 1 MB of text, with its child",
        f"{now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime:.1f} s of processor time, "
        f"{(database_bytes(work / 'home') - size) / 1e3:.0f} kB of database",
        "at most 6 s",
    )


@contextmanager
def server(work: Path) -> Iterator[str]:
    """Run Dagster's server, and yield its address."""
    port = 3957
    words = [sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port), "-m", "niels_cache_assets.definitions"]
    process = subprocess.Popen(words, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + _PATIENCE
    try:
        while True:
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not answer"
            with suppress(OSError):
                urllib.request.urlopen(f"{url}/server_info").close()
                break
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with its code server; nothing is written any more
        process.wait()


def record_parts(work: Path, partitions: list[str]) -> float:
    """Record a materialization of each part. Return the bytes of the database for each."""
    with ensure_instance() as instance:
        before = database_bytes(work / "home")
        metadata: dict[str, Any] = {"state": "built (912.4 s)", "contents": "33 MB: 16,777,216 tokens", "tokens": 16_777_216}
        metadata |= {"dropped": "too_short 1,204", "meta_sha256": "0" * 64, "dagster/uri": f"file://{work}/cache/pretrain/.parts/web"}
        for number, partition in enumerate(partitions):
            tags = {DATA_VERSION_TAG: f"{number:064x}"}
            instance.report_runless_asset_event(
                dg.AssetMaterialization(keys.names_of(load_registry()).parts, partition=partition, metadata=metadata, tags=tags)
            )
        return (database_bytes(work / "home") - before) / len(partitions)


def page(work: Path, partitions: list[str], rounds: int, recorded: int) -> Iterator[Row]:
    from playwright.sync_api import sync_playwright

    import repository_path  # noqa: F401
    from tests.helpers.ui.browser import BROWSER_ARGUMENTS, browser_path

    size = record_parts(work, partitions[:recorded])
    yield Row(f"record {recorded:,} parts without a run", f"{size / 1e3:.1f} kB of database for a part", "")
    seconds = []
    with server(work) as url, sync_playwright() as playwright:
        for number in range(rounds + 1):
            browser = playwright.chromium.launch(executable_path=browser_path(), args=BROWSER_ARGUMENTS)
            opened = browser.new_page(viewport={"width": 1400, "height": 1000})
            opened.set_default_timeout(1000 * _PATIENCE)
            begin = time.monotonic()
            opened.goto(f"{url}/assets/pretrain/parts?view=partitions")
            opened.get_by_text(partitions[0], exact=True).first.wait_for()
            if number:  # the first load also loads the definitions
                seconds.append(time.monotonic() - begin)
            browser.close()
    yield Row(
        f"open the asset page with {len(partitions):,} partitions in Chromium, {recorded:,} of them materialized",
        f"{min(seconds):.1f} s on the clock in the fastest of {rounds} new browsers, with a load of {os.getloadavg()[0]:.0f} on "
        f"{os.cpu_count()} cores",
        "below 5 s",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not what it costs")
    parser.add_argument("--only", nargs="+", choices=CHOICES, default=CHOICES, help="what to measure")
    parser.add_argument("--parts", type=int, default=5_000, help="partitions (default: 5,000)")
    parser.add_argument("--runs", type=int, default=1_000, help="runs to queue (default: 1,000)")
    parser.add_argument("--recorded", type=int, default=5_000, help="materialized partitions of the page (default: 5,000)")
    settings = parser.parse_args()
    parts, runs = (40, 10) if settings.quick else (settings.parts, settings.runs)
    print("| what | measured | wanted |\n|---|---|---|", flush=True)
    for step in settings.only:
        with tempfile.TemporaryDirectory() as temporary:
            work = Path(temporary)
            partitions = prepare(work, parts)
            if step == "queue":
                rows = queueing(work, partitions, runs)
            elif step == "page":
                rows = page(work, partitions, 1 if settings.quick else 3, min(parts, settings.recorded))
            else:
                rows = run_of_a_part(work)
            for row in rows:
                print(f"| {row.what} | {row.measured} | {row.wanted} |", flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    with suppress(KeyboardInterrupt):
        main()
