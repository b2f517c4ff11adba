"""Our loader against other projects', in tokens per second of x and y, on the same tokens; and how long their writers take.

The others run in processes and environments of their own beside this repository's `.venv`, made here on first use. datatrove needs other
versions of what mosaicml-streaming needs, so it has an environment for itself. Each loader is first tried with 0, 1 and 2 workers, widening
to int64 in the workers or, with 1 or 2 threads, in the process that trains. Its fastest setting then takes turns with ours, one process at
a time, while the others wait with full queues (if the threads are torch's, with 1 and with 2: the better median counts). All shuffle, and
read local files.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
SETTINGS = [("0", "main"), ("1", "worker"), ("1", "main"), ("2", "worker"), ("2", "main")]  # workers, where tokens are widened
THREADS = (1, 2)  # of torch, where tokens are widened in the main process: two are faster, unless anything else wants a core


class PeersMissing(Exception):
    """Why the others cannot be run; one line."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A project to compare with: its script beside this file, what that needs, and the folder of its environment."""

    script: str
    requirements: Path = HERE.parent / "peers-requirements.txt"
    environment: Path = HERE.parent.parent / ".bench-env"


PEERS = {
    "litdata": Peer(script="litdata_loader.py"),
    "mosaicml-streaming": Peer(script="streaming_loader.py"),
    "datatrove": Peer(
        script="datatrove_loader.py",
        requirements=HERE.parent / "datatrove-requirements.txt",
        environment=HERE.parent.parent / ".bench-env-datatrove",
    ),
}
LOADERS = ("litdata", "mosaicml-streaming")  # those that `compare` writes random tokens for


@dataclass(frozen=True, kw_only=True)
class Speed:
    """tokens: per second, of each round. settings: of a peer, as they are printed."""

    tokens: list[float]
    settings: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.tokens)

    def __str__(self) -> str:
        low, middle, high = (f"{tokens / 1e6:.3g}" for tokens in (min(self.tokens), self.median, max(self.tokens)))
        return f"{middle} ({low}-{high}) M tokens/s"


def installed_python(peer: Peer) -> Path | None:
    """Return the python of a peer's environment, or None if it is not made, or has other requirements."""
    installed = peer.environment / peer.requirements.name
    is_current = installed.exists() and installed.read_text() == peer.requirements.read_text()
    return peer.environment / "bin" / "python" if is_current else None


def ensure_environment(peer: Peer) -> Path:
    """Return the python of a peer's environment, which is made (minutes, gigabytes) unless it has these requirements already."""
    if (python := installed_python(peer)) is not None:
        return python
    python, installed = peer.environment / "bin" / "python", peer.environment / peer.requirements.name
    print(f"installing the peers into {peer.environment} (minutes) ...", flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(peer.environment)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(peer.requirements)])
    installed.write_text(peer.requirements.read_text())
    return python


def command_of(name: str) -> list[str]:
    """Return the beginning of a command line that runs a peer's script."""
    return [str(ensure_environment(PEERS[name])), str(HERE / PEERS[name].script)]


def as_a_model_folder(tokenizer: Path, eot: str, folder: Path) -> Path:
    """Return a folder that `AutoTokenizer` opens, with a tokenizer.json."""
    folder.mkdir()
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eot, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def tokenize_seconds(name: str, inputs: list[Path], *, tokenizer: Path, target: Path, T: int) -> float:
    """Let a peer's own writer tokenize files of JSON lines on two cores, without the time that imports take."""
    printed = _run([*command_of(name), "tokenize", str(tokenizer), str(target), str(T), *map(str, inputs)])
    results = [line for line in printed.splitlines() if line.startswith("result ")]
    return float(results[-1].removeprefix("result "))


def compare(ours: Callable[[], object], *, source: Path, work: Path, T: int, B: int, rounds: int, seconds: float) -> Mapping[str, Speed]:
    """`ours` makes a batch; the peers read the shards of `source`, rewritten in their formats below `work`. Raises PeersMissing."""
    folders = {name: work / name for name in LOADERS}
    for name, folder in folders.items():
        _run([*command_of(name), "write", str(source), str(folder), str(T)])
    return race({"ours": ours}, folders, T=T, B=B, rounds=rounds, seconds=seconds)


def race(
    here: Mapping[str, Callable[[], object]], folders: Mapping[str, Path], *, T: int, B: int, rounds: int, seconds: float
) -> Mapping[str, Speed]:
    """Measure loaders in turns. `here`: functions that make a batch in this process. `folders`: of each peer, in its own format."""
    runs: dict[tuple[str, str], Callable[[], float]] = {}  # name and settings, as they are printed
    for name, make_batch in here.items():
        runs[name, ""] = partial(_tokens_per_second, make_batch, tokens_per_batch=B * T, seconds=seconds)
    with ExitStack() as stack:
        for name, folder in folders.items():
            read = [*command_of(name), "read", str(folder), str(T), str(B)]
            tried = {}
            for settings in SETTINGS:
                with _reader([*read, *settings]) as reader:
                    found = {threads: reader(seconds, threads) for threads in _threads(settings)}
                tried[settings] = max(found.values())
                for threads, tokens in found.items():
                    print(f"  {name}, {_described(settings, threads)}: {tokens / 1e6:.1f} M tokens/s", flush=True)
            best = max(tried, key=lambda settings: tried[settings])
            reader = stack.enter_context(_reader([*read, *best]))
            for threads in _threads(best):
                runs[name, _described(best, threads)] = partial(reader, seconds, threads)
        speeds: dict[tuple[str, str], list[float]] = {run: [] for run in runs}
        for _ in range(rounds):
            for run, measure in runs.items():
                speeds[run].append(measure())
    results: dict[str, Speed] = {}
    for (name, settings), tokens in speeds.items():
        speed = Speed(tokens=tokens, settings=settings)
        if name not in results or speed.median > results[name].median:
            results[name] = speed
    return results


def _threads(settings: tuple[str, str]) -> tuple[int, ...]:
    return THREADS if settings[1] == "main" else (1,)


def _described(settings: tuple[str, str], threads: int) -> str:
    workers, widened = settings
    place = "in the worker" if widened == "worker" else f"in the main process, {threads} thread{'s' * (threads > 1)}"
    return f"{workers} worker{'s' * (workers != '1')}, widened {place}"


def _tokens_per_second(make_batch: Callable[[], object], *, tokens_per_batch: int, seconds: float) -> float:
    batches, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        make_batch()
        batches += 1
    return batches * tokens_per_batch / passed


@contextmanager
def _reader(command: list[str]) -> Iterator[Callable[[float, int], float]]:
    """A peer's process, warm; called with seconds and threads of torch it measures for so long."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def answer() -> str:
            for line in stdout:
                if line.startswith("result "):
                    return line.removeprefix("result ")
            errors.seek(0)
            raise PeersMissing(_last_line(errors.read()))

        def measure(seconds: float, threads: int) -> float:
            stdin.write(f"{seconds} {threads}\n")
            stdin.flush()
            return float(answer())

        try:
            answer()
            yield measure
        finally:
            stdin.close()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            stdout.close()


def _run(command: list[str]) -> str:
    """Return what a command printed."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PeersMissing(f"{' '.join(command[1:4])} failed: {_last_line(done.stderr or done.stdout)}")
    return done.stdout


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"
