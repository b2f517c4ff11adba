"""The maker of the fixtures of tests/test_upgrades.py: what one commit leaves on the disk, to be opened by every later one.

Run it under the commit whose files are wanted, before the first change of an issue or after a release:

    git worktree add --detach BASE COMMIT
    PYTHONPATH=BASE python tests/upgrades/make.py tests/upgrades/YYYY-MM-DD-HASH

PYTHONPATH decides whose code runs. The script is that commit's own, or a newer one whose imports are all there; it imports nothing of
tests/. It works in WORKSHOP, a neutral folder, because a Dagster home and loader states hold absolute paths, and refuses to pack a file
that names another folder of this machine. Data, caches, journals and loader states are the same for the same commit and environment;
Dagster's run ids and times are not.

The folder then holds three files:

    made.json     the commit's code versions and libraries, what was built, and on which code versions each depends
    states.json   states of loaders, and the batches that must follow
    files.tar.xz  `project/`: data, niels_cache.toml, `cache/` with `.dagster/`, and `unfinished/`, a root of builds that were stopped

What a file is for is said where it is made, below.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal
from unittest import mock

import torch

from niels_cache_assets.artifacts.builds import build_dataset, prepare_corpus
from niels_cache_assets.artifacts.tokenizer import CODE_VERSION as TOKENIZER_CODE_VERSION
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.build_cache.resuming import _LIBRARIES
from niels_cache_assets.config.registry import Registry, load_registry
from niels_cache_assets.corpus import layout, store
from niels_cache_assets.corpus.identity import DROP_LISTS_VERSION, HELD_OUT_VERSION, held_out_identity
from niels_cache_assets.dedup.hashing import SIGNATURE_VERSION
from niels_cache_assets.disk.journal import BYTES_VARIABLE, partial_directory, read_journal
from niels_cache_assets.documents import Conversation, Document, Message
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.types import PretrainSource, SftSource, StreamContext
from niels_cache_assets.streaming import decontaminate, encode
from niels_cache_runtime import DatasetLoader, TokenLoader
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.megatron.index_cache import INDEX_VERSION

WORKSHOP = Path("/tmp/niels-cache-upgrades")
CONFIG = Path(__file__).with_name("project.toml")
MADE, STATES, FILES = "made.json", "states.json", "files.tar.xz"
ITEMS = 20  # of a chunk, and of a batch of a source
DOCUMENTS, CONVERSATIONS = 120, 80
STOPPED_BY_KILL = "killed"  # the data set whose build is killed under Dagster

_TEXT = (
    "the a of to and in is it for on with as was by at from that this cache token shard stream split seed document train val model "
    "text reads writes every byte once while nothing vanishes between source and disk because order size hash line blank tab"
)
_WORDS = _TEXT.split()


def sentences(count: int, *, seed: int, words: int = 12) -> list[str]:
    """`count` made-up sentences, the same for the same seed."""
    draws = torch.randint(len(_WORDS), (count, words), generator=torch.Generator().manual_seed(seed)).tolist()
    return [" ".join(_WORDS[index] for index in row).capitalize() + "." for row in draws]


class Steady(PretrainSource):
    """A kind of source of this file alone, whose code version no change of the product raises: its caches must stay good for ever.

    It can be taken up at any batch. `twins`: so many documents at its end repeat its first ones.
    """

    code_version: ClassVar[str] = "1"

    source: Literal["steady"] = "steady"
    seed_of_text: int = 0
    words: int = 12
    twins: int = 0

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        return "steady"

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        texts = sentences(DOCUMENTS, seed=self.seed_of_text, words=self.words)
        texts += texts[: self.twins]
        first = context.start["row"] if context.start else 0
        for row in range(first, len(texts), ITEMS):
            batch = list(enumerate(texts[row : row + ITEMS], row))
            context.report.place = {"row": row + len(batch)}
            yield [Document(text, f"steady-{number}", "steady", number) for number, text in batch]


class SteadyChats(SftSource):
    """As Steady, of conversations."""

    code_version: ClassVar[str] = "1"

    source: Literal["steady_chats"] = "steady_chats"

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        return "steady"

    def conversations(self, context: StreamContext) -> Iterator[list[Conversation]]:
        turns = _turns(seed=11)
        first = context.start["row"] if context.start else 0
        for row in range(first, len(turns), ITEMS):
            batch = list(enumerate(turns[row : row + ITEMS], row))
            context.report.place = {"row": row + len(batch)}
            yield [Conversation(messages, f"steady-{number}", "steady", number) for number, messages in batch]


def _turns(*, seed: int) -> list[list[Message]]:
    said = sentences(2 * CONVERSATIONS, seed=seed)
    return [
        [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
        for asked, told in zip(said[::2], said[1::2], strict=True)
    ]


@contextmanager
def steady_kinds() -> Iterator[None]:
    """Let niels_cache.toml name the kinds of this file."""
    with mock.patch.dict(PRETRAIN_SOURCES, {"steady": Steady}), mock.patch.dict(SFT_SOURCES, {"steady_chats": SteadyChats}):
        yield


@contextmanager
def small_pieces() -> Iterator[None]:
    """Make chunks, batches of a source and files of a corpus so small that little data has many places to stop at.

    Of these only the last shows in the bytes: who compares a corpus with one of the fixtures needs them too.
    """
    with ExitStack() as stack:
        for module, constant, value in (
            (encode, "_CHUNK_ITEMS", ITEMS),
            (rows, "BATCH_DOCUMENTS", ITEMS),
            (store, "TEXT_BYTES_PER_GROUP", 1_000),
            (store, "TEXT_BYTES_PER_FILE", 3_000),
            *([(encode, "_CHUNKS_PER_TASK", 1)] if hasattr(encode, "_CHUNKS_PER_TASK") else []),  # earlier commits have no tasks
        ):
            stack.enter_context(mock.patch.object(module, constant, value))
        yield


# Functions that later commits call too.


def read_registry(project: Path) -> Registry:
    """The configuration of a project. Use inside `steady_kinds`."""
    return load_registry(config=str(project / "niels_cache.toml"))


def code_versions(registry: Registry) -> dict[str, str]:
    """Of everything that decides whether a cache or a journal is still what a build would make, as the imported code has them.

    Of a source by data set, because a kind may count other versions for other settings.
    """
    names = (*registry.pretrain, *registry.sft)
    return {
        **CODE_VERSIONS,
        "tokenizer": TOKENIZER_CODE_VERSION,
        "corpus": layout.CODE_VERSION,
        "signatures": SIGNATURE_VERSION,
        "duplicates": DROP_LISTS_VERSION,
        "decontaminate": decontaminate.CODE_VERSION,
        "held out": HELD_OUT_VERSION,
        "index": str(INDEX_VERSION),
        **{f"source of {name}": registry.source(name).identity()["code_version"] for name in names},
    }


def needs(registry: Registry, path: str) -> set[str]:
    """The code versions on which a folder of a cache root depends: `tokenizer`, `duplicates`, `corpus/NAME`, `pretrain/NAME`, `sft/NAME`.

    A version that comes into being later is one that rose, for what needs it: add it to `code_versions` and here.
    """
    family, _, name = path.partition("/")
    if family == "tokenizer":
        return {"tokenizer"}
    if family == "duplicates":
        return {"duplicates"}.union(*(needs(registry, f"corpus/{each}") for each in registry.prepared("dedup")))
    source = registry.source(name)
    read = {f"source of {each}" for each in (name, *getattr(source, "members", ()))}
    if held_out_identity(registry, source, seed=registry.build.seed):
        read.add("held out")
    steps = getattr(source, "prepare", ())
    if family == "corpus":
        return {"corpus", *read, *(["signatures"] if "dedup" in steps else [])}
    if not source.enabled:
        return set()
    if steps:
        read |= needs(registry, f"corpus/{name}")
    if "dedup" in steps:
        read |= needs(registry, "duplicates")
    if getattr(source, "decontaminate", "off") != "off":
        read.add("decontaminate")
    return {"tokenizer", family, *read}


def digest_of(batch: Any) -> str:
    """sha256 over every tensor of a batch: of a TokenLoader, or the pair of a DatasetLoader."""
    digest = hashlib.sha256()
    tensors = list(batch.tensors()) if isinstance(batch, Batch) else list(batch)
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def next_batches(loader: TokenLoader | DatasetLoader, count: int) -> list[str]:
    """Digests of the next batches; fewer where a pass ends before."""
    batches = itertools.islice(loader, count) if isinstance(loader, TokenLoader) else (loader.get_batch() for _ in range(count))
    return [digest_of(batch) for batch in batches]


# The project.


def write_data(project: Path) -> None:
    """Text for every kind of source, from seeds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (project / "notes" / "more").mkdir(parents=True)
    shutil.copyfile(CONFIG, project / "niels_cache.toml")
    texts = sentences(DOCUMENTS, seed=3)
    lines = ({"id": f"letter-{row}", "title": f"Letter {row}", "text": text if row % 25 else None} for row, text in enumerate(texts))
    _write_rows(project / "letters.jsonl", lines)
    (project / "book.txt").write_text("\n\n".join(sentences(DOCUMENTS, seed=4)), encoding="utf-8")
    for number, text in enumerate(sentences(12, seed=5, words=40)):
        (project / "notes" / ("more" if number % 3 else ".") / f"note {number}.md").write_text(
            f"# Note {number}\n\n{text}\n", encoding="utf-8"
        )
    columns = {"id": [f"row-{row}" for row in range(2 * DOCUMENTS)], "text": sentences(2 * DOCUMENTS, seed=6)}
    pq.write_table(pa.table(columns), project / "rows.parquet", row_group_size=50)
    chats = _turns(seed=7)
    _write_rows(project / "chats.jsonl", ({"messages": messages if row % 20 else []} for row, messages in enumerate(chats)))
    asked = [[message["content"] for message in messages] for messages in _turns(seed=8)]
    kinds = itertools.cycle(("open_qa", "closed_qa"))
    dolly = zip(asked, sentences(len(asked), seed=9), kinds, strict=False)
    _write_rows(
        project / "dolly.jsonl",
        (
            {"instruction": question, "context": context if kind == "closed_qa" else "", "response": answer, "category": kind}
            for (question, answer), context, kind in dolly
        ),
    )
    _write_rows(project / "trees.jsonl", (_tree(row, *pair) for row, pair in enumerate(asked)))


def _tree(row: int, asked: str, told: str) -> dict[str, Any]:
    """A prompt with two answers, as OpenAssistant writes it."""
    answers = [
        {"message_id": f"{row}-{number}", "role": "assistant", "lang": "en", "text": text, "replies": []}
        for number, text in enumerate((told, f"No. {told}"))
    ]
    prompt = {"message_id": f"{row}", "role": "prompter", "lang": "en", "text": asked, "replies": answers}
    return {"message_tree_id": f"{row}", "prompt": prompt}


def _write_rows(path: Path, values: Iterator[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


def build_caches(project: Path) -> None:
    """Everything by build-all, recorded in project/.dagster; a build that a SIGKILL ended; the index of the blend.

    The kill leaves what a killed machine leaves: a journal beside where the cache would be, a run that Dagster takes for a living one,
    and its place in the pool.
    """
    from niels_cache_assets.cli import main

    others = [name for family in ("pretrain", "sft") for name in read_registry(project).datasets(family) if name != STOPPED_BY_KILL]
    config = ["--config", str(project / "niels_cache.toml")]
    _require(main(["build-all", *config, "--only", *others]) == 0, "build-all")
    killed = subprocess.run([sys.executable, __file__, "--kill-a-build", str(project)], check=False)
    _require(killed.returncode == -signal.SIGKILL, "the build that is to be killed")
    _require(read_journal(partial_directory(project / "cache" / "pretrain" / STOPPED_BY_KILL)) is not None, "its journal")
    _require(main(["prebuild-index", "pair", *config]) == 0, "prebuild-index")


def kill_a_build(project: Path) -> None:
    """Build one data set by build-all, and kill this process in the middle of it."""
    from niels_cache_assets.cli import main

    documents = Steady.documents

    def until_killed(self: Steady, context: StreamContext) -> Iterator[list[Document]]:
        for number, batch in enumerate(documents(self, context)):
            if number == 5 and self.seed_of_text == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    with mock.patch.object(Steady, "documents", until_killed):
        main(["build-all", "--config", str(project / "niels_cache.toml"), "--only", STOPPED_BY_KILL])


def stop_builds(project: Path) -> list[str]:
    """Stop builds in project/unfinished behind their second record, as Ctrl-C does. Returns their folders."""
    registry, root = read_registry(project), project / "unfinished"
    shutil.copytree(project / "cache" / "tokenizer", root / "tokenizer")
    stopped = []
    for name in ("steady", "letters", "rows", "steady_chats", "chats"):
        _stop(partial(build_dataset, registry, name, root=root))
        stopped.append(f"{registry.family_of(name)}/{name}")
    for name in ("prepared", "cleaned"):
        _stop(partial(prepare_corpus, registry, name, root=root, processes=1))
        stopped.append(f"corpus/{name}")
    for name in stopped:
        _require(read_journal(partial_directory(root / name)) is not None, f"the journal of {name}")
    return stopped


def _stop(build: Callable[..., object]) -> None:
    told = itertools.count(1)

    def stop_at_third(progress: object) -> None:
        if next(told) == 3:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        build(progress=stop_at_third)
        _require(False, "a build that ended before it was stopped")


def loader_states(project: Path) -> list[dict[str, Any]]:
    """States of loaders some batches into a run, and the batches that must follow.

    `sources` and `folder` are relative to project/cache. `arguments`: of a DatasetLoader, without its folder. Those of a TokenLoader are in
    its state, except `changes`.
    """
    cache = project / "cache"
    steady, letters, chats = "pretrain/steady/train", "pretrain/letters/train", "sft/chats/train"
    shared: dict[str, Any] = {"T": 32, "B": 4, "seed": 5}
    loaders: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
        "plain": ({"steady": steady}, {}),
        "in order, rank 1 of 2, two epochs": (
            {"rows": "pretrain/rows/train"},
            {"shuffle": False, "rank": 1, "world_size": 2, "epochs": 2, "drop_last": True, "stride": 8},
        ),
        "blend": (
            {"steady": steady, "letters": letters, "chats": chats},
            {"weights": [(0, {"steady": 1, "letters": 1, "chats": 0}), (20, {"steady": 1, "letters": 2, "chats": 1})]},
        ),
        "documents": (
            {"letters": letters},
            {"fields": ("document_ids", "position_ids", "cu_seqlens", "dataset_ids"), "mask_cross_document_targets": True},
        ),
        "packed conversations": ({"chats": chats}, {"T": 64, "loss_on": "last_assistant"}),
        "trees, long ones dropped": ({"trees": "sft/trees/train"}, {"overflow": "drop", "T": 48}),
    }
    states = []
    for name, (sources, settings) in loaders.items():
        loader = TokenLoader({label: str(cache / folder) for label, folder in sources.items()}, **{**shared, **settings})
        changes = {"rank": settings["rank"]} if "rank" in settings else {}
        states.append({"name": name, "kind": "TokenLoader", "sources": sources, "changes": changes, **_state_and_next(loader)})
    arguments = {"batch": 2, "seq_len": 16, "process_rank": 1, "num_processes": 2, "device": "cpu"}
    sequential = DatasetLoader(dataset_dir=str(cache / letters), **arguments)  # type: ignore[arg-type]
    states.append({"name": "sequential", "kind": "DatasetLoader", "folder": letters, "arguments": arguments, **_state_and_next(sequential)})
    return states


def _state_and_next(loader: TokenLoader | DatasetLoader) -> dict[str, Any]:
    _require(len(next_batches(loader, 7)) == 7, "the first batches of a loader")
    return {"state": json.loads(json.dumps(loader.state_dict())), "next": next_batches(loader, 6)}


def facts(project: Path, stopped: list[str]) -> dict[str, Any]:
    """Return made.json. It has the versions, all things that were made, the versions on which each thing depends, and the records of
    Dagster.
    """
    import dagster as dg

    from niels_cache_assets.defs.home.instance import ensure_instance

    registry, cache = read_registry(project), project / "cache"
    names = [name for family in ("pretrain", "sft") for name in registry.datasets(family) if name != STOPPED_BY_KILL]
    caches = ["tokenizer", "duplicates", *(f"corpus/{name}" for name in registry.prepared())]
    caches += [f"{registry.family_of(name)}/{name}" for name in names]
    with ensure_instance(project / ".dagster") as instance:
        runs = [[run.job_name, run.tags.get("dagster/partition"), run.status.value] for run in reversed(instance.get_runs())]
        meta_json = {
            family: sorted(instance.get_materialized_partitions(dg.AssetKey([family, "meta_json"]))) for family in ("pretrain", "sft")
        }
    return {
        "code_versions": code_versions(registry),
        "python": platform.python_version(),
        "libraries": {library: _version(library) for library in _LIBRARIES},
        "caches": {
            path: {
                "needs": sorted(needs(registry, path)),
                **_kept(read_meta(str(cache / path / "meta.json")), "built", "content_sha256"),
            }
            for path in caches
        },
        "journals": {path: sorted(needs(registry, path)) for path in stopped},
        "killed": {f"pretrain/{STOPPED_BY_KILL}": sorted(needs(registry, f"pretrain/{STOPPED_BY_KILL}"))},
        "dagster": {"runs": runs, "materialized": meta_json},
    }


def _kept(meta: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: meta.get(key) for key in keys}


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


# Packing.


def pack(project: Path, target: Path) -> None:
    """One archive of the project, the same for the same files. Refuses files that name a folder of this machine."""
    folders = {Path.home(), Path(__file__).parents[2], Path(__file__).resolve().parents[2], Path(sys.prefix), Path(sys.prefix).resolve()}
    folders |= {Path(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder}
    private = sorted(str(folder) for folder in folders if not WORKSHOP.is_relative_to(folder))
    with tarfile.open(target, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as archive:
        for path in sorted([project, *project.rglob("*")]):
            name = path.relative_to(project.parent).as_posix()
            entry = archive.gettarinfo(str(path), name)
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755 if path.is_dir() else 0o644
            if not path.is_file():
                archive.addfile(entry)
                continue
            content = path.read_bytes()
            named = [folder for folder in private if folder.encode() + b"/" in content]
            _require(not named, f"{path}: it names {named}; it")
            archive.addfile(entry, io.BytesIO(content))


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise RuntimeError(f"{what} is not as the fixture needs it")


def make(target: Path) -> None:
    """Make all three files."""
    project = WORKSHOP / "project"
    shutil.rmtree(WORKSHOP, ignore_errors=True)
    write_data(project)
    target.mkdir(parents=True, exist_ok=True)
    build_caches(project)
    stopped = stop_builds(project)
    for name, content in ((MADE, facts(project, stopped)), (STATES, loader_states(project))):
        (target / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    pack(project, target / FILES)
    shutil.rmtree(WORKSHOP)


def main(arguments: list[str]) -> None:
    os.environ[BYTES_VARIABLE] = "0"  # a record behind every chunk
    os.environ["DAGSTER_HOME"] = str(WORKSHOP / "project" / ".dagster")
    with steady_kinds(), small_pieces():
        if arguments[0] == "--kill-a-build":
            kill_a_build(Path(arguments[1]))
        else:
            make(Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
