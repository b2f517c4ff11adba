"""The speed of verifying a cache, compared with hashing alone: in one run, in turns, warm in the page cache.

    python benchmarks/verify.py [--mib 1024] [--shards 16] [--rounds 5]

Random tokens (`torch.Generator`) in documents of 600 tokens on average. `verify` hashes every file and checks every id and document;
`sha256sum` is the command, as many at a time as there are cores; `hashlib` is Python's, one thread for each core: the fastest hash if
that command is built without the processor's own instructions. A time is the median of the rounds. Needs the cache's size on disk.
"""

import argparse
import hashlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from niels_cache_runtime.cache.opening import open_split
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, SPLITS, TOKEN_DTYPE, TOKEN_DTYPE_NAME, doc_ends_name, shard_name
from niels_cache_runtime.format.meta import content_sha256, sha256_file, write_meta
from niels_cache_runtime.format.reading import available_threads
from niels_cache_runtime.verify import verify_dataset

WANTED = 0.8
VOCAB_SIZE = 16_000
EOT = 6
DOCUMENT_TOKENS = 600


def write_cache(folder: Path, *, mib: int, shards: int) -> None:
    """Write a pretrain cache of random documents, all of it in train."""
    generator = torch.Generator().manual_seed(0)
    per_shard = mib * (1 << 20) // shards // TOKEN_DTYPE.itemsize
    ends: list[np.ndarray] = []
    for split in SPLITS:
        (folder / split).mkdir(parents=True)
    for index in range(shards):
        tokens = torch.randint(EOT + 1, VOCAB_SIZE, (per_shard,), generator=generator).numpy().astype(TOKEN_DTYPE)
        closed = np.unique(torch.randint(per_shard, (per_shard // DOCUMENT_TOKENS,), generator=generator).numpy())
        closed = np.append(closed[closed < per_shard - 1], per_shard - 1)
        tokens[closed] = EOT
        ends.append(closed + 1 + index * per_shard)
        tokens.tofile(folder / "train" / shard_name(index))
    documents = np.concatenate(ends).astype(DOC_ENDS_DTYPE)
    np.save(folder / doc_ends_name("train"), documents)
    np.save(folder / doc_ends_name("val"), documents[:0])
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(str(path))} for path in paths}
    meta = {
        "kind": "pretrain",
        "built": True,
        "append_eot": True,
        "dataset_name": folder.name,
        "token_dtype": TOKEN_DTYPE_NAME,
        "vocab_size": VOCAB_SIZE,
        "special_token_ids": {"sys": 3, "usr": 4, "asst": 5, "eot": EOT},
        "shard_bytes": per_shard * TOKEN_DTYPE.itemsize,
        "train_tokens": per_shard * shards,
        "val_tokens": 0,
        "documents": {"train": len(documents), "val": 0},
        "files": files,
        "content_sha256": content_sha256(files),
    }
    write_meta(str(folder / "meta.json"), meta)


def with_command(paths: Sequence[Path]) -> None:
    subprocess.run(
        ["xargs", "-0", "-n", "1", "-P", str(available_threads()), "sha256sum"],
        input=b"\0".join(str(path).encode() for path in paths),
        stdout=subprocess.DEVNULL,
        check=True,
    )


def with_hashlib(paths: Sequence[Path]) -> None:
    def digest(path: Path) -> str:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor(available_threads()) as pool:
        list(pool.map(digest, paths))


def verify(folder: Path, *, quick: bool = False) -> None:
    findings = verify_dataset(folder, quick=quick)
    assert not findings, findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "random"
        write_cache(folder, mib=settings.mib, shards=settings.shards)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        size = sum(path.stat().st_size for path in paths)
        ways: dict[str, Callable[[], object]] = {
            "verify": lambda: verify(folder),
            "sha256sum, all cores": lambda: with_command(paths),
            "hashlib, all cores": lambda: with_hashlib(paths),
            'opening, verify="sha256"': lambda: open_split(folder / "train", doc_ends=True, verify="sha256"),
            "opening": lambda: open_split(folder / "train", doc_ends=True),
            "verify, quick": lambda: verify(folder, quick=True),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(settings.rounds + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                if turn:  # the first round warms up
                    seconds[name].append(time.perf_counter() - began)
    print(f"{size / 1e6:,.0f} MB in {len(paths)} files, {available_threads()} cores; median of {settings.rounds} rounds")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"  {name:26} {median * 1e3:10,.1f} ms   {size / median / 1e9:8,.2f} GB/s")
    for other in ("sha256sum, all cores", "hashlib, all cores"):
        ratio = medians[other] / medians["verify"]
        print(f"  verify is at {ratio:.0%} of {other} (wanted: at least {WANTED:.0%})")


if __name__ == "__main__":
    main()
