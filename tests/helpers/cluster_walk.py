"""The parts that all walks share: a project with one long part, a Dagster home in Postgres, a kill in the middle of the long part, and the
checks afterwards.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.keys import PARTS, PARTS_POOL
from niels_cache_assets.disk.journal import JOURNAL_NAME
from niels_cache_assets.parts.lease import latest
from niels_cache_runtime.verify import verify_cache
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of, stream_of
from tests.helpers.servers import processes_of, python

ROOT = Path(__file__).resolve().parents[2]
LONG = 2  # the number of the part that is killed
_LONG_COPIES = 1_200  # it takes some seconds
_PATIENCE_SECONDS = 180.0
_LEASE = "renew_seconds = 0.5\nlease_seconds = 3.0"


class Walk:
    """A project of `parts` parts in a Dagster home whose database is at `address`.

    cluster: lines of [cluster]. copies: how many times as long as the others the long part is.
    """

    def __init__(self, folder: Path, model: Path, address: str, *, parts: int, cluster: str = "", copies: int = _LONG_COPIES) -> None:
        self.project = PartsProject(folder / "project", model)
        self.project.write([40] * parts)
        long = self.project.folder / "texts" / f"f{LONG:03d}.jsonl"
        long.write_text(long.read_text() * copies)
        self.folder, self._parts = folder, parts
        self._address = address
        self.home = self.add_home("home")
        tables = f"[cluster]\n{_LEASE}\n{cluster}"
        self.graph: Graph = self.project.graph(parts, build=tables)
        self.config = self.project.folder / "cache.toml"
        self.env = {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "NIELS_CACHE_CONFIG": str(self.config),
            "NIELS_CACHE_ROOT": str(self.graph.root),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }

    def add_home(self, name: str) -> Path:
        """Make a Dagster home, which has its records in the same database as all homes of the walk."""
        home = self.folder / name
        home.mkdir()
        (home / "dagster.yaml").write_text(
            f"telemetry: {{enabled: false}}\nstorage: {{postgres: {{postgres_url: {self._address}}}}}\n"
            "python_logs: {python_log_level: INFO}\nconcurrency: {pools: {default_limit: 1, granularity: op}}\n"
        )
        return home

    @property
    def long(self) -> Path:
        """The folder of the long part."""
        return self.graph[parts_of(self.graph)[LONG]].directory

    def start(self, *words: str, home: Path | None = None) -> Output:
        """Start a program of Python in a Dagster home (by default, that of the walk), and read what it prints."""
        return self.start_program(python(*words), **({} if home is None else {"DAGSTER_HOME": str(home)}))

    def start_program(self, command: Sequence[str], **variables: str) -> Output:
        """Start a program, and read what it prints. variables: of its environment, in addition to those of the walk."""
        process = subprocess.Popen(
            command,
            env={**self.env, **variables},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return Output(process)

    def wait_for_records(self) -> None:
        """Wait until the journal of the long part has a record, which is in the middle of the part."""
        wait_until(lambda: any(path.stat().st_size for path in self.long.parent.glob(f".{self.long.name}.partial*/{JOURNAL_NAME}")))
        assert not (self.long / "meta.json").exists()

    def worker(self) -> int:
        """Return the process that builds the long part."""
        holder = latest(self.long)
        assert holder is not None
        assert holder.holder is not None
        return holder.holder.writer.pid

    def kill_in_mid_part(self) -> float:
        """Kill the process that builds the long part after its first record. Return the time."""
        self.wait_for_records()
        pid = self.worker()
        os.kill(pid, signal.SIGSTOP)  # so that the part does not end meanwhile
        assert not (self.long / "meta.json").exists(), "the part was too short"
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def held_slots(self) -> int:
        """Return how many slots of the pool of parts are taken or waited for."""
        with ensure_instance(self.home) as instance:
            pool = instance.event_log_storage.get_concurrency_info(PARTS_POOL)
            return pool.active_slot_count + pool.pending_step_count

    def check(self) -> None:
        """Check that the bytes are those of a plain build, that Dagster knows all parts, and that nothing is left."""
        plain = self.project.graph(self._parts, root="plain")
        build(plain)
        assert stream_of(self.project.cache()) == stream_of(self.project.cache("plain"))
        assert verify_cache(self.graph.root) == []
        keys = [key.removeprefix("part/") for key in parts_of(self.graph)]
        assert len(keys) == self._parts
        with ensure_instance(self.home) as instance:
            assert instance.get_materialized_partitions(PARTS) == set(keys)
        assert self.held_slots() == 0
        for key in keys:
            last = latest(self.long.with_name(key.partition("/")[2]))
            assert last is not None
            assert last.is_over, key
        wait_until(lambda: not processes_of(self.folder), 20)


class Output:
    """A running program, and the lines that it has printed, each with the time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.lines.append((time.monotonic(), line.decode(errors="replace").rstrip()))

    def find(self, pattern: str, *, seconds: float = _PATIENCE_SECONDS) -> float:
        """Wait for a line, and return its time."""
        wait_until(lambda: self._found(pattern) is not None or self.process.poll() is not None, seconds)
        found = self._found(pattern)
        assert found is not None, f"no line has {pattern!r}:\n{self}"
        return found

    def _found(self, pattern: str) -> float | None:
        return next((when for when, line in [*self.lines] if re.search(pattern, line)), None)

    def wait(self, *, code: int = 0) -> None:
        assert self.process.wait(_PATIENCE_SECONDS) == code, str(self)

    def __str__(self) -> str:
        return "\n".join(line for _, line in self.lines[-60:])


@contextmanager
def running(*outputs: Output) -> Iterator[None]:
    """Kill these programs, with their sessions, if the block fails."""
    try:
        yield
    except BaseException:
        for output in outputs:
            with suppress(ProcessLookupError):
                os.killpg(output.process.pid, signal.SIGKILL)
        raise


def wait_until(is_so: Callable[[], bool], seconds: float = _PATIENCE_SECONDS, *, pause: float = 0.02) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(pause)


def build_all(walk: Walk, *options: str, home: Path | None = None) -> Output:
    return walk.start("-m", "niels_cache_assets.cli", "build-all", "--only", NAME, *options, home=home)


def at_a_time(count: int, tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks in threads, `count` at a time, and raise the first error."""
    with ThreadPoolExecutor(count) as pool:
        for future in as_completed([pool.submit(task) for task in tasks]):
            if future.exception() is not None:
                pool.shutdown(wait=False, cancel_futures=True)
            future.result()


def stop(*outputs: Output) -> None:
    """End programs in an orderly way. If one hangs, kill it and fail, after all others have ended."""
    hanging = []
    for output in outputs:
        output.process.send_signal(signal.SIGTERM)
    for output in outputs:
        try:
            output.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(output.process.pid, signal.SIGKILL)
            hanging.append(str(output))
    assert not hanging
