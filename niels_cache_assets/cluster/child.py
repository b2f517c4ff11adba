"""One part that is built by a child process, whose lines of JSON this process reads (docs/cluster.md has their form).

A child is lost if it was killed, if its machine or its connection is gone, or if a scheduler refused it. It is then started again, at most
three times in all, and the part resumes. A child that reports an error is not started again, because the same error would come back.
"""

import json
import os
import secrets
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from niels_cache_assets.artifacts.base import Log, Outcome, ReportedProgress
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.duplicates import SearchStep
from niels_cache_assets.artifacts.parts.part import PartCache
from niels_cache_assets.artifacts.stored import read_finished
from niels_cache_assets.base.processes import attended_command
from niels_cache_assets.parts.lease import StopRequested, lease_owner, request_stop, stop_error, stop_stamp
from niels_cache_assets.project.running import HOST
from niels_cache_assets.tokenizer.encoder import EngineUse
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import UNKNOWN, BusyError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.reading import available_threads

_PACKAGE = __name__.partition(".")[0]
_CLI = f"{_PACKAGE}.cli"  # a program that is started; it is not imported

BuildInChild = PartCache | Corpus | SearchStep  # what one command builds
OnProgress = Callable[[Any], None]
IsStopping = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class PartCommand:
    """The command of one part.

    Attributes:
        part: The part to build.
        host: The value of `{host}`. None if no machine is named.
        launch: The name by which the process that starts the command can stop it (parts/lease.py). None for a process of this machine that
            ends when this process ends, in whatever way.
        waits: Whether to wait for another build of the part, instead of ending with exit code 75.
    """

    part: BuildInChild
    host: str | None = None
    launch: str | None = None
    waits: bool = True

    @property
    def threads(self) -> int | None:
        """The number of threads of the part: its share of this machine, if it is built here. None: the other machine decides."""
        settings = self.part.registry.cluster
        if settings.command or self.part.registry.build.threads is not None:
            return None
        cores = available_threads()
        return max(1, cores // settings.parts_at_once(cores))

    def words(self, pipe: int | None = None) -> list[str]:
        """Return the words of the command.

        Args:
            pipe: For an attended child, the read end of a pipe that this process holds open. None for other children.
        """
        settings = self.part.registry.cluster
        if pipe is not None:
            return attended_command(pipe, _CLI, *self._arguments())
        prefix = [word.replace(HOST, self.host or "") for word in settings.command]
        words = [*(settings.program or (sys.executable, "-m", _CLI)), *self._arguments()]
        if any(os.path.basename(word) == "ssh" for word in prefix):  # ssh joins its arguments, and a shell reads them on the other side
            words = [shlex.quote(word) for word in words]
        return [*prefix, *words]

    def _arguments(self) -> list[str]:
        return [
            "part",
            *self.part.part_arguments,
            "--quiet",
            "--no-notify",
            *(() if self.waits else ("--no-wait",)),
            *(("--launch", self.launch) if self.launch is not None else ()),
            *(("--threads", str(self.threads)) if self.threads is not None else ()),
            *self.part.registry.options(self.part.root),
        ]


TRIES = 3
_PAUSES = (1.0, 15.0)  # seconds before the second and the third try
_POLL_SECONDS = 0.2
_STOP_GRACE_SECONDS = 1.0  # between SIGTERM and SIGKILL; a part that is killed resumes
_SIGHT_SECONDS = 60.0  # how long a shared folder may take to show a file of another machine
_SIGNAL_CODES = (130, 143)  # exit codes of a child that a scheduler or a shutdown has ended
_BUSY = 75  # the exit code of a child that does not wait for another build of its part
_LAST_LINES = 5
_LONGEST_LINE = 1_000


class LostChildError(NielsCacheError):
    """A child that ended without a result and without an error of its own, so that another try may succeed."""


def build_in_child(
    part: BuildInChild,
    take_host: Callable[[], str | None],
    *,
    waits: bool = True,
    on_progress: OnProgress,
    log: Log,
    is_stopping: IsStopping,
) -> Outcome:
    """Build a part in a child process, and return its outcome as if this process had built it.

    An exception of the caller, such as an interrupt, stops the child and all workers that were started here for this part, including those
    whose connection was lost.

    Args:
        part: The part to build.
        take_host: Called before each try. It returns the value of `{host}`.
        waits: See `PartCommand`.
        on_progress: Called with the progress that the child reports.
        log: Called with each message.
        is_stopping: Called a few times a second. If it returns True, the child is stopped, and KeyboardInterrupt is raised.

    Raises:
        NielsCacheError: If the child reports an error, with its message, or after the third child that was lost.
        StopRequested: If a stop is requested.
        BusyError: If another process builds the part and the command does not wait.
        KeyboardInterrupt: If the caller is stopping.
    """
    launch, cluster = None, part.registry.cluster
    try:
        for number in range(1, TRIES + 1):
            try:
                host = take_host()
                if cluster.command or cluster.program:  # SIGTERM may not reach the child
                    launch = launch or secrets.token_hex(8)
                command = PartCommand(part=part, host=host, launch=launch, waits=waits)
                return _try(command, on_progress=on_progress, log=log, is_stopping=is_stopping)
            except LostChildError as error:
                if number == TRIES:
                    raise
                log(f"WARNING: {error}; try {number + 1} of {TRIES} follows")
                _pause(_PAUSES[number - 1], is_stopping)
        raise AssertionError  # the last try returns or raises
    except NielsCacheError:
        raise
    except BaseException:
        if launch is not None:
            _request_stop(part, launch)
        raise


def _pause(seconds: float, is_stopping: IsStopping) -> None:
    """Wait for `seconds`.

    Raises:
        KeyboardInterrupt: If the caller is stopping.
    """
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if is_stopping():
            raise KeyboardInterrupt
        time.sleep(min(left, _POLL_SECONDS))


def _try(command: PartCommand, *, on_progress: OnProgress, log: Log, is_stopping: IsStopping) -> Outcome:
    part, began = command.part, time.monotonic()
    stop_before = stop_stamp(part.directory)
    output = _ChildOutput(on_progress, log)
    with _started(command) as process:
        try:
            output.read_to_end(process, is_stopping)
        except BaseException:
            _stop(command, process)
            raise
    code = process.returncode
    if code == 0:
        return _outcome(part, output.result or {}, seconds=time.monotonic() - began)
    where, on_host = (f" on {command.host}", f" ({command.host})") if command.host else ("", "")
    if stop_stamp(part.directory) not in (None, stop_before):  # the next process would ignore it, so none is started
        raise stop_error(part.directory) if output.error is None else StopRequested(f"{output.error}{on_host}")
    if output.code == _BUSY and not command.waits:
        raise BusyError(part.directory, lease_owner(part.directory) or UNKNOWN)
    if output.error is not None and output.code not in _SIGNAL_CODES:
        raise NielsCacheError(f"{output.error}{on_host}")
    detail = f": {output.error or ' '.join(output.last)}" if output.error or output.last else ""
    ending = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    raise LostChildError(f"{part.key}: the process that builds it{where} {ending}{detail}")


@contextmanager
def _started(command: PartCommand) -> Iterator[subprocess.Popen[bytes]]:
    """Start the child in a session of its own, so that Ctrl-C in the terminal reaches only this process. Kill it at the end."""
    read_end, write_end = os.pipe()  # this process alone holds the write end
    words = command.words(read_end if command.launch is None else None)
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[read_end] if command.launch is None else [],
            start_new_session=True,
        )
    except OSError as error:
        os.close(write_end)
        raise NielsCacheError(f"{words[0]}: cannot be started: {error.strerror}; correct command in [cluster]") from error
    finally:
        os.close(read_end)
    try:
        with process:
            try:
                yield process
            finally:
                _signal(process, signal.SIGKILL)
    finally:
        os.close(write_end)


def _request_stop(part: BuildInChild, launch: str) -> None:
    with suppress(NielsCacheError, OSError):
        request_stop(part.directory, launch)


def _stop(command: PartCommand, process: subprocess.Popen[bytes]) -> None:
    """Ask the worker of a child to stop, wherever it runs, and end the child."""
    if command.launch is not None:
        _request_stop(command.part, command.launch)
    _signal(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_GRACE_SECONDS)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class _ChildOutput:
    """The output of a child.

    Attributes:
        code: The exit code that its error announces.
        last: Its last lines that are not JSON, which may say why it was lost.
    """

    def __init__(self, on_progress: OnProgress, log: Log) -> None:
        self._on_progress, self._log = on_progress, log
        self.result: Mapping[str, Any] | None = None
        self.error: str | None = None
        self.code: int | None = None
        self.last: deque[str] = deque(maxlen=_LAST_LINES)

    def read_to_end(self, process: subprocess.Popen[bytes], is_stopping: IsStopping) -> None:
        """Read the lines of both streams until the child has ended.

        Raises:
            KeyboardInterrupt: If the caller is stopping.
        """
        assert process.stdout is not None
        assert process.stderr is not None
        with selectors.DefaultSelector() as selector:
            for stream, on_line in ((process.stdout, self._parse_line), (process.stderr, self._keep_text_line)):
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, _ChildLines(stream, on_line))
            while selector.get_map():
                has_ended = process.poll() is not None  # asked before the read, so that nothing it has written is missed
                ready = selector.select(0 if has_ended else _POLL_SECONDS)
                for key, _ in ready:
                    if not key.data.read():
                        selector.unregister(key.fileobj)
                if has_ended and not ready:
                    return  # another process still holds the streams
                if is_stopping():
                    raise KeyboardInterrupt
        process.wait()

    def _parse_line(self, line: str) -> None:
        try:
            record = json.loads(line)
            event = record.get("event")
        except (ValueError, AttributeError, RecursionError):
            self._keep_text_line(line)  # what a shell or a scheduler prints first
            return
        if event == "progress":
            counts = {unit: int(record.get(unit) or 0) for unit in ("documents", "tokens")}
            self._on_progress(ReportedProgress(counts=counts, share=record.get("share")))
        elif event == "log":
            self._log(str(record.get("message", "")))
        elif event == "result":
            self.result = record
        elif event == "error":
            self.error, self.code = str(record.get("message", "")), record.get("exit_code")

    def _keep_text_line(self, line: str) -> None:
        if line.strip():
            self.last.append(" ".join(line.split()))


class _ChildLines:
    """The lines of a stream that does not block. A line that is too long is cut."""

    def __init__(self, stream: IO[bytes], on_line: Callable[[str], None]) -> None:
        self._stream, self._on_line, self._rest = stream, on_line, b""

    def read(self) -> bool:
        """Read the available bytes, and return False at the end of the stream."""
        found = os.read(self._stream.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + found).split(b"\n")
        self._rest = self._rest[-(1 << 20) :]
        for line in lines if found else [self._rest]:
            text = line.decode("utf-8", "replace")
            self._on_line(text if text.startswith("{") else text[:_LONGEST_LINE])
        return bool(found)


def _outcome(part: BuildInChild, result: Mapping[str, Any], *, seconds: float) -> Outcome:
    """Return the outcome that the child reports, with the meta.json that it wrote."""
    if result.get("key") == "corpus/duplicates":  # another process has finished the search meanwhile
        raise NielsCacheError(f"{part.key}: is not needed any more, because the search for duplicates is finished; run this again")
    meta = _read_meta_when_visible(part, result.get("meta_sha256"))
    return Outcome(
        key=part.key,
        state="cache_hit" if result.get("state") == "cache_hit" else "built",
        meta=meta,
        directory=part.directory,
        seconds=float(result.get("seconds") or seconds),
        warning=result.get("warning"),
        resumed=int(result.get("resumed") or 0),
        engines=EngineUse.recorded(result),
    )


def _read_meta_when_visible(part: BuildInChild, meta_sha256: str | None) -> Meta:
    """Return the meta.json of a finished part. A shared folder may show it some seconds after the child has written it."""
    deadline, problem = time.monotonic() + _SIGHT_SECONDS, ""
    while True:
        try:
            meta = read_finished(part)
            if meta_sha256 in (None, meta.get("meta_sha256")):
                return meta
            problem = f"{part.directory / META_NAME}: is not the one that the worker has written"
        except NielsCacheError as error:
            problem = str(error)
        if time.monotonic() > deadline:
            raise NielsCacheError(f"{problem}; the worker must share the cache directory with this machine, at the same path")
        with suppress(OSError):
            os.listdir(part.directory.parent)  # makes an NFS client refresh the folder
        time.sleep(_POLL_SECONDS)
