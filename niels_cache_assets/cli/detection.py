"""The recognition of data in files and folders, for the command `init`.

The result is a kind of source, with its keys, for each kind of data. `sources_of` uses only the names of files. `recognize` also reads the
first rows of a few files of each kind, and of all files if these few differ. Files that cannot become a data set are listed with a reason.
"""

import glob
import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from niels_cache_assets.artifacts.input_problems import InputsError
from niels_cache_assets.base.first_bytes import detect_content
from niels_cache_assets.base.reasons import DROP_REASONS
from niels_cache_assets.sources import PRETRAIN_SOURCES
from niels_cache_assets.sources.chat_forms import UnclearColumnsError, are_trees, keys_of_rows
from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.finding.globs import advice_for_missing, glob_files
from niels_cache_assets.sources.messages import holds_messages, media_of, template_messages
from niels_cache_assets.sources.reading.compressed import COMPRESSIONS
from niels_cache_assets.sources.reading.files import SourceFile, file_errors, first_bytes, open_bytes, saved_files, walk_folder
from niels_cache_assets.sources.reading.rows import ARROW, file_rows, first_rows
from niels_cache_assets.sources.text_column import ROWS, choose_text_field, nested_value, require_field
from niels_cache_assets.sources.types import PretrainSource
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
    **dict.fromkeys((".warc", ".wet"), "warc"),
}
_ENDINGS = f"{', '.join(KINDS)}, with or without {', '.join(COMPRESSIONS)}"
_DUMP_PART = re.compile(r"(?<=\.xml)-p[\d*]+p[\d*]+$")  # the name of a part of a dump ends in .xml-p1p41242.bz2; -p*p* means all parts
_MAX_SAMPLED = 20  # number of files of a pattern that are read, spread over all its files
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


@dataclass
class SeenFiles:
    """Files with the same ending and the same outcome.

    Attributes:
        ending: The ending of their names.
        outcome: What they become, or why they are ignored.
        files: The number of files.
        bytes: Their size.
    """

    ending: str
    outcome: DetectedKind | str
    files: int = 0
    bytes: int = 0


def recognize(paths: Sequence[str], *, text_field: str | None = None, seen: list[SeenFiles] | None = None) -> list[Proposal]:
    """Return a table for each kind of data in these files, folders and globs.

    Args:
        paths: Files, folders and globs.
        text_field: Field of the text in rows, which are then not conversations; by default the rule of builds applies.
        seen: Receives the local files that were found, those that are ignored included.

    Raises:
        NielsCacheError: If a file is missing, or if no file contains text or conversations.
    """
    survey = _Survey(text_field)
    for given in paths:
        survey.look_at(os.path.expanduser(given))
    if paths and not survey.proposals:
        reasons = (f"{each.outcome}" for each in survey.seen.values())
        raise InputsError([f"error: {', '.join(paths)}: nothing here can become a data set:", *reasons])
    if seen is not None:
        seen += survey.seen.values()
    return [*survey.proposals.values()]


class _Survey:
    """The tables and the files that were found so far."""

    def __init__(self, text_field: str | None) -> None:
        self.text_field = text_field
        self.proposals: dict[DetectedKind | tuple[DetectedKind, str], Proposal] = {}
        self.seen: dict[tuple[str, DetectedKind | str], SeenFiles] = {}

    def look_at(self, path: str) -> None:
        """Add a file, a folder, the files of a glob, or an address."""
        if "://" in path:
            (source,) = sources_of([path])
            self._take(DetectedKind("pretrain", source.source), path, [])
        elif os.path.isdir(path):
            self._look_into(path)
        else:
            files = [path] if os.path.exists(path) else [each for each in glob_files(path).paths if os.path.isfile(each)]
            if not files:
                sources_of([path])  # raises an error for a missing file
                raise NielsCacheError(f"{path}: leads to no file; correct it, or give a folder by its own name")  # such as a broken link
            is_one_kind = len({*map(source_kind, files)}) == 1
            self._sort({path: files} if is_one_kind else {glob.escape(file): [file] for file in files})

    def _look_into(self, folder: str) -> None:
        files = [file.url for file in walk_folder(folder, ("",))]
        if not files:
            raise NielsCacheError(f"{folder}: holds no file; name another folder")
        saved = {path: data for path in dict.fromkeys(map(os.path.dirname, files)) if (data := saved_files(path))}
        files = sorted({*files}.difference(*saved.values()))
        texts = [file for file in files if source_kind(file) == "text"]
        if texts and all(map(_is_guide, texts)):
            self._count(texts, f"{texts[0]}: seems to describe the folder; name it to use it")
            files = [file for file in files if file not in texts]
        known = [file for file in files if source_kind(file) is not None]
        others = [file for file in known if not file.lower().endswith(".md")]
        if known and all(file.lower().endswith(".json") and _is_roam_export(file) for file in others):  # `all` stops at a non-export
            self._take(DetectedKind("pretrain", "roam" if others else "markdown_folder"), folder, known)
            known = []
        self._sort({**_patterns(folder, known), **saved})
        for pattern, unknown in _patterns(folder, (file for file in files if source_kind(file) is None)).items():
            outcome = self._outcome(max(unknown, key=_size))
            if isinstance(outcome, DetectedKind):
                command = f"niels-cache init {shlex.quote(pattern if _ending(pattern) else unknown[0])}"
                outcome = f"{unknown[0]}: other text, such as code, is used only if you name it: {command}"
            self._count(unknown, outcome)

    def _sort(self, patterns: dict[str, list[str]]) -> None:
        """Add the files of each pattern.

        If all of them are of one kind, the path is the pattern; otherwise the files of the pattern are listed one by one. A file without
        rows may be of any kind.
        """
        for pattern, files in patterns.items():
            step = -(-len(files) // _MAX_SAMPLED)
            outcomes = {file: self._outcome(file) for file in files[::step]}
            if len({*outcomes.values()} - {None}) != 1:
                outcomes = {file: outcomes.get(file) or self._outcome(file) for file in files}
            kind, *others = {*outcomes.values()} - {None} or [None]
            if isinstance(kind, DetectedKind) and not others:
                self._take(kind, pattern, files)
                continue
            for file, outcome in outcomes.items():
                if isinstance(outcome, DetectedKind):
                    self._take(outcome, glob.escape(file), [file])
                else:
                    self._count([file], outcome)

    def _outcome(self, file: str) -> DetectedKind | str | None:
        try:
            return _kind_inside(file, self.text_field)
        except NielsCacheError as error:
            return str(error)

    def _take(self, kind: DetectedKind, path: str, files: Iterable[str]) -> None:
        key = (kind, path) if os.path.isdir(path) or kind.path_key == "path" else kind  # a folder is a table of its own
        self.proposals.setdefault(key, Proposal(kind)).paths.append(path)
        self._count(files, kind)

    def _count(self, files: Iterable[str], outcome: DetectedKind | str | None) -> None:
        for file in files:
            key = _ending(file), outcome or f"{file}: holds no row; leave it out"
            found = self.seen.setdefault(key, SeenFiles(*key))
            found.files += 1
            found.bytes += _size(file)


def _is_guide(path: str) -> bool:
    return os.path.basename(path).lower().startswith(("readme.", "license.", "changelog."))


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.isfile(path) else 0


def _ending(path: str) -> str:
    return "".join(_split_ending(path))


def _split_ending(path: str) -> tuple[str, str]:
    """Return the ending of a name without the compression, and the ending of the compression or ""."""
    stem, compression = os.path.splitext(path)
    if compression.lower() not in COMPRESSIONS:
        stem, compression = path, ""
    return os.path.splitext(stem)[1], compression


def _patterns(folder: str, files: Iterable[str]) -> dict[str, list[str]]:
    """Return one pattern for all files below a folder that have the same suffix. The pattern also matches files that are added later."""
    by_ending: dict[str, list[str]] = {}
    for file in files:
        by_ending.setdefault(re.sub(r"-p\d+p\d+", "-p*p*", _ending(file)), []).append(file)  # parts of a Wikipedia dump
    return {os.path.join(glob.escape(folder), "**", f"*{ending}"): alike for ending, alike in by_ending.items()}


def _kind_inside(path: str, text_field: str | None) -> DetectedKind | None:
    """Return the kind of data in a file, or None for a file of rows that has no row, and for an empty file with an unknown ending."""
    if not os.path.isfile(path):
        raise NielsCacheError(f"{path}: not a regular file; write its content to a file")
    named = source_kind(path)
    if named is None and not _size(path):
        return None
    if named in (None, "text", "wikipedia", "html", "epub", "warc"):
        if named == "wikipedia":
            PRETRAIN_SOURCES["wikipedia"].model_validate({"source": "wikipedia", "files": [glob.escape(path)]}).check_input({})
        with file_errors(SourceFile(path, path)), open_bytes(SourceFile(path, path), lambda damage: None) as stream:
            found = detect_content(first_bytes(stream))  # raises an error for what is never text
        if named is None and not (found and found.is_text):
            what = f"it is {found.what}: {found.advice}" if found else f"it is not text; the name must end in {_ENDINGS}"
            raise NielsCacheError(f"{path}: its kind is not clear from its name, and {what}")
        return DetectedKind("pretrain", named or "text")
    if path.lower().endswith(".json") and _is_roam_export(path):
        return DetectedKind("pretrain", "roam")
    rows = [row for _, row in first_rows(file_rows(SourceFile(path, path)), ROWS)]
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


def _is_roam_export(path: str) -> bool:
    """Return whether a file is a list of pages with titles, of which at least one has blocks.

    Lists that are not Roam exports have no blocks. A file that is too large, invalid or not a regular file is none.
    """
    if not os.path.isfile(path) or os.path.getsize(path) > _MAX_JSON:
        return False
    try:
        with file_errors(SourceFile(path, path)), open(path, encoding="utf-8") as file:
            pages = json.load(file)
    except (ValueError, RecursionError):
        return False
    roam: Any = PRETRAIN_SOURCES["roam"]
    return roam.is_export(pages) and any(isinstance(page, dict) and isinstance(page.get("children"), list) for page in pages)


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
        if all(nested_value(row, given) is None for row in rows):
            require_field(given, (name for row in rows for name in row), path, key="--text-field")
        return given
    try:
        return choose_text_field(rows, path, key="--text-field")
    except NielsCacheError as error:
        for row in rows:
            for problem in (media_of(row) or template_messages(value) for value in row.values() if holds_messages(value)):
                if isinstance(problem, str):
                    raise NielsCacheError(f"{path}: {DROP_REASONS[problem].meaning}; {DROP_REASONS[problem].advice}") from error
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
        files = [file.url for file in walk_folder(path, ("",)) if source_kind(file.url)] if os.path.isdir(path) else [path]
        if not files:
            raise NielsCacheError(f"{path}: holds no file that ends in {_ENDINGS}")
        for file in files:
            kind = source_kind(file)
            if kind is None:
                raise NielsCacheError(f"{file}: its kind is not clear from its name; it must end in {_ENDINGS}")
            by_kind.setdefault(kind, []).append(file)
    sources = []
    for kind, files in by_kind.items():
        table: dict[str, Any] = {"source": kind, "files": files, "prepare": ["clean"]}
        if text_field is not None and "text_field" in PRETRAIN_SOURCES[kind].model_fields:
            table["text_field"] = text_field
        sources.append(PRETRAIN_SOURCES[kind].model_validate(table))
    return sources


def source_kind(path: str) -> str | None:
    """Return the value of `source` for a file with this name, or None if the name is not known."""
    return KINDS.get(_DUMP_PART.sub("", _split_ending(path.lower())[0]))
