"""The parts of the shipped cleaning as single steps: a filter, languages, masks and normalizers. `entries` has their short forms.

The code is that of the cleaning. A step is identified by its version, which changes if its results do, and not if unrelated code does.
The chain calls `count_in_report` with each document and result. It adds to the report what cleaning adds for its own parts. If it returns a
function, this is called if the document is kept in the end.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.measures import UNKNOWN_LANGUAGE, DocumentMeasures
from niels_cache_assets.cleaning.report import CleaningReport
from niels_cache_assets.cleaning.settings import NORMALIZERS
from niels_cache_assets.steps.step import Drop, step
from niels_cache_cleaning.entries import limits_in, settings_of
from niels_cache_cleaning.filters import FILTERS, RULES, DocumentFacts, most_frequent_pair
from niels_cache_cleaning.languages import Language, language_of
from niels_cache_cleaning.masks import mask, mask_examples
from niels_cache_cleaning.measuring import limit_of
from niels_cache_cleaning.normalizers import normalize, replace_unreadable

OTHER_LANGUAGE, UNKNOWN = "other_language", "unknown_language"


@step(version=1, identity="version")
class Filter:
    """A filter of cleaning.

    Args:
        filter: Its drop reason.
        **keys: Keys of [cleaning] that it uses. If they have limits, only these limits apply, or else those that [cleaning] has by default.
    """

    def __init__(self, filter: str, **keys: Any) -> None:
        self._settings = settings_of(keys)
        limits = [key for key in limits_in(filter) if key in keys] or limits_in(filter)
        self._rules = [rule for rule in RULES if rule.key in limits and getattr(self._settings, rule.key) is not None]
        self._judge = dict(FILTERS)[filter]
        self._limits = {rule.key: limit_of(getattr(self._settings, rule.key), rule.side, rule.form) for rule in self._rules}

    def __call__(self, document: Document) -> Document | Drop | None:
        facts = DocumentFacts(document, self._settings)
        for rule in self._rules:
            value = rule.measure(facts)
            if value is not None and rule.drops(value, getattr(self._settings, rule.key)):
                return Drop(rule.key, value)
        return document if self._rules or self._judge(facts) is None else None

    def count_in_report(self, report: CleaningReport, title: str, place: int, document: Document, result: Any) -> None:
        """Add the measures to the report, if the document is in the sample."""
        weight, bits = report.measured_weight(place)
        if weight and self._rules:
            facts = DocumentFacts(document, self._settings)
            values = {rule.key: rule.measure(facts) for rule in self._rules}
            pair = most_frequent_pair(facts) if "max_bigram_share" in values else None
            found = DocumentMeasures({key: value for key, value in values.items() if value is not None}, 0, None, pair)
            report.measures_of(title, self._limits).add(found, report.shown(document), weight=weight, bits=bits)


@step(version=1, identity="version")
class Languages:
    """The filters of cleaning by language. The columns are the code and the probability of the language.

    Args:
        languages: ISO 639-1 codes.
        language_characters: As in [cleaning].
    """

    def __init__(self, languages: Sequence[str], **keys: Any) -> None:
        self._settings = settings_of({"languages": languages, **keys})

    def __call__(self, document: Document) -> dict[str, Any] | Drop:
        code, share = self._language(document)
        if code not in self._settings.languages:
            return Drop(UNKNOWN) if code is None else Drop(OTHER_LANGUAGE, share)
        return {"language": code, "language_share": share}

    def count_in_report(self, report: CleaningReport, title: str, place: int, document: Document, result: Any) -> None:
        """Count the language, which the identifier remembers, unless cleaning counts languages."""
        if report.measures is None:
            report.languages[self._language(document).code or UNKNOWN_LANGUAGE] += 1

    def _language(self, document: Document) -> Language:
        facts = DocumentFacts(document, self._settings)
        return language_of(facts.text, characters=self._settings.language_characters, wanted=self._settings.languages)


@step(version=1, identity="version")
class Mask:
    """The masks of cleaning.

    Args:
        mask: Their kinds.
    """

    def __init__(self, mask: Sequence[str]) -> None:
        self._kinds = tuple(mask)

    def __call__(self, document: Document) -> dict[str, Any]:
        text, spans = mask(document.text, self._kinds)
        title = document.title and mask(document.title, self._kinds)[0]
        return {"text": text, "title": title, "masked": len(spans)} if spans or title != document.title else {"masked": 0}

    def count_in_report(self, report: CleaningReport, title: str, place: int, document: Document, result: Any) -> Callable[[], None] | None:
        """Count the matches and show some, if the document is kept."""
        if not result["masked"]:
            return None
        _, spans = mask(document.text, self._kinds)
        return partial(report.add_masked, Counter(span.kind for span in spans), mask_examples(document.text, spans, report.masks), place)


@step(version=1, identity="version")
class Normalize:
    """Some normalizers of cleaning. `unreadable` also changes the title.

    Args:
        normalize: Their names.
    """

    def __init__(self, normalize: Sequence[str]) -> None:
        self._skip = frozenset(NORMALIZERS).difference(normalize)

    def __call__(self, document: Document) -> Document:
        text, title = normalize(document.text, self._skip), document.title
        if title is not None and "unreadable" not in self._skip:
            title = replace_unreadable(title)
        return document if (text, title) == (document.text, document.title) else document._replace(text=text, title=title)
