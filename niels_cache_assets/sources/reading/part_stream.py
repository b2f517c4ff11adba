"""The documents of a data set in parts: its files in order, without the head that val has taken, and with the split of each document.

A part reads its own files. A mixture reads the files of all parts of a member in the same way, so that it finds the same val. With
val_frac, the plan counts the documents of each file (`count_unsplit`), which reads all text once, in several processes.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.base.parallel import map_in_processes
from niels_cache_assets.sources.excluding import excluded_ids, remove_excluded
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.keep import HasColumns
from niels_cache_assets.sources.text_column import errors_without_samples
from niels_cache_assets.sources.types import ListedFile, SourceWithParts, StreamContext
from niels_cache_assets.sources.val_share import FractionSplitter
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split

if TYPE_CHECKING:
    from niels_cache_assets.sources.reading.file_source import GroupedFiles

_BYTES_PER_PROCESS = 256 << 20  # for less, the start of a worker process takes longer than it saves


@dataclass(frozen=True, kw_only=True)
class PartStream:
    """The stream of one part, or of several parts.

    Attributes:
        reader: The reader of the files. None without files.
        files: The files as the plan lists them, with their addresses.
        text_field: The field with the text, or None if the files hold no rows.
        val: The splitter of these documents. None if budgets or upstream determine the split.
        excluded: The ids of documents that are left out and counted. None of them is among the documents that val has taken.
        skip: The number of documents that val has taken from the head of the remaining stream.
        only: The split to keep; documents of the other split are left out. None keeps both.
    """

    reader: GroupedFiles | None
    files: Sequence[tuple[ListedFile, SourceFile]]
    text_field: str | None
    val: FractionSplitter | None = None
    excluded: Collection[str] = ()
    skip: int = 0
    only: Split | None = None

    def documents(self, context: StreamContext) -> Iterator[DocumentBatch]:
        """Yield the documents in batches, from the position at which `context` begins.

        Raises:
            NielsCacheError: If a file cannot be read.
        """
        groups = [(split, [file for _, file in of_split]) for split, of_split in groupby(self.files, key=lambda each: each[0].split)]
        report, start = context.report, context.start or {"group": 0, "place": None, "unsplit": 0}
        splitter = self.val and replace(self.val, position=start["unsplit"])
        skip = self.skip if context.start is None else 0
        for number in range(start["group"], len(groups)):
            split, files = groups[number]
            position = start["place"] if number == start["group"] else None
            report.split = split
            inner = replace(context, files=files, text_field=self.text_field, start=position)
            assert self.reader is not None  # there are files
            batches = self.reader.documents(inner)
            for each in splitter.batches(batches) if splitter else batches:
                batch, position = DocumentBatch.of(each), report.position
                report.position = None  # the reader need not report a position for the next batch
                if split is not None:
                    batch = replace(batch, split=np.full(len(batch), SPLITS.index(split), np.int8))
                if self.only is not None:
                    batch = batch[batch.split == SPLITS.index(self.only)]
                if self.excluded:
                    batch = remove_excluded(batch, self.excluded, report)
                left_out = min(skip, len(batch))
                skip -= left_out
                batch = batch[left_out:] if left_out else batch
                if not len(batch):
                    continue
                unsplit = splitter.position if splitter else 0
                report.position = None if position is None else {"group": number, "place": position, "unsplit": unsplit}
                yield batch
                report.position = None

    def files_through(self, name: str) -> Sequence[tuple[ListedFile, SourceFile]]:
        """Return the files up to and including the one with this name. A stream that stops in this file has read no other file."""
        return self.files[: 1 + [listed.name for listed, _ in self.files].index(name)]


def part_stream(
    source: SourceWithParts, files: Sequence[ListedFile], *, revision: str | None, excludes: bool = True, **own: Any
) -> PartStream:
    """Return the stream of some files of a data set in parts.

    Args:
        source: The table of the data set.
        files: The files, as the plan lists them.
        revision: The revision at which the files were listed.
        excludes: Whether to leave out the documents that `exclude` names.
        **own: Other fields of `PartStream`.

    Raises:
        NielsCacheError: If a file is missing.
    """
    return PartStream(
        reader=source.file_reader([file.name for file in files]) if files else None,
        files=[*zip(files, source.located(files, revision), strict=True)],
        excluded=excluded_ids(source.exclude) if excludes and source.exclude is not None else (),
        **own,
    )


def streams_of_all_parts(source: SourceWithParts, *, revision: str | None) -> list[PartStream]:
    """Return the streams of all files of a data set in parts, in order: of the first files, and of each table `added`.

    The source must have its plan.
    """
    assert source.plan is not None
    groups = source.plan.groups(revision)
    return [part_stream(source, each.listed, revision=each.revision, text_field=each.text_field, val=each.val) for each in groups]


def count_unsplit(stream: PartStream, *, processes: int = 1) -> Generator[int]:
    """Yield for each file of a stream the number of its documents without a split. All files are read once, and only their text.

    Args:
        stream: The stream.
        processes: The number of worker processes. Few files, or little text, take fewer.

    Raises:
        NielsCacheError: If a file cannot be read.
    """
    if stream.reader is None:
        return
    reader = stream.reader
    if isinstance(reader, HasColumns):
        reader = reader.model_copy(update={"keep": (), "id_field": stream.text_field})  # an id that is the text costs nothing
    processes = min(processes, len(stream.files), 1 + sum(listed.bytes for listed, _ in stream.files) // _BYTES_PER_PROCESS)
    count, files = partial(_count_file, reader, stream.text_field), (file for _, file in stream.files)
    yield from map_in_processes(count, files, processes=processes, doing="counting documents")


def _count_file(reader: GroupedFiles, text_field: str | None, file: SourceFile) -> int:
    return reader.count_unsplit(StreamContext(seed=0, files=[file], text_field=text_field))


def heads_of_parts(source: SourceWithParts, *, revision: str | None) -> Iterator[tuple[int, PartStream]]:
    """Yield the number of val tokens and the stream of each part that contributes tokens to val. The source must have its plan."""
    assert source.plan is not None
    for group in source.plan.groups(revision):
        for files, val_tokens in group.parts:
            if val_tokens:
                yield val_tokens, part_stream(source, files, revision=group.revision, text_field=group.text_field)


def planned_text_field(source: SourceWithParts, files: Sequence[ListedFile], revision: str | None) -> str | None:
    """Return the text field of all files of a data set, including its tables `added`, or None if the files hold no rows.

    As without parts, it is chosen from the train files.

    Args:
        source: The table of the data set.
        files: The first files of the data set.
        revision: The revision at which the files were listed.
    """
    of_train = [file for file in files if file.split != "val"] or files
    with errors_without_samples():
        return source.file_reader([file.name for file in of_train]).text_field_of(source.located(of_train, revision))


def require_unchanged(files: Sequence[tuple[ListedFile, SourceFile]]) -> None:
    """Check that each file is still the one that the plan lists.

    Local files are hashed. Files of the hub cannot change.

    Raises:
        NielsCacheError: If a file has changed.
    """
    for listed, file in files:
        if file.url.startswith("hf://"):
            continue
        if (file.size(), file.digest()) != (listed.bytes, listed.digest):
            again = "niels-cache build-all --force" if file.is_remote else "niels-cache build-all"  # only local plans are renewed
            raise NielsCacheError(f"{file.name}: has changed since the plan of this data set was made; make the plan again: {again}")
