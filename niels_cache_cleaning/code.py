"""Rules that find files which teach no programming, for the source `code` and as a step of any data set.

    vendored       copies of other projects, by a folder of the path, such as node_modules
    generated      files that a program wrote, by a note in the first lines, or by the name, such as poetry.lock
    minified       JavaScript and CSS without line ends
    data           JSON, XML and other data, unless it is short and mostly letters
    long_line      a line has more than `max_line_length` characters
    mean_line      lines have more than `max_mean_line_length` characters on average
    alphanumeric   fewer than `min_alphanumeric_share` of all characters are letters or digits

The last three are the filters of Codex (Chen et al. 2021, section 3.1), with the limits of the BigCode project's preprocessing: 1,000, 100
and 0.25. SantaCoder (Allal et al. 2023) and StarCoder (Li et al. 2023, section 3) used them on The Stack (Kocetkov et al. 2022). As there,
they are not applied to text with markup. Of data, StarCoder kept files of 50 to 5,000 characters that are at least half letters.

A document costs about a microsecond for each thousand characters.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from niels_cache_assets.base.documents import Document
from niels_cache_assets.dedup.hashing import PADDING
from niels_cache_assets.sources.reading.keep import kept_values
from niels_cache_assets.steps.step import Drop, step
from niels_cache_cleaning.code_languages import language_of
from niels_cache_runtime.errors import did_you_mean
from niels_cache_runtime.format.layout import Bytes, Ints

MEANINGS = {
    "vendored": "the path has a folder of copies of other projects",
    "generated": "a program wrote the file, by its first lines or its name",
    "minified": "JavaScript or CSS without line ends",
    "data": "JSON, XML or other data that is long, very short, or not mostly letters",
    "long_line": "a line is longer than `max_line_length` characters",
    "mean_line": "lines are longer than `max_mean_line_length` characters on average",
    "alphanumeric": "the share of letters and digits is below `min_alphanumeric_share`",
}
RULES = tuple(MEANINGS)

_VENDORED_NAMES = (
    "node_modules bower_components jspm_packages vendor vendors vendored _vendor _vendored third_party third-party thirdparty 3rdparty "
    "3rd_party extern externals godeps pods carthage site-packages"
)
_VENDORED = frozenset(_VENDORED_NAMES.split())
_GENERATED_NAMES = re.compile(
    r"(?:package-lock\.json|npm-shrinkwrap\.json|yarn\.lock|pnpm-lock\.yaml|poetry\.lock|uv\.lock|pdm\.lock|Pipfile\.lock|Cargo\.lock"
    r"|Gemfile\.lock|composer\.lock|go\.sum|flake\.lock|.*(?:_pb2(?:_grpc)?\.pyi?|\.pb\.(?:go|cc|h)|\.g\.dart|\.freezed\.dart"
    r"|\.designer\.cs|\.(?:js|css)\.map|_generated\.\w+|\.generated\.\w+))",
    re.IGNORECASE,
)
_GENERATED = re.compile(
    r"\bauto-?generated\b|\bautomatically generated\b|\bgenerated (?:automatically|by|from|with)\b.*|\bgenerated file\b|@generated\b"
    r"|\bdo not edit\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_STRING = r"""(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
_COMMENTS = {  # by whether lines end as in C, and not as in Python; texts in three quotes are comments of Python
    True: re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL),
    False: re.compile(rf"(?P<quotes>\"\"\"|\'\'\').*?(?P=quotes)|{_STRING}|#[^\n]*", re.DOTALL),
}
_ENDS_OF_C, _ENDS_OF_PYTHON = re.compile(r"[;{}][ \t]*$", re.MULTILINE), re.compile(r":[ \t]*$", re.MULTILINE)
_FIRST_LINES = 5
_FIRST_CHARACTERS = 2_000
_MINIFIED_NAME = re.compile(r".*[.-]min\.(?:js|mjs|css)", re.IGNORECASE)
_MINIFIED_LANGUAGES = ("javascript", "css")
_MINIFIED_MEAN = 110  # characters of a line
_DATA_CHARACTERS = range(50, 5_001)
_DATA_LETTERS = 0.5
_DELETE_OTHER_BYTES = bytes(byte for byte in range(128) if not chr(byte).isalnum())
_DELETE_NO_LETTERS = bytes(byte for byte in range(128) if not chr(byte).isalpha())


class Limits(NamedTuple):
    """The limits of the rules.

    Attributes:
        max_line_length: Most characters of a line.
        max_mean_line_length: Most characters of a line on average.
        min_alphanumeric_share: Smallest share of letters and digits among all characters.
    """

    max_line_length: int = 1_000
    max_mean_line_length: float = 100
    min_alphanumeric_share: float = 0.25

    def require_valid(self) -> None:
        """Raise ValueError for a limit that is no number, or that the source `code` refuses."""
        for name, value in self._asdict().items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} is {value!r}; set it to a number")
        if self.max_line_length <= 0 or self.max_mean_line_length <= 0 or not 0 <= self.min_alphanumeric_share <= 1:
            raise ValueError(f"the limits are {self._asdict()}; lengths are above 0, and a share is from 0 to 1")


def problem_of(path: str, text: str, rules: Collection[str], limits: Limits) -> tuple[str, float | None] | None:
    """Return the first of the rules that a file breaks, and the measured value if there is one. Return None if it breaks none.

    Args:
        path: The path in the repository.
        text: The text.
        rules: Names of rules.
        limits: Their limits.
    """
    return next(((rule, value) for rule in RULES if rule in rules and (value := _broken(rule, path, text, limits)) is not False), None)


def require_rules(rules: Collection[str]) -> None:
    """Raise ValueError for a name that is no rule."""
    for rule in rules:
        if rule not in RULES:
            raise ValueError(f"rules has {rule!r}; {did_you_mean(rule, RULES, 'choose from ' + ', '.join(RULES))}")


def _broken(rule: str, path: str, text: str, limits: Limits) -> float | bool | None:
    """Return False if a file does not break a rule, otherwise the measured value, or None if nothing is measured."""
    *folders, name = path.split("/")
    if rule == "vendored":
        return None if any(folder.lower() in _VENDORED for folder in folders) else False
    if rule == "generated":
        head = "\n".join(text[:_FIRST_CHARACTERS].split("\n", _FIRST_LINES)[:_FIRST_LINES])
        return None if _GENERATED_NAMES.fullmatch(name) or _GENERATED.search(head) else False
    language = language_of(path, text)
    kind = language.kind if language else None
    if rule == "minified":
        if _MINIFIED_NAME.fullmatch(name):
            return None
        return _over(mean_line(text), _MINIFIED_MEAN) if language and language.name in _MINIFIED_LANGUAGES else False
    if rule == "data":
        if kind != "data":
            return False
        return None if len(text) not in _DATA_CHARACTERS or share_of(text, letters=True) < _DATA_LETTERS else False
    if kind == "markup":
        return False
    if rule == "long_line":
        return _over(longest_line(text), limits.max_line_length)
    if rule == "mean_line":
        return _over(mean_line(text), limits.max_mean_line_length)
    share = share_of(text)
    return share if share < limits.min_alphanumeric_share else False


def _over(value: float, limit: float) -> float | bool:
    return value if value > limit else False


def longest_line(text: str) -> int:
    """Return the number of characters of the longest line."""
    return max(map(len, text.splitlines()), default=0)


def mean_line(text: str) -> float:
    """Return the number of characters of a line on average, without line ends."""
    lines = text.splitlines()
    return sum(map(len, lines)) / len(lines) if lines else 0.0


def share_of(text: str, *, letters: bool = False) -> float:
    """Return the share of letters and digits, or of letters, among all characters. It is 0 for an empty text."""
    if not text:
        return 0.0
    if text.isascii():
        return len(text.encode().translate(None, _DELETE_NO_LETTERS if letters else _DELETE_OTHER_BYTES)) / len(text)
    return sum(map(str.isalpha if letters else str.isalnum, text)) / len(text)


def compared(texts: Sequence[str]) -> tuple[list[bytes], Bytes, Ints]:
    """Return what deduplication compares with `units = "code"`.

    Words are runs of letters, digits and underscores, with their case, as in the near-deduplication of The Stack (Kocetkov et al. 2022).
    So code that differs in blanks, indentation, signs and quotes alone is near, and never equal.

    Args:
        texts: The texts.

    Returns:
        For each text, the bytes by which exact duplicates are found: the text, with line ends as line feeds, after a byte that no canonical
        text of prose begins with. Then the words of all texts in the form of canonical texts (dedup/signatures.py), and the end of each.
    """
    contents = [b"\1" + text.replace("\r\n", "\n").encode("utf-8", "surrogatepass") for text in texts]
    words = [" ".join(_WORD.findall(text)).encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([len(each) + 1 for each in words], dtype=np.int64) - 1
    return contents, np.frombuffer(b" ".join(words) + b" " * (1 + PADDING), dtype=np.uint8).copy(), ends


def without_comments(text: str) -> str:
    """Return code without its comments and, if its lines end as in Python, without texts in three quotes.

    No language is known, so whether more lines end with ; { } or with : decides between comments of C and of Python.
    """
    comments = _COMMENTS[len(_ENDS_OF_C.findall(text)) > len(_ENDS_OF_PYTHON.findall(text))]
    return comments.sub(lambda match: match["string"] or " ", text)


def with_and_without_comments(text: str) -> str:
    """Return code, and then the same code without its comments, so that both forms are found in it."""
    return f"{text}\n{without_comments(text)}"


@step(version=1, identity="version")
class CodeRules:
    """The rules as a step, for data sets of files from any source.

    The path is the kept column `path`, and without it the file of the document.

    Args:
        rules: Names of rules; by default all.
        **limits: Limits of the rules.
    """

    def __init__(self, rules: Collection[str] = RULES, **limits: float) -> None:
        require_rules(rules)
        self._rules, self._limits = frozenset(rules), Limits(**limits)  # type: ignore[arg-type]
        self._limits.require_valid()

    def __call__(self, document: Document) -> Document | Drop:
        path = _path_in(document.kept) or document.file
        found = problem_of(path, document.text, self._rules, self._limits)
        return document if found is None else Drop(*found)


def _path_in(kept: str | None) -> str | None:
    values: Mapping[str, object] = kept_values(kept)
    path = values.get("path")
    return path if isinstance(path, str) else None
