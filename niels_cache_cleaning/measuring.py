"""What the filters measure: all measures of one document, and the limits of the rules that are switched on.

`niels_cache_assets.cleaning.measures` chooses the documents and keeps the histograms.
"""

from collections.abc import Set

from niels_cache_assets.cleaning.measures import STEPS_TO_LIMIT, UNKNOWN_LANGUAGE, DocumentMeasures, RuleLimit, Side
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_cleaning.filters import FILTERS, RULES, DocumentFacts, most_frequent_pair

# The filters without a limit. A text that one of the first drops has nothing to measure. The last one identifies the language, which would
# select the stop words.
_JUDGES = dict(FILTERS)
FIRST_REASONS, NEXT_REASONS, LAST_REASONS = ("redirect", "empty"), ("disambiguation", "not_english"), ("language_error",)


def limits_of(settings: CleaningSettings) -> dict[str, RuleLimit]:
    """Return the limits that are switched on, by the key of the rule."""
    limits = {}
    for rule in RULES:
        limit = getattr(settings, rule.key)
        if limit is not None and rule.reason not in settings.skip:
            limits[rule.key] = limit_of(limit, rule.side, rule.form)
    return limits


def limit_of(limit: float, side: Side, form: str) -> RuleLimit:
    """Return a limit with the step of its histogram."""
    return RuleLimit(float(limit), _step(form, float(limit)), side)


def measure(facts: DocumentFacts, skip: Set[str]) -> DocumentMeasures:
    """Return all measures of a document.

    Args:
        facts: The document.
        skip: Filters that do not run.
    """

    def drop(reasons: tuple[str, ...]) -> int:
        return sum(reason not in skip and _JUDGES[reason](facts) is not None for reason in reasons)

    if drop(FIRST_REASONS):
        return DocumentMeasures({}, 1, None, None)
    others = drop(NEXT_REASONS)
    rules = [rule for rule in RULES if rule.reason not in skip and getattr(facts.settings, rule.key) is not None]
    found = {rule.key: rule.measure(facts) for rule in rules}
    pair = most_frequent_pair(facts) if "repetitive" not in skip else None
    others += drop(LAST_REASONS)
    identified = facts.identified_language
    language = None if identified is None else identified.code or UNKNOWN_LANGUAGE
    return DocumentMeasures({key: value for key, value in found.items() if value is not None}, others, language, pair)


def _step(form: str, limit: float) -> float:
    if form == "count":
        return float(max(1, round(limit / STEPS_TO_LIMIT)))
    if form == "share" and 0 < limit < 1:
        return min(limit, 1 - limit) / STEPS_TO_LIMIT
    return (limit or 1.0) / STEPS_TO_LIMIT
