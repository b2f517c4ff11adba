"""The bookkeeping of a data set in many parts: core-seconds of the dry run, of the states and of the seal, and their exponents.

    python benchmarks/many_parts.py [--parts 1000 4000 10000]

Each part is one line of text. One part is built, and the others are links to its files, with a meta.json of their own. The exponent is the
slope of a line through the logarithms, so 1 is linear. Needs a file for each part, and about five minutes.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import repository_path  # noqa: F401
from niels_cache_assets.artifacts.forecast.steps import forecast
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.parts.layout import part_name
from niels_cache_assets.project.registry import load_registry
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import read_meta, write_meta
from tests.helpers.builds import build_tokenizer


def project(folder: Path, parts: int, seed: int = 42) -> Graph:
    """Return the graph of a data set of one line of text in each part."""
    pretrain = {"source": "jsonl", "files": [str(folder / "*.jsonl")], "parts": parts, "val_frac": 0.0}
    tokenizer = {"train_on": ["texts"], "vocab_size": 320, "sample_bytes": 1_000_000}
    overrides = {"pretrain": {"texts": pretrain}, "tokenizer": tokenizer, "build": {"seed": seed}}
    return graph(load_registry(profile="default", overrides=overrides), folder / "cache")


def link_parts(found: Graph) -> None:
    """Make the other parts from the first one."""
    first = found.part(f"texts/{part_name(0)}").directory
    meta = {key: value for key, value in read_meta(str(first / META_NAME)).items() if key not in ("meta_sha256", "forms")}
    for member in found.sealed("texts").members():
        if member.member != part_name(0):
            shutil.copytree(first, member.directory, copy_function=os.link, ignore=shutil.ignore_patterns(META_NAME))
            own = {"dataset_name": f"texts/{member.member}", "fingerprint": fingerprint_of(member.identity(member.revision()))}
            write_meta(str(member.directory / META_NAME), {**meta, **own})


def measure(folder: Path, parts: int) -> dict[str, float]:
    """Return the core-seconds of each measurement."""
    for number in range(parts):
        words = " ".join(f"word{(number * 7 + each * 13) % 997}" for each in range(200))
        (folder / f"{number:06d}.jsonl").write_text(json.dumps({"text": words}) + "\n", encoding="utf-8")
    seconds: dict[str, float] = {}

    def clock(name: str, work: Callable[[Graph], object], *, seed: int = 42) -> None:
        begin = time.process_time()
        work(project(folder, parts, seed))
        seconds[name] = time.process_time() - begin

    found = project(folder, parts)
    build_tokenizer(found.registry, root=found.root)
    clock("dry run without a plan", forecast)
    materialize(found["plan/texts"])
    clock("dry run with a plan", forecast)
    materialize(found[f"part/texts/{part_name(0)}"])
    link_parts(found)
    clock("dry run with all parts", forecast)
    clock("status before the seal", lambda graph: graph.states())
    clock("status with a stale plan", lambda graph: graph.states(), seed=43)
    clock("`status --watch` with a stale plan", lambda graph: graph.watch("texts"), seed=43)
    clock("seal", lambda graph: materialize(graph["pretrain/texts"]))
    clock("status after the seal", lambda graph: graph.states())
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", type=int, nargs="+", default=[1_000, 4_000, 10_000])
    counts = parser.parse_args().parts
    found = []
    for parts in counts:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(Path(folder), parts))
    print(f"| core-seconds | {' | '.join(f'{parts:,} parts' for parts in counts)} | exponent |\n|{'---|' * (len(counts) + 2)}")
    for name in found[0]:
        values = [each[name] for each in found]
        slope = np.polyfit(np.log(counts), np.log(values), 1)[0]
        print(f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} | {slope:.2f} |")


if __name__ == "__main__":
    main()
