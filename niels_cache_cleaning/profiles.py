"""Steps that make the decisions of datatrove's English filters: Gopher's quality and repetition, C4, and FineWeb.

A profile is an entry of `steps`: `{ profile = "fineweb" }`. Its rules run in datatrove's order, and the first one that fails gives the
reason, with datatrove's name for it. With `splitter = "spacy"`, decisions, reasons and texts equal those of datatrove 0.10; the default
splitter finds nearly the same words in a tenth of the time (see `profile_words`). The result for a document depends only on its text.

The rules are those of Rae et al. 2021 (https://arxiv.org/abs/2112.11446, table A1), Raffel et al. 2020 (https://jmlr.org/papers/v21/20-074)
and Penedo et al. 2024 (https://arxiv.org/abs/2406.17557), with the limits and the order of comparisons of datatrove.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.measures import DocumentMeasures, Side
from niels_cache_assets.cleaning.report import CleaningReport
from niels_cache_assets.steps.step import Drop, step
from niels_cache_cleaning.measuring import limit_of
from niels_cache_cleaning.profile_words import SPLITTERS, Splitter, characters
from niels_cache_runtime.errors import NielsCacheError

_TERMINAL = (  # code points that may end a line of FineWeb, and are no letters of Gopher's words
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D6 17D9-17DA 1803 1809 "
    "1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049 2E2E 2E3C 2E53-2E54 3002 A4FF A60E-A60F "
    "A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 "
    "10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6 111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 "
    "115C9-115D7 11641-11642 1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 "
    "16B37-16B38 16B44 16E98 1BC9F 1DA88"
)
_PUNCTUATION = (  # further characters that are no letters of Gopher's words
    "0-8 B-1F 21-2F 3A-40 5B-60 7B-9F AB B4 BB 2013-2014 2019 201C-201E 2026 2236 2501 25BA 3001-3002 3008-300D 3010-3011 FF01 FF05 "
    "FF08-FF09 FF0C FF0E FF11 FF1A-FF1B FF1F FF5E"
)
_STOP_WORDS = frozenset(["the", "be", "to", "of", "and", "that", "have", "with"])
_TOP_LIMITS = {2: 0.20, 3: 0.18, 4: 0.16}
_REPEAT_LIMITS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
_NGRAMS = {n: f"top_{n}_gram" for n in _TOP_LIMITS} | {n: f"duplicated_{n}_n_grams" for n in _REPEAT_LIMITS}
_ORDERS = np.array([*_NGRAMS])
_ELLIPSES = ("...", "…")
_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_C4_ENDS = (".", "?", "!", '"', "'")
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_COUNTED_SENTENCES = 45  # of a document that is measured
_WORD_BIT, _LETTER_BIT = 1, 2

Check = tuple[str, float, bool]  # the reason, the measured value, and whether the document is dropped


class ProfileRule(NamedTuple):
    """A rule of a profile, with its limit. What a text must not have at all is counted, with the limit 0."""

    key: str
    limit: float = 0
    side: Side = "above"
    form: Literal["count", "share", "number"] = "count"

    @property
    def reason(self) -> str:
        """The reason under which documents are dropped, after the name of the step."""
        return self.key


_RULES = {
    "gopher-repetition": (
        ProfileRule("empty"),
        ProfileRule("dup_para_frac", 0.3, form="share"),
        ProfileRule("dup_para_char_frac", 0.2, form="share"),
        ProfileRule("dup_line_frac", 0.3, form="share"),
        ProfileRule("dup_line_char_frac", 0.2, form="share"),
        *(ProfileRule(_NGRAMS[n], limit, form="share") for n, limit in (_TOP_LIMITS | _REPEAT_LIMITS).items()),
    ),
    "gopher": (
        ProfileRule("gopher_short_doc", 50, "below"),
        ProfileRule("gopher_long_doc", 100_000),
        ProfileRule("gopher_below_avg_threshold", 3, "below", "number"),
        ProfileRule("gopher_above_avg_threshold", 10, form="number"),
        ProfileRule("gopher_too_many_hashes", 0.1, form="number"),
        ProfileRule("gopher_too_many_ellipsis", 0.1, form="number"),
        ProfileRule("gopher_too_many_bullets", 0.9, form="share"),
        ProfileRule("gopher_too_many_end_ellipsis", 0.3, form="share"),
        ProfileRule("gopher_below_alpha_threshold", 0.8, "below", "share"),
        ProfileRule("gopher_enough_stop_words", 2, "below"),
    ),
    "c4": (ProfileRule("lorem_ipsum"), ProfileRule("curly_bracket"), ProfileRule("too_few_sentences", 5, "below")),
    "fineweb": (
        ProfileRule("empty"),
        ProfileRule("line_punct_ratio", 0.12, "below", "share"),
        ProfileRule("short_line_ratio", 0.67, form="share"),
        ProfileRule("char_dup_ratio", 0.01, form="share"),
        ProfileRule("list_ratio", 0.3, form="number"),
    ),
}
RULES = {rule.key: rule for rules in _RULES.values() for rule in rules}


class ProfileText:
    """A text, and its words, which are split when a rule first needs them.

    Args:
        text: The text.
        splitter: The splitter.
        is_measured: Whether each rule gives its value, also where a quicker look decides.
    """

    def __init__(self, text: str, splitter: Splitter, *, is_measured: bool = False) -> None:
        self.text, self.splitter, self.is_measured = text, splitter, is_measured
        self.dropped_lines: int | None = None  # by C4, if it ran

    def replace(self, text: str, dropped_lines: int) -> None:
        """Set another text, whose words are split again."""
        self.__dict__ = {"text": text, "splitter": self.splitter, "is_measured": self.is_measured, "dropped_lines": dropped_lines}

    @cached_property
    def words(self) -> list[str]:
        return self.splitter.words(self.text)

    @cached_property
    def points(self) -> NDArray[np.uint32]:
        """Code points of all words."""
        return np.frombuffer("".join(self.words).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Start of each word in `points`, and the end of the last one."""
        starts = np.zeros(len(self.words) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, self.words), np.int64, len(self.words)), out=starts[1:])
        return starts


def gopher_repetition(given: ProfileText) -> Iterable[Check]:
    """Yield the checks of Gopher's rules about repetition: paragraphs, lines, and n-grams of words."""
    text = given.text
    yield _check("empty", not text)
    for name, parts in (("para", re.split(r"\n{2,}", text.strip())), ("line", re.split(r"\n+", text))):
        repeats, size = _repeated(parts)
        yield _check(f"dup_{name}_frac", repeats / len(parts))
        yield _check(f"dup_{name}_char_frac", size / len(text))
    from niels_cache_cleaning.profile_kernels import repetition

    tops, repeated = np.zeros((2, len(_ORDERS)), np.int64)
    repetition(given.points, given.starts, _ORDERS, tops, repeated)
    for place, (order, reason) in enumerate(_NGRAMS.items()):
        yield _check(reason, int((tops if order in _TOP_LIMITS else repeated)[place]) / len(text))


def gopher_quality(given: ProfileText) -> Iterable[Check]:
    """Yield the checks of Gopher's rules about quality: words, symbols, bullets, ellipses, letters, and stop words."""
    text, total = given.text, len(given.words)
    bits = np.bitwise_or.reduceat(_character_bits()[given.points], given.starts[:-1]) if total else np.zeros(0, np.uint8)
    sizes = np.diff(given.starts)[(bits & _WORD_BIT) > 0]
    yield _check("gopher_short_doc", len(sizes))
    yield _check("gopher_long_doc", len(sizes))
    mean = int(sizes.sum()) / len(sizes)
    yield _check("gopher_below_avg_threshold", mean)
    yield _check("gopher_above_avg_threshold", mean)
    yield _check("gopher_too_many_hashes", text.count("#") / total)
    yield _check("gopher_too_many_ellipsis", sum(map(text.count, _ELLIPSES)) / total)
    lines = text.splitlines()
    yield _check("gopher_too_many_bullets", sum(line.lstrip().startswith(("•", "-")) for line in lines) / len(lines))
    yield _check("gopher_too_many_end_ellipsis", sum(line.rstrip().endswith(_ELLIPSES) for line in lines) / len(lines))
    yield _check("gopher_below_alpha_threshold", int(np.count_nonzero(bits & _LETTER_BIT)) / total)
    yield _check("gopher_enough_stop_words", len(_STOP_WORDS.intersection(given.words)))


def c4(given: ProfileText, *, ends: bool = True) -> Iterable[Check]:
    """Yield the checks of C4, and replace the text by the lines that are left.

    Args:
        given: The text.
        ends: Whether lines must end with terminal punctuation.
    """
    sentences, kept, lines = 0, list[str](), given.text.splitlines()
    most = _COUNTED_SENTENCES if given.is_measured else RULES["too_few_sentences"].limit
    for whole in lines:
        line = whole.strip()
        words = line.split()
        if len(line) > 1000 and max(map(len, words)) > 1000:
            continue
        if "[" in line:
            line = _CITATION.sub("", line)
        if ends and (not line.endswith(_C4_ENDS) or line.endswith("...")):
            continue
        if len(words) < 3:
            continue
        lower = line.lower()
        yield _check("lorem_ipsum", "lorem ipsum" in lower)
        if "javascript" in lower:
            continue
        yield _check("curly_bracket", "{" in line)
        if any(policy in lower for policy in _POLICIES):
            continue
        if sentences < most:
            sentences += given.splitter.sentences(line, int(most) - sentences)
        kept.append(line)
    yield _check("too_few_sentences", sentences)
    given.replace("\n".join(kept).strip(), len(lines) - len(kept))


def fineweb(given: ProfileText) -> Iterable[Check]:
    """Yield the checks of FineWeb's own rules: punctuation at the ends of lines, short lines, repeated lines, and lists."""
    text = given.text
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    yield _check("empty", not lines)
    terminal = characters(_TERMINAL)
    yield _check("line_punct_ratio", sum(line[-1] in terminal for line in lines) / len(lines))
    yield _check("short_line_ratio", sum(len(line) <= 30 for line in lines) / len(lines))
    breaks = text.count("\n")
    yield _check("char_dup_ratio", _repeated(lines)[1] / (len(text) - breaks))
    # there are at least as many words as pieces between blanks
    if given.is_measured or breaks / len(text.split()) > RULES["list_ratio"].limit:
        yield _check("list_ratio", breaks / len(given.words))


def _fineweb_c4(given: ProfileText) -> Iterable[Check]:
    return c4(given, ends=False)


PROFILES: dict[str, dict[Callable[[ProfileText], Iterable[Check]], tuple[ProfileRule, ...]]] = {
    "gopher": {gopher_quality: _RULES["gopher"]},
    "gopher-repetition": {gopher_repetition: _RULES["gopher-repetition"]},
    "c4": {c4: _RULES["c4"]},
    "fineweb": {
        gopher_repetition: _RULES["gopher-repetition"],
        gopher_quality: _RULES["gopher"],
        _fineweb_c4: _RULES["c4"],
        fineweb: _RULES["fineweb"],
    },
}

MEANINGS = {  # what is true of a document that is dropped
    "empty": "there is no text",
    "dup_para_frac": "more than 30% of paragraphs repeat earlier ones",
    "dup_para_char_frac": "more than 20% of characters are in paragraphs that repeat earlier ones",
    "dup_line_frac": "more than 30% of lines repeat earlier ones",
    "dup_line_char_frac": "more than 20% of characters are in lines that repeat earlier ones",
    **{f"top_{n}_gram": f"the most frequent {n}-gram has more than {limit:.0%} of characters" for n, limit in _TOP_LIMITS.items()},
    **{
        f"duplicated_{n}_n_grams": f"more than {limit:.0%} of characters are in {n}-grams that repeat earlier ones"
        for n, limit in _REPEAT_LIMITS.items()
    },
    "gopher_short_doc": "there are fewer than 50 words",
    "gopher_long_doc": "there are more than 100,000 words",
    "gopher_below_avg_threshold": "words have fewer than 3 characters on average",
    "gopher_above_avg_threshold": "words have more than 10 characters on average",
    "gopher_too_many_hashes": "there are more than 0.1 `#` per word",
    "gopher_too_many_ellipsis": "there are more than 0.1 ellipses per word",
    "gopher_too_many_bullets": "more than 90% of lines begin with a bullet",
    "gopher_too_many_end_ellipsis": "more than 30% of lines end with an ellipsis",
    "gopher_below_alpha_threshold": "fewer than 80% of words have a letter",
    "gopher_enough_stop_words": "there are fewer than two of 8 stop words",
    "lorem_ipsum": 'a line has "lorem ipsum"',
    "curly_bracket": "a line has `{`",
    "too_few_sentences": "there are fewer than 5 sentences in the lines that are left",
    "line_punct_ratio": "fewer than 12% of lines end with a terminal punctuation mark",
    "short_line_ratio": "more than 67% of lines have at most 30 characters",
    "char_dup_ratio": "more than 1% of characters are in lines that repeat earlier ones",
    "list_ratio": "there are more than 0.3 line breaks per word",
}


@step(version=1, identity="version")
class Profile:
    """A profile as a step. It returns the document, or C4's text and number of dropped lines, or the first rule that fails.

    Args:
        profile: A key of PROFILES.
        splitter: A key of `profile_words.SPLITTERS`.

    Raises:
        NielsCacheError: If one of them is another value, or the package of the splitter is not installed.
    """

    def __init__(self, profile: str, splitter: str = "words") -> None:
        for key, value, values in (("profile", profile, PROFILES), ("splitter", splitter, SPLITTERS)):
            if value not in values:
                raise NielsCacheError(f"{key} is {value!r}; set it to {', '.join(values)}")
        self._filters, self._splitter = PROFILES[profile], SPLITTERS[splitter]()
        rules = {rule.key: rule for each in self._filters.values() for rule in each}
        self._limits = {key: limit_of(rule.limit, rule.side, rule.form) for key, rule in rules.items()}

    def __call__(self, document: Document) -> Any:
        given = ProfileText(document.text, self._splitter)
        for each in self._filters:
            for reason, value, is_dropped in each(given):
                if is_dropped:
                    return Drop(reason, value)
        return document if given.dropped_lines is None else {"text": given.text, "dropped_lines": given.dropped_lines}

    def measure(self, text: str) -> dict[str, float]:
        """Return the value of each rule, also of those after the first one that fails. A text without words has no values per word."""
        given, found = ProfileText(text, self._splitter, is_measured=True), dict[str, float]()
        for each in self._filters:
            with suppress(ZeroDivisionError):
                for reason, value, _ in each(given):
                    found[reason] = found.get(reason, 0) + value  # a rule about lines gives one value for each
        return found

    def count_in_report(self, report: CleaningReport, title: str, place: int, document: Document, result: Any) -> Callable[[], None] | None:
        """Add the measures to the report, if the document is in the sample, and the lines that C4 drops, if it is kept in the end."""
        weight, bits = report.measured_weight(place)
        if weight:
            found = DocumentMeasures(self.measure(document.text), 0, None, None)
            report.measures_of(title, self._limits).add(found, report.shown(document), weight=weight, bits=bits)
        if isinstance(result, dict) and result["dropped_lines"]:
            return partial(report.cut_lines.update, {title: result["dropped_lines"]})
        return None


def _check(reason: str, value: float) -> Check:
    rule = RULES[reason]
    return reason, value, value > rule.limit if rule.side == "above" else value < rule.limit


def _repeated(parts: list[str]) -> tuple[int, int]:
    """Return how many parts repeat an earlier one, and how many characters they have."""
    unique = set(parts)
    if len(unique) == len(parts):
        return 0, 0
    return len(parts) - len(unique), sum(map(len, parts)) - sum(map(len, unique))


@lru_cache
def _character_bits() -> NDArray[np.uint8]:
    """Return for each code point whether it counts as a part of a word, and whether it is a letter."""
    bits = np.full(0x110000, _WORD_BIT, np.uint8)
    bits[[ord(each) for each in characters(_TERMINAL) | characters(_PUNCTUATION)]] = 0
    return bits | np.fromiter((_LETTER_BIT * chr(point).isalpha() for point in range(0x110000)), np.uint8, 0x110000)
