"""Data sets in parts: two parts at once, batches from a joined cache, opening many shards, and the seal.

    python benchmarks/parts.py [--quick] [--only together at-once reading opening sealing] [--megabytes 60] [--rounds 3]

* `together`: two parts of a data set, with one encoding thread each, one after the other and at once, in turns. Each part is built by a
  process of its own, which has imported everything before the clock starts. The table also has the cores that one part uses alone: its
  processor time by its duration. On two cores, the ratio cannot be above two divided by this number. The machine must be quiet.
* `at-once`: six parts, one after the other in one process (as `build-all` does if one part is built at a time), and each by the command
  `part` in a process of its own, with 1, 2 and 3 parts at a time. Each part gets its share of the cores, as with `[cluster] at_once`.
  Durations contain the starts of the processes. First with the project's own SentencePiece tokenizer, then with the fast BPE of DeepSeek
  (with NIELS_CACHE_REAL_DATA). The machine must be quiet.
* `reading`: the same random tokens in the shards of 64 parts and of one build, warm in the page cache, in turns (see loader.py).
* `opening`: sparse shards of 128 MiB in 64 parts, with the ends of a hundred million documents.
* `sealing`: sparse shards of 64 parts become one cache.

Texts are those of build.py. `--megabytes` is the text of one part. Needs 2 GB of disk.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

import loader
import repository_path  # noqa: F401
from build import base_texts, documents
from loader import Row, Scale, get_batch_way, loader_way, mean_seconds, times
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.base.toml import as_toml
from niels_cache_assets.cluster.child import build_in_child
from niels_cache_assets.parts.layout import part_name
from niels_cache_assets.parts.seal import SealInput, seal
from niels_cache_assets.project.registry import load_registry
from niels_cache_runtime.format.layout import (
    DOC_ENDS_DTYPE,
    META_NAME,
    SPLITS,
    TOKEN_DTYPE,
    doc_ends_name,
    documents_name,
    shard_name,
)
from niels_cache_runtime.format.meta import write_meta
from tests.helpers.builds import build_tokenizer

PARTS = 64
WANTED = {"get_batch": 1.1, "loader": 1.25}
ONE_PROCESS = 0  # in place of the number of parts at a time
AT_ONCE = (ONE_PROCESS, 1, 2, 3)
PARTS_AT_ONCE = 6  # so that no number in AT_ONCE leaves a rest
DEEPSEEK_EOT = "<｜end▁of▁sentence｜>"


# Two parts at once


def write_texts(folder: Path, texts: list[str], files: int) -> None:
    """Write the texts into this many Parquet files of equal size."""
    folder.mkdir()
    for number in range(files):
        table = pyarrow.table({"text": texts[number * len(texts) // files : (number + 1) * len(texts) // files]})
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=1000)


def project(folder: Path) -> Graph:
    """Return the graph of a data set of two files in two parts, with one encoding thread each."""
    tables = {
        "pretrain": {"texts": {"source": "parquet", "files": [str(folder / "*.parquet")], "parts": 2, "val_frac": 0.0}},
        "tokenizer": {"train_on": ["texts"], "vocab_size": 8000, "sample_bytes": 10_000_000},
        "build": {"threads": 1},
    }
    return graph(load_registry(profile="default", overrides=tables), folder / "cache")


def build_part(folder: Path, number: int) -> None:
    """Build a part after a line on stdin, and print its seconds and its processor time. This is the child."""
    part = project(folder)[f"part/texts/{part_name(number)}"]
    part.identity(part.revision())  # reads the plan and the tokenizer
    print("ready", flush=True)
    sys.stdin.readline()
    begin, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    materialize(part, force=True)
    seconds, now = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([seconds, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime]), flush=True)


def build_together(folder: Path, numbers: list[int]) -> tuple[float, list[tuple[float, float]]]:
    """Build these parts at once. Return the seconds until all are built, and the seconds and the processor time of each."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen([sys.executable, __file__, "--part", str(folder), str(number)], **pipes) for number in numbers]  # type: ignore[call-overload]
    for child in children:
        if child.stdout.readline().strip() != "ready":
            raise SystemExit("a part could not be built; the lines above say why")
    begin = time.perf_counter()
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    told = [child.stdout.readline() for child in children]
    seconds = time.perf_counter() - begin
    for child in children:
        child.communicate()
    return seconds, [tuple(json.loads(line)) for line in told]


def together(work: Path, *, megabytes: int, rounds: int) -> Iterator[Row]:
    folder = work / "together"
    write_texts(folder, documents(base_texts(), size=2000, megabytes=2 * megabytes), 2)
    found = project(folder)
    build_tokenizer(found.registry, root=found.root)
    materialize(found["plan/texts"])
    alone, both, cores = [], [], []
    for _ in range(rounds):
        singles = [build_together(folder, [number]) for number in (0, 1)]
        alone.append(sum(seconds for seconds, _ in singles))
        cores += [used / seconds for _, children in singles for seconds, used in children]
        both.append(build_together(folder, [0, 1])[0])
    after, once = statistics.median(alone), statistics.median(both)
    yield Row(
        what=f"two parts of {megabytes} MB at once, against one after the other",
        measured=f"{once:.1f} s, {after:.1f} s; one part alone uses {statistics.median(cores):.2f} cores",
        wanted="1.7x",
        ratio=times(after / once),
    )
    shutil.rmtree(folder)


# Several parts at a time, by the command of a part


Tables = dict[str, dict[str, object]]


def tokenizer_tables() -> dict[str, Tables]:
    """Return the tables of the tokenizers to measure with, by name."""
    tables: dict[str, Tables] = {"SentencePiece": {"tokenizer": {"train_on": ["texts"], "vocab_size": 8000, "sample_bytes": 10_000_000}}}
    model = Path(os.environ.get("NIELS_CACHE_REAL_DATA", ""), "tokenizers", "deepseek_tokenizer.json")
    if "NIELS_CACHE_REAL_DATA" in os.environ and model.exists():
        tables["BPE of DeepSeek"] = {"tokenizer": {"model": str(model)}, "tokenizer.special_tokens": {"eot": DEEPSEEK_EOT}}
    return tables


def prepare_parts(folder: Path, texts: Path, tokenizer: Tables, count: int) -> Graph:
    """Return the graph of a data set in parts, with its tokenizer and its plan, from a file that child processes read."""
    folder.mkdir()
    config = folder / "niels_cache.toml"
    pretrain = {"source": "parquet", "files": [str(texts / "*.parquet")], "parts": count, "val_frac": 0.0}
    tables: Tables = {**tokenizer, "pretrain.texts": pretrain}
    lines = [
        line for name, table in tables.items() for line in (f"[{name}]", *(f"{key} = {as_toml(value)}" for key, value in table.items()))
    ]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = graph(load_registry(config=str(config)), folder / "cache")
    build_tokenizer(found.registry, root=found.root)
    materialize(found["plan/texts"])
    return found


def build_in_one_process(config: str, root: Path) -> None:
    """Build all parts, one after the other. This is the child."""
    chosen = graph(load_registry(config=config), root)
    for number in range(chosen.registry.pretrain["texts"].parts):
        materialize(chosen[f"part/texts/{part_name(number)}"])


def build_by_command(found: Graph, root: Path, limit: int) -> None:
    """Build each part by its command, so many at a time."""
    cluster = found.registry.cluster.model_copy(update={"at_once": limit})
    chosen = graph(replace(found.registry, cluster=cluster), root)

    def build(number: int) -> None:
        part = chosen[f"part/texts/{part_name(number)}"]
        outcome = build_in_child(part, lambda: None, on_progress=lambda progress: None, log=lambda line: None, is_stopping=lambda: False)
        if outcome.state != "built":
            raise SystemExit(f"{part.key}: {outcome.state}")

    with ThreadPoolExecutor(limit) as pool:
        for _ in pool.map(build, range(chosen.registry.pretrain["texts"].parts)):
            pass


def measured_build(found: Graph, root: Path, limit: int) -> tuple[float, float]:
    """Build all parts in one way. Return the seconds, and the processor time of all processes in seconds."""
    shutil.copytree(found.root, root)
    begin, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    if limit == ONE_PROCESS:
        subprocess.run([sys.executable, __file__, "--inside", found.registry.origin, str(root)], check=True)
    else:
        build_by_command(found, root, limit)
    seconds, now = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(root)
    return seconds, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def at_once(work: Path, *, count: int, megabytes: int, rounds: int, limits: Sequence[int] = AT_ONCE) -> Iterator[Row]:
    texts = work / "texts"
    write_texts(texts, documents(base_texts(), size=2000, megabytes=count * megabytes), count)
    for number, (name, tables) in enumerate(tokenizer_tables().items()):
        found = prepare_parts(work / f"at_once_{number}", texts, tables, count)
        runs: dict[int, list[tuple[float, float]]] = {limit: [] for limit in limits}
        for turn in range(rounds):
            for limit in limits if turn % 2 == 0 else reversed(limits):
                runs[limit].append(measured_build(found, work / "at_once", limit))
        shutil.rmtree(work / f"at_once_{number}")
        durations = {limit: statistics.median(seconds for seconds, _ in measured) for limit, measured in runs.items()}
        for limit, measured in runs.items():
            used = statistics.median(used for _, used in measured)
            speed = count * megabytes / durations[limit]
            way = "in one process" if limit == ONE_PROCESS else f"{limit} at a time"
            yield Row(
                what=f"{name}, {count} parts of {megabytes} MB, {way}",
                measured=f"{durations[limit]:.1f} s ({speed:.1f} MB/s), {used:.1f} s of processor time",
                wanted="",
                ratio=times(durations[limits[0]] / durations[limit]),
            )
    shutil.rmtree(texts)


# Batches


def reading(work: Path, scale: Scale) -> Iterator[Row]:
    tokens = scale.tokens // 4
    shard = max(loader.PAGE_TOKENS, tokens // 62 // loader.PAGE_TOKENS * loader.PAGE_TOKENS)
    one = loader.write_cache(work / "one", tokens=tokens, shard_tokens=shard)
    stream = np.concatenate([np.fromfile(path, TOKEN_DTYPE) for path in loader.list_shards(one)])
    split = work / "parts" / "train"
    split.mkdir(parents=True)
    shutil.copy(one.parent / doc_ends_name("train"), split.parent)
    number = 0
    for part in np.array_split(stream, PARTS):
        for start in range(0, len(part), shard):
            part[start : start + shard].tofile(split / shard_name(number))
            number += 1
    del stream
    scale = replace(scale, rounds=10 * scale.rounds, calls=max(1, scale.calls // 10))
    for B, T in ((8, 512), (32, 1024), (64, 2048)):
        ways = {}
        for name, folder in (("parts", split), ("one", one)):
            ways[f"get_batch {name}"] = get_batch_way(folder, B=B, T=T)
            ways[f"loader {name}"] = loader_way(folder, B=B, T=T)
        found = mean_seconds(ways, scale)
        for way, most in WANTED.items():
            of_parts, of_one = found[f"{way} parts"], found[f"{way} one"]
            yield Row(
                what=f"{way} ({B}, {T}), {PARTS} parts with {number} shards, against one build with {len(loader.list_shards(one))}",
                measured=f"{of_parts * 1e6:.0f} us, {of_one * 1e6:.0f} us",
                wanted=f"at most {most}x",
                ratio=times(of_parts / of_one),
            )
    shutil.rmtree(work / "one")
    shutil.rmtree(work / "parts")


# Opening and sealing


def opening(work: Path, *, shards: int, shard_bytes: int, rounds: int) -> Iterator[Row]:
    """The document ends are sparse too: opening a joined cache looks only at the first and at the last."""
    folder = work / "sparse"
    split = loader.write_sparse_cache(folder, shards=shards, shard_bytes=shard_bytes)
    meta = json.loads((folder / META_NAME).read_text(encoding="utf-8"))
    tokens, count = shards * shard_bytes // TOKEN_DTYPE.itemsize, 100_000_000
    ends = folder / doc_ends_name("train")
    written = np.lib.format.open_memmap(ends, mode="w+", dtype=DOC_ENDS_DTYPE, shape=(count,))
    written[0], written[-1] = 1, tokens
    written.flush()
    meta["files"][ends.name]["bytes"] = ends.stat().st_size
    of_part = {"shards": {"train": shards // PARTS, "val": 0}, "tokens": {"train": 1, "val": 0}, "documents": {"train": 1, "val": 0}}
    meta["parts"] = [{"name": part_name(number), **of_part, "short": 0, "meta_sha256": "0" * 64} for number in range(PARTS)]
    write_meta(str(folder / META_NAME), {key: value for key, value in meta.items() if key not in ("forms", "meta_sha256")})
    for opener in ("TokenLoader", "PretrainTokenStreamDataset"):
        command = [sys.executable, loader.__file__, "--open", opener, str(split)]
        told = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(rounds)]
        seconds, gained = (statistics.median(values) for values in zip(*told, strict=True))
        yield Row(
            what=f"open {shards:,} shards of {PARTS} parts: {opener}",
            measured=f"{seconds:.2f} s, {gained / 1e6:.0f} MB",
            wanted="under 2 s",
            ratio="",
        )
    shutil.rmtree(folder)


def sparse_part(folder: Path, shards: int, shard_bytes: int) -> SealInput:
    """Write a part of sparse shards, the last of which is short, and return it."""
    for split in SPLITS:
        (folder / split).mkdir(parents=True)
    sizes = {f"train/{shard_name(number)}": shard_bytes if number < shards - 1 else shard_bytes // 4 for number in range(shards)}
    for name, size in sizes.items():
        (folder / name).touch()
        os.truncate(folder / name, size)
    tokens = {"train": sum(sizes.values()) // TOKEN_DTYPE.itemsize, "val": 0}
    for split in SPLITS:
        np.save(folder / doc_ends_name(split), np.array([tokens[split]] if tokens[split] else [], DOC_ENDS_DTYPE))
        (folder / documents_name(split)).touch()
        sizes[documents_name(split)] = 0
    meta = dict.fromkeys(("append_eot", "shard_bytes", "source", "special_token_ids", "token_dtype", "tokenizer_sha256", "vocab_size"))
    files = {name: {"bytes": size, "sha256": "0" * 64} for name, size in sizes.items()}
    counts = {"documents": {"train": 1, "val": 0}, "characters": {"train": 0, "val": 0}, "cut_document": {"train": None, "val": None}}
    rest = {"dataset_config": None, "train_tokens": tokens["train"], "val_tokens": 0, "dropped": {}, "facts": {}, "files": files}
    return SealInput(name=folder.name, directory=folder, meta={**meta, **counts, **rest, "part": {"short": 0}, "meta_sha256": "0"})


def sealing(work: Path, *, shards: int, shard_bytes: int, rounds: int) -> Iterator[Row]:
    members = [sparse_part(work / "members" / part_name(number), max(1, shards // PARTS), shard_bytes) for number in range(PARTS)]
    seconds = []
    for _ in range(rounds):
        out = work / "sealed"
        out.mkdir()
        begin = time.perf_counter()
        write_meta(str(out / META_NAME), {"kind": "pretrain", **seal(members, out, target=out, log=print)})
        seconds.append(time.perf_counter() - begin)
        shutil.rmtree(out)
    shutil.rmtree(work / "members")
    yield Row(
        what=f"seal {shards:,} shards of {PARTS} parts", measured=f"{statistics.median(seconds):.2f} s", wanted="under 10 s", ratio=""
    )


CHOICES = ("together", "at-once", "reading", "opening", "sealing")


def measure(chosen: list[str], *, quick: bool, megabytes: int, rounds: int, work: Path) -> Iterator[Row]:
    scale = loader.QUICK if quick else loader.FULL
    shard_bytes = scale.shard_bytes
    if "together" in chosen:
        yield from together(work, megabytes=1 if quick else megabytes, rounds=1 if quick else rounds)
    if "at-once" in chosen:
        sizes = {"count": 2, "megabytes": 1, "rounds": 1, "limits": AT_ONCE[:3]} if quick else {"count": PARTS_AT_ONCE, "limits": AT_ONCE}
        yield from at_once(work, **{"megabytes": megabytes, "rounds": rounds, **sizes})
    if "reading" in chosen:
        yield from reading(work, scale)
    if "opening" in chosen:
        yield from opening(work, shards=scale.shards if quick else 30_000, shard_bytes=shard_bytes, rounds=scale.openings)
    if "sealing" in chosen:
        yield from sealing(work, shards=scale.shards, shard_bytes=shard_bytes, rounds=scale.openings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    parser.add_argument("--only", nargs="+", choices=CHOICES, default=CHOICES, help="what to measure")
    parser.add_argument("--megabytes", type=int, default=60, help="text of each part (default: 60)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of `together` and `at-once` (default: 3)")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.part:
        return build_part(Path(settings.part[0]), int(settings.part[1]))
    if settings.inside:
        return build_in_one_process(settings.inside[0], Path(settings.inside[1]))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    print("| what | measured | wanted | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        chosen = measure(settings.only, quick=settings.quick, megabytes=settings.megabytes, rounds=settings.rounds, work=Path(temporary))
        for row in chosen:
            print(f"| {row.what} | {row.measured} | {row.wanted} | {row.ratio} |", flush=True)
    return None


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
