"""Decoding of files: the keys of encodings and limits, readers of lines and whole files, and the counts of a pass.

Bytes that are invalid in the encoding become U+FFFD (as with Python's "replace"), and are counted. A U+FFFD in the file itself must not be
counted, so the error handler first puts a mark in place of the bytes. A mark is a lone surrogate that holds the number of bytes. No decoder
produces a lone surrogate from a file. A reader returns the text without marks and, if there are marks, also the marked text.

A byte order mark takes precedence over `encoding`. Valid text is decoded strictly, at full speed; only text with errors is decoded again.
Lines of UTF-8 are split before decoding, so a pass can seek to a line. Lines of other encodings are split after decoding, so a pass that
starts in the middle of such a file decodes all bytes before its start.

What a document is, is up to the sources.
"""

from __future__ import annotations

import codecs
import difflib
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from encodings.aliases import aliases
from typing import IO, Any, NamedTuple, NoReturn

from pydantic import Field, PositiveInt, field_validator

from niels_cache_assets.base.wording import by_count
from niels_cache_assets.sources.reading.compressed import OnDamage, is_damaged
from niels_cache_assets.sources.reading.files import SourceFile, files_digest, first_bytes, open_bytes
from niels_cache_assets.sources.reading.positions import FilePosition
from niels_cache_assets.sources.types import Siblings, Source, StreamContext
from niels_cache_runtime.errors import NielsCacheError

UTF8 = "utf-8"
NOT_TEXT = "not_text"
REPLACED = "replaced"
MAX_REPLACED_SHARE = 0.01
MAX_DOCUMENT_MIB = 256
MAX_DOCUMENT_BYTES = MAX_DOCUMENT_MIB << 20
MARKS = "niels_cache_marks"  # the error handler that leaves marks
MARK = re.compile("[\udc01-\udcff]")

Values = dict[str, Any]
"""The values of a row, by column."""

RowStream = Iterator[tuple[int, Values]]
"""Rows of a file: the number of each row, from 0, and its values."""

TextStream = Iterator[tuple[int, str, str | None]]
"""Texts of a file: the number of each text, from 0, the text, and the marked text, or None if no byte was replaced."""

SET_ENCODING = 'set the key encoding to the encoding of the files, such as encoding = "latin-1"'
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # must come before UTF-16, whose byte order mark has the same first bytes
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_BOM = "\ufeff"
_BLOCK = 1 << 18
_NAMED_FILES = 20  # facts name this many files with the highest counts, and the current file
_SHOWN_FILES = 3
_LONGEST_LITERAL = 16  # characters that the end of a buffer may cut from a name or number of JSON
_GAP = re.compile(r"[ \t\r\n,]*")  # between JSON values
_JSON_MARKS = [*map(chr, (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF8FF)))]  # noncharacters, then private ones


class TextOptions(NamedTuple):
    """How a reader reads the text of a file.

    Attributes:
        encoding: The encoding, unless there is a byte order mark. In Parquet, it applies only to strings that are not UTF-8.
        limit: The maximum size of a line, row or whole file in bytes, after decompression.
        on_damage: Called for damaged compressed data, instead of raising; see `open_bytes`.
    """

    encoding: str = UTF8
    limit: int = MAX_DOCUMENT_BYTES
    on_damage: OnDamage | None = None


PLAIN = TextOptions()


class DecodesText(Source):
    """Keys of the kinds that read files: the encoding, and the maximum size of one document, line or whole file.

    Without a limit, one line of a few gigabytes takes all the memory of a machine, and a small compressed file may contain such a line.
    Readers hold at most one block more than the limit. The parsed JSON of a line may take about twenty times the bytes of the line.

    Rows of a Parquet file are in memory before they are rejected, together with few other rows (`parquet_files.py`).
    """

    never_counts = frozenset({"max_document_mib"})  # a build may fail because of this limit, but no byte changes

    max_document_mib: PositiveInt = MAX_DOCUMENT_MIB
    """Maximum size in MiB of a document or line; the build fails if it is exceeded"""
    encoding: str = UTF8
    """Python name of the encoding, which a byte order mark overrides; for Parquet, it applies only to non-UTF-8 strings"""
    max_replaced_share: float = Field(MAX_REPLACED_SHARE, ge=0, le=1, strict=False)
    """Maximum share of replacement characters; documents above it, or with a NUL, are dropped (`not_text`)"""
    _reads_files: bool = True

    def describe(self) -> dict[str, Any]:
        """Return the description that every source has, with the encoding if it is not the default."""
        return {**super().describe(), **({"encoding": self.encoding} if self.encoding != UTF8 else {})}

    @property
    def reads_files(self) -> bool:
        """Whether the user's files are read, which may hold anything. Documents of the hub are counted and never rejected."""
        return self._reads_files

    @property
    def max_document_bytes(self) -> int:
        return self.max_document_mib << 20

    @property
    def text_options(self) -> TextOptions:
        return TextOptions(self.encoding, self.max_document_bytes)

    @field_validator("encoding")
    @classmethod
    def _require_text_encoding(cls, value: str) -> str:
        """Return Python's canonical name of a text encoding.

        Raises:
            ValueError: If there is no such text encoding. The message suggests the nearest name.
        """
        if not is_text_encoding(value):
            names = {name.replace("_", "-") for name in (*aliases, *aliases.values())}
            choices = sorted({UTF8, "latin-1", *filter(is_text_encoding, names)})
            near = difflib.get_close_matches(value.lower().replace("_", "-"), choices, n=1)
            raise ValueError(f"is not a text encoding of Python; did you mean {near[0] if near else UTF8!r}?")
        codec = codecs.lookup(value).name
        return UTF8 if codec == "utf-8-sig" else codec

    def revision(self, siblings: Siblings) -> str | None:
        return files_digest(self.every_file())


def is_text_encoding(name: str) -> bool:
    """Return whether a codec decodes bytes to text, with marks and block by block. The codecs rot13 and base64 do not."""
    try:
        encoding = encoding_at(b"", codecs.lookup(name).name)
        codecs.getincrementaldecoder(encoding)(MARKS).decode(b"\x00\xff", final=True)
        b"\x00\xff".decode(encoding, MARKS)
    except (LookupError, ValueError, TypeError, AssertionError):
        return False
    return True


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return chr(0xDC00 + max(1, min(error.end - error.start, 255))), error.end


codecs.register_error(MARKS, _mark)


class Damage(NamedTuple):
    """Replaced bytes of a text.

    Attributes:
        size: The number of replaced bytes.
        characters: The number of characters in their place.
    """

    size: int
    characters: int


def damage_of(marked: str) -> Damage:
    """Return the numbers of replaced bytes and of characters in their place, from the marks in a text."""
    marks = MARK.findall(marked)
    return Damage(sum(ord(mark) - 0xDC00 for mark in marks), len(marks))


def unmarked(marked: str) -> str:
    """Return a marked text with U+FFFD in place of its marks."""
    return MARK.sub("\ufffd", marked)


def decode(data: bytes, encoding: str) -> tuple[str, str | None]:
    """Return (text, marked text). The marked text is None if no byte was replaced."""
    try:
        return data.decode(encoding), None
    except UnicodeDecodeError:
        marked = data.decode(encoding, MARKS)
        return unmarked(marked), marked


def encoding_at(head: bytes, encoding: str) -> str:
    """Return the encoding of the byte order mark at the start of `head`, or `encoding` if there is none.

    If `encoding` does not specify a byte order, its little-endian form is returned.
    """
    return next(
        (named for bom, named in _BOMS if head.startswith(bom)), {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(encoding, encoding)
    )


def encoding_of(stream: IO[bytes], encoding: str) -> str:
    """Return `encoding_at` of a newly opened stream, without consuming any byte."""
    return encoding_at(first_bytes(stream), encoding)


def refuse_length(where: str, limit: int) -> NoReturn:
    """Raise the error for a document or line of more than `limit` bytes."""
    size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit:,} bytes"
    raise NielsCacheError(f"{where}: is longer than {size}; remove it, or raise max_document_mib (it is held in memory)")


def read_whole(stream: IO[bytes], where: str, limit: int) -> bytes:
    """Return the rest of a stream.

    Args:
        stream: The stream.
        where: The name of the file, for the error.
        limit: The maximum size in bytes.

    Raises:
        NielsCacheError: If there are more than `limit` bytes.
    """
    blocks = []
    size = 0
    while block := stream.read(_BLOCK):
        blocks.append(block)
        size += len(block)
        if size > limit:
            refuse_length(where, limit)
    return b"".join(blocks)


def read_text(file: SourceFile, options: TextOptions = PLAIN) -> tuple[str, str | None]:
    """Return (text, marked text or None) of the whole file, as `decode` does.

    The byte order mark is removed. Line ends are not changed.

    Args:
        file: The file.
        options: How to read it.

    Raises:
        NielsCacheError: If the file has more than `limit` bytes.
    """
    with open_bytes(file, options.on_damage) as stream:
        data = read_whole(stream, file.name, options.limit)
    text, marked = decode(data, encoding_at(data[:4], options.encoding))
    return text.removeprefix(_BOM), None if marked is None else marked.removeprefix(_BOM)


def read_lines(stream: IO[bytes], position: FilePosition, where: str, options: TextOptions, *, is_start: bool = True) -> TextStream:
    """Yield (index from 0, line with its end, marked line or None), beginning at `position`.

    Before a line is yielded, `position` moves past it. No line includes the byte order mark, and only a line feed ends a line.

    Args:
        stream: A newly opened stream.
        position: Where to begin.
        where: The name of the file, for the error.
        options: How to read lines.
        is_start: Whether the stream begins at the start of the file. If False, it begins inside the file, after any byte order mark.

    Raises:
        NielsCacheError: If a line has more than `limit` bytes.
    """
    encoding, limit, _ = options
    encoding = encoding_of(stream, encoding) if is_start else encoding
    if encoding != UTF8:
        position.offset = position.offset_row = 0  # the byte offset of a line is unknown
        for index, decoded in enumerate(decoded_lines(stream, where, limit, encoding), position.seek(stream)):
            if index >= position.row:
                position.row = index + 1
                if not index:
                    decoded = decoded.removeprefix(_BOM)
                yield (index, unmarked(decoded), decoded) if MARK.search(decoded) else (index, decoded, None)
        return
    index = position.seek(stream)
    offset = position.offset
    while line := stream.readline(limit + 1):
        if len(line) > limit:
            refuse_length(f"{where}: line {index + 1}", limit)
        offset += len(line)
        index += 1
        if index > position.row:
            position.row = position.offset_row = index
            position.offset = offset
            if index == 1 and is_start:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield index - 1, *decode(line, UTF8)


def read_items(stream: IO[bytes], position: FilePosition, where: str, options: TextOptions) -> TextStream:
    """Yield (index from 0, JSON text, marked text or None) of the items of a JSON array, or of JSON values one after the other.

    The items before `position` are read again. About two items are in memory. An item that is already in memory may be longer than `limit`.
    A missing comma is no error; a missing end of the array is.

    Args:
        stream: A newly opened stream.
        position: Where to begin. Before an item is yielded, it moves past the item.
        where: The name of the file, for the error.
        options: How to read items.

    Raises:
        NielsCacheError: If an item is too long to be read, or if the text is not valid JSON.
    """
    position.seek(stream)
    find_end, index, start = json.JSONDecoder().raw_decode, 0, 0
    with _as_text(stream, encoding_of(stream, options.encoding), newline="") as text:
        buffer = text.read(_BLOCK).removeprefix(_BOM).lstrip()
        last = "]" if buffer.startswith("[") else ""
        buffer = buffer[len(last) :]
        while True:
            start = _GAP.match(buffer, start).end()  # type: ignore[union-attr]
            try:
                end = find_end(buffer, start)[1]
            except json.JSONDecodeError as error:
                if len(buffer) - start > options.limit:
                    refuse_length(f"{where}: item {index + 1}", options.limit)
                is_end = buffer[start:].rstrip() == last
                is_cut = is_end or error.pos > len(buffer) - _LONGEST_LITERAL or error.msg.startswith("Unterminated string")
                if is_cut and (more := text.read(max(_BLOCK, len(buffer) - start))):
                    buffer, start = buffer[start:] + more, 0
                    continue
                if is_end or is_damaged(stream):
                    return
                raise NielsCacheError(f"{where}: item {index + 1} is not valid JSON ({error.msg}); correct the file") from error
            except (RecursionError, ValueError):  # the caller cannot read the item either, and raises the error
                end = len(buffer)
            item, start, index = buffer[start:end], end, index + 1
            if len(item) > options.limit:
                refuse_length(f"{where}: item {index}", options.limit)
            if index > position.row:
                position.row = index
                yield (index - 1, unmarked(item), item) if MARK.search(item) else (index - 1, item, None)


def decoded_lines(stream: IO[bytes], where: str, limit: int, encoding: str) -> Iterator[str]:
    """Yield the rest of a stream as marked lines (see `decode`) with their ends.

    Args:
        stream: The stream.
        where: The name of the file, for the error.
        limit: The maximum size of a line in characters.
        encoding: The encoding.

    Raises:
        NielsCacheError: If a line has more than `limit` characters.
    """
    with _as_text(stream, encoding, newline="\n") as text:
        for number in itertools.count(1):
            line = text.readline(limit + 1)
            if len(line) > limit:
                refuse_length(f"{where}: line {number}", limit)
            if not line:
                return
            yield line


@contextmanager
def _as_text(stream: IO[bytes], encoding: str, *, newline: str) -> Iterator[io.TextIOWrapper]:
    """Decode a stream with marks, and leave it open."""
    text = io.TextIOWrapper(stream, encoding, MARKS, newline=newline)
    try:
        yield text
    finally:
        with suppress(ValueError):  # the stream is closed already
            text.detach()


class DamagedRow(dict[str, Any]):
    """A row with replaced bytes.

    Attributes:
        size: The number of replaced bytes.
        marked: The same row, with marks (characters) in their place.
        mark: A pattern that matches these marks.
    """

    def __init__(self, values: Values, marked: Values, mark: re.Pattern[str], size: int) -> None:
        super().__init__(values)
        self.marked, self.mark, self.size = marked, mark, size


def marked_json(text: str) -> tuple[Any, re.Pattern[str]]:
    """Return the value of a marked JSON text, and a pattern that matches the marks in the value.

    JSON may also escape surrogates, so each surrogate that is a mark is first replaced by another character.
    """
    lowered = text.lower()
    free = (mark for mark in _JSON_MARKS if mark not in text and f"\\u{ord(mark):04x}" not in lowered)
    mark = next(free, "\ufffd")
    return json.loads(MARK.sub(mark, text)), re.compile(mark)


class DecodingCounts:
    """Counts of replaced bytes, and of documents that are not text, for the report of a pass.

    Both are counted in total and per file. The facts of the report hold `replaced` {bytes, files, by_file} and `not_text` {documents,
    files, by_file} if the counts are not zero. `by_file` has the 20 files with the highest counts, and the last file that was read. `files`
    is correct only if files are read one after the other.
    """

    def __init__(self, source: DecodesText, context: StreamContext) -> None:
        self.encoding = source.encoding
        self._share, self._reads_files = source.max_replaced_share, source.reads_files
        self._report = context.report

    def count(self, file: str, damage: Damage) -> int:
        """Count the replaced bytes of a file, and return the number of characters in their place."""
        if damage.size:
            self._add(REPLACED, "bytes", file, damage.size)
        return damage.characters

    def count_marked(self, file: str, marked: str | None) -> int:
        return 0 if marked is None else self.count(file, damage_of(marked))

    def count_row(self, file: str, values: Values, texts: Callable[[Values], Iterable[Any]] = lambda _: ()) -> int:
        """Count the replaced bytes of a row.

        Args:
            file: The name of the file.
            values: The row.
            texts: Returns the texts of a row whose marks are counted. The default is none.

        Returns:
            The number of characters in place of replaced bytes in these texts.
        """
        if not isinstance(values, DamagedRow):
            return 0
        self._add(REPLACED, "bytes", file, values.size)
        return sum(len(values.mark.findall(text)) for text in texts(values.marked) if isinstance(text, str))

    def admits(self, file: str, *texts: str, replaced: int = 0, row: int | None = None) -> bool:
        """Return whether the texts of a document are text. If not, count the document as dropped.

        Args:
            file: The name of the file.
            *texts: The texts of the document.
            replaced: The number of characters in these texts that stand for replaced bytes.
            row: The row, or None if the file is one document.
        """
        if not self._reads_files:
            return True
        if (not replaced or replaced <= self._share * sum(map(len, texts))) and not any("\0" in text for text in texts):
            return True
        self._report.drop_row(NOT_TEXT, file, row)
        self._add(NOT_TEXT, "documents", file, 1)
        return False

    def _add(self, key: str, unit: str, file: str, count: int) -> None:
        """Add to the counts of the report.

        The values are always new objects, because positions of the stream (for the journal) still hold the old ones.
        """
        file = f"{self._report.within}{file}"
        old = self._report.facts.get(key, {unit: 0, "files": 0, "by_file": {}})
        by_file: dict[str, int] = dict(old["by_file"])
        is_new = file not in by_file
        if is_new and len(by_file) > _NAMED_FILES:
            del by_file[min(by_file, key=lambda name: (by_file[name], name))]
        by_file[file] = by_file.get(file, 0) + count
        self._report.facts[key] = {unit: old[unit] + count, "files": old["files"] + is_new, "by_file": by_file}


def decoding_warning(meta: Mapping[str, Any]) -> str | None:
    """Return one line about the replaced bytes of a build and the documents that it dropped as `not_text`, or None if there are none.

    Args:
        meta: The meta.json of the build.
    """
    facts, source = meta.get("facts", {}), meta.get("source", {})
    encoding = "of their encoding" if source.get("kind") in ("interleave", "warc") else source.get("encoding", UTF8)
    problems = []
    if REPLACED in facts:
        problems.append(f"{facts[REPLACED]['bytes']:,} bytes are not {encoding} and became U+FFFD ({_most_damaged(facts[REPLACED])})")
    if NOT_TEXT in facts:
        problems.append(f"documents dropped as not_text: {facts[NOT_TEXT]['documents']:,} ({_most_damaged(facts[NOT_TEXT])})")
    return f"{'; '.join(problems)}; {SET_ENCODING}, or remove them" if problems else None


def _most_damaged(counted: dict[str, Any]) -> str:
    by_file = by_count(counted["by_file"])
    named = ", ".join(f"{name}: {count:,}" for name, count in by_file[:_SHOWN_FILES])
    more = counted["files"] - min(len(by_file), _SHOWN_FILES)
    return f"{named}, and {more:,} more files" if more > 0 else named


def not_text_note(facts: dict[str, Any]) -> str:
    """Return a note for the error of a build without documents. It is empty if no document was dropped as `not_text`."""
    if NOT_TEXT not in facts:
        return ""
    return f"; not text: {_most_damaged(facts[NOT_TEXT])}; {SET_ENCODING}, or remove files that are not text"
