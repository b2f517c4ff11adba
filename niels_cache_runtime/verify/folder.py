"""One folder of a cache under verification, with its entries, the files to read, and the findings.

A finding names the place of the damage. If a damaged file has a consequence, such as a wrong total, the consequence is not another finding.
`invariants` has the rules inside a folder. The package itself chooses the folders and reads them together.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from niels_cache_runtime.cache.opening import FileEntries, current_tokenizer_sha256, listed_files, read_build, tokenizer_problem
from niels_cache_runtime.errors import NielsCacheError, escaped
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, SPLITS, parts_root, tokenizer_model_name
from niels_cache_runtime.format.meta import UNVERIFIABLE, Meta, canonical_json, content_sha256, is_foreign, is_hashed_content, load_meta
from niels_cache_runtime.format.meta_keys import form_problem
from niels_cache_runtime.format.reading import BlockConsumer, find_files
from niels_cache_runtime.verify.invariants import (
    Problem,
    Problems,
    SplitCheck,
    foreign_checks,
    pretrain_checks,
    problem_of_error,
    sft_checks,
)

# The docstring of Finding explains these kinds.
FindingKind = Literal["content", "files", "tokenizer", "recorded"]
Hashes = Mapping[Path, str | NielsCacheError]

_CHECKS: dict[str, Callable[[Meta, Path, Mapping[str, int]], Iterator[SplitCheck]]] = {"pretrain": pretrain_checks, "sft": sft_checks}
_MAX_NAMED = 8  # the most names of entries beside a data set that one note has
_FILES_ALONE = (
    "corpus",
    "duplicates",
    "repeats",
    "index",
    "suffixes",
)  # for these kinds, only names, sizes and hashes of files are verified


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem that verification found. `str(finding)` is one line.

    Attributes:
        kind: "files" (names, sizes, hashes), "content" (broken rules inside a cache), "tokenizer" (not the tokenizer of the cache root) or
            "recorded" (not the content that Dagster recorded).
        folder: The folder with the problem.
        path: The file with the problem, relative to the folder.
        problem: One clause that says what is wrong.
    """

    kind: FindingKind
    folder: str
    path: str
    problem: str

    def __str__(self) -> str:
        """Return one line that is safe for any terminal.

        File names may hold line breaks, escape sequences, and bytes that are not text.
        """
        return escaped(f"{Path(self.folder) / self.path}: {self.problem}")


def _is_in_parts_root(folder: Path) -> bool:
    above = folder.absolute().parents  # ROOT/pretrain/.parts/NAME/part-00000
    return len(above) > 3 and parts_root(above[3]) == above[1]


class VerifiedFolder:
    """A folder under verification.

    Args:
        path: The folder.

    Attributes:
        path: The folder.
        found: Relative path -> bytes, for all its files except meta.json.
        meta: The content of meta.json, or None if meta.json cannot be used.
        is_unverifiable: Whether another program wrote meta.json, so that there are no sizes and hashes to compare with. Then only those
            keys of meta.json are checked that are about tokens.
    """

    def __init__(self, path: Path) -> None:
        self.path = path if path.parts else path.absolute()  # errors begin with the folder's path; for "." they would not
        self._build = read_build(path)
        self.found, irregular, self._skipped, self._empty = find_files(path)
        self.found.pop(META_NAME, None)
        self._damage: list[Problem] = [*irregular.items()]
        self._listed: FileEntries = {}
        self._checks: list[SplitCheck] = []
        self._stopped: dict[SplitCheck, Problem] = {}  # checks that an exception has ended
        self.meta: Meta | None = None
        self.is_unverifiable = False
        if META_NAME in irregular:
            return
        try:
            meta = load_meta(path / META_NAME)
            if is_foreign(meta):
                self.meta, self.is_unverifiable = meta, True
                return
            self._listed = listed_files(meta, path)
            if self._build != canonical_json(meta).encode():
                raise NielsCacheError(
                    "its bytes are not canonical, though its values are unchanged (edited by hand?); rebuild this data set"
                )
            self.meta = meta
        except (NielsCacheError, OSError) as error:
            self._listed = self._covered_files()
            path_of, problem = problem_of_error(NielsCacheError(error), path)
            compared = "only the files that its content_sha256 covers" if self._listed else "none of its files"
            self._damage.append((path_of, f"{problem} ({compared} could be compared)"))

    def _covered_files(self) -> FileEntries:
        """Return the files in the list of a damaged meta.json that are certain, because content_sha256 covers and confirms them.

        So damage of the list is not reported as damage of a file.
        """
        try:
            meta = json.loads(self._build or b"")
            listed = listed_files(meta, self.path)
            intact = content_sha256(listed) == meta.get("content_sha256")
        except (NielsCacheError, ValueError, RecursionError, AttributeError):
            return {}
        return {path: entry for path, entry in listed.items() if intact and is_hashed_content(path)}

    def notes(self) -> list[str]:
        """Return at most two lines: one says that nothing can be verified, the other names harmless entries that were not read."""
        lines = [escaped(f"{self.path}: unverifiable: {UNVERIFIABLE}")] if self.is_unverifiable else []
        has_folders = self.meta is None or self.is_unverifiable or self.meta.get("kind") == "pretrain"
        split_folders = SPLITS if has_folders else ()  # an empty split has an empty folder
        beside = sorted([*self._skipped, *(f"{path}/ (empty)" for path in self._empty if path not in (*split_folders, "."))])
        if not beside:
            return lines
        more = f" and {len(beside) - _MAX_NAMED} more" if len(beside) > _MAX_NAMED else ""
        named = ", ".join(beside[:_MAX_NAMED])
        return [*lines, escaped(f"{self.path}: not part of the data set, and not verified: {named}{more}; remove what you do not need")]

    def was_rebuilt(self) -> bool:
        """Return whether the folder was replaced by another build after it was listed.

        Then the entries that were found are of two builds.
        """
        return read_build(self.path) != self._build

    def plan(self) -> dict[Path, BlockConsumer | None]:
        """Return the files to read, and for each file the `BlockConsumer` (a function that gets the blocks of the file), or None."""
        listed = {path: size for path, size in self.found.items() if self.is_unverifiable or path in self._listed}
        if self.meta is None:
            return {self.path / path: None for path in listed}
        if self.meta.get("built") is False:
            return {}
        make_checks = foreign_checks if self.is_unverifiable else _CHECKS.get(str(self.meta.get("kind")))
        if _is_in_parts_root(self.path):  # a part of a data set: its content is checked in the data set
            make_checks = None
        if make_checks is not None:
            self._add_checks(make_checks(self.meta, self.path, listed))
        consumers = {path: self._guard_consumer(check, consumer) for check in self._checks for path, consumer in check.consumers.items()}
        return {self.path / path: consumers.get(path) for path in (consumers if self.is_unverifiable else listed)}

    def findings(self, hashes: Hashes | None) -> Iterator[Finding]:
        """Yield all findings.

        Args:
            hashes: The hashes of the files in `plan`. None means that no file was read, and then only names and sizes are compared.
        """
        problems: dict[FindingKind, Iterable[Problem]] = {"files": self._damage}
        if self.meta is not None and self.meta.get("built") is False:
            problems["files"] = [*self._damage, *((path, 'lies here though meta.json says "built": false') for path in self.found)]
        elif self.meta is None:
            problems["files"] = [*self._damage, *(self._file_problems(hashes) if self._listed else ())]
        else:
            damage = [*self._damage, *self._file_problems(hashes)]
            content = self._content_problems(self.meta, {path for path, _ in damage}, was_read=hashes is not None)
            problems = {"content": content, "files": damage, "tokenizer": self._tokenizer_problems(self.meta)}
        for kind, found in problems.items():
            for path, problem in found:
                yield Finding(kind=kind, folder=str(self.path), path=path, problem=problem)

    def _file_problems(self, hashes: Hashes | None) -> Problems:
        """Yield differences between the files on disk and the files that meta.json lists, by name, size and hash."""
        if self.is_unverifiable:
            errors = [sha256 for sha256 in (hashes or {}).values() if isinstance(sha256, NielsCacheError)]
            yield from (problem_of_error(error, self.path) for error in errors if str(error).startswith(f"{self.path}/"))
            return
        for path in sorted(self._listed.keys() - self.found.keys() - dict(self._damage).keys()):
            yield path, "missing, though meta.json lists it"
        for path in sorted(self.found.keys() - self._listed.keys()):
            if self.meta is not None or not path.endswith(".parquet"):
                yield path, "not listed in meta.json"
        for path in sorted(self.found.keys() & self._listed.keys()):
            listed, sha256 = self._listed[path], (hashes or {}).get(self.path / path)
            if self.found[path] != listed["bytes"]:
                yield path, f"has {self.found[path]} bytes, but meta.json says {listed['bytes']}"
            elif isinstance(sha256, NielsCacheError):
                yield problem_of_error(sha256, self.path)
            elif sha256 not in (None, listed["sha256"]):
                yield path, "its sha256 is not the one in meta.json"

    def _content_problems(self, meta: Meta, damaged: set[str], *, was_read: bool) -> Problems:
        """Yield contradictions in meta.json and in intact files. For damaged files, yield those contradictions that explain the damage."""
        kind = meta.get("kind")
        if self.is_unverifiable:
            if not was_read:
                self._add_checks(foreign_checks(meta, self.path, self.found, quick=True))
        elif kind == "tokenizer":
            yield from self._guarded(self._model_problems(meta))
        elif kind in FAMILIES:
            if content_sha256(self._listed) != meta.get("content_sha256"):
                yield META_NAME, "content_sha256 does not follow from `files`"
        elif str(kind).partition("/")[0] not in _FILES_ALONE:
            yield META_NAME, f"kind is {kind!r}, expected tokenizer, {', '.join([*_CHECKS, *_FILES_ALONE])}"
        names_meta = False
        for check in self._checks:
            problems = [self._stopped[check]] if check in self._stopped else self._guarded(check.problems())
            shown = [problem for problem in problems if problem[0] in damaged or not check.inputs & damaged]
            names_meta |= any(path == META_NAME for path, _ in shown)
            yield from shown
        if (problem := form_problem(meta)) and not names_meta:
            yield META_NAME, problem

    def _model_problems(self, meta: Meta) -> Problems:
        name = tokenizer_model_name(meta)
        if self._listed.get(name, {}).get("sha256") != meta.get("sha256"):
            yield META_NAME, f"sha256 is not that of {name} in `files`"

    def _tokenizer_problems(self, meta: Meta) -> Problems:
        try:
            problem = tokenizer_problem(meta, current_tokenizer_sha256(self.path))
        except NielsCacheError:  # the tokenizer's meta.json is broken: this is a finding of the tokenizer's folder
            return
        if problem:
            yield META_NAME, problem

    def _guard_consumer(self, check: SplitCheck, consumer: BlockConsumer) -> BlockConsumer:
        """Return a wrapper of a consumer that does nothing after an exception has stopped its check."""

        def guarded(block: memoryview) -> None:
            if check not in self._stopped:
                try:
                    consumer(block)
                except Exception as error:
                    self._stopped[check] = self._problem(error)

        return guarded

    def _add_checks(self, checks: Iterator[SplitCheck]) -> None:
        try:
            self._checks.extend(checks)
        except Exception as error:
            problem = self._problem(error)
            self._checks.append(SplitCheck(lambda: iter([problem])))

    def _guarded(self, problems: Problems) -> Problems:
        """Yield the problems until an exception ends them, which is one more problem.

        Any exception is accepted here, because numpy raises many different ones for a broken file.
        """
        try:
            yield from problems
        except Exception as error:
            yield self._problem(error)

    def _problem(self, error: Exception) -> Problem:
        if isinstance(error, NielsCacheError):
            return problem_of_error(error, self.path)
        return META_NAME, f"cannot be checked: {type(error).__name__}: {error}"
