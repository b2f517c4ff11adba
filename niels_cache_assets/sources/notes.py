"""Notes that a build prints about the local files of a source before it reads them.

They name links, hard links, empty files and files that are not text. Each file is opened once, for its first bytes.
"""

import os
from collections.abc import Mapping
from itertools import chain

from niels_cache_assets.base.first_bytes import HEAD_BYTES, FileContent, detect_content, refuse_content
from niels_cache_assets.sources.finding.globs import find_same_files
from niels_cache_assets.sources.reading.compressed import compression_of
from niels_cache_assets.sources.reading.encodings import DecodesText
from niels_cache_assets.sources.reading.files import find_matches
from niels_cache_assets.sources.reading.rows import ARROW
from niels_cache_assets.sources.types import AddedFiles, Source


def notes_on_source(source: Source) -> list[str]:
    """Return what the user should know about the local files of a table, one line for each problem.

    Raises:
        NielsCacheError: If a reader would reject a file because of its first bytes. A build might reach this file only after hours.
    """
    if "" in source.endings:  # a source that reads any file and sorts out what is no text
        return []
    path = getattr(source, "path", None)
    lists = [[path] if path else [], getattr(source, "files", None) or [], getattr(source, "val_files", None) or []]
    added = [each.files for each in getattr(source, "added", ()) if isinstance(each, AddedFiles)]
    local = [patterns for patterns in (*lists, *added) if patterns and "://" not in patterns[0]]
    found = [find_matches(patterns, source.endings) for patterns in local]
    links = find_same_files(chain.from_iterable(each.local for each in found))
    again = {path: first for path, first in links.first.items() if path != first}
    for each in found:
        again |= each.again
    decoded = links.first.items() if isinstance(source, DecodesText) else ()  # code of the user may read what it likes
    contents = {path: content for path, first in decoded if path == first and (content := _content(path)) is not None}
    empty = [path for path, content in contents.items() if content.what.startswith("empty")]
    others = {  # what is to be read as text, but holds something else, such as gzip in a file without .gz
        path: f"{content.what} ({content.advice})"
        for path, content in contents.items()
        if source.source not in ("parquet", "arrow", "epub") and not content.is_text and not content.what.startswith("empty")
        if not path.lower().endswith((".parquet", *ARROW)) and compression_of(path) is None
    }
    return [
        *_line(again, "path leads", "paths lead", "to what is read by another path, such as {} to {}; each file is read once"),
        *_line(dict.fromkeys(empty, ""), "file is", "files are", "empty (0 bytes), such as {}"),
        *_line(others, "file holds", "files hold", "no text, such as {}, which is {}", warns=True),
        *_line(links.hard, "file is", "files are", "a hard link, such as {} to {}; each is read, so the text is there again", warns=True),
    ]


def _content(path: str) -> FileContent | None:
    if not os.path.isfile(path):  # pipes can be read only once
        return None
    try:
        with open(path, "rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError:  # reported when the file is read
        return None
    refuse_content(head, path, compression_of(path))
    return detect_content(head)


def _line(found: Mapping[str, str], one: str, many: str, rest: str, *, warns: bool = False) -> list[str]:
    """Return the line for the paths of one problem, or an empty list if there are none.

    Args:
        found: For each path, the value that the line shows next to it.
        one: Noun and verb for a single path.
        many: Noun and verb for several paths.
        rest: A format string for the rest of the line, which takes the first path and its value.
        warns: Whether the line is a warning.
    """
    if not found:
        return []
    path = min(found)
    count = f"1 {one}" if len(found) == 1 else f"{len(found):,} {many}"
    return [f"{'warning: ' if warns else ''}{count} {rest.format(path, found[path])}"]
