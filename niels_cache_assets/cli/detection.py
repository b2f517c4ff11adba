"""The recognition of data in files and folders, for the command `init`.

The result is a kind of source, with its keys, for each kind of data. `sources_of` uses only the names of files. `recognize` also reads the
first rows of a few files of each kind, and of all files if these few differ. Data that cannot become a data set is refused with advice.
"""

import glob
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from niels_cache_assets.sources import PRETRAIN_SOURCES
from niels_cache_assets.sources.chat_forms import UnclearColumnsError, are_trees, keys_of_rows
from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.finding.globs import advice_for_missing, glob_files
from niels_cache_assets.sources.reading.compressed import COMPRESSIONS
from niels_cache_assets.sources.reading.files import SourceFile, file_errors, open_bytes, walk_folder
from niels_cache_assets.sources.reading.rows import ARROW, file_rows, first_rows
from niels_cache_assets.sources.roam import is_export
from niels_cache_assets.sources.text_column import ROWS, choose_text_field, require_field
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_assets.sources.wikipedia import Wikipedia
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Family

KINDS = {
    **dict.fromkeys((".txt", ".md", ".rst"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),  # the JSON Lines files of C4 are named .json.gz
    ".parquet": "parquet",
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys(ARROW, "arrow"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".epub": "epub",
    ".xml": "wikipedia",
}
_ENDINGS = f"{', '.join(KINDS)}, with or without {', '.join(COMPRESSIONS)}"
_DUMP_PART = re.compile(r"(?<=\.xml)-p[\d*]+p[\d*]+$")  # the name of a part of a dump ends in .xml-p1p41242.bz2; -p*p* means all parts
_MAX_SAMPLED = 5  # number of files of a pattern that are read, spread over all its files
_MAX_JSON = 64 << 20  # size in bytes of the largest .json file that is read as a whole


@dataclass(frozen=True)
class DetectedKind:
    """A kind of source, and the keys of its table that depend on the rows."""

    family: Family
    source: str
    keys: tuple[tuple[str, str], ...] = ()

    @property
    def path_key(self) -> str:
        return "path" if self.source in ("markdown_folder", "roam") else "files"


@dataclass
class Proposal:
    """A table, with the paths of its data as the user gave them."""

    kind: DetectedKind
    paths: list[str] = field(default_factory=list)


def recognize(paths: Sequence[str], *, text_field: str | None = None) -> list[Proposal]:
    """Return a table for each kind of data in these files, folders and globs.

    Args:
        paths: Files, folders and globs.
        text_field: Field of the text in rows, which are then not conversations; by default the rule of builds applies.

    Raises:
        NielsCacheError: If a file is missing, or contains neither text nor conversations.
    """
    found: dict[DetectedKind | tuple[DetectedKind, str], Proposal] = {}
    for given in paths:
        path = os.path.expanduser(given)
        for kind, kind_paths in _kinds_of(path, text_field).items():
            key = kind if kind.path_key == "files" else (kind, path)  # a table with `path` has only one path
            found.setdefault(key, Proposal(kind)).paths += kind_paths
    return list(found.values())


def _kinds_of(path: str, text_field: str | None) -> dict[DetectedKind, list[str]]:
    if "://" in path:
        (source,) = sources_of([path])
        return {DetectedKind("pretrain", source.source): [path]}
    if not os.path.isdir(path):
        files = [path] if os.path.exists(path) else [each for each in glob_files(path).paths if os.path.isfile(each)]
        sources = sources_of(files or [path])  # raises an error for missing files and unknown names
        if not files:  # a broken link, or a glob of folders
            raise NielsCacheError(f"{path}: leads to no file; correct it, or give a folder by its own name")
        patterns = {path: files} if len(sources) == 1 else {glob.escape(file): [file] for file in files}
        return _sorted_by_kind(patterns, text_field)
    files = files_in(path)
    others = [file for file in files if not file.lower().endswith(".md")]
    if not others:
        return {DetectedKind("pretrain", "markdown_folder"): [path]}
    if all(file.lower().endswith(".json") and _is_roam_export(file) for file in others):  # `all` stops at a non-export
        return {DetectedKind("pretrain", "roam"): [path]}
    return _sorted_by_kind(_patterns(path, files), text_field)


def _sorted_by_kind(patterns: dict[str, list[str]], text_field: str | None) -> dict[DetectedKind, list[str]]:
    """Return the paths (files, folders and globs) of the data, grouped by kind.

    If all files of a pattern are of one kind, the path is the pattern; otherwise the files of the pattern are listed one by one. A file
    without rows may be of any kind.
    """
    kinds: dict[DetectedKind, list[str]] = {}
    for pattern, files in patterns.items():
        step = -(-len(files) // _MAX_SAMPLED)
        seen = {file: _kind_inside(file, text_field) for file in files[::step]}
        if len({*seen.values()} - {None}) != 1:
            seen = {file: seen.get(file) or _kind_inside(file, text_field) for file in files}
        found = {file: kind for file, kind in seen.items() if kind is not None}
        if not found:
            raise NielsCacheError(f"{files[0]}: holds no row; leave it out")
        if len({*found.values()}) == 1:
            kinds.setdefault(next(iter(found.values())), []).append(pattern)
            continue
        for file, kind in found.items():
            kinds.setdefault(kind, []).append(glob.escape(file))
    return kinds


def _patterns(folder: str, files: Iterable[str]) -> dict[str, list[str]]:
    """Return one pattern for all files below a folder that have the same suffix. The pattern also matches files that are added later."""
    by_ending: dict[str, list[str]] = {}
    for file in files:
        stem, ending = os.path.splitext(file)
        if ending.lower() in COMPRESSIONS:
            ending = os.path.splitext(stem)[1] + ending
        by_ending.setdefault(re.sub(r"-p\d+p\d+", "-p*p*", ending), []).append(file)  # parts of a Wikipedia dump
    return {os.path.join(glob.escape(folder), "**", f"*{ending}"): alike for ending, alike in by_ending.items()}


def _kind_inside(path: str, text_field: str | None) -> DetectedKind | None:
    """Return the kind of data in a file, or None for a file of rows that has no row."""
    if not os.path.isfile(path):
        raise NielsCacheError(f"{path}: not a regular file; write its content to a file")
    named = source_kind(path)
    if named in ("text", "wikipedia", "html", "epub"):
        if named == "wikipedia":
            Wikipedia.model_validate({"source": "wikipedia", "files": [glob.escape(path)]}).check_input({})
        with file_errors(SourceFile(path, path)), open_bytes(SourceFile(path, path), lambda damage: None):
            pass  # only to raise an error for what is never text
        return DetectedKind("pretrain", named)
    if path.lower().endswith(".json") and _is_roam_export(path):
        return DetectedKind("pretrain", "roam")
    rows = _first_rows(path)
    if not rows:
        return None
    try:
        chats = None if text_field is not None else _chat_kind(rows)
    except UnclearColumnsError as error:
        raise UnclearColumnsError(f"{path}: {error}") from error
    if chats is not None:
        return chats
    assert named is not None
    return DetectedKind("pretrain", named, (("text_field", _text_field(path, rows, text_field)),))


def _first_rows(path: str) -> list[dict[str, Any]]:
    return [row for _, row in first_rows(file_rows(SourceFile(path, path)), ROWS)]


def _whole_json(path: str) -> Any:
    """Return the value of a whole JSON file, or None if the file is too large, invalid or not a regular file."""
    if not os.path.isfile(path) or os.path.getsize(path) > _MAX_JSON:
        return None
    try:
        with file_errors(SourceFile(path, path)), open(path, encoding="utf-8") as file:
            return json.load(file)
    except (ValueError, RecursionError):
        return None


def _is_roam_export(path: str) -> bool:
    """Return whether a file is a list of pages with titles, of which at least one has blocks.

    Lists that are not Roam exports have no blocks.
    """
    pages = _whole_json(path)
    return is_export(pages) and any(isinstance(page, dict) and isinstance(page.get("children"), list) for page in pages)


def _chat_kind(rows: Sequence[dict[str, Any]]) -> DetectedKind | None:
    """Return the kind of source that makes conversations of these rows, or None if they contain no conversations."""
    if are_trees(rows):
        return DetectedKind("sft", "oasst1")
    keys = keys_of_rows(rows, lambda keys: ChatJsonl.fits(rows, keys))
    return None if keys is None else DetectedKind("sft", "chat_jsonl", tuple(keys.items()))


def _text_field(path: str, rows: Sequence[dict[str, Any]], given: str | None) -> str:
    """Return the field of the text, by the rule of builds.

    Raises:
        NielsCacheError: If the rows do not show it.
    """
    if given is not None:
        require_field(given, (name for row in rows for name in row), path, key="--text-field")
        return given
    try:
        return choose_text_field(rows, path, key="--text-field")
    except NielsCacheError as error:
        if not any(isinstance(value, list) for row in rows for value in row.values()):
            raise
        raise NielsCacheError(f"{error}; lists are conversations if each role is system, user (human) or assistant (gpt)") from error


def sources_of(paths: Sequence[str], *, text_field: str | None = None) -> list[PretrainSource]:
    """Return a source for each kind of file among the paths. A folder stands for all files of a known kind in it.

    Args:
        paths: Files and folders.
        text_field: Field of the text in rows; by default the rule of builds applies.

    Raises:
        NielsCacheError: If a path is missing, if the name of a file does not show its kind, or if a folder has no files of a known kind.
    """
    by_kind: dict[str, list[str]] = {}
    for path in paths:
        if "://" not in path and not os.path.exists(path):
            found = glob_files(path)
            if not found.paths and not found.has_folders:
                raise NielsCacheError(f"{path}: no such file or folder; {advice_for_missing(path)}")
        for file in files_in(path) if os.path.isdir(path) else [path]:
            kind = source_kind(file)
            if kind is None:
                raise NielsCacheError(f"{file}: its kind is not clear from its name; it must end in {_ENDINGS}")
            by_kind.setdefault(kind, []).append(file)
    sources = []
    for kind, files in by_kind.items():
        table: dict[str, Any] = {"source": kind, "files": files, "prepare": ["clean"]}
        if text_field is not None and kind in ("jsonl", "parquet", "csv", "arrow"):
            table["text_field"] = text_field
        sources.append(PRETRAIN_SOURCES[kind].model_validate(table))
    return sources


def files_in(folder: str) -> list[str]:
    """Return the files below a folder whose kind is known.

    Raises:
        NielsCacheError: If there are no such files.
    """
    files = [file.url for file in walk_folder(folder, ("",)) if source_kind(file.url) is not None]
    if not files:
        raise NielsCacheError(f"{folder}: holds no file that ends in {_ENDINGS}")
    return files


def source_kind(path: str) -> str | None:
    """Return the value of `source` for a file with this name, or None if the name is not known."""
    stem = path.lower()
    for compression in COMPRESSIONS:
        stem = stem.removesuffix(compression)
    return KINDS.get(_DUMP_PART.sub("", os.path.splitext(stem)[1]))
