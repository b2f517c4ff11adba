"""The small project, built twice in two folders, and what is read from it as plain values.

Hashed texts are caught in hashlib, and renamed files in os. So a move of code touches the imports of these helpers at most.
"""

import hashlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import pyarrow.parquet as pq
from dagster._core.instance.ref import InstanceRef  # as ensure_instance makes it

from niels_cache_assets.artifacts.tokenizer import CODE_VERSION as TOKENIZER_CODE_VERSION
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.cli import main
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.corpus import layout, store
from niels_cache_assets.corpus.identity import DROP_LISTS_VERSION, HELD_OUT_VERSION
from niels_cache_assets.dedup.hashing import SIGNATURE_VERSION
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.streaming import decontaminate, encode
from niels_cache_runtime import DatasetLoader, TokenLoader
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.megatron.index_cache import INDEX_VERSION
from tests.exports import contents
from tests.small_project import SmallProject, small_project

BUILT = ("letters", "notes", "chats", "mix")
JOURNAL = "journal.json"
BY_PYARROW, BY_ITSELF = "<by pyarrow>", "<over this file>"

MODEL = Path(__file__).with_name("spm.model")  # a stored file, so that no value here depends on SentencePiece's training


def code_versions(registry: Registry) -> dict[str, str]:
    """Return the code versions that decide whether a cache or a journal is still what a build would make.

    Of a source by data set.
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


@contextmanager
def small_pieces() -> Iterator[None]:
    """Make chunks, batches of a source and files of a corpus so small that little data has many places to stop at.

    Of these only the last shows in the bytes.
    """
    with ExitStack() as stack:
        for module, constant, value in (
            (encode, "_CHUNK_ITEMS", 20),
            (encode, "_CHUNKS_PER_TASK", 1),
            (rows, "BATCH_DOCUMENTS", 20),
            (store, "TEXT_BYTES_PER_GROUP", 1_000),
            (store, "TEXT_BYTES_PER_FILE", 3_000),
        ):
            stack.enter_context(mock.patch.object(module, constant, value))
        yield


def digest_of(batch: Any) -> str:
    """Return the sha256 over every tensor of a batch: of a TokenLoader, or the pair of a DatasetLoader."""
    digest = hashlib.sha256()
    tensors = list(batch.tensors()) if isinstance(batch, Batch) else list(batch)
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def next_batches(loader: TokenLoader | DatasetLoader, count: int) -> list[str]:
    """Return digests of the next batches; fewer where a pass ends before."""
    batches = itertools.islice(loader, count) if isinstance(loader, TokenLoader) else (loader.get_batch() for _ in range(count))
    return [digest_of(batch) for batch in batches]


class Hashed:
    """JSON texts that were given to hashlib.sha256, by their hash."""

    def __init__(self) -> None:
        self._texts: dict[str, bytes] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep the texts that are hashed in the block."""
        sha256 = hashlib.sha256

        def listen(data: Any = b"", **settings: Any) -> Any:
            digest = sha256(data, **settings)
            if bytes(data[:1]) == b"{":
                self._texts[digest.hexdigest()] = bytes(data)
            return digest

        with mock.patch.object(hashlib, "sha256", listen):
            yield

    def of(self, sha256: str) -> Any:
        """Return the text that has this hash. The hash may be cut. Fail if no such text was hashed."""
        found = [text for whole, text in self._texts.items() if whole.startswith(sha256)]
        assert len(found) == 1, f"{sha256}: hashlib.sha256 was given {len(found)} JSON texts with this hash"
        return json.loads(found[0])

    def knows(self, sha256: str) -> bool:
        """Return whether `of` has an answer."""
        return len(sha256) > 10 and any(whole.startswith(sha256) for whole in self._texts)


@dataclass(frozen=True, kw_only=True)
class Built:
    """The two builds.

    through_dagster: by build-all, with reports. plain: by calls, in another folder, with an export. passing: names that files and folders
    of `plain` had on the way. hashed: of build-all.
    """

    through_dagster: SmallProject
    plain: SmallProject
    home: Path
    instance: dg.DagsterInstance
    hashed: Hashed
    passing: list[str]

    @property
    def root(self) -> Path:
        return self.through_dagster.root

    def names(self) -> dict[str, str]:
        """Return a name for the hash over each meta.json, because that hash depends on the writer of the parquet files."""
        return {meta["meta_sha256"]: f"<meta_sha256 of {name}>" for name, meta in records(self.root).items()}

    def explained(self, sha256: str) -> dict[str, Any]:
        """Return a hash and the hashed text. If this text holds the hash over a meta.json, its name is shown, and the outer hash is not
        shown.
        """
        of = self.hashed.of(sha256)
        named = renamed(of, self.names())
        return {"sha256": sha256 if named == of else "<of this text with hashes for names>", "of": named}


def build_twice(folder: Path) -> Built:
    """Build in `folder`. Call this where nothing is configured and DAGSTER_HOME is `folder`/home."""
    model, home = MODEL, folder / "home"
    first, second = folder / "first" / "deep", folder / "second"
    hashed, passing = Hashed(), set[str]()
    with hashed.listening():
        through_dagster = small_project(first, model)
        config = first / "niels_cache.toml"
        config.write_text(config.read_text(encoding="utf-8") + "\n[dagster]\nplots = false\n", encoding="utf-8")
        opened: list[dg.DagsterInstance] = []

        def from_ref(reference: InstanceRef) -> dg.DagsterInstance:
            opened.append(_in_memory(reference, home))
            return opened[-1]

        with mock.patch.object(dg.DagsterInstance, "from_ref", from_ref):
            assert main(["build-all", "--config", str(config), "--cache-dir", str(through_dagster.root), "--only", *BUILT]) == 0
    (instance,) = opened
    plain = small_project(second, model)
    with recording_often(), _listing(plain.root, passing):
        plain.build_all()
    there = {path.relative_to(plain.root).as_posix() for path in plain.root.rglob("*")}
    return Built(
        through_dagster=through_dagster, plain=plain, home=home, instance=instance, hashed=hashed, passing=sorted(passing - there - {"."})
    )


def _in_memory(reference: InstanceRef, home: Path) -> dg.DagsterInstance:
    """Make an instance with a database in memory, for speed. It says that it is on the disk, so that builds use the files in `home`.

    Such a database takes one thread at a time, so the thread that looks for abandoned runs, every five seconds, gets an error instead.
    """
    owner = threading.current_thread()

    class InMemory(dg.DagsterInstance):
        is_ephemeral = False

        def __getattribute__(self, name: str) -> Any:
            if threading.current_thread() is not owner:
                raise RuntimeError(f"{name}: this instance is of another thread")
            return super().__getattribute__(name)

        def get_ref(self) -> InstanceRef:
            return reference

        def dispose(self) -> None:
            """Stay, to be read."""

    instance = dg.DagsterInstance.ephemeral(tempdir=str(home), settings=dict(reference.settings))
    instance.__class__ = InMemory
    return instance


@contextmanager
def recording_often() -> Iterator[None]:
    """Let builds write their journal whenever they can, not every minute."""
    with mock.patch.dict(os.environ, {"NIELS_CACHE_JOURNAL_BYTES": "0"}):
        yield


@contextmanager
def _listing(root: Path, names: set[str]) -> Iterator[None]:
    """Add to `names` each path below `root` that is made or renamed."""
    mkdir, rename, replace = os.mkdir, os.rename, os.replace

    def note(*paths: Any) -> None:
        names.update(Path(path).relative_to(root).as_posix() for path in paths if Path(path).is_relative_to(root))

    def listing(call: Callable[..., None], paths: int) -> Callable[..., None]:
        def do(*arguments: Any, **settings: Any) -> None:
            note(*arguments[:paths])
            call(*arguments, **settings)

        return do

    with (
        mock.patch.object(os, "mkdir", listing(mkdir, 1)),
        mock.patch.object(os, "rename", listing(rename, 2)),
        mock.patch.object(os, "replace", listing(replace, 2)),
    ):
        yield


@contextmanager
def stopping_at_record(number: int) -> Iterator[None]:
    """Stop a build as Ctrl-C does when it has put its journal in place `number` times."""
    replace, done = os.replace, 0

    def stop(source: Any, target: Any, **settings: Any) -> None:
        nonlocal done
        replace(source, target, **settings)
        done += Path(target).name == JOURNAL
        if done == number:
            raise KeyboardInterrupt

    with mock.patch.object(os, "replace", stop):
        yield


def journal_of(partial: Path, hashed: Hashed) -> dict[str, Any]:
    """Return the journal of a stopped build and the sizes of its files.

    Names stand for the versions of libraries, which the fingerprint covers too, and for what pyarrow decides.
    """
    sha256, text = (partial / JOURNAL).read_bytes().splitlines()
    assert hashlib.sha256(text).hexdigest().encode() == sha256
    record = json.loads(text)
    of = hashed.of(record["fingerprint"])
    for versions in (of["versions"], record["made_of"]["versions"]):
        versions.update(dict.fromkeys(versions, "<version>"))
    for split in record["state"].get("writer", {}).get("splits", {}).values():
        split["spool_bytes"] = BY_PYARROW
    record |= {"fingerprint": {"of": of}, "finished": _of_files(record["finished"])}
    record |= {
        kind: {name: BY_PYARROW if _is_pyarrows(name) else value for name, value in record[kind].items()} for kind in ("files", "sums")
    }
    sizes = {name: BY_PYARROW if _is_pyarrows(name) else len(content) for name, content in contents(partial).items() if name != JOURNAL}
    return {"journal": record, "files on the disk": sizes}


def _is_pyarrows(name: str) -> bool:
    return name.endswith((".parquet", ".arrow"))


def _of_files(files: Mapping[str, Any]) -> dict[str, Any]:
    return {name: BY_PYARROW if _is_pyarrows(name) else entry for name, entry in files.items()}


def records(root: Path) -> dict[str, dict[str, Any]]:
    """Read every meta.json and report.json below `root`, by its path."""
    found = sorted([*root.rglob("meta.json"), *root.rglob("report.json")])
    return {path.relative_to(root).as_posix(): json.loads(path.read_text(encoding="utf-8")) for path in found}


def told_of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a meta.json without what libraries decide, and the order of its keys in the file."""
    values = {**record, "meta_sha256": BY_ITSELF}
    if "files" in record:
        values["files"] = _of_files(record["files"])
    if "sentencepiece_version" in record:
        values["sentencepiece_version"] = "<version>"
    return {"order of keys": [*record], "values": values}


def table(path: Path) -> dict[str, Any]:
    """Return what a parquet file holds, whatever wrote it."""
    file = pq.ParquetFile(path)
    rows = file.read().to_pylist()
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    return {
        "columns": [f"{field.name}: {field.type}" for field in file.schema_arrow],
        "rows of groups": [group.num_rows for group in groups],
        "compression": sorted({group.column(column).compression for group in groups for column in range(group.num_columns)}),
        "rows sha256": sha256_of(json.dumps(rows, ensure_ascii=False).encode()),
        "first row": rows[0] if rows else None,
    }


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def told_of_files(folder: Path) -> dict[str, Any]:
    """Return size and hash of every file below a folder, or what a table holds. Hidden files, records and reports are left out."""
    return {
        name: table(folder / name) if name.endswith(".parquet") else {"bytes": len(content), "sha256": sha256_of(content)}
        for name, content in contents(folder).items()
        if not Path(name).name.startswith(".") and not name.endswith(("meta.json", "report.json", ".png", ".html"))
    }


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return the value with a name for every text in it that has one."""
    if isinstance(value, dict):
        return {key: renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def within(value: Any, root: Path) -> Any:
    """Return the value with `<root>` for the path of the root in texts that begin with it."""
    if isinstance(value, dict):
        return {key: within(each, root) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [within(each, root) for each in value]
    is_below = isinstance(value, str) and Path(value).is_relative_to(root)
    return f"<root>/{Path(value).relative_to(root).as_posix()}" if is_below else value


def runs_of(built: Built) -> dict[str, Any]:
    """Return every run of the Dagster home by its number and job, with what it recorded. Progress of slow builds is left out."""
    runs = enumerate(reversed(built.instance.get_runs()), 1)
    return {f"{number:02} {run.job_name} {run.tags.get('dagster/partition', '')}".rstrip(): _run(built, run) for number, run in runs}


def _run(built: Built, run: dg.DagsterRun) -> dict[str, Any]:
    events = [record.dagster_event for record in built.instance.all_logs(run.run_id) if record.dagster_event is not None]
    return {
        "status": run.status.value,
        "tags": dict(run.tags),
        "config": run.run_config.get("ops"),
        "origin": _origin(run),
        "recorded": dict(told for event in events if (told := _recorded(built, event)) is not None),
        "checks": dict(_check(event) for event in events if event.event_type_value == "ASSET_CHECK_EVALUATION"),
    }


def _check(event: dg.DagsterEvent) -> tuple[str, dict[str, Any]]:
    found = event.asset_check_evaluation_data
    told = {"op": event.step_key, "partition": found.partition, "passed": found.passed, "severity": found.severity.value}
    return f"{found.asset_key.to_user_string()}: {found.check_name}", {**told, "blocking": found.blocking}


def _origin(run: dg.DagsterRun) -> list[str] | None:
    """Return the code location, the repository and the job by which the UI finds a run."""
    found = run.remote_job_origin
    if found is None:
        return None
    return [found.repository_origin.code_location_origin.location_name, found.repository_origin.repository_name, found.job_name]


def _recorded(built: Built, event: dg.DagsterEvent) -> tuple[str, dict[str, Any]] | None:
    if event.is_step_materialization:
        seen: Any = event.step_materialization_data.materialization
    elif event.event_type_value == "ASSET_OBSERVATION" and event.asset_observation_data.asset_observation.asset_key.path[0] == "upstream":
        seen = event.asset_observation_data.asset_observation
    else:
        return None
    tags = dict(seen.tags or {})
    read = [tag for tag in tags if tag.startswith("dagster/input_")]
    values = {tag: value for tag, value in tags.items() if tag not in read and tag != "dagster/data_version"}
    kind = "materialized" if event.is_step_materialization else "observed"
    return f"{seen.asset_key.to_user_string()} {kind}", {
        "op": event.step_key,
        "partition": seen.partition,
        "data version": _version(built, tags["dagster/data_version"]),
        "tags": {**values, **dict.fromkeys(sorted(read), "<Dagster's>")},
        "metadata": list(seen.metadata),
    }


def _version(built: Built, version: str) -> Any:
    """Return a data version and, if it is the hash of a text, that text."""
    names = built.names()
    if version in names:
        return names[version]
    revision, _, settings = version.rpartition("+")
    if revision:
        of = {name: sha256 and built.explained(sha256) for name, sha256 in built.hashed.of(settings).items()}
        return {"revision": revision, "settings": {"sha256": settings, "of": of}}
    return built.explained(version) if built.hashed.knows(version) else version
