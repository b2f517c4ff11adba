"""The rule that chooses the text column of data sets without `text_field`, and the recognition of columns that hold no text.

    first 256 rows of the first file --> columns of strings --> those that are not ids, addresses, ... --> `text`, or the only one

A column of ids, URLs, dates, hashes, labels, languages or paths is recognized by its name or by its values. If the rows are ambiguous, the
rule raises an error, because a wrong column would produce a cache of ids.

The rule is applied once per build, which costs the first rows of a file, and for Parquet without a column `text` the first row group. This
module opens no file.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from niels_cache_assets.base.documents import SourceReport
from niels_cache_assets.sources.reading.encodings import decoding_warning
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_runtime.errors import NielsCacheError

TEXT = "text"
ROWS = 256  # number of rows from which the column is chosen
MISSING_FIELD_REASON = "missing_text_field"
TEXT_FIELD_FACT = "text_field"  # the fact of a pass that names the column; meta.json has it in `source`
FILES_WITHOUT_FACT = "files_without_text_field"

_WORDS = {
    "ids": "id ids uid uuid guid urn doi isbn issn pmid identifier docid docno rowid idx index key",
    "URLs": "url urls uri uris href link links permalink domain host hostname",
    "dates": "date dates datetime time timestamp created updated published modified year month day",
    "hashes": "hash hashes md sha crc digest checksum etag fingerprint",
    "labels": "label labels class category categories tag tags type kind split subset license licence",
    "languages": "lang language languages locale",
    "paths": "path paths filepath filename dir directory folder",
}
_KINDS = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+")

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = (
    r"(?:\d{4}[-/.]\d{1,2}(?:[-/.]\d{1,2})?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
    rf"|(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,? )?(?:\d{{1,2}}\.? {_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}))"
)
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[ap]m)?(?: ?(?:z|utc|gmt|[+-]\d{2}:?\d{2}))?"
_FORMS = {
    "URLs": r"(?:[a-z][a-z0-9+.-]*://|www\.)\S+|[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?:com|org|net|edu|gov|io|info|[a-z]{2})(?:/\S*)?",
    "dates": rf"{_DATE}(?:[t ]+{_TIME})?|{_TIME}",
    "hashes": r"(?:[a-z0-9]+[:-])?[0-9a-f]{16,}",
    "paths": r"(?:[a-z]:|\.{1,2}|~)?(?:[\\/][^\\/\r\n]+)+[\\/]?|[^\\/\r\n]+(?:[\\/][^\\/\r\n]+)+\.\w{1,5}",
    "languages": r"[a-z]{2,3}(?:[-_][a-z]{2,4})?",
    "ids": r"[!-~]{1,128}|(?=[!-~]*\d)(?=[!-~]*[a-z])[a-z0-9+/=_-]+",  # a word of ASCII without blanks; encoded bytes of any length
}
_VALUE_FORMS = {kind: re.compile(form, re.IGNORECASE) for kind, form in _FORMS.items()}
_MAX_LABELS = 8  # a column holds labels if each value occurs at least this often on average,
_MIN_LABELS = 16  # in at least this many rows,
_LABEL_CHARACTERS = 64  # with at most this many characters
_MAX_PATH = 1024
_MAX_DAMAGED = 0.25  # share of damaged characters above which a value is binary data
_SAMPLE = 32  # characters
_MAX_SHOWN = 20


def kind_of_name(name: str) -> str | None:
    """Return the kind of non-text content ("ids", "URLs", ...) that the last word of a column's name indicates, or None."""
    words = _WORD.findall(name)
    return _KINDS.get(words[-1].lower()) if words else None


def kind_of_value(value: str) -> str | None:
    """Return the kind of non-text content ("ids", "URLs", ...) whose form a string has, or None."""
    value = value.strip()
    if "\0" in value or value.count("\ufffd") > _MAX_DAMAGED * len(value):
        return "binary data"
    if value[:1] + value[-1:] in ("[]", "{}"):
        with suppress(ValueError, RecursionError):
            json.loads(value)
            return "JSON"
    forms = _VALUE_FORMS.items()
    return next((kind for kind, form in forms if form.fullmatch(value) and (kind != "paths" or len(value) <= _MAX_PATH)), None)


class Column:
    """A column, described by its first values.

    Attributes:
        name: The name of the column.
        values: The values that are not None.
        holds_strings: Whether any value is a string.
        characters: The total length of all strings that are not blank.
        kind: The kind of non-text content, by name or by values: "ids", "URLs", "dates", "hashes", "labels", "languages", "paths", "JSON",
            "binary data", or "no text" if no value is a string with visible characters. None if the column may hold text.
        is_mixed: Whether most values, but not all, have the form of non-text content.
        inner: The number of characters of the strings inside objects and lists, by path.
    """

    def __init__(self, name: str, values: Iterable[Any]) -> None:
        self.name = name
        self.values = [value for value in values if value is not None]
        strings = [value for value in self.values if isinstance(value, str)]
        texts = [value for value in strings if value and not value.isspace()]
        self.holds_strings = bool(strings)
        self.characters = sum(map(len, texts))
        kinds = [kind_of_value(value) for value in texts]
        found = [kind for kind in kinds if kind is not None]
        self.is_mixed = len(texts) / 2 < len(found) < len(texts)
        self.kind = kind_of_name(name) or ("no text" if not texts else None)
        if self.kind is None and len(found) == len(texts):
            self.kind = max(dict.fromkeys(found), key=found.count)
        is_short = max(map(len, texts), default=0) <= _LABEL_CHARACTERS
        if self.kind is None and is_short and len(texts) >= _MIN_LABELS and len({*texts}) * _MAX_LABELS <= len(texts):
            self.kind = "labels"
        self.inner: dict[str, int] = {}
        for value in self.values:
            for path, size in _inner(value, name):
                self.inner[path] = self.inner.get(path, 0) + size

    def shown(self, *, with_sample: bool = True) -> str:
        """Return the column and its content for a message.

        Args:
            with_sample: Whether to show the first value.
        """
        if not self.values:
            return f"{self.name} (null)"
        value = self.values[0]
        if isinstance(value, str):
            value = next((each for each in self.values if isinstance(each, str) and each.strip()), value)
            kind = [] if self.kind in (None, "no text") else [self.kind]
            content = ", ".join([*([repr(value if len(value) <= _SAMPLE else f"{value[:_SAMPLE]}…")] if with_sample else []), *kind])
        elif isinstance(value, Mapping):
            content = f"an object with {', '.join(map(str, [*value][:_MAX_SHOWN])) or 'nothing'}"
        elif isinstance(value, list):
            content = "a list"
        else:
            content = f"{value!r:.{_SAMPLE}}" if with_sample else "no string"
        return f"{self.name} ({content})" if content else self.name


def _inner(value: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yield (path, characters) for each text inside an object or a list."""
    if isinstance(value, list):
        items: list[tuple[str, Any, str | None]] = [(f"{path}[]", inner, None) for inner in value]
    else:
        items = [(f"{path}.{name}", inner, kind_of_name(name)) for name, inner in value.items()] if isinstance(value, Mapping) else []
    for inner_path, inner, kind in items:
        if not isinstance(inner, str):
            yield from _inner(inner, inner_path)
        elif isinstance(value, list) or (kind is None and kind_of_value(inner) is None):
            yield inner_path, len(inner)


def find_text_column(names: Iterable[str]) -> str | None:
    """Return the name that equals `text`, or the only one that does so if case is ignored, or None."""
    alike = [name for name in names if name.lower() == TEXT]
    return TEXT if TEXT in alike else alike[0] if len(alike) == 1 else None


def nested_value(value: Any, path: str) -> Any:
    """Return the text at a path inside a row, such as `data.content` or `messages[].content`. None if it is missing.

    The texts of a list are joined by a blank line, without those that are missing or null. A value that is no text is returned unchanged.
    """
    if isinstance(value, list):
        found = [text for item in value if (text := nested_value(item, path)) is not None]
        return "\n\n".join(found) if {*map(type, found)} == {str} else found or None
    if not path:
        return value
    name, _, rest = path.partition(".")
    return nested_value(value.get(name.rstrip("[]")), rest) if isinstance(value, Mapping) else None


def require_field(field: str, names: Iterable[str], where: str, *, key: str | None = "text_field") -> None:
    """Check that a field is among the fields of the rows.

    Args:
        field: The field.
        names: The fields of the rows.
        where: The name of the file, for the error.
        key: The configuration key that names the field, or None if the source has no such key.

    Raises:
        NielsCacheError: If the field is missing.
    """
    if field not in (names := list(dict.fromkeys(names))):
        advice = f"set {key} to one of" if key else "the fields are"
        raise NielsCacheError(f"{where}: no field {field!r}; {advice}: {', '.join(names) or 'none'}")


class UnclearFieldError(NielsCacheError):
    """Rows that do not determine which field holds the text.

    Attributes:
        names_only: The message without samples of values.
    """

    def __init__(self, message: str, names_only: str) -> None:
        super().__init__(message)
        self.names_only = names_only


@contextmanager
def errors_without_samples() -> Iterator[None]:
    """Remove the samples from an UnclearFieldError, because the logs of builds contain no text of documents."""
    try:
        yield
    except UnclearFieldError as error:
        raise NielsCacheError(error.names_only) from None


def choose_text_field(rows: Sequence[Mapping[str, Any]], where: str, *, key: str | None = "text_field") -> str:
    """Return the field that holds the text of these rows.

    Args:
        rows: The first `ROWS` rows of the first file with rows. Their strings are decoded; U+FFFD stands for damaged bytes.
        where: The name of the file, for the error.
        key: The configuration key that names the field, or None if the source has no such key.

    Raises:
        UnclearFieldError: If no field or more than one field may hold the text. The message lists the fields with samples.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    if (text := find_text_column(names)) is not None:
        return text
    columns = [Column(name, [row.get(name) for row in rows]) for name in names]
    candidates = [column for column in columns if column.holds_strings and column.kind is None]
    inner = {path: size for column in columns for path, size in column.inner.items()}
    largest = max(inner, key=inner.__getitem__, default=None)
    if len(candidates) == 1 and not candidates[0].is_mixed and (largest is None or inner[largest] <= candidates[0].characters):
        return candidates[0].name
    messages = (
        f"{where}: no field 'text', {_describe_ambiguity(columns, candidates, largest, with_samples)}; "
        f"{_advice(columns, candidates, largest, key)}"
        for with_samples in (True, False)
    )
    raise UnclearFieldError(*messages)


def _describe_ambiguity(columns: Sequence[Column], candidates: Sequence[Column], largest: str | None, with_samples: bool) -> str:
    """Return why the rows are ambiguous.

    Args:
        columns: All columns.
        candidates: The columns that may hold the text.
        largest: The path of the most text inside objects and lists, or None.
        with_samples: Whether to show values.
    """
    if len(candidates) > 1:
        why = f"and several fields may hold the text: {_format_columns(candidates, with_samples)}"
    elif candidates and candidates[0].is_mixed:
        why = f"and most values of {candidates[0].name!r} are not text"
    elif candidates:
        why = f"and more text is inside {largest!r} than in {candidates[0].name!r}"
    else:
        why = "and no field is certain to hold text"
    others = [column for column in columns if len(candidates) < 2 or column not in candidates]
    return f"{why} ({'other ' if len(candidates) > 1 else ''}fields: {_format_columns(others, with_samples)})" if others else why


def _advice(columns: Sequence[Column], candidates: Sequence[Column], largest: str | None, key: str | None) -> str:
    """Return what to do if the rows are ambiguous.

    Args:
        columns: All columns.
        candidates: The columns that may hold the text.
        largest: The path of the most text inside objects and lists, or None.
        key: The configuration key that names the field, or None if the source has no such key.
    """
    advice = []
    if largest is not None and len(candidates) < 2:
        advice.append(f"set {key} to {largest!r} to read the text inside" if key else f"copy the text inside {largest!r} to a field `text`")
    if key and largest and largest.endswith(("[].content", "[].value")):
        advice.append('if these are conversations, write [sft.NAME] with source = "chat_jsonl"')
    if any(column.holds_strings for column in columns):
        named = ", ".join(column.name for column in candidates)
        if key is None:
            advice.append("rename the field of the text to `text`, because this source has no key for it")
        elif len(candidates) > 1:
            advice.append(f"set {key} to one of: {named}")
        else:
            advice.append(f"set {key} if {f'{named!r}' if candidates else 'one of these fields'} is the text all the same")
    return "; or ".join(advice) or "add a field `text` with strings"


def _format_columns(columns: Sequence[Column], with_samples: bool) -> str:
    more = f", and {len(columns) - _MAX_SHOWN} more" if len(columns) > _MAX_SHOWN else ""
    return ", ".join(column.shown(with_sample=with_samples) for column in columns[:_MAX_SHOWN]) + more


def text_field_of_pass(
    source: PretrainSource, context: StreamContext, decide: Callable[[], str | None], *, given: str | None
) -> str | None:
    """Return the text field for a pass over `source`, and record it as a fact of the pass.

    It comes from the plan of a data set in parts, from an earlier pass of the build, or from `decide`. A field that is neither given nor
    `text` is logged.

    Args:
        source: The table.
        context: The pass.
        decide: Chooses the field from the data. Returns None if there are no rows.
        given: `text_field` of the table.

    Returns:
        The field, or None if `decide` finds no row.
    """
    key, report = source.model_dump_json(), context.report
    recorded = None if report.within else report.facts.get(TEXT_FIELD_FACT)
    field: str | None = context.text_field or recorded or context.decided.get(key)
    if field is None:
        with errors_without_samples():
            field = decide()
        if field is None:
            return None
        context.decided[key] = field
        if given is None and field != TEXT:
            context.log(chosen_note(field))
    if not report.within:
        report.facts[TEXT_FIELD_FACT] = field
    return field


def chosen_note(field: str) -> str:
    """Return the log line that names an automatically chosen field."""
    return f"text is read from the field {field!r} (no field 'text')"


def count_file_without(report: SourceReport, file: str, fields: Iterable[str]) -> None:
    """Record in the facts of a report that no row of a file has the text field.

    Args:
        report: The report of the pass.
        file: The name of the file.
        fields: The fields that the file has.
    """
    old = report.facts.get(FILES_WITHOUT_FACT, {"files": 0, "first": f"{report.within}{file}", "fields": ", ".join([*fields][:_MAX_SHOWN])})
    report.facts[FILES_WITHOUT_FACT] = {**old, "files": old["files"] + 1}  # a new object: positions of the stream still hold the old one
    if report.drops_of_files is not None:
        report.drops_of_files[file] = True


def with_text_field(source: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries `source` and `facts` of meta.json.

    A pass records the text field as a fact; meta.json has it in `source`.
    """
    named = {TEXT_FIELD_FACT: facts[TEXT_FIELD_FACT]} if TEXT_FIELD_FACT in facts else {}
    return {"source": {**source, **named}, "facts": {key: value for key, value in facts.items() if key != TEXT_FIELD_FACT}}


def pass_facts(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the passes that built a cache or corpus, from its meta.json.

    This is the inverse of `with_text_field`.
    """
    return {**meta["facts"], **text_field_fact(meta)}


def text_field_fact(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the fact that names the text field, from the meta.json of a cache or corpus. It is empty if no rows were read."""
    return {key: value for key, value in meta["source"].items() if key == TEXT_FIELD_FACT}


def reading_warning(meta: Mapping[str, Any]) -> str | None:
    """Return one line about what a build could not read as text, or None if there is nothing to report.

    This covers files without the text field and bytes that are invalid in their encoding.

    Args:
        meta: The meta.json of the build.
    """
    found = meta.get("facts", {}).get(FILES_WITHOUT_FACT)
    problems = []
    if found is not None:
        field = meta.get("source", {}).get(TEXT_FIELD_FACT, TEXT)
        many, name = found["files"] > 1, found["first"]
        of = f"{found['files']:,} files have" if many else f"{name} has"
        problems.append(
            f"{of} no field {field!r} in any row, so nothing of {'them' if many else 'it'} is in the data set "
            f"({f'the first is {name}, with ' if many else ''}fields: {found['fields'] or 'none'}); "
            f"rename the field, or make a data set of {'these files' if many else 'this file'}"
        )
    return "; ".join([*problems, *filter(None, [decoding_warning(meta)])]) or None
