"""Passes over sources that begin at a place of another pass."""

import json
from collections.abc import Iterator
from typing import Any

from niels_cache_assets.documents import Place, SourceReport
from niels_cache_assets.sources.types import SftSource, Source, StreamContext


def batches_of(source: Source, context: StreamContext) -> Iterator[list[Any]]:
    batches = source.conversations(context) if isinstance(source, SftSource) else source.documents(context)  # type: ignore[attr-defined]
    return map(list, batches)


def started_at(place: Place | None, dropped: dict[str, int], facts: dict[str, Any]) -> StreamContext:
    """Return the context of a pass that begins at a place from a journal, which was written as JSON."""
    report = SourceReport()
    report.dropped.update(json.loads(json.dumps(dropped)))
    report.facts.update(json.loads(json.dumps(facts)))
    return StreamContext(seed=42, start=json.loads(json.dumps(place)), report=report)


def places_of(source: Source) -> list[tuple[Place, dict[str, int], dict[str, Any]]]:
    """Return every place that a pass reports, with the counts at this place."""
    context = StreamContext(seed=42)
    found = []
    for _ in batches_of(source, context):
        if (place := context.report.place) is not None:
            found.append((place, dict(context.report.dropped), dict(context.report.facts)))
    return found


def require_every_place_is_exact(source: Source, *, at_least: int, every: int = 1) -> None:
    """Assert that from each place (or every n-th place), the same batches, places and counts follow as in the pass that reported this
    place.
    """

    def follow(context: StreamContext) -> list[tuple[list[Any], Place, dict[str, int], dict[str, Any]]]:
        return [
            (batch, context.report.place or {}, dict(context.report.dropped), dict(context.report.facts))
            for batch in batches_of(source, context)
        ]

    def rows_of(followed: list[Any]) -> list[Any]:
        """Return batches and counts, with the number, file and row of each place. Other data of a place may differ."""
        return [(batch, place.get("number"), place.get("file"), place.get("row"), *counted) for batch, place, *counted in followed]

    whole = StreamContext(seed=42)
    undisturbed = follow(whole)
    places = [(number, *rest) for number, (_, *rest) in enumerate(undisturbed, 1) if rest[0]]
    assert len(places) >= at_least
    for number, place, dropped, facts in places[::every]:
        context = started_at(place, dropped, facts)
        assert rows_of(follow(context)) == rows_of(undisturbed[number:]), place
        assert context.report.dropped == whole.report.dropped, place
        assert context.report.facts == whole.report.facts, place
