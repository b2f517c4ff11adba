"""The start of training from a cache with many shards: the time from torch to the first batch, with one rank and with many on a machine.

    python benchmarks/start.py [--shards 20000] [--ranks 1 64] [--rounds 3] [--against REVISION]

Each rank is forked from a process that has imported torch. It counts its processor time for the import of `niels_cache_runtime`, for
opening the split, and for the first batch of (8, 1024). `own` is their sum, and `last` the time until the last rank has its batch. The
table has medians over ranks and rounds. The shards are sparse files of 20 MB in a temporary folder, so they take only inodes.
"""

import argparse
import gc
import hashlib
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from operator import sub
from pathlib import Path
from typing import Any

SHARD_BYTES = 20_000_000
DOCUMENTS = 1_000_000
STEPS = ("import", "open", "first batch", "own", "last")


def start_rank(split: str, number: int, ranks: int, began: float) -> dict[str, float]:
    """Start like a training program that has imported torch, and return the seconds of its steps."""
    marks = [time.process_time()]
    from niels_cache_runtime import TokenLoader

    marks.append(time.process_time())
    loader = TokenLoader(split, T=1024, B=8, seed=1, rank=number, world_size=ranks)
    marks.append(time.process_time())
    next(iter(loader))
    marks.append(time.process_time())
    steps = dict(zip(("import", "open", "first batch"), map(sub, marks[1:], marks), strict=False))
    return {**steps, "own": marks[-1] - marks[0], "last": time.time() - began}


def start_ranks(split: str, ranks: int) -> list[dict[str, float]]:
    """Start all ranks at once. They are forked from one process that has imported torch, and share its memory."""
    import torch.utils.data  # noqa: F401

    gc.freeze()  # a collection in a rank then costs nothing for torch's objects
    with ProcessPoolExecutor(ranks, mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(time.sleep, [0.2] * ranks))  # so that all are there
        began = time.time()
        return list(pool.map(start_rank, [split] * ranks, range(ranks), [ranks] * ranks, [began] * ranks))


def make_split(root: Path, shards: int) -> Path:
    """Make a split of sparse shards."""
    import numpy as np

    from niels_cache_runtime.format.layout import doc_ends_name, shard_name
    from niels_cache_runtime.format.meta import content_sha256, write_meta

    split = root / "pretrain" / "many" / "train"
    split.mkdir(parents=True)
    files: dict[str, dict[str, Any]] = {}
    for name in map(shard_name, range(shards)):
        with (split / name).open("wb") as shard:
            shard.truncate(SHARD_BYTES)
        files[f"train/{name}"] = {"bytes": SHARD_BYTES, "sha256": hashlib.sha256(name.encode()).hexdigest()}
    tokens = shards * SHARD_BYTES // 2
    ends = split.parent / doc_ends_name("train")
    np.save(ends, np.linspace(0, tokens, DOCUMENTS + 1).astype(np.uint64)[1:])
    files[ends.name] = {"bytes": ends.stat().st_size, "sha256": hashlib.sha256(ends.read_bytes()).hexdigest()}
    meta: dict[str, Any] = {"kind": "pretrain/jsonl", "dataset_name": "many", "token_dtype": "uint16-le", "vocab_size": 32_000}
    meta |= {"train_tokens": tokens, "val_tokens": 0, "special_token_ids": {"eot": 0}, "built": True}
    write_meta(str(split.parent / "meta.json"), {**meta, "files": files, "content_sha256": content_sha256(files)})
    return split


def main() -> None:
    if sys.argv[1:2] == ["--start"]:
        print(json.dumps(start_ranks(sys.argv[2], int(sys.argv[3]))))
        return
    from earlier import packages_of, result, start

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shards", type=int, default=20_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", metavar="REVISION", help="a git revision to measure in turn with this working tree")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        split = make_split(folder, arguments.shards)
        revisions = [arguments.against, None] if arguments.against else [None]
        packages = {revision or "this working tree": packages_of(revision, folder) for revision in revisions}
        print(f"| ranks, packages ({arguments.shards:,} shards) | {' | '.join(STEPS)}, measured |")
        print("|---" * (len(STEPS) + 1) + "|")
        for ranks in arguments.ranks:
            found: dict[str, list[dict[str, float]]] = {name: [] for name in packages}
            for _ in range(arguments.rounds):
                for name, where in packages.items():
                    of_ranks = result(start(where, Path(__file__), "--start", str(split), str(ranks)))
                    found[name].append({step: statistics.median(each[step] for each in of_ranks) for step in STEPS})
                    found[name][-1]["last"] = max(each["last"] for each in of_ranks)
            for name, rounds in found.items():
                print(f"| {ranks}, {name} | {' | '.join(f'{statistics.median(each[step] for each in rounds):.3f} s' for step in STEPS)} |")


if __name__ == "__main__":
    main()
