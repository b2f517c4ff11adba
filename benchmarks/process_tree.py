"""A command and all processes that it starts: seconds, processor seconds, and memory over time.

Memory is the sum of the proportional set sizes (PSS) of all processes, from /proc/PID/smaps_rollup, 20 times a second. PSS divides a page
among the processes that share it, so the sum counts each page once. Pages of files (`Pss_File`: libraries, mapped caches) are also reported
separately, because the system can drop them. A process that the command leaves behind counts until it ends.

Cost: a sample takes about 5 ms of a core, more for gigabytes, so measure seconds without samples. Linux only.
"""

import ctypes
import os
import platform
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SAMPLES_PER_SECOND = 20
_REST_SECONDS = 120  # for processes that a command leaves behind
_PR_SET_CHILD_SUBREAPER = 36
_SIZE = re.compile(r"^(Pss|Pss_File): +(\d+) kB$", re.MULTILINE)
_KCMP, _KCMP_VM = {"x86_64": 312, "aarch64": 272}.get(platform.machine()), 1  # a system call, which has no function in the C library


class CommandFailedError(Exception):
    """An error for a command that failed, or left a process behind that does not end. The message has the last line of its output."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The memory of all processes at one time.

    Attributes:
        seconds: Seconds since the start of the command.
        memory: Sum of PSS in MB.
        files: How much of it are pages of files.
    """

    seconds: float
    memory: float
    files: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a command used.

    Attributes:
        seconds: Seconds until its first process ended: when a shell shows its prompt again.
        rest: Seconds after that until the last process that it left behind ended.
        cpu: Processor seconds of all processes.
        others: Processor seconds of other programs of the machine meanwhile.
        sampling: Processor seconds that sampling took, which are not in `cpu`.
        samples: Memory over time, empty unless it was requested.
        output: What it printed.
    """

    seconds: float
    rest: float
    cpu: float
    others: float
    sampling: float
    samples: Sequence[Sample]
    output: str

    @property
    def peak(self) -> float:
        """The highest sum of PSS in MB."""
        return max((sample.memory for sample in self.samples), default=0.0)

    @property
    def peak_without_files(self) -> float:
        """The highest sum of PSS without pages of files in MB."""
        return max((sample.memory - sample.files for sample in self.samples), default=0.0)


def run(command: Sequence[str | Path], *, folder: Path, environment: Mapping[str, str], is_sampled: bool) -> Run:
    """Run a command to its end.

    Args:
        command: The command line.
        folder: Its working directory.
        environment: Variables that are added to those of this process.
        is_sampled: Whether memory is sampled.

    Raises:
        CommandFailedError: If it fails, or if a process that it leaves behind does not end.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what the command leaves behind becomes a child of this process
    log = folder / "output.txt"
    with log.open("wb") as out, _Sampler() as sampler:
        began, busy = time.perf_counter(), _busy_seconds()
        variables = {**os.environ, **environment}
        process = subprocess.Popen(command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        if is_sampled:
            sampler.start(began)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu = usage.ru_utime + usage.ru_stime + _wait_for_rest()
        rest, busy = time.perf_counter() - began - seconds, _busy_seconds() - busy
    output = log.read_text(encoding="utf-8", errors="replace")
    if process.returncode:
        last = [line for line in output.splitlines() if line.strip()][-1:]
        raise CommandFailedError(f"{' '.join(map(str, command[:3]))} ... failed: {' '.join(last) or process.returncode}")
    others = max(0.0, busy - cpu - sampler.cpu)
    return Run(seconds=seconds, rest=rest, cpu=cpu, others=others, sampling=sampler.cpu, samples=sampler.samples, output=output)


def _busy_seconds() -> float:
    """Return the seconds that the machine's processors have worked, or were taken by the host, since it started."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def _wait_for_rest() -> float:
    """Wait for the processes that became children of this one, and return their processor seconds."""
    cpu, until = 0.0, time.monotonic() + _REST_SECONDS
    with suppress(ChildProcessError):  # there are none
        while time.monotonic() < until:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
            if pid:
                cpu += usage.ru_utime + usage.ru_stime
            else:
                time.sleep(0.01)
        raise CommandFailedError(f"a process that the command left behind still runs after {_REST_SECONDS} s")
    return cpu


class _Sampler:
    """A thread that samples the memory of all descendants of this process.

    Attributes:
        samples: The samples.
        cpu: Processor seconds of the thread.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.cpu = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "_Sampler":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def start(self, began: float) -> None:
        """Begin to sample. began: The perf_counter at the start of the command."""
        self._thread = threading.Thread(target=self._sample, args=(began,), daemon=True)
        self._thread.start()

    def _sample(self, began: float) -> None:
        due = time.perf_counter()
        while True:
            sizes = [_sizes(process) for process in _descendants(os.getpid())]
            memory, files = (sum(column) / 1e6 for column in zip(*sizes, strict=True)) if sizes else (0.0, 0.0)
            self.samples.append(Sample(seconds=time.perf_counter() - began, memory=memory, files=files))
            self.cpu = time.thread_time()
            due = max(due + 1 / SAMPLES_PER_SECOND, time.perf_counter())
            if self._ended.wait(due - time.perf_counter()):
                return


def _descendants(process: int) -> Iterator[int]:
    """Yield the processes below a process, without those that still share its memory, because they run no program of their own yet."""
    with suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{process}/task"):
            for child in map(int, _read(f"/proc/{process}/task/{task}/children").split()):
                if not _share_memory(process, child):
                    yield child
                    yield from _descendants(child)


def _share_memory(process: int, child: int) -> bool:
    """Return whether the child was made by vfork, and the pages of both would count twice."""
    return _KCMP is not None and ctypes.CDLL(None).syscall(_KCMP, process, child, _KCMP_VM, 0, 0) == 0


def _sizes(process: int) -> tuple[int, int]:
    """Return PSS and the PSS of pages of files, in bytes. Both are 0 for a process that has ended."""
    with suppress(OSError):
        sizes = dict(_SIZE.findall(_read(f"/proc/{process}/smaps_rollup")))
        if sizes:  # an ended process that nobody has waited for has none
            return int(sizes["Pss"]) << 10, int(sizes["Pss_File"]) << 10
    return 0, 0


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
