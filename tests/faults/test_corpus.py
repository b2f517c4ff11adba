"""Cleaning, the search for duplicates and exports. If they are killed or interrupted anywhere and run again, the bytes are the same.

Each trial draws the place of the kill from its seed, which is the number in the test's name. To repeat a trial, run this test again. Kills
at a call to the disk then come at the same call. Kills at a moment come after the same share of an undisturbed run. The seconds of this run
are measured again, so the place may differ, and a failure may need several runs.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from niels_cache_assets.artifacts import corpus
from niels_cache_assets.base.processes import stop_on_signals
from niels_cache_assets.corpus import store
from niels_cache_assets.dedup import ranges
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_assets.exchange import FORMATS
from niels_cache_assets.exchange.formats import ExportSettings, plan_export
from niels_cache_assets.exchange.writing import write_export
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.streaming import encode
from tests.helpers import children
from tests.helpers.builds import find_duplicates, prepare_corpus
from tests.helpers.corpora import articles, nearly, write_jsonl
from tests.helpers.exports import random_documents, write_documents_cache
from tests.helpers.failing_disk import Disk

_PREPARE = 'prepare = ["clean", "dedup"]\n'
TABLES = {
    "lines": 'source = "jsonl"\nfiles = ["lines-0.jsonl", "lines-1.jsonl"]\nval_frac = 0.1\n' + _PREPARE,
    "packed": 'source = "jsonl"\nfiles = ["packed.jsonl.gz"]\nval_frac = 0.1\nprepare = ["clean"]\n',
    "rows": 'source = "parquet"\nfiles = ["rows.parquet"]\n' + _PREPARE,
    "paragraphs": 'source = "text"\nfiles = ["book.txt"]\nsample_by = "paragraph"\nprepare = ["dedup"]\n',
    "mix": 'source = "interleave"\nmembers = {plain = 2, other = 1}\nprepare = ["clean"]\n',
    "mirror": 'source = "huggingface"\ndataset = "local/mirror"\nfiles = ["rows.parquet"]\nshuffle_buffer = 50\nprepare = ["clean"]\n',
}
_MEMBERS = {"plain": 'source = "jsonl"\nfiles = ["lines-0.jsonl"]\n', "other": 'source = "parquet"\nfiles = ["rows.parquet"]\n'}
DEDUP: dict[str, dict[str, object]] = {"none": {}, "jaccard": {"verify": "jaccard"}, "ranges": {"ranges": 4}}
STAGES = [
    *(f"cleaning {name}" for name in TABLES),
    *(f"duplicates {name}" for name in DEDUP),
    *(f"export {format}" for format in FORMATS),
    *(f"replacing {format}" for format in FORMATS),
]


def write_project(folder: Path) -> None:
    """Write sources and niels_cache.toml, the cache to export, and the corpora for the search for duplicates."""
    texts = [text if row % 9 else f"short {row}" for row, text in enumerate(articles(200))]
    texts += [nearly(text) for text in texts[:40]]
    for part in range(2):
        write_jsonl(folder / f"lines-{part}.jsonl", texts[part::2])
    with gzip.open(folder / "packed.jsonl.gz", "wt") as packed:
        packed.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    pq.write_table(
        pa.table({"text": [text if row % 17 else "" for row, text in enumerate(texts)]}), folder / "rows.parquet", row_group_size=70
    )
    (folder / "book.txt").write_text("\n\n".join(texts))
    tables = [f"[pretrain.{name}]\n{table}" for name, table in {**TABLES, **_MEMBERS}.items()]
    (folder / "niels_cache.toml").write_text("\n".join(['[cleaning]\nskip = ["not_english", "language_error"]', *tables]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_CHUNK_ITEMS", 20)
        patch.setattr(store, "TEXT_BYTES_PER_GROUP", 5_000)
        patch.setattr(store, "TEXT_BYTES_PER_FILE", 15_000)
        for name in ("lines", "rows"):
            prepare_corpus(project(folder), name, root=folder / "prepared", processes=1)
    find_duplicates(project(folder), root=folder / "prepared")
    for name, seed in (("older", 1), ("newer", 5)):
        documents = {"train": random_documents(300, seed=seed), "val": random_documents(40, seed=seed + 1)}
        write_documents_cache(folder / name / "pages", documents, shard_tokens=500)


def project(folder: Path, dedup: str = "none") -> Registry:
    overrides = {"dedup": DEDUP[dedup]}
    return load_registry(profile="quickstart", config=str(folder / "niels_cache.toml"), overrides=overrides)


def export(folder: Path, build: str, format: str, root: Path, *, force: bool) -> None:
    settings = ExportSettings(format=format, out=root / "out" / "pages", max_bytes=None if format == "nanogpt" else 2_000)
    write_export(plan_export("pages", folder / build / "pages", settings), force=force)


def begin(folder: Path, stage: str, root: Path) -> None:
    """Make the files that exist before the first run of the stage."""
    kind, name = stage.split()
    root.mkdir()
    if kind == "duplicates":
        shutil.copytree(folder / "prepared" / "corpus", root / "corpus")
    elif kind == "replacing":
        export(folder, "older", name, root, force=False)


def run_stage(folder: Path, stage: str, root: Path, *, processes: int = 1, at: int | None = None) -> None:
    """Run the stage as `niels-cache` does, with a record for every few documents. The run is killed at disk call `at`. `root`.calls and
    `root`.log record it.
    """
    encode._CHUNK_ITEMS, store.TEXT_BYTES_PER_GROUP, store.TEXT_BYTES_PER_FILE = 20, 5_000, 15_000
    ranges.MIN_WINDOW, corpus.TEXT_BYTES_PER_RECORD = 50, 4_000
    os.environ[BYTES_VARIABLE] = "0"
    kind, name = stage.split()
    with stop_on_signals(), open(f"{root}.log", "a", buffering=1) as log, Disk(root, at=at).installed() as disk:

        def tell(message: str) -> None:
            print(message, file=log)

        try:
            if kind == "cleaning":
                prepare_corpus(project(folder), name, root=root, processes=processes, log=tell)
            elif kind == "duplicates":
                find_duplicates(project(folder, name), root=root, log=tell)
            else:
                export(folder, "newer", name, root, force=kind == "replacing")
        finally:
            Path(f"{root}.calls").write_text(str(len(disk.calls)))


def contents(root: Path) -> dict[str, bytes]:
    """Return every file, except lock files."""
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    return {name: content for name, content in found.items() if not name.endswith(".lock")}


class Reference(NamedTuple):
    """The files of an undisturbed run, its number of calls to the disk, and its seconds."""

    files: dict[str, bytes]
    calls: int
    seconds: float


class Workshop:
    """The project, and the undisturbed runs that tests have requested so far."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.project.mkdir()
        write_project(self.project)
        self._references: dict[str, Reference] = {}

    def run(self, stage: str, root: Path, *, processes: int = 1, at: int | None = None, **settings: object) -> int:
        """Return the exit code of a child that runs the stage."""
        return children.run(partial(run_stage, self.project, stage, root, processes=processes, at=at), **settings)  # type: ignore[arg-type]

    def reference(self, stage: str) -> Reference:
        if stage not in self._references:
            root = self.project.parent / stage.replace(" ", "-")
            begin(self.project, stage, root)
            before, started = contents(root), time.monotonic()
            assert self.run(stage, root) == 0, log_of(root)
            files, seconds = contents(root), time.monotonic() - started
            assert len(files.items() - before.items()) >= 2
            self._references[stage] = Reference(files, int(Path(f"{root}.calls").read_text()), seconds)
        return self._references[stage]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("corpora"))


def drawing(seed: int) -> Callable[[int], int]:
    """Return a function that draws whole numbers below a limit. The same seed gives the same numbers."""
    generator = torch.Generator().manual_seed(seed)
    return lambda limit: int(torch.randint(limit, (), generator=generator))


def log_of(root: Path) -> str:
    log = Path(f"{root}.log")
    return log.read_text() if log.exists() else "killed before it began"


def kill_and_run_again(workshop: Workshop, stage: str, root: Path, *, seed: int, kills: int, processes: int = 1) -> None:
    """Kill the stage so often, finish it, and compare the bytes. Half of the kills come at a call to the disk, half at a time.

    Some of those at a time are a signal that the stage handles: it ends by itself.
    """
    draw, reference = drawing(seed), workshop.reference(stage)
    begin(workshop.project, stage, root)
    story = []
    for _ in range(kills):
        if draw(2):
            at = draw(reference.calls)
            story.append(f"at call {at} of {reference.calls}")
            workshop.run(stage, root, at=at, processes=processes)
        else:
            after = reference.seconds * draw(1000) / 1000
            number = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[draw(3)]
            story.append(f"after {after:.3f} s by {number.name}")
            code = workshop.run(stage, root, kill_after=after, with_signal=number, processes=processes)
            # 0: it was finished before; less the signal: it had not begun; 128 more: it was in a call that did not return
            assert code in ((0, -number) if number == signal.SIGKILL else (0, 1, -number, 128 + number)), story
    told = f"seed {seed}: {stage}, killed {', '.join(story)}\n"
    finished = contents(root) == reference.files and stage.startswith("export")
    assert finished or workshop.run(stage, root) == 0, told + log_of(root)  # an export that is complete is not made again
    assert contents(root) == reference.files, told + log_of(root)


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_killed_stage_is_finished_by_the_next_run(workshop: Workshop, tmp_path: Path, seed: int) -> None:
    kill_and_run_again(workshop, STAGES[seed * 7 % len(STAGES)], tmp_path / "root", seed=seed, kills=1)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(300))
def test_stages_killed_anywhere_and_more_than_once_are_finished_by_the_next_run(workshop: Workshop, tmp_path: Path, seed: int) -> None:
    kill_and_run_again(workshop, STAGES[seed % len(STAGES)], tmp_path / "root", seed=seed, kills=1 + seed % 3, processes=1 + seed % 2)


@pytest.mark.parametrize("stage", ["cleaning lines", "cleaning mix", "duplicates none", "duplicates ranges"])
def test_a_stage_killed_late_goes_on_and_does_not_start_afresh(workshop: Workshop, tmp_path: Path, stage: str) -> None:
    reference, root = workshop.reference(stage), tmp_path / "root"
    begin(workshop.project, stage, root)
    assert workshop.run(stage, root, at=reference.calls * 3 // 4) == -signal.SIGKILL
    assert workshop.run(stage, root) == 0
    kept_hashes = log_of(root).count("hashing the signatures") == 1  # finished ranges are found, without a word
    assert kept_hashes or re.search("resuming|continuing its work", log_of(root))
    assert "afresh" not in log_of(root)
    assert int(Path(f"{root}.calls").read_text()) < reference.calls
    assert contents(root) == reference.files
