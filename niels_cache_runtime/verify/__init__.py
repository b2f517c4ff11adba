"""Verification of a cache: functions that hash its files again and check its rules. `__main__` is the command line.

    find_folders: the folders of a cache --> folder: one of them, judged --> invariants: the rules inside it      table: the results in rows

If another program wrote the meta.json of a cache, the cache is unverifiable. This is a note, a result in the table and a number in the
summary, but not a finding. Verification reads every file once, several files at the same time. With `quick`, it reads no file, and compares
names and sizes only. A broken file of any kind is a finding, never an exception. Verification repairs and writes nothing. It follows no
link, except that the folder of a data set may itself be a link.

A data set is a folder with a meta.json in `pretrain/`, `sft/`, `corpus/` or `index/`. Nothing else may be in these four folders, except
`pretrain/.parts/` and `corpus/.parts/`, which hold the parts of data sets (NAME/part-00000). The folder of a data set may be a link,
because its owner chooses where it lies; then the target of the link is verified. No other link is followed.

Beside those folders any other entry is allowed, and is not read. Entries with a leading dot come from builds.

Somebody may change files and compute all hashes again, including the hash of meta.json. This is not detected, because only a record outside
of the cache can show it (`niels-cache verify --against-dagster`).
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from niels_cache_runtime.cache.opening import OPEN_TRIES
from niels_cache_runtime.errors import NielsCacheError, escaped
from niels_cache_runtime.format.layout import META_NAME, parts_root, tokenizer_dir
from niels_cache_runtime.format.meta import location_problem
from niels_cache_runtime.format.path_kind import NAMED, NO_CACHE, UNNAMED, describe
from niels_cache_runtime.format.reading import BlockConsumer, hash_files
from niels_cache_runtime.verify.folder import Finding, FindingKind, VerifiedFolder

__all__ = ["Finding", "FindingKind", "Verification", "find_folders", "notes", "verify_cache", "verify_dataset"]

HAVE_PARTS = ("pretrain", "corpus")
_REPORTS = "reports"
_LEFT_BY_BUILDERS = {
    ".lock": os.path.isfile,
    **dict.fromkeys((".lease", ".partial", ".gone", ".old", ".journal", ".damaged"), os.path.isdir),
}


def find_folders(root: str | Path, *, names: Sequence[str] | None = None) -> list[Path]:
    """Return the folders that `verify_cache` verifies, in order. Folders with a leading dot (builds in progress) are left out.

    Args:
        root: A cache root, or a folder that itself holds a meta.json.
        names: The folders to find; None means all. A name is as for `verify_cache`.

    Raises:
        NielsCacheError: For a path that is no cache root and no data set, and for a name that the root does not hold.
    """
    root = Path(root)
    if not root.is_dir():
        raise _no_root(root, "give a cache root such as cache/")
    if (root / META_NAME).exists():
        if names:
            raise NielsCacheError(f"{root}: is one data set, so it has no {names[0]}; give the cache root above it")
        return [root]
    found = [path for path, _ in _dataset_folders(root) if path not in [root / name for name in NAMED]]
    for family in HAVE_PARTS:
        found += [part for dataset in _entries(parts_root(root, family)) for part in _entries(dataset) if (part / META_NAME).exists()]
    found = [folder for folder in found if _stray_problem(folder) is None and os.path.isdir(folder)]
    if not found:
        raise _no_root(root, "build one first, or check the path")
    for name in names or ():
        if not any(_has_name(name, folder) for folder in found):
            known = ", ".join(folder.relative_to(root).as_posix() for folder in found)
            raise NielsCacheError(f"{root}: holds no {name}; it has {known}")
    return [folder for folder in found if not names or any(_has_name(name, folder) for name in names)]


def _no_root(path: Path, advice: str) -> NielsCacheError:
    found = describe(path)
    clause = NO_CACHE if found.kind == "root" else found.clause  # it looks like a root, but its folders are links to nowhere
    return NielsCacheError(f"{path}: {clause}; {found.root_advice if found.kind != 'root' and found.roots else advice}")


def notes(root: str | Path, folders: Sequence[VerifiedFolder] = (), *, beside: bool = True) -> list[str]:
    """Return lines about harmless entries that the user should know about.

    Args:
        root: A cache root, or a folder that itself holds a meta.json.
        folders: The verified folders. Entries in them that are not part of the data set are noted.
        beside: Whether to note data sets behind links in the root, and entries of the root that are not verified.
    """
    root = Path(root)
    lines = [line for folder in folders for line in folder.notes()]
    if (root / META_NAME).exists():
        for folder in folders:  # the user may give the path of a folder that does not have the name of its data set
            recorded = (folder.meta or {}).get("dataset_name")
            if recorded not in (None, folder.path.absolute().name):
                lines.append(escaped(f"{folder.path}: is the data set {recorded!r:.80}, by its meta.json"))
        return lines
    return lines + [escaped(line) for line in _root_notes(root)] if beside else lines


def _root_notes(root: Path) -> Iterator[str]:
    for path, problem in _dataset_folders(root):
        if problem is None and path.is_symlink():
            yield f"{path}: is a link; its target {os.path.realpath(path)} is verified"
    for path in (path for folder in (root, *(root / name for name in NAMED)) for path in _entries(folder, hidden=True)):
        is_expected = _LEFT_BY_BUILDERS.get(_kind(path))
        if is_expected is not None and (path.is_symlink() or not is_expected(path)):
            yield f"{path}: is not an entry that a build leaves under this name, and not verified; remove it"
        elif is_expected is None and path.parent != root and path not in [parts_root(root, family) for family in HAVE_PARTS]:
            yield f"{path}: not part of the cache, and not verified"
    if (root / _REPORTS).is_dir():
        yield f"{root / _REPORTS}: not verified; reports are made from the other folders, and you can make them again"
    hidden = [path for path in _entries(root, hidden=True) if _kind(path) not in _LEFT_BY_BUILDERS]
    others = [path for path in _entries(root) if path.name not in (*UNNAMED, *NAMED, _REPORTS)]
    if hidden or others:
        yield f"{root}: not part of the cache, and not verified: {', '.join(path.name for path in (*hidden, *others))}"


def _kind(path: Path) -> str:
    """Return the suffix of an entry, without the number of an attempt: `.partial` for `.NAME.partial.2`."""
    return Path(path.stem).suffix if path.suffix[1:].isdecimal() else path.suffix


def _dataset_folders(root: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield every folder of data sets and every entry in it, each with its problem or None."""
    for name in ("tokenizer", "pretrain", "sft", "corpus", "duplicates", "repeats", "index", "suffixes"):
        is_family = name in NAMED and os.path.isdir(root / name)
        yield root / name, _listing_problem(root / name) if is_family else _stray_problem(root / name)
        if name in NAMED:
            yield from ((path, _stray_problem(path)) for path in _entries(root / name))


def _entries(folder: Path, *, hidden: bool = False) -> list[Path]:
    """Return the entries without a leading dot, or the hidden ones: a running build, its lock, or files of a file manager.

    The list is empty if the folder cannot be listed.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.name.startswith(".") == hidden)
    except OSError:
        return []


def _stray_problem(path: Path) -> str | None:
    """Return why this path is not a data set, or None if it may be one or is missing."""
    if path.is_symlink() and not os.path.isfile(path / META_NAME):
        return "is a link without a data set, and not followed; put the data set there, or remove it"
    if os.path.lexists(path) and not os.path.isdir(path):
        return "is not a folder, and only folders of data sets belong here; remove it"
    return None


def _listing_problem(path: Path) -> str | None:
    """Return why the data sets of a family cannot be listed, or None if they can be, or if the folder is missing."""
    try:
        os.listdir(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be listed: {error.strerror or error}"
    return None


def _has_name(name: str, folder: Path) -> bool:
    return name in (folder.name, f"{folder.parent.name}/{folder.name}")


OnProgress = Callable[[int, int], None]


def verify_dataset(
    folder: str | Path, *, name: str | None = None, quick: bool = False, threads: int | None = None, progress: OnProgress | None = None
) -> list[Finding]:
    """Verify one folder that holds a meta.json: a data set or a tokenizer, a corpus, drop lists or an index.

    If the folder is in a cache root (`ROOT/pretrain/NAME`, `ROOT/sft/NAME`), the data set must have the tokenizer of `ROOT/tokenizer`, if
    there is one.

    Args:
        folder: The folder.
        name: The name that the data set must have. None accepts any name.
        quick: Whether to compare names and sizes only.
        threads: The number of files to read at the same time. None means one for each core.
        progress: Called as `progress(bytes done, bytes in all)` after every block, by one thread at a time.

    Returns:
        The findings. An empty list means that no problem was found. A damaged or missing file is a finding, never an exception.

    Raises:
        NielsCacheError: If `threads` is below 1.
    """
    verified = VerifiedFolder(Path(folder))
    findings = _verify([verified], quick=quick, threads=threads, progress=progress)
    return findings if name is None else [*findings, *_location_finding(verified, family=verified.path.absolute().parent.name, name=name)]


def verify_cache(
    root: str | Path,
    *,
    names: Sequence[str] | None = None,
    quick: bool = False,
    threads: int | None = None,
    progress: OnProgress | None = None,
) -> list[Finding]:
    """Verify a cache root, or a folder that itself holds a meta.json.

    In a root, the folder of a data set must have the name that its meta.json gives (`dataset_name`, if it is not null).

    Args:
        root: The cache root or the folder.
        names: The folders to verify; None means all. A name is a data set's NAME (in every family), `pretrain/NAME`, `sft/NAME`,
            `corpus/NAME`, `index/HASH`, `tokenizer` or `duplicates`.
        quick: Whether to compare names and sizes only.
        threads: The number of files to read at the same time. None means one for each core.
        progress: Called as `progress(bytes done, bytes in all)` after every block, by one thread at a time.

    Returns:
        The findings. An empty list means that no problem was found. A damaged or missing file is a finding, never an exception.

    Raises:
        NielsCacheError: For a path or a name with nothing to verify, and if `threads` is below 1.
    """
    return Verification(root, names=names, quick=quick, threads=threads, progress=progress).findings


class Verification:
    """A verification as `verify_cache` does it, with its arguments, and everything that it found.

    Attributes:
        root: The cache root, or the folder of the one data set.
        quick: Whether only names and sizes were compared.
        folders: The verified folders.
        findings: The findings.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        names: Sequence[str] | None = None,
        quick: bool = False,
        threads: int | None = None,
        progress: OnProgress | None = None,
    ) -> None:
        self.root, self.quick, self._beside = Path(root), quick, not names
        self.folders = [VerifiedFolder(path) for path in find_folders(root, names=names)]
        self.findings = _verify(self.folders, quick=quick, threads=threads, progress=progress)
        if not (self.root / META_NAME).exists():  # otherwise it is one data set
            self.findings += _location_findings(self.root, self.folders)
            for path, problem in _dataset_folders(self.root) if self._beside else ():
                if problem is not None:  # the entry lies where only data sets may lie
                    self.findings.append(Finding(kind="files", folder=str(path.parent), path=path.name, problem=problem))

    def notes(self) -> list[str]:
        """Return the lines of the function `notes` about these folders."""
        return notes(self.root, self.folders, beside=self._beside)


def _location_findings(root: Path, folders: Sequence[VerifiedFolder]) -> Iterator[Finding]:
    """Yield the findings about places below a cache root.

    A folder may hold a different data set or kind, or the tokenizer may be missing.
    """
    need_tokenizer = []
    for folder in folders:
        if folder.meta is None:  # a missing meta.json is already a finding
            continue
        place, name = folder.path.name if folder.path.parent == root else folder.path.parent.name, folder.path.name
        for family in HAVE_PARTS:
            if folder.path.parent.parent == parts_root(root, family):
                place, name = family, f"{place}/{name}"
        yield from _location_finding(folder, family=place, name=name)
        if folder.meta.get("tokenizer_sha256") is not None:
            need_tokenizer.append(folder.path.name)
    if need_tokenizer and not tokenizer_dir(root).is_dir():
        problem = f"missing, though the meta.json of {', '.join(need_tokenizer)} records a tokenizer; build it or put it back"
        yield Finding(kind="tokenizer", folder=str(tokenizer_dir(root)), path=META_NAME, problem=problem)


def _location_finding(folder: VerifiedFolder, *, family: str, name: str) -> Iterator[Finding]:
    problem = None if folder.meta is None else location_problem(folder.meta, family=family, name=name)
    if problem is not None:
        yield Finding(kind="content", folder=str(folder.path), path=META_NAME, problem=problem)


def _verify(
    folders: Sequence[VerifiedFolder], *, quick: bool, threads: int | None, progress: OnProgress | None, tries: int = OPEN_TRIES
) -> list[Finding]:
    """Return all findings. If a folder has findings and was rebuilt during the verification, it is verified again, without progress."""
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    consumers: dict[Path, BlockConsumer | None] = {}
    sizes: dict[Path, int] = {}
    if not quick:
        for folder in folders:
            consumers |= folder.plan()
            sizes |= {folder.path / path: size for path, size in folder.found.items()}
    same = _find_hard_links(consumers)
    consumers = {path: consumer for path, consumer in consumers.items() if path not in same}
    total = sum(sizes[path] for path in consumers)
    hashes = hash_files(consumers, sizes=sizes, threads=threads, on_bytes=on_bytes)
    hashes |= {path: hashes[other] for path, other in same.items()}
    findings = []
    for folder in folders:
        found = [*folder.findings(None if quick else hashes)]
        if found and folder.was_rebuilt():
            if tries > 1:
                found = _verify([VerifiedFolder(folder.path)], quick=quick, threads=threads, progress=None, tries=tries - 1)
            else:
                problem = f"was rebuilt {OPEN_TRIES} times while it was verified; verify it again when the build is done"
                found = [Finding(kind="files", folder=str(folder.path), path=META_NAME, problem=problem)]
        findings += found
    return findings


def _find_hard_links(consumers: Mapping[Path, BlockConsumer | None]) -> dict[Path, Path]:
    """Return the files without a `BlockConsumer` that are hard links to another file of `consumers`, and for each of them that other file.

    The shards of a part are linked into the data set that was joined from it, and are read only there.
    """
    read: dict[tuple[int, int], Path] = {}
    same: dict[Path, Path] = {}
    for path in sorted(consumers, key=lambda path: consumers[path] is None):
        with suppress(OSError):  # reading the file reports the error
            found = path.lstat()
            if found.st_nlink > 1:
                first = read.setdefault((found.st_dev, found.st_ino), path)
                if first != path and consumers[path] is None:
                    same[path] = first
    return same
