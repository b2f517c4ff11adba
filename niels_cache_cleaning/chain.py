"""The cleaning chain: it normalizes a document, masks personal data if `mask` names any, and then runs the filters.

The first filter that rejects the document gives the reason. The result for a document depends only on this document, so any process may
clean any document. Cleaning takes about 0.02 ms per kilobyte of text without markup, and four times that at the start, before the compiled
loops of `passes` are worth their loading time. The package `corpus` reads the documents and writes those that are kept.
"""

from collections import Counter
from collections.abc import Callable, Set
from functools import partial

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.measures import UNKNOWN_LANGUAGE
from niels_cache_assets.cleaning.report import CleaningReport, RejectedDocument
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_cleaning.filters import FILTERS, DocumentFacts
from niels_cache_cleaning.masks import mask, mask_examples
from niels_cache_cleaning.measuring import measure
from niels_cache_cleaning.normalizers import MARKUP_NORMALIZERS, normalize, replace_unreadable
from niels_cache_cleaning.passes import WORTH_IT
from niels_cache_cleaning.quick_checks import passing_filters


class Cleaner:
    """A cleaner of documents, with its settings. It can be pickled.

    Args:
        settings: Settings in [cleaning].
        plain_text: Whether documents are plain text already, so that markup is not removed; by default no.
        compiled: Whether to use compiled loops, which give equal results; by default, after the first WORTH_IT characters.
    """

    def __init__(self, settings: CleaningSettings, *, plain_text: bool = False, compiled: bool | None = None) -> None:
        self.settings = settings
        self._compiled = compiled
        self._characters = 0
        self._skip = frozenset(settings.skip) | (MARKUP_NORMALIZERS if plain_text else frozenset())

    def clean(
        self, document: Document, report: CleaningReport | None = None, if_kept: list[tuple[int, Callable[[], object]]] | None = None
    ) -> Document | RejectedDocument:
        """Return the normalized document, or a rejection with its reason.

        In the result, the text, the title, the source id and the file name contain no NULs, control characters or lone surrogates, so they
        can be written as UTF-8. The title is masked, too, but only the matches in the text are counted.

        Args:
            document: The document.
            report: Counts the result, if given.
            if_kept: Gets the index of the document in the report, and the function that counts its masks, if later steps may drop it.
        """
        self._characters += len(document.text)
        compiled = self._characters > WORTH_IT if self._compiled is None else self._compiled
        title = None if document.title is None else replace_unreadable(document.title)
        source_id, file = replace_unreadable(document.source_id), replace_unreadable(document.file)
        text = normalize(document.text, self._skip, compiled=compiled)
        masked, spans = mask(text, self.settings.mask) if self.settings.mask else (text, [])
        if title is not None and self.settings.mask:
            title, _ = mask(title, self.settings.mask)
        facts = DocumentFacts(document._replace(text=masked, title=title, source_id=source_id, file=file), self.settings)
        proven = passing_filters(facts.text, self.settings) if compiled else set()
        result = self._apply_filters(facts, self._skip | proven)
        if report is not None:
            language = None
            if facts.identified_language is not None:
                language = facts.identified_language.code or UNKNOWN_LANGUAGE
            if report.measures is not None:
                weight, bits = report.measured_weight()
                if weight:
                    facts.identified_language = None  # the language selects the stop words only if it has already been identified
                    report.measures.add(measure(facts, self._skip), report.shown(facts.document), weight=weight, bits=bits)
            report.add(result, language)
            if spans and isinstance(result, Document):
                found, place = Counter(span.kind for span in spans), report.documents - 1
                count = partial(report.add_masked, found, mask_examples(text, spans, report.masks), place)
                count() if if_kept is None else if_kept.append((place, count))
        return result

    def _apply_filters(self, facts: DocumentFacts, skip: Set[str]) -> Document | RejectedDocument:
        for reason, judge in FILTERS:
            if reason not in skip and (rejection := judge(facts)):
                return RejectedDocument(facts.document, reason, rejection.value)
        return facts.document
