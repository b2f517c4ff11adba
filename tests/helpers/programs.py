"""Python programs in separate processes, without the seconds for the import of torch and Dagster.

`run` and `Program` replace `subprocess.run([sys.executable, ...])` and its `Popen`. A program is a fork of a server that has the heavy
imports. Each process of pytest has one server. If all tests run, the processes share one (tests/helpers/workers.py). The fork returns from
the server's loop, and ends as any other program: it waits for threads, and runs the functions of atexit. Only the imported modules are
not cleaned up, because this would take more than a second.

A test of the start of the interpreter (imports, hash seeds, locales, options before `-m`) starts a real interpreter. `_PRELOADED` has no
module that stores a part of the environment at import, such as huggingface_hub and datasets.
"""

import atexit
import contextlib
import gc
import importlib
import json
import multiprocessing.process
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import uuid
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

_PRELOADED = (
    "alembic.command",
    "dagster",
    "dill",
    "fsspec",
    "matplotlib.backends.backend_svg",
    "multiprocess",
    "pandas",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pydantic",
    "rich.progress",
    "sentencepiece",
    "sqlalchemy",
    "torch",
)
_REPOSITORY = Path(__file__).parents[2]
_SHARED = "NIELS_CACHE_TEST_SERVERS"
_STREAMS = (0, 1, 2)


class Program:
    """A running program. `arguments` follow `python`: `-m` and a module, `-c` and code, or a script.

    `env` is the whole environment, or None for the environment of this process. `streams` are the descriptors of stdin, stdout and stderr.
    `imported`: modules that are already imported, in addition to the heavy modules. Programs with the same `imported` share a server, which
    is a fork of the first server, or the server of the processes of pytest if that has these modules (tests/helpers/workers.py).
    """

    def __init__(
        self,
        *arguments: str | os.PathLike[str],
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        streams: Sequence[int] = _STREAMS,
        imported: tuple[str, ...] = (),
    ) -> None:
        self.args = [os.fspath(argument) for argument in arguments]
        self.returncode: int | None = None
        request = {"arguments": self.args, "cwd": os.fspath(cwd or os.getcwd()), "env": dict(os.environ if env is None else env)}
        self._told = socket.socket(socket.AF_UNIX)
        with _starting:
            self._told.connect(_address(_server(imported)))
        socket.send_fds(self._told, [b"3"], list(streams))
        self._told.sendall(json.dumps(request).encode())
        self._told.shutdown(socket.SHUT_WR)
        self._answers = self._told.makefile()
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        """Return the exit code, the negative number of a signal, or None while the program runs."""
        if self.returncode is None and wait([self._told], 0):
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not wait([self._told], timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # the server has just waited for it
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    *arguments: str | os.PathLike[str],
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",
    timeout: float = 120,
    check: bool = False,
    imported: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a program. Return its output and its exit code. Errors are those of `subprocess.run`. After `timeout` seconds, the program is
    killed.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(input.encode())
        stdin.seek(0)
        program = Program(*arguments, cwd=cwd, env=env, streams=(stdin.fileno(), stdout.fileno(), stderr.fileno()), imported=imported)
        try:
            program.wait(timeout)
        finally:
            program.kill()
        output, errors = (Path(f"/proc/self/fd/{stream.fileno()}").read_text(encoding="utf-8") for stream in (stdout, stderr))
    done = subprocess.CompletedProcess(program.args, program.returncode or 0, output, errors)
    if check:
        done.check_returncode()
    return done


def begin() -> None:
    """Start the first server beside what follows, until `share`."""
    _begun.append(ThreadPoolExecutor(1).submit(_server, ()))


def share(*servers: tuple[str, ...]) -> None:
    """Start the first server, and servers with these imports. Child processes use them instead of their own."""
    first = _begun.pop().result() if _begun else _server(())
    with ThreadPoolExecutor() as threads:
        started = dict(zip(map(" ".join, servers), threads.map(_server, servers), strict=True))
    os.environ[_SHARED] = json.dumps({"": first, **started})


@cache
def _server(imported: tuple[str, ...]) -> str:
    """Return the name of a server with these imports: a shared server, or one of this process. A server ends when its standard input
    closes, at the end of the process that started it.
    """
    shared: dict[str, str] = json.loads(os.environ.get(_SHARED, "{}"))
    for modules, address in shared.items():  # the first one has no modules
        if {*imported} <= {*modules.split()}:
            return address
    name = f"niels-cache-programs-{uuid.uuid4()}"
    arguments = ("-m", "tests.helpers.programs", name, *(imported or _PRELOADED))
    ends, _ = os.pipe()  # the other end stays open
    listens, tells = os.pipe()
    if imported:
        _servers.append(Program(*arguments, cwd=_REPOSITORY, streams=(ends, tells, 2)))
    else:
        _servers.append(subprocess.Popen([sys.executable, *arguments], cwd=_REPOSITORY, stdin=ends, stdout=tells))
    os.close(ends)
    os.close(tells)
    with open(listens, "rb") as told:
        assert told.readline() == b"listening\n"
    return name


def _address(name: str) -> str:
    return f"\0{name}"  # Linux keeps this address in memory, so that no file is left


_starting = threading.RLock()
_begun: list[Future[str]] = []
_servers: list[object] = []


def _serve(listener: socket.socket) -> dict[str, Any]:
    """Fork once for each request, and send the exit code of the fork. Only the forks return from this function, with the request."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    while True:
        ready = wait([listener, woken, 0])
        if 0 in ready:
            os._exit(0)
        if woken in ready:
            os.read(woken, 4096)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    with running.pop(pid) as asker, contextlib.suppress(OSError):
                        asker.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        if listener in ready:
            asker, _ = listener.accept()
            _, streams, _, _ = socket.recv_fds(asker, 1, len(_STREAMS))
            with asker.makefile("rb") as asked:
                request: dict[str, Any] = json.load(asked)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for number, stream in zip(_STREAMS, streams, strict=True):
                    os.dup2(stream, number)
                for opened in (woken, wakes, *streams):
                    os.close(opened)
                for other in (listener, asker, *running.values()):
                    other.close()
                return request
            running[pid] = asker
            asker.sendall(b"%d\n" % pid)
            for stream in streams:
                os.close(stream)


def _become(request: dict[str, Any]) -> None:
    """Run the requested program, as the interpreter would run it."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]  # where spawned workers look for a script
    added = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in added if path]
    first, *rest = request["arguments"]
    if first == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def _main(name: str, *imported: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        for module in imported:
            importlib.import_module(module)
    gc.freeze()  # otherwise every fork searches all imported objects for garbage at its end, for a second
    gc.set_threshold(50_000)  # with 700, looking for garbage takes a tenth of the time of a fork that imports more
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(_address(name))
        listener.listen(64)
        os.write(1, b"listening\n")
        gc.freeze()  # a collection in a fork would copy all pages of the imports
        request = _serve(listener)
    code = 0
    try:
        _become(request)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise  # the interpreter prints it
        code = ended.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(Exception):  # of a closed stream: the interpreter tells of it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _main(*sys.argv[1:])
