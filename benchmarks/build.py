"""The share of the machine that a build uses: the whole path against bare encoding of the same texts, and its peak memory.

One run measures everything on the same texts, in rounds that take turns, and prints ratios of the rounds' medians. It does so for short
documents (390 bytes) and for longer ones (2 kB), both cut from the same texts:

* the build from Parquet and from .jsonl.gz, against `encode_as_numpy` of the same texts already in
  memory on all cores: 1.0 means that reading, shuffling, hashing and writing cost nothing;
* the build from Parquet with a journal, which can be resumed after a kill: with its fsyncs every 32 MiB of output, and the time of the
  journal's records;
* the build from Parquet as the first one of a process, which loads and proves the engine that later builds find ready;
* everything but encoding: the build from Parquet with an encoder that returns stored ids, and the processor time that the thread which
  orders the batches takes for each document;
* the SFT build of oasst1, repeated, against `encode_as_numpy` of its messages (with NIELS_CACHE_REAL_DATA);
* against the simplest loop: json, `encode`, `np.array(...).tofile`, one thread;
* peak memory of the build over four times the input against once (a child process each).

Texts: bulk/debian_docs_dev.jsonl.gz below NIELS_CACHE_REAL_DATA, repeated, if that is set; else the standard library's sources.

    python benchmarks/build.py [--megabytes 150] [--rounds 3] [--bytes 390 2000]
"""

import argparse
import contextlib
import gzip
import itertools
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pyarrow
import pyarrow.parquet

import repository_path  # noqa: F401
from niels_cache_assets.base.strings import Strings
from niels_cache_assets.build_cache import Resume, build_pretrain_cache, build_sft_cache
from niels_cache_assets.disk.journal import Journal
from niels_cache_assets.disk.writers import HashedFile
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.tokenizer.encoder import BuildEncoder
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.format.reading import available_threads
from tests.helpers.builds import build_tokenizer

SHUFFLE_BUFFER = 10_000
SFT_BYTES = 200_000_000


def base_texts() -> list[str]:
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    if real:
        with gzip.open(Path(real) / "bulk" / "debian_docs_dev.jsonl.gz", "rt", encoding="utf-8") as file:
            return [json.loads(line)["text"] for line in file]
    library = Path(sysconfig.get_path("stdlib"))
    return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(library.glob("[a-z]*/*.py"))]


def documents(texts: list[str], *, size: int, megabytes: int) -> list[str]:
    """Return pieces of the texts of about `size` bytes, cut at blanks. Their number comes first, so that no cache can help."""
    pieces = [piece for text in texts for piece in textwrap.wrap(text, size, replace_whitespace=False, drop_whitespace=False)]
    made: list[str] = []
    left = megabytes * 1_000_000
    for piece in itertools.cycle(pieces):
        if len(piece) < size // 2:
            continue
        made.append(f"{len(made)} {piece}")
        left -= len(made[-1].encode())
        if left <= 0:
            return made
    raise SystemExit("there are no texts to read")


def repeated(texts: list[str], megabytes: int) -> list[str]:
    """Return enough of `texts`, repeated, each time slightly different, so that no cache can help. Other benchmarks read these, too."""
    made: list[str] = []
    size = 0
    while size < megabytes * 1_000_000:
        for text in texts:
            made.append(f"{len(made)} {text}")
            size += len(made[-1].encode())
            if size >= megabytes * 1_000_000:
                break
    return made


class StoredIds:
    """A tokenizer that returns the same stored ids for any texts: a chunk of real documents. So encoding costs nothing.

    Builds give it columns in Arrow's form, as they do to a fast engine (`building`).
    """

    def __init__(self, tokenizer: SentencePieceTokenizer, texts: list[str]) -> None:
        self._tokenizer = tokenizer
        arrays = tokenizer.encode_unchecked(texts[:2048])
        self._ids, self._ends = np.concatenate(arrays), np.cumsum([len(ids) for ids in arrays])
        self._lengths = np.diff(self._ends, prepend=0)
        self.vocab_size = tokenizer.vocab_size

    def special_token_ids(self) -> dict[str, int]:
        return self._tokenizer.special_token_ids()

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text], 1)[0].tolist()

    def encode_batch(self, texts: list[str], threads: int) -> list[np.ndarray]:
        return np.split(self._ids[: self._ends[len(texts) - 1]], self._ends[: len(texts) - 1])

    def encode_flat(self, texts: Sequence[str] | Strings) -> tuple[np.ndarray, np.ndarray]:
        return self._ids[: self._ends[len(texts) - 1]], self._lengths[: len(texts)]

    def building(self) -> AbstractContextManager[Any]:
        return mock.patch.object(BuildEncoder, "encode_flat", lambda _, texts, batch: self.encode_flat(texts))


def write_inputs(folder: Path, texts: list[str]) -> None:
    ids = [str(number) for number in range(len(texts))]
    pyarrow.parquet.write_table(pyarrow.table({"id": ids, "text": texts}), folder / "texts.parquet", row_group_size=1_000)
    with gzip.open(folder / "texts.jsonl.gz", "wt", encoding="utf-8", compresslevel=3) as file:
        file.writelines(json.dumps({"id": number, "text": text}) + "\n" for number, text in zip(ids, texts, strict=True))


def sources(folder: Path) -> dict[str, PretrainSource]:
    def table(kind: str, name: str, **keys: object) -> PretrainSource:
        return PRETRAIN_SOURCES[kind].model_validate({"source": kind, "files": [str(folder / name)], **keys})

    return {
        "parquet": table("parquet", "texts.parquet", shuffle_buffer=SHUFFLE_BUFFER),
        "jsonl.gz": table("jsonl", "texts.jsonl.gz", shuffle_buffer=SHUFFLE_BUFFER),
    }


def build(source: PretrainSource, tokenizer: Any, folder: Path, *, resume: Resume | None = None) -> None:
    build_pretrain_cache(
        Feed(source.documents, StreamContext(seed=42)),
        str(folder / "cache"),
        tokenizer=tokenizer,
        max_train_tokens=2**62,
        max_val_tokens=100_000,
        shard_bytes=2**27,
        seed=42,
        shuffle_buffer=source.shuffle_buffer or None,
        resume=resume,
    )


record_seconds: list[float] = []  # of each build with a journal


def build_with_journal(source: PretrainSource, tokenizer: SentencePieceTokenizer, folder: Path) -> None:
    seconds_now = 0.0

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **settings: Any) -> Any:
            nonlocal seconds_now
            started = time.perf_counter()
            try:
                return call(*args, **settings)
            finally:
                seconds_now += time.perf_counter() - started

        return wrapper

    with (
        mock.patch.object(Journal, "record", timed(Journal.record)),
        mock.patch.object(HashedFile, "flush", timed(HashedFile.flush)),
    ):
        build(source, tokenizer, folder, resume=Resume(fingerprint="benchmark", afresh=True))
    record_seconds.append(seconds_now)


def bare_encode(texts: list[str], tokenizer: SentencePieceTokenizer) -> None:
    def encode(chunk: list[str]) -> None:
        for text in chunk:
            tokenizer.library_processor.encode_as_numpy(text)

    with ThreadPoolExecutor(available_threads()) as executor:
        for _ in executor.map(encode, [texts[start : start + 256] for start in range(0, len(texts), 256)]):
            pass


def plain_loop(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    eot = tokenizer.special_token_ids()["eot"]
    with gzip.open(folder / "texts.jsonl.gz", "rt", encoding="utf-8") as lines, open(folder / "plain.bin", "wb") as out:
        for line in lines:
            np.array([*tokenizer.library_processor.encode(json.loads(line)["text"]), eot], dtype=np.uint16).tofile(out)


def seconds(job: Callable[[], None]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def peak_of(child: psutil.Popen) -> float:
    """Wait for a process. Return its peak resident memory in MB, sampled every hundredth of a second. Exits if the process fails."""
    peak = 0
    while child.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            peak = max(peak, child.memory_info().rss)
        time.sleep(0.01)
    if child.returncode:
        raise SystemExit(f"the build failed: {' '.join(map(str, child.args))}")
    return peak / 1e6


def first_build(folder: Path, model: Path, kind: str) -> float:
    """Return the seconds of the first build of a new process, without the time that Python takes to start and to import modules."""
    command = [sys.executable, __file__, "--child", str(folder), str(model), kind]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def peak_megabytes(folder: Path, model: Path, kind: str) -> float:
    """Return the peak resident memory of a new process that builds from `folder`."""
    return peak_of(psutil.Popen([sys.executable, __file__, "--child", str(folder), str(model), kind], stdout=subprocess.DEVNULL))


def run_sft(tokenizer: SentencePieceTokenizer, folder: Path, rounds: int) -> None:
    """Print the speed of an SFT build of oasst1, repeated to 200 MB, against bare encoding of its messages."""
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    if not real:
        print("SFT: left out, because NIELS_CACHE_REAL_DATA is not set")
        return
    source = SFT_SOURCES["oasst1"].model_validate({"source": "oasst1", "files": [f"{real}/oasst1/*trees*.jsonl"]})
    given = [each for batch in source.conversations(StreamContext(seed=42)) for each in batch]
    messages = [message["content"] for each in given for message in each.messages]
    size = sum(len(text.encode()) for text in messages)
    times = max(1, SFT_BYTES // size)
    conversations = given * times
    bare, built = [], []
    for _ in range(rounds):
        bare.append(seconds(lambda: bare_encode(messages * times, tokenizer)))
        built.append(
            seconds(
                lambda: build_sft_cache(
                    Feed(
                        lambda context: (conversations[start : start + 256] for start in range(0, len(conversations), 256)),
                        StreamContext(seed=42),
                    ),
                    str(folder / "sft"),
                    tokenizer=tokenizer,
                    val_frac=0.1,
                    seed=42,
                )
            )
        )
    both = statistics.median(bare), statistics.median(built)
    print(f"SFT: {len(conversations):,} conversations, {size * times / 1e6:.0f} MB: {both[1]:.1f} s, {both[0] / both[1]:.2f} x bare")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, nargs="+", default=[390, 2000], help="sizes of documents")
    parser.add_argument("--no-memory", action="store_true", help="leave out the peak memory")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child_folder, child_model, kind = arguments.child
        tokenizer, source = SentencePieceTokenizer(child_model), sources(Path(child_folder))[kind]
        return print(seconds(lambda: build(source, tokenizer, Path(child_folder))))
    for size in arguments.bytes:
        with tempfile.TemporaryDirectory() as temporary:
            texts = documents(base_texts(), size=size, megabytes=arguments.megabytes)
            model = run(texts, Path(temporary), rounds=arguments.rounds)
            if not arguments.no_memory:
                run_memory(texts, Path(temporary), model)
            if size == arguments.bytes[-1]:
                run_sft(SentencePieceTokenizer(str(model)), Path(temporary), arguments.rounds)


def run(texts: list[str], folder: Path, *, rounds: int) -> Path:
    """Print the speeds of builds from these texts. Return the model of the tokenizer."""
    write_inputs(folder, texts)
    size = sum(len(text.encode()) for text in texts) / 1e6
    tables = {"tokenizer": {"train_on": ["texts"], "sample_bytes": 10_000_000}}
    inputs = {"pretrain": {"texts": {"source": "parquet", "files": [str(folder / "texts.parquet")]}}}
    model = build_tokenizer(load_registry(profile="default", overrides={**tables, **inputs}), root=folder).model
    tokenizer = SentencePieceTokenizer(str(model))
    print(f"{len(texts):,} documents, {size:.0f} MB of text, {tokenizer.vocab_size:,} pieces, {available_threads()} cores")

    jobs: dict[str, Callable[[], None]] = {"bare encode_as_numpy": lambda: bare_encode(texts, tokenizer)}
    for kind, source in sources(folder).items():
        jobs[kind] = lambda source=source: build(source, tokenizer, folder)  # type: ignore[misc]
    jobs["parquet with a journal"] = lambda: build_with_journal(sources(folder)["parquet"], tokenizer, folder)
    stored, ordering = StoredIds(tokenizer, texts), []

    def without_encoding() -> None:
        started = time.thread_time()
        with stored.building():
            build(sources(folder)["parquet"], stored, folder)
        ordering.append(time.thread_time() - started)

    jobs["parquet, everything but encoding"] = without_encoding
    jobs["plain loop, one thread"] = lambda: plain_loop(folder, tokenizer)
    first = "parquet, first build of a process"
    times: dict[str, list[float]] = {name: [] for name in (*jobs, first)}
    for _ in range(rounds):
        for name, job in jobs.items():
            times[name].append(seconds(job))
        times[first].append(first_build(folder, model, "parquet"))
    medians = {name: statistics.median(values) for name, values in times.items()}
    bare, plain = medians["bare encode_as_numpy"], medians["plain loop, one thread"]
    print(f"{'':34} {'seconds':>8} {'MB/s':>7} {'x bare':>7} {'x loop':>7}")
    for name, median in medians.items():
        print(f"{name:34} {median:8.1f} {size / median:7.1f} {bare / median:7.2f} {plain / median:7.2f}")
    share = statistics.median(record_seconds[-rounds:]) / medians["parquet with a journal"]
    print(f"records of the journal: {share:.2%} of the build")
    print(f"thread that orders the batches: {statistics.median(ordering) / len(texts) * 1e6:.2f} microseconds a document")
    return model


def run_memory(texts: list[str], folder: Path, model: Path) -> None:
    """Print the peak memory of builds from these texts and from four times as many."""
    (folder / "four").mkdir()
    write_inputs(folder / "four", [f"{turn} {text}" for turn in range(4) for text in texts])
    print(f"{'peak memory':32} {'once':>8} {'4 times':>7} {'ratio':>7}")
    for kind in sources(folder):
        once, four = peak_megabytes(folder, model, kind), peak_megabytes(folder / "four", model, kind)
        print(f"{kind:32} {once:6.0f}MB {four:5.0f}MB {four / once:7.2f}")


if __name__ == "__main__":
    main()
