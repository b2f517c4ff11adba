"""Other projects against this one: the same text tokenized by each one's writer, and shuffled batches read back by each one's dataset.

    python benchmarks/peers.py [--megabytes 60] [--rounds 3] [--seconds 3] [--parts 2]

The text is `bulk` of NIELS_CACHE_REAL_DATA (else the standard library's sources), repeated, each time a little different, as files of JSON
lines. Everybody uses one byte-level BPE tokenizer of 16,000 tokens, trained on that text, through the library `tokenizers`, and two cores:
two processes, or for ours two threads. "script" is the loop that people write first: json, `encode_batch`, `tofile`; random windows from a
np.memmap. Rounds take turns; figures are medians, with the lowest and the highest in brackets. Seconds of a writer count from after its
imports to the finished data set; "start" is the part that the first 100 documents alone take, most of it the start of its processes. Our
build shuffles, hashes, keeps its journal and syncs to the disk.

Needs 20 times the text in disk below the temporary folder. peers/compare.py says how the others are installed and run.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from build import base_texts, repeated
from niels_cache_assets.build_cache import Resume, build_pretrain_cache
from niels_cache_assets.sources import PRETRAIN_SOURCES
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime import TokenLoader
from peers.compare import PEERS, PeersMissing, race, tokenize_seconds
from trained import EOT, train_tokenizer

B, T = 32, 1024
TEXTS_AT_ONCE = 1_000
FEW = 100  # documents


class BytePairs:
    """A tokenizer of the library `tokenizers`, as the builders take one."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
        self.vocab_size: int = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text], 1)[0].tolist()

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[NDArray[np.uint16]]:
        return [np.array(encoding.ids, dtype=np.uint16) for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def special_token_ids(self) -> dict[str, int]:
        return {"eot": self._tokenizer.token_to_id(EOT)}


def write_inputs(folder: Path, texts: list[str], parts: int) -> list[Path]:
    """Write the texts as files of JSON lines, every file about as large."""
    folder.mkdir()
    paths = [folder / f"part_{part}.jsonl" for part in range(parts)]
    for part, path in enumerate(paths):
        rows = enumerate(texts[part::parts])
        path.write_text("".join(json.dumps({"id": f"{part}-{row}", "text": text}) + "\n" for row, text in rows), encoding="utf-8")
    return paths


def build_ours(inputs: list[Path], tokenizer: Path, target: Path) -> None:
    source = PRETRAIN_SOURCES["jsonl"].model_validate({"source": "jsonl", "files": [str(path) for path in inputs]})
    build_pretrain_cache(
        chain.from_iterable(source.documents(StreamContext(seed=0))),
        str(target),
        tokenizer=BytePairs(tokenizer),
        max_train_tokens=2**62,
        max_val_tokens=0,
        shard_bytes=2**27,
        seed=0,
        shuffle_buffer=10_000,
        threads=2,
        resume=Resume(fingerprint="benchmark", afresh=True),
    )


def run_script(inputs: list[Path], tokenizer: Path, target: Path) -> None:
    encoder = Tokenizer.from_file(str(tokenizer))
    eot = encoder.token_to_id(EOT)
    target.mkdir()
    with open(target / "train.bin", "wb") as out:
        for path in inputs:
            with open(path, encoding="utf-8") as lines:
                texts = [json.loads(line)["text"] for line in lines]
            for first in range(0, len(texts), TEXTS_AT_ONCE):
                for encoding in encoder.encode_batch_fast(texts[first : first + TEXTS_AT_ONCE]):
                    np.array([*encoding.ids, eot], dtype=np.uint16).tofile(out)


def random_windows(folder: Path) -> Callable[[], object]:
    tokens = np.memmap(folder / "train.bin", dtype=np.uint16, mode="r")
    generator = torch.Generator().manual_seed(0)

    def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(tokens) - T, (B,), generator=generator).tolist()
        x = torch.stack([torch.from_numpy(tokens[start : start + T].astype(np.int64)) for start in starts])
        y = torch.stack([torch.from_numpy(tokens[start + 1 : start + 1 + T].astype(np.int64)) for start in starts])
        return x, y

    return make_batch


def seconds_of(name: str, inputs: list[Path], *, tokenizer: Path, target: Path) -> float:
    """Tokenize files in a process of its own, and return the seconds after its imports."""
    if name in PEERS:
        return tokenize_seconds(name, inputs, tokenizer=tokenizer, target=target, T=T)
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": str(name == "script").lower()}  # our two threads share the cores already
    command = [sys.executable, __file__, "--child", name, str(tokenizer), str(target), *map(str, inputs)]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def child(name: str, tokenizer: str, target: str, *inputs: str) -> None:
    job = {"niels-cache": build_ours, "script": run_script}[name]
    begin = time.perf_counter()
    job([Path(path) for path in inputs], Path(tokenizer), Path(target))
    print(time.perf_counter() - begin)


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def shown(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=60, help="text (default: 60)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--seconds", type=float, default=3.0, help="of reading in each round (default: 3)")
    parser.add_argument("--parts", type=int, default=2, help="files that the text is in (default: 2)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.child:
        return child(*settings.child)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        texts = repeated(base_texts(), settings.megabytes)
        inputs = write_inputs(work / "texts", texts, settings.parts)
        tokenizer = work / "tokenizer.json"
        train_tokenizer(texts, tokenizer)
        size = sum(len(text.encode()) for text in texts) / 1e6
        print(
            f"{len(texts):,} documents, {size:.0f} MB of text, torch {torch.__version__}, tokenizers {tokenizers.__version__}", flush=True
        )

        folders = {name: work / name for name in ("niels-cache", *PEERS, "script")}

        def run(name: str, inputs: list[Path], folder: Path) -> float:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder.with_name(f"{folder.name}-logs"), ignore_errors=True)  # datatrove's, which would skip what is done
            return seconds_of(name, inputs, tokenizer=tokenizer, target=folder)

        few = write_inputs(work / "few", texts[:FEW], settings.parts)
        starts = {name: run(name, few, work / "start") for name in folders}
        taken: dict[str, list[float]] = {name: [] for name in folders}
        for _ in range(settings.rounds):
            for name, folder in folders.items():
                taken[name].append(run(name, inputs, folder))
                print(f"  {name}: {taken[name][-1]:.1f} s", flush=True)
        median = statistics.median(taken["niels-cache"])
        print("| writer | seconds | start | MB/s | against niels-cache | bytes on disk for each byte of text |\n|---|---|---|---|---|---|")
        for name, times in taken.items():
            middle = statistics.median(times)
            on_disk = bytes_in(folders[name]) / size / 1e6
            ratio = f"{middle / median:.2f}x"
            print(f"| {name} | {shown(times, '.1f')} | {starts[name]:.1f} | {size / middle:.1f} | {ratio} | {on_disk:.2f} |")

        batches = iter(TokenLoader(str(folders["niels-cache"] / "train"), T=T, B=B, seed=0))
        here = {"niels-cache": lambda: next(batches), "script": random_windows(folders["script"])}
        speeds = race(here, {name: folders[name] for name in PEERS}, T=T, B=B, rounds=settings.rounds, seconds=settings.seconds)
        print("| reader | M tokens/s | niels-cache is faster by | its best settings |\n|---|---|---|---|")
        for name in folders:
            millions = [tokens / 1e6 for tokens in speeds[name].tokens]
            ratio = speeds["niels-cache"].median / speeds[name].median
            print(f"| {name} | {shown(millions, '.3g')} | {ratio:.1f}x | {speeds[name].settings} |")


if __name__ == "__main__":
    try:
        main()
    except PeersMissing as error:
        raise SystemExit(f"a peer is missing or failed: {error}") from error
