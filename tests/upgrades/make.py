"""Make the fixtures of a version: `python -m tests.upgrades.make VERSION`, under the code of that version, in two minutes.

tests/upgrades/VERSION then holds three files:

    facts.json    libraries, what was built and stopped, and what samplers, loaders and traces gave
    files.tar.xz  two projects: sources, niels_cache.toml, `cache/`, `stopped/` with unfinished builds, and `bucket/` with a published cache
    home.tar.xz   the Dagster home of the first project

The first two have the same bytes for the same code and environment. All text is made up. No file names a folder of this machine: paths
begin with PLACE instead. Later versions add a folder, and no folder is ever made again.
"""

from __future__ import annotations

import argparse
import gzip
import io
import itertools
import json
import os
import platform
import shutil
import sqlite3
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.build_cache import resume
from niels_cache_assets.cli import main as niels_cache
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.disk.journal import partial_directory, read_journal
from niels_cache_assets.project.registry import load_registry
from niels_cache_runtime import (
    SFT,
    Blocks,
    Copy,
    DatasetLoader,
    PreferenceBatch,
    PreferenceDataset,
    PretrainTokenStreamDataset,
    SFTExampleDataset,
    TokenLoader,
    open_cache,
    read_meta,
)
from niels_cache_runtime.format.layout import FAMILIES
from tests.golden import plain, shown
from tests.golden.project import digest_of, recording_often, small_pieces, stopping_at_record
from tests.helpers.chat_models import model_folder
from tests.helpers.corpora import articles, nearly, write_jsonl
from tests.helpers.tiny import sentences

HERE = Path(__file__).parent
FACTS, FILES, HOME = "facts.json", "files.tar.xz", "home.tar.xz"
PLAIN, WIDE = "plain", "wide"
DAGSTER = f"{PLAIN}/.dagster"
PLACE = "/upgrades"  # stands for the folder of the projects
BATCHES = 3
GROWING = ("grown", "grown_whole")  # data sets that are built, and built again with MORE
MORE = ("--add", "more/*.jsonl")
LEFT_OUT = ("fresh", "off")  # data sets without a cache


class Stopped(NamedTuple):
    """A build that is stopped when it has recorded its progress `records` times. `names`: the data sets that decide what it reads."""

    project: str
    key: str
    names: tuple[str, ...]
    records: int = 2


SEARCHED = ("prepared", "crawl")  # for duplicates
STOPPED = {
    "pretrain": Stopped(PLAIN, "pretrain/letters", ("letters",)),
    "budgets and shuffle": Stopped(PLAIN, "pretrain/streamed", ("streamed",)),
    "corpus": Stopped(PLAIN, "corpus/prepared", SEARCHED),
    "duplicates": Stopped(WIDE, "corpus/duplicates", ("letters",)),
    "range of duplicates": Stopped(PLAIN, "range/range-00001", SEARCHED, records=1),
    "prepared": Stopped(PLAIN, "pretrain/prepared", SEARCHED),
    "part": Stopped(PLAIN, "part/pages/part-00001", ("pages",)),
    "val part": Stopped(PLAIN, "val_part/budgets", ("budgets",), records=1),
    "part of a corpus": Stopped(PLAIN, "corpus_part/crawl/part-00001", SEARCHED, records=1),
    "added part": Stopped(PLAIN, "part/grown/part-00002", ("grown",), records=1),
    "sft": Stopped(PLAIN, "sft/chats", ("chats",)),
    "template": Stopped(WIDE, "sft/templated", ("templated",)),
    "pairs": Stopped(WIDE, "sft/pairs", ("pairs",)),
}

LETTERS, PAGES, GROWN = (f"{PLAIN}/cache/pretrain/{name}/train" for name in ("letters", "pages", "grown"))
SMALLER = f"{PLAIN}/smaller/grown/train"  # GROWN before it grew
CHATS, TEMPLATED, PAIRS = f"{PLAIN}/cache/sft/chats/train", f"{WIDE}/cache/sft/templated/train", f"{WIDE}/cache/sft/pairs/train"
TRACED, BUCKET = "blend that changes", "bucket"  # loaders
PUBLISHED = f"{PLAIN}/bucket/letters"
FIELDS = ("document_ids", "position_ids", "cu_seqlens", "dataset_ids")


@dataclass(frozen=True)
class Training:
    """A loader. With `resumed`, it continues after some batches with these changes, on the sources `into`, and as `rank`."""

    sources: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)
    resumed: dict[str, Any] = field(default_factory=dict)
    into: dict[str, str] = field(default_factory=dict)
    rank: int = 0


LOADERS = {
    "windows": Training({"letters": LETTERS}),
    "uint32": Training({"letters": f"{WIDE}/cache/pretrain/letters/train"}),
    "in order, rank 1 of 2, two epochs": Training(
        {"grown": GROWN}, {"shuffle": False, "world_size": 2, "epochs": 2, "drop_last": True, "stride": 8}, rank=1
    ),
    "other batches and ranks": Training({"letters": LETTERS}, resumed={"B": 2, "world_size": 2}, rank=1),
    "cache that grew": Training({"grown": SMALLER}, resumed={"grown": True}, into={"grown": GROWN}),
    "blocks": Training({"pages": PAGES}, {"order": Blocks(shards=2, lanes=2)}),
    TRACED: Training(
        {"letters": LETTERS, "pages": PAGES, "chats": CHATS},
        {"weights": [(0, {"letters": 1, "pages": 2, "chats": 0}), (20, {"letters": 1, "pages": 1, "chats": 1})]},
    ),
    "documents": Training({"letters": LETTERS}, {"fields": FIELDS, "mask_cross_document_targets": True}),
    "packed conversations": Training({"chats": CHATS}, {"T": 64, "sft": SFT(loss_on="last_assistant")}),
    "packed template": Training({"templated": TEMPLATED}, {"T": 96, "sft": SFT(overflow="drop", weigh_by="examples")}),
    "pairs": Training({"pairs": PAIRS}, {"T": 128, "B": 2}),
    BUCKET: Training({"letters": f"{PUBLISHED}/train"}, {"order": Blocks(shards=1)}),
}


# The projects


def write_sources(folder: Path) -> None:
    """Write the projects without builds."""
    shutil.copytree(HERE / "projects", folder, dirs_exist_ok=True)
    plain, wide = folder / PLAIN, folder / WIDE
    letters = [{"id": f"letter-{row}", "text": text if row % 25 else None} for row, text in enumerate(sentences(150, seed=1, words=30))]
    with gzip.GzipFile(plain / "letters.jsonl.gz", "wb", mtime=0) as packed:
        packed.write("".join(json.dumps(row) + "\n" for row in letters).encode())
    (plain / "excluded.txt").write_text("letter-7\n", encoding="utf-8")
    (plain / "book.txt").write_text("\n\n".join(sentences(80, seed=2)), encoding="utf-8")
    for number, text in enumerate(sentences(12, seed=3, words=40)):
        path = plain / "notes" / ("more" if number % 3 else ".") / f"note {number}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# Note {number}\n\n{text}\n", encoding="utf-8")
    rows = {"id": [f"row-{row}" for row in range(400)], "text": sentences(400, seed=4, words=20)}
    pq.write_table(pa.table(rows), plain / "rows.parquet", row_group_size=50)
    texts = articles(60, seed=5)
    write_jsonl(plain / "articles.jsonl", [*texts, "short", texts[3], nearly(texts[5])])
    for number in range(4):
        write_jsonl(plain / "crawl" / f"{number}.jsonl", [*articles(15, seed=10 + number), texts[number]])
    for number in range(8):
        write_jsonl(plain / ("pages" if number < 6 else "more") / f"{number}.jsonl", sentences(45, seed=20 + number, words=25))
    shutil.copytree(plain / "pages", wide / "pages")
    write_jsonl(wide / "letters.jsonl", sentences(80, seed=6, words=30))
    model_folder(wide / "model")
    turns = sentences(160, seed=7)
    chats = [{"messages": _turns(turns[row], turns[row + 1]) if row % 40 else []} for row in range(0, 160, 2)]
    sides = [
        {"prompt": _turns(f"Question {row % 30}?")}
        | {side: _turns("", answer)[1:] for side, answer in (("chosen", text), ("rejected", f"No. {text}"))}
        for row, text in enumerate(sentences(80, seed=8))
    ]
    for path, values in ((plain / "chats.jsonl", chats), (wide / "chats.jsonl", chats), (wide / "pairs.jsonl", sides)):
        path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


def _turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in zip(("user", "assistant"), contents, strict=False)]


def run(folder: Path, *words: str) -> None:
    """Run a command of niels-cache on the project in a folder."""
    require(niels_cache([*words, "--config", str(folder / "niels_cache.toml")]) == 0, f"niels-cache {' '.join(words)}")


def opened(project: Path, root: Path | None = None) -> Graph:
    """Return the graph of a project, in its own cache root or in another one."""
    return graph(load_registry(config=str(project / "niels_cache.toml")), root or project / "cache")


def require(condition: bool, what: str) -> None:
    if not condition:
        raise RuntimeError(f"the fixture cannot be made: {what}")


def build_caches(folder: Path) -> None:
    """Build everything as a user does, with Dagster's records in a home, and publish a cache."""
    plain = folder / PLAIN
    for project, home in ((WIDE, "other home"), (PLAIN, DAGSTER)):
        os.environ["DAGSTER_HOME"] = str(folder / home)
        registry = opened(folder / project).registry
        names = [name for family in FAMILIES for name in registry.datasets(family) if name not in LEFT_OUT]
        run(folder / project, "build-all", "--only", *names, *registry.blend)
    shutil.copytree(plain / "cache/pretrain/grown", (folder / SMALLER).parent)
    for name in GROWING:
        run(plain, "part", name, *MORE)
    run(plain, "build-all", "--only", *GROWING)
    for path in folder.glob("*/cache/reports/**/*"):
        if path.is_file() and path.name != "report.json":  # of a corpus; the others show the time of a build
            path.unlink()
    run(plain, "push", "letters", f"file://{folder / PUBLISHED}")


# Unfinished builds


def stopped_root(folder: Path, stage: str) -> Path:
    return folder / STOPPED[stage].project / "stopped" / stage.replace(" ", "_")


def stop_builds(folder: Path) -> None:
    """Stop builds in roots of their own, as Ctrl-C does."""
    for stage, (name, key, names, records) in STOPPED.items():
        project, root = folder / name, stopped_root(folder, stage)
        shutil.copytree(project / "cache/tokenizer", root / "tokenizer")
        for engines in (project / "cache").glob(".tokenizer.engines.json"):
            shutil.copy(engines, root)
        found = opened(project, root)
        keys = found.order(names)
        for before in keys[: keys.index(key)]:
            materialize(found[before])
        with suppress(KeyboardInterrupt), stopping_at_record(records):
            materialize(found[key])
            require(False, f"{key} ended before record {records}: {stage}")


def journal_of(folder: Path, stage: str) -> dict[str, Any]:
    """Return how far a stopped build came, as its journal says."""
    project, key, *_ = STOPPED[stage]
    recorded = read_journal(partial_directory(opened(folder / project, stopped_root(folder, stage))[key].directory))
    require(recorded is not None, f"{stage} has no journal")
    return {} if recorded is None else {"documents": recorded.documents, "share": recorded.share, "files": recorded.sizes}


# What is read from caches


def digest_of_any(batch: Any) -> str:
    """Return the sha256 over every tensor of a batch."""
    if isinstance(batch, PreferenceBatch):
        return digest_of([*batch.chosen.tensors(), *batch.rejected.tensors(), batch.pairs])
    return digest_of(batch)


def next_batches(loader: Iterable[Any]) -> list[str]:
    return [digest_of_any(batch) for batch in itertools.islice(loader, BATCHES)]


def resume_loader(folder: Path, name: str, copy: Path, state: Mapping[str, Any], **changes: Any) -> TokenLoader:
    """Resume a loader of LOADERS. `copy`: a folder for the local copy of a bucket."""
    training = LOADERS[name]
    places = _places(folder, name, copy, training.into or training.sources)
    return TokenLoader.from_state(dict(state), **places, rank=training.rank, **changes)


def _places(folder: Path, name: str, copy: Path, paths: Mapping[str, str]) -> dict[str, Any]:
    if name != BUCKET:
        return {"sources": {label: str(folder / path) for label, path in paths.items()}}
    return {"sources": {label: f"file://{folder / path}" for label, path in paths.items()}, "remote": Copy(dir=copy, limit=1e8)}


def run_loader(folder: Path, name: str, copy: Path) -> dict[str, Any]:
    """Return the first batches of a loader, its state after them, and the batches that must follow."""
    training = LOADERS[name]
    settings = {"T": 32, "B": 4, "seed": 5, "rank": 0 if training.resumed else training.rank, **training.settings}
    loader = TokenLoader(**_places(folder, name, copy, training.sources), **settings)
    before = next_batches(loader)
    if training.resumed:
        loader = resume_loader(folder, name, copy, loader.state_dict(), **training.resumed)
        before += next_batches(loader)
    return {"before": before, "state": neutral(loader.state_dict(), folder), "next": next_batches(loader)}


def open_sequential(folder: Path) -> DatasetLoader:
    return DatasetLoader(batch=2, seq_len=16, process_rank=1, num_processes=2, dataset_dir=str(folder / LETTERS), device="cpu")


def sequential_batches(loader: DatasetLoader) -> list[str]:
    return [digest_of(loader.get_batch()) for _ in range(BATCHES)]


def sampled(folder: Path) -> dict[str, list[str]]:
    """Return the hashes of batches that samplers draw."""
    eot = read_meta(str(folder / PLAIN / "cache/tokenizer/meta.json"))["special_token_ids"]["eot"]
    pair = [str((folder / CHATS).with_name(f"train_{name}")) for name in ("tokens.bin", "idx.npy")]
    samplers: dict[str, Any] = {
        "windows": PretrainTokenStreamDataset(str(folder / LETTERS), T=32, device="cpu"),
        "uint32 windows": open_cache(folder / WIDE / "cache").pretrain["pages"].train.sampler(T=32),
        "examples": SFTExampleDataset(*pair, T=64, device="cpu", eot_id=eot),
        "pairs": PreferenceDataset(str(folder / PAIRS), T=64),
    }
    found = {}
    for name, sampler in samplers.items():
        generator = torch.Generator().manual_seed(3)
        found[name] = [digest_of_any(sampler.get_batch(B=4, generator=generator)) for _ in range(BATCHES)]
    return found


def traced(folder: Path, state: Mapping[str, Any], scratch: Path) -> Any:
    """Return what `niels-cache trace` says about a row of a blend."""
    path = scratch / "state.json"
    path.write_text(json.dumps(state), encoding="utf-8")
    moved = [f"{label}={folder / source}" for label, source in LOADERS[TRACED].sources.items()]
    with redirect_stdout(io.StringIO()) as printed:
        require(niels_cache(["trace", "--state", str(path), "--step", "3", "--row", "1", "--json", "--source", *moved]) == 0, "trace")
    return neutral(json.loads(printed.getvalue()), folder)


def home_facts(home: Path) -> dict[str, Any]:
    """Return the runs of a Dagster home, and what they have built."""
    with ensure_instance(home) as instance:
        keys = {key.to_user_string(): instance.get_materialized_partitions(key) for key in instance.get_asset_keys()}
        runs = [[run.job_name, run.tags.get("dagster/partition"), run.status.value] for run in reversed(instance.get_runs())]
        return {"runs": runs, "materialized": {key: sorted(names) for key, names in sorted(keys.items())}}


def neutral(value: Any, folder: Path) -> Any:
    """Return JSON values with PLACE for the folder of the projects."""
    return json.loads(json.dumps(value).replace(str(folder), PLACE))


def records(folder: Path, project: str) -> dict[str, dict[str, Any]]:
    """Return what identifies each artifact of a cache root, by key."""
    found = opened(folder / project)
    return recorded({key: meta for key in dict.fromkeys(found.order()) if (meta := found[key].finished()) is not None})


def recorded(metas: Mapping[str, Mapping[str, Any]], *, every: bool = True) -> dict[str, dict[str, Any]]:
    """Return what identifies artifacts in their records. `every`: also what the writer of Parquet files decides."""
    counts = ("train_tokens", "val_tokens", "train_examples", "val_examples", "documents", "dropped")
    names = (*counts, "fingerprint", "content_sha256") if every else counts
    return {
        key: {name: plain(meta[name]) for name in names if name in meta}
        | {"files": {name: file for name, file in meta.get("files", {}).items() if every or not name.endswith(".parquet")}}
        for key, meta in metas.items()
    }


@contextmanager
def environment_of(facts: Mapping[str, Any]) -> Iterator[None]:
    """Let unfinished builds find the Python and the libraries that they began with: other versions end them, which is no promise."""
    libraries, python = facts["libraries"].get, facts["python"]
    with mock.patch.object(resume, "installed_version", libraries), mock.patch.object(platform, "python_version", return_value=python):
        yield


def gather_facts(folder: Path) -> dict[str, Any]:
    """Return what the tests compare with."""
    sequential = open_sequential(folder)
    before = sequential_batches(sequential)
    state = sequential.state_dict()
    return {
        "python": platform.python_version(),
        "libraries": {name: resume.installed_version(name) for name in (*resume._LIBRARIES, "tokenizers")},
        "records": {project: records(folder, project) for project in (PLAIN, WIDE)},
        "samplers": sampled(folder),
        "sequential": {"before": before, "state": neutral(state, folder), "next": sequential_batches(sequential)},
        "journals": {stage: journal_of(folder, stage) for stage in STOPPED},
        "loaders": (loaders := {name: run_loader(folder, name, folder / "copy") for name in LOADERS}),
        "trace": traced(folder, loaders[TRACED]["state"], folder),
        "home": home_facts(folder / DAGSTER),
    }


# Packing

_WRITER = {"pid": 1, "host": "machine", "since": "2026-01-01T00:00:00Z", "command": "niels-cache"}
OF_A_MACHINE: dict[str, Any] = {"writer": _WRITER, "token": "0" * 16, "boot": "1"}
OF_A_MACHINE |= {"log": None, "seconds": 2.0, "cpu_seconds": 1.0, "earlier_cpu_seconds": [0.0, 0.0], "speed": [None, None]}


def neutralize_leases(folder: Path) -> None:
    """Replace what attempts say about this machine and the time."""
    for path in folder.rglob("attempt-*.json"):
        content = path.read_bytes()
        holder = json.loads(content) | OF_A_MACHINE
        if holder["ended"] != "done":
            holder |= {"counts": {}, "share": None}  # one thread reads and another one writes
        path.write_bytes(json.dumps(holder).encode().ljust(len(content) - 1) + b"\n")


def neutralize_home(home: Path, folder: Path) -> None:
    """Replace the folders of this machine in a Dagster home."""
    in_markdown = str(folder).replace("_", r"\\_")  # in the JSON of an event
    names = {str(folder): PLACE, in_markdown: PLACE, sys.prefix: f"{PLACE}/python", str(HERE.parents[1]): f"{PLACE}/code"}
    for path in home.rglob("*.db"):
        with closing(sqlite3.connect(path, isolation_level=None)) as events:
            for (table,) in events.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for column in [row[1] for row in events.execute(f'PRAGMA table_info("{table}")')]:
                    for old, new in names.items():
                        found = f"""typeof("{column}") = 'text' AND instr("{column}", ?)"""
                        events.execute(f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?) WHERE {found}', (old, new, old))
            events.execute("PRAGMA journal_mode = DELETE")
            events.execute("VACUUM")


def pack(folder: Path, target: Path, paths: Iterable[Path]) -> None:
    """Pack files with neutral owners and times. Refuse a file that names a folder of this machine."""
    private = [str(each).encode() for each in (folder, sys.prefix, HERE.parents[1])]
    with tarfile.open(target, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as archive:
        for path in sorted(paths):
            entry = archive.gettarinfo(str(path), path.relative_to(folder).as_posix())
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755 if path.is_dir() else 0o644
            content = path.read_bytes() if entry.isreg() else b""
            require(not any(each in content for each in private), f"{path} names a folder of this machine")
            archive.addfile(entry, io.BytesIO(content))


def make(target: Path) -> None:
    """Make the three files in a folder."""
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as name, small_pieces(), recording_often():
        folder = Path(name).resolve()
        write_sources(folder)
        build_caches(folder)
        stop_builds(folder)
        (target / FACTS).write_text(shown(gather_facts(folder)) + "\n", encoding="utf-8")
        neutralize_leases(folder)
        neutralize_home(folder / DAGSTER, folder)
        home = [folder / DAGSTER, *(folder / DAGSTER).rglob("*")]
        files = [path for project in (PLAIN, WIDE) for path in (folder / project).rglob("*")]
        pack(folder, target / HOME, home)
        pack(folder, target / FILES, set(files) - set(home))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    make(HERE / parser.parse_args().version)
