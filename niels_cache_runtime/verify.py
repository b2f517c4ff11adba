"""Re-hash a cache and check its invariants: `python -m niels_cache_runtime.verify cache/ [NAME ...]`.

Prints one line per finding and exits 1, or one summary line and exits 0; exits 2 for a wrong path or name. Reads every file once, in
blocks. A broken file of any kind is a finding, never an exception. Nothing is repaired or written.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import FAMILIES, META_NAME, TOKENIZER_MODEL_NAME, tokenizer_dir
from niels_cache_runtime.invariants import Problem, Reader, as_problem, pretrain_problems, sft_problems
from niels_cache_runtime.meta import Meta, content_sha256, read_meta
from niels_cache_runtime.opening import current_tokenizer_sha256, listed_files, tokenizer_problem

OnProgress = Callable[[int, int], None]
Kind = Literal["content", "files", "tokenizer"]  # invariants and ids; names, sizes and hashes; another tokenizer than the cache root's


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing wrong: of which kind, in which folder, in which file of it (relative), and what."""

    kind: Kind
    folder: str
    path: str
    problem: str

    def __str__(self) -> str:
        return " ".join(f"{Path(self.folder) / self.path}: {self.problem}".splitlines())


def verify_dataset(folder: str | Path, *, progress: OnProgress | None = None) -> list[Finding]:
    """Verify one folder that holds a meta.json: a data set or a tokenizer.

    Inside a cache root (`ROOT/pretrain/NAME`, `ROOT/sft/NAME`) the data set's tokenizer must be that of `ROOT/tokenizer`, if there
    is one. `progress(bytes done, bytes in all)` is called after every block.
    """
    return _verify([Path(folder)], progress)


def verify_cache(root: str | Path, *, names: Sequence[str] | None = None, progress: OnProgress | None = None) -> list[Finding]:
    """Verify a cache root, or a folder that itself holds a meta.json.

    names: only these: a data set's NAME in every family, `pretrain/NAME`, `sft/NAME`, or `tokenizer`. `progress` as in
    `verify_dataset`. Raises NielsCacheError for a path or a name where there is nothing to verify.
    """
    return _verify_found(root, find_folders(root, names=names), progress)


def find_folders(root: str | Path, *, names: Sequence[str] | None = None) -> list[Path]:
    """The folders that `verify_cache` verifies, in order. Folders with a leading dot (builds in progress) are not among them."""
    root = Path(root)
    if not root.is_dir():
        raise NielsCacheError(f"{root}: no such folder; give a cache root such as cache/")
    if (root / META_NAME).exists():
        if names:
            raise NielsCacheError(f"{root}: is one data set, so it has no {names[0]}; give the cache root above it")
        return [root]
    found = [tokenizer_dir(root)] if tokenizer_dir(root).is_dir() else []
    for family in FAMILIES:
        if (root / family).is_dir():
            found += sorted(path for path in (root / family).iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise NielsCacheError(f"{root}: holds no cache (no tokenizer/, pretrain/NAME/ or sft/NAME/); build one first, or check the path")
    for name in names or ():
        if not any(_is_called(name, folder) for folder in found):
            known = ", ".join(folder.relative_to(root).as_posix() for folder in found)
            raise NielsCacheError(f"{root}: holds no {name}; it has {known}")
    return [folder for folder in found if not names or any(_is_called(name, folder) for name in names)]


def _is_called(name: str, folder: Path) -> bool:
    return name in (folder.name, f"{folder.parent.name}/{folder.name}")


def _verify_found(root: str | Path, folders: list[Path], progress: OnProgress | None) -> list[Finding]:
    """`_verify`, and below a cache root also what the folders' places say: their kind, and that their tokenizer is there."""
    findings = _verify(folders, progress)
    need_tokenizer = []
    for folder in folders:
        try:
            meta = read_meta(str(folder / META_NAME))
        except NielsCacheError:  # among the findings
            continue
        place = "tokenizer" if folder == tokenizer_dir(root) else folder.parent.name
        if folder != Path(root) and meta.get("kind") != place:
            findings.append(
                Finding(kind="content", folder=str(folder), path=META_NAME, problem=f"kind is {meta.get('kind')!r}, it lies in {place}/")
            )
        if folder != Path(root) and meta.get("tokenizer_sha256") is not None:
            need_tokenizer.append(folder.name)
    if need_tokenizer and not tokenizer_dir(root).is_dir():
        problem = f"missing, though the meta.json of {', '.join(need_tokenizer)} records a tokenizer; build it or put it back"
        findings.append(Finding(kind="tokenizer", folder=str(tokenizer_dir(root)), path=META_NAME, problem=problem))
    return findings


def _verify(folders: list[Path], progress: OnProgress | None) -> list[Finding]:
    total = sum(size for folder in folders for size in _files_on_disk(folder).values())
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    findings = []
    for folder in folders:
        try:
            meta = read_meta(str(folder / META_NAME))
        except NielsCacheError as error:
            path, problem = as_problem(error, folder)
            findings.append(Finding(kind="files", folder=str(folder), path=path, problem=problem))
            continue
        reader = Reader(folder, on_bytes=on_bytes)
        for kind, check in _CHECKS.items():
            for path, problem in _guarded(check(meta, reader), folder):
                findings.append(Finding(kind=kind, folder=str(folder), path=path, problem=problem))
    return findings


def _guarded(problems: Iterator[Problem], folder: Path) -> Iterator[Problem]:
    """The problems, and as the last one the exception that ended them: whatever a broken file makes numpy say is a finding."""
    try:
        yield from problems
    except NielsCacheError as error:
        yield as_problem(error, folder)
    except Exception as error:
        yield "", f"cannot be checked: {type(error).__name__}: {error}"


def _content_problems(meta: Meta, reader: Reader) -> Iterator[Problem]:
    if meta.get("built") is False:
        return
    kind = meta.get("kind")
    if kind == "pretrain":
        yield from pretrain_problems(meta, reader)
    elif kind == "sft":
        yield from sft_problems(meta, reader)
    elif kind == "tokenizer":
        if reader.hash(TOKENIZER_MODEL_NAME) != meta.get("sha256"):
            yield TOKENIZER_MODEL_NAME, "its sha256 is not the one in meta.json"
    else:
        yield META_NAME, f"kind is {kind!r}, expected pretrain, sft or tokenizer"


def _file_problems(meta: Meta, reader: Reader) -> Iterator[Problem]:
    """Files on disk against those listed, by name, size and hash."""
    if meta.get("built") is False:
        for path in _files_on_disk(reader.folder):
            yield path, 'lies here though meta.json says "built": false'
        return
    listed, found = listed_files(meta, reader.folder), _files_on_disk(reader.folder)
    for path in sorted(listed.keys() - found.keys()):
        yield path, "missing, though meta.json lists it"
    for path in sorted(found.keys() - listed.keys()):
        yield path, "not listed in meta.json"
    for path in sorted(found.keys() & listed.keys()):
        if found[path] != listed[path]["bytes"]:
            yield path, f"has {found[path]} bytes, meta.json says {listed[path]['bytes']}"
        try:
            if reader.hash(path) != listed[path]["sha256"]:
                yield path, "its sha256 is not the one in meta.json"
        except NielsCacheError as error:
            yield as_problem(error, reader.folder)
    if meta.get("kind") != "tokenizer" and content_sha256(listed) != meta.get("content_sha256"):
        yield META_NAME, "content_sha256 does not follow from `files`"


def _tokenizer_problems(meta: Meta, reader: Reader) -> Iterator[Problem]:
    try:
        problem = tokenizer_problem(meta, current_tokenizer_sha256(reader.folder))
    except NielsCacheError:  # the tokenizer's own meta.json is broken: a finding where the tokenizer is verified
        return
    if problem and meta.get("built") is not False:
        yield META_NAME, problem


_CHECKS: dict[Kind, Callable[[Meta, Reader], Iterator[Problem]]] = {
    "content": _content_problems,
    "files": _file_problems,
    "tokenizer": _tokenizer_problems,
}


def _files_on_disk(folder: Path) -> dict[str, int]:
    """Relative path -> bytes of every file but meta.json; hidden files are the file manager's, not the cache's."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / META_NAME and not path.name.startswith(".")
    }


class _ProgressBar:
    """One line on a terminal's standard error, redrawn at most ten times a second; silent elsewhere."""

    _WIDTH = 24

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began = time.monotonic()
        self._drawn = 0.0
        self._length = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._shown or (now - self._drawn < 0.1 and done < total):
            return
        self._drawn = now
        share = done / max(total, 1)
        rate = done / max(now - self._began, 1e-9)
        bar = ("#" * round(share * self._WIDTH)).ljust(self._WIDTH, ".")
        left = (total - done) / max(rate, 1e-9)
        self._write(f"[{bar}] {share:4.0%}  {done / 1e6:,.0f}/{total / 1e6:,.0f} MB  {rate / 1e6:,.0f} MB/s  {left:,.0f} s left")

    def clear(self) -> None:
        if self._length:
            self._write("")
            self._write("")

    def _write(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._length))
        sys.stderr.flush()
        self._length = len(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m niels_cache_runtime.verify", description="Re-hash a cache and check its invariants.")
    parser.add_argument("root", help="a cache root such as cache/, or the folder of one data set")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these data sets: NAME, pretrain/NAME, sft/NAME or tokenizer")
    settings = parser.parse_args(arguments)
    bar = _ProgressBar()
    try:
        folders = find_folders(settings.root, names=settings.names)
        findings = _verify_found(settings.root, folders, bar)
    except NielsCacheError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        bar.clear()
    for finding in findings:
        print(finding)
    if not findings:
        sizes = [size for folder in folders for size in _files_on_disk(folder).values()]
        print(f"{len(folders)} folders, {len(sizes)} files, {sum(sizes) / 1e6:,.1f} MB: no findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
