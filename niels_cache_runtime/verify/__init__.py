"""The verifier: functions that hash a cache again and check its rules. `__main__` is the command line.

    root: the folders of a cache --> folder: one of them, judged --> invariants: the rules inside it      table: the results in rows

If another program wrote the meta.json of a cache, the cache is unverifiable. This is a note, a result in the table and a number in the
summary, but not a finding. The verifier reads every file once, several files at the same time. With `quick`, the verifier reads no file,
and compares names and sizes only. A broken file of any kind is a finding, never an exception. The verifier repairs and writes nothing. It
follows no link, except that the folder of a data set may itself be a link.

Somebody may change files and compute all hashes again, including the hash of meta.json. The verifier does not detect this, because only a
record outside of the cache can show it (`niels-cache verify --against-dagster`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from niels_cache_runtime.cache.opening import TRIES
from niels_cache_runtime.format.layout import META_NAME, parts_root, tokenizer_dir
from niels_cache_runtime.format.place import place_problem
from niels_cache_runtime.format.reading import Look, hash_files
from niels_cache_runtime.verify.folder import Finding, Kind, VerifiedFolder
from niels_cache_runtime.verify.root import HAVE_PARTS, find_folders, notes, stray_findings

__all__ = ["Finding", "Kind", "find_folders", "notes", "verify_cache", "verify_dataset", "verify_folders"]

OnProgress = Callable[[int, int], None]


def verify_dataset(
    folder: str | Path, *, name: str | None = None, quick: bool = False, threads: int | None = None, progress: OnProgress | None = None
) -> list[Finding]:
    """Verify one folder that holds a meta.json: a data set or a tokenizer, a corpus, drop lists or an index. Return the findings.

    If the folder is in a cache root (`ROOT/pretrain/NAME`, `ROOT/sft/NAME`), the data set must have the tokenizer of `ROOT/tokenizer`, if
    there is one.

    name: the name that the data set must have. None accepts any name.
    quick: compare names and sizes only.
    threads: the number of files to read at the same time. None means one for each core.
    progress: called as `progress(bytes done, bytes in all)` after every block, by one thread at a time.
    """
    verified = VerifiedFolder(Path(folder))
    findings = _verify([verified], quick=quick, threads=threads, progress=progress)
    return findings if name is None else [*findings, *_place_finding(verified, family=verified.path.absolute().parent.name, name=name)]


def verify_cache(
    root: str | Path,
    *,
    names: Sequence[str] | None = None,
    quick: bool = False,
    threads: int | None = None,
    progress: OnProgress | None = None,
) -> list[Finding]:
    """Verify a cache root, or a folder that itself holds a meta.json. Return the findings.

    names: the folders to verify; by default, all are verified. A name is a data set's NAME (in every family), `pretrain/NAME`, `sft/NAME`,
        `corpus/NAME`, `index/HASH`, `tokenizer` or `duplicates`.

    In a root, the folder of a data set must have the name that its meta.json gives (`dataset_name`, if it is not null). The other arguments
    have the same meaning as in `verify_dataset`. Raises NielsCacheError for a path or a name with nothing to verify.
    """
    folders = [VerifiedFolder(path) for path in find_folders(root, names=names)]
    return verify_folders(root, folders, beside=not names, quick=quick, threads=threads, progress=progress)


def verify_folders(
    root: str | Path,
    folders: Sequence[VerifiedFolder],
    *,
    beside: bool,
    quick: bool,
    progress: OnProgress | None,
    threads: int | None = None,
) -> list[Finding]:
    """Verify folders that were found below `root`. Return the findings. `verify_cache` does the same after finding the folders.

    beside: also report stray entries of the root.
    """
    findings = _verify(folders, quick=quick, threads=threads, progress=progress)
    if not (Path(root) / META_NAME).exists():  # otherwise `root` is one data set
        findings += [*_place_findings(Path(root), folders), *(stray_findings(root) if beside else ())]
    return findings


def _place_findings(root: Path, folders: Sequence[VerifiedFolder]) -> Iterator[Finding]:
    """Yield the findings about places below a cache root. A folder may hold a different data set or kind, or the tokenizer may be
    missing.
    """
    need_tokenizer = []
    for folder in folders:
        if folder.meta is None:  # a missing meta.json is already a finding
            continue
        place, name = folder.path.name if folder.path.parent == root else folder.path.parent.name, folder.path.name
        for family in HAVE_PARTS:
            if folder.path.parent.parent == parts_root(root, family):
                place, name = family, f"{place}/{name}"
        yield from _place_finding(folder, family=place, name=name)
        if folder.meta.get("tokenizer_sha256") is not None:
            need_tokenizer.append(folder.path.name)
    if need_tokenizer and not tokenizer_dir(root).is_dir():
        problem = f"missing, though the meta.json of {', '.join(need_tokenizer)} records a tokenizer; build it or put it back"
        yield Finding(kind="tokenizer", folder=str(tokenizer_dir(root)), path=META_NAME, problem=problem)


def _place_finding(folder: VerifiedFolder, *, family: str, name: str) -> Iterator[Finding]:
    problem = None if folder.meta is None else place_problem(folder.meta, family=family, name=name)
    if problem is not None:
        yield Finding(kind="content", folder=str(folder.path), path=META_NAME, problem=problem)


def _verify(
    folders: Sequence[VerifiedFolder], *, quick: bool, threads: int | None, progress: OnProgress | None, tries: int = TRIES
) -> list[Finding]:
    """Return all findings. If a folder has findings and was rebuilt during the verification, it is verified again, without progress."""
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    looks: dict[Path, Look | None] = {}
    sizes: dict[Path, int] = {}
    if not quick:
        for folder in folders:
            looks |= folder.plan()
            sizes |= {folder.path / path: size for path, size in folder.found.items()}
    same = _read_elsewhere(looks)
    looks = {path: look for path, look in looks.items() if path not in same}
    total = sum(sizes[path] for path in looks)
    hashes = hash_files(looks, sizes=sizes, threads=threads, on_bytes=on_bytes)
    hashes |= {path: hashes[other] for path, other in same.items()}
    findings = []
    for folder in folders:
        found = [*folder.findings(None if quick else hashes)]
        if found and folder.was_rebuilt():
            if tries > 1:
                found = _verify([VerifiedFolder(folder.path)], quick=quick, threads=threads, progress=None, tries=tries - 1)
            else:
                problem = f"was rebuilt {TRIES} times while it was verified; verify it again when the build is done"
                found = [Finding(kind="files", folder=str(folder.path), path=META_NAME, problem=problem)]
        findings += found
    return findings


def _read_elsewhere(looks: Mapping[Path, Look | None]) -> dict[Path, Path]:
    """Return the files without a `Look` that are hard links to another file of `looks`, and for each of them that other file.

    The shards of a part are linked into the data set that was joined from it, and are read only there.
    """
    read: dict[tuple[int, int], Path] = {}
    same: dict[Path, Path] = {}
    for path in sorted(looks, key=lambda path: looks[path] is None):
        with suppress(OSError):  # reading the file reports the error
            found = path.lstat()
            if found.st_nlink > 1:
                first = read.setdefault((found.st_dev, found.st_ino), path)
                if first != path and looks[path] is None:
                    same[path] = first
    return same
