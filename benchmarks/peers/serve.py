"""Functions that the peers' scripts share. It runs in the peers' environments, so it imports nothing of this project.

    python PEER.py tokenize TOKENIZER TARGET T INPUT...   files of JSON lines, tokenized by the peer's own writer on two cores
    python PEER.py write SOURCE TARGET T [--mib N]        the shards of SOURCE in the peer's own format, N MiB a file
    python PEER.py read TARGET T B WORKERS MODE
    python PEER.py stream TARGET T B WORKERS MODE ADDRESS LIMIT SECONDS [--options JSON]   through a copy of LIMIT bytes in TARGET

`tokenize` prints a line "result N", the seconds that it took after the imports. `read` prints "result ready" after the warm-up. Then every
line on its input is a number of seconds to measure for and a number of torch's threads, answered by a line "result N", tokens per second of
x and y. MODE says where tokens are widened to int64: `worker` or `main`, the process that trains. The start of an epoch, when a peer
shuffles, is not measured.

`stream` takes batches for SECONDS after the first one, with the starts of epochs, and prints "result" and JSON: the seconds to the first
batch, and the batches, the seconds and the processor seconds of all processes after it. The endpoint comes from the environment. JSON has
arguments of the peer.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

WARM_UP_BATCHES = 100
EOT = "<|endoftext|>"
TEXTS_AT_ONCE = 1_000
Pair = tuple[torch.Tensor, torch.Tensor]
Tokenize = Callable[[list[Path], Path, Path, int], None]  # inputs, tokenizer, target, T


def rows_of(source: Path, T: int) -> Iterator[NDArray[np.uint16]]:
    """Yield the tokens of all shards, one after the other, cut into rows of T+1."""
    return cut_into_rows((np.fromfile(path, dtype="<u2") for path in sorted(source.glob("shard_*.bin"))), T)


def cut_into_rows(parts: Iterable[NDArray[np.uint16]], T: int) -> Iterator[NDArray[np.uint16]]:
    """Yield the tokens of all parts, one after the other, cut into rows of T+1."""
    left = np.empty(0, dtype=np.uint16)
    for part in parts:
        tokens = np.concatenate([left, part])
        end = len(tokens) // (T + 1) * (T + 1)
        yield from tokens[:end].reshape(-1, T + 1)
        left = tokens[end:]


def batches_of_documents(source: Path, tokenizer: Path) -> Iterator[list[NDArray[np.uint16]]]:
    """Yield the tokens of a file's documents, each with its EOT, in lists of at most TEXTS_AT_ONCE documents."""
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    eot = encoder.token_to_id(EOT)

    def encoded(texts: list[str]) -> list[NDArray[np.uint16]]:
        return [np.array([*encoding.ids, eot], dtype=np.uint16) for encoding in encoder.encode_batch_fast(texts)]

    texts: list[str] = []
    with open(source, encoding="utf-8") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            if len(texts) == TEXTS_AT_ONCE:
                yield encoded(texts)
                texts = []
    yield encoded(texts)


def stack(rows: list[NDArray[np.uint16]]) -> torch.Tensor:
    """(B, T+1) uint16."""
    return torch.from_numpy(np.stack(rows))


def widen(tokens: torch.Tensor) -> Pair:
    """`tokens` (B, T+1) uint16 or int64 -> x, y (B, T) int64, contiguous."""
    x, y = (part.to(torch.int64, memory_format=torch.contiguous_format) for part in (tokens[:, :-1], tokens[:, 1:]))
    return x.contiguous(), y.contiguous()  # copies what is int64 already


def stack_and_widen(rows: list[NDArray[np.uint16]]) -> Pair:
    return widen(stack(rows))


def main(
    *,
    tokenize: Tokenize,
    make_loader: Callable[..., Iterable[torch.Tensor | Pair]],
    write: Callable[[Path, Path, int, int], None] | None = None,
    make_remote_loader: Callable[..., Iterable[torch.Tensor | Pair]] | None = None,
) -> None:
    """make_loader(folder, T=, B=, workers=, collate=) -> the peer's loader.

    make_remote_loader also takes address=, limit=, in bytes, and the arguments of --options.
    """
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    tokenizing, writing, reading, streaming = (commands.add_parser(name) for name in ("tokenize", "write", "read", "stream"))
    tokenizing.add_argument("tokenizer", type=Path)
    writing.add_argument("source", type=Path)
    for command in (tokenizing, writing, reading, streaming):
        command.add_argument("target", type=Path)
        command.add_argument("T", type=int)
    tokenizing.add_argument("inputs", type=Path, nargs="+")
    writing.add_argument("--mib", type=int, default=64)
    for command in (reading, streaming):
        command.add_argument("B", type=int)
        command.add_argument("workers", type=int)
        command.add_argument("mode", choices=["worker", "main"])
    streaming.add_argument("address")
    streaming.add_argument("limit", type=int)
    streaming.add_argument("seconds", type=float)
    streaming.add_argument("--options", type=json.loads, default={})
    given = parser.parse_args()
    if given.command == "tokenize":
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # two processes share two cores
        begin = time.perf_counter()
        tokenize(given.inputs, given.tokenizer, given.target, given.T)
        return print(f"\nresult {time.perf_counter() - begin}", flush=True)
    if given.command == "write":
        assert write is not None
        return write(given.source, given.target, given.T, given.mib)
    collate = stack_and_widen if given.mode == "worker" else stack
    settings = {"T": given.T, "B": given.B, "workers": given.workers, "collate": collate}
    if given.command == "stream":
        assert make_remote_loader is not None
        torch.set_num_threads(1)
        began = time.perf_counter()
        loader = make_remote_loader(given.target, address=given.address, limit=given.limit, **settings, **given.options)
        return stream(endless(loader, (given.B, given.T)), began=began, seconds=given.seconds)
    loader = make_loader(given.target, **settings)
    _serve(loader, tokens_per_batch=given.B * given.T, shape=(given.B, given.T))


def stream(batches: Iterator[Pair], *, began: float, seconds: float, beside: str = "") -> None:
    """Take batches, and print what `stream` prints.

    began: the perf_counter before the loader was made. beside: see `processor_seconds`.
    """
    next(batches)
    cpu, first, taken = processor_seconds(beside), time.perf_counter(), 0
    while (now := time.perf_counter()) - first < seconds:
        next(batches)
        taken += 1
    cpu = processor_seconds(beside) - cpu
    found = {"first": first - began, "batches": taken, "seconds": now - first, "processor_seconds": cpu}
    print(f"\nresult {json.dumps(found)}", flush=True)


def endless(loader: Iterable[torch.Tensor | Pair], shape: tuple[int, int]) -> Iterator[Pair]:
    """Yield the batches of epoch after epoch, without the short batch at the end of an epoch."""
    while True:
        for batch in loader:
            x, y = widen(batch) if isinstance(batch, torch.Tensor) else batch
            if x.shape == shape:
                _check(x, y)
                yield x, y


def processor_seconds(beside: str = "") -> float:
    """Return the processor seconds of this process, of all below it, and of those with the argument `beside` in their command lines.

    They are read from /proc, in steps of 10 ms. An ended process counts if its parent has waited for it.
    """
    parents, ticks, counted = {}, {}, {os.getpid()}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        number = int(folder.name)
        parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))  # user and system, its own and of its ended children
        if beside and beside.encode() in words:
            counted.add(number)
    before = 0
    while len(counted) > before:
        before = len(counted)
        counted |= {number for number, parent in parents.items() if parent in counted}
    return sum(ticks.get(number, 0) for number in counted) / os.sysconf("SC_CLK_TCK")


def _serve(loader: Iterable[torch.Tensor | Pair], *, tokens_per_batch: int, shape: tuple[int, int]) -> None:
    torch.empty(30 << 20, dtype=torch.uint8)  # freed at once: glibc then keeps blocks up to that size, as for our side
    batches = iter(loader)

    def seconds_of_next() -> float:
        """Of one batch; 0 where it begins an epoch."""
        nonlocal batches
        begin = time.perf_counter()
        batch = next(batches, None)
        starts_epoch = batch is None
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        x, y = widen(batch) if isinstance(batch, torch.Tensor) else batch
        took = time.perf_counter() - begin
        if x.shape != shape:  # the short batch at the end of an epoch
            return 0.0
        _check(x, y)
        return 0.0 if starts_epoch else took

    for _ in range(WARM_UP_BATCHES):
        seconds_of_next()
    print("result ready", flush=True)
    for line in sys.stdin:
        seconds, threads = line.split()
        torch.set_num_threads(int(threads))
        busy, measured = 0.0, 0
        while busy < float(seconds):
            took = seconds_of_next()
            busy += took
            measured += took > 0
        print(f"result {measured * tokens_per_batch / busy}", flush=True)


def _check(x: torch.Tensor, y: torch.Tensor) -> None:
    assert x.dtype == y.dtype == torch.int64
    assert x.is_contiguous()
    assert y.is_contiguous()
    assert x[-1, 1] == y[-1, 0]
