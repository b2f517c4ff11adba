"""Local and remote files of a source: functions that find, open and hash files, with errors that name the file.

Globs become `SourceFile`s with a name relative to the common folder of the globs. A cache records only these names, not the location on
this machine. Files at fsspec URLs can be opened, too. Opened files are decompressed (`compressed.py`).

This module does not interpret the content of files.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import os
import posixpath
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, takewhile
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from niels_cache_assets.base.first_bytes import HEAD_BYTES, refuse_content
from niels_cache_assets.sources.errors import SourceUnavailableError, endless_redirect, first_line, is_network_error, without_credentials
from niels_cache_assets.sources.finding.globs import GlobResult, advice_for_missing, files_below, find_same_files, glob_files
from niels_cache_assets.sources.hub.errors import hub_error
from niels_cache_assets.sources.reading.compressed import (
    COMPRESSIONS,
    UNSUPPORTED,
    OnDamage,
    compression_of,
    decompressed,
    decompression_errors,
)
from niels_cache_assets.sources.reading.digests import content_digest
from niels_cache_runtime.errors import NielsCacheError

_HUB_FILE = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/")


class SourceFile(NamedTuple):
    """A file of a source.

    Attributes:
        url: The path or fsspec URL that opens the file.
        name: The POSIX path relative to the source's root.
    """

    url: str
    name: str

    @property
    def is_remote(self) -> bool:
        return "://" in self.url

    def __fspath__(self) -> str:
        return self.url

    def open(self) -> AbstractContextManager[IO[bytes]]:
        """Open the file as bytes for a `with` statement, decompressed. It may be local or remote."""
        return open_bytes(self)

    def size(self) -> int:
        """Return the size in bytes, or 0 if the server of a remote file does not report it."""
        with file_errors(self):
            if not self.is_remote:
                return os.stat(self.url).st_size
            filesystem, path = _filesystem(self.url)
            return int(filesystem.info(path).get("size") or 0)

    def digest(self) -> str:
        """Return the sha256 of the content, or the attributes of a remote file."""
        with file_errors(self):
            if self.is_remote:
                filesystem, path = _filesystem(self.url)
                info: dict[str, Any] = filesystem.info(path)
                keys = ("ETag", "etag", "md5", "generation", "size", "LastModified", "mtime")  # names of attributes in common stores
                return repr([(key, str(info[key])) for key in keys if info.get(key) is not None])
            state = os.stat(self.url)
            if not stat.S_ISREG(state.st_mode):
                raise NielsCacheError(f"{self.name}: not a regular file, so it cannot be read twice; write its content to a file")
            return content_digest(self.url)


def valid_unicode(text: str) -> str:
    """Return a text with question marks in place of lone surrogates, which UTF-8 cannot represent.

    Names that are not UTF-8, and JSON with half of a surrogate pair, contain lone surrogates.
    """
    return text if text.isascii() else text.encode(errors="replace").decode()


def find_files(patterns: Sequence[str], endings: tuple[str, ...] = ()) -> list[SourceFile]:
    """Return the files that match any of the globs, each once, sorted by name.

    Names are relative to the deepest folder that all patterns share before their first wildcard, so a new file never changes the names of
    other files. If several paths lead to one local file through links, the first path in sorted order names it (`sources/notes.py` reports
    this).

    Args:
        patterns: Globs or folders. A local folder stands for all files below it with one of the `endings`.
        endings: The endings of the files in folders, in lower case.

    Raises:
        NielsCacheError: If a glob has no match, a folder has no such file, or local files and URLs are mixed.
    """
    ((root, files),) = _unique_files([patterns], endings)
    return _named(root, files)


def find_splits(groups: Sequence[Sequence[str]]) -> list[list[SourceFile]]:
    """Return the files of each list of globs, which are the splits of a data set.

    Names are relative to the folder that all lists share.

    Args:
        groups: The globs of each split.

    Raises:
        NielsCacheError: For the reasons of `find_files`, and if a file is in two lists.
    """
    if len({pattern.rpartition("://")[0] for patterns in groups for pattern in patterns}) > 1:
        named = [find_files(patterns) for patterns in groups]
    else:
        found = _unique_files(groups, ())
        if both := _repeated(chain.from_iterable(files for _, files in found)):
            path, _ = found[-1][1][both]
            raise NielsCacheError(
                f"{without_credentials(path)}: files and val_files both match it, so it would be in train and in val; let them differ"
            )
        root = posixpath.commonpath([root for root, _ in found])
        named = [_named(root, files) for _, files in found]
    if name := _repeated(file.name for files in named for file in files):
        raise NielsCacheError(f"files and val_files: both have a file named {name!r}; put all files in one place, in folders of their own")
    return named


def find_groups(patterns: Sequence[str], added: Sequence[Sequence[str]], endings: tuple[str, ...] = ()) -> list[list[SourceFile]]:
    """Return the files of `patterns` as the first group, and the files of each list in `added` as a separate group.

    A file that an added pattern matches leaves the first group. The names in the first group do not depend on `added`. Names in an added
    group are relative to the deepest folder that it shares with the first patterns.

    Args:
        patterns: The globs or folders of the first group.
        added: The globs or folders of each further group.
        endings: The endings of the files in folders, in lower case.

    Raises:
        NielsCacheError: If a pattern has no match, if two lists in `added` match the same file, or if no file is left in the first group.
    """
    _refuse_mixed([*patterns, *chain.from_iterable(added)])
    (root, first), *groups = _unique_files([patterns, *added], endings)
    if path := _repeated(chain.from_iterable(files for _, files in groups)):
        raise NielsCacheError(f"added: {path!r} is in two tables; let their files differ")
    for path in chain.from_iterable(files for _, files in groups):
        first.pop(path, None)
    if not first:
        raise NielsCacheError(f"added: the tables take all files of {without_credentials(patterns[0])!r}; leave some, or remove a table")
    named = [_named(root, first), *(_named(posixpath.commonpath([root, own]), files) for own, files in groups)]
    if name := _repeated(file.name for files in named for file in files):
        raise NielsCacheError(f"added: two files have the name {name!r}; move one of them into another folder")
    return named


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


class GlobMatches(NamedTuple):
    """The files that globs match.

    Attributes:
        urls: The URL or path of each file, by a path that can be compared with those of other patterns.
        root: The folder that names are relative to.
        again: Folders that links name again (see `GlobResult`).
    """

    urls: dict[str, str]
    root: str
    again: dict[str, str]

    @property
    def local(self) -> Iterable[str]:
        """The paths of files on this machine."""
        return (path for path, url in self.urls.items() if "://" not in url)


def _unique_files(groups: Sequence[Sequence[str]], endings: tuple[str, ...]) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """Return for each list of globs its root, and the first path and the URL of each file.

    The key of a file is the first path that leads to it in any of the lists.
    """
    matches = [find_matches(patterns, endings) for patterns in groups]
    first = find_same_files(chain.from_iterable(each.local for each in matches)).first
    found = []
    for each in matches:
        files: dict[str, tuple[str, str]] = {}
        for path, url in sorted(each.urls.items()):
            files.setdefault(first.get(path, path), (path, url))
        found.append((each.root, files))
    return found


def find_matches(patterns: Sequence[str], endings: tuple[str, ...]) -> GlobMatches:
    """Return every path that the globs match, including those that lead to the same file.

    Raises:
        NielsCacheError: For the reasons of `find_files`.
    """
    if not patterns:
        raise NielsCacheError('files is empty: set it to a list of globs, for example files = ["data/*.jsonl"]')
    _refuse_mixed(patterns)
    found: dict[str, str] = {}  # comparable path -> url
    again: dict[str, str] = {}
    roots = []
    for pattern in patterns:
        path_pattern, matches, repeated = _remote_matches(pattern) if "://" in pattern else _local_matches(pattern, endings)
        if not matches:
            advice = advice_for_missing(pattern)
            raise NielsCacheError(
                f"files: {without_credentials(pattern)!r} matches no file; {advice} (relative paths start at the configuration file)"
            )
        repeated_path = next((path for path, url in matches.items() if found.get(path, url) != url), None)
        if repeated_path is not None:  # addresses with different queries
            raise NielsCacheError(f"files: two addresses name the same path {repeated_path!r}; make a data set of each")
        found.update(matches)
        again.update(repeated)
        roots.append(posixpath.dirname(path_pattern) if path_pattern in matches else _fixed_folder(path_pattern))
    return GlobMatches(found, posixpath.commonpath(roots), again)


def _refuse_mixed(patterns: Sequence[str]) -> None:
    if len({pattern.rpartition("://")[0] for pattern in patterns}) > 1:
        raise NielsCacheError("files: local files and URLs, or different kinds of URLs, cannot be mixed; make a data set of each")


def _named(root: str, files: Mapping[str, tuple[str, str]]) -> list[SourceFile]:
    below = f"{root.rstrip('/')}/"

    def name(path: str, url: str) -> str:
        if "://" not in url and path.startswith(below):
            return path.removeprefix(below)  # many times as fast as relpath
        return posixpath.relpath(path, root or ".")

    return [SourceFile(url, valid_unicode(each)) for each, url in sorted((name(path, url), url) for path, url in files.values())]


def file_bytes(patterns: Sequence[str] | None, endings: tuple[str, ...] = ()) -> int | None:
    """Return the total size of local plain-text files in bytes, or None if it is unknown.

    It is unknown if there are no files, or if files are remote, compressed, archives (which a user's source may read) or Parquet.

    Args:
        patterns: Globs or folders, or None.
        endings: The endings of the files in folders, in lower case.
    """
    if not patterns or any("://" in pattern for pattern in patterns):
        return None
    found = [file.url for file in find_files(patterns, endings)]
    if any(path.lower().endswith((*COMPRESSIONS, *UNSUPPORTED, ".parquet")) for path in found):
        return None
    return sum(os.path.getsize(path) for path in found)


def _local_matches(pattern: str, endings: tuple[str, ...]) -> tuple[str, dict[str, str], dict[str, str]]:
    pattern = os.path.abspath(os.path.expanduser(pattern))
    if os.path.isdir(pattern) and endings:
        if os.path.isfile(os.path.join(pattern, "dataset_dict.json")):
            raise NielsCacheError(
                f"files: {pattern!r} holds splits in folders; name one of them, such as {os.path.join(pattern, 'train')!r}"
            )
        found = files_below(pattern)
        paths = saved_files(pattern) or [path for path in without_caches(found.paths) if path.lower().endswith(endings)]
        urls = {path.replace(os.sep, "/"): path for path in paths}
        if not urls:
            raise NielsCacheError(f"files: {pattern!r} holds no file that ends in {', '.join(endings)}; name the files, or another folder")
        return Path(glob.escape(pattern), "**").as_posix(), urls, found.again
    if os.path.isdir(pattern):
        raise NielsCacheError(f"files: {pattern!r} is a folder; name the files in it, for example {os.path.join(pattern, '*.jsonl')!r}")
    found = GlobResult([pattern], {}) if os.path.exists(pattern) else glob_files(pattern)
    return Path(pattern).as_posix(), {path.replace(os.sep, "/"): path for path in found.paths}, found.again


def saved_files(folder: str) -> list[str]:
    """Return the data files of a folder that `datasets` saved, where it also keeps caches and older data. Empty for other folders."""
    try:
        named = json.loads(Path(folder, "state.json").read_bytes())["_data_files"]
        return [os.path.join(folder, each["filename"]) for each in named]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def without_caches(paths: list[str]) -> list[str]:
    """Return the paths without what `datasets` keeps beside the data in folders that it saved. Data that is missing there is added."""
    folders = [os.path.dirname(path) for path in paths if path.endswith("/state.json")]
    saved = {folder: files for folder in folders if (files := saved_files(folder))}
    if not saved:
        return paths
    own = (".arrow", "/state.json", "/dataset_info.json")
    caches = {path for path in paths if path.endswith("/dataset_dict.json") or (path.endswith(own) and os.path.dirname(path) in saved)}
    return sorted({*paths}.difference(caches).union(*saved.values()))


def _remote_matches(pattern: str) -> tuple[str, dict[str, str], dict[str, str]]:
    with file_errors(SourceFile(pattern, without_credentials(pattern))):
        filesystem, path = _filesystem(pattern)
        if pattern.startswith(("http://", "https://")):
            name = urlsplit(pattern).path
            if glob.has_magic(name):
                raise NielsCacheError(f"files: {without_credentials(pattern)!r}: http(s) addresses take no wildcards; name each file")
            return name, {name: pattern} if _exists(filesystem, path) else {}, {}
        if glob.has_magic(path):
            paths = [match for match in filesystem.glob(path) if not filesystem.isdir(match)]
        else:
            paths = [path] if _exists(filesystem, path) else []
        return path, {match: filesystem.unstrip_protocol(match) for match in paths}, {}


def _filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for an address, and the path in it."""
    import fsspec

    if url.startswith(("http://", "https://", "hf://")):
        from niels_cache_assets.sources.net.transport import install

        install()
    return fsspec.core.url_to_fs(url)


def _exists(filesystem: Any, path: str) -> bool:
    """Return whether the path exists.

    The `exists` of the file system cannot be used, because it returns False for any error.
    """
    try:
        return bool(filesystem.info(path))
    except FileNotFoundError:
        return False


def _fixed_folder(pattern: str) -> str:
    """Return the folders of a pattern that come before its first wildcard."""
    fixed = list(takewhile(lambda part: not glob.has_magic(part), pattern.split("/")[:-1]))
    return "/".join(fixed) or "/"


def walk_folder(path: str, suffixes: tuple[str, ...], *, skip: frozenset[str] = frozenset()) -> list[SourceFile]:
    """Return the files below a folder with one of the suffixes, sorted by relative path.

    Files and folders whose names start with a dot (.git, .obsidian) are left out. Links are followed anywhere, because people keep parts of
    their notes in other places. If other users can write to the folder, their links therefore determine which files are read. Each file is
    returned once, with the first of its paths below `path`, because a cache records only these paths.

    Args:
        path: The folder.
        suffixes: The suffixes, in lower case.
        skip: The names of folders not to enter.

    Raises:
        NielsCacheError: If `path` is not a folder, or cannot be listed.
    """
    if not os.path.isdir(path):
        raise NielsCacheError(f"path = {path!r} is not a folder; set it to the folder that holds the files")
    paths = [each for each in without_caches(files_below(path, skip).paths) if each.lower().endswith(suffixes)]
    first = find_same_files(paths).first
    named = sorted((Path(os.path.relpath(each, path)).as_posix(), each) for each in paths if first[each] == each)
    return [SourceFile(full, valid_unicode(name)) for name, full in named]


def files_of_folder(path: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    """Return the files below a source's `path`.

    Raises:
        NielsCacheError: If there are no files.
    """
    files = walk_folder(path, suffixes)
    if not files:
        raise NielsCacheError(f"path = {path!r} holds no file that ends in {' or '.join(suffixes)}; set it to the folder that holds them")
    return files


@contextmanager
def file_errors(file: SourceFile) -> Iterator[None]:
    """Turn errors while a file is read (missing, unreadable, damaged archive) into an error that names the file.

    Raises:
        SourceUnavailableError: If the file is remote and a later try may succeed.
        NielsCacheError: For any other failure.
    """
    remote = file.is_remote
    try:
        yield
    except NielsCacheError:
        raise
    except decompression_errors() as error:
        raise NielsCacheError(f"{file.name}: damaged or not in the format its name says ({error}); replace the file") from error
    except Exception as error:
        if of_hub := _HUB_FILE.match(file.url):
            raise hub_error(error, of_hub[1], of_hub[2]) from error
        if remote and (endless := endless_redirect(error)):
            raise NielsCacheError(f"{file.name}: cannot be read: the server {endless}; check the address") from error
        if remote and is_network_error(error):
            detail = type(error).__name__
            raise SourceUnavailableError(f"{file.name}: cannot be reached now ({detail}); check the network and try again") from error
        if isinstance(error, OSError):
            detail, where = error.strerror or first_line(error), without_credentials(file.url) if remote else file.url
            raise NielsCacheError(
                f"{file.name}: cannot be read ({detail}); check that it exists and is readable ({valid_unicode(where)})"
            ) from error
        if not remote:
            raise
        raise NielsCacheError(f"{file.name}: cannot be read: {type(error).__name__}: {first_line(error)}") from error


@contextmanager
def open_bytes(file: SourceFile, on_damage: OnDamage | None = None) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed according to its suffix (`compressed.py`). Errors in the block are those of `file_errors`.

    Local pipes can be read, too.

    Args:
        file: The file.
        on_damage: Called for damaged compressed data, instead of raising. The stream then ends before the damage.

    Raises:
        DamagedFileError: If compressed data is damaged.
        NielsCacheError: If the file must not be read as text (`base/first_bytes.py`), or its compression is not that of its suffix.
    """
    compression = compression_of(file.name)  # called before opening, so that the message names the unknown compression
    with file_errors(file), open_raw(file) as raw:
        refuse_content(first_bytes(raw), file.name, compression)
        with decompressed(raw, file.name, on_damage) as stream:
            refuse_content(first_bytes(stream), file.name, None)
            yield stream


def open_raw(file: SourceFile) -> IO[bytes]:
    """Open a file without decompression. Call this inside `file_errors(file)`."""
    if not file.is_remote:
        return open(file.url, "rb")
    filesystem, path = _filesystem(file.url)
    return io.BufferedReader(filesystem.open(path, "rb"), 1 << 18)  # many file objects cannot read a line up to a limit


def open_seekable(file: SourceFile) -> IO[bytes]:
    """Open a file whose reader begins at its end, such as Parquet, without reading anything yet.

    Call this inside `file_errors(file)`.
    """
    return decompressed(open_raw(file), file.name)


def first_bytes(stream: IO[bytes]) -> bytes:
    """Return the first bytes of a stream that `open_bytes` has just opened, without consuming them."""
    peek = getattr(stream, "peek", None)
    return b"" if peek is None else peek(HEAD_BYTES)[:HEAD_BYTES]


def files_digest(files: Iterable[SourceFile]) -> str:
    """Return a digest of the names and contents of files. For a remote file, its attributes (ETag, size, time) replace its content.

    A local file is hashed once per process, and again only if its size, time or inode changes, so a second call is cheap.
    """
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.name}\0{file.digest()}\n".encode())
    return f"sha256:{total.hexdigest()}"
