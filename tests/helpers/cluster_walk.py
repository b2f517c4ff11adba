"""The parts that all walks share: a project with one long part, a Dagster home, a kill in the middle of the long part after a record of its
journal, and the checks afterwards.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.disk.journal import partial_directory, read_journal
from niels_cache_assets.parts.lease import latest
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.verify import verify_cache
from tests.helpers.children import here
from tests.helpers.names import NAMES
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of
from tests.helpers.servers import processes_of, python

ROOT = Path(__file__).resolve().parents[2]
LONG = 2  # the number of the part that is killed
_LONG_COPIES = 1_500  # it takes a second, and a kill comes a tenth of a second after its first record
_SHARD_BYTES = 1 << 22
_RECORD_SECONDS = 0.05
NOTICED_SECONDS = 5.0
AGAIN = rf"part-0000{LONG}.*try 2 of 3"
RESUMED = rf"part-0000{LONG}.*skipped the \d+,\d{{3}} "  # thousands of documents that the record names
RESULT = rf'"result".*part-0000{LONG}".*"resumed": [1-9]\d{{4}}'  # tokens
_MIN_TOKENS = 50_000
_PATIENCE_SECONDS = 180.0
_READ_SECONDS = 10.0  # for the last lines of a program that has ended; a child that lives may hold the pipe
_LEASE = "renew_seconds = 0.5\nlease_seconds = 3.0"


class PartsWalk:
    """A project of `parts` parts, which any engine may build.

    cluster: lines of [cluster]. copies: how many times as long as the others the long part is. A shard is longer than the long part of most
    walks, and a record comes after 32 MiB or some time, so the first record of the long part comes by time, in the middle of a file.
    """

    def __init__(self, folder: Path, model: Path, *, parts: int = 4, cluster: str = "", copies: int = _LONG_COPIES) -> None:
        self.project = PartsProject(folder / "project", model)
        self.project.write([40] * parts)
        long = self.project.folder / "texts" / f"f{LONG:03d}.jsonl"
        long.write_text(long.read_text() * copies)
        self.folder, self._model, self._parts, self._copies = folder, model, parts, copies
        tables = f"record_seconds = {_RECORD_SECONDS}\n[cluster]\n{_LEASE}\n{cluster}"
        self.graph: Graph = self.project.graph(parts, build=tables, shard_bytes=_SHARD_BYTES)
        self.config = self.project.folder / "cache.toml"
        self.prefix: list[str] = []  # of each command: in which namespace it runs
        self.env = {
            **os.environ,
            "NIELS_CACHE_CONFIG": str(self.config),
            "NIELS_CACHE_JOURNAL_BYTES": str(1 << 25),  # as by default, but a slow record does not delay the next one
            "NIELS_CACHE_ROOT": str(self.graph.root),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def long(self) -> Path:
        """The folder of the long part."""
        return self.graph[parts_of(self.graph)[LONG]].directory

    def start(self, *words: str, **variables: str) -> Output:
        """Start a program of Python, and read what it prints."""
        return self.start_program(python(*words), **variables)

    def start_program(self, command: Sequence[str], **variables: str) -> Output:
        """Start a program, and read what it prints. variables: of its environment, in addition to those of the walk."""
        process = subprocess.Popen(
            [*self.prefix, *command],
            env={**self.env, **variables},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return Output(process)

    def recorded_tokens(self) -> int:
        """Return how many tokens the latest record of the unfinished long part names."""
        record = read_journal(partial_directory(self.long))
        return 0 if record is None else sum(size for name, size in record.sizes.items() if name.endswith(".bin")) // 2

    def wait_for_records(self, *, tokens: int = _MIN_TOKENS) -> None:
        """Wait until the journal of the long part has a record with so many tokens, which is in the middle of the part."""
        done = self.long / "meta.json"
        wait_until(lambda: self.recorded_tokens() >= tokens or done.exists())
        assert not done.exists(), "the part was too short"

    def worker(self) -> int:
        """Return the process that builds the long part."""
        holder = latest(self.long)
        assert holder.holder is not None
        return holder.holder.writer.pid

    def kill_in_mid_part(
        self, kill: Callable[[int], object] = lambda pid: os.kill(pid, signal.SIGKILL), *, tokens: int = _MIN_TOKENS
    ) -> float:
        """Kill the process that builds the long part after a record with so many tokens. Return the time."""
        self.wait_for_records(tokens=tokens)
        pid = self.worker()
        os.kill(pid, signal.SIGSTOP)  # so that the part does not end meanwhile
        assert not (self.long / "meta.json").exists(), "the part was too short"
        kill(pid)
        return time.monotonic()

    def check_cache(self) -> None:
        """Check that the files are those of the same parts built by one process, and that no process is left."""
        expected = self._built_by_one_process()
        assert len(expected["files"]) > self._parts
        assert hashes_of(self.project.cache()) == expected
        assert verify_cache(self.graph.root) == []
        for key in parts_of(self.graph):
            last = latest(self.graph[key].directory)
            assert last.attempt
            assert last.is_over, key
        wait_until(lambda: not processes_of(self.folder), 20)

    def _built_by_one_process(self) -> dict[str, Any]:
        """Return the hashes of the same parts built by one process. The walks of all processes of pytest share them."""
        run = next((folder for folder in self.folder.parents if re.fullmatch(r"pytest-\d+", folder.name)), self.folder)
        model = hashlib.sha256(self._model.read_bytes()).hexdigest()[:8]
        shared = run / f"{model}-{self._parts}-parts-{self._copies}-copies.json"
        with open(shared.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not shared.exists():
                build(self.project.graph(self._parts, root="plain", shard_bytes=_SHARD_BYTES))
                shared.write_text(json.dumps(hashes_of(self.project.cache("plain"))))
        found: dict[str, Any] = json.loads(shared.read_text())
        return found


def hashes_of(cache: Path) -> dict[str, Any]:
    """Return what meta.json says about the bytes of a cache."""
    meta = read_meta(str(cache / "meta.json"))
    return {"files": meta["files"], "content_sha256": meta["content_sha256"]}


class Walk(PartsWalk):
    """A project in a Dagster home whose database is at `address`. Without an address, it is that of SQLite."""

    def __init__(
        self, folder: Path, model: Path, address: str | None, *, parts: int, cluster: str = "", copies: int = _LONG_COPIES
    ) -> None:
        super().__init__(folder, model, parts=parts, cluster=cluster, copies=copies)
        self._address = address
        self.home = self.add_home("home")
        self.env["DAGSTER_HOME"] = str(self.home)

    def add_home(self, name: str) -> Path:
        """Make a Dagster home, which has its records in the same database as all homes of the walk."""
        home = self.folder / name
        home.mkdir()
        storage = "" if self._address is None else f"storage: {{postgres: {{postgres_url: {self._address}}}}}\n"
        (home / "dagster.yaml").write_text(
            f"telemetry: {{enabled: false}}\n{storage}"
            "python_logs: {python_log_level: INFO}\nconcurrency: {pools: {default_limit: 1, granularity: op}}\n"
        )
        return home

    def held_slots(self) -> int:
        """Return how many slots of the pool of parts are taken or waited for."""
        with ensure_instance(self.home) as instance:
            pool = instance.event_log_storage.get_concurrency_info(NAMES.parts_pool)
            return pool.active_slot_count + pool.pending_step_count

    def check(self) -> None:
        """Check the cache, and that Dagster knows all parts."""
        self.check_cache()
        keys = [key.removeprefix("part/") for key in parts_of(self.graph)]
        assert len(keys) == self._parts
        with ensure_instance(self.home) as instance:
            assert instance.get_materialized_partitions(NAMES.parts) == set(keys)
        assert self.held_slots() == 0


class Output:
    """A running program, and the lines that it has printed, each with the time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.lines.append((time.monotonic(), line.decode(errors="replace").rstrip()))

    def find(self, pattern: str, *, seconds: float = _PATIENCE_SECONDS) -> float:
        """Wait for a line, and return its time."""
        wait_until(lambda: self._found(pattern) is not None or self.process.poll() is not None, seconds)
        if self.process.poll() is not None:
            self._reader.join(_READ_SECONDS)
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
    return walk.start("-m", "niels_cache_assets.cli", "build-all", "--only", NAME, *options, DAGSTER_HOME=str(home or walk.home))


def killed_and_resumed(walk: Walk) -> None:
    """Build everything by children of `build-all`, kill that of the long part, and check that the next try resumes it."""
    output = build_all(walk)
    with running(output):
        killed = walk.kill_in_mid_part()
        assert output.find(AGAIN) - killed < here(NOTICED_SECONDS)
        output.find(RESUMED)
        output.wait()


def at_a_time(count: int, tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks in threads, `count` at a time, and raise the first error."""
    with ThreadPoolExecutor(count) as pool:
        for future in as_completed([pool.submit(task) for task in tasks]):
            if future.exception() is not None:
                pool.shutdown(wait=False, cancel_futures=True)
            future.result()


def attempts(walk: PartsWalk) -> int:
    """Return the number of attempts at the long part."""
    return latest(walk.long).attempt


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


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
