"""The small project, and what is read from it as plain values.

Hashed texts are caught in hashlib. So a move of code touches the imports of these helpers at most.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.corpus import store
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.streaming import encode
from niels_cache_runtime import DatasetLoader, TokenLoader
from niels_cache_runtime.loader.batch import Batch
from tests.helpers.exports import contents
from tests.helpers.small_project import STAGES, SmallProject, small_project

JOURNAL = "journal.json"
BY_PYARROW, BY_ITSELF = "<by pyarrow>", "<over this file>"

MODEL = Path(__file__).with_name("spm.model")  # a stored file, so that no value here depends on SentencePiece's training


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


@dataclass(frozen=True, kw_only=True)
class Built:
    """The small project with everything built, and the texts that were hashed meanwhile."""

    project: SmallProject
    hashed: Hashed

    @property
    def root(self) -> Path:
        return self.project.root

    def explained(self, sha256: str) -> dict[str, Any]:
        """Return a hash and the hashed text. If this text holds the hash over a meta.json, its name is shown, and the outer hash is not
        shown, because that hash depends on the writer of the parquet files.
        """
        names = {meta["meta_sha256"]: f"<meta_sha256 of {name}>" for name, meta in records(self.root).items()}
        of = self.hashed.of(sha256)
        named = renamed(of, names)
        return {"sha256": sha256 if named == of else "<of this text with hashes for names>", "of": named}


def build(folder: Path) -> Built:
    """Build in `folder`. Call this where nothing is configured."""
    hashed = Hashed()
    with hashed.listening():
        project = small_project(folder, MODEL)
        for name, stage in STAGES.items():
            if name != "export":
                stage(project)
        materialize(graph(project.registry, project.root)["report/notes"])
    return Built(project=project, hashed=hashed)


@contextmanager
def recording_often() -> Iterator[None]:
    """Let builds write their journal whenever they can, not every minute."""
    with mock.patch.dict(os.environ, {"NIELS_CACHE_JOURNAL_BYTES": "0"}):
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
