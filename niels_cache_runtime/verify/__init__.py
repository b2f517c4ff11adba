"""The room of the verifier: re-hash a cache and check its invariants, as functions. `python -m niels_cache_runtime.verify` is `__main__`.

    root: which folders there are --> folder: one of them, judged --> invariants: what must hold inside      table: the results in rows

A cache whose meta.json another program wrote is unverifiable: a note, a result of its own and a number in the summary, not a finding.
Reads every file once, several at a time, or with `quick` none: names and sizes are what is compared then. A broken file of any kind is a
finding, never an exception. Nothing is repaired or written, and no link is followed but one that stands for a whole data set.

Whoever changes files and computes every hash again, that of meta.json included, is not found here: that takes a record elsewhere
(`niels-cache verify --against-dagster`).
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
    """Verify one folder that holds a meta.json: a data set or a tokenizer, a corpus, drop lists or an index.

    Inside a cache root (`ROOT/pretrain/NAME`, `ROOT/sft/NAME`) the data set's tokenizer must be that of `ROOT/tokenizer`, if there
    is one. name: the data set that must be here; None if the folder may have any name. quick: names and sizes only. threads: files read
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
    """Verify a cache root, or a folder that itself holds a meta.json.

    names: only these: a data set's NAME in every family, `pretrain/NAME`, `sft/NAME`, `corpus/NAME`, `index/HASH`, `tokenizer` or
    `duplicates`. In a root the folder of a data set must have the name that its meta.json has (`dataset_name`, if it is not null).
    Everything else as in `verify_dataset`. Raises NielsCacheError for a path or a name where there is nothing to verify.
    """
    folders = [VerifiedFolder(path) for path in find_folders(root, names=names)]
    return verify_folders(root, folders, beside=not names, quick=quick, threads=threads, progress=progress)


def verify_folders(
    root: str | Path, folders: Sequence[VerifiedFolder], *, beside: bool, quick: bool, threads: int | None, progress: OnProgress | None
) -> list[Finding]:
    """`verify_cache` of folders that were found below `root`, and, with `beside`, of what lies there and is none."""
    findings = _verify(folders, quick=quick, threads=threads, progress=progress)
    if not (Path(root) / META_NAME).exists():  # else it is one data set
        findings += [*_place_findings(Path(root), folders), *(stray_findings(root) if beside else ())]
    return findings


def _place_findings(root: Path, folders: Sequence[VerifiedFolder]) -> Iterator[Finding]:
    """What the places below a cache root say: which data set of which kind a folder is, and that its tokenizer is there."""
    need_tokenizer = []
    for folder in folders:
        if folder.meta is None:  # among the findings
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
    """All findings; a folder with some that was rebuilt meanwhile is verified again, without progress."""
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
