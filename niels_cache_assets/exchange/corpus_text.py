"""An export of the documents of a prepared data set: cleaned, without duplicates, with their source ids and splits.

There is one file of the export for each file of the corpus, so a file holds up to 128 MB of text. Finished files wait in a staging folder
next to their destination, and the state there lists them. So an export that was killed continues after the last finished file, and gives
the same bytes. One row group of the corpus (2 MB of text) is in memory. The result has a manifest, `NAME.json`, which is placed last. The
columns of `keep` are columns of the export, too. A column of Parquet has one type, but the values of each document may have another. So for
Parquet, one pass over the kept values of the corpus finds the kind that holds all values of a column, in about two microseconds a document.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.corpus.prepared import PreparedCorpus, document_files, open_documents
from niels_cache_assets.disk.journal import write_atomically
from niels_cache_assets.disk.staging import export_stage
from niels_cache_assets.disk.table_file import ParquetWriter, sealing
from niels_cache_assets.disk.writers import Files, HashedFile
from niels_cache_assets.exchange.replacing import NEW, OLD, empty_folder, existing_files, swap_files, take_back
from niels_cache_assets.sources.reading.keep import kept_values
from niels_cache_assets.sources.step_use import EXPORTED
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError

FileType = Literal["jsonl.zst", "parquet"]
_FIELDS = ("source_id", "text", "title", "file", "row", "split")
COLUMNS = dict.fromkeys(EXPORTED, "string") | {"row": "int64"}

_STATE = "state.json"
_LEVEL = 3  # of zstd
_MAX_EXACT_INT = 2**53  # up to this, a double holds each whole number
_MAX_INT64 = 2**63

_Entry = dict[str, Any]  # of a file in the list of an export

Kind = Literal["bool", "int64", "double", "string", "json"]
Kinds = dict[str, Kind]
"""The kind of each kept column. "json": values of several kinds, lists, objects or large numbers, as JSON text."""


@dataclass(frozen=True, kw_only=True)
class TextExport:
    """A planned export.

    Attributes:
        prepared: The data set.
        folder: The destination of the files.
        file_type: The type of the files.
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

    def existing(self) -> list[str]:
        """Return the names of an older export's files that this one would replace, and of other files with the same names.

        The manifest is the last one.

        Raises:
            NielsCacheError: If a folder is in the way.
        """
        aside = self._listed_names(self.stage / OLD / self.manifest.name)  # an export was killed while it replaced this older one
        return existing_files(self.folder, [*self.names(), *aside, *self._listed_names(self.manifest), self.manifest.name])

    def write(self, *, force: bool = False, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
        """Write the files, and return the manifest.

        Args:
            force: Whether the new files replace an older export.
            progress: Called with the number of documents done and in total. None: no reports.

        Raises:
            NielsCacheError: If files are in the way and `force` is not set, if another export writes to the same folder, if the data set is
                rebuilt during the export, or if the disk reports an error.
        """
        # After an error, a stage with a state stays, so that the next export continues.
        with export_stage(self.folder, self.stage, kept=_STATE, advice="run the export again to continue it") as stage:
            take_back(self.folder, stage, force=force)
            done = self._done(stage)
            if not force and (existing := self.existing()):
                raise NielsCacheError(f"{self.folder / existing[0]}: is there already; choose another place, or replace it with --force")
            if not done:
                (stage / NEW).mkdir(exist_ok=True)
                empty_folder(stage / NEW)
            for entry in self._files(stage / NEW, done, progress) if len(done) < len(self.names()) else ():
                done.append(entry)
                _write_json(stage / _STATE, {"identity": self.identity, "files": done})
            total = sum(entry["documents"] for entry in done)
            if total != self.prepared.kept:
                raise NielsCacheError(
                    f"{self.prepared.directory}: has {total:,} documents, but its report says {self.prepared.kept:,}; prepare it again"
                )
            manifest = {**self.identity, "documents": total, "bytes": sum(entry["bytes"] for entry in done), "files": done}
            _write_json(stage / NEW / self.manifest.name, manifest)
            # The manifest comes last, and an older one goes first: without a manifest, nothing looks finished.
            swap_files(self.folder, stage, older=self.existing(), names=[*(entry["name"] for entry in done), self.manifest.name])
            (stage / _STATE).unlink(missing_ok=True)
        return manifest

    def _files(self, stage: Path, done: Sequence[_Entry], progress: Callable[[int, int], None] | None) -> Iterator[_Entry]:
        """Write the files after those that are done, and yield the manifest's entry of each."""
        ends, kinds = _ends(self._sources()), self._kinds()
        context = StreamContext(seed=self.prepared.seed, start={"row": ends[len(done) - 1] if done else 0})
        before = sum(entry["documents"] for entry in done)

        def numbered() -> Iterator[tuple[int, DocumentBatch]]:
            """Yield each batch with the number of its file."""
            for batch in self.prepared.stream(context):
                assert context.report.position is not None
                yield bisect_left(ends, context.report.position["row"]), batch

        groups = groupby(numbered(), key=itemgetter(0))
        group = next(groups, None)
        for number, name in [*enumerate(self.names())][len(done) :]:
            files, documents, characters = Files(), 0, 0
            columns = {**COLUMNS, **{name: "string" if kind == "json" else kind for name, kind in kinds.items()}}
            (stage / name).unlink(missing_ok=True)  # the beginning that a killed export has left
            with sealing(_TABLES[self.file_type](stage, name, columns, files)) as table:
                if group is not None and group[0] == number:
                    for _, batch in group[1]:
                        table.write_group(_columns(batch, kinds))
                        documents += len(batch)
                        characters += int(batch.characters.sum())
                        if progress is not None:
                            progress(before + documents, self.prepared.kept)
                    group = next(groups, None)
            before += documents
            yield {"name": name, "documents": documents, "characters": characters, **files[name]}

    def _kinds(self) -> Kinds:
        """Return the kind of each kept column. JSON Lines need no kinds, so only Parquet reads the kept values of all documents before."""
        if self.file_type != "parquet" or not self.prepared.keep:
            return dict.fromkeys(self.prepared.keep, "string")
        return kinds_of_kept(self._sources(), self.prepared.keep)

    def _sources(self) -> list[Path]:
        return document_files(self.prepared.directory, self.prepared.meta)

    def _listed_names(self, manifest: Path) -> list[str]:
        """Return the names of files in the manifest of an older export."""
        try:
            files = json.loads(manifest.read_bytes())["files"]
            names = [str(entry["name"]) for entry in files]
        except (OSError, ValueError, LookupError, TypeError):
            return []
        return [name for name in names if name.startswith(f"{self.prepared.name}-") and "/" not in name]

    def _done(self, stage: Path) -> list[_Entry]:
        """Return the files that a stopped export of the same documents has finished."""
        try:
            state = json.loads((stage / _STATE).read_bytes())
            files = state["files"] if state["identity"] == self.identity else []
            sizes = {path.name: path.stat().st_size for path in (stage / NEW).iterdir()}
            return [*takewhile(lambda entry: sizes.get(entry["name"]) == entry["bytes"], files)]
        except (OSError, ValueError, LookupError, TypeError):
            return []


class _LinesFile:
    """A file of JSON Lines, compressed with zstd, with the interface of a ParquetWriter."""

    def __init__(self, root: Path, relative: str, columns: Mapping[str, str], files: Files) -> None:
        import zstandard

        self._names = [*columns]
        self._file = HashedFile(root, relative, files)
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL).compressobj()

    def write_group(self, columns: Iterable[Sequence[Any]]) -> None:
        lines = (dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True))
        self._file.append(self._compressor.compress("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()))

    def seal(self) -> None:
        self._file.append(self._compressor.flush())
        self._file.seal()

    def abandon(self) -> None:
        self._file.abandon()


_TABLES: dict[FileType, Any] = {"jsonl.zst": _LinesFile, "parquet": ParquetWriter}


def _columns(batch: DocumentBatch, kinds: Kinds) -> list[list[Any]]:
    """Return the values of the columns of the export: COLUMNS, and the kept values."""
    documents = [*batch]
    columns = [[getattr(each, name) for each in documents] for name in _FIELDS]
    kept = [kept_values(each.kept) for each in documents] if kinds else []
    return columns + [[convert_to_kind(values.get(name), kind) for values in kept] for name, kind in kinds.items()]


def kinds_of_kept(files: Iterable[Path], keep: Sequence[str]) -> Kinds:
    """Return the kind of each kept column.

    Args:
        files: The documents of a corpus.
        keep: The names of the columns.

    Raises:
        NielsCacheError: If a file cannot be read.
    """
    found: dict[str, set[str]] = {name: set() for name in keep}
    for path in files:
        with open_documents(path) as parquet:
            for group in range(parquet.num_row_groups):
                for text in parquet.read_row_group(group, columns=["kept"])["kept"].to_pylist():
                    for name, value in kept_values(text).items():
                        if value is not None:
                            found[name].add(_kind_of(value))
    return {name: _common_kind(kinds) for name, kinds in found.items()}


def convert_to_kind(value: Any, kind: Kind) -> Any:
    """Return a value in the form that a column of this kind stores."""
    return json.dumps(value, ensure_ascii=False) if kind == "json" and value is not None else value


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if abs(value) <= _MAX_EXACT_INT else "wide" if abs(value) < _MAX_INT64 else "json"
    return "double" if isinstance(value, float) else "string" if isinstance(value, str) else "json"


def _common_kind(kinds: set[str]) -> Kind:
    if not kinds:
        return "string"
    if kinds <= {"int64", "wide"}:
        return "int64"
    if kinds <= {"int64", "double"}:
        return "double"
    return "bool" if kinds == {"bool"} else "string" if kinds == {"string"} else "json"


def _ends(sources: Sequence[Path]) -> list[int]:
    """Return the ordinal after the last document of each file of a corpus."""
    ends, end = [], 0
    for path in sources:
        with open_documents(path) as parquet:
            end += parquet.metadata.num_rows
        ends.append(end)
    return ends


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, f"{json.dumps(value, indent=1, ensure_ascii=False)}\n".encode())
