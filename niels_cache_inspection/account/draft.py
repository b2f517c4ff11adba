"""A draft of the figures that a provider needs for the public summary of training content that the European Commission asks for.

It has figures and sources only, under headings of our own: it is not the Commission's template and quotes nothing of it. What no cache
records, such as how rights were reserved or how illegal content was removed, is listed as missing.
"""

from collections.abc import Sequence
from typing import Any

from niels_cache_inspection.account.dimensions import UNKNOWN
from niels_cache_inspection.account.ledger import Ledger
from niels_cache_inspection.account.splits import AccountedCache
from niels_cache_inspection.account.tables import NO_DOCUMENT

NOTICE = (
    "Draft, generated from caches. It has figures and sources only, is not the template of the European Commission, and no legal advice. "
    "Compare every figure with the template that is in force."
)
MISSING = (
    "provider, model, and the date on which it was placed on the market",
    "names and dates of crawlers, and the period of crawling",
    "agreements with rights holders, and data of users",
    "synthetic data and the models that made it",
    "how reservations of rights were respected, and how illegal content was removed",
    "text that was read outside of these caches, and modalities other than text",
)
_SIZES = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))
_LARGEST = "more than 10 trillion tokens"
_SHARE = 10  # the share of domains, in percent
_SHOWN = 200


def draft_of(ledger: Ledger, caches: Sequence[AccountedCache]) -> dict[str, Any]:
    """Return the draft as JSON-able values. With runs, its figures are those of what was read; otherwise of the train splits."""
    section = "read" if ledger.runs else "train"
    tables = ledger.tables[section]
    tokens = sum(figures["unique"] for _, figures in tables["source"].rows())
    by_name = {cache.name: cache for cache in caches}
    sources = []
    for value, figures in tables["source"].rows():
        cache = by_name.get(value) or by_name.get(value.partition(": ")[0])
        source = cache.meta.get("source") if cache else None
        sources.append(
            {
                "source": value,
                "family": cache.family if cache else None,
                "kind": source.get("kind") if isinstance(source, dict) else None,
                "revision": cache.meta.get("dataset_revision") if cache else None,
                **_sizes(figures),
            }
        )
    domains = [row for row in tables["domain"].rows() if row[0] not in (UNKNOWN, NO_DOCUMENT)]
    top = -(-len(domains) * _SHARE // 100)
    years = sorted(int(value) for value, _ in tables["year"].rows() if value.isdecimal())
    return {
        "notice": NOTICE,
        "basis": "what training has read" if ledger.runs else "the train splits of all caches",
        "modality": "text",
        "tokens": tokens,
        "size": next((words for limit, words in _SIZES if tokens < limit), _LARGEST),
        "sources": sources,
        "languages": _rows(tables["language"].rows()),
        "licenses": _rows(tables["license"].rows()),
        "years": {"first": years[0] if years else None, "last": years[-1] if years else None, "by_year": _rows(tables["year"].rows())},
        "domains": {
            "known": len(domains),
            "share_percent": _SHARE,
            "listed": top,
            "largest": _rows(domains[: min(top, _SHOWN)]),
            "all_in": f"tables/{section}_domain.csv",
            "tokens_unknown": sum(figures["tokens"] for value, figures in tables["domain"].rows() if value == UNKNOWN),
        },
        "missing": list(MISSING),
    }


def _rows(rows: Any) -> list[dict[str, Any]]:
    return [{"value": value, **_sizes(figures)} for value, figures in list(rows)[:_SHOWN] if value != NO_DOCUMENT]


def _sizes(figures: dict[str, int]) -> dict[str, int]:
    return {name: figures[name] for name in ("documents", "tokens", "unique", "repeats")}
