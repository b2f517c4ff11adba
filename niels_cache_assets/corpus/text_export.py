"""An export of the documents of a prepared data set: cleaned, without duplicates, with their source ids and splits.

There is one file of the export for each file of the corpus, so a file holds up to 128 MB of text. Finished files wait in a staging folder
beside their places, and the state there lists them. So an export that was killed continues after the last finished file, and gives the same
bytes. One row group of the corpus (2 MB of text) is in memory. The result has a manifest, `NAME.json`, which is placed last. The columns of
`keep` are columns of the export, too.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from niels_cache_assets.corpus.kept_types import Kinds, as_kind, kinds_of_kept, stored_as
from niels_cache_assets.corpus.prepared import PreparedCorpus, document_files, open_documents
from niels_cache_assets.disk.journal import write_whole
from niels_cache_assets.disk.space import naming
from niels_cache_assets.disk.staging import export_stage
from niels_cache_assets.disk.table_file import arrow_schema
from niels_cache_assets.documents import DocumentBatch
from niels_cache_assets.sources.reading.keep import kept_values
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import sync
from niels_cache_runtime.format.meta import sha256_file

FileType = Literal["jsonl.zst", "parquet"]
FILE_TYPES: tuple[FileType, ...] = ("jsonl.zst", "parquet")
COLUMNS = {"id": "string", "text": "string", "title": "string", "file": "string", "row": "int64", "split": "string"}

_STATE = "state.json"
_LEVEL = 3  # of zstd


@dataclass(frozen=True, kw_only=True)
class TextExport:
    """A planned export.

    `prepared`: the data set. `folder`: the place of the files.
    """

    prepared: PreparedCorpus
    folder: Path
    file_type: FileType

    @property
    def manifest(self) -> Path:
        return self.folder / f"{self.prepared.name}.json"

    @property
    def stage(self) -> Path:
        """The folder where files wait until all are complete. The state of a killed export is there."""
        return self.folder / f".{self.prepared.name}.partial"

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the bytes."""
        return {"dataset_name": self.prepared.name, "file_type": self.file_type, **self.prepared.identity()}

    def names(self) -> list[str]:
        """Return the names of the files, in order."""
        return [f"{self.prepared.name}-{number:05d}.{self.file_type}" for number in range(len(self._sources()))]

    def existing(self) -> list[Path]:
        """Return the files of an older export that this one would replace, and other files in its places."""
        names = {*self.names(), self.manifest.name, *self._listed()}
        return sorted(self.folder / name for name in names if os.path.lexists(self.folder / name))

    def write(self, *, force: bool = False, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
        """Write the files, and return the manifest. progress: called with the number of documents done and in total.

        With `force`, the new files replace an older export. Raises NielsCacheError if files are in the way and `force` is not set, if
        another export writes to the same place, if the data set is rebuilt during the export, and for errors of the disk.
        """
        with self._staged() as stage:
            files, old = self._state(stage)
            done = [*takewhile(lambda entry: _is_whole(stage, entry) or (old and self._is_placed(entry)), files)]
            if not force and (existing := [path for path in self.existing() if path.name not in old]):
                raise NielsCacheError(f"{existing[0]}: is there already; choose another place, or replace it with --force")
            if not done:
                _empty(stage)
            for entry in self._files(stage, done, progress) if len(done) < len(self.names()) else ():
                done.append(entry)
                self._record(stage, done, placing=old)
            total = sum(entry["documents"] for entry in done)
            if total != self.prepared.kept:
                raise NielsCacheError(
                    f"{self.prepared.directory}: has {total:,} documents, but its report says {self.prepared.kept:,}; prepare it again"
                )
            manifest = {**self.identity, "documents": total, "bytes": sum(entry["bytes"] for entry in done), "files": done}
            old = [*dict.fromkeys((self.manifest.name, *self._listed(), *old))]
            self._record(stage, done, placing=old)
            self._place(stage, manifest, done, old)
        return manifest

    def _files(self, stage: Path, done: Sequence[dict[str, Any]], progress: Callable[[int, int], None] | None) -> Iterator[dict[str, Any]]:
        """Write the files after those that are done, and yield the manifest's entry of each."""
        ends = _ends(self._sources())
        kinds = self._kinds()
        first = ends[len(done) - 1] if done else 0
        context = StreamContext(seed=self.prepared.seed, start={"row": first})
        batches = self.prepared.stream(context)
        waiting: tuple[int, DocumentBatch] | None = None
        before = sum(entry["documents"] for entry in done)
        for number, name in [*enumerate(self.names())][len(done) :]:
            with _Output(stage / name, self.file_type, kinds) as output:
                while True:
                    if waiting is None:
                        batch = next(batches, None)
                        if batch is None:
                            break
                        assert context.report.place is not None
                        waiting = context.report.place["row"], batch
                    end, batch = waiting
                    if end > ends[number]:
                        break
                    output.write(batch)
                    waiting = None
                    if progress is not None:
                        progress(before + output.documents, self.prepared.kept)
            before += output.documents
            yield output.entry

    def _place(self, stage: Path, manifest: dict[str, Any], done: Sequence[dict[str, Any]], old: Sequence[str]) -> None:
        """Move all files to their places, the manifest last. A killed export does this again from its state."""
        self.manifest.unlink(missing_ok=True)  # without a manifest, nothing looks finished
        for entry in done:
            if (stage / entry["name"]).exists():
                os.replace(stage / entry["name"], self.folder / entry["name"])
        for name in {*old} - {self.manifest.name} - {entry["name"] for entry in done}:
            (self.folder / name).unlink(missing_ok=True)
        _write_json(stage / self.manifest.name, manifest)
        os.replace(stage / self.manifest.name, self.manifest)
        sync(self.folder)

    def _kinds(self) -> Kinds:
        """Return the kind of each kept column. JSON Lines need no kinds, so only Parquet reads the kept values of all documents before."""
        if self.file_type != "parquet" or not self.prepared.keep:
            return dict.fromkeys(self.prepared.keep, "any")
        return kinds_of_kept(self._sources(), self.prepared.keep)

    def _sources(self) -> list[Path]:
        return document_files(self.prepared.directory, self.prepared.meta)

    def _listed(self) -> list[str]:
        """Return the names of files in the manifest of an older export."""
        try:
            files = json.loads(self.manifest.read_bytes())["files"]
            names = [str(entry["name"]) for entry in files]
        except (OSError, ValueError, LookupError, TypeError):
            return []
        return [name for name in names if name.startswith(f"{self.prepared.name}-") and "/" not in name]

    def _state(self, stage: Path) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the files that a stopped export of the same documents has finished, and the names that it may have left in the folder.

        There are such names only if it was stopped while it moved its files. Then they also count for an export of other documents.
        """
        try:
            state = json.loads((stage / _STATE).read_bytes())
            files, placing = [*state["files"]], [*state["placing"]]
            left = [*placing, *(entry["name"] for entry in files)] if placing else []
            return files if state["identity"] == self.identity else [], [name for name in left if "/" not in name]
        except (OSError, ValueError, LookupError, TypeError):
            return [], []

    def _is_placed(self, entry: dict[str, Any]) -> bool:
        return _is_whole(self.folder, entry) and sha256_file(self.folder / entry["name"]) == entry["sha256"]

    def _record(self, stage: Path, done: Sequence[dict[str, Any]], *, placing: Sequence[str] = ()) -> None:
        """Write the state. placing: the names that an older export may have, as soon as an export has begun to move its files."""
        _write_json(stage / _STATE, {"identity": self.identity, "files": done, "placing": placing})

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        """Create and lock the staging folder. If it has a state, it stays after an error, so that the next export continues."""
        with export_stage(self.folder, self.stage, kept=_STATE, advice="run the export again to continue it") as stage:
            yield stage
            (stage / _STATE).unlink()


class _Writer(Protocol):
    def write(self, rows: dict[str, list[Any]]) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    def __init__(self, file: IO[bytes], kinds: Kinds) -> None:
        import zstandard

        self._compressed = zstandard.ZstdCompressor(level=_LEVEL).stream_writer(file, closefd=False)

    def write(self, rows: dict[str, list[Any]]) -> None:
        lines = (dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True))
        self._compressed.write("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode())

    def close(self) -> None:
        self._compressed.close()


class _Parquet:
    def __init__(self, file: IO[bytes], kinds: Kinds) -> None:
        import pyarrow.parquet

        self._kinds = kinds
        self._schema = arrow_schema({**COLUMNS, **{name: stored_as(kind) for name, kind in kinds.items()}})
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, rows: dict[str, list[Any]]) -> None:
        import pyarrow as pa

        kept = {name: [as_kind(value, kind) for value in rows[name]] for name, kind in self._kinds.items()}
        self._writer.write_table(pa.Table.from_pydict({**rows, **kept}, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


_WRITERS: dict[FileType, Callable[[IO[bytes], Kinds], _Writer]] = {"jsonl.zst": _JsonLines, "parquet": _Parquet}


class _Output:
    """One file of the export, which is hashed while it is written.

    `documents`: the number of documents so far. `entry`: what the manifest says of the file, after the end of the block.
    """

    def __init__(self, path: Path, file_type: FileType, kinds: Kinds) -> None:
        self._path, self._keep = path, [*kinds]
        self._file = open(path, "wb")  # noqa: SIM115  (closed by __exit__)
        self._hashed = _Hashed(self._file)
        self._writer = _WRITERS[file_type](self._hashed, kinds)  # type: ignore[arg-type]
        self.documents = self._characters = 0

    def __enter__(self) -> _Output:
        return self

    def write(self, batch: DocumentBatch) -> None:
        documents = [*batch]
        rows = {
            "id": [each.source_id for each in documents],
            "text": [each.text for each in documents],
            "title": [each.title for each in documents],
            "file": [each.file for each in documents],
            "row": [each.row for each in documents],
            "split": [each.split for each in documents],
        }
        if self._keep:
            kept = [kept_values(each.kept) for each in documents]
            rows |= {name: [values.get(name) for values in kept] for name in self._keep}
        with naming(self._path):
            self._writer.write(rows)
        self.documents += len(documents)
        self._characters += int(batch.characters.sum())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is not None:
                with suppress(OSError, ValueError):  # the error that ended the block is raised
                    self._writer.close()
            else:
                with naming(self._path):
                    self._writer.close()
                    self._file.flush()
                    os.fsync(self._file.fileno())

    @property
    def entry(self) -> dict[str, Any]:
        return {
            "name": self._path.name,
            "documents": self.documents,
            "characters": self._characters,
            "bytes": self._hashed.bytes,
            "sha256": self._hashed.sha256.hexdigest(),
        }


class _Hashed(io.RawIOBase):
    """A file that hashes what is written to it. It cannot seek."""

    def __init__(self, file: IO[bytes]) -> None:
        self._to = file
        self.sha256, self.bytes = hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.bytes

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._to.write(view)
        self.sha256.update(view)
        self.bytes += len(view)
        return len(view)


def _ends(sources: Sequence[Path]) -> list[int]:
    """Return the ordinal after the last document of each file of a corpus."""
    ends, end = [], 0
    for path in sources:
        with open_documents(path) as parquet:
            end += parquet.metadata.num_rows
        ends.append(end)
    return ends


def _write_json(path: Path, value: Any) -> None:
    write_whole(path, f"{json.dumps(value, indent=1, ensure_ascii=False)}\n".encode())


def _is_whole(stage: Path, entry: dict[str, Any]) -> bool:
    path = stage / entry["name"]
    return path.is_file() and path.stat().st_size == entry["bytes"]


def _empty(stage: Path) -> None:
    """Remove everything but the state, which may name files in the folder."""
    for path in stage.iterdir():
        if path.name != _STATE:
            path.unlink()
