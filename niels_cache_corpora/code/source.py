"""The source `code`, for source code: one document per file, or the files of a repository together.

    folders, git checkouts --> files with repository, commit and licence --.
                                                                            >-- languages, `where`, licences, rules --> documents
    Parquet rows (brought together by repository, if it matters) ----------'

Folders are read one file after the other, and a pass can begin at a file. For documents of several files, all texts of one repository are
held: in memory up to 64 MB, and beyond that in a temporary file.

A part of a data set has whole files, or whole repositories if these are joined. Each pass lists all repositories, because these decide val.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from tempfile import SpooledTemporaryFile
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, PositiveInt, field_validator, model_validator

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.documents import Document
from niels_cache_assets.base.fingerprint import Identity, fingerprint_of
from niels_cache_assets.sources.reading.encodings import DecodesText, DecodingCounts, decode
from niels_cache_assets.sources.reading.file_source import list_files_for_plan, locate_listed_files
from niels_cache_assets.sources.reading.files import SourceFile, file_errors, files_digest, find_files, valid_unicode
from niels_cache_assets.sources.reading.keep import HasColumns
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.rows import batched, parquet_rows, row_id, text_problem
from niels_cache_assets.sources.types import ConfigPath, ListedFile, Siblings, SourceWithParts, StreamContext
from niels_cache_assets.sources.val_share import val_mask
from niels_cache_corpora.code.copies import Copies
from niels_cache_corpora.code.joining import Import, import_order, imports_of, join_files
from niels_cache_corpora.code.licensing import RepositoryLicenses, expression, header_license, is_allowed, is_license_text, joined
from niels_cache_corpora.code.listing import Division, Repository, find_repositories
from niels_cache_corpora.code.notebooks import notebook_script
from niels_cache_corpora.code.sorting import sorted_rows
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split

DROPPED = "code"  # the drop reason, before the name of the rule
COLUMNS = ("language", "license", "path", "repo", "commit")  # that each file has
_FIELDS = {  # names of columns in The Stack, The Stack v2 and data sets like them
    "text_field": ("content", "text", "code"),
    "path_field": ("path", "max_stars_repo_path", "file_path"),
    "repo_field": ("repo", "repo_name", "max_stars_repo_name", "repository_name"),
    "licenses_field": ("licenses", "max_stars_repo_licenses", "detected_licenses", "license"),
}
_BINARY_HEAD = 8_000  # bytes in which a NUL shows that a file is binary, as for git
_MEMORY_BYTES = 64 << 20  # of the texts of a repository
_NAMED_REPOSITORIES = 100  # in facts


class _CodeText(NamedTuple):
    """A file that is kept.

    Attributes:
        text: The text; a notebook is a script.
        path: The path in the repository.
        language: The language, or None if only Parquet says that it is code.
        columns: The columns for `keep`.
    """

    text: str
    path: str
    language: str | None
    columns: Mapping[str, Any]


class _RepositoryFiles(SourceFile):
    """A repository, which a plan of parts lists like a file. Its address is empty, and it is found by its name."""

    files: Sequence[SourceFile]

    def size(self) -> int:
        return sum(file.size() for file in self.files)

    def digest(self) -> str:
        return files_digest(self.files)


class Code(HasColumns, DecodesText, SourceWithParts):
    """Source code in folders, git checkouts, or Parquet files like those of The Stack ([how](code.md)).

    `keep` and `where` may name `language`, `license`, `path`, `repo` and `commit`, and columns of the Parquet files.
    """

    endings = ("",)  # of all files
    val_unit = "repositories"

    source: Literal["code"] = "code"
    files: list[ConfigPath] = Field(min_length=1)
    """Folders of code, of which git checkouts are read by git, or globs of Parquet files"""
    repositories: Division = "auto"
    """For a folder: 'folder' is one repository; 'subfolders' makes one of each subfolder; 'auto' looks for .git and Python packages"""
    sample_by: Literal["file", "repository"] = "file"
    """'repository' joins the files of a repository, in an order that follows imports"""
    file_start: str = "# {path}\n"
    """What comes before each file of a document with `sample_by = "repository"`; {path}, {repo}, {language} and {license} are replaced"""
    file_end: str = "\n"
    """What comes after each file of a document with `sample_by = "repository"`"""
    repository_start: str = ""
    """What each document with `sample_by = "repository"` begins with; {repo} is replaced"""
    max_characters: PositiveInt = 400_000
    """Most characters of a document with several files; a longer file is a document of its own"""
    max_file_bytes: PositiveInt = 1 << 20
    """Most bytes of a file; longer ones are dropped and counted"""
    rules: tuple[str, ...] = Field((), strict=False)
    """Rules that drop files: vendored, generated, minified, data, long_line, mean_line, alphanumeric"""
    max_line_length: PositiveInt = 1_000
    """Most characters of a line, for the rule long_line"""
    max_mean_line_length: float = Field(100, gt=0, strict=False)
    """Most characters of a line on average, for the rule mean_line"""
    min_alphanumeric_share: float = Field(0.25, ge=0, le=1, strict=False)
    """Smallest share of letters and digits, for the rule alphanumeric"""
    licenses: tuple[str, ...] = Field((), strict=False)
    """SPDX identifiers of the licences to keep, such as ["MIT", "Apache-2.0"]; by default all"""
    unknown_license: Literal["keep", "drop"] | None = None
    """What happens to files whose licence is unknown; needed with `licenses`"""
    notebooks: Literal["script", "json", "drop"] = "script"
    """'script' makes scripts of Jupyter notebooks, with cells marked by `# %%`; 'json' reads the files as they are"""
    copies: Literal["keep", "drop"] = "keep"
    """With `sample_by = "repository"`, 'drop' drops files that equal a file of an earlier repository"""
    fork_share: float | None = Field(None, gt=0, le=1, strict=False)
    """With `sample_by = "repository"`: drop repositories of which this share of characters equals files of one earlier repository"""
    path_field: str | None = None
    """Column of Parquet files with the path; by default `path`, or the name in The Stack"""
    repo_field: str | None = None
    """Column of Parquet files with the repository; by default `repo`, `repo_name`, or the name in The Stack"""
    licenses_field: str | None = None
    """Column of Parquet files with licences, all of which apply; by default `licenses`, or the names in The Stack"""

    @model_validator(mode="before")
    @classmethod
    def _keep_lists_of_files(cls, table: Any) -> Any:
        if isinstance(table, Mapping) and table.get("sample_by") == "repository" and "keep" not in table:
            return {**table, "keep": ["repo", "files"]}
        return table

    @field_validator("rules")
    @classmethod
    def _are_rules(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        load_beside("cleaning", "code").require_rules(value)
        return value

    @field_validator("licenses")
    @classmethod
    def _are_licenses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if expression(each) != each:
                hint = f"write {expression(each)!r}" if expression(each) else "see https://spdx.org/licenses"
                raise ValueError(f"{each!r} is not the SPDX identifier of a licence; {hint}")
        return value

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        if self.licenses and self.unknown_license is None:
            raise ValueError('licenses does not say what happens to files of unknown licence; add unknown_license = "drop", or "keep"')
        if self.val_tokens:
            raise ValueError("val of code is chosen by repository, which val_tokens cannot do; give val_frac instead of token budgets")
        if self.sample_by == "repository":
            known = ("repo", "files", "commit", "license", "language")
            if unknown := [name for name in self.keep if name not in known]:
                raise ValueError(f"keep has {unknown[0]!r}; documents of several files have {', '.join(known)}")
            if "{path}" not in self.file_start:
                raise ValueError("file_start lacks {path}, by which `trace` finds the file of a token; add it")
        elif self.copies == "drop" or self.fork_share is not None:
            raise ValueError('copies and fork_share need sample_by = "repository"; for single files, set prepare = ["dedup"]')
        columns = [*self.keep, *(self.condition.columns if self.condition else ())]
        if not self.reads_parquet and (unknown := [name for name in columns if name not in (*COLUMNS, "files")]):
            raise ValueError(f"there is no column {unknown[0]!r}; keep and where may name {', '.join(COLUMNS)}")
        are_parquet = {_is_parquet(each) for each in self.files}
        if len(are_parquet) > 1:
            raise ValueError("files has folders and Parquet files; make a data set of each")
        if not self.reads_parquet and (own := [name for name in _FIELDS if getattr(self, name) is not None]):
            raise ValueError(f"{own[0]} is for Parquet files; remove it")
        return self

    def _refuse_for_parts(self) -> None:
        if self.added:
            raise ValueError("added would choose val among the new repositories alone; put them into files, or make a data set of them")
        if self.sample_by == "repository" and self.reads_parquet:
            raise ValueError(
                "parts would tear the repositories of Parquet files, whose rows are brought together by one sort; remove parts, or set "
                'sample_by = "file"'
            )
        if self.copies == "drop" or self.fork_share is not None:
            raise ValueError(
                "copies and fork_share compare a repository with all before it, and a part has only its own; remove parts, or remove them "
                'and set prepare = ["dedup"]'
            )
        super()._refuse_for_parts()

    def identity(self) -> Identity:
        """Return the identity, with `val_frac` under a second name: a corpus depends on it, because documents have their split here."""
        share = self.seeded_val_frac
        return super().identity() | ({} if share is None else {"val_share_of_repositories": share})

    def describe(self) -> dict[str, Any]:
        return super().describe() | ({"file_start": self.file_start} if self.sample_by == "repository" else {})

    @property
    def reads_parquet(self) -> bool:
        return _is_parquet(self.files[0])

    def input_files(self) -> list[SourceFile]:
        if self.reads_parquet:
            return find_files(self.files, (".parquet",))
        binary = load_beside("cleaning", "code_languages").is_binary_name
        return [file for each in self._listed() for path, file in each.files.items() if not binary(path)]

    def _units(self) -> list[SourceFile]:
        """Return what parts divide: files, or repositories if their files are joined."""
        if self.sample_by == "file" or self.reads_parquet:
            return self.input_files()
        binary, units = load_beside("cleaning", "code_languages").is_binary_name, list[SourceFile]()
        for each in self._listed():
            unit = _RepositoryFiles("", each.name)
            unit.files = [file for path, file in each.files.items() if not binary(path)]
            units.append(unit)
        return units

    def list_files(self, revision: str | None, *, group: int = 0, hashed: bool = True) -> list[ListedFile]:
        return list_files_for_plan(self._units(), None, hashed=hashed)

    def revision_of_files(self, number: int, revision: str | None) -> str | None:
        return revision

    def located(self, files: Sequence[ListedFile], revision: str | None) -> list[SourceFile]:
        return locate_listed_files(self._units(), files)

    def file_reader(self, names: Sequence[str]) -> Self:
        return self

    def text_field_of(self, files: Sequence[SourceFile]) -> None:
        """Return None: the columns of Parquet files have keys of their own."""

    def revision(self, siblings: Siblings) -> str | None:
        """Return the digest of the files, with the commits of checkouts, which are in `facts`."""
        digest, commits = super().revision(siblings), [] if self.reads_parquet else [each.commit for each in self._listed() if each.commit]
        return f"sha256:{fingerprint_of({'files': digest, 'commits': commits})}" if commits else digest

    def text_bytes(self) -> int | None:
        sizes = () if self.reads_parquet else (file.size() for file in self.input_files())
        return sum(size for size in sizes if size <= self.max_file_bytes) or None

    def check_input(self, siblings: Siblings) -> None:
        if not self.reads_parquet:  # the first rows of Parquet files may come after a sort
            super().check_input(siblings)
            return
        found = self.readable_files()
        for file in found[:1] if found[0].is_remote else found:
            _ParquetFields(self, [file])

    def count_unsplit(self, context: StreamContext) -> int:
        return 0  # each document has the split of its repository

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        reading = _Reading(self, context)
        if self.reads_parquet:
            return reading.parquet_documents()
        return reading.folder_documents(self._listed())

    def _listed(self) -> list[Repository]:
        return find_repositories(self.files, self.repositories)


def _is_parquet(path: str) -> bool:
    return path.lower().endswith(".parquet")


class _Reading:
    """One pass over the files.

    Args:
        source: The table.
        context: The pass.
    """

    def __init__(self, source: Code, context: StreamContext) -> None:
        self._source, self._context, self._report = source, context, context.report
        self._decoding = DecodingCounts(source, context)
        self._languages, self._rules = load_beside("cleaning", "code_languages"), load_beside("cleaning", "code")
        self._limits = self._rules.Limits(source.max_line_length, source.max_mean_line_length, source.min_alphanumeric_share)
        self._splits: dict[str, Split] = {}
        self._copies = Copies()

    def folder_documents(self, repositories: Sequence[Repository]) -> Iterator[list[Document]]:
        """Yield the documents of repositories on disk, or of the files of this part."""
        self._choose_splits([each.name for each in repositories])
        begun = self._begun(repositories)
        self._record(begun)
        if self._context.start is None:
            for repository in begun:
                for path, file in repository.files.items():
                    if self._languages.is_binary_name(path):
                        self._drop("binary", file.name)
        if self._source.sample_by == "file":
            owner = {file.name: (each, path) for each in repositories for path, file in each.files.items()}
            files = FilePass(self._files_of_pass(self._source.input_files), self._context, notes_empty=False)
            return batched(self._single_files(files, owner), files)
        return batched(document for each in begun for document in self._joined(each.name, self._files_of(each)))

    def _files_of_pass(self, every: Callable[[], Sequence[SourceFile]]) -> Sequence[SourceFile]:
        return every() if self._context.files is None else self._context.files

    def _begun(self, repositories: Sequence[Repository]) -> list[Repository]:
        """Return the repositories whose first file is read in this part, so that each is counted once.

        One without such files goes with the one before.
        """
        if self._context.files is None:
            return [*repositories]
        own, begun = {file.name for file in self._context.files}, list[Repository]()
        if self._source.sample_by == "repository":
            return [each for each in repositories if each.name in own]
        read = [[file.name for path, file in each.files.items() if not self._languages.is_binary_name(path)] for each in repositories]
        first = next(names[0] for names in read if names)
        for each, names in zip(repositories, read, strict=True):
            first = names[0] if names else first
            if first in own:
                begun.append(each)
        return begun

    def _record(self, repositories: Sequence[Repository]) -> None:
        """Record commits in the facts."""
        checkouts = [each for each in repositories if each.commit]
        if checkouts:
            named = {each.name: {"commit": each.commit, "changed_files": each.changed} for each in checkouts[:_NAMED_REPOSITORIES]}
            self._report.facts["git"] = {"checkouts": len(checkouts), "repositories": named}
        for each in checkouts:
            if each.changed:
                self._context.log(f"{each.name}: {each.changed} tracked files differ from the commit; they are read as they are on disk")

    def _single_files(self, files: FilePass, owner: Mapping[str, tuple[Repository, str]]) -> Iterator[Document]:
        licenses: tuple[str, RepositoryLicenses] | None = None
        for file in files.files():
            if files.position.row:
                continue
            files.position.row = files.position.rows = 1
            if file.name not in owner:
                raise NielsCacheError(f"{file.name}: is new since the build began; build again when the files are stable")
            repository, path = owner[file.name]
            if licenses is None or licenses[0] != repository.name:
                licenses = repository.name, RepositoryLicenses(repository)
            found = self._read(file, repository, path, licenses[1])
            if found is not None:
                kept = self._source.kept_of(found.columns, file.name, 0)
                yield Document(found.text, file.name, file.name, 0, path, self._splits.get(repository.name), kept)

    def _files_of(self, repository: Repository) -> Iterator[_CodeText]:
        licenses = RepositoryLicenses(repository)
        for path, file in repository.files.items():
            if not self._languages.is_binary_name(path) and (found := self._read(file, repository, path, licenses)) is not None:
                yield found

    def _read(self, file: SourceFile, repository: Repository, path: str, licenses: RepositoryLicenses) -> _CodeText | None:
        self._report.split = self._splits.get(repository.name)
        with file_errors(file), open(file.url, "rb") as stream:
            data = stream.read(self._source.max_file_bytes + 1)
        if len(data) > self._source.max_file_bytes:
            return self._drop("too_large", file.name)
        if b"\0" in data[:_BINARY_HEAD]:
            return self._drop("binary", file.name)
        text, marked = decode(data, self._source.encoding)
        text = text.removeprefix("\ufeff")
        replaced = self._decoding.count_marked(file.name, marked)
        if not text or text.isspace():
            return self._drop("empty", file.name)
        if not self._decoding.admits(file.name, text, replaced=replaced):
            return None
        found = self._languages.language_of(path, text)
        if found is None:
            return self._drop("no_language", file.name)
        columns = {"repo": repository.name, "commit": repository.commit}
        return self._admitted(text, path, file.name, 0, found.name, lambda: licenses.of(path), columns)

    def _admitted(
        self, text: str, path: str, file: str, row: int, language: str | None, license_of: Any, columns: Mapping[str, Any]
    ) -> _CodeText | None:
        """Return a file if the settings keep it.

        Args:
            text: The text.
            path: The path in the repository.
            file: The name of the file in lineage.
            row: The row in it.
            language: The language.
            license_of: Returns the licence of the repository for this file.
            columns: Further columns.
        """
        source = self._source
        if language == "jupyter" and source.notebooks != "json":
            script = notebook_script(text) if source.notebooks == "script" else None
            if script is None:
                if source.notebooks == "drop":
                    return self._drop("notebook", file, row)
                self._report.drop_row("broken_notebook", file, row)
                return None
            text = script
        license = header_license(text) or license_of()
        columns = {**columns, "language": language, "license": license, "path": path}
        if source.condition is not None and (reason := source.condition.problem(columns)):
            self._report.drop_row(reason, file, row)
            return None
        if source.licenses:
            if license is None and source.unknown_license == "drop":
                return self._drop("unknown_license", file, row)
            if license is not None and not is_allowed(license, source.licenses):
                return self._drop("other_license", file, row)
        if source.rules and (problem := self._rules.problem_of(path, text, source.rules, self._limits)):
            return self._drop(problem[0], file, row)
        return _CodeText(text, path, language, columns)

    def _drop(self, rule: str, file: str, row: int | None = None) -> _CodeText | None:
        """Count a file as dropped, and return None."""
        self._report.drop_row(f"{DROPPED}:{rule}", file, row)
        return None

    def _choose_splits(self, names: Iterable[str]) -> None:
        """Choose the repositories of val."""
        share = self._source.seeded_val_frac
        if share is not None:
            ordered = sorted({*names})
            is_val = val_mask(len(ordered), val_frac=share, seed=self._context.seed)
            self._splits = dict(zip(ordered, np.where(is_val, "val", "train").tolist(), strict=True))

    def _joined(self, repository: str, files: Iterable[_CodeText]) -> Iterator[Document]:
        """Yield the documents of a repository."""
        source = self._source
        with SpooledTemporaryFile(max_size=_MEMORY_BYTES, prefix="niels-cache-") as spool:
            imports, columns = dict[str, Sequence[Import]](), dict[str, Mapping[str, Any]]()
            spooled = dict[str, tuple[int, int]]()  # the start and the size of each text
            copies = self._copies.start(repository)

            def text_of(path: str) -> str:
                start, size = spooled[path]
                spool.seek(start)
                return spool.read(size).decode(errors="surrogatepass")

            for each in files:
                if each.path not in imports:
                    if not is_license_text(each.path):  # which unrelated repositories share
                        copies.add(each.path, each.text)
                    imports[each.path] = imports_of(each.path, each.text, each.language)
                    columns[each.path] = each.columns
                    text = f"{_filled(source.file_start, each.columns)}{each.text}{source.file_end}"
                    spooled[each.path] = spool.tell(), spool.write(text.encode(errors="surrogatepass"))
                else:
                    self._drop("same_path", f"{repository}/{each.path}")
            if source.fork_share is not None and (original := copies.original(source.fork_share)):
                self._report.drop_row(f"{DROPPED}:fork", repository, count=len(imports))
                old = self._report.facts.get("forks", {})
                if len(old) < _NAMED_REPOSITORIES:
                    self._report.facts["forks"] = {**old, repository: f"copy of {original}"}
                return
            copied = copies.end()
            for path in copied if source.copies == "drop" else ():
                self._drop("copy", f"{repository}/{path}")
                del imports[path]
            start = _filled(source.repository_start, {"repo": repository})
            ordered = ((path, text_of(path)) for path in import_order(imports))
            for part, (text, paths) in enumerate(join_files(ordered, start=start, max_characters=source.max_characters)):
                languages = [str(columns[path]["language"]) for path in paths]
                values = {
                    "repo": repository,
                    "files": paths,
                    "commit": columns[paths[0]]["commit"],
                    "license": _of_all([columns[path]["license"] for path in paths]),
                    "language": max(sorted({*languages}), key=languages.count),
                }
                kept = source.kept_of(values, repository, part)
                yield Document(text, f"{repository}#{part}", repository, part, repository, self._splits.get(repository), kept)

    def parquet_documents(self) -> Iterator[list[Document]]:
        """Yield the documents of Parquet files."""
        found = self._source.input_files()
        fields = _ParquetFields(self._source, found)
        if self._source.sample_by == "file":
            self._choose_splits(self._repositories_in(found, fields) if self._source.seeded_val_frac else ())
            files = FilePass(self._files_of_pass(lambda: found), self._context)
            yield from batched(self._row_files(files, fields), files)
            return
        names = set[str]()
        rows = sorted_rows(self._rows_by_repository(found, fields, names))
        first = next(rows, None)  # then all names are known
        self._choose_splits(names)
        if first is not None:
            yield from batched(self._joined_rows(first, rows))

    def _repositories_in(self, found: Sequence[SourceFile], fields: "_ParquetFields") -> Iterator[str]:
        for file in found:
            for row, values in parquet_rows(file, columns=[fields.repo]):
                yield fields.repository(values, file.name, row)

    def _row_files(self, files: FilePass, fields: "_ParquetFields") -> Iterator[Document]:
        source = self._source
        for file in files.files():
            for row, values in parquet_rows(file, files.position, source.text_options, columns=fields.columns):
                if (found := self._row(file.name, row, values, fields)) is not None:
                    repository = found.columns["repo"]
                    split = self._splits.get(repository) if self._splits else None
                    source_id = row_id(values.get(source.id_field or "id"), file.name, row)
                    kept = source.kept_of(found.columns, file.name, row)
                    yield Document(found.text, source_id, file.name, row, found.path, split, kept)

    def _row(self, file: str, row: int, values: dict[str, Any], fields: "_ParquetFields") -> _CodeText | None:
        repository = fields.repository(values, file, row)
        self._report.split = self._splits.get(repository)
        text, path = values.get(fields.text), valid_unicode(str(values.get(fields.path) or ""))
        replaced = self._decoding.count_row(file, values, lambda each: [each.get(fields.text)])
        if problem := text_problem(text):
            if problem == "empty":
                return self._drop(problem, file, row)
            self._report.drop_row(problem, file, row)
            return None
        assert isinstance(text, str)
        if not self._decoding.admits(file, text, replaced=replaced, row=row):
            return None
        if len(text) > self._source.max_file_bytes or len(text.encode()) > self._source.max_file_bytes:
            return self._drop("too_large", file, row)
        language = self._languages.language_of(path, text)
        own = {name: value for name, value in values.items() if name != fields.text}
        columns = {**own, "repo": repository, "commit": own.get("commit")}
        return self._admitted(text, path, file, row, language.name if language else None, lambda: fields.license(values), columns)

    def _rows_by_repository(self, found: Sequence[SourceFile], fields: "_ParquetFields", names: set[str]) -> Iterator[Any]:
        for number, file in enumerate(found):
            for row, values in parquet_rows(file, None, self._source.text_options, columns=fields.columns):
                names.add(fields.repository(values, file.name, row))
                if (each := self._row(file.name, row, values, fields)) is not None:
                    repository, license = each.columns["repo"], each.columns["license"]
                    yield (repository, each.path, number, row), [each.text, each.language, license, each.columns["commit"]]

    def _joined_rows(self, first: Any, rows: Iterator[Any]) -> Iterator[Document]:
        def chained() -> Iterator[Any]:
            yield first
            yield from rows

        for repository, group in groupby(chained(), key=lambda row: row[0][0]):
            files = (
                _CodeText(text, key[1], language, dict(zip(COLUMNS, (language, license, key[1], key[0], commit), strict=True)))
                for key, (text, language, license, commit) in group
            )
            yield from self._joined(repository, files)


class _ParquetFields:
    """The columns of Parquet files.

    Args:
        source: The table.
        found: The files, the first of which decides.

    Raises:
        NielsCacheError: If a column is missing.
    """

    def __init__(self, source: Code, found: Sequence[SourceFile]) -> None:
        from niels_cache_assets.sources.reading.parquet_files import open_parquet

        with open_parquet(found[0]) as parquet:
            known = [*parquet.columns]
        name = found[0].name

        def choose(key: str, *, is_needed: bool = True) -> str:
            choices = [getattr(source, key)] if getattr(source, key) else _FIELDS[key]
            chosen = next((each for each in choices if each in known), "")
            if not chosen and (is_needed or getattr(source, key)):
                raise NielsCacheError(f"{name}: no column {' or '.join(choices)}; set {key} to one of: {', '.join(known)}")
            return chosen

        self.text, self.path, self.repo = choose("text_field"), choose("path_field"), choose("repo_field")
        self.licenses = choose("licenses_field", is_needed=False)
        own = {*source.keep, *(source.condition.columns if source.condition else ())} - {*COLUMNS, "files"}
        if missing := [each for each in sorted(own) if each not in known]:
            raise NielsCacheError(f"{name}: no column {missing[0]!r}, which keep or where names; columns: {', '.join([*COLUMNS, *known])}")
        more = {source.id_field or "id", "commit", self.licenses}
        self.columns = sorted({self.text, self.path, self.repo, *own, *more} & {*known})

    def repository(self, values: Mapping[str, Any], file: str, row: int) -> str:
        """Return the repository of a row.

        Raises:
            NielsCacheError: If the row has none.
        """
        found = values.get(self.repo)
        if not isinstance(found, str) or not found:
            raise NielsCacheError(f"{file}: row {row}: the column {self.repo!r} names no repository; set repo_field, or leave the row out")
        return valid_unicode(found)

    def license(self, values: Mapping[str, Any]) -> str | None:
        """Return the licence of a row, which all of its licences hold for, or None if one is unknown."""
        found = values.get(self.licenses) if self.licenses else None
        named = [found] if isinstance(found, str) else found or []
        known = [expression(each) if isinstance(each, str) else None for each in named]
        return joined(filter(None, known)) if None not in known else None


def _filled(template: str, columns: Mapping[str, Any]) -> str:
    """Return a template with the values of columns in place of their names in braces, in one pass."""
    parts = template.split("{")
    found = [parts[0]]
    for part in parts[1:]:
        name, brace, rest = part.partition("}")
        found.append(f"{columns[name] or 'unknown'}{rest}" if brace and name in columns else "{" + part)
    return "".join(found)


def _of_all(licenses: Sequence[str | None]) -> str | None:
    return joined(filter(None, licenses)) if None not in licenses else None
