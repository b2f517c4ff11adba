"""Sources that are the user's own code: `source = "module:name"`, or the name of an entry point of the group `niels_cache.sources`.

    a function    def documents(file, *, language="en"): ...      yields the documents of one file, or of one numbered item
    a class       __init__ takes the settings, and its method `documents` is such a function
    a kind        a subclass of PretrainSource, with everything that the kinds in this folder have

The parameters after the first are keys of the table, with their types and defaults. A position is a file or item, and the number of its
documents that were read, so a pass that resumes there runs the function for this file again and skips them. A data set in parts divides
files, or items. What the code is counts in the fingerprint (`base/user_code.py`).
"""

import inspect
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, create_model, model_validator

from niels_cache_assets.base.documents import Document
from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.base.user_code import code_identity, describe_error, load_code
from niels_cache_assets.sources.errors import first_line, without_secrets
from niels_cache_assets.sources.reading.file_source import GroupedFiles
from niels_cache_assets.sources.reading.files import SourceFile, files_digest
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.rows import batched, row_id, row_title
from niels_cache_assets.sources.types import ConfigPath, PretrainSource, Siblings, Source, StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS

GROUP = "niels_cache.sources"


class OwnCode(Source):
    """A table whose kind is the user's code."""

    _code: ClassVar[Callable[..., Any]]
    _folder: ClassVar[str]  # of the configuration, in which modules are found

    def identity(self) -> Identity:
        return super().identity() | {"code": code_identity(self._code, {})}

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"code": code_identity(self._code, {})}

    def __reduce__(self) -> tuple[Any, ...]:  # its class is in no module
        return _restore, (self.source, self._folder, self.__getstate__())


class _Item(SourceFile):
    """A numbered item, which is no file."""

    def size(self) -> int:
        return 1  # so that parts have the same number of items

    def digest(self) -> str:
        return ""


class FunctionSource(GroupedFiles):
    """Documents of a function. Give `files` or `items`."""

    files: list[ConfigPath] = Field([])
    """Globs of the files; the function gets one after the other"""
    items: PositiveInt | None = None
    """Number of items, without `files`; the function gets their numbers, from 0"""

    _code: ClassVar[Callable[..., Any]]
    _settings: ClassVar[tuple[str, ...]]

    @model_validator(mode="after")
    def _files_or_items(self) -> Self:
        if bool(self.files) is (self.items is not None):
            raise ValueError("give files, or items (a number)")
        if self.added and self.items:
            raise ValueError("added adds files; raise items, or make a data set of the new ones")
        return self

    def groups(self) -> list[list[SourceFile]]:
        if self.items:
            return [[_Item("", str(number)) for number in range(self.items)]]
        return super().groups()

    def readable_files(self) -> list[SourceFile]:
        return self.input_files() if self.items else super().readable_files()

    def revision(self, siblings: Siblings) -> str | None:
        return files_digest(self.every_file())

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        files = FilePass(self.files_of(context), context, notes_empty=not self.items)
        return batched(self._documents(files, context), files)

    def _documents(self, files: FilePass, context: StreamContext) -> Iterator[Document]:
        code, read, settings = self._code, None, {name: getattr(self, name) for name in self._settings}
        for file in files.files():
            start, position = files.position.row, files.position
            try:
                read = read or (code(**settings).documents if isinstance(code, type) else partial(code, **settings))
                found = read(int(file.name) if self.items else file)
                for row, given in enumerate([found] if isinstance(found, str | Document) else found):
                    if row < start:
                        continue
                    document = _as_document(given, file.name, row)
                    position.row = row + 1
                    if document.text.strip():
                        yield document
                    else:
                        context.report.drop_row("empty", file.name, row)
            except NielsCacheError:
                raise
            except Exception as error:
                where = f"{file.name}: row {position.row}: {self.source}"
                raise NielsCacheError(f"{where} raised {without_secrets(describe_error(error, __file__))}; correct it") from error


def _as_document(given: Any, file: str, row: int) -> Document:
    """Return what a function has given as a document of this row.

    Raises:
        TypeError: If it is no text and no document.
    """
    document = Document(given) if isinstance(given, str) else given
    if not isinstance(document, Document) or not isinstance(document.text, str) or document.split not in (None, *SPLITS):
        raise TypeError(f"{given!r:.80} is neither text nor a Document with text (and, with a split, that of train or val)")
    source_id = row_id(document.source_id or None, file, row)
    return Document(document.text, source_id, file, row, row_title(document.title), document.split)


def is_own(name: str) -> bool:
    """Return whether a name of a source is a path, or the name of an entry point."""
    return ":" in name or name in entry_points(group=GROUP).names


def own_kind(name: str, *, folder: str, where: str) -> type[PretrainSource]:
    """Return the schema of the tables with this `source`.

    Args:
        name: `module:name`, or the name of an entry point.
        folder: The folder of the configuration.
        where: What messages begin with.

    Raises:
        NielsCacheError: If there is no such code, or if its parameters cannot be keys.
    """
    code = load_code(name, group=GROUP, folder=folder, where=where)
    try:
        return _kind_of(code, name, folder)
    except Exception as error:
        raise NielsCacheError(f"{where}: the parameters of {name!r} cannot be keys of a table: {first_line(error)}") from error


@cache  # tables of one kind have one class
def _kind_of(code: Callable[..., Any], name: str, folder: str) -> type[PretrainSource]:
    fields: dict[str, Any] = {}
    base: Any = code
    if not (isinstance(code, type) and issubclass(code, PretrainSource)):
        base = FunctionSource
        parameters = [*inspect.signature(code, eval_str=True).parameters.values()][not isinstance(code, type) :]
        if taken := [each.name for each in parameters if each.name in base.model_fields or hasattr(base, each.name)]:
            raise TypeError(f"{taken[0]!r} means something else in every table; rename the parameter")
        for each in parameters:
            kind = Any if each.annotation is each.empty else each.annotation
            fields[each.name] = (kind, ... if each.default is each.empty else each.default)
    create: Any = create_model  # called by this name, mypy takes the class for one of this module
    made = create(name, __base__=(OwnCode, base), **fields, source=(Literal[name], name))
    made._code, made._folder, made._settings = staticmethod(code), folder, tuple(fields)
    return made


def _restore(name: str, folder: str, state: Any) -> PretrainSource:
    kind = own_kind(name, folder=folder, where=name)
    table = kind.__new__(kind)
    table.__setstate__(state)
    return table
