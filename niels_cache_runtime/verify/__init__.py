"""The room of the verifier: functions that hash a cache again and check its invariants. `__main__` is the command line.

    root: the folders of a cache --> folder: one of them, judged --> invariants: the rules inside it      table: the results in rows

If another program wrote the meta.json of a cache, the cache is unverifiable. It is reported as a note, as a result, and in a number of the
summary, but not as a finding. The verifier reads every file once, several at a time. With `quick` it reads none, and compares names and
sizes only. A broken file of any kind is a finding, never an exception. The verifier repairs and writes nothing. It follows no link, except
one in place of a whole data set.

If somebody changes files and computes all hashes again, including that of meta.json, the verifier does not detect it. That needs a record
elsewhere (`niels-cache verify --against-dagster`).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from niels_cache_runtime.cache.opening import TRIES
from niels_cache_runtime.format.layout import META_NAME, tokenizer_dir
from niels_cache_runtime.format.place import place_problem
from niels_cache_runtime.format.reading import Look, hash_files
from niels_cache_runtime.old_paths import former_names
from niels_cache_runtime.verify.folder import Finding, Kind, VerifiedFolder
from niels_cache_runtime.verify.root import find_folders, notes, stray_findings

__all__ = ["Finding", "Kind", "find_folders", "notes", "verify_cache", "verify_dataset", "verify_folders"]

OnProgress = Callable[[int, int], None]


def verify_dataset(
    folder: str | Path, *, name: str | None = None, quick: bool = False, threads: int | None = None, progress: OnProgress | None = None
) -> list[Finding]:
    """Verify one folder that holds a meta.json: a data set or a tokenizer, a corpus, drop lists or an index. Return the findings.

    Inside a cache root (`ROOT/pretrain/NAME`, `ROOT/sft/NAME`) the data set's tokenizer must be that of `ROOT/tokenizer`, if there
    is one. name: the expected data set; None if the folder may have any name. quick: names and sizes only. threads: files read
    at a time, None for as many as there are cores. `progress(bytes done, bytes in all)` is called after every block, by one thread at a
    time.
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

    names: only these: a data set's NAME in every family, `pretrain/NAME`, `sft/NAME`, `corpus/NAME`, `index/HASH`, `tokenizer` or
    `duplicates`. In a root the folder of a data set must have the name that its meta.json has (`dataset_name`, if it is not null).
    Everything else as in `verify_dataset`. Raises NielsCacheError for a path or a name with nothing to verify.
    """
    folders = [VerifiedFolder(path) for path in find_folders(root, names=names)]
    return verify_folders(root, folders, beside=not names, quick=quick, threads=threads, progress=progress)


def verify_folders(
    root: str | Path, folders: Sequence[VerifiedFolder], *, beside: bool, quick: bool, threads: int | None, progress: OnProgress | None
) -> list[Finding]:
    """Verify folders that were found below `root`, as `verify_cache` does. With `beside`, also report stray entries of the root."""
    findings = _verify(folders, quick=quick, threads=threads, progress=progress)
    if not (Path(root) / META_NAME).exists():  # otherwise it is one data set
        findings += [*_place_findings(Path(root), folders), *(stray_findings(root) if beside else ())]
    return findings


def _place_findings(root: Path, folders: Sequence[VerifiedFolder]) -> Iterator[Finding]:
    """Yield the findings of places below a cache root: a folder of another data set or kind, a missing tokenizer."""
    need_tokenizer = []
    for folder in folders:
        if folder.meta is None:  # already a finding
            continue
        place = folder.path.name if folder.path.parent == root else folder.path.parent.name
        yield from _place_finding(folder, family=place, name=folder.path.name)
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
    """Return all findings. A folder with findings that was rebuilt meanwhile is verified again, without progress."""
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
    total = sum(sizes[path] for path in looks)
    hashes = hash_files(looks, sizes=sizes, threads=threads, on_bytes=on_bytes)
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


if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = former_names(__name__, f"{__name__}.__main__")  # `main` and `NOT_VERIFIED`
