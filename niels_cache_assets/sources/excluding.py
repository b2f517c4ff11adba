r"""The key `exclude`: documents to remove, by the ids that the source gives them.

The file has one id per line, as `trace` and the lineage show it: the value of the id field, or `file#row`. A line stands for itself, and
for itself without surrounding white space. A JSON string, such as "two\nlines", stands for any id, including one that no line can hold.

The ids are held in memory, at about 200 bytes each, and a document costs one set lookup. A document means a conversation or a pair, too.
The set of ids is part of the fingerprint; the order of the lines and the path are not. In a data set in parts, only the ids that occur in a
part are part of its fingerprint (`parts/exclusion.py`).
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from niels_cache_assets.base.documents import Conversation, DocumentBatch, Documents, SourceReport
from niels_cache_assets.sources.reading.files import SourceFile, open_bytes, valid_unicode
from niels_cache_runtime.errors import NielsCacheError

_SHOWN_IDS = 20
EXCLUDED = "excluded"  # the reason in `dropped`, and the key in `facts` with the number of removed documents for each id


def excluded_ids(path: str) -> frozenset[str]:
    """Return the ids in a file: its lines, with and without surrounding white space, and the values of JSON strings.

    Raises:
        NielsCacheError: If the file is missing, is not UTF-8, or has no id.
    """
    return _entries_of(path)[0]


def unmatched_lines(path: str, removed: Collection[str]) -> list[str]:
    """Return the lines of a file that match none of the removed ids, each as a JSON string.

    Raises:
        NielsCacheError: If the file is missing, is not UTF-8, or has no id.
    """
    return [json.dumps(line, ensure_ascii=False) for line, ids in _entries_of(path)[1].items() if not any(each in removed for each in ids)]


def require_matches(path: str, facts: Mapping[str, Any], *, must_match: bool) -> str | None:
    """Return a line about the ids in a file that matched no document, or None if all matched.

    Args:
        path: The file with the ids.
        facts: The facts of the build in its meta.json.
        must_match: Whether an id that matched no document is an error.

    Raises:
        NielsCacheError: If `must_match` is set and an id matched no document.
    """
    unmatched = unmatched_lines(path, facts.get(EXCLUDED, {}))
    if not unmatched:
        return None
    shown = ", ".join(unmatched[:_SHOWN_IDS]) + (f" and {len(unmatched) - _SHOWN_IDS:,} more" if len(unmatched) > _SHOWN_IDS else "")
    line = f"{path}: exclude: {len(unmatched):,} of {len(_entries_of(path)[1]):,} ids match no document that was read: {shown}"
    if must_match:
        raise NielsCacheError(f"{line}; correct them (niels-cache trace shows the ids), or set exclude_must_match = false")
    return line


def _entries_of(path: str) -> tuple[frozenset[str], Mapping[str, tuple[str, ...]]]:
    try:
        stamp = None if "://" in path else (os.stat(path).st_mtime_ns, os.stat(path).st_size)
    except OSError as error:
        raise NielsCacheError(f"{path}: exclude cannot be read ({error.strerror}); correct its path, or write one id a line") from error
    return _read_entries(path, stamp)


def ids_of_key(path: str | None) -> frozenset[str]:
    """Return the ids in the file that the key names, or none without the key."""
    return frozenset() if path is None else excluded_ids(path)


def exclude_identity(path: str | None) -> dict[str, str]:
    """Return what the key adds to a fingerprint: a sha256 of the sorted ids, or nothing without the key."""
    return {} if path is None else identity_of_ids(excluded_ids(path))


def identity_of_ids(ids: Collection[str]) -> dict[str, str]:
    """Return what these ids add to a fingerprint: a sha256 of the sorted ids, or nothing without ids."""
    return {"exclude": _digest(frozenset(ids))} if ids else {}


def without_excluded(batches: Iterator[Documents], path: str | None, report: SourceReport) -> Iterator[Documents]:
    """Yield the batches without the documents whose ids are in a file.

    Args:
        batches: The batches of a source.
        path: The file with the ids. None yields all batches unchanged.
        report: Counts the removed documents in `dropped` and `facts`.
    """
    if path is None:
        yield from batches
        return
    ids = excluded_ids(path)
    for each in batches:
        if len(batch := remove_excluded(DocumentBatch.of(each), ids, report)):
            yield batch


def remove_excluded(batch: DocumentBatch, ids: Collection[str], report: SourceReport) -> DocumentBatch:
    """Return a batch without the documents that have one of these ids, which are counted in `dropped` and `facts` of the report."""
    is_excluded = np.fromiter((source_id in ids for source_id in batch.source_id), bool, len(batch))
    if not is_excluded.any():
        return batch
    first = batch.document(int(is_excluded.argmax()))
    _count(report, batch.source_id[is_excluded].tolist(), first.file, first.row)
    return batch[~is_excluded]


def count_excluded(batches: Iterable[list[Conversation]], ids: Collection[str], report: SourceReport) -> Iterator[list[Conversation]]:
    """Yield the batches of conversations unchanged, and count those that have one of these ids. The builder leaves them out.

    The builder needs them, because an excluded conversation counts when val is chosen, so that all others keep their split.
    """
    for batch in batches:
        for each in batch if ids else ():
            if each.source_id in ids:
                _count(report, [each.source_id], each.file, each.row)
        yield batch


def _count(report: SourceReport, source_ids: Sequence[str], file: str, row: int) -> None:
    """Count excluded documents in `dropped` and `facts` of a report. `file` and `row` are those of the first."""
    removed = dict(report.facts.get(EXCLUDED, {}))  # a new mapping, because earlier positions keep the old one
    for source_id in source_ids:
        removed[source_id] = removed.get(source_id, 0) + 1
    report.drop_row(EXCLUDED, file, row, count=len(source_ids))
    report.facts[EXCLUDED] = removed


@lru_cache(maxsize=8)  # each of many parts needs the digest of the same list
def _digest(ids: frozenset[str]) -> str:
    return hashlib.sha256(json.dumps(sorted(ids)).encode()).hexdigest()


@lru_cache(maxsize=8)
def _read_entries(path: str, stamp: tuple[int, int] | None) -> tuple[frozenset[str], Mapping[str, tuple[str, ...]]]:
    """Return all ids, and for each line the ids that it stands for."""
    file = SourceFile(path, os.path.basename(path))
    with open_bytes(file) as stream:
        try:
            lines = re.split(r"\r\n|\r|\n", stream.read().decode("utf-8-sig"))  # an id may contain other line separators, such as U+2028
        except UnicodeDecodeError as error:
            raise NielsCacheError(f"{path}: exclude is not UTF-8 at byte {error.start}; write one id a line in UTF-8") from error
    entries = {line: _ids_of(line) for line in lines if line.strip()}
    if not entries:
        raise NielsCacheError(f"{path}: exclude has no id; write one id a line, or remove the key")
    return frozenset(each for ids in entries.values() for each in ids), entries


def _ids_of(line: str) -> tuple[str, ...]:
    """Return the ids that a line stands for, the likeliest first."""
    decoded = None
    if line.strip().startswith('"'):
        with suppress(ValueError):
            decoded = json.loads(line)
    return tuple(dict.fromkeys([*([valid_unicode(decoded)] if isinstance(decoded, str) else []), line, line.strip()]))
